"""Data preparation for training: tokenisation, blocks, interleaving, masking and collation."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.corpora.arguments import BlockArguments
    from hf_tlm.data.blocks import BlockMaker, BlockShards
    from hf_tlm.data.collator import TlmCollator
    from hf_tlm.data.interleave import InterleavedBatchSampler, InterleavedDataset
    from hf_tlm.data.streaming import Preparation, ShardStream, StreamedBlocks
    from hf_tlm.data.text_checks import unseen_words, unseen_words_line
    from hf_tlm.data.tokenization import (
        TokenizerError,
        cached_wordpiece,
        in_first_order,
        kept_tokenizer,
        load_tokenizer,
        longest_first,
        text_lengths,
        tokenize,
        train_wordpiece,
    )
    from hf_tlm.errors import BlocksError

__getattr__, __dir__, __all__ = export_lazily(__name__)
