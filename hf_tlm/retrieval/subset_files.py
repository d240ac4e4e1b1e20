"""The files of a subset: the checks of its manifest, field by field, and its download from and upload to the Hub.

A repository of the Hub holds one subset, or several as named configurations, or the data that TLM's authors released.
"""

from __future__ import annotations

import csv
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import Field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Protocol

import datasets
import numpy as np
from datasets import Dataset, Features, Value

from hf_tlm.errors import HubError
from hf_tlm.hub import Push, Repo, fetch, publish_subset, push
from hf_tlm.hub.cards import published_card
from hf_tlm.hub.repo_id import parse_repo
from hf_tlm.hub.subset_cards import config_cards, config_names, configs_card, repo_files
from hf_tlm.retrieval.settings import RETRIEVERS, SELECTIONS, VARIANTS
from hf_tlm.retrieval.texts import QUERY_MODES, RetrievalError
from hf_tlm.tasks.spec import Task, registered_task
from hf_tlm.utils.files import atomic_write, sha256
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
from hf_tlm.utils.problems import writing_cache
from hf_tlm.utils.run_files import MANIFEST_FILE
from hf_tlm.utils.shown import named_columns, suggested_path, suggestion
from hf_tlm.utils.texts import SCRIPTS
from hf_tlm.version import __version__

logger = logging.getLogger(__name__)

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
# The data file within the directory of a configuration, in a repository of several subsets.
CONFIG_DATA_FILE = "train-00000-of-00001.parquet"
CARD_FILE = "README.md"
REPORT_FILE = "report.md"
# Fields of a manifest that describe the search.
METHOD_FIELDS = (
    "query_mode max_query_terms top_k top_k_requested variant k1 b delta stopwords stemmer seed num_passages".split()
)
# Retrievers whose manifest has no queries: passages drawn at random, and those that the paper's authors released.
UNQUERIED = ("random", "released")

RELEASED_FILE = "{}_external.csv"  # {} is the configuration: small or large.
LONGEST_FIELD = 1 << 30  # Python's csv module refuses fields of more than 128 KiB by default.
ROUNDS = 20  # Maximum number of times that a card is updated with configurations pushed meanwhile.
DATA_FOLDER = Path(DATA_FILE).parent.name
_HUB_NAME = re.compile(r"(?P<repo_id>[^:@]+)(?::(?P<config>[^:@]+))?(?:@(?P<revision>.+))?")
_CONFIG = re.compile(r"\w[\w.-]{0,95}")

_COUNT, _NUMBER, _NAME = whole(0, 2**53), real(-1e300, 1e300), words(10_000)
_NAMES = listed(_NAME, 10**7)


def _optional_record(**fields: Check) -> Check:
    """Return the check of an object whose known fields are these, all of them optional."""
    return record(fields, optional=tuple(fields))


def _named_record(*needed: str, **fields: Check) -> Check:
    """Return the check of an object with a name and these fields, of which only those in `needed` are required."""
    return record({"name": _NAME, **fields}, optional=[name for name in fields if name not in needed])


def _choice(*values: str) -> Check:
    """Return the check of a string that is one of `values`."""

    def check(value: Any) -> str:
        if value not in values:
            raise Unfit(" or ".join(values))
        return value

    return check


def _check_score_model(value: Any) -> Any:
    """Check the score model of a selection: names of checkpoints, or an object that describes how one was trained."""
    if isinstance(value, dict):
        return _TRAINED(value)
    return _NAME(value) if isinstance(value, str) else _NAMES(value)


def _check_model(value: Any) -> Any:
    """Check the model that a score model was trained from: a name, or a configuration with its model_type."""
    return record({"model_type": _NAME})(value) if isinstance(value, dict) else _NAME(value)


_TRAINED = record(
    {"model": _check_model, "validation": mapped(_NUMBER, 100), "max_steps": whole(-1, 2**53)},
    optional=("validation", "max_steps"),
)

