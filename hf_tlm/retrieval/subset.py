"""The Subset of a corpus chosen for a task: a dataset of passages, and a manifest that describes how they were chosen."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import pyarrow.parquet as pq
from datasets import Dataset, Value

from hf_tlm.hub.subset_cards import describe_data, subset_card
from hf_tlm.retrieval.report import describe_selection, hit_counts, retrieval_report
from hf_tlm.retrieval.subset_files import (
    CARD_FILE,
    COLUMNS,
    CONFIG_DATA_FILE,
    DATA_FILE,
    FORMAT,
    FORMAT_VERSION,
    NEEDED,
    REPORT_FILE,
    UNQUERIED,
    check_manifest,
    check_values,
    download,
    parse_name,
    push_subset,
)
from hf_tlm.retrieval.texts import RetrievalError, build_queries, example_texts
from hf_tlm.tasks.spec import Task, check_task
from hf_tlm.utils.arrow_files import cached_rows
from hf_tlm.utils.files import atomic_directory, check_writable, sha256
from hf_tlm.utils.json_files import entry, find_format
from hf_tlm.utils.options import named, to_python
from hf_tlm.utils.problems import writing_cache
from hf_tlm.utils.run_files import MANIFEST_FILE
from hf_tlm.utils.shown import dataset_of, describe_received, kind_of

if TYPE_CHECKING:
    from hf_tlm.corpora import Corpus
    from hf_tlm.hub import Push

logger = logging.getLogger(__name__)

# Directory that `hf-tlm analyze` writes inside a saved subset; it is replaced together with the subset.
ANALYSIS = "analysis/"
ROW_GROUP = 1000
_MANIFEST_ADVICE = "Pass the manifest of the subset that the passages are from: Subset(rows, subset.manifest)."

# Suffix that a passage's id adds to its document's id.
_PASSAGE_SUFFIX = re.compile(r"#\d+$")


@dataclass
class Subset:
    """A subset of a corpus: passages with their retrieval ranks and scores, ordered by (rank, score descending, id).

    dataset: passages with the columns id, text, source; rank (int32, best over the queries, from 1); score (float32, best
        over the queries); n_queries (int32, number of queries that hit it); best_query (id of the training example that
        gave the best rank). Random subsets have the order of drawing as rank, 0 as n_queries, and null as score and
        best_query. Released subsets (`from_hub`) have null as score, n_queries and best_query. Subsets selected by influence
        also have influence (float32) and influence_rank (int32), see `hf_tlm.influence.select`.
    manifest: corpus, task, method, counts and versions as plain values, without times and machine paths. Its count of
        passages (`union`) is the length of `dataset`, and is updated if passages were removed since.

    Raises:
        RetrievalError: a column is missing or has another type, or the manifest lacks corpus, task, retriever or counts.
    """

    dataset: Dataset
    manifest: dict[str, Any]

    def __post_init__(self):
        self._told_of: str | None = None  # The fingerprint of the other task that was warned about.
        if not hasattr(self.dataset, "with_format"):
            received, replacement = kind_of(self.dataset), dataset_of(self.dataset)
            raise RetrievalError(f"dataset: expected a datasets.Dataset; received {received}. Pass {replacement}.")
        if not isinstance(self.manifest, dict) or not NEEDED.keys() <= self.manifest.keys():
            received = f"{self.manifest!r:.60}"
            raise RetrievalError(
                f"manifest: expected a dict with {', '.join(NEEDED)}; received {received}. {_MANIFEST_ADVICE}"
            )
        received = {name: str(getattr(feature, "dtype", feature)) for name, feature in self.dataset.features.items()}
        wrong = [f"{name} ({kind})" for name, kind in COLUMNS.items() if received.get(name) != kind]
        if wrong:
            raise RetrievalError(
                f"The dataset of a subset lacks the columns {', '.join(wrong)}. Its columns are: "
                f"{', '.join(f'{name} ({kind})' for name, kind in received.items())}."
            )
        counts = self.manifest.get("counts", {})
        if len(self) and counts.get("union", len(self)) != len(self):
            self.manifest = {**self.manifest, "counts": {**counts, "union": len(self)}}

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        corpus, task = self.manifest["corpus"], self.manifest["task"]
        return f"Subset({len(self):,} passages of {corpus['name']!r} for {task['name']!r})"

    def save(self, directory: str | os.PathLike, *, report: str | None = None) -> None:
        """Save the subset to a directory: parquet data, manifest, report and dataset card.

        The same subset gives the same bytes. `datasets.load_dataset(directory)` reads the directory too. A subset saved
        there before is replaced completely.

        Args:
            directory: a new or empty directory, or one of a saved subset.
            report: from `retrieval_report`; called with the task, it quotes the task's texts. None: a report that quotes
                only passages.

        Raises:
            RetrievalError: the directory holds anything but a saved subset, or `load` would reject the manifest.
            HfTlmError: the disk cannot be written.
        """
        check_values(self.manifest, "The subset's manifest", _MANIFEST_ADVICE)
        directory = Path(named("directory", directory, RetrievalError, needed=True, what="a folder")).resolve()
        check_replaceable(directory)
        report = report or retrieval_report(self)
        with atomic_directory(directory) as work:
            self.write(work, report)

    def write(self, folder: Path, report: str, data_file: str = DATA_FILE, **card: Any) -> None:
        """Write the files of `save` into an existing directory.

        Args:
            report: text of the report.
            data_file: path of the parquet file, relative to `folder`.
            card: further arguments of `subset_card`, such as the configuration's name on the Hub.
        """
        data = folder / data_file
        data.parent.mkdir(exist_ok=True)
        _write_parquet(self.dataset, data)
        manifest = {**self.manifest, "files": {data_file: sha256(data)}}
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")
        columns = {name: kind.dtype if isinstance(kind, Value) else None for name, kind in self.dataset.features.items()}
        selection = self.manifest.get("selection")
        text = subset_card(
            self.manifest,
            report,
            describe_data(columns, data),
            engine="" if self.manifest["retriever"] in UNQUERIED else _describe_engine(self.manifest),
            selection=describe_selection(selection) if selection else None,
            **card,
        )
        (folder / CARD_FILE).write_text(text, encoding="utf-8")
        (folder / REPORT_FILE).write_text(report, encoding="utf-8")

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Subset:
        """Load a subset that `save` wrote, memory-mapped through the cache of `datasets`.

        Raises:
            RetrievalError: the directory is no saved subset, or the subset is empty, damaged, or of another format version.
        """
        directory = Path(named("directory", directory, RetrievalError, needed=True, what="a folder"))
        manifest, data, digest = _check_saved(directory)
        # The cache of `datasets` identifies a file by path and modification time; the digest adds its content.
        with writing_cache(datasets.config.HF_DATASETS_CACHE):
            return cls(cached_rows(partial(Dataset.from_parquet, str(data), config_name=digest)), manifest)

    @classmethod
    def open(cls, name: str) -> Subset:
        """Open a subset by name: a saved directory, or `owner/name[:config][@revision]` on the Hub, as options name it.

        Raises:
            HubError, RetrievalError: see `load` and `from_hub`; or the name is neither.
        """
        name = named("name", name, RetrievalError, needed=True)
        return cls.load(name) if os.path.exists(name) else cls.from_hub(**parse_name(name))

    @classmethod
    def from_hub(cls, repo_id: str, *, revision: str | None = None, config: str | None = None) -> Subset:
        """Load a subset from the Hub, published by `push_to_hub` or `hf-tlm publish`, or released by TLM's authors.

        Args:
            repo_id: owner/name of the dataset.
            revision: branch, tag or commit. The manifest records the commit in its field `hub`.
            config: name of the configuration, in a repository with several subsets. For the released data
                (`yxchar/chemprot-tlm`): small or large, see `read_released`.

        Raises:
            HubError: see `hf_tlm.hub.fetch`.
            RetrievalError: there is no subset, or none of that configuration; or see `load` and `read_released`.
        """
        source, commit = download(repo_id, revision, config)
        subset = cls.load(source) if isinstance(source, Path) else cls(*source)
        # Record the commit, because a branch may move.
        subset.manifest["hub"] = {"repo_id": repo_id, "revision": commit, "config": config}
        return subset

    def push_to_hub(self, repo_id: str, *, config: str | None = None, report: str | None = None, **options: Any) -> Push:
        """Publish the subset on the Hub as a dataset, in one commit.

        `datasets.load_dataset(repo_id, config)` reads it without hf_tlm.

        Args:
            repo_id: owner/name of the dataset.
            config: the subset's name (small, large) in a repository of several subsets; None: the repository holds only
                this one.
            report: see `save`.
            options: license, language, private, revision, tag, dry_run, token and retries, see `hf_tlm.hub.push`.

        Raises:
            HubError: see `hf_tlm.hub.push`.
            RetrievalError: `load` would reject the manifest; `config` is not a valid name, or other subsets of the
                repository have names and this one has none (or vice versa).
        """
        check_values(self.manifest, "The subset's manifest", _MANIFEST_ADVICE)
        # Leave out where the subset was loaded from, so that pushing it back there changes nothing.
        published = replace(self, manifest={name: value for name, value in self.manifest.items() if name != "hub"})
        return push_subset(published, repo_id, config, report or retrieval_report(published), options)

    def as_corpus(self) -> Corpus:
        """Return the passages as a Corpus, for instance to pretrain on."""
        from hf_tlm.corpora import load_corpus

        corpus = load_corpus(self.dataset, id_column="id")
        corpus = replace(corpus, name=f"{self.manifest['corpus']['name']}, for {self.manifest['task']['name']}")
        # If documents were cut into passages, the passages of one document must stay together.
        cut = all(_PASSAGE_SUFFIX.search(identifier) for identifier in self.dataset["id"][:])
        return replace(corpus, cut=True, fingerprint=f"{corpus.fingerprint}-cut") if cut else corpus

    def summary(self) -> str:
        """Describe the subset in a few lines of text."""
        manifest, counts = self.manifest, self.manifest["counts"]
        lines = [
            f"{counts['union']:,} of {counts['passages']:,} passages ({counts['union'] / counts['passages']:.1%}) of "
            f"{manifest['corpus']['name']} for {manifest['task']['name']}"
        ]
        if manifest["retriever"] == "random":
            lines.append(f"random, seed {manifest['seed']}")
        elif manifest["retriever"] == "released":
            lines.append("retrieved and released by the authors of TLM")
        else:
            lines.append(f"BM25 ({_describe_engine(manifest)})")
            lines.append(f"{counts['queries']:,} queries ({manifest['query_mode']}), top {manifest['top_k']:,} of each")
            hits = hit_counts(self)
            lines.append(f"a passage was found by {hits.mean():.1f} queries on average, at most by {hits.max():,}")
            for field in ("empty_queries", "queries_without_hits"):
                if counts.get(field):
                    lines.append(f"{field.replace('_', ' ')}: {counts[field]:,}")
        if selection := manifest.get("selection"):
            lines.append(f"selected: {describe_selection(selection)}")
        for field, reason in (("decontamination", "contain held-out texts"), ("deduplication", "are near-duplicates")):
            if manifest.get(field) and manifest[field]["passages"]:
                lines.append(f"left out because they {reason}: {manifest[field]['passages']:,}")
        if counts.get("blank_texts"):
            lines.append(f"rows without a text, left out: {counts['blank_texts']:,}")
        if counts.get("bad_files"):
            lines.append(f"files that could not be read, left out: {', '.join(counts['bad_files'])}")
        return "\n".join(lines)

    def examples(self, task: Task, n: int) -> list[tuple[str, str, float]]:
        """Return (query, passage, score) of the first n passages; an empty list for a random subset.

        The query is the one that gave the passage's best rank; the score is the passage's best. Passages without a query
        are left out.

        Raises:
            TaskError: `task` is not a Task.
            RetrievalError: `n` is not an integer; a query is not in the task's training split.
        """
        check_task(task)
        if not isinstance(n := to_python(n), int):
            raise RetrievalError(f"n: expected a whole number of passages; received {n!r:.60}.")
        rows = self.dataset[: max(n, 0)]
        rows_with_query = [row for row, query in enumerate(rows["best_query"]) if query is not None]
        if not rows_with_query:
            return []
        examples = task.train.select(self.rows_of_queries(task, [rows["best_query"][row] for row in rows_with_query]))
        queries = build_queries(example_texts(examples), self.manifest["query_mode"], script=self.manifest.get("script"))
        return [(query, rows["text"][row], rows["score"][row]) for query, row in zip(queries, rows_with_query, strict=True)]

    def tell_of_other_task(self, task: Task) -> None:
        """Warn, once, if the subset is known to have been retrieved for other data than the task's, or for other splits.

        It was then decontaminated against the validation and test texts of that other task.

        Raises:
            TaskError: `task` is not a Task.
        """
        check_task(task)
        made_for = self.manifest["task"]
        if made_for["fingerprint"] not in (None, task.fingerprint) and self._told_of != task.fingerprint:
            self._told_of = task.fingerprint
            logger.warning(
                "The subset was retrieved for %s (fingerprint %s), not for %s (fingerprint %s): validation and test texts "
                "may be among its passages. Retrieve it with this task's options.",
                made_for["name"],
                made_for["fingerprint"],
                task.name,
                task.fingerprint,
            )

    def rows_of_queries(self, task: Task, queries: Iterable[str | None] | None = None) -> list[int]:
        """Return the row numbers of queries in the task's training split.

        Args:
            queries: ids of training examples; None: all ids of the column best_query, sorted, without repetitions.

        Raises:
            TaskError: `task` is not a Task.
            RetrievalError: a query is not in the task's training split.
        """
        check_task(task)
        position = {identifier: row for row, identifier in enumerate(task.train["id"][:])}
        identifiers = sorted({*self.dataset["best_query"][:]} - {None}) if queries is None else list(queries)
        if missing := [query for query in identifiers if query not in position]:
            made_for = self.manifest["task"]
            raise RetrievalError(
                f"The training split of {task.name} has no example {missing[0]!r}. This subset was retrieved for "
                f"{made_for['name']} (fingerprint {made_for['fingerprint']}): load that task."
            )
        return [position[query] for query in identifiers]


def _write_parquet(dataset: Dataset, path: Path) -> None:
    """Write a parquet file whose bytes depend only on the rows; its schema lets `datasets` restore the exact features."""
    schema = dataset.features.arrow_schema
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in dataset.with_format("arrow").iter(batch_size=ROW_GROUP):
            writer.write_table(table.cast(schema))


def _read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of a saved subset, of any format version; None if the directory has none."""
    return find_format(directory / MANIFEST_FILE, FORMAT)


