import os

import pytest

from hf_tlm.corpora import Corpus, CorpusError
from hf_tlm.errors import HfTlmError

DOCUMENTS = [
    {"id": "a", "text": "One two. Three.", "source": "s"},
    {"id": "b", "text": None, "source": "s"},
    {"id": "c", "text": " \n", "source": "s"},
    {"id": "d", "text": "Four.", "source": "t"},
]


def corpus_of(documents, fingerprint="f" * 16, **options):
    return Corpus("c", fingerprint, lambda: iter(documents), **options)


def test_documents_without_text_are_skipped_and_counted_in_every_pass():
    corpus = corpus_of(DOCUMENTS)
    for _ in range(2):
        assert [row["id"] for row in corpus] == ["a", "d"]
        assert corpus.skipped == 2


def test_passages_carry_the_documents_id_and_a_number():
    assert list(corpus_of(DOCUMENTS, max_words=2)) == [
        {"id": "a#0", "text": "One two.", "source": "s"},
        {"id": "a#1", "text": "Three.", "source": "s"},
        {"id": "d#0", "text": "Four.", "source": "t"},
    ]


def test_to_dataset_has_the_rows_of_iteration(tmp_path):
    documents = [{"id": str(i), "text": f"text {i}", "source": "s"} for i in range(2500)]
    corpus = corpus_of(documents)
    dataset = corpus.to_dataset(tmp_path)
    assert dataset.column_names == ["id", "text", "source"]
    assert dataset.to_list() == list(corpus)
    assert dataset.cache_files  # It is memory-mapped.


def test_to_dataset_reads_the_corpus_once_per_fingerprint(tmp_path):
    passes = []

    def documents():
        passes.append(1)
        return iter(DOCUMENTS)

    for fingerprint in ("1" * 16, "1" * 16, "2" * 16):
        assert len(Corpus("c", fingerprint, documents).to_dataset(tmp_path)) == 2
    assert len(passes) == 2


def test_to_dataset_counts_skipped_documents(tmp_path):
    corpus = corpus_of(DOCUMENTS)
    corpus.to_dataset(tmp_path)
    assert corpus.skipped == 2


def test_corpus_without_passages_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"c has no passages \(rows without text: 2\)"):
        corpus_of(DOCUMENTS[1:3]).to_dataset(tmp_path)


def test_error_while_reading_is_raised_and_leaves_no_partial_cache(tmp_path):
    def documents():
        yield DOCUMENTS[0]
        raise CorpusError("Cannot read shard-7")

    with pytest.raises(HfTlmError, match="Cannot read shard-7"):
        Corpus("c", "e" * 16, documents).to_dataset(tmp_path)
    assert os.listdir(tmp_path) == []
