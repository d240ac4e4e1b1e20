"""The real general corpus: see the README of the data folder."""

import time

import pytest

from hf_tlm.corpora import load_corpus

ROWS = {"biomedical": 81876, "books": 40763, "cs_nlp": 57594, "news_reviews": 51332, "tech_misc": 40896}
ROWS["wikipedia"] = 136693


@pytest.mark.slow
def test_iteration_yields_every_row_once_within_a_minute(data_dir):
    corpus = load_corpus(str(data_dir / "corpus"))
    start = time.perf_counter()
    counts, ids = dict.fromkeys(ROWS, 0), set()
    for row in corpus:
        counts[row["id"].partition(".")[0]] += 1
        ids.add(row["id"])
    seconds = time.perf_counter() - start
    assert counts == ROWS
    assert len(ids) == sum(ROWS.values()) == 409_154
    assert corpus.skipped == 0
    assert seconds < 60, "a few seconds on an idle machine"


def test_one_file_is_converted_to_a_dataset(data_dir, tmp_path):
    corpus = load_corpus(str(data_dir / "corpus" / "tech_misc.parquet"))
    dataset = corpus.to_dataset(tmp_path)
    assert len(dataset) == ROWS["tech_misc"]
    assert dataset[0] == next(iter(corpus))
    assert load_corpus(str(data_dir / "corpus" / "tech*")).to_dataset(tmp_path).cache_files == dataset.cache_files
