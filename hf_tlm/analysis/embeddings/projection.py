"""Vectors in two dimensions (van der Maaten and Hinton, JMLR 2008)."""

from __future__ import annotations

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import check_installed

# Components that t-SNE sees, as its authors do before it: they hold the neighbours, and distances cost less.
COMPONENTS = 50
LEAST_TEXTS = 3


def project(vectors: np.ndarray, *, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """float32 [N, 2]: t-SNE of the first 50 principal components, the same for the same seed.

    Neither distances between clusters nor their sizes mean anything, and axes have no unit.

    Args:
        vectors: [N, H].
        perplexity: about how many neighbours a text has. At most (N - 1) / 3: t-SNE looks at three times as many.

    Raises:
        AnalysisError: fewer than three vectors, or all are the same; scikit-learn is not installed.
    """
    check_installed("sklearn")
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(vectors) < LEAST_TEXTS:
        raise AnalysisError(f"t-SNE needs {LEAST_TEXTS} texts or more; received {len(vectors)}.")
    if (vectors == vectors[0]).all():
        raise AnalysisError(f"t-SNE needs vectors that differ; all {len(vectors)} are the same.")
    size = min(COMPONENTS, *vectors.shape)
    reduced = PCA(size, svd_solver="full", random_state=seed).fit_transform(vectors.astype(np.float64))
    if reduced.shape[1] < 2:
        reduced = np.pad(reduced, [(0, 0), (0, 1)])
    tsne = TSNE(perplexity=min(perplexity, (len(vectors) - 1) / 3), init="pca", learning_rate="auto", random_state=seed)
    return tsne.fit_transform(reduced).astype(np.float32)
