"""Loading a corpus from a Hub dataset, local files or a dataset in memory, as batches of the columns id, text and source."""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset, load_dataset

from hf_tlm.corpora.corpus import BATCH, SCHEMA, Columns, Corpus, CorpusError, Part
from hf_tlm.corpora.tables import (
    COMPRESSIONS,
    TABLE_BUILDERS,
    check_columns,
    check_encoding,
    extract_field,
    find_separator,
    open_parquet,
    read_errors_as,
    row_batches,
    suffix_of,
)
from hf_tlm.hub.errors import explaining
from hf_tlm.hub.repo_id import Repo, may_be_repo
from hf_tlm.tasks.formats import read_excel
from hf_tlm.utils.arrow_files import frame_to_dataset, without_format
from hf_tlm.utils.options import range_problem
from hf_tlm.utils.run_files import MANIFEST_FILE, SETTINGS_FILE
from hf_tlm.utils.shown import counted, describe_received, named_columns, suggested_path
from hf_tlm.utils.texts import SAMPLE_BY

_SAMPLE_BYTES = 1 << 16
# File -> test of its JSON object, by which a directory that this package wrote is recognised.
_OUTPUT_CHECKS = {
    MANIFEST_FILE: lambda content: content.get("format") == "hf_tlm.subset",
    "index.json": lambda content: content.get("format") == "hf_tlm.index",
    SETTINGS_FILE: lambda content: {"arguments", "model"} <= set(content),
    "config.json": lambda content: "model_type" in content,
}

BUILDERS = TABLE_BUILDERS | {".txt": "text", ".md": "text"}
_KNOWN_TYPES = f"{', '.join(BUILDERS)}; all but .parquet and .xlsx also with {' or '.join(COMPRESSIONS)}"
# Maximum size in bytes of a text file that is read without `datasets`, which would read it at once too.
SMALL_FILE_BYTES = 10 << 20

Batch = dict[str, Any]  # A batch's columns, as lists or Arrow arrays.

logger = logging.getLogger(__name__)


def load_corpus(
    corpus: str | os.PathLike | Sequence[str | os.PathLike] | Dataset | pd.DataFrame,
    *,
    text_column: str = "text",
    id_column: str | None = None,
    source_column: str = "source",
    max_words: int | None = None,
    sample_by: str = "line",
    split: str = "train",
    config_name: str | None = None,
    revision: str | None = None,
    streaming: bool = True,
    skip_bad_files: bool = False,
) -> Corpus:
    """Open a corpus, without reading it yet.

    Args:
        corpus: files (a path, a directory, or a glob such as `data/*.parquet`; several as a list, or as one string with
            commas) in parquet, xlsx, or in jsonl, json, csv, tsv, txt or md, also compressed as .gz or .zst; a Hub dataset
            id, with `@revision` if wanted; a `datasets.Dataset`; or a pandas `DataFrame`. In a directory, .md files are read
            only if it has no other readable files, since a README beside data is not data. Hidden directories below a
            directory or glob, and those that this package wrote (subsets, indexes, runs, models), are left out.
        text_column: column of the texts; for files that differ, several with commas: `body,text` is `body` where a file has
            it. For this and the other columns, a dotted name such as `page.text` is a field of an object.
        id_column: column of unique ids. None: ids are `<file>:<row>`, with files relative to their common directory.
        source_column: column with the source of a document; if it is missing, the name of the file or dataset is used.
        max_words: cut documents into passages of at most this many words, at sentence ends; None or 0: do not cut.
        sample_by: unit of a text file that is a document: "line", "paragraph" (separated by blank lines) or "document", the
            entire file.
        split, config_name, revision, streaming: for a Hub dataset. Streaming stores no intermediate files.
        skip_bad_files: leave out files that cannot be read completely; `Corpus.bad_files` lists them.

    Raises:
        CorpusError: nothing matches, a file type is unknown, max_words or sample_by is invalid. While iterating: a file
            cannot be read, a column is missing or holds no text, an id of `id_column` is null or repeated.
    """
    if max_words is not None and (wrong := range_problem("passage_words", max_words)):
        raise CorpusError(f"max_words: {wrong}")
    max_words = max_words or None
    if sample_by not in SAMPLE_BY:
        raise CorpusError(f"sample_by: expected one of {', '.join(SAMPLE_BY)}; received {sample_by!r}.")
    columns = Columns(text_column, id_column, source_column)
    corpus = frame_to_dataset(corpus, CorpusError)
    if isinstance(corpus, Dataset):
        _check_text_files(sample_by, [], "a Dataset")
        return _create_from_rows(without_format(corpus), columns, max_words)
    name, patterns = _split_patterns(corpus)
    files, unmatched = _find_files(patterns)
    if files:
        if unmatched:
            raise CorpusError(
                f"corpus: no file matches {', '.join(unmatched)}, but other paths match files. Correct or remove it."
            )
        hub_options = {"revision": revision, "config_name": config_name, "split": None if split == "train" else split}
        if hub_only := [option for option, value in hub_options.items() if value is not None]:
            raise CorpusError(
                f"{', '.join(hub_only)} of the corpus: only for a dataset on the Hub; {name} is local. Remove "
                f"{', '.join(hub_only)}."
            )
        _check_text_files(sample_by, files, name)
        return _create_from_files(files, ",".join(map(_short_name, patterns)), columns, max_words, sample_by, skip_bad_files)
    path, is_folder = name.partition("@")[0], os.path.isdir(os.path.expanduser(name))
    if is_folder or len(patterns) != 1 or not may_be_repo(path) or glob.has_magic(path) or builder_of(Path(path)):
        is_list = not isinstance(corpus, str) and len(patterns) > 1
        hint = " If the list contains texts, use load_corpus(Dataset.from_dict({'text': texts}))." if is_list else ""
        hint = suggested_path(name) if len(patterns) == 1 and not is_folder else hint
        where = " in this folder" if is_folder else ", and it is not a Hub id (owner/name)"
        raise CorpusError(f"No corpus {name!r:.200}: no file matches{where}. File types: {_KNOWN_TYPES}.{hint}")
    _check_text_files(sample_by, [], name)
    return _create_from_hub(name, revision, config_name, split, streaming, columns, max_words)


