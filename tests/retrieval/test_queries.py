import socket

import nltk
import pytest

from hf_tlm.retrieval import RetrievalError, build_queries
from hf_tlm.retrieval.texts import example_texts


def test_text_mode_keeps_every_text_in_order():
    assert build_queries(["B a.", "", "c"]) == ["B a.", "", "c"]


def test_pairs_are_joined_and_labels_are_not_read(make_task):
    pairs = make_task({"a": "first", "b": "second"}, pairs=["one", "two"])
    assert example_texts(pairs.train) == ["first one", "second two"]
    assert example_texts(pairs.train.remove_columns("label")) == ["first one", "second two"]


def test_rake_ranks_phrases_by_degree_over_frequency():
    text = "Compatibility of systems of linear constraints. The systems are minimal!"
    # Degree / frequency: linear 2, constraints 2, the others 1; equal scores in reverse alphabetical order.
    expected = "linear constraints systems systems minimal compatibility"
    assert build_queries([text], "rake") == [expected]
    assert build_queries([text], "rake", num_phrases=1) == ["linear constraints"]


def test_rake_keeps_twenty_phrases():
    text = ". ".join(f"word{number}" for number in range(30))
    assert len(build_queries([text], "rake")[0].split()) == 20


def test_rake_cuts_at_any_punctuation_and_at_line_ends():
    assert set(build_queries(["red apples\u2014green pears (ripe).\nblue sky"], "rake")[0].split()) == {
        "red", "apples", "green", "pears", "ripe", "blue", "sky"
    }  # fmt: skip
    assert build_queries(["red apples\u2014green pears"], "rake", num_phrases=1) == ["red apples"]


def test_rake_keeps_marks_within_words_where_they_are_parts_of_them():
    text = "हिन्दी भाषा, किताब."
    assert set(build_queries([text], "rake", script="marks")[0].split()) == {"हिन्दी", "भाषा", "किताब"}
    assert build_queries([text], "rake", script="unspaced") == build_queries([text], "rake")  # As it was before.


def test_rake_of_stop_words_alone_is_an_empty_query():
    assert build_queries(["it is not the", "", "?!"], "rake") == ["", "", ""]


def test_rake_needs_no_download(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("no data may be asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(nltk.data, "find", refuse)
    monkeypatch.setattr(nltk, "download", refuse)
    assert build_queries(["Deep models need much text."], "rake")


@pytest.mark.parametrize("arguments", [{"mode": "title"}, {"mode": "rake", "num_phrases": 0}])
def test_bad_arguments(arguments):
    with pytest.raises(RetrievalError, match="rake|num_phrases"):
        build_queries(["a"], **arguments)
