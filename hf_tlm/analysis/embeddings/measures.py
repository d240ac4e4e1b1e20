r"""How a space is filled: pairs of texts, their cosine similarities, and what these come to.

    vectors = embed_texts(model, tokenizer, texts)
    similar = cosine_similarities(vectors, same_class_pairs(labels, 10_000))
    random = cosine_similarities(vectors, random_pairs(len(texts), 10_000))
    alignment(similar), uniformity(random)

Alignment and uniformity are Wang and Isola's (ICML 2020, section 4.1, with alpha = 2 and t = 2), of vectors of length 1:

.. math:: \ell_\mathrm{align} = \mathrm{E}_{\text{similar } x, y} \|x - y\|^2, \qquad
          \ell_\mathrm{uniform} = \log \mathrm{E}_{\text{random } x, y}\, e^{-2 \|x - y\|^2}

Smaller is better for both. As \|x - y\|^2 = 2 - 2 cos(x, y), both are functions of cosines.

Shapes: N texts, H hidden size, P pairs.
"""

from __future__ import annotations

import numpy as np

from hf_tlm.analysis.figures import check_installed

# Pairs whose vectors are gathered together: 100 MB at H = 768.
CHUNK = 1 << 14
SILHOUETTE_TEXTS = 5000


def random_pairs(count: int, limit: int, *, seed: int = 0) -> np.ndarray:
    """Return pairs of two different ones of `count` texts, int64 [P, 2].

    All pairs if they are at most `limit`, else as many draws with replacement.
    """
    return same_class_pairs(np.zeros(count, np.int64), limit, seed=seed)


def same_class_pairs(labels: np.ndarray, limit: int, *, seed: int = 0) -> np.ndarray:
    """Return pairs of two different texts of one class, int64 [P, 2].

    All pairs if they are at most `limit`, else as many draws with replacement, every pair with the same probability.

    Args:
        labels: int64 [N].
    """
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(np.asarray(labels)[order], return_index=True, return_counts=True)
    of_class = sizes * (sizes - 1) // 2
    if of_class.sum() <= limit:
        places = [start + np.stack(np.triu_indices(size, 1), axis=1) for start, size in zip(starts, sizes, strict=True)]
        return order[np.concatenate(places)] if places else np.zeros((0, 2), np.int64)
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(sizes), limit, p=of_class / of_class.sum())
    first, second = rng.integers(sizes[classes]), rng.integers(sizes[classes] - 1)
    second += second >= first
    return order[starts[classes, None] + np.stack([first, second], axis=1)]


def cosine_similarities(vectors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """float64 [P], from -1 to 1.

    Args:
        vectors: [N, H], of any length; that of length 0 has the similarity 0 to all.
        pairs: int64 [P, 2], of rows of `vectors`.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    found = np.empty(len(pairs))
    for start in range(0, len(pairs), CHUNK):
        first, second = pairs[start : start + CHUNK].T
        products = np.einsum("ph,ph->p", vectors[first], vectors[second], dtype=np.float64)
        scale = lengths[first] * lengths[second]
        found[start : start + CHUNK] = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
    return found.clip(-1, 1)


def alignment(cosines: np.ndarray) -> float:
    """From 0, all similar pairs are at the same place, to 4.

    Args:
        cosines: [P], of similar pairs.
    """
    return float(np.mean(2 - 2 * cosines))


def uniformity(cosines: np.ndarray) -> float:
    """From -8 to 0, all texts are at the same place; in many dimensions evenly spread ones come to nearly -4.

    Args:
        cosines: [P], of random pairs.
    """
    return float(np.log(np.mean(np.exp(-2 * (2 - 2 * cosines)))))


def silhouette(vectors: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> float:
    """How much nearer texts are to their own class than to the next one, by cosine (Rousseeuw 1987): from -1 to 1, apart.

    Args:
        vectors: [N, H]; labels: int64 [N], of two classes or more, and of fewer than N. Of many texts 5000 are drawn.
    """
    check_installed("sklearn")
    from sklearn.metrics import silhouette_score

    drawn = np.random.default_rng(seed).permutation(len(labels))[:SILHOUETTE_TEXTS]
    return float(silhouette_score(vectors[drawn], labels[drawn], metric="cosine"))