def _split_patterns(corpus: Any) -> tuple[str, list[str]]:
    """Return the name of all files, or of a Hub dataset, and the list of the separate patterns.

    Raises:
        CorpusError: the argument is neither a string, a path, nor a sequence of these.
    """
    if isinstance(corpus, str):
        is_path = os.path.exists(os.path.expanduser(corpus))  # A name may contain commas.
        return corpus, [corpus] if is_path else [pattern for pattern in corpus.split(",") if pattern]
    paths = [corpus] if isinstance(corpus, os.PathLike) else corpus
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        hint = describe_received(corpus, "load_corpus", splits='dataset["train"]')
        raise CorpusError(f"corpus: expected files, a Hub id, a datasets.Dataset or a pandas.DataFrame; {hint}")
    patterns = [*map(os.fspath, paths)]
    return ",".join(patterns), patterns


def _check_text_files(sample_by: str, files: Sequence[Path], corpus: Any) -> None:
    """Raise a CorpusError if sample_by is set but the corpus has no text files."""
    if sample_by != "line" and not any(builder_of(file) == "text" for file in files):
        raise CorpusError(f"sample_by {sample_by}: only for .txt and .md files; {corpus} has none. Remove the option.")


def _create_from_rows(rows: Dataset, columns: Columns, max_words: int | None) -> Corpus:
    """Create the corpus of a dataset in memory; its fingerprint is a hash of the columns' contents."""
    digest = _start_digest({"columns": columns, "max_words": max_words})
    source_columns = [name if name in rows.column_names else name.partition(".")[0] for name in columns.all()]
    for batch in rows.iter(1000):
        for name in source_columns:
            if name in rows.column_names:
                digest.update(repr(batch[name]).encode())
    return _create_single_part("in-memory", digest.hexdigest()[:16], rows, "row", "in-memory", columns, max_words)


def _create_from_files(
    files: Sequence[Path], name: str, columns: Columns, max_words: int | None, sample_by: str, skip_bad_files: bool
) -> Corpus:
    """Create the corpus of some files, with one part for each."""
    settings = {"columns": columns, "max_words": max_words} | ({} if sample_by == "line" else {"sample_by": sample_by})
    corpus_digest, parts = _start_digest(settings), []
    root = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        relative_path, size = file.relative_to(root).as_posix(), file.stat().st_size
        content = f"{relative_path}\0{size}\0".encode() + _read_ends(file)
        corpus_digest.update(content)
        part_digest = _start_digest(settings)
        part_digest.update(content)
        documents = partial(read_file, file, relative_path, columns, sample_by)
        parts.append(Part(relative_path, part_digest.hexdigest()[:16], documents, size, max_words, id_column=columns[1]))
    return Corpus(
        name, corpus_digest.hexdigest()[:16], max_words=max_words, parts=tuple(parts), skip_bad_files=skip_bad_files
    )


