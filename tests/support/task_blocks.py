"""Count the blocks of task gradients that scorers compute, and kill a scorer between two of them."""

from dataclasses import dataclass, field

from hf_tlm.influence import InfluenceScorer


class Killed(BaseException):
    """Raised in place of a kill: no handler catches it, so files are left as by a kill."""


@dataclass
class TaskBlocks:
    """The blocks computed so far.

    made: the first task text of each computed block, in order.
    stop: number of blocks after which the next one raises `Killed`.
    """

    made: list[int] = field(default_factory=list)
    stop: int | None = None


def count_blocks(monkeypatch, *, texts):
    """Set the block size of scorers to `texts` task texts, and count their blocks from now on."""
    monkeypatch.setattr("hf_tlm.influence.scorer.BLOCK_TEXTS", texts)
    blocks, block = TaskBlocks(), InfluenceScorer._compute_block

    def counted(self, rows, size, tasks):
        if len(blocks.made) == blocks.stop:
            raise Killed
        blocks.made.append(tasks.start)
        return block(self, rows, size, tasks)

    monkeypatch.setattr(InfluenceScorer, "_compute_block", counted)
    return blocks
