"""Loading and training of tokenizers, and tokenisation of data sets."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import xxhash
from datasets import Dataset
from tokenizers import BertWordPieceTokenizer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from hf_tlm.data.word_pieces import find_encoder
from hf_tlm.errors import HfTlmError
from hf_tlm.hub.errors import unfound_reason
from hf_tlm.hub.repo import TOKENIZER_FILES, checkpoint_folder
from hf_tlm.utils.arrow_files import cache_folder, is_intact, map_rows, seal_rows, without_format
from hf_tlm.utils.files import atomic_file
from hf_tlm.utils.options import check_numbers, named, to_python
from hf_tlm.utils.seals import keep_sealed
from hf_tlm.utils.shown import kind_of
from hf_tlm.utils.texts import alphabet_of

logger = logging.getLogger(__name__)
# Patterns of the files that hold a tokenizer's vocabulary.
VOCABULARY_FILES = ("*tokenizer.json", "vocab*", "*.model", "*.tiktoken")
# Files of a trained tokenizer.
FILES = ("tokenizer.json", "tokenizer_config.json")


class TokenizerError(HfTlmError):
    """Raised when a tokenizer cannot be loaded, trained or used for its purpose."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, masking: bool = True) -> None:
    """Check that a tokenizer has the special tokens that training needs.

    Args:
        masking: whether it is for masked language modelling.

    Raises:
        TokenizerError: it is not a tokenizer, has no padding token, or has no mask token although `masking`.
    """
    if not all(hasattr(tokenizer, needed) for needed in ("mask_token", "pad_token", "name_or_path")):
        raise TokenizerError(
            f"Expected a tokenizer of transformers; received {str(tokenizer)[:100]!r} ({type(tokenizer).__name__}). Pass "
            "what AutoTokenizer.from_pretrained(name or folder) returns."
        )
    name = tokenizer.name_or_path or "this one"
    if masking and tokenizer.mask_token is None:
        raise TokenizerError(
            f"Masked language modelling needs a tokenizer with a mask_token; {name} has none. Use an encoder's tokenizer "
            "(BERT, RoBERTa, ...), or remove --tokenizer_name to train one."
        )
    if tokenizer.pad_token is None:
        raise TokenizerError(
            f"Batches need a tokenizer with a pad_token; {name} has none. Use an encoder's tokenizer (BERT, RoBERTa, ...)."
        )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the tokenizer's special tokens, including tokens added to it as special, ascending."""
    added = [index for index, token in tokenizer.added_tokens_decoder.items() if token.special]
    return sorted({*tokenizer.all_special_ids, *added})


