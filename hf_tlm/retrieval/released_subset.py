"""The passages that the TLM paper released: csv files of `yxchar/<task>-tlm`, as subsets."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.retrieval.analyzer import RetrievalError
from hf_tlm.retrieval.manifest import COLUMNS, FORMAT, FORMAT_VERSION, METHOD_FIELDS
from hf_tlm.tasks.registry import registered_task
from hf_tlm.utils.files import sha256
from hf_tlm.version import __version__

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

RELEASED_FILE = "{}_external.csv"  # of a configuration: small, large.
RETRIEVER = "released"
LONGEST_FIELD = 1 << 30  # Python's csv module refuses fields of more than 128 KiB by default.


def read_released(path: Path, repo_id: str, revision: str) -> tuple[Dataset, dict[str, Any]]:
    """Rows in a subset's columns, and the manifest that says how little is known of them.

    Rows without a text are left out and counted. `rank` is the file's (which counts from 0: one is added), or the place in
    the file where it has none; `score`, `n_queries` and `best_query` are null. Ids are `<file>:<row>`, as the released ids
    only number the rows. The file is read twice, a row at a time.

    Args:
        path: file with a column `text`, and usually `rank`.
        revision: commit of the repository.

    Returns:
        A `datasets.Dataset` ordered by rank, then place, and a dict.

    Raises:
        RetrievalError: the file cannot be read, has no column `text`, or no text.
    """
    from datasets import Dataset, Features, Value
    from datasets import __version__ as datasets_version

    scan = _scan(path)
    if not scan["texts"]:
        raise RetrievalError(f"{path} has no texts: {scan['rows']:,} rows, all of them blank.")
    if blank := scan["rows"] - scan["texts"]:
        logger.warning("%s: left out %s of %s rows, which have no text.", path.name, f"{blank:,}", f"{scan['rows']:,}")
    digest = sha256(path)
    shift = None if scan["first_rank"] is None else int(scan["first_rank"] == 0)
    # The digest makes the cache of `datasets` know the content.
    made = {"path": str(path), "source": repo_id, "shift": shift, "digest": digest}
    features = Features({name: Value(kind) for name, kind in COLUMNS.items()})
    dataset = Dataset.from_generator(_rows, features=features, gen_kwargs=made)
    ranks = dataset.with_format("numpy")["rank"][:]
    if (ranks[1:] < ranks[:-1]).any():
        dataset = dataset.select(np.argsort(ranks, kind="stable"))
    task = registered_task(repo_id)
    name = task.name if task else repo_id.partition("/")[2].removesuffix("-tlm")
    return dataset, _manifest(f"{repo_id}@{revision}, {path.name}", digest, name, scan, datasets_version)


def _manifest(corpus: str, digest: str, task: str, scan: dict[str, Any], datasets_version: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "corpus": {"name": corpus, "fingerprint": digest[:16], "size": scan["rows"]},
        "task": {"name": task, "fingerprint": None, "split": "train"},
        "retriever": RETRIEVER,
        **dict.fromkeys(METHOD_FIELDS),
        "decontamination": None,
        "deduplication": None,
        "counts": {"passages": scan["rows"], "union": scan["texts"], "blank_texts": scan["rows"] - scan["texts"]},
        "rank_column": scan["first_rank"] is not None,
        "versions": {"hf_tlm": __version__, "datasets": datasets_version},
    }


def _scan(path: Path) -> dict[str, Any]:
    """rows; texts: rows that have one; first_rank: the smallest rank, None if a row has none."""
    rows = texts = 0
    ranks: int | None = np.iinfo(np.int32).max
    for row in _read(path):
        rows += 1
        texts += bool(row["text"].strip())
        rank = _integer(row.get("rank"))
        ranks = None if ranks is None or rank is None else min(ranks, rank)
    return {"rows": rows, "texts": texts, "first_rank": ranks}


def _rows(path: str, source: str, shift: int | None, digest: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(_read(Path(path))):
        if row["text"].strip():
            rank = None if shift is None else _integer(row["rank"])
            yield {
                "id": f"{Path(path).name}:{number}",
                "text": row["text"],
                "source": source,
                "rank": number + 1 if shift is None or rank is None else rank + shift,
                "score": None,
                "n_queries": None,
                "best_query": None,
            }


def _read(path: Path) -> Iterator[dict[str, str]]:
    """Rows by column; a value that is not there is an empty string."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="", strict=True)
            if "text" not in (reader.fieldnames or ()):
                raise RetrievalError(
                    f"{path} has no column 'text'; the columns are {', '.join(reader.fieldnames or ['none'])}. Expected a "
                    "file of the TLM paper's release."
                )
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RetrievalError(f"Cannot read {path}: {error}. Download it again.") from error
    finally:
        csv.field_size_limit(limit)


def _integer(value: str | None) -> int | None:
    """A whole number, also where a gap in the column made floats of all; None for anything else."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < np.iinfo(np.int32).max else None
