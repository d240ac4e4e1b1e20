"""Which passages are selected, compared with loops that follow the definition literally."""

import numpy as np
import pytest

from hf_tlm.influence import InfluenceError, select_rows, selection
from hf_tlm.influence.selection import best_rows


def naive_ranks(scores, size):
    """Return ranks[t][g], from 1, of the groups that have a score."""
    passages, task_batches = scores.shape
    groups = [range(first, min(first + size, passages)) for first in range(0, passages, size)]
    ranks = []
    for t in range(task_batches):
        sums = {}
        for g, members in enumerate(groups):
            values = [float(scores[row, t]) for row in members if not np.isnan(scores[row, t])]
            if values:
                sums[g] = sum(values)
        ranks.append({g: rank for rank, g in enumerate(sorted(sums, key=lambda g: (-sums[g], g)), 1)})
    return groups, ranks


def naive_top_k(scores, size, top_k):
    groups, ranks = naive_ranks(scores, size)
    first = -(-top_k // size)
    chosen = {g for ranks_of_batch in ranks for g, rank in ranks_of_batch.items() if rank <= first}
    return [row for g in sorted(chosen) for row in groups[g] if not np.isnan(scores[row]).any()]


def naive_exact(scores, size, number, classes):
    groups, ranks = naive_ranks(scores, size)
    queues = []
    for label in sorted(set(classes)):
        batches = [t for t, name in enumerate(classes) if name == label]
        mean = {g: np.nansum(scores[list(groups[g])][:, batches].astype(float)) / len(batches) for g in ranks[0]}
        best = {g: min(ranks[t][g] for t in batches) for g in ranks[0]}
        queues.append(sorted(ranks[0], key=lambda g: (best[g], -mean[g], g)))
    rows, used = [], set()
    while len(rows) < number:
        for queue in queues:
            g = next((g for g in queue if g not in used), None)
            if g is not None:
                used.add(g)
                rows += [row for row in groups[g] if not np.isnan(scores[row]).any()]
                rows = rows[:number]
    return sorted(rows)


@pytest.fixture(params=[0, 1, 2])
def scores(request):
    """Scores [37, 11] with ties and with passages without a score: two single ones, and a complete group of three."""
    rng = np.random.default_rng(request.param)
    values = rng.integers(-4, 5, (37, 11)) / 2 if request.param else rng.standard_normal((37, 11))
    values = values.astype(np.float32)
    values[[0, 8, 21, 22, 23]] = np.nan
    return values


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("top_k", [1, 2, 6, 37])
def test_top_k_is_the_union_over_task_batches(scores, size, top_k):
    found = select_rows(scores, corpus_batch_size=size, top_k=top_k)
    assert found.rows.tolist() == naive_top_k(scores, size, top_k)
    assert found.rank.max() <= -(-top_k // size) and found.unscored == 5


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("number", [1, 7, 20, 32])
@pytest.mark.parametrize("classes", [[0] * 11, [1, 0, 1, 1, 0, 1, 5, 1, 1, 1, 1]], ids=["", "by class"])
def test_num_passages_is_reached_exactly(scores, size, number, classes):
    found = select_rows(scores, corpus_batch_size=size, num_passages=number, classes=classes if any(classes) else None)
    assert found.rows.tolist() == naive_exact(scores, size, number, classes) and len(found.rows) == number


@pytest.mark.parametrize("size", [1, 3])
def test_rank_is_the_best_and_influence_the_mean(scores, size):
    found = select_rows(scores, corpus_batch_size=size, num_passages=32)
    _, ranks = naive_ranks(scores, size)
    assert found.rank.tolist() == [min(ranks_of_batch[row // size] for ranks_of_batch in ranks) for row in found.rows]
    np.testing.assert_allclose(found.influence, scores[found.rows].mean(axis=1), rtol=1e-6, atol=1e-7)
    assert (found.rank.dtype, found.influence.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("size", [1, 3])
def test_block_size_does_not_change_the_selection(scores, size, monkeypatch):
    whole = select_rows(scores, corpus_batch_size=size, num_passages=20, classes=np.arange(11) % 3)
    widths = []

    class Blocks:
        shape = scores.shape

        def __getitem__(self, key):
            widths.append(scores[key].shape[1])
            return scores[key]

    monkeypatch.setattr(selection, "BLOCK_VALUES", 2 * 37)
    parts = select_rows(Blocks(), corpus_batch_size=size, num_passages=20, classes=np.arange(11) % 3)
    assert widths == [2, 2, 2, 2, 2, 1]
    assert parts.rows.tolist() == whole.rows.tolist() and parts.rank.tolist() == whole.rank.tolist()
    np.testing.assert_allclose(parts.influence, whole.influence, rtol=1e-6)


def test_ties_are_broken_by_order():
    assert select_rows(np.zeros((6, 2), np.float32), num_passages=2).rows.tolist() == [0, 1]
    assert select_rows(np.zeros((6, 2), np.float32), top_k=3).rows.tolist() == [0, 1, 2]


def test_equal_ranks_are_ordered_by_mean_influence():
    """Passages 0 and 2 each rank first for one task batch."""
    scores = np.array([[5.0, 0.0], [1.0, 1.0], [0.0, 9.0]])
    assert select_rows(scores, num_passages=1).rows.tolist() == [2]


def test_groups_are_ranked_by_their_sum():
    """Passage 2 is the best one, but its group is not."""
    scores = np.array([[1.0], [1.0], [1.5], [-1.0], [0.1]])
    assert select_rows(scores, corpus_batch_size=2, num_passages=2).rows.tolist() == [0, 1]
    assert select_rows(scores, corpus_batch_size=2, top_k=2).rows.tolist() == [0, 1]
    assert select_rows(scores, corpus_batch_size=1, num_passages=1).rows.tolist() == [2]
    found = select_rows(scores, corpus_batch_size=2, num_passages=5)
    assert found.rank.tolist() == [1, 1, 2, 2, 3] and found.influence.tolist() == pytest.approx([1, 1, 1.5, -1, 0.1])


def test_incomplete_last_group_is_not_padded():
    """Passage 4 counts once, and its group of one ranks last."""
    scores = np.array([[1.0], [1.0], [1.5], [1.5], [1.9]])
    assert select_rows(scores, corpus_batch_size=2, top_k=2).rows.tolist() == [2, 3]


def test_classes_have_equal_shares():
    """Nine task batches of class 0 favour the first passages, and one of class 1 the last."""
    scores = np.zeros((40, 10))
    scores[:, :9] = np.random.default_rng(0).uniform(0, 1, (40, 9)) + 10 * (np.arange(40) < 20)[:, None]
    scores[:, 9] = np.arange(40)
    classes = [0] * 9 + [1]
    found = select_rows(scores, num_passages=10, classes=classes)
    assert (found.rows < 20).sum() == 5 and found.rows[5:].tolist() == [35, 36, 37, 38, 39]
    assert (select_rows(scores, num_passages=10).rows < 20).sum() == 9


def test_too_few_scored_passages_are_refused():
    scores = np.ones((5, 2))
    scores[3] = np.nan
    with pytest.raises(
        InfluenceError, match="5 passages were asked for, and 4 of 5 have a score; without a token that can be masked: 1"
    ):
        select_rows(scores, num_passages=5)
    with pytest.raises(InfluenceError, match="None of the 5 passages has a score"):
        select_rows(np.full((5, 2), np.nan), top_k=1)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_nonfinite_scores_are_left_out_and_counted(wild, caplog):
    scores = np.random.default_rng(0).normal(size=(6, 3))
    scores[2] = np.nan
    scores[4, 1] = wild
    finite = scores.copy()
    finite[4] = np.nan
    for options in ({"num_passages": 3}, {"num_passages": 4, "corpus_batch_size": 2}, {"top_k": 1}):
        found = select_rows(scores, **options)
        assert (found.unscored, found.not_finite) == (1, 1) and not {2, 4} & set(found.rows.tolist())
        if "corpus_batch_size" not in options:
            assert found.rows.tolist() == select_rows(finite, **options).rows.tolist()
    assert "1 of 6 passages have scores that are not finite" in caplog.text
    with pytest.raises(InfluenceError, match="without a token that can be masked: 1, with a score that is not finite: 1."):
        select_rows(scores, num_passages=5)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_groups_are_ranked_by_weighted_means(scores, size):
    """Compared with a loop over groups; a passage without a score has no weight in its group."""
    weights = np.random.default_rng(7).integers(1, 30, len(scores))
    weights[[0, 8, 21, 22, 23]] = 0
    weighted = np.full_like(scores, np.nan, np.float64)
    for first in range(0, len(scores), size):
        rows = [row for row in range(first, min(first + size, len(scores))) if not np.isnan(scores[row]).any()]
        if rows:
            mean = sum(float(weights[row]) * scores[row].astype(float) for row in rows) / sum(weights[row] for row in rows)
            weighted[rows] = mean / len(rows)  # So that the sum, which `naive_ranks` computes, is the mean.
    _, ranks = naive_ranks(weighted.round(12), size)
    found = select_rows(scores, corpus_batch_size=size, num_passages=32, weights=weights)
    best = {row: min(ranks_of_batch[row // size] for ranks_of_batch in ranks) for row in found.rows}
    assert np.mean([rank == best[row] for row, rank in zip(found.rows, found.rank, strict=True)]) > 0.99
    if size > 1:
        assert found.rank.tolist() != select_rows(scores, corpus_batch_size=size, num_passages=32).rank.tolist()


def naive_best(values, size, classes):
    """Row after row: each class in turn contributes its highest remaining value."""
    remaining = [row for row in range(len(values)) if not np.isnan(values[row])]
    chosen = []
    while len(chosen) < size:
        best = [max((row for row in remaining if classes[row] == label), key=lambda row: (values[row], -row)) for label in
                sorted({classes[row] for row in remaining})]  # fmt: skip
        best = sorted(best, key=lambda row: (-values[row], row))[: size - len(chosen)]
        chosen += best
        remaining = [row for row in remaining if row not in best]
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(20))
def test_best_rows_by_class_equal_a_loop(seed):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 8, 40) / 8.0
    values[generator.integers(0, 40, 5)] = np.nan
    classes = generator.choice(4, 40, p=[0.6, 0.3, 0.05, 0.05])
    for size in (1, 3, 17, int((~np.isnan(values)).sum())):
        assert best_rows(values, size, classes).tolist() == naive_best(values, size, classes)
        assert best_rows(values, size).tolist() == naive_best(values, size, np.zeros(40, int))
    with pytest.raises(InfluenceError, match="40 passages were asked for, and .. of 40 have a score"):
        best_rows(values, 40)


def test_scores_may_be_lists_and_exactly_one_size_is_needed():
    scores = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    listed, found = (select_rows(given, num_passages=2) for given in (scores.tolist(), scores))
    np.testing.assert_array_equal(listed.rows, found.rows)
    for wanted in ({}, {"top_k": 1, "num_passages": 2}):
        with pytest.raises(InfluenceError, match="^Pass either top_k or num_passages; received"):
            select_rows(scores, **wanted)
