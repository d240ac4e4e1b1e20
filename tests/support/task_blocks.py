"""What scorers make of their task gradients, block by block, and a kill between two of them."""

from dataclasses import dataclass, field

from hf_tlm.influence import InfluenceScorer


class Killed(BaseException):
    """What no handler catches: as far as files go, a kill."""


@dataclass
class TaskBlocks:
    """The first task text of each block in the order they are `made`; with as many as `stop`, the next is `Killed`."""

    made: list[int] = field(default_factory=list)
    stop: int | None = None


def count_blocks(monkeypatch, *, texts):
    """From now on scorers have blocks of so many task texts, and they are counted."""
    monkeypatch.setattr("hf_tlm.influence.scorer.BLOCK_TEXTS", texts)
    blocks, block = TaskBlocks(), InfluenceScorer._block

    def counted(self, rows, size, tasks):
        if len(blocks.made) == blocks.stop:
            raise Killed
        blocks.made.append(tasks.start)
        return block(self, rows, size, tasks)

    monkeypatch.setattr(InfluenceScorer, "_block", counted)
    return blocks
