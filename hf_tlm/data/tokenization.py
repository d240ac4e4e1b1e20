"""Tokenizers, loaded or trained, and tokenised data sets."""

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

from hf_tlm.errors import HfTlmError
from hf_tlm.hub.repo import TOKENIZER_FILES, checkpoint_folder
from hf_tlm.utils.arrow_files import cache_folder, is_whole, map_rows, seal_rows, without_format
from hf_tlm.utils.files import atomic_file
from hf_tlm.utils.options import check_numbers, named, of_python
from hf_tlm.utils.seals import keep_sealed
from hf_tlm.utils.shown import kind_of
from hf_tlm.utils.texts import alphabet_of

logger = logging.getLogger(__name__)
# What a folder with a tokenizer has some of: what its words are in.
OF_VOCABULARIES = ("*tokenizer.json", "vocab*", "*.model", "*.tiktoken")
# What a trained one is saved in.
FILES = ("tokenizer.json", "tokenizer_config.json")


class TokenizerError(HfTlmError):
    """A tokenizer that cannot be loaded, trained or used for what it is to be used for."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, masking: bool = True) -> None:
    """Check that a tokenizer has the special tokens that training needs.

    Args:
        masking: whether it is for masked language modelling.

    Raises:
        TokenizerError: it is no tokenizer, or has no padding token, or no mask token where one is needed.
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
            "(BERT, RoBERTa, ...), or leave --tokenizer_name out to train one."
        )
    if tokenizer.pad_token is None:
        raise TokenizerError(
            f"Batches need a tokenizer with a pad_token; {name} has none. Use an encoder's tokenizer (BERT, RoBERTa, ...)."
        )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Those of the tokenizer's own special tokens and of those added to it as special, ascending."""
    added = [index for index, token in tokenizer.added_tokens_decoder.items() if token.special]
    return sorted({*tokenizer.all_special_ids, *added})


def load_tokenizer(
    name_or_path: str, *, revision: str | None = None, trust_remote_code: bool = False, masking: bool = True
) -> PreTrainedTokenizerBase:
    """A tokenizer by folder, or Hub id with `@revision` if wanted.

    Args:
        masking: whether it is for masked language modelling.

    Raises:
        HubError: see `checkpoint_folder`.
        TokenizerError: it cannot be loaded, or lacks a padding token, or a mask token where one is needed; or it is no name.
    """
    if isinstance(name_or_path, PreTrainedTokenizerBase):
        raise TokenizerError(
            f"name_or_path: expected a folder or a Hub id; received a {type(name_or_path).__name__}. It is a tokenizer "
            "already: use it as it is."
        )
    name_or_path = named("name_or_path", name_or_path, TokenizerError, needed=True)
    options = {"trust_remote_code": trust_remote_code}
    folder = checkpoint_folder(name_or_path, revision, files=TOKENIZER_FILES, **options)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, revision=revision, **options)
    except Exception as error:  # The readers of damaged files raise many types, `tokenizers` plain Exceptions.
        place = Path(folder)
        if place.is_dir() and not any(file for glob in OF_VOCABULARIES for file in place.glob(glob)):
            # transformers would ask for sentencepiece.
            told = "holds neither a model nor a tokenizer. Give a folder with one."
            if (place / "config.json").is_file():
                told = "has no vocabulary: tokenizer.json is missing there. Copy the tokenizer's files beside config.json."
            raise TokenizerError(f"{name_or_path} {told}") from error
        told = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        raise TokenizerError(f"Cannot load a tokenizer from {name_or_path!r}: {told}") from error
    if len(tokenizer) <= len(special := special_ids(tokenizer)):
        # transformers makes one without a vocabulary where it finds none.
        raise TokenizerError(
            f"{name_or_path} has no vocabulary: its tokenizer knows {len(special)} special tokens and nothing else. "
            "tokenizer.json, or the files of the vocabulary, are missing there or damaged. Copy them again, or give another "
            "--tokenizer_name."
        )
    check_tokenizer(tokenizer, masking)
    return without_limits(tokenizer)


