"""Reading a corpus: a Hub dataset, local files, or a data set in memory."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset, load_dataset

from hf_tlm.corpora.corpus import Corpus, CorpusError

BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".txt": "text"}
COMPRESSIONS = (".gz", ".zst")
# Only an empty field is null: pandas would also take the words "null", "None" and "NA" for one.
_CSV = {"keep_default_na": False, "na_values": [""]}
_SAMPLE = 1 << 16


def load_corpus(
    corpus: str | Sequence[str] | Dataset,
    *,
    text_column: str = "text",
    id_column: str | None = None,
    source_column: str = "source",
    max_words: int | None = None,
    split: str = "train",
    config_name: str | None = None,
    revision: str | None = None,
    streaming: bool = True,
) -> Corpus:
    """A corpus, without reading it yet.

    Args:
        corpus: files (a path, a folder, or a glob such as `data/*.parquet`; several separated by commas or as a list)
            in parquet, jsonl, json, csv or txt, also compressed as .gz or .zst; a Hub dataset id, with `@revision` if
            wanted; or a `datasets.Dataset`. A text file holds one document a line.
        id_column: column of unique ids. Default: `<file>:<row>`, files named relative to their common folder.
        source_column: column that says where a document is from; where it is absent, the file's or data set's name.
        max_words: cut documents into passages of at most so many words, at sentence ends.
        split, config_name, revision, streaming: of a Hub dataset. Streaming stores nothing on the way.

    Raises:
        CorpusError: nothing matches, a file type is unknown, or max_words is not positive. While iterating: a file
            cannot be read, a column is missing or holds no text, an id of `id_column` is null or repeated.
    """
    if max_words is not None and max_words < 1:
        raise CorpusError(f"max_words must be at least 1; received {max_words}.")
    columns = (text_column, id_column, source_column)
    settings = {"columns": columns, "max_words": max_words}
    if isinstance(corpus, Dataset):
        digest = _digest(settings)
        for batch in corpus.iter(1000):
            for name in (c for c in columns if c in corpus.column_names):
                digest.update(repr(batch[name]).encode())
        return Corpus("in-memory", digest.hexdigest()[:16], lambda: _rows(corpus, "row", "in-memory", columns), max_words)
    patterns = [part for part in corpus.split(",") if part] if isinstance(corpus, str) else list(corpus)
    files = _find(patterns)
    if files:
        root = Path(os.path.commonpath([file.parent for file in files]))
        names = [file.relative_to(root).as_posix() for file in files]
        digest = _digest(settings)
        for file, name in zip(files, names, strict=True):
            digest.update(f"{name}\0{file.stat().st_size}\0".encode())
            digest.update(_ends(file))
        # Enough to recognise it by, and nothing of the machine it was read on.
        label = ",".join("/".join(Path(os.path.abspath(pattern)).parts[-2:]) for pattern in patterns)

        def documents() -> Iterator[dict[str, str | None]]:
            seen: set[str] = set()
            for file, name in zip(files, names, strict=True):
                if file.stat().st_size == 0:  # A shard without rows; the readers would find no schema in it.
                    continue
                yield from _rows(_open(file), name, _stem(file), columns, seen)

        return Corpus(label, digest.hexdigest()[:16], documents, max_words)
    path, _, at = str(corpus).partition("@")
    if (
        len(patterns) != 1
        or path.count("/") != 1
        or path.startswith((".", "/", "~"))
        or glob.has_magic(path)
        or _builder(Path(path))
    ):
        raise CorpusError(
            f"No corpus {corpus!r}: no file matches, and it is not a Hub id (owner/name). File types: "
            f"{', '.join(BUILDERS)}, each also with {' or '.join(COMPRESSIONS)}."
        )
    return _hub_corpus(path, at or revision, config_name, split, streaming, columns, max_words)


def _hub_corpus(path, revision, config_name, split, streaming, columns, max_words) -> Corpus:
    from huggingface_hub import HfApi

    try:
        sha = HfApi().dataset_info(path, revision=revision).sha
        rows = load_dataset(path, config_name, split=split, revision=sha, streaming=streaming)
    except Exception as error:  # The Hub's clients raise those of their HTTP library; none is a bug of ours.
        raise CorpusError(
            f"Cannot load the corpus {path!r} from the Hub: {error}\nThere is no file or folder of that name here either."
        ) from error
    settings = {"columns": columns, "max_words": max_words, "hub": [path, sha, config_name, split]}
    return Corpus(f"{path}@{sha}", _digest(settings).hexdigest()[:16], lambda: _rows(rows, split, path, columns), max_words)


def _digest(settings: dict[str, Any]):
    return hashlib.sha256(json.dumps(settings).encode())


def _find(patterns: Sequence[str]) -> list[Path]:
    """The files of paths, folders and globs, sorted, each once."""
    found: set[Path] = set()
    for pattern in patterns:
        pattern = os.path.expanduser(pattern)
        if os.path.isdir(pattern):
            folder = Path(os.path.abspath(pattern))
            found |= {path for path in folder.rglob("*") if path.is_file() and _builder(path)}
        else:
            names = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
            matches = {Path(os.path.abspath(name)) for name in names}
            if unknown := sorted(path for path in matches if path.is_file() and not _builder(path)):
                raise CorpusError(
                    f"{unknown[0]}: unknown file type. Known: {', '.join(BUILDERS)}, each also with "
                    f"{' or '.join(COMPRESSIONS)}."
                )
            found |= {path for path in matches if path.is_file()}
    return sorted(found)


def _builder(path: Path) -> str | None:
    """The reader for a file name, by its suffix before a compression's."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return BUILDERS.get(suffixes[-1]) if suffixes else None


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (*COMPRESSIONS, *BUILDERS):
        name = name.removesuffix(suffix)
    return name


