import numpy as np

from hf_tlm.data.masking import mask_tokens, uniforms

MASK, V = 4, 1000


def corrupt(ids, draws, seed=0, probability=0.15, maskable=None):
    """Of texts of one length, [B, S]."""
    maskable = np.ones_like(ids, dtype=bool) if maskable is None else maskable
    tokens = [values.ravel() for values in (ids, maskable, *tokens_of(draws, ids.shape[1]))]
    pair = mask_tokens(*tokens, seed=seed, mlm_probability=probability, mask_token_id=MASK, vocab_size=V)
    return tuple(values.reshape(ids.shape) for values in pair)


def tokens_of(draws, length):
    """Draw and position of every token, [B, S]."""
    return np.repeat(draws[:, None], length, axis=1), np.tile(np.arange(length), (len(draws), 1))


def table(seed, draws, length, stream):
    return uniforms(seed, *tokens_of(draws, length), stream=stream)


def test_uniform():
    values = table(0, np.arange(300), 200, stream=0)
    histogram, _ = np.histogram(values, bins=10, range=(0, 1))
    assert values.min() >= 0 and values.max() < 1
    assert abs(histogram / values.size - 0.1).max() < 0.005
    # Neighbouring positions, texts, tables and seeds are uncorrelated.
    for other in (
        np.roll(values, 1, axis=0),
        np.roll(values, 1, axis=1),
        table(0, np.arange(300), 200, stream=1),
        table(1, np.arange(300), 200, stream=0),
    ):
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 0.015


def test_shares_are_15_80_10_10():
    ids = np.random.default_rng(0).integers(5, V, (500, 120))
    corrupted, labels = corrupt(ids, np.arange(500))
    chosen = labels != -100
    assert abs(chosen.mean() - 0.15) < 0.005
    masked, kept = (corrupted == MASK) & chosen, (corrupted == ids) & chosen
    assert abs(masked.sum() / chosen.sum() - 0.8) < 0.015
    assert abs(kept.sum() / chosen.sum() - 0.1) < 0.015
    assert (corrupted == ids)[~chosen].all()
    assert (labels[chosen] == ids[chosen]).all()
    replaced = corrupted[chosen & ~masked & ~kept]
    assert replaced.min() < 50 and replaced.max() > V - 50


def test_special_tokens_are_never_chosen():
    ids = np.random.default_rng(0).integers(5, V, (50, 40))
    maskable = np.random.default_rng(1).random(ids.shape) < 0.5
    _, labels = corrupt(ids, np.arange(50), probability=0.9, maskable=maskable)
    assert (labels[~maskable] == -100).all() and (labels[maskable] != -100).mean() > 0.8


def test_a_text_is_masked_alike_in_every_batch_and_differently_in_every_visit():
    ids = np.random.default_rng(0).integers(5, V, (8, 30))
    draws = np.array([3, 1, 4, 1000003, 59, 26, 53, 58])
    whole, _ = corrupt(ids, draws)
    for i in range(8):
        alone, _ = corrupt(ids[i : i + 1, :], draws[i : i + 1])
        padded, _ = corrupt(np.pad(ids[i : i + 1], ((0, 0), (0, 9))), draws[i : i + 1])
        assert (alone[0] == whole[i]).all() and (padded[0, :30] == whole[i]).all()
    other_visit, _ = corrupt(ids, draws + 77)
    other_seed, _ = corrupt(ids, draws, seed=1)
    assert (other_visit != whole).any(axis=1).all() and (other_seed != whole).any(axis=1).all()