def _check_saved(directory: Path) -> tuple[dict[str, Any], Path, str]:
    """Check a saved subset; return its manifest (without the field `files`), its data file and the file's sha256.

    Raises:
        RetrievalError: see `Subset.load`.
    """
    manifest = _read_manifest(directory)
    if manifest is None:
        raise RetrievalError(
            f"{directory} is not a saved subset: it has no readable {MANIFEST_FILE} of hf_tlm. Expected a folder "
            "that Subset.save or `hf-tlm retrieve` wrote."
            + (f" To retrieve a subset from a file of texts, use --corpus {directory}." if directory.is_file() else "")
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise RetrievalError(
            f"{directory} has format version {manifest.get('format_version')}; this hf_tlm reads version "
            f"{FORMAT_VERSION}. Retrieve the subset again, or use the version of hf_tlm that wrote it "
            f"({str(entry(manifest, 'versions', 'hf_tlm') or 'not recorded'):.30})."
        )
    manifest = check_manifest(directory / MANIFEST_FILE)
    files = manifest.pop("files", {})
    data_file = CONFIG_DATA_FILE if CONFIG_DATA_FILE in files else DATA_FILE
    data, expected = directory / data_file, files.get(data_file)
    digest = sha256(data) if data.is_file() else "no such file"
    if digest != expected:
        raise RetrievalError(
            f"{data} does not match the manifest (sha256 {digest}; expected {expected}). The folder is damaged or was "
            "edited: copy the folder again, or retrieve the subset again."
        )
    if not pq.read_metadata(data).num_rows:
        raise RetrievalError(f"{directory} is an empty subset without passages. Retrieve the subset again.")
    return manifest, data, digest


def subset_problem(directory: Path) -> str | None:
    """Return why a directory cannot be loaded as a saved subset, in one line; None if it is intact.

    The answer is cached: files are read again only if their modification time, size or inode changed.
    """
    files = [directory / name for name in (MANIFEST_FILE, DATA_FILE, CONFIG_DATA_FILE)]
    stats = [file.stat() for file in files if file.is_file()]
    return _cached_problem(directory, *((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats))


@functools.cache
def _cached_problem(directory: Path, *_: tuple[int, ...]) -> str | None:
    """Implement `subset_problem`; the further arguments are only cache keys."""
    try:
        _check_saved(directory)
    except (RetrievalError, OSError) as error:
        return str(error)
    return None


def discard_damaged(directory: Path) -> None:
    """Remove the files of a damaged subset, so that another can be saved there; files that `save` does not write stay.

    Nothing is removed if the manifest is readable. Call it only if the directory is known to have held a subset: other
    datasets have files of the same names.
    """
    if _read_manifest(directory) is None:
        for name in (DATA_FILE, MANIFEST_FILE, CARD_FILE, REPORT_FILE):
            (directory / name).unlink(missing_ok=True)
        shutil.rmtree(directory / ANALYSIS, ignore_errors=True)


def check_replaceable(directory: Path, **work: str | None) -> None:
    """Check that a subset can be saved to a directory.

    Args:
        work: other directories that the command writes to, by the names of their options.

    Raises:
        RetrievalError: the directory holds something other than a saved subset, or one of `work` is inside it.
        ArgumentsError: the directory cannot be written, see `check_writable`.
    """
    for name, work_path in work.items():
        if work_path is not None and directory.resolve() in Path(work_path).resolve().parents:
            raise RetrievalError(
                f"--{name} {work_path} is in {directory}, which may only contain the subset. Choose another {name}."
            )
    check_writable(directory, f"Cannot save a subset to {directory}", replaced=True)
    if not directory.exists():
        return
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    is_subset = _read_manifest(directory) is not None
    others = sorted(files - {DATA_FILE, MANIFEST_FILE, CARD_FILE, REPORT_FILE})
    others = [file for file in others if not (is_subset and file.startswith(ANALYSIS))]
    if others or (files and not is_subset):
        raise RetrievalError(
            f"{directory} is not empty and contains something other than a saved subset "
            f"({', '.join((others or sorted(files))[:3])}). Choose another folder, or empty this one."
        )


def _describe_engine(manifest: dict[str, Any]) -> str:
    """Describe the engine and its settings in words."""
    delta = "" if manifest["delta"] is None else f", delta {manifest['delta']:g}"
    words = "kept" if manifest["stopwords"] is None else "dropped"
    if manifest.get("analyzed_by"):
        words = f"as {manifest['analyzed_by']} analyzer has them"
    words += f", stemmed ({manifest['stemmer']})" if manifest.get("stemmer") else ""
    words += {"unspaced": ", each two letters a word", "marks": ", marks within words"}.get(manifest.get("script") or "", "")
    words += f", {manifest['max_query_terms']} rarest terms of a query" if manifest.get("max_query_terms") else ""
    return (
        f"{manifest['retriever']}, {manifest['variant']}, k1 {manifest['k1']:g}, b {manifest['b']:g}{delta}, "
        f"stop words {words}"
    )


def check_subset(subset: Any) -> None:
    """Check that an argument is a Subset, not for instance its name, or raise a RetrievalError that says what to pass."""
    if not isinstance(subset, Subset):
        raise RetrievalError(f"subset: expected a Subset; {describe_received(subset, 'Subset.open', data=False)}")


def check_subsets(subsets: Any) -> None:
    """Check that an argument is a mapping of names to Subsets, or raise a RetrievalError that says what to pass."""
    if not isinstance(subsets, Mapping):
        raise RetrievalError(
            f"subsets: expected a mapping of names to Subsets; received {kind_of(subsets)}. Pass {{name: subset}}."
        )
    for subset in subsets.values():
        check_subset(subset)
