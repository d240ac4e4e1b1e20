"""How recipes take blocks."""

from __future__ import annotations

from dataclasses import dataclass

from hf_tlm.utils.options import check_ranges, option


@dataclass
class BlockArguments:
    """The corpus as blocks of max_length tokens."""

    blocks: str = option(
        "contiguous",
        "contiguous: texts one after the other, cut every max_length tokens. sentences: whole sentences, as "
        "many as fit. Both keep texts apart by a [SEP].",
        choices=["contiguous", "sentences"],
    )
    validation_share: float = option(
        0.005, "Share of the corpus's documents kept for evaluation, chosen by their ids. 0: no evaluation."
    )
    max_validation_blocks: int = option(1000, "Blocks to evaluate on, at most.")
    vocab_texts: int = option(
        200_000, "A vocabulary that is trained is trained on at most so many passages, chosen by their ids."
    )
    shard_size: int = option(1 << 14, "Blocks are stored in files of so many; preparation continues after the last one.")
    streaming_blocks: bool = option(
        False,
        "Begin to train when the first blocks are stored, while a thread makes the next ones; a pass takes them "
        "file by file, shuffled within each. Contiguous blocks only; a vocabulary is trained on some of the first 10 x "
        "vocab_texts passages.",
    )
    shards_ahead: int = option(2, "streaming_blocks: files that are made ahead of training, at most.")

    def __post_init__(self):
        from hf_tlm.data.blocks import BlocksError

        check_ranges(self, BlocksError)
