"""Shuffled orders that need no memory are permutations, differ by key, and look random."""

import numpy as np
import pytest

from hf_tlm.data import interleave
from hf_tlm.data.interleave import Shuffled


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 1000, 70_001])
@pytest.mark.parametrize("in_memory", [0, 10**6])
def test_order_is_a_permutation(size, in_memory, monkeypatch):
    monkeypatch.setattr(interleave, "IN_MEMORY", in_memory)
    order = Shuffled(size, [1, 2])
    whole = order[0:size]
    assert sorted(whole.tolist()) == list(range(size))
    # Any slice, also from a new object.
    parts = [Shuffled(size, [1, 2])[start : start + 7] for start in range(0, min(size, 50), 7)]
    assert np.concatenate(parts).tolist() == whole[: sum(map(len, parts))].tolist()
    assert order[size - 1 : size + 5].tolist() == [whole[-1]]


def test_keys_give_other_orders():
    orders = [Shuffled(100_000, key)[0:100_000] for key in ([0, 0], [0, 1], [1, 0])]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        # Two random orders agree at one position on average.
        assert (orders[first] == orders[second]).sum() < 10


@pytest.mark.parametrize("size", [100_000, (1 << 17) + 1])
def test_order_looks_random(size):
    """Neighbours are uncorrelated, any part is spread evenly, and displacements are those of random orders."""
    order = Shuffled(size, [7])[0:size]
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(size)
    assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 5 / np.sqrt(size)
    for part in np.split(order[: size // 64 * 64], 64):
        counts = np.histogram(part, 16, (0, size))[0]
        expected = len(part) / 16
        # Chi-square with 15 degrees of freedom; one in 10^6 exceeds 56 by chance.
        assert ((counts - expected) ** 2 / expected).sum() < 56
    assert np.abs(order - np.arange(size)).mean() == pytest.approx(size / 3, rel=0.01)
    parity = (order[:-1] & 1) * 2 + (order[1:] & 1)
    counts = np.bincount(parity, minlength=4)
    assert ((counts - len(parity) / 4) ** 2 / (len(parity) / 4)).sum() < 31


@pytest.mark.parametrize("size", [3, 5])
def test_small_sizes_reach_every_order(size, monkeypatch):
    monkeypatch.setattr(interleave, "IN_MEMORY", 0)
    found = {tuple(Shuffled(size, [key])[0:size].tolist()) for key in range(3000)}
    assert len(found) == {3: 6, 5: 120}[size]