def load_tokenizer(
    name_or_path: str, *, revision: str | None = None, trust_remote_code: bool = False, masking: bool = True
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder, or from a Hub id, optionally with `@revision`.

    Args:
        masking: whether it is for masked language modelling.

    Raises:
        HubError: see `checkpoint_folder`.
        TokenizerError: `name_or_path` is not a name, or the tokenizer cannot be loaded, lacks a padding token, or lacks a
            mask token although `masking`.
    """
    if isinstance(name_or_path, PreTrainedTokenizerBase):
        raise TokenizerError(
            f"name_or_path: expected a folder or a Hub id; received a {type(name_or_path).__name__}. Use the tokenizer "
            "itself, without load_tokenizer."
        )
    name_or_path = named("name_or_path", name_or_path, TokenizerError, needed=True)
    options = {"trust_remote_code": trust_remote_code}
    folder = checkpoint_folder(name_or_path, revision, files=TOKENIZER_FILES, **options)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, revision=revision, **options)
    except Exception as error:  # The readers of damaged files raise many types, `tokenizers` plain Exceptions.
        path = Path(folder)
        if path.is_dir() and not any(file for glob in VOCABULARY_FILES for file in path.glob(glob)):
            # transformers would ask for sentencepiece.
            reason = "contains neither a model nor a tokenizer. Pass a folder that does."
            if (path / "config.json").is_file():
                reason = "has no vocabulary: tokenizer.json is missing. Copy the tokenizer's files beside config.json."
            raise TokenizerError(f"{name_or_path} {reason}") from error
        reason = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        reason = unfound_reason(error, name_or_path) or reason
        raise TokenizerError(f"Cannot load a tokenizer from {name_or_path!r}: {reason}") from error
    if len(tokenizer) <= len(special := special_ids(tokenizer)):
        # transformers creates a tokenizer without a vocabulary if it finds no vocabulary files.
        raise TokenizerError(
            f"{name_or_path} has no vocabulary: its tokenizer has {len(special)} special tokens and nothing else. "
            "tokenizer.json or the files of the vocabulary are missing or damaged. Copy them again, or choose another "
            "--tokenizer_name."
        )
    check_tokenizer(tokenizer, masking)
    return without_limits(tokenizer)


def without_limits(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer after removing the truncation and padding settings that calls leave in it.

    The files that it is saved in then do not depend on which texts were tokenised and which were found in the cache.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


# Rows that `text_lengths` reads at a time, and the number of rows up to which it keeps lengths in memory.
_ROWS, _IN_MEMORY = 1 << 16, 1 << 20
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_ALPHABET = 1000
# For scripts with thousands of characters (Chinese, Korean syllables) the alphabet grows beyond `MAX_ALPHABET`, until at
# most this share of the characters of the texts is left out.
UNCOVERED_SHARE = 0.001
MAX_UNCOVERED_SHARE = 0.01  # Share above which a warning is given.


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = True, max_length: int = 512
) -> PreTrainedTokenizerBase:
    """Train a WordPiece vocabulary on `texts` and return it as a BERT tokenizer.

    Runs use it if no tokenizer is given, so that none has to be downloaded. The vocabulary and its ids depend on the texts
    and the arguments only. Lower-casing also strips accents, as BERT's does, but not in scripts where that would remove
    vowels or consonants (Hindi, Thai, Japanese, ...).

    Args:
        texts: iterated three times, so a list or a dataset column rather than a generator.
        vocab_size: number of pieces, special tokens included; a small text gives fewer.
        max_length: the tokenizer's `model_max_length`.

    Raises:
        TokenizerError: `vocab_size` is out of range or leaves no room for the special tokens and the alphabet, there is no
            text, or `texts` is a single string or a generator, or has elements that are not strings.
    """
    check_numbers(TokenizerError, vocab_size=vocab_size)
    _check_texts(texts)
    has_marks, has_many_characters = alphabet_of(_iterate_texts(texts))
    # None: accents are stripped if the text is lower-cased.
    strip_accents = False if lowercase and has_marks else None
    trainer = BertWordPieceTokenizer(lowercase=lowercase, strip_accents=strip_accents)
    characters: Counter[str] = Counter()
    for text in _iterate_texts(texts):
        characters.update(trainer.normalize(text))
    alphabet = sorted(c for c in characters if not c.isspace())
    frequent = sorted(alphabet, key=characters.__getitem__, reverse=True)
    if not frequent:
        raise TokenizerError("Cannot train a vocabulary without texts.")
    coverage = np.cumsum([characters[c] for c in frequent]) / sum(characters[c] for c in frequent)
    size = min(len(frequent), MAX_ALPHABET)
    if has_many_characters:
        capacity = (vocab_size - len(SPECIAL_TOKENS)) // 2
        size = max(size, min(capacity, int(np.searchsorted(coverage, 1 - UNCOVERED_SHARE)) + 1))
    alphabet = sorted(frequent[:size])
    # The trainer breaks ties between equally frequent merges by piece ids, and numbers continuation characters in the
    # order of a hash table. Passing them as special tokens fixes their ids, which makes the vocabulary reproducible.
    pieces = [*SPECIAL_TOKENS, *(f"##{c}" for c in alphabet)]
    if len(pieces) + len(alphabet) > vocab_size:
        raise TokenizerError(
            f"vocab_size {vocab_size} is too small: special tokens and the {len(alphabet)} characters of the texts, at the "
            f"start and inside of words, need {len(pieces) + len(alphabet)}. Increase vocab_size."
        )
    if coverage[size - 1] < 1 - MAX_UNCOVERED_SHARE:
        logger.warning(
            "%.0f%% of the characters of the texts are not among the %s of the vocabulary: words with them become %s. "
            "Increase --vocab_size.",
            *(100 * (1 - coverage[size - 1]), f"{size:,}", SPECIAL_TOKENS[1]),
        )
    trainer.train_from_iterator(
        texts,
        vocab_size=vocab_size,
        min_frequency=2,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=pieces,
        show_progress=False,
    )
    ordered = sorted(trainer.get_vocab().items(), key=lambda item: item[1])
    vocab = {piece: index for index, (piece, _) in enumerate(ordered)}
    return BertTokenizer(vocab=vocab, do_lower_case=lowercase, strip_accents=strip_accents, model_max_length=max_length)


def _check_texts(texts: Any) -> None:
    received = replacement = ""
    if isinstance(texts, str):
        received, replacement = "one text", "[text]"
    elif not isinstance(texts, Iterable):
        received, replacement = kind_of(texts), "a list"
    elif iter(texts) is texts:
        received, replacement = f"a {type(texts).__name__}, which can be read once", "list(texts)"
    if received:
        raise TokenizerError(
            f"texts: expected a list of texts, or a column of a data set; received {received}. Give {replacement}."
        )


def _iterate_texts(texts: Iterable[str]) -> Iterator[str]:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TokenizerError(f"texts: expected texts; received {kind_of(text)}, after {row:,} texts. Pass texts only.")
        yield text


def cached_wordpiece(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = True, max_length: int = 512
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `train_wordpiece` from the cache of `datasets`, training it first if it is not there.

    Every run with equal texts and arguments shares it. A damaged one is trained again.

    Raises:
        TokenizerError: see `train_wordpiece`.
        HfTlmError: the cache cannot be written.
    """
    _check_texts(texts)
    # Left out for other texts, so that vocabularies cached before scripts were distinguished are still found.
    script = alphabet_of(_iterate_texts(texts))
    digest = xxhash.xxh3_128(json.dumps([vocab_size, lowercase, max_length, *(script if any(script) else ())]).encode())
    for text in _iterate_texts(texts):
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    folder = cache_folder() / f"wordpiece-{digest.hexdigest()}"
    return kept_tokenizer(folder, lambda: train_wordpiece(texts, vocab_size, lowercase=lowercase, max_length=max_length))


def kept_tokenizer(
    folder: Path, make: Callable[[], PreTrainedTokenizerBase], *, unsealed: bool = False
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a sealed folder, after creating it if it is missing or damaged.

    Args:
        make: creates the tokenizer.
        unsealed: accept a tokenizer without a seal too, as older versions wrote it.

    Raises:
        TokenizerError: an unsealed tokenizer cannot be loaded.
        HfTlmError: the folder cannot be written.
    """
    keep_sealed(folder, lambda work: make().save_pretrained(work), *FILES, unsealed=unsealed)
    return load_tokenizer(str(folder))


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    description: str = "Tokenising",
    all_types: bool = False,
) -> Dataset:
    """Tokenise every row, truncated to `max_length` tokens, special tokens included.

    Args:
        dataset: columns `text`, optionally `text_pair`, and `label` or `labels`; other columns are dropped.
        description: label of the progress bar.
        all_types: keep the token types of single texts too, which XLNet needs: they mark its [CLS].

    Returns:
        The same rows in the same order, with columns `input_ids`, `token_type_ids` for pairs (if the tokenizer makes
        them), and `label`, or without it `labels`, if there is one. For rows on disk, such as those of `load_task`, the
        result is an Arrow file beside them in the cache of `datasets`, memory-mapped, and reused by every run with equal
        rows, tokenizer and length; it is written atomically, also with several writers. For rows in memory it stays in
        memory.

    Raises:
        TokenizerError: an argument has the wrong type; the message says what to pass.
    """
    _check_tokenizable(dataset, tokenizer, max_length)
    dataset, max_length = without_format(dataset), to_python(max_length)
    pairs = "text_pair" in dataset.column_names
    type_ids = (pairs or all_types) and "token_type_ids" in tokenizer.model_input_names
    encoder = find_encoder(tokenizer)

    def encode(batch: dict) -> dict:
        texts, seconds = batch["text"], batch["text_pair"] if pairs else None
        if encoder is not None:
            remembered = encoder.encode(texts, seconds, max_length=max_length, type_ids=type_ids)
            if remembered is not None:
                return remembered
        encoded = tokenizer(
            texts,
            seconds,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=type_ids,
        )
        return {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}

    # Data sets use either name; rows of a task have `label`.
    label = next((name for name in ("label", "labels") if name in dataset.column_names), None)
    drop = [name for name in dataset.column_names if name != label]
    tokens = map_rows(
        dataset,
        encode,
        batched=True,
        remove_columns=drop,
        desc=description,
        new_fingerprint=_fingerprint(dataset, tokenizer, max_length, all_types, label),
    )
    without_limits(tokenizer)
    return tokens


def _check_tokenizable(dataset: Any, tokenizer: Any, max_length: Any) -> None:
    if not isinstance(dataset, Dataset):
        attributes = {"Task": "task.train", "Subset": "subset.dataset", "DatasetDict": 'splits["train"]'}
        kind = type(dataset).__name__
        replacement = attributes.get(kind, "Dataset.from_list(rows), of rows such as {'text': ...}")
        raise TokenizerError(f"dataset: expected a datasets.Dataset; received a {kind}. Give {replacement}.")
    if "text" not in dataset.column_names:
        raise TokenizerError(
            f"dataset: expected a column text; the columns are {', '.join(dataset.column_names)}. Rename one: "
            'dataset.rename_column(name, "text").'
        )
    for name in ("text", "text_pair"):
        if name in dataset.column_names and (problem := _describe_non_text(dataset, name)):
            raise TokenizerError(f"dataset: expected texts in the column {name}; received {problem}.")
    if not callable(tokenizer):
        raise TokenizerError(
            f"tokenizer: expected a tokenizer of transformers; received {tokenizer!r:.60}. Pass what "
            "AutoTokenizer.from_pretrained(name or folder) returns."
        )
    check_numbers(TokenizerError, max_length=max_length)


def _describe_non_text(dataset: Dataset, name: str) -> str | None:
    """Describe what a column has other than texts, and what to do about it; None if all values are texts."""
    rows = without_format(dataset)
    if not len(rows) or rows.format["type"] == "custom":  # The output of a transform is only known when it is read.
        return None
    kind = str(getattr(rows.features[name], "dtype", rows.features[name]))
    if kind not in ("string", "large_string", "string_view"):
        return f"{kind}. Convert the column to texts with dataset.map"
    # The nulls of the table may be in rows that were not selected.
    if rows.data.column(name).null_count and any(text is None for text in rows[name]):
        return "rows without a text. Remove such rows"
    return None


def _fingerprint(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, all_types: bool, label: str | None
) -> str | None:
    """Return a hash of everything that the tokenised rows depend on; None leaves the hash to `datasets`.

    `datasets` would hash the complete tokenizer, including the truncation that each call sets, so that a second run may not
    find the rows of the first one. That hash is used only for a tokenizer in pure Python.
    """
    settings = backend_settings(tokenizer)
    if settings is None:
        return None
    inputs = [dataset._fingerprint, settings, max_length, tokenizer.model_input_names, tokenizer.truncation_side]
    inputs += ["all types"] if all_types else []
    inputs += [label] if label == "labels" else []  # Older caches dropped this column.
    return xxhash.xxh3_64_hexdigest(json.dumps(inputs, sort_keys=True).encode())


def backend_settings(tokenizer: PreTrainedTokenizerBase) -> dict | None:
    """Return the settings that determine the tokens of a text, as JSON values; None for a tokenizer in pure Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    overrides = {"truncation": None, "padding": None, "split_special_tokens": tokenizer.split_special_tokens}
    return json.loads(backend.to_str()) | overrides


def longest_first(rows: Dataset, lengths: np.ndarray | None = None) -> tuple[Dataset, np.ndarray]:
    """Sort rows by descending length, so that batches have little padding.

    Args:
        lengths: number of tokens of each row, [N]; None: `text_lengths` of the rows.

    Returns:
        (sorted rows, index of each in the given rows, int64 [N]). `in_first_order` restores the order.
    """
    order = np.argsort(-(text_lengths(rows) if lengths is None else lengths), kind="stable")
    return rows.select(order), order


def in_first_order(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return values [N, ...] of rows sorted by `longest_first` in the original order of the rows."""
    ordered = np.empty_like(values)
    ordered[order] = values
    return ordered


def text_lengths(dataset: Dataset | None) -> np.ndarray:
    """Count the tokens of each row of a tokenised data set, int32 [N]; empty for None.

    This reads the offsets, not the tokens. The lengths of more than a million rows are written to a file in the cache of
    `datasets` and memory-mapped from it, also in later runs.

    Raises:
        HfTlmError: the cache cannot be written.
    """
    if dataset is None or len(dataset) <= _IN_MEMORY:
        return np.concatenate([np.zeros(0, np.int32), *_iterate_lengths(dataset)])
    file = cache_folder() / f"lengths-{dataset._fingerprint}-{len(dataset)}.i32"
    if not is_intact(file) or file.stat().st_size != 4 * len(dataset):
        with atomic_file(file) as stream:
            for chunk in _iterate_lengths(dataset):
                stream.write(chunk.data)
        seal_rows(file, len(dataset))
    return np.memmap(file, np.int32, mode="r", shape=(len(dataset),))


def _iterate_lengths(dataset: Dataset | None) -> Iterator[np.ndarray]:
    if dataset is None:
        return
    rows = dataset.select_columns("input_ids").with_format("arrow")
    for start in range(0, len(rows), _ROWS):
        for ids in rows[start : start + _ROWS]["input_ids"].chunks:
            yield pc.list_value_length(ids).to_numpy(zero_copy_only=False).astype(np.int32)
