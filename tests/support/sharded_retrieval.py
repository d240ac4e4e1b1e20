"""Corpora of random words for sharded retrieval, and the reference result of a single index over everything."""

import json

import numpy as np

from hf_tlm.corpora import load_corpus
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.hits import HitUnion

WORDS = [f"word{i}" for i in range(60)]
SOURCES = ("biology", "news", "wikipedia")


def rows_of(texts, ids=None):
    ids = [f"p{(i * 7919) % 100_003}" for i in range(len(texts))] if ids is None else ids
    return {"id": ids, "text": texts, "source": [SOURCES[i % 3] for i in range(len(texts))]}


def random_texts(number, seed=0, longest=30):
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(WORDS) + 1)
    weights /= weights.sum()
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest), p=weights)) for _ in range(number)]


def write_parts(folder, texts, parts):
    """Write a corpus of jsonl files of very different sizes, and load it."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = rows_of(texts)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    cuts = [int(len(rows) * (part / parts) ** 2) for part in range(parts + 1)]
    for part in range(parts):
        lines = [json.dumps(row) + "\n" for row in rows[cuts[part] : cuts[part + 1]]]
        (folder / f"part{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    return load_corpus(str(folder), id_column="id")


def single(queries, corpus, top_k, bm25, folder, **options):
    """Search a single index over everything.

    Returns (ids in order, [rank, score, n_queries, best_query], id -> text).
    """
    passages = corpus.to_dataset(folder / "single")
    index = Index.build(
        folder / "single" / "index",
        passages,
        corpus_name="single",
        fingerprint=corpus.fingerprint,
        analyzer=bm25.analyzer,
        progress=False,
    )
    union = HitUnion(len(passages))
    hits = index.search(tokenize_texts(queries, bm25.analyzer), top_k, settings=bm25, **options)
    for query, (documents, scores) in enumerate(hits):
        union.add(query, documents, scores)
    ids = passages["id"][:]
    chosen = union.order(np.argsort(np.argsort(np.array(ids))))
    texts = dict(zip(ids, passages["text"][:], strict=True))
    columns = (union.best_rank, union.best_score, union.n_queries, union.best_query)
    return [ids[row] for row in chosen], [column[chosen].tolist() for column in columns], texts


def check_same(result, expected):
    ids, columns, texts = expected
    assert result.passages["id"][:] == ids
    assert [result.columns[name].tolist() for name in ("rank", "score", "n_queries", "best_query")] == columns
    assert result.passages["text"][:] == [texts[identifier] for identifier in ids]
    assert result.passages.column_names == ["id", "text", "source"]
