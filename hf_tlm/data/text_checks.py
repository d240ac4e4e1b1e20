"""Measures of the text that a model does not see: truncated tokens, unknown tokens, and words in no training text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import TokenizerError, without_limits
from hf_tlm.retrieval.filters import hash_words
from hf_tlm.tasks.spec import Task, check_task
from hf_tlm.utils.texts import count_words

logger = logging.getLogger(__name__)
MAX_CUT_SHARE = 0.1  # Share of truncated tokens above which a warning is given.
# Characters of a text that are measured: a book would take long, and a part of it is enough for an estimate.
MEASURED_CHARACTERS = 20_000
# Number of texts in a sample, and the characters and tokens after which each is truncated.
SAMPLE_TEXTS, SAMPLE_CHARACTERS, SAMPLE_TOKENS = 1000, 2000, 512
# Share of unknown tokens above which they cannot be rare words.
MAX_UNKNOWN = 0.2
_NON_TEXT_COLUMNS = ("id", "label", "tags", "answers", "source")


def measure_cut(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> tuple[float, int]:
    """Measure how much of `texts` is truncated at `max_length` tokens, special ones included.

    Returns:
        (share of their tokens, without special ones, that are truncated; average number of words that fill the length).
    """
    if not texts:
        return 0.0, 0
    texts = [text[:MEASURED_CHARACTERS] for text in texts]
    rows = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    without_limits(tokenizer)
    capacity = max(1, max_length - tokenizer.num_special_tokens_to_add())
    tokens, words = sum(map(len, rows)), sum(map(count_words, texts))
    cut = sum(max(0, len(row) - capacity) for row in rows)
    # At least 1, because passages of 0 words mean uncut documents.
    return (cut / tokens, max(1, int(capacity * words / tokens))) if tokens else (0.0, 0)


def warn_of_cut(what: str, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, advice: str) -> None:
    """Log a warning if truncation at `max_length` drops more than `MAX_CUT_SHARE` of the tokens.

    Args:
        what: name of the texts in the warning.
        texts: a sample of them.
        advice: what to do, a sentence; `{words}` in it is replaced by the number of words that fill the length.
    """
    share, words = measure_cut(texts, tokenizer, max_length)
    if share > MAX_CUT_SHARE:
        logger.warning(
            "%.0f%% of the tokens of %s are cut off, as each text is truncated to %d tokens. %s",
            *(100 * share, what, max_length, advice.format(words=words)),
        )


@contextmanager
def told_once(*names: str) -> Iterator[None]:
    """Give each different warning of some loggers once within the block, such as those on texts that a grid's points share.

    names: the loggers' names, which are those of their modules.
    """
    told: set[str] = set()
    loggers = [logging.getLogger(name) for name in names]

    def is_new(record: logging.LogRecord) -> bool:
        count = len(told)
        told.add(record.getMessage())
        return len(told) > count

    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)


def check_known(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], name: str) -> None:
    """Check on a sample of texts that the tokenizer knows their words.

    Args:
        name: name of the tokenizer, as the user gave it.

    Raises:
        TokenizerError: more than `MAX_UNKNOWN` of the sample's tokens are unknown ([UNK]).
    """
    if tokenizer.unk_token_id is None:
        return
    sample = [text[:SAMPLE_CHARACTERS] for text in islice(texts, SAMPLE_TEXTS)]
    if not sample:
        return
    options = {"add_special_tokens": False, "truncation": True, "max_length": SAMPLE_TOKENS, "return_attention_mask": False}
    ids = [index for row in tokenizer(sample, **options)["input_ids"] for index in row]
    without_limits(tokenizer)
    unknown = ids.count(tokenizer.unk_token_id)
    if unknown > MAX_UNKNOWN * len(ids):
        raise TokenizerError(
            f"The tokenizer of {name} does not fit the texts: {unknown / len(ids):.0%} of the tokens of {len(sample):,} "
            f"texts are {tokenizer.unk_token}, expected at most {MAX_UNKNOWN:.0%}. Choose a tokenizer, or a checkpoint, for "
            "their language and kind."
        )


def unseen_words(task: Task, passages: Dataset | None = None) -> dict[str, tuple[float, float | None]]:
    """Compute the share of a task's validation and test words that do not occur in its training texts.

    Words are those of `hf_tlm.retrieval.filters.words`, in any script; every occurrence counts, in all texts.

    Args:
        passages: further texts that the model learns from, column `text`.

    Returns:
        Split -> (share of its words in no training text, share in no training text and no passage; None without passages).
    """
    check_task(task)
    hashes = {split: np.concatenate(list(_hash_texts(rows))) for split, rows in task.splits.items() if split != "train"}
    in_no_text = _remove_words_of(np.unique(np.concatenate(list(hashes.values()))), task.train)
    in_no_passage = None if passages is None else _remove_words_of(in_no_text, passages.select_columns(["text"]))
    return {
        split: (_share(words, in_no_text), None if in_no_passage is None else _share(words, in_no_passage))
        for split, words in hashes.items()
    }


def unseen_words_line(task: Task, passages: Dataset | None = None) -> str:
    """Return the result of `unseen_words` as one line of text, shown before training."""
    shares = unseen_words(task, passages)
    line = ", ".join(f"{split} {share:.1%}" for split, (share, _) in shares.items()) + " of the words in no training text"
    if passages is not None:
        line += "; " + ", ".join(f"{split} {share:.1%}" for split, (_, share) in shares.items()) + " in no passage either"
    return f"new words    {line}"


def _remove_words_of(words: np.ndarray, rows: Dataset) -> np.ndarray:
    """Return the words (hashes) that occur in no text of `rows`."""
    for batch in _hash_texts(rows):
        words = words[~np.isin(words, batch)]
        if not len(words):
            break
    return words


def _share(words: np.ndarray, subset: np.ndarray) -> float:
    return float(np.isin(words, subset).mean()) if len(words) else 0.0


def _hash_texts(rows: Dataset) -> Iterator[np.ndarray]:
    """Yield the words of all texts as hashes, uint64 [words of a batch]."""
    yield np.zeros(0, np.uint64)
    for batch in rows.iter(1000):
        columns = [values for name, values in batch.items() if name not in _NON_TEXT_COLUMNS]
        yield from (hashes for _, hashes, _ in hash_words(_join_texts(list(row)) for row in zip(*columns, strict=True)))


def spread_texts(rows: Dataset) -> list[str]:
    """Return the texts of about `SAMPLE_TEXTS` rows, spread evenly over the rows of any kind of task."""
    chosen = rows.select(range(0, len(rows), max(1, len(rows) // SAMPLE_TEXTS)))
    columns = [chosen[name][:] for name in chosen.column_names if name not in _NON_TEXT_COLUMNS]
    return [" ".join(filter(None, map(_join_texts, values))) for values in zip(*columns, strict=True)]


def _join_texts(value: object) -> str:
    """Return a text, or the words or texts of a list joined by spaces; an empty string for any other value."""
    if isinstance(value, list):
        return " ".join(map(_join_texts, value))
    return value if isinstance(value, str) else ""
