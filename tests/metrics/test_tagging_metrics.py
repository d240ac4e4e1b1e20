import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import load_metric
from hf_tlm.metrics.labels import spans


def accuracy(predictions, references):
    return load_metric("tag_accuracy").compute(predictions=predictions, references=references)["tag_accuracy"]


def span_f1(predictions, references):
    return load_metric("span_f1").compute(predictions=predictions, references=references)["span_f1"]


TRUTH = [["DT", "NN", "VBZ"], ["NNP"]]


def test_accuracy_is_over_words_not_sentences():
    assert accuracy(TRUTH, TRUTH) == 1
    assert accuracy([["DT", "NN", "VBZ"], ["NN"]], TRUTH) == 0.75


@pytest.mark.parametrize("nothing", [None, ""])
def test_words_without_a_prediction_or_with_an_unknown_tag_are_errors(nothing):
    assert accuracy([["DT", nothing, nothing], ["NNP"]], TRUTH) == 0.5
    assert accuracy([[nothing, nothing, nothing], [nothing]], TRUTH) == 0
    assert accuracy([[nothing, "NN"]], [[nothing, "NN"]]) == 0.5
    assert span_f1([["B-A", nothing]], [["B-A", nothing]]) == pytest.approx(2 / 3)


def test_lengths_must_agree():
    with pytest.raises(HfTlmError, match="sentence 1 has 1 reference tags and 2 predicted"):
        accuracy([["DT", "NN", "VBZ"], ["NNP", "NNP"]], TRUTH)
    with pytest.raises(HfTlmError, match="no words"):
        accuracy([[]], [[]])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "B-PER", "I-PER", "O"], [(1, 3, "PER")]),
        (["B-PER", "B-PER"], [(0, 1, "PER"), (1, 2, "PER")]),
        (["B-PER", "I-LOC", "I-LOC"], [(0, 1, "PER"), (1, 3, "LOC")]),
        (["I-PER", "O", "I-PER"], [(0, 1, "PER"), (2, 3, "PER")]),
        (["O", "O"], []),
        (["B-a-b"], [(0, 1, "a-b")]),
    ],
)
def test_spans(tags, expected):
    assert list(spans(tags)) == expected


def test_span_f1_by_hand():
    truth = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    # One of two predicted spans is right, of three: the other has the right words and the wrong type.
    assert span_f1([["B-PER", "I-PER", "O", "O"], ["B-PER", "O"]], truth) == pytest.approx(2 * 1 / (2 + 3))
    # A span that is cut short is wrong.
    assert span_f1([["B-PER", None, "O", "B-LOC"], ["B-LOC", "O"]], truth) == pytest.approx(2 * 2 / (3 + 3))
    assert span_f1(truth, truth) == 1


def test_the_same_span_in_another_sentence_is_another_span():
    assert span_f1([["B-A"], ["O"]], [["O"], ["B-A"]]) == 0


def test_no_spans_is_zero_with_a_warning(caplog):
    assert span_f1([["O"]], [["O"]]) == 0
    assert "neither predictions nor references have a span" in caplog.text


def test_tags_that_are_not_iob2():
    with pytest.raises(HfTlmError, match="received 'NN'"):
        span_f1([["NN"]], [["O"]])