_COUNTS = {
    **dict.fromkeys(("passages", "union"), whole(1, 2**53)),
    **dict.fromkeys(("queries", "empty_queries", "queries_without_hits", "blank_texts", "skipped"), _COUNT),
    **dict.fromkeys(("first_empty_queries", "first_queries_without_hits", "bad_files"), _NAMES),
    "sources": maybe(mapped(_COUNT, 10**6)),
}
_LEFT_OUT = maybe(record({"passages": _COUNT, "threshold": _NUMBER, "ids": _NAMES}, optional=("threshold", "ids")))
_TEACHERS = listed(_optional_record(name=_NAME, revision=maybe(_NAME), license=maybe(_NAME)), 10_000)
# Fields that every manifest has.
NEEDED: dict[str, Check] = {
    "corpus": _named_record("fingerprint", fingerprint=maybe(_NAME), size=maybe(_COUNT)),
    "task": _named_record("fingerprint", fingerprint=maybe(_NAME), split=maybe(_NAME)),
    "retriever": _choice(*RETRIEVERS, "released"),
    "counts": record(_COUNTS, optional=[name for name in _COUNTS if name not in ("passages", "union")]),
}
# Fields that only some manifests have, or only those written since some version.
_OPTIONAL_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("query_mode", "variant", "stopwords", "stemmer", "analyzed_by"), maybe(_NAME)),
    "script": maybe(_choice(*SCRIPTS)),
    **dict.fromkeys(("max_query_terms", "top_k", "top_k_requested", "num_passages", "seed"), maybe(_COUNT)),
    **dict.fromkeys(("k1", "b", "delta"), maybe(_NUMBER)),
    "analyzer": maybe(_optional_record(stopwords=maybe(_NAME), stemmer=maybe(_NAME), script=maybe(_choice(*SCRIPTS)))),
    "teacher": maybe(
        _optional_record(model=_NAME, passages=_COUNT, label_names=_NAMES, cut_passages=_COUNT, teachers=_TEACHERS)
    ),
    "decontamination": _LEFT_OUT,
    "deduplication": _LEFT_OUT,
    "rank_column": truth,
    "selection": maybe(
        record(
            {
                **{"size": _COUNT, "of": _COUNT, "method": _choice(*SELECTIONS), "score_model": maybe(_check_score_model)},
                **dict.fromkeys(("passages_without_score", "passages_not_finite"), maybe(_COUNT)),
                "teacher": _optional_record(model=_NAME, teachers=_TEACHERS),
            },
            optional=("score_model", "passages_without_score", "passages_not_finite", "teacher"),
        )
    ),
    "versions": mapped(maybe(_NAME), 100),
    "hub": maybe(_optional_record(repo_id=_NAME, revision=maybe(_NAME), config=maybe(_NAME))),
    "files": mapped(_NAME, 100),
}
# Fields that a manifest must also have if the subset was retrieved with queries.
_QUERY_FIELDS: dict[str, Check] = {
    "query_mode": _choice(*QUERY_MODES),
    "variant": _choice(*dict.fromkeys(chain(*VARIANTS.values()))),
    "top_k": whole(1, 2**53),
    "k1": _NUMBER,
    "b": _NUMBER,
    "counts": record(_COUNTS, optional=[name for name in _COUNTS if name not in ("passages", "union", "queries")]),
}
_BY_RETRIEVER: dict[str, dict[str, Check]] = {"random": {"seed": _COUNT}, "released": {}}


def check_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest of this format version and check it with `check_values`."""
    manifest = read_json(path, RetrievalError)
    check_values(manifest, str(path), "Create or download it again, or read it with the version of hf_tlm that wrote it.")
    return manifest


def check_values(manifest: Any, name: str, advice: str) -> None:
    """Check that `Subset.load` can read a manifest.

    Args:
        name, advice: start and end of the error message.

    Raises:
        RetrievalError: a field is missing or unknown, or holds a value that recipes do not write.
    """
    description = f"{name} is not what recipes write"
    retriever = check_fields(manifest, NEEDED, RetrievalError, description, advice)["retriever"]
    retriever_fields = _BY_RETRIEVER.get(retriever, _QUERY_FIELDS)
    optional = [field for field in _OPTIONAL_FIELDS if field not in retriever_fields]
    check_fields(manifest, {**NEEDED, **_OPTIONAL_FIELDS, **retriever_fields}, RetrievalError, description, advice, optional)
    known_fields = ["format", "format_version", *NEEDED, *_OPTIONAL_FIELDS]
    if unknown := [field for field in manifest if field not in known_fields]:
        hint = suggestion(unknown[0], known_fields, 1)
        raise RetrievalError(f"{name} has a field {unknown[0]!r:.60} that recipes do not write.{hint} {advice}")


class SubsetLike(Protocol):
    """A protocol of `Subset`, for modules that cannot import it because it imports them."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    dataset: Dataset
    manifest: dict[str, Any]

    def __len__(self) -> int: ...

    def examples(self, task: Task, n: int) -> list[tuple[str, str, float]]: ...

    def save(self, directory: str | os.PathLike, *, report: str | None = None) -> None: ...

    def write(self, folder: Path, report: str, data_file: str = DATA_FILE, **card: Any) -> None: ...


