"""Retrieval from a corpus that is larger than one machine, on datatrove's executors.

The result is the same as with a single index. The corpus is cut into shards. Every shard is indexed by itself; the
statistics that scores depend on are summed over the shards; every shard is searched with these sums, so its scores are
those of the complete corpus; the K best hits of each query are merged from all shards; and only the texts of passages in
their union are read again. A killed run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import concatenate_datasets

from hf_tlm.corpora.corpus import Corpus
from hf_tlm.retrieval.bm25.tokenize import TokenizedTexts, tokenize_texts
from hf_tlm.retrieval.hits import RetrievalResult
from hf_tlm.retrieval.settings import Bm25Settings, check_engine
from hf_tlm.retrieval.sharded.workspace import (
    Workspace,
    lock,
    open_passages,
    open_workspace,
    plan,
    read_json,
    read_table,
    shard_name,
    spread,
    write_queries,
)
from hf_tlm.retrieval.texts import RetrievalError
from hf_tlm.utils.locks import Claim
from hf_tlm.utils.options import check_numbers

logger = logging.getLogger(__name__)

FORMAT = "hf_tlm.sharded"
FORMAT_VERSION = 1
RUN_FILE = "run.json"
# Maximum number of shards on one machine: more of them take longer to start than to process.
MOST_LOCAL = 1024
PRELOAD = ["hf_tlm.retrieval.sharded.preload"]  # Imported once for all local processes.


def retrieve_sharded(
    queries: TokenizedTexts | Sequence[str],
    corpus: Corpus,
    top_k: int,
    settings: Bm25Settings | None = None,
    *,
    work_dir: str | os.PathLike,
    num_shards: int,
    executor: str = "local",
    workers: int | None = None,
    max_query_terms: int | None = None,
    query_batch_size: int | None = None,
    executor_options: dict[str, Any] | None = None,
    cache_dir: str | None = None,
) -> RetrievalResult:
    """Retrieve the union of the top K passages of every query from a corpus cut into shards.

    Args:
        queries: texts, or the result of `tokenize_texts` with the analyzer of `settings`.
        work_dir: directory that the machines share and that a killed run continues from; each run has its own. A path on a
            disk that all of them can access, or for "jobs" a URL such as `hf://buckets/<user>/<bucket>/<folder>`.
        num_shards: number of shards; one process indexes and searches each. The index of a shard must fit on a disk, not in
            memory.
        executor: "local" processes, "ray", "slurm", or "jobs" of Hugging Face. This process computes the sums and the merge
            and, except for jobs, reads the chosen texts.
        workers, executor_options: see `Sharding`.
        max_query_terms, query_batch_size: see `Index.search`.
        cache_dir: cache directory of a corpus that does not consist of files; None: the cache of `datasets`.

    Raises:
        RetrievalError: an argument is wrong, datatrove or a requirement of the executor is missing, the work_dir belongs to
            another run or is in use, a file cannot be read, ids repeat, there is no passage, or a shard failed.
        CorpusError: the corpus cannot be read.
    """
    settings, options = settings or Bm25Settings(), executor_options or {}
    workers = options.get("workers") if workers is None else workers
    check_engine("bm25", settings)
    check_numbers(RetrievalError, top_k=top_k, num_shards=num_shards, workers=workers, max_query_terms=max_query_terms)
    if importlib.util.find_spec("datatrove") is None:
        raise RetrievalError("Sharded retrieval needs datatrove: pip install 'hf-tlm[sharded]'.")
    from hf_tlm.retrieval.sharded import steps
    from hf_tlm.retrieval.sharded.executors import check_executor, cluster, run_stage, share_out

    if executor == "local" and num_shards > MOST_LOCAL:
        raise RetrievalError(
            f"--num_shards: expected at most {MOST_LOCAL:,} with the local executor, whose shards take turns on this "
            f"machine's cores; received {num_shards:,}."
        )
    options, threads = share_out(executor, options, workers, num_shards, os.cpu_count() or 1)
    check_executor(executor, options)
    workspace = open_workspace(work_dir, executor)
    if not isinstance(queries, TokenizedTexts):
        queries = tokenize_texts(queries, settings.analyzer)

    with lock(workspace), cluster(executor, options, PRELOAD):
        claim = _claim_workspace(workspace, _identity(queries, corpus, top_k, settings, max_query_terms, num_shards))
        if executor in ("local", "ray"):  # Tasks of a killed run ended with it: remove their temporary files.
            for path in Path(workspace.location).glob("*/.*"):
                shutil.rmtree(path, ignore_errors=True)
        with claim:
            if not workspace.has("queries"):
                with workspace.writing("queries") as folder:
                    write_queries(folder, queries)
            pieces = None
            if workspace.local and all(part.size is not None for part in corpus.parts):
                pieces = plan(corpus.parts, num_shards)
            else:
                spread(corpus, workspace, num_shards, cache_dir)
        local_executor = "local", {"workers": 1}
        shard_executor = executor, options
        okapi = settings.variant == "okapi"
        index = steps.IndexShard(workspace, pieces, corpus.skip_bad_files, settings.analyzer, okapi, threads)
        run_stage(index, num_shards, *shard_executor, "Indexing")
        _check_bad_files(workspace, num_shards, corpus.skip_bad_files)
        run_stage(steps.SumStatistics(workspace, num_shards, okapi), 1, *local_executor)
        search = steps.SearchShard(workspace, top_k, settings, max_query_terms, threads, query_batch_size)
        run_stage(search, num_shards, *shard_executor, "Searching")
        run_stage(steps.MergeHits(workspace, num_shards, top_k), 1, *local_executor)
        run_stage(steps.GatherTexts(workspace), num_shards, *(local_executor if workspace.local else shard_executor))
        return _read_result(workspace, num_shards)


def _identity(queries: TokenizedTexts, corpus: Corpus, top_k, settings, max_query_terms, num_shards) -> dict[str, Any]:
    """Return everything that the outputs of a run depend on."""
    digest = hashlib.sha256(queries.ids.tobytes() + queries.offsets.tobytes() + "\n".join(queries.vocabulary).encode())
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "corpus": corpus.fingerprint,
        "queries": f"{len(queries)} of digest {digest.hexdigest()[:16]}",
        "settings": {**settings.to_dict(), "delta": settings.used_delta},
        "top_k": top_k,
        "max_query_terms": max_query_terms,
        "num_shards": num_shards,
    }


def _claim_workspace(workspace: Workspace, identity: dict[str, Any]) -> Claim:
    """Start a run in the workspace, or check that the run started there is the same one.

    Raises:
        RetrievalError: the workspace belongs to another run, holds something else, or is damaged.
    """
    try:
        recorded = workspace.read(RUN_FILE)
    except ValueError as error:
        raise RetrievalError(f"{workspace.path(RUN_FILE)} is damaged. Use another work_dir, or delete this one.") from error
    if recorded is None:
        if workspace.local and any(not path.name.startswith(".") for path in Path(workspace.location).iterdir()):
            raise RetrievalError(
                f"{workspace.location} contains files that do not belong to a sharded run. Choose an empty or new work_dir."
            )
        claim = Claim(Path(workspace.location), RUN_FILE, "queries/*")
        workspace.write(RUN_FILE, identity)
        claim.new = workspace.local
        return claim
    if different := [name for name, value in identity.items() if recorded.get(name) != value]:
        changes = "; ".join(f"{name} was {recorded.get(name)}, now {identity[name]}" for name in different)
        raise RetrievalError(
            f"{workspace.location} belongs to another run: {changes}. Use another work_dir, or delete this one."
        )
    return Claim(Path(workspace.location))


def _read_counts(workspace: Workspace, num_shards: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the counts of all shards' passages together, and the errors of the files left out, by name."""
    shards = [read_json(workspace.reading(shard_name("passages", i)) / "counts.json") for i in range(num_shards)]
    sources = sum((Counter(shard["sources"]) for shard in shards), Counter())
    bad_files = dict(sorted(bad for shard in shards for bad in shard["bad_files"].items()))
    counts = {
        "passages": sources.total(),
        "skipped": sum(shard["skipped"] for shard in shards),
        "sources": dict(sorted(sources.items(), key=lambda source: (-source[1], source[0]))),
        "bad_files": list(bad_files),
    }
    return counts, bad_files