def without_limits(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer without the truncation and padding that calls leave in it.

    What is saved of it then does not depend on which texts were tokenised and which were found in the cache.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


# Rows that `text_lengths` looks at together, and up to which number it keeps theirs in memory.
_ROWS, _IN_MEMORY = 1 << 16, 1 << 20
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_ALPHABET = 1000
# Of texts in Chinese characters or Korean syllables as many more as leave out so many running characters at most.
LEFT_OUT = 0.001
MOST_LEFT_OUT = 0.01  # What is more is told.


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = True, max_length: int = 512
) -> PreTrainedTokenizerBase:
    """A BERT tokenizer whose WordPiece vocabulary is trained on `texts`: what TLM uses where nothing can be downloaded.

    The vocabulary and its ids depend on the texts and the arguments only. Lower case loses accents too, as BERT's does,
    but not in scripts where that would take vowels or consonants away (Hindi, Thai, Japanese, ...).

    Args:
        texts: iterated three times, so a list or a dataset column rather than a generator.
        vocab_size: pieces, special tokens included; a small text gives fewer.

    Raises:
        TokenizerError: `vocab_size` leaves no room for the special tokens and the alphabet, there is no text, or `texts` is
            one text, or a generator, or has other things than texts; or a number is out of range.
    """
    check_numbers(TokenizerError, vocab_size=vocab_size)
    _check_texts(texts)
    signs, many = alphabet_of(_each(texts))
    # None: with lower case.
    strip_accents = False if lowercase and signs else None
    trainer = BertWordPieceTokenizer(lowercase=lowercase, strip_accents=strip_accents)
    characters: Counter[str] = Counter()
    for text in _each(texts):
        characters.update(trainer.normalize(text))
    alphabet = sorted(c for c in characters if not c.isspace())
    frequent = sorted(alphabet, key=characters.__getitem__, reverse=True)
    if not frequent:
        raise TokenizerError("Cannot train a vocabulary: there is no text.")
    covered = np.cumsum([characters[c] for c in frequent]) / sum(characters[c] for c in frequent)
    size = min(len(frequent), MAX_ALPHABET)
    if many:
        room = (vocab_size - len(SPECIAL_TOKENS)) // 2
        size = max(size, min(room, int(np.searchsorted(covered, 1 - LEFT_OUT)) + 1))
    alphabet = sorted(frequent[:size])
    # The trainer breaks ties between equally frequent merges by piece ids, and numbers continuing characters in the
    # order of a hash table. Naming them beforehand makes the ids, and so the whole vocabulary, reproducible.
    pieces = [*SPECIAL_TOKENS, *(f"##{c}" for c in alphabet)]
    if len(pieces) + len(alphabet) > vocab_size:
        raise TokenizerError(
            f"vocab_size {vocab_size} is too small: special tokens and the {len(alphabet)} characters of the texts, at "
            f"the start and inside of words, take {len(pieces) + len(alphabet)}. Raise it."
        )
    if covered[size - 1] < 1 - MOST_LEFT_OUT:
        logger.warning(
            "%.0f%% of the characters of the texts are none of the %s that the vocabulary has: words with them are %s. "
            "Raise --vocab_size.",
            *(100 * (1 - covered[size - 1]), f"{size:,}", SPECIAL_TOKENS[1]),
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
    """Raise a TokenizerError for anything but what gives texts, several times."""
    what = given = ""
    if isinstance(texts, str):
        what, given = "one text", "[text]"
    elif not isinstance(texts, Iterable):
        what, given = kind_of(texts), "a list"
    elif iter(texts) is texts:
        what, given = f"a {type(texts).__name__}, which can be read once", "list(texts)"
    if what:
        raise TokenizerError(f"texts: expected a list of texts, or a column of a data set; received {what}. Give {given}.")


def _each(texts: Iterable[str]) -> Iterator[str]:
    """The texts; a TokenizerError for the first that is none."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TokenizerError(f"texts: expected texts; received {kind_of(text)}, after {row:,} texts. Give texts alone.")
        yield text


def cached_wordpiece(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = True, max_length: int = 512
) -> PreTrainedTokenizerBase:
    """`train_wordpiece`, kept in the cache of `datasets` for every run with equal texts and arguments.

    It is made again where what is there is damaged.

    Raises:
        TokenizerError: see `train_wordpiece`.
        HfTlmError: the cache cannot be written.
    """
    _check_texts(texts)
    # Vocabularies of other texts are where they were before scripts were told apart.
    script = alphabet_of(_each(texts))
    digest = xxhash.xxh3_128(json.dumps([vocab_size, lowercase, max_length, *(script if any(script) else ())]).encode())
    for text in _each(texts):
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    folder = cache_folder() / f"wordpiece-{digest.hexdigest()}"
    return kept_tokenizer(folder, lambda: train_wordpiece(texts, vocab_size, lowercase=lowercase, max_length=max_length))


def kept_tokenizer(
    folder: Path, make: Callable[[], PreTrainedTokenizerBase], *, unsealed: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer that is kept in a sealed folder; made first where it is not there, or not whole any more.

    Args:
        unsealed: take one without a seal too, as folders of before there were seals have it.

    Raises:
        TokenizerError: an unsealed one cannot be loaded.
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
    """Token ids of every row, truncated to `max_length` tokens, special tokens included.

    Args:
        dataset: columns `text`, optionally `text_pair`, and `label` or `labels`; others are dropped.
        all_types: keep the token types of single texts too: XLNet's mark its [CLS].

    Returns:
        The same rows in the same order, columns `input_ids`, `token_type_ids` for pairs (where the tokenizer makes
        them), and `label`, or without it `labels`, where there is one. Of rows on disk, as those of `load_task` are, it
        is an Arrow file beside them in the cache of `datasets`, memory-mapped, and found again by every run with equal
        rows, tokenizer and length; it appears whole or not at all, whoever else is writing it. Of rows in memory it stays
        there.

    Raises:
        TokenizerError: one of the arguments is something else; the message says what to pass.
    """
    _check_tokenizable(dataset, tokenizer, max_length)
    dataset, max_length = without_format(dataset), of_python(max_length)
    pairs = "text_pair" in dataset.column_names
    type_ids = (pairs or all_types) and "token_type_ids" in tokenizer.model_input_names

    def encode(batch: dict) -> dict:
        encoded = tokenizer(
            batch["text"],
            batch["text_pair"] if pairs else None,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=type_ids,
        )
        return {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}

    # The ecosystem has both names; `label` is the one of a task's rows.
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
        parts = {"Task": "task.train", "Subset": "subset.dataset", "DatasetDict": 'splits["train"]'}
        kind = type(dataset).__name__
        made = parts.get(kind, "Dataset.from_list(rows), of rows such as {'text': ...}")
        raise TokenizerError(f"dataset: expected a datasets.Dataset; received a {kind}. Give {made}.")
    if "text" not in dataset.column_names:
        raise TokenizerError(
            f"dataset: expected a column text; the columns are {', '.join(dataset.column_names)}. Rename one: "
            'dataset.rename_column(name, "text").'
        )
    for name in ("text", "text_pair"):
        if name in dataset.column_names and (found := _other_than_text(dataset, name)):
            raise TokenizerError(f"dataset: expected texts in the column {name}; received {found}.")
    if not callable(tokenizer):
        raise TokenizerError(
            f"tokenizer: expected a tokenizer of transformers; received {tokenizer!r:.60}. Pass what "
            "AutoTokenizer.from_pretrained(name or folder) returns."
        )
    check_numbers(TokenizerError, max_length=max_length)


def _other_than_text(dataset: Dataset, name: str) -> str | None:
    """What a column has that is no text, and what to do; None where all are texts."""
    rows = without_format(dataset)
    if not len(rows) or rows.format["type"] == "custom":  # What a transform makes is known when it is read.
        return None
    kind = str(getattr(rows.features[name], "dtype", rows.features[name]))
    if kind not in ("string", "large_string", "string_view"):
        return f"{kind}. Make texts of it with dataset.map"
    # Rows may be chosen from a table that has more.
    if rows.data.column(name).null_count and any(text is None for text in rows[name]):
        return "rows without one. Leave such rows out"
    return None


def _fingerprint(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, all_types: bool, label: str | None
) -> str | None:
    """Hash what the tokenised rows depend on; None leaves the hash to `datasets`.

    `datasets` would hash the whole tokenizer, whose truncation each call sets, so that a second run may not find what the
    first one made. That hash is left for a tokenizer in pure Python.
    """
    settings = backend_settings(tokenizer)
    if settings is None:
        return None
    parts = [dataset._fingerprint, settings, max_length, tokenizer.model_input_names, tokenizer.truncation_side]
    parts += ["all types"] if all_types else []
    parts += [label] if label == "labels" else []  # Which rows of an older cache lack.
    return xxhash.xxh3_64_hexdigest(json.dumps(parts, sort_keys=True).encode())


def backend_settings(tokenizer: PreTrainedTokenizerBase) -> dict | None:
    """All that the tokens of a text depend on, as JSON values; None for a tokenizer in pure Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    kept = {"truncation": None, "padding": None, "split_special_tokens": tokenizer.split_special_tokens}
    return json.loads(backend.to_str()) | kept


def longest_first(rows: Dataset, lengths: np.ndarray | None = None) -> tuple[Dataset, np.ndarray]:
    """Rows in the order of their length, so that a batch has little padding, and their places, int64 [N].

    Args:
        lengths: [N]; None: `text_lengths`.
    """
    order = np.argsort(-(text_lengths(rows) if lengths is None else lengths), kind="stable")
    return rows.select(order), order


def in_first_order(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Values [N, ...] of rows that `longest_first` put in an order, in that of before."""
    ordered = np.empty_like(values)
    ordered[order] = values
    return ordered


def text_lengths(dataset: Dataset | None) -> np.ndarray:
    """int32 [N]: tokens of each row of a tokenised data set; empty for None. Reads the offsets, not the tokens.

    More than a million are counted into a file in the cache of `datasets`, from which they are mapped into memory, by
    every later run too.

    Raises:
        HfTlmError: the cache cannot be written.
    """
    if dataset is None or len(dataset) <= _IN_MEMORY:
        return np.concatenate([np.zeros(0, np.int32), *_lengths(dataset)])
    file = cache_folder() / f"lengths-{dataset._fingerprint}-{len(dataset)}.i32"
    if not is_whole(file) or file.stat().st_size != 4 * len(dataset):
        with atomic_file(file) as stream:
            for part in _lengths(dataset):
                stream.write(part.data)
        seal_rows(file, len(dataset))
    return np.memmap(file, np.int32, mode="r", shape=(len(dataset),))


def _lengths(dataset: Dataset | None) -> Iterator[np.ndarray]:
    if dataset is None:
        return
    rows = dataset.select_columns("input_ids").with_format("arrow")
    for start in range(0, len(rows), _ROWS):
        for ids in rows[start : start + _ROWS]["input_ids"].chunks:
            yield pc.list_value_length(ids).to_numpy(zero_copy_only=False).astype(np.int32)
