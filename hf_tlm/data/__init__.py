"""From text to batches: tokenise, interleave, mask, collate."""

from hf_tlm.data.collator import TlmCollator
from hf_tlm.data.interleave import InterleavedBatchSampler, InterleavedDataset
from hf_tlm.data.tokenization import TokenizerError, load_tokenizer, text_lengths, tokenize, train_wordpiece

__all__ = [
    "InterleavedBatchSampler",
    "InterleavedDataset",
    "TlmCollator",
    "TokenizerError",
    "load_tokenizer",
    "text_lengths",
    "tokenize",
    "train_wordpiece",
]
