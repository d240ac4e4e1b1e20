"""Pairs, cosines, alignment, uniformity and t-SNE against the definitions, one pair at a time."""

import math
from itertools import combinations

import numpy as np
import pytest

from hf_tlm.analysis import (
    AnalysisError,
    alignment,
    cosine_similarities,
    project,
    random_pairs,
    same_class_pairs,
    silhouette,
    uniformity,
)
from hf_tlm.analysis import encoders as module

VECTORS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.array([2, 0, 1, 1, 0, 4, 2, 2])


def pairs_of(found):
    return [tuple(sorted(pair)) for pair in found.tolist()]


def test_alignment_and_uniformity_are_the_formulas(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 7)
    unit = [vector / np.linalg.norm(vector) for vector in VECTORS.astype(np.float64)]
    similar, every = [(0, 1), (5, 2), (39, 3)], list(combinations(range(40), 2))
    squared = {(x, y): sum((unit[x] - unit[y]) ** 2) for x, y in similar + every}
    expected = sum(squared[pair] for pair in similar) / 3
    assert alignment(cosine_similarities(VECTORS, np.array(similar))) == pytest.approx(expected, rel=1e-9)
    found = cosine_similarities(VECTORS, random_pairs(40, 10_000))
    expected = math.log(sum(math.exp(-2 * squared[pair]) for pair in every) / len(every))
    assert uniformity(found) == pytest.approx(expected, rel=1e-9)
    assert cosine_similarities(1e3 * VECTORS, random_pairs(40, 10_000)) == pytest.approx(found, abs=1e-6)


def test_spaces_whose_numbers_are_known():
    vectors = np.array([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, 0.0]])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4]])
    assert cosine_similarities(vectors, pairs).tolist() == [1, 0, -1, 0]
    assert [alignment(np.full(3, cosine)) for cosine in (1, 0, -1)] == [0, 2, 4]
    assert [uniformity(np.full(3, cosine)) for cosine in (1, 0, -1)] == pytest.approx([0, -4, -8])
    assert cosine_similarities(vectors, np.zeros((0, 2), np.int64)).shape == (0,)


def test_all_pairs_where_they_are_few():
    assert sorted(pairs_of(random_pairs(9, 36))) == list(combinations(range(9), 2))
    expected = [(x, y) for x, y in combinations(range(8), 2) if LABELS[x] == LABELS[y]]
    assert sorted(pairs_of(same_class_pairs(LABELS, 100))) == expected and len(expected) == 5
    assert same_class_pairs(np.arange(4), 100).shape == random_pairs(1, 5).shape == random_pairs(0, 5).shape == (0, 2)


def test_every_pair_is_drawn_equally_often():
    for draw, possible in (
        (lambda seed: random_pairs(6, 14, seed=seed), combinations(range(6), 2)),
        (lambda seed: same_class_pairs(LABELS, 4, seed=seed), pairs_of(same_class_pairs(LABELS, 9))),
    ):
        drawn = [pair for seed in range(600) for pair in pairs_of(draw(seed))]
        counts = {pair: drawn.count(pair) for pair in possible}
        assert sum(counts.values()) == len(drawn)
        expected = len(drawn) / len(counts)
        assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in counts.values()), counts
        assert (draw(1) == draw(1)).all() and (draw(1) != draw(2)).any()


def test_silhouette_is_the_definition(monkeypatch):
    labels = np.arange(40) % 3
    distances = np.array([1 - cosine_similarities(VECTORS, np.stack([np.full(40, i), np.arange(40)], 1)) for i in range(40)])
    found = []
    for i in range(40):
        own = distances[i][(labels == labels[i]) & (np.arange(40) != i)].mean()
        other = min(distances[i][labels == label].mean() for label in range(3) if label != labels[i])
        found.append((other - own) / max(other, own))
    assert silhouette(VECTORS, labels) == pytest.approx(np.mean(found), abs=1e-5)
    monkeypatch.setattr(module, "SILHOUETTE_TEXTS", 20)
    assert silhouette(VECTORS, labels) != pytest.approx(np.mean(found), abs=1e-5)


def test_projection_keeps_clusters_and_is_the_same_each_time():
    centers = 20 * np.eye(3, 60)
    vectors = np.concatenate([center + np.random.default_rng(i).normal(size=(15, 60)) for i, center in enumerate(centers)])
    found = project(vectors, seed=3)
    assert found.shape == (45, 2) and found.dtype == np.float32
    assert (project(vectors, seed=3) == found).all()
    for i in range(45):
        nearest = np.argsort(np.linalg.norm(found - found[i], axis=1))[1:6]
        assert (nearest // 15 == i // 15).all()
    assert (project(vectors, perplexity=5) != found).any()


@pytest.mark.parametrize("shape", [(3, 60), (4, 1), (5, 2)])
def test_projection_of_a_few(shape):
    found = project(np.random.default_rng(1).normal(size=shape), perplexity=30)
    assert found.shape == (shape[0], 2) and np.isfinite(found).all()


def test_what_cannot_be_projected():
    with pytest.raises(AnalysisError, match="3 texts or more; received 2"):
        project(VECTORS[:2])
    with pytest.raises(AnalysisError, match="all 5 are the same"):
        project(np.ones((5, 4)))
