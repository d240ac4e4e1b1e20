import numpy as np
import pytest
import scipy.sparse as sp
import torch
from transformers import AutoConfig, set_seed

from hf_tlm.models import ModelError, TlmModel, spectral
from hf_tlm.models.spectral import cooccurrence, ppmi, spectral_embeddings
from support.toys import TINY_CONFIGS

V = 30


def texts(count=40, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, V, generator.integers(0, 15)).tolist() for _ in range(count)]


def plain_counts(texts, window, ignore=()):
    counts = np.zeros((V, V))
    for text in texts:
        for i, left in enumerate(text):
            for j in range(i + 1, min(len(text), i + window + 1)):
                if left not in ignore and text[j] not in ignore:
                    counts[left, text[j]] += 1 / (j - i)
                    counts[text[j], left] += 1 / (j - i)
    return counts


@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("ignore", [(), (0, 7)])
def test_cooccurrence_counts_equal_a_double_loop(window, ignore):
    counts, forgotten = cooccurrence(texts(), V, window=window, ignore=ignore)
    np.testing.assert_allclose(counts.toarray(), plain_counts(texts(), window, ignore), rtol=1e-12)
    assert forgotten == 0.0


def test_chunk_size_does_not_change_the_counts(monkeypatch):
    whole, _ = cooccurrence(texts(), V)
    monkeypatch.setattr(spectral, "_CHUNK_TOKENS", 17)
    parts, _ = cooccurrence(iter(texts()), V)
    np.testing.assert_allclose(whole.toarray(), parts.toarray(), rtol=1e-12)


def test_max_nonzeros_drops_the_rarest_and_reports_the_share(monkeypatch):
    monkeypatch.setattr(spectral, "_CHUNK_TOKENS", 50)
    full, _ = cooccurrence(texts(300), V)
    counts, forgotten = cooccurrence(texts(300), V, max_nonzeros=400)
    # Half of the limit, in both directions, and what the last chunk added.
    assert counts.nnz <= 2 * 400 < full.nnz
    assert 0 < forgotten < 1
    np.testing.assert_allclose(forgotten, 1 - counts.sum() / full.sum(), rtol=1e-9)


def test_max_nonzeros_holds_with_equal_counts(monkeypatch):
    monkeypatch.setattr(spectral, "_CHUNK_TOKENS", 20)
    # Every pair occurs once: all counts are equal.
    pairs = [[i, j] for i in range(V) for j in range(i + 1, V)]
    counts, forgotten = cooccurrence(pairs, V, max_nonzeros=50)
    assert counts.nnz <= 2 * 50 and forgotten > 0.5


def test_ppmi_equals_the_formula():
    counts = plain_counts(texts(), 5)
    joint = counts / counts.sum()
    context = counts.sum(axis=0) ** 0.75
    context /= context.sum()
    with np.errstate(divide="ignore"):
        expected = np.maximum(np.log(joint / (joint.sum(axis=1, keepdims=True) * context)), 0)
    np.testing.assert_allclose(ppmi(sp.csr_matrix(counts)).toarray(), expected, rtol=1e-6)


def test_embeddings_are_the_svd_and_reproducible():
    # Three groups of tokens: three singular values stand out, so the randomised SVD is exact to rounding.
    generator = np.random.default_rng(0)
    rows = [(generator.integers(0, 10, 12) + 10 * (i % 3)).tolist() for i in range(600)]
    one, two = (spectral_embeddings(rows, V, 3, scale=0.5) for _ in range(2))
    assert np.array_equal(one.vectors, two.vectors)
    np.testing.assert_allclose(np.linalg.norm(one.vectors, axis=1), 0.5, rtol=1e-5)
    left, singular, _ = np.linalg.svd(ppmi(cooccurrence(rows, V)[0]).toarray())
    exact = left[:, :3] * np.sqrt(singular[:3])
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    # Columns of an SVD are defined up to sign: compare the inner products of the tokens.
    np.testing.assert_allclose(one.vectors @ one.vectors.T * 4, exact @ exact.T, atol=1e-3)


def test_tokens_that_occur_together_are_similar():
    """Tokens 0-9 occur together, and so do tokens 10-19: the two groups are separated."""
    generator = np.random.default_rng(0)
    rows = [(generator.integers(0, 10, 12) + 10 * (i % 2)).tolist() for i in range(200)]
    vectors = spectral_embeddings(rows, V, 2).vectors
    similarity = vectors @ vectors.T
    assert similarity[:10, :10].mean() > 0.9 and abs(similarity[:10, 10:20]).mean() < 0.1
    assert not vectors[20:].any()


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_embeddings_are_written_to_the_model(model_type):
    set_seed(0)
    model = TlmModel.from_config(AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type]))
    weight = model.get_input_embeddings().weight
    before = weight.detach().clone()
    embeddings = spectral_embeddings(texts(), 120, weight.shape[1], ignore=(0, 1))
    embeddings.write_to(model)
    assert model.get_input_embeddings().weight is weight
    known = embeddings.vectors.any(axis=1)
    assert 20 < known.sum() <= 28 and embeddings.report["tokens_covered"] == known.sum()
    assert torch.equal(weight[~torch.from_numpy(known)], before[~torch.from_numpy(known)])
    assert torch.equal(weight[torch.from_numpy(known)], torch.from_numpy(embeddings.vectors[known]))
    tied = [n for n, p in model.named_parameters(remove_duplicate=False) if p is weight]
    assert len(tied) == 2


def test_more_dimensions_than_tokens_are_possible():
    embeddings = spectral_embeddings([[0, 1, 2, 0, 1]] * 3, 4, 10)
    assert embeddings.vectors.shape == (4, 10) and np.isfinite(embeddings.vectors).all()


def test_invalid_inputs_are_refused():
    with pytest.raises(ModelError, match="at least two tokens"):
        spectral_embeddings([[1], []], V, 4)
    with pytest.raises(ModelError, match="window must be at least 1"):
        cooccurrence(texts(), V, window=0)
    with pytest.raises(ModelError, match="Token id 99 is outside"):
        cooccurrence([[1, 99]], V)
    model = TlmModel.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))
    with pytest.raises(ModelError, match="do not fit"):
        spectral_embeddings(texts(), V, 16).write_to(model)