def _create_single_part(
    name, fingerprint, rows, prefix: str, source: str, columns: Columns, max_words: int | None
) -> Corpus:
    """Create a corpus that does not consist of files; ids begin with `prefix`."""
    documents = partial(read_rows, rows, prefix, source, columns)
    part = Part(name, fingerprint, documents, None, max_words, columns[1])
    return Corpus(name, fingerprint, max_words=max_words, parts=(part,))


def _create_from_hub(name, revision, config_name, split, streaming, columns: Columns, max_words: int | None) -> Corpus:
    """Create the corpus of a Hub dataset, at the commit that the revision names now."""
    from huggingface_hub import HfApi

    path, _, named_revision = name.partition("@")
    if named_revision and revision and named_revision != revision:
        raise CorpusError(
            f"{name} names the revision {named_revision}, but the option names {revision}. Pass only one of them."
        )
    revision = named_revision or revision
    try:
        with explaining(Repo(path, revision, "dataset")):
            sha = HfApi().dataset_info(path, revision=revision).sha
            rows = load_dataset(path, config_name, split=split, revision=sha, streaming=streaming)
    except Exception as error:  # The readers of `datasets` raise errors of many types, none of which is a bug here.
        raise CorpusError(f"Cannot load the corpus {path!r} from the Hub: {error}") from error
    settings = {"columns": columns, "max_words": max_words, "hub": [path, sha, config_name, split]}
    return _create_single_part(
        f"{path}@{sha}", _start_digest(settings).hexdigest()[:16], rows, split, path, columns, max_words
    )


def _start_digest(settings: dict[str, Any]):
    """Start the hash of a fingerprint with the settings."""
    return hashlib.sha256(json.dumps(settings).encode())


def _list_readable(root: Path) -> set[Path]:
    """Return the readable files below a directory.

    .md files are returned only if there is no data, because they mostly describe data. READMEs alone are not returned if
    there are files of unknown types.
    """
    all_paths = {path for path in root.rglob("*") if path.is_file() or path.is_symlink()}
    readable = {path for path in all_paths if builder_of(path)}
    pages = {path for path in readable if suffix_of(path) == ".md"}
    articles = {path for path in pages if not path.stem.upper().startswith("README")}
    if data := readable - pages:
        if articles:
            logger.warning(
                "Left out of the corpus: %d .md files in %s, which also has data files. Name the .md files to read them "
                "too.",
                *(len(articles), root),
            )
        return data
    unknown = [path for path in all_paths - pages if not any(name.startswith(".") for name in path.relative_to(root).parts)]
    return pages if articles or not unknown else set()


def _short_name(pattern: str) -> str:
    """Return the last two components of a path, none above the working directory.

    They are enough to recognise the path, and reveal little of the machine.
    """
    path, here = os.path.abspath(pattern), os.getcwd()
    inside = here != os.sep and path.startswith(here + os.sep)
    return "/".join(Path(os.path.relpath(path, here) if inside else path).parts[-2:])