def _check_bad_files(workspace: Workspace, num_shards: int, skip_bad_files: bool) -> None:
    """Warn of files left out, or raise a RetrievalError if this call does not allow it but an earlier one did."""
    _, bad_files = _read_counts(workspace, num_shards)
    if bad_files and not skip_bad_files:
        raise RetrievalError(
            f"The run in {workspace.location} has left out files that could not be read: {', '.join(bad_files)}. Pass "
            "skip_bad_files to continue without these files, or repair them and choose another work_dir."
        )
    for name, error in bad_files.items():
        logger.warning("%s is left out of the corpus: %s", name, error)


def _read_result(workspace: Workspace, num_shards: int) -> RetrievalResult:
    """Read the result of a finished run."""
    union = read_table(workspace.reading("union") / "union.arrow")
    texts = [open_passages(workspace.reading(shard_name("texts", shard))) for shard in range(num_shards)]
    # The texts are ordered by shard, then row: map each passage of the union to its position among them.
    rows = np.empty(union.num_rows, np.int64)
    rows[np.lexsort((union["row"].to_numpy(), union["shard"].to_numpy()))] = np.arange(union.num_rows)
    passages = concatenate_datasets([part for part in texts if len(part)] or texts[:1])
    without_hits = read_json(workspace.reading("union") / "counts.json")["without_hits"]
    columns = {name: union[name].to_numpy() for name in ("rank", "score", "n_queries", "best_query")}
    counts, _ = _read_counts(workspace, num_shards)
    return RetrievalResult(passages.select(rows, keep_in_memory=True), columns, counts, without_hits)