def parse_name(name: str) -> dict[str, Any]:
    """Parse `owner/name[:config][@revision]` into the arguments of `Subset.from_hub`, or raise a RetrievalError."""
    match = _HUB_NAME.fullmatch(name)
    if match is None or parse_repo(match["repo_id"], "dataset") is None:
        raise RetrievalError(
            f"Expected the folder of a subset, or a dataset of the Hub as owner/name, owner/name:config or "
            f"owner/name:config@revision; received {name!r}, which is neither.{suggested_path(name)}"
        )
    return match.groupdict()


def download(repo_id: str, revision: str | None, config: str | None) -> tuple[Path | tuple[Dataset, dict[str, Any]], str]:
    """Download a subset from the Hub.

    Returns:
        The directory of a saved subset, or (rows, manifest) of one that TLM's authors released; and the commit.

    Raises:
        HubError, RetrievalError: see `Subset.from_hub`.
    """
    repo = _check_repo(repo_id, revision, config)
    if config is None:
        first, others = [MANIFEST_FILE], f"{DATA_FOLDER}/*"
    else:
        first, others = [f"{config}/{MANIFEST_FILE}", RELEASED_FILE.format(config)], f"{config}/*"
    snapshot = fetch(repo, allow_patterns=first)
    folder = snapshot if config is None else snapshot / config
    # The data only now: those of a corpus that was passed as a subset by mistake may fill a disk.
    if (folder / MANIFEST_FILE).is_file():
        fetch(replace(repo, revision=snapshot.name), allow_patterns=others)
        return folder, snapshot.name
    if config is not None and (released := snapshot / RELEASED_FILE.format(config)).is_file():
        return read_released(released, repo_id, snapshot.name), snapshot.name
    files, end = repo_files(repo), RELEASED_FILE.format("")
    names = sorted(config_names(files) + [file.removesuffix(end) for file in files if file.endswith(end)])
    raise RetrievalError(
        f"{repo} has no subset {'without a name' if config is None else repr(config)}. Subsets that hf_tlm or TLM's "
        f"authors published there: {', '.join(names) or 'none'}."
    )


def push_subset(subset: SubsetLike, repo_id: str, config: str | None, report: str, options: Mapping[str, Any]) -> Push:
    """Push a subset to a repository of the Hub; see `Subset.push_to_hub`."""
    repo = _check_repo(repo_id, options.get("revision"), config)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "subset"
        try:
            if config is not None:
                return _push_config(subset, folder, repo, config, report, dict(options))
            subset.save(folder, report=report)
            return publish_subset(folder, repo_id, **options)
        except HubError as error:
            raise HubError(str(error).replace(str(folder), "The subset")) from None


def read_released(path: Path, repo_id: str, revision: str) -> tuple[Dataset, dict[str, Any]]:
    """Read a file that TLM's authors released as the rows of a subset, and build a manifest for it.

    Rows are ordered by rank, then by their position in the file. Rows without a text are left out and counted. `rank` is
    the file's (plus one if the file counts from 0), or the position in the file if a row has no rank; `score`, `n_queries`
    and `best_query` are null. Ids are `<file>:<row>`, because the released ids only number the rows. The file is read twice,
    row by row. The manifest has null for whatever the release does not tell.

    Raises:
        RetrievalError: the file cannot be read, has no column `text`, or has no text.
    """
    rows = texts = 0
    first_rank: int | None = np.iinfo(np.int32).max
    for row in _read(path):
        rows += 1
        texts += bool(row["text"].strip())
        rank = _integer(row.get("rank"))
        first_rank = None if first_rank is None or rank is None else min(first_rank, rank)
    if not texts:
        raise RetrievalError(f"{path} has no texts: all of its rows ({rows:,}) are blank.")
    if blank := rows - texts:
        logger.warning("%s: left out %s of %s rows, which have no text.", path.name, f"{blank:,}", f"{rows:,}")
    digest = sha256(path)
    shift = None if first_rank is None else int(first_rank == 0)
    # The digest is part of the cache key of `datasets`, so that a file with other content is not read from the cache.
    generator_arguments = {"path": str(path), "source": repo_id, "shift": shift, "digest": digest}
    features = Features({name: Value(kind) for name, kind in COLUMNS.items()})
    with writing_cache(datasets.config.HF_DATASETS_CACHE):
        dataset = Dataset.from_generator(_rows, features=features, gen_kwargs=generator_arguments)
    ranks = dataset.with_format("numpy")["rank"][:]
    if (ranks[1:] < ranks[:-1]).any():
        dataset = dataset.select(np.argsort(ranks, kind="stable"))
    task = registered_task(repo_id)
    name = task.name if task else repo_id.partition("/")[2].removesuffix("-tlm")
    return dataset, {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "corpus": {"name": f"{repo_id}@{revision}, {path.name}", "fingerprint": digest[:16], "size": rows},
        "task": {"name": name, "fingerprint": None, "split": "train"},
        "retriever": "released",
        **dict.fromkeys(METHOD_FIELDS),
        "decontamination": None,
        "deduplication": None,
        "counts": {"passages": rows, "union": texts, "blank_texts": blank},
        "rank_column": first_rank is not None,
        "versions": {"hf_tlm": __version__, "datasets": datasets.__version__},
    }