def _find_files(patterns: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Find the files of paths, directories and globs.

    Directories below them that this package wrote are left out, or a command called again would read its own output.

    Returns:
        The files, sorted, without repetitions; and the patterns that match none.

    Raises:
        CorpusError: a link is broken, a file type is unknown, or a pattern matches only files that are left out.
    """
    all_inputs: set[Path] = set()
    unmatched = []
    is_output = functools.cache(_is_output)
    for pattern in patterns:
        root, matches = _match_pattern(os.path.expanduser(pattern))
        if broken := sorted(path for path in matches if path.is_symlink() and not path.exists()):
            raise CorpusError(
                f"{broken[0]} is a link to {os.readlink(broken[0])}, which does not exist. Repair or remove the link."
            )
        files = {path for path in matches if path.is_file()}
        inputs = {path for path in files if not any(is_output(parent) for parent in path.parents if root in parent.parents)}
        if num_excluded := len(files) - len(inputs):
            where = "hidden folders or folders that hf_tlm wrote (subsets, indexes, runs, models)"
            excluded = f"{counted(num_excluded, 'file')} of {pattern}, in {where}"
            if not inputs:
                raise CorpusError(
                    f"No corpus: all matching files are left out: {excluded}. Choose other files, or name these directly."
                )
            logger.warning("Left out of the corpus: %s.", excluded)
        all_inputs |= inputs
        unmatched += [] if files else [pattern]
    return sorted(all_inputs), unmatched


def _match_pattern(pattern: str) -> tuple[Path, set[Path]]:
    """Return the directory in which a path, directory or glob is searched, and the paths that it matches."""
    root = Path(os.path.abspath(pattern))
    if os.path.isdir(pattern):
        if not root.name.startswith(".") and _is_output(root):
            raise CorpusError(
                f"{pattern} is a folder that hf_tlm wrote (a subset, an index, a run or a model), not a corpus. Pass a "
                f"subset as --subset; to read its texts as a corpus, name their files, such as {pattern}/data/*.parquet."
            )
        return root, _list_readable(root)
    names = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    matches = {Path(os.path.abspath(name)) for name in names}
    if unknown := sorted(path for path in matches if path.is_file() and not builder_of(path)):
        raise CorpusError(f"{unknown[0]}: unknown file type. Known: {_KNOWN_TYPES}.")
    while os.path.isfile(root) or glob.has_magic(str(root)):
        root = root.parent
    return root, matches


def _is_output(folder: Path) -> bool:
    """Return whether a directory is hidden (as one being written is), or a subset, an index, a run or a model."""
    if folder.name.startswith("."):
        return True
    for name, recognises in _OUTPUT_CHECKS.items():
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            if isinstance(content, dict) and recognises(content):
                return True
    return False


def _read_ends(path: Path) -> bytes:
    """Return the first and last 64 KiB of a file.

    Together with name and size they distinguish files without reading a terabyte. A change in between that keeps the size is
    not noticed.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_SAMPLE_BYTES)
            file.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
            return head + file.read(_SAMPLE_BYTES)
    except OSError:  # The error is reported when the file is read.
        return b""


def builder_of(path: Path) -> str | None:
    """Return the name of the `datasets` builder for a file name; None for an unknown type."""
    return BUILDERS.get(suffix_of(path))


def read_file(path: Path, name: str, columns: Columns, sample_by: str = "line") -> Iterator[pa.RecordBatch]:
    """Yield the documents of a file; ids begin with `name`.

    Args:
        sample_by: unit of a text file that is a document, one of `SAMPLE_BY`.

    Raises:
        CorpusError: see `read_batches`.
    """
    with read_errors_as(CorpusError, path):
        if path.stat().st_size == 0:  # A shard without rows: the readers would fail because it has no schema.
            return
        builder = builder_of(path)
        assert builder is not None
        if builder not in ("parquet", "excel"):
            check_encoding(path)
        if builder == "parquet":
            batches = _read_parquet(path, columns)
        elif builder == "excel":
            batches = iter([read_excel(path)])
        elif builder == "text" and path.stat().st_size <= SMALL_FILE_BYTES and path.suffix.lower() not in COMPRESSIONS:
            batches = _read_small_text(path, sample_by)
        else:
            separator = find_separator(path) if builder == "csv" else ","
            batches = row_batches(path, builder, BATCH, separator, sample_by)
    yield from read_batches(batches, name, _stem(path), columns)