def _ends(path: Path) -> bytes:
    """The first and last 64 KiB: with the size, enough to tell files apart without reading a terabyte."""
    with open(path, "rb") as file:
        head = file.read(_SAMPLE)
        file.seek(max(0, path.stat().st_size - _SAMPLE))
        return head + file.read(_SAMPLE)


def _open(path: Path) -> IterableDataset:
    """A lazily read file; `datasets` decompresses by the name."""
    builder = _builder(path)
    options = _CSV if builder == "csv" else {}
    try:
        return load_dataset(builder, data_files=glob.escape(str(path)), split="train", streaming=True, **options)
    except Exception as error:  # The readers raise their own types for a corrupt file; none is a bug of ours.
        raise CorpusError(f"Cannot read {path}: {error.__cause__ or error}") from error


def _rows(
    rows: Dataset | IterableDataset,
    name: str,
    source: str,
    columns: tuple[str, str | None, str],
    seen: set[str] | None = None,
) -> Iterator[dict[str, str | None]]:
    """Documents `{"id", "text", "source"}` of one file or data set, read in batches."""
    text_column, id_column, source_column = columns
    seen = set() if seen is None else seen
    position = 0
    batches = rows.iter(1000)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:  # As in _open.
            raise CorpusError(f"Cannot read {name} after row {position}: {error.__cause__ or error}") from error
        for column in (text_column, id_column):
            if column is not None and column not in batch:
                raise CorpusError(f"{name}: no column {column!r}; the columns are {', '.join(batch)}.")
        texts = batch[text_column]
        sources = batch.get(source_column, [source] * len(texts))
        ids = [f"{name}:{position + i}" for i in range(len(texts))] if id_column is None else batch[id_column]
        for identifier, text, origin in zip(ids, texts, sources, strict=True):
            if id_column is not None:
                if identifier is None or str(identifier) in seen:
                    kind = "null" if identifier is None else f"a second {identifier!r}"
                    raise CorpusError(f"{name}, row {position}: {kind} in the id column {id_column!r}; ids must be unique.")
                seen.add(str(identifier))
            if text is not None and not isinstance(text, str):
                if not isinstance(text, (int, float)):
                    raise CorpusError(
                        f"{name}, row {position}: the column {text_column!r} should hold texts; received a "
                        f"{type(text).__name__}. Choose another column."
                    )
                text = str(text)
            yield {"id": str(identifier), "text": text, "source": source if origin is None else str(origin)}
            position += 1