def _rows(path: str, source: str, shift: int | None, digest: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a released file in a subset's columns, without rows that have no text.

    Args:
        shift: added to the file's ranks; None: use the position in the file as rank.
        digest: hash of the file, only for the cache key of `datasets`.
    """
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
    """Yield the rows of a CSV file as dicts by column; a missing value is an empty string."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="", strict=True)
            if "text" not in (reader.fieldnames or ()):
                raise RetrievalError(
                    f"{path} has no column 'text'; the columns are {named_columns(reader.fieldnames or ['none'])}. Expected "
                    "a file of the TLM paper's release."
                )
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RetrievalError(f"Cannot read {path}: {error}. Download it again.") from error
    finally:
        csv.field_size_limit(limit)


def _integer(value: str | None) -> int | None:
    """Parse a non-negative int32, also one written as a float (1.0), as pandas writes a column with gaps; None otherwise."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < np.iinfo(np.int32).max else None


def _push_config(subset: SubsetLike, folder: Path, repo: Repo, config: str, report: str, options: dict[str, Any]) -> Push:
    """Push a subset as one configuration, with a card of the repository whose metadata lists all of its configurations."""
    token, tag = options.get("token"), options.pop("tag", None)
    card = {name: options.pop(name, None) for name in ("license", "language")}
    folder.mkdir()
    subset.write(folder, report, CONFIG_DATA_FILE, config=config, data_files=f"{config}/train-*.parquet")
    own_card = published_card((folder / CARD_FILE).read_text(encoding="utf-8"), repo.id, **card)
    atomic_write(folder / CARD_FILE, own_card)
    repo_card = folder.parent / CARD_FILE
    files = {f"{config}/{name}": folder / name for name in (CONFIG_DATA_FILE, MANIFEST_FILE, CARD_FILE, REPORT_FILE)}
    options |= {"type": "dataset", "message": f"Subset {config} of hf_tlm {__version__}", "replace": [f"{config}/*"]}
    paths = repo_files(repo, token, options.get("dry_run", False))
    if MANIFEST_FILE in paths:
        raise RetrievalError(f"{repo} has a subset without a name. Choose another repository, or publish without a name.")
    result: Push | None = None
    for _ in range(ROUNDS):
        cards = {config: own_card} | config_cards(repo, [name for name in config_names(paths) if name != config], token)
        atomic_write(repo_card, configs_card({name: cards[name] for name in sorted(cards)}, repo.id))
        pushed = push(folder, repo.id, files={**files, CARD_FILE: repo_card}, **options)
        result = pushed if result is None else replace(result, commit=pushed.commit or result.commit)
        if pushed.dry_run:
            return result
        # Others may have pushed between reading and writing: the last one to push lists all configurations.
        paths = repo_files(repo, token)
        if set(config_names(paths)) <= set(cards):
            break
    assert result is not None  # Set in the first round.
    if tag is not None:
        push(folder, repo.id, files={**files, CARD_FILE: repo_card}, tag=tag, **options)
    return result


def _check_repo(repo_id: str, revision: str | None, config: str | None) -> Repo:
    """Return the repository, or raise if its id (HubError) or the configuration's name (RetrievalError) is invalid."""
    if (repo := parse_repo(repo_id, "dataset")) is None or repo.revision is not None:
        raise HubError(f"Expected a dataset of the Hub as owner/name; received {repo_id!r}.")
    if config is not None and (not _CONFIG.fullmatch(config) or config == DATA_FOLDER):
        raise RetrievalError(
            f"Expected a configuration's name that a folder can have, other than {DATA_FOLDER}, such as small; "
            f"received {config!r}."
        )
    return replace(repo, revision=revision)
