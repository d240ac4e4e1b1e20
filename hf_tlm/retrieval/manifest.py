"""What a saved subset says of itself, checked field by field when it is opened: before a training, not after."""

from __future__ import annotations

import os
from dataclasses import Field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Protocol

from datasets import Dataset

from hf_tlm.retrieval.settings import RETRIEVERS, SELECTIONS, VARIANTS
from hf_tlm.retrieval.texts import QUERY_MODES, RetrievalError
from hf_tlm.tasks.spec import Task
from hf_tlm.utils.json_files import (
    Check,
    Unfit,
    check_fields,
    listed,
    mapped,
    maybe,
    read_json,
    real,
    record,
    truth,
    whole,
    words,
)
from hf_tlm.utils.shown import suggestion
from hf_tlm.utils.texts import SCRIPTS

FORMAT = "hf_tlm.subset"
FORMAT_VERSION = 1
COLUMNS = {
    "id": "string",
    "text": "string",
    "source": "string",
    "rank": "int32",
    "score": "float32",
    "n_queries": "int32",
    "best_query": "string",
}
DATA_FILE = "data/train-00000-of-00001.parquet"
# In the folder of one configuration of several.
CONFIG_DATA_FILE = "train-00000-of-00001.parquet"
CARD_FILE = "README.md"
REPORT_FILE = "report.md"
# What a manifest says of how passages were searched.
METHOD_FIELDS = (
    "query_mode max_query_terms top_k top_k_requested variant k1 b delta stopwords stemmer seed num_passages".split()
)
# Retrievers whose manifest knows of no queries: passages drawn at random, and those that the paper's authors released.
UNQUERIED = ("random", "released")

_COUNT, _NUMBER, _NAME = whole(0, 2**53), real(-1e300, 1e300), words(10_000)
_NAMES = listed(_NAME, 10**7)


def _of(**fields: Check) -> Check:
    """An object with some of these fields, and any others."""
    return record(fields, optional=tuple(fields))


def _named(*needed: str, **fields: Check) -> Check:
    """An object with a name, and the fields that are needed."""
    return record({"name": _NAME, **fields}, optional=[name for name in fields if name not in needed])


def _choice(*values: str) -> Check:
    def check(value: Any) -> str:
        if value not in values:
            raise Unfit(" or ".join(values))
        return value

    return check


def _score_model(value: Any) -> Any:
    """Names of checkpoints, or how one was trained."""
    if isinstance(value, dict):
        return _TRAINED(value)
    return _NAME(value) if isinstance(value, str) else _NAMES(value)


def _model(value: Any) -> Any:
    return record({"model_type": _NAME})(value) if isinstance(value, dict) else _NAME(value)


_TRAINED = record(
    {"model": _model, "validation": mapped(_NUMBER, 100), "max_steps": whole(-1, 2**53)},
    optional=("validation", "max_steps"),
)


