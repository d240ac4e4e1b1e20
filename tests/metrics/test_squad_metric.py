import numpy as np
import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import best_threshold, load_metric
from hf_tlm.metrics.squad import answer_f1, exact_match, normalize_answer


def score(predictions, references):
    return load_metric("squad_f1").compute(predictions=predictions, references=references)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's\n hat.", "cats hat"),
        ("An apple, a day", "apple day"),
        ("Theatre of a nation", "theatre of nation"),
        ("U.S.A.", "usa"),
        ("«Été» – The 9½", "«été» – 9½"),
        ("the a an", ""),
        ("", ""),
    ],
)
def test_normalization_follows_the_official_script(text, normal):
    assert normalize_answer(text) == normal


def test_examples_in_the_documentation_of_evaluate():
    """The three examples of its `squad` metric: all correct, none, and two of three."""
    assert score(["1976"], [["1976"]]) == {"squad_f1": 1.0, "exact_match": 1.0}
    assert score(["1999"], [["1976"]]) == {"squad_f1": 0.0, "exact_match": 0.0}
    predictions = ["1976", "Beyonce", "climate change"]
    references = [["1976"], ["Beyoncé and Bruno Mars"], ["climate change"]]
    assert score(predictions, references) == {"squad_f1": pytest.approx(2 / 3), "exact_match": pytest.approx(2 / 3)}


def test_f1_by_hand():
    # "old big big house" with "big big big barn": "big" twice in common; 2 x 2 / (4 + 4).
    assert answer_f1("old big big house", ["the big, big, big barn"]) == pytest.approx(0.5)
    assert answer_f1("in the city of Paris", ["Paris"]) == pytest.approx(2 / 5)
    assert answer_f1("London", ["Paris"]) == 0


def test_best_of_several_references_counts():
    references = ["Santa Clara, California", "Levi's Stadium", "Levi's Stadium in Santa Clara"]
    assert exact_match("levis stadium", references) == 1
    assert answer_f1("Santa Clara stadium", references) == pytest.approx(2 * 3 / (3 + 5))
    assert exact_match("Santa Clara stadium", references) == 0


def test_perfect_predictions_score_one():
    references = [["a cat", "cat"], [], ["The"]]
    scores = score(["cat", "", "the"], references)
    assert len(scores) == 6 and set(scores.values()) == {1.0}


def test_empty_answers_score_the_share_of_unanswerable_questions():
    assert score(["", "", "", ""], [[], ["x"], ["y z"], []]) == {
        "squad_f1": 0.5,
        "exact_match": 0.5,
        "has_answer_f1": 0.0,
        "has_answer_exact_match": 0.0,
        "no_answer_f1": 1.0,
        "no_answer_exact_match": 1.0,
    }


def test_answer_to_an_unanswerable_question_is_wrong():
    scores = score(["perhaps", "the big barn"], [[], ["barn"]])
    assert scores["no_answer_f1"] == 0 and scores["has_answer_f1"] == pytest.approx(2 / 3)
    assert scores["squad_f1"] == pytest.approx(1 / 3)


def test_has_answer_scores_need_answerable_questions():
    assert set(score(["", "x"], [[], []])) == {"squad_f1", "exact_match", "no_answer_f1", "no_answer_exact_match"}


def test_threshold_by_hand():
    nulls = [-5.0, -1.0, 2.0, 3.0]
    predictions, references = ["a cat", "dog", "cow", "hen"], [["cat"], [], ["cow"], []]
    # Three of four are correct when only the first question is answered, and when all but the last are.
    assert best_threshold(nulls, predictions, references) == (-4.0, 0.75)
    assert best_threshold(nulls, predictions, [["cat"], ["dog"], ["cow"], []]) == (2.5, 1.0)
    assert best_threshold(nulls, ["x"] * 4, references) == (-6.0, 0.5)  # Best never to answer.
    assert best_threshold(nulls, predictions, [["cat"], ["dog"], ["cow"], ["hen"]]) == (4.0, 1.0)


def test_questions_with_equal_null_scores_are_answered_together():
    assert best_threshold([1.0, 1.0], ["a cat", "dog"], [["cat"], []]) == (0.0, 0.5)


@pytest.mark.parametrize("by", ["f1", "exact_match"])
@pytest.mark.parametrize("seed", range(4))
def test_threshold_equals_trying_all(seed, by):
    generator = np.random.default_rng(seed)
    nulls = generator.integers(-4, 5, 30).astype(float)
    predictions = generator.choice(["red", "red fox", "blue"], 30).tolist()
    references = [[["red"], ["red", "blue fox"], []][i] for i in generator.integers(0, 3, 30)]
    of = {"f1": answer_f1, "exact_match": exact_match}[by]

    def at(threshold):
        return np.mean([of(p if n <= threshold else "", r) for n, p, r in zip(nulls, predictions, references, strict=True)])

    threshold, found = best_threshold(nulls, predictions, references, score=by)
    assert found == pytest.approx(at(threshold))
    assert found == pytest.approx(max(at(candidate) for candidate in np.arange(-5, 6)))
    answered = nulls[nulls <= threshold].max(initial=-5)
    assert all(at(candidate) < found - 1e-9 for candidate in np.arange(-5, 6) if candidate < answered)


def test_threshold_is_robust_to_rounding():
    """On another machine or in another batch the last digits of a null score differ."""
    nulls, references = np.array([-5.0, -1.0, 2.0, 3.0]), [["cat"], ["dog"], ["cow"], []]
    threshold, _ = best_threshold(nulls, ["a cat", "dog", "cow", "hen"], references)
    for seed in range(4):
        rounded = nulls + 1e-5 * np.random.default_rng(seed).standard_normal(4)
        assert (rounded <= threshold).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    "nulls,answered,threshold",
    [
        ([1.0, np.nextafter(1.0, 2.0)], [True, False], 1.0),
        ([-5.0, -1.0, 1e6], [True, True, False], 0.0),  # 1e6 means no answer at all: no midpoint with it.
        ([1e300], [True], 1e300),
        ([-1e17], [False], np.nextafter(-1e17, -np.inf)),
        ([1.0, 1e17], [True, True], 1e17),
        ([-1.7e308, 1.7e308], [True, False], -1.7e308),
    ],
)
def test_threshold_between_extreme_or_adjacent_scores(nulls, answered, threshold):
    references = [["cat"] if one else [] for one in answered]
    assert best_threshold(nulls, ["cat"] * len(nulls), references) == (threshold, 1.0)
    assert [score <= threshold for score in nulls] == answered


def test_invalid_inputs_of_the_threshold_are_refused():
    with pytest.raises(HfTlmError, match="f1 or exact_match; received 'em'"):
        best_threshold([0.0], ["a"], [["a"]], score="em")
    with pytest.raises(HfTlmError, match="received 2, 1 and 1"):
        best_threshold([0.0, 1.0], ["a"], [["a"]])
    with pytest.raises(HfTlmError, match="1 of 2 null scores are not finite"):
        best_threshold([0.0, float("nan")], ["a", "b"], [["a"], []])
