import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import load_metric

NAMES = ["pearson", "spearman"]


def compute(name, predictions, references):
    return load_metric(name).compute(predictions=predictions, references=references)[name]


def test_by_hand():
    # Deviations -1, 0, 1 and -4/3, -1/3, 5/3: their product 3, squared lengths 2 and 14/3.
    assert compute("pearson", [1, 2, 3], [0, 1, 3]) == pytest.approx(3 / math.sqrt(2 * 14 / 3))
    assert compute("spearman", [1, 2, 3], [0, 1, 3]) == pytest.approx(1)
    assert compute("spearman", [1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert compute("pearson", [1, 2], [4, 3]) == pytest.approx(-1)


@pytest.mark.parametrize("seed", range(3))
def test_against_scipy_with_ties(seed):
    generator = np.random.default_rng(seed)
    references = generator.integers(0, 6, 80) / 2
    predictions = (references + generator.normal(0, 1, 80)).round(1)
    assert compute("pearson", predictions, references) == pytest.approx(pearsonr(predictions, references).statistic)
    assert compute("spearman", predictions, references) == pytest.approx(spearmanr(predictions, references).statistic)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_of_extreme_numbers(name, scale):
    assert compute(name, [scale, 2 * scale, 3 * scale], [1, 2, 3]) == pytest.approx(1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["predictions", "references"])
def test_a_constant_side_is_zero_with_a_warning(name, side, caplog):
    values = {"predictions": [1.0, 2.0], "references": [2.0, 3.0], side: [2.5, 2.5]}
    assert compute(name, **values) == 0
    assert f"{name} is not defined and counts as 0: the {side} are all 2.5" in caplog.text
    assert compute(name, [1.0], [2.0]) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite(name, bad):
    with pytest.raises(HfTlmError, match="1 of 2 predictions are not finite"):
        compute(name, [1.0, bad], [1.0, 2.0])
