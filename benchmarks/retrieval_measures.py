"""Measurements of benchmarks/retrieval.py: our index and other engines behind the same few functions.

Each `measure_...` runs in a process of its own, with paths and numbers as arguments, and returns numbers.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path
from statistics import median

from measuring import Memory, seconds

K1, B = 1.5, 0.75
WARM = ["some words to compile with", "other words"]


def query_texts(data: str, number: int | None) -> list[str]:
    import pyarrow.parquet as pq

    return pq.read_table(f"{data}/tasks/chemprot/train.parquet", columns=["text"])["text"].to_pylist()[:number]


def settings_of(stopwords: str | None):
    from hf_tlm.retrieval import Bm25Settings

    return Bm25Settings(k1=K1, b=B, stopwords=stopwords)


def our_index(corpus: str, folder: str, stopwords: str | None, num_threads: int | None = None):
    from datasets import Dataset, disable_progress_bars

    from hf_tlm.retrieval.bm25.index import Index

    disable_progress_bars()
    analyzer = settings_of(stopwords).analyzer
    options = {"corpus_name": Path(corpus).stem, "fingerprint": Path(corpus).stem, "analyzer": analyzer}
    return Index.open_or_build(folder, Dataset.from_file(corpus), num_threads=num_threads, **options)


def our_search(index, texts: list[str], top_k: int, **options) -> list:
    from hf_tlm.retrieval.bm25.tokenize import tokenize_texts

    return list(
        index.search(tokenize_texts(texts, index.analyzer), top_k, settings=settings_of(index.analyzer.stopwords), **options)
    )


def bm25s_index(texts: list[str], stopwords: str | None):
    import bm25s

    engine = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numba")
    engine.index(bm25s.tokenize(texts, stopwords=stopwords or [], show_progress=False), show_progress=False)
    return engine


def bm25s_search(engine, texts: list[str], top_k: int, stopwords: str | None):
    import bm25s

    tokens = bm25s.tokenize(texts, stopwords=stopwords or [], show_progress=False, return_ids=False)
    return engine.retrieve(tokens, k=top_k, show_progress=False, n_threads=1)


class Tantivy:
    """Tantivy, searched with our tokens of the queries; its k1 and b are fixed. One thread, and one segment if possible."""

    def __init__(self, corpus: str, folder: Path):
        import tantivy
        from datasets import Dataset

        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", stored=False, index_option="freq")
        self.schema = builder.build()
        done = folder / "done"
        if not done.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            writer = tantivy.Index(self.schema, str(folder)).writer(1_000_000_000, 1)
            for batch in Dataset.from_file(corpus).select_columns("text").iter(1000):
                for text in batch["text"]:
                    writer.add_document(tantivy.Document(text=text))
            writer.commit()
            writer.wait_merging_threads()
            done.touch()
        index = tantivy.Index.open(str(folder))
        self.searcher = index.searcher()

    def search(self, texts: list[str], top_k: int, analyzer) -> None:
        from tantivy import Occur, Query

        for text in texts:
            terms = [(Occur.Should, Query.term_query(self.schema, "text", term, "freq")) for term in analyzer(text)]
            hits = self.searcher.search(Query.boolean_query(terms), top_k).hits
            [score for score, _ in hits]


def check_agreement(ours: list, theirs, top_k: int) -> None:
    """Check that both sides have the same scores at each rank, and the same documents except for ties at the cut-off.

    Raises:
        RuntimeError: the two sides disagree.
    """
    import numpy as np

    for query, (documents, scores) in enumerate(ours):
        hits = theirs.scores[query] > 0
        other, other_scores = theirs.documents[query][hits], theirs.scores[query][hits]
        # bm25s accumulates in float32.
        same = len(scores) == len(other_scores) and np.allclose(scores, other_scores, rtol=1e-4)
        margin = scores[-1] * (1 + 2e-4) if len(scores) == top_k else 0
        if (
            not same
            or not set(documents[scores > margin]) <= set(other)
            or not set(other[other_scores > margin]) <= set(documents)
        ):
            raise RuntimeError(f"Our search and bm25s disagree on query {query} at K = {top_k}.")


def measure_search(*, data, corpus, work_dir, size, stopwords, top_ks, num_queries, repeats, tantivy_queries) -> list[dict]:
    import bm25s
    import numpy as np
    from datasets import Dataset

    name, work_dir = f"{size}-{stopwords or 'all'}", Path(work_dir)
    texts = query_texts(data, num_queries)
    index = our_index(corpus, str(work_dir / f"index-{name}"), stopwords)
    folder = work_dir / f"bm25s-{name}"
    if not (folder / "params.index.json").is_file():
        bm25s_index(Dataset.from_file(corpus)["text"][:], stopwords).save(str(folder), show_progress=False)
    engine = bm25s.BM25.load(str(folder), show_progress=False)
    tantivy = Tantivy(corpus, work_dir / f"tantivy-{size}") if tantivy_queries else None
    rows = []
    for top_k in (k for k in top_ks if k < size):
        probe = texts[:: max(1, len(texts) // 100)]
        check_agreement(our_search(index, probe, top_k), bm25s_search(engine, probe, top_k, stopwords), top_k)
        sides = {
            "ours": lambda k=top_k: our_search(index, texts, k, num_threads=1),
            "bm25s": lambda k=top_k: bm25s_search(engine, texts, k, stopwords),
            "two": lambda k=top_k: our_search(index, texts, k, num_threads=2),
        }
        if tantivy:
            few = texts[:: max(1, len(texts) // tantivy_queries)]
            sides["tantivy"] = lambda k=top_k, few=few: tantivy.search(few, k, index.analyzer)
        times = {side: [] for side in sides}
        for _ in range(repeats):
            for side, function in sides.items():
                times[side].append(seconds(function) / (len(few) if side == "tantivy" else len(texts)))
        ratio = lambda side, over="ours": float(np.median(np.divide(times[side], times[over])))  # noqa: E731, B023
        rows.append(
            {
                "passages": size,
                "stop words": "removed" if stopwords else "kept",
                "K": top_k,
                "queries": len(texts),
                "ours, queries/s": 1 / median(times["ours"]),
                "bm25s": 1 / median(times["bm25s"]),
                "ratio": ratio("bm25s"),
                "tantivy": 1 / median(times["tantivy"]) if tantivy else None,
                "ratio to tantivy": ratio("tantivy") if tantivy else None,
                "2 threads": 1 / ratio("two"),
                "seconds a query": times,
            }
        )
    return rows


def warm_up(folder: str) -> None:
    """Load libraries and compile kernels before timing."""
    from datasets import Dataset

    from hf_tlm.retrieval.bm25.index import Index

    passages = Dataset.from_dict({"id": ["a", "b"], "text": WARM})
    index = Index.build(f"{folder}-warm", passages, corpus_name="warm", fingerprint="warm", progress=False)
    our_search(index, WARM, 1)
    shutil.rmtree(f"{folder}-warm")


def measure_build(*, engine, corpus, folder, stopwords) -> dict:
    from datasets import Dataset

    dataset = Dataset.from_file(corpus)
    if engine == "ours":
        from hf_tlm.retrieval.bm25.index import Index

        options = {"corpus_name": "b", "fingerprint": "b", "analyzer": settings_of(stopwords).analyzer, "progress": False}
        warm_up(folder)
        work = lambda: Index.build(folder, dataset, **options)  # noqa: E731
    else:
        bm25s_index(WARM, stopwords)
        work = lambda: bm25s_index(dataset["text"][:], stopwords)  # noqa: E731
    with Memory() as memory:
        taken = seconds(work)
    shutil.rmtree(folder, ignore_errors=True)
    return {"seconds": taken, "peak": memory.peak, "anonymous": memory.anonymous}


def measure_memory(*, data, corpus, folder, stopwords, top_k, num_queries, batch) -> dict:
    texts = query_texts(data, num_queries)
    index = our_index(corpus, folder, stopwords)
    our_search(index, texts[:2], 10, num_threads=1)
    with Memory() as memory:
        before = memory.anonymous
        taken = seconds(lambda: [None for _ in _stream(index, texts, top_k, batch)])
    size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
    return {"seconds": taken, "peak": memory.peak, "anonymous": memory.anonymous, "before": before, "index": size}


def _stream(index, texts, top_k, batch):
    from hf_tlm.retrieval.bm25.tokenize import tokenize_texts

    settings, tokenized = settings_of(index.analyzer.stopwords), tokenize_texts(texts, index.analyzer)
    return index.search(tokenized, top_k, settings=settings, num_threads=1, query_batch_size=batch)


def make_index(*, corpus, folder, stopwords) -> int:
    return len(our_index(corpus, folder, stopwords))


def measure_whole(*, data, corpus, folder, stopwords, top_k, num_queries, shards) -> dict:
    """Measure retrieval from passages to the texts of the union, with `shards` local processes or, for None, one index."""
    import numpy as np
    from datasets import Dataset, disable_progress_bars

    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval.bm25.index import Index
    from hf_tlm.retrieval.hits import HitUnion

    disable_progress_bars()
    dataset, settings, texts = Dataset.from_file(corpus), settings_of(stopwords), query_texts(data, num_queries)
    shutil.rmtree(folder, ignore_errors=True)
    if shards:
        from hf_tlm.retrieval.sharded.sharded import retrieve_sharded

        passages = load_corpus(dataset, id_column="id")
        passages.to_dataset()
        begin = time.perf_counter()
        hits = retrieve_sharded(texts, passages, top_k, settings, work_dir=folder, num_shards=shards, workers=shards)
        result = {"seconds": time.perf_counter() - begin, "union": len(hits.passages)}
        digest = (hits.passages["id"][:], hits.columns["rank"].tolist(), hits.columns["score"].tolist())
    else:
        warm_up(folder)
        begin = time.perf_counter()
        options = {"corpus_name": "b", "fingerprint": "b", "analyzer": settings.analyzer, "progress": False}
        index = Index.build(folder, dataset, **options)
        built = time.perf_counter() - begin
        union = HitUnion(len(index))
        for query, found in enumerate(our_search(index, texts, top_k)):
            union.add(query, *found)
        rows = np.flatnonzero(union.n_queries)
        ids = np.array(dataset.select(rows)["id"][:])
        order = np.lexsort((np.argsort(np.argsort(ids)), -union.best_score[rows], union.best_rank[rows]))
        chosen = dataset.select(rows[order], keep_in_memory=True)["text"][:]
        result = {"seconds": time.perf_counter() - begin, "union": len(chosen), "build": built}
        digest = (ids[order].tolist(), union.best_rank[rows[order]].tolist(), union.best_score[rows[order]].tolist())
    shutil.rmtree(folder, ignore_errors=True)
    return {**result, "digest": hashlib.sha256(repr(digest).encode()).hexdigest()}


def measure_terms(*, data, corpus, folder, stopwords, top_ks, num_queries, limits, repeats) -> list[dict]:
    index, texts = our_index(corpus, folder, stopwords), query_texts(data, num_queries)
    rows = []
    for top_k in (k for k in top_ks if k < len(index)):
        rows += terms_rows(index, texts, top_k, [None, *limits], repeats)
    return rows


def terms_rows(index, texts: list[str], top_k: int, limits: list, repeats: int) -> list[dict]:
    import numpy as np

    unions, times = {}, {}
    for repeat in range(repeats):
        for limit in limits:
            options = {"num_threads": 1, "max_query_terms": limit}
            if repeat == 0:
                unions[limit] = np.unique(np.concatenate([hits[0] for hits in our_search(index, texts, top_k, **options)]))
            times.setdefault(limit, []).append(seconds(lambda o=options: our_search(index, texts, top_k, **o)))
    return [
        {
            "terms": limit or "all",
            "queries/s": len(texts) / median(times[limit]),
            "speed-up": median(np.divide(times[None], times[limit])),
            "union": len(unions[limit]),
            "kept": len(np.intersect1d(unions[limit], unions[None])) / len(unions[None]),
            "passages": len(index),
            "K": top_k,
        }
        for limit in limits
    ]
