"""BM25 indexes of a few hundred made-up passages, search results of some queries in them, and the bytes of their files."""

from datasets import Dataset

from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.texts import Analyzer

QUERIES = ["alpha beta", "w3 w5 w7 w3", "needle", "alpha w1 w2 gamma", "absent", "", "late"]


def rows(first, last):
    texts = [
        f"alpha w{i % 11} beta w{i % 7} gamma{' needle' * (i % 50 == 7)}{' late' * (i > 150)}" for i in range(first, last)
    ]
    return Dataset.from_dict({"id": [f"p{(i * 37) % 1009}" for i in range(first, last)], "text": texts})


def build(path, first=0, last=200, **options):
    options = {"corpus_name": "toy", "fingerprint": "f", "analyzer": Analyzer(), "progress": False, **options}
    return Index.build(path, rows(first, last), **options)


def results(index, top_k=20):
    hits = index.search(tokenize_texts(QUERIES, index.analyzer), top_k)
    ids = index.ids.to_pylist()
    return [([ids[document] for document in documents], scores.tolist()) for documents, scores in hits]


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}