_COUNTS = {
    **dict.fromkeys(("passages", "union"), whole(1, 2**53)),
    **dict.fromkeys(("queries", "empty_queries", "queries_without_hits", "blank_texts", "skipped"), _COUNT),
    **dict.fromkeys(("first_empty_queries", "first_queries_without_hits", "bad_files"), _NAMES),
    "sources": maybe(mapped(_COUNT, 10**6)),
}
_LEFT_OUT = maybe(record({"passages": _COUNT, "threshold": _NUMBER, "ids": _NAMES}, optional=("threshold", "ids")))
_TEACHERS = listed(_of(name=_NAME, revision=maybe(_NAME), license=maybe(_NAME)), 10_000)
# Of every subset.
NEEDED: dict[str, Check] = {
    "corpus": _named("fingerprint", fingerprint=maybe(_NAME), size=maybe(_COUNT)),
    "task": _named("fingerprint", fingerprint=maybe(_NAME), split=maybe(_NAME)),
    "retriever": _choice(*RETRIEVERS, "released"),
    "counts": record(_COUNTS, optional=[name for name in _COUNTS if name not in ("passages", "union")]),
}
# Of some, or since some version.
_MORE: dict[str, Check] = {
    **dict.fromkeys(("query_mode", "variant", "stopwords", "stemmer", "analyzed_by"), maybe(_NAME)),
    "script": maybe(_choice(*SCRIPTS)),
    **dict.fromkeys(("max_query_terms", "top_k", "top_k_requested", "num_passages", "seed"), maybe(_COUNT)),
    **dict.fromkeys(("k1", "b", "delta"), maybe(_NUMBER)),
    "analyzer": maybe(_of(stopwords=maybe(_NAME), stemmer=maybe(_NAME), script=maybe(_choice(*SCRIPTS)))),
    "teacher": maybe(_of(model=_NAME, passages=_COUNT, label_names=_NAMES, cut_passages=_COUNT, teachers=_TEACHERS)),
    "decontamination": _LEFT_OUT,
    "deduplication": _LEFT_OUT,
    "rank_column": truth,
    "selection": maybe(
        record(
            {
                **{"size": _COUNT, "of": _COUNT, "method": _choice(*SELECTIONS), "score_model": maybe(_score_model)},
                **dict.fromkeys(("passages_without_score", "passages_not_finite"), maybe(_COUNT)),
                "teacher": _of(model=_NAME, teachers=_TEACHERS),
            },
            optional=("score_model", "passages_without_score", "passages_not_finite", "teacher"),
        )
    ),
    "versions": mapped(maybe(_NAME), 100),
    "hub": maybe(_of(repo_id=_NAME, revision=maybe(_NAME), config=maybe(_NAME))),
    "files": mapped(_NAME, 100),
}
# Of queries, where there were some.
_QUERIED: dict[str, Check] = {
    "query_mode": _choice(*QUERY_MODES),
    "variant": _choice(*dict.fromkeys(chain(*VARIANTS.values()))),
    "top_k": whole(1, 2**53),
    "k1": _NUMBER,
    "b": _NUMBER,
    "counts": record(_COUNTS, optional=[name for name in _COUNTS if name not in ("passages", "union", "queries")]),
}
_BY_RETRIEVER: dict[str, dict[str, Check]] = {"random": {"seed": _COUNT}, "released": {}}


def check_manifest(path: Path) -> dict[str, Any]:
    """What a manifest of this format version holds, after `check_values`."""
    manifest = read_json(path, RetrievalError)
    check_values(manifest, str(path), "Make or download it again, or read it with the version of hf_tlm that wrote it.")
    return manifest


def check_values(manifest: Any, name: str, advice: str) -> None:
    """Check that a manifest is such as `Subset.load` reads.

    Args:
        name, advice: begin and end the message.

    Raises:
        RetrievalError: a field is missing, unknown, or not what recipes write in it.
    """
    what = f"{name} is not what recipes write"
    retriever = check_fields(manifest, NEEDED, RetrievalError, what, advice)["retriever"]
    of_it = _BY_RETRIEVER.get(retriever, _QUERIED)
    optional = [field for field in _MORE if field not in of_it]
    check_fields(manifest, {**NEEDED, **_MORE, **of_it}, RetrievalError, what, advice, optional)
    known = ["format", "format_version", *NEEDED, *_MORE]
    if unknown := [field for field in manifest if field not in known]:
        hint = suggestion(unknown[0], known, 1)
        raise RetrievalError(f"{name} has a field {unknown[0]!r:.60} that recipes do not write.{hint} {advice}")


class SubsetLike(Protocol):
    """A `Subset`, for the modules that it is made of, which cannot import it."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    dataset: Dataset
    manifest: dict[str, Any]

    def __len__(self) -> int: ...

    def examples(self, task: Task, n: int) -> list[tuple[str, str, float]]: ...

    def save(self, directory: str | os.PathLike, *, report: str | None = None) -> None: ...

    def write(self, folder: Path, report: str, data_file: str = DATA_FILE, **card: Any) -> None: ...
