"""Task + corpus -> Subset (TLM, section 3.1)."""

from __future__ import annotations

import dataclasses
import logging
from importlib.metadata import version
from typing import Any

import numpy as np
from datasets import Dataset

from hf_tlm.corpora import Corpus
from hf_tlm.retrieval.bm25 import BACKENDS, Bm25Settings, analyze, search
from hf_tlm.retrieval.queries import RetrievalError, build_queries
from hf_tlm.retrieval.subset import FORMAT, Subset, build_dataset
from hf_tlm.tasks import Task
from hf_tlm.version import __version__

logger = logging.getLogger(__name__)

RETRIEVERS = (*BACKENDS, "random")
_NAMED = 10


def default_top_k(num_train: int) -> int:
    """The paper's K by the number of training examples (appendix B): 5000 under 5K, 50 over 100K, 500 between."""
    if num_train < 5_000:
        return 5_000
    return 50 if num_train > 100_000 else 500


def retrieve(
    task: Task,
    corpus: Corpus,
    *,
    retriever: str = "bm25s",
    top_k: int | None = None,
    query_mode: str = "text",
    settings: Bm25Settings | None = None,
    num_passages: int | None = None,
    seed: int = 0,
) -> Subset:
    """The union of the top K passages of every training text, or as a baseline (Table 3) random passages.

    Args:
        retriever: `bm25s`, `rank_bm25` (readable, slow), or `random`.
        top_k: passages per query; default `default_top_k`. More than the corpus has means all of it.
        query_mode: `text` or `rake`, see `build_queries`.
        num_passages, seed: size and seed of a random subset.

    Returns:
        Every passage once, with its best rank (from 1), best score, the number of queries that found it, and the
        training example that ranked it best (ties: the higher score, then the earlier example). Random: rank is the
        order of the draw, score and best_query are null.

    Raises:
        RetrievalError: an unknown retriever, variant or query mode; repeated passage ids; no query has a word left;
            top_k or num_passages out of range.
        CorpusError: the corpus is empty or cannot be read.
    """
    settings = settings or Bm25Settings()
    if retriever not in RETRIEVERS:
        raise RetrievalError(f"The retrievers are {', '.join(RETRIEVERS)}; received {retriever!r}.")
    if retriever != "random":
        if num_passages is not None:
            raise RetrievalError(f"num_passages is the size of a random subset; {retriever} takes top_k.")
        top_k = default_top_k(len(task.train)) if top_k is None else top_k
        if top_k < 1:
            raise RetrievalError(f"top_k must be at least 1; received {top_k}.")
    passages = corpus.to_dataset()
    ids = np.array(passages["id"][:], dtype=object)
    order = np.argsort(ids, kind="stable")
    if len(ids) > 1 and (repeated := ids[order][1:] == ids[order][:-1]).any():
        raise RetrievalError(f"The corpus {corpus.name} has the id {ids[order][1:][repeated][0]!r} more than once.")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint},
        "task": {"name": task.name, "fingerprint": task.fingerprint, "split": "train"},
        "retriever": retriever,
        "versions": {"hf_tlm": __version__, "datasets": version("datasets")},
    }
    if retriever == "random":
        return _random(passages, order, num_passages, seed, manifest)
    texts = task.train["text"][:]
    if "text_pair" in task.train.column_names:
        texts = [f"{first} {second}" for first, second in zip(texts, task.train["text_pair"], strict=True)]
    query_ids = task.train["id"][:]
    queries = [analyze(query, settings) for query in build_queries(texts, query_mode)]
    if not any(queries):
        raise RetrievalError(f"None of the {len(queries)} queries of task {task.name} has a word that is not a stop word.")
    if top_k > len(passages):
        logger.warning("top_k %d is more than the corpus has: every query can find all %d passages.", top_k, len(passages))
    ordered = passages.select(order)
    hits = search(
        (text for batch in ordered.iter(1000) for text in batch["text"]),
        len(passages),
        queries,
        min(top_k, len(passages)),
        settings,
        retriever,
    )
    best, empty, without = _union(hits, queries, len(passages))
    if not len(best["position"]):
        raise RetrievalError(f"No query of task {task.name} shares a word with the corpus {corpus.name}.")
    manifest |= {
        "query_mode": query_mode,
        "top_k": top_k,
        "bm25": dataclasses.asdict(settings),
        "counts": {
            "passages": len(passages),
            "queries": len(queries),
            "empty_queries": len(empty),
            "queries_without_hits": len(without),
            "union": len(best["position"]),
        },
        # Named, so that nobody need search for them; the counts above are of all.
        "empty_query_ids": [query_ids[i] for i in empty[:_NAMED]],
        "query_ids_without_hits": [query_ids[i] for i in without[:_NAMED]],
    }
    manifest["versions"][retriever.replace("_", "-")] = version(retriever.replace("_", "-"))
    chosen = ordered.select(best["position"])
    return Subset(
        build_dataset(
            {
                **{name: chosen[name][:] for name in ("id", "text", "source")},
                **{name: best[name] for name in ("rank", "score", "n_queries")},
                "best_query": [query_ids[i] for i in best["query"]],
            }
        ),
        manifest,
    )


def _union(hits, queries, num_passages: int) -> tuple[dict[str, np.ndarray], list[int], list[int]]:
    """Each found passage once, ordered by (rank, -score, id); the queries without words; those without hits."""
    unseen = np.iinfo(np.int32).max
    rank = np.full(num_passages, unseen, dtype=np.int32)
    rank_score = np.zeros(num_passages, dtype=np.float32)  # The score that came with the best rank.
    score = np.full(num_passages, -np.inf, dtype=np.float32)
    n_queries = np.zeros(num_passages, dtype=np.int32)
    query = np.zeros(num_passages, dtype=np.int64)
    empty, without = [], []
    for number, (positions, scores) in enumerate(hits):
        if not queries[number]:
            empty.append(number)
        elif not len(positions):
            without.append(number)
        ranks = np.arange(1, len(positions) + 1, dtype=np.int32)
        better = (ranks < rank[positions]) | ((ranks == rank[positions]) & (scores > rank_score[positions]))
        rank[positions[better]] = ranks[better]
        rank_score[positions[better]] = scores[better]
        query[positions[better]] = number
        score[positions] = np.maximum(score[positions], scores)
        n_queries[positions] += 1
    found = np.flatnonzero(rank < unseen)
    found = found[np.lexsort((found, -score[found], rank[found]))]
    best = {"position": found, "rank": rank[found], "score": score[found], "n_queries": n_queries[found]}
    return {**best, "query": query[found]}, empty, without


def _random(
    passages: Dataset, order: np.ndarray, num_passages: int | None, seed: int, manifest: dict[str, Any]
) -> Subset:
    """`num_passages` distinct passages, uniformly."""
    if num_passages is None or not 1 <= num_passages <= len(passages):
        raise RetrievalError(
            f"A random subset needs num_passages between 1 and the corpus's {len(passages):,}; received {num_passages}."
        )
    draw = np.random.default_rng(seed).choice(len(passages), size=num_passages, replace=False)
    chosen = passages.select(order[draw])
    manifest |= {"seed": seed, "counts": {"passages": len(passages), "union": num_passages}}
    columns = {name: chosen[name][:] for name in ("id", "text", "source")}
    blank = [None] * num_passages
    columns |= {
        "rank": np.arange(1, num_passages + 1, dtype=np.int32),
        "score": blank,
        "n_queries": np.zeros(num_passages, dtype=np.int32),
        "best_query": blank,
    }
    return Subset(build_dataset(columns), manifest)
