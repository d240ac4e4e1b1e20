"""The paired bootstrap: scores of rows equal the metrics, and intervals equal those of a plain loop."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import METRICS, Lead, paired_bootstrap, scorer
from hf_tlm.metrics.scores import METRICS_OF_ROWS
from hf_tlm.tasks import KIND_METRICS


def random_rows(metric, size, seed):
    """Return references and predictions that agree in half of the rows."""
    random = np.random.default_rng(seed)
    if metric in KIND_METRICS["regression"]:
        truth = random.integers(0, 6, size) / 2  # With ties.
        return truth, truth + random.normal(size=size)
    truth, other = random.integers(0, 2 if metric == "f1" else 4, (2, size))
    return truth, np.where(random.random(size) < 0.5, truth, other)


def test_metrics_of_rows_are_those_of_classification_and_regression():
    assert set(METRICS_OF_ROWS) == {*KIND_METRICS["classification"], *KIND_METRICS["regression"]}


@pytest.mark.parametrize("metric", METRICS_OF_ROWS)
@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_score_of_sampled_rows_equals_the_metric(metric, size):
    """Small samples lack some classes, or have constant sides."""
    random = np.random.default_rng(size)
    for seed in range(20):
        references, predictions = random_rows(metric, size, seed)
        rows = random.integers(size, size=size)
        expected = METRICS[metric]().compute(predictions=predictions[rows], references=references[rows])[metric]
        assert scorer(metric, references, predictions)(rows) == pytest.approx(expected, abs=1e-12)


def test_interval_equals_a_plain_loop():
    truth, *predictions = np.random.default_rng(0).integers(0, 3, (4, 50))
    predictions = [np.where(np.arange(50) % (3 + at) == 0, predicted, truth) for at, predicted in enumerate(predictions)]

    def score(predicted, rows):
        return f1_score(truth[rows], predicted[rows], average="macro")

    random, leads = np.random.default_rng(5), []
    for _ in range(400):
        rows = random.integers(50, size=50)
        leads.append((score(predictions[0], rows) + score(predictions[1], rows)) / 2 - score(predictions[2], rows))
    scorers = [scorer("macro_f1", truth, predicted) for predicted in predictions]
    found = paired_bootstrap(scorers[:2], scorers[2:], 50, resamples=400, seed=5)
    all_rows = np.arange(50)
    assert found.difference == pytest.approx(
        (score(predictions[0], all_rows) + score(predictions[1], all_rows)) / 2 - score(predictions[2], all_rows)
    )
    assert (found.low, found.high) == pytest.approx((np.percentile(leads, 2.5), np.percentile(leads, 97.5)))
    assert found.low < found.difference < found.high
    assert found == paired_bootstrap(scorers[:2], scorers[2:], 50, resamples=400, seed=5)
    other = paired_bootstrap(scorers[2:], scorers[:2], 50, resamples=400, seed=5)
    assert list(found.reversed.to_dict().values()) == pytest.approx(list(other.to_dict().values()))


def test_equally_good_models_rarely_have_a_sure_lead():
    """About nineteen of twenty samples of texts have intervals that include zero."""
    random, sure = np.random.default_rng(1), 0
    for _ in range(100):
        truth = random.integers(0, 2, 100)
        sides = [np.where(random.random(100) < 0.7, truth, 1 - truth) for _ in range(2)]
        scorers = [[scorer("accuracy", truth, side)] for side in sides]
        sure += paired_bootstrap(*scorers, 100, resamples=200).sure
    assert 1 <= sure <= 12


def test_lead_is_sure_when_its_interval_excludes_zero():
    truth = np.arange(60) % 3
    right, wrong = (scorer("macro_f1", truth, one) for one in (truth, (truth + 1) % 3))
    assert paired_bootstrap([right], [right], 60) == Lead(0.0, 0.0, 0.0)
    assert not Lead(0.0, 0.0, 0.0).sure
    found = paired_bootstrap([right], [wrong], 60)
    assert found.sure and found.low == found.high == 1.0
    assert Lead(0.02, -0.015, 0.05).interval == "95% interval -1.50 to 5.00" and not Lead(0.02, -0.015, 0.05).sure
    assert Lead(-0.02, -0.05, -0.01).sure
    assert Lead(-0.4, -0.6, 0.0).reversed.interval == "95% interval 0.00 to 60.00"


def test_invalid_inputs_are_refused():
    with pytest.raises(HfTlmError, match="one of macro_f1, .*received 'span_f1'"):
        scorer("span_f1", [0], [0])
    with pytest.raises(HfTlmError, match="received 2 predictions and 3 references"):
        scorer("accuracy", [0, 1, 0], [0, 1])
    with pytest.raises(HfTlmError, match="received class 2"):
        scorer("f1", [0, 2], [0, 1])
    one = scorer("accuracy", [0], [0])
    for given in (([], [one], 1), ([one], [], 1), ([one], [one], 0)):
        with pytest.raises(HfTlmError, match="at least one model on each side"):
            paired_bootstrap(*given)
    with pytest.raises(HfTlmError, match="0 resamples"):
        paired_bootstrap([one], [one], 1, resamples=0)


@pytest.mark.parametrize("side", [np.array([0, 1]), [0, 1], scorer("accuracy", [0, 1], [0, 1])])
def test_sides_that_are_no_list_of_scorers_are_refused(side):
    with pytest.raises(HfTlmError, match=r"^second: expected a list with a scorer per model.*Pass \[scorer\(metric"):
        paired_bootstrap([scorer("accuracy", [0, 1], [0, 1])], side, 2)


@pytest.mark.parametrize("wrong", ["up", -100, 0.5])
def test_classes_that_are_no_indices_are_refused(wrong):
    with pytest.raises(
        HfTlmError, match="references: expected indices of classes, .* The label2id of a task maps names to indices"
    ):
        scorer("macro_f1", [wrong], [0])