def read_rows(rows: Dataset | IterableDataset, name: str, source: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a dataset; see `read_batches`."""
    return read_batches(_check_batches(rows), name, source, columns)


def _check_batches(rows: Dataset | IterableDataset) -> Iterator[Batch]:
    """Yield the batches of a dataset after `check_columns`."""
    for batch in rows.iter(BATCH):
        check_columns(batch, rows.info.builder_name)
        yield batch


def read_batches(batches: Iterator[Batch], name: str, source: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Convert batches of columns into batches of documents.

    Args:
        name: without an id column, ids are `<name>:<row>`.
        source: source of documents whose source is missing or null.

    Raises:
        CorpusError: a batch cannot be read, or a column is missing or holds no text.
    """
    position = 0
    while True:
        with read_errors_as(CorpusError, f"{name} after row {position}"):
            batch = next(batches, None)
            if batch is None:
                return
            names, batch = named_columns(batch), _add_field_columns(batch, columns)
            text_column = next((column for column in columns.texts() if column in batch), columns.text)
            for column, option in ((text_column, "--corpus_text_column"), (columns.id, "--corpus_id_column")):
                if column is not None and column not in batch:
                    many = ", or several with commas if files differ" if option == "--corpus_text_column" else ""
                    raise CorpusError(
                        f"{name}: no column {column!r}; the columns are {names}. Choose another {option}{many}."
                    )
            texts = _convert_texts(batch[text_column], name, position, text_column)
            if columns.id is None:
                rows = pa.array(range(position, position + len(texts))).cast(pa.string())
                ids = pc.binary_join_element_wise(name, rows, ":")
            else:
                ids = _to_strings(batch[columns.id])
            sources = batch.get(columns.source)
            origins = pa.nulls(len(texts), pa.string()) if sources is None else _to_strings(sources)
            documents = pa.RecordBatch.from_arrays([ids, texts, pc.fill_null(origins, source)], schema=SCHEMA)
        yield documents
        position += len(texts)


def _add_field_columns(batch: Batch, columns: Columns) -> Batch:
    """Add a column for each dotted column name, with that field of the objects: `page.text` from the column `page`."""
    fields: Batch = {}
    for name in columns.all():
        column, *keys = name.split(".")
        if name not in batch and keys and batch.get(column) is not None:
            cells = extract_field(_to_list(batch[column]), keys)
            fields |= {} if cells is None else {name: cells}
    return batch | fields


def _read_parquet(path: Path, columns: Columns) -> Iterator[Batch]:
    """Yield the batches of a parquet file; columns that are not needed are None.

    `datasets` is not used, because it converts every row to Python objects.
    """
    file = open_parquet(path)
    names = file.schema_arrow.names
    needed = {name if name in names else name.split(".")[0] for name in columns.all()}
    batches = file.iter_batches(BATCH, columns=[name for name in names if name in needed] or names)
    return (dict.fromkeys(names) | dict(zip(batch.schema.names, batch.columns, strict=True)) for batch in batches)


def _read_small_text(path: Path, sample_by: str) -> Iterator[Batch]:
    """Yield what `datasets` would read from a small text file, without its overhead of opening a file.

    A corpus may have thousands of pages.
    """
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    if sample_by == "line":
        rows = text.removesuffix("\n").split("\n")
    else:
        rows = [paragraph for paragraph in text.split("\n\n") if paragraph] if sample_by == "paragraph" else [text]
    for start in range(0, len(rows), BATCH):
        yield {"text": rows[start : start + BATCH]}


def _convert_texts(values: list | pa.Array, name: str, position: int, column: str) -> pa.Array:
    """Return the texts of a column as strings, or raise a CorpusError for a value that is neither a text nor a number."""
    if not _is_string_array(values):
        for row, value in enumerate(_to_list(values), position):
            if value is not None and not isinstance(value, (str, int, float)):
                todo = "Choose another column."
                if isinstance(value, dict) and value:
                    todo = f"Name the field with the texts, such as --corpus_text_column {column}.{next(iter(value))}."
                raise CorpusError(
                    f"{name}, row {row} (counted from 0): the column {column!r} should contain texts; received a "
                    f"{type(value).__name__}. {todo}"
                )
    return _to_strings(values)


def _to_strings(values: list | pa.Array) -> pa.Array:
    """Convert a column to strings; numbers are formatted by `str`."""
    if not _is_string_array(values):
        return pa.array([None if value is None else str(value) for value in _to_list(values)], pa.string())
    strings = values.cast(pa.string())
    strings.validate(full=True)  # The parquet reader does not check the encoding.
    return strings


def _is_string_array(values: list | pa.Array) -> TypeGuard[pa.Array]:
    """Return whether a column is an Arrow array of strings, possibly dictionary-encoded."""
    if isinstance(values, list):
        return False
    value_type = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return pa.types.is_string(value_type) or pa.types.is_large_string(value_type) or pa.types.is_string_view(value_type)


def _to_list(values: list | pa.Array) -> list:
    """Convert a column to a list of Python objects."""
    return values if isinstance(values, list) else values.to_pylist()


def _stem(path: Path) -> str:
    """Return a file name without the suffixes of its type and compression."""
    name = path.name
    for suffix in (*COMPRESSIONS, *BUILDERS):
        name = name.removesuffix(suffix)
    return name
