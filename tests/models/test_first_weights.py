"""Initial weights: heads attend to neighbours, outputs follow word frequencies, and products are equally large at any
width."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, set_seed

from hf_tlm.models import ModelError, TlmModel
from hf_tlm.models.initialization import (
    OFFSETS,
    attention_weights,
    copying_heads,
    embedding_map_of,
    frequencies,
    layers_of,
    near_identity,
    position_codes,
    position_dims,
    scale_to_width,
    start_at_neighbors,
    token_counts,
    unigram_bias,
)
from hf_tlm.models.initialization import _rotation as rotation
from support.toys import TINY_CONFIGS

V = 2000
SIZE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
COMMON = {"vocab_size": V, "max_position_embeddings": 514, "pad_token_id": 0}
LEARNED = {
    "bert": SIZE,
    "roberta": SIZE,
    "distilbert": {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256},
    "electra": {**SIZE, "embedding_size": 128},
    "electra, wider": {**SIZE, "embedding_size": 96},
    "electra, narrower": {**SIZE, "embedding_size": 192},
    "albert": {**SIZE, "embedding_size": 96},
    "cocolm": SIZE,
    "cocolm, no bias": {**SIZE, "relative_attention_mode": None},
    "bert, one head": {**SIZE, "num_attention_heads": 1},
}


def config_of(name, **changes):
    config = AutoConfig.for_model(name.split(",")[0], **{**COMMON, **LEARNED[name], **changes})
    config._attn_implementation = "eager"
    return config


def model_of(config):
    set_seed(0)
    model = TlmModel.from_config(config).eval()
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table.copy_(nn.functional.normalize(torch.randn_like(table), dim=1))
    return model


@pytest.mark.parametrize("name", LEARNED)
def test_heads_attend_to_neighbouring_tokens(name):
    """Before training nearly all attention of the first layer's heads is at the stated offsets, in texts of 500 tokens."""
    model = model_of(config_of(name))
    found = start_at_neighbors(model.base_model)
    heads = attention_weights(layers_of(model.base_model)[0], model.config.num_attention_heads).heads
    assert found == list(OFFSETS[:heads])
    ids = torch.randint(5, V, (1, 500), generator=torch.Generator().manual_seed(1))
    attention = model.base_model(ids, attention_mask=torch.ones_like(ids), output_attentions=True).attentions[0][0]
    positions = torch.arange(4, 496)
    for head, offsets in enumerate(found):
        at_offsets = sum(attention[head, positions, positions + offset] for offset in offsets)
        assert at_offsets.mean() > 0.75 and at_offsets.min() > 0.4, (head, at_offsets.mean(), at_offsets.min())
        # With several offsets, each has a part.
        assert all(attention[head, positions, positions + offset].mean() > 0.1 for offset in offsets)


@pytest.mark.parametrize("spectral", [False, True])
def test_position_codes_are_scaled_to_the_tokens_of_the_texts(spectral):
    """With random embeddings, where token types are as large; and with texts that use a fifth of the vocabulary."""
    set_seed(0)
    model = TlmModel.from_config(config_of("bert")).eval()
    seen = np.arange(5, V // 5)
    if spectral:
        with torch.no_grad():
            model.get_input_embeddings().weight[5 : V // 5] *= 5
    start_at_neighbors(model.base_model, seen if spectral else None)
    ids = torch.from_numpy(np.random.default_rng(1).choice(seen, (1, 100)))
    attention = model.base_model(ids, output_attentions=True).attentions[0][0]
    positions = torch.arange(4, 96)
    for head, (offset,) in enumerate(OFFSETS[:2]):
        assert attention[head, positions, positions + offset].mean() > 0.9


@pytest.mark.parametrize("name", ["bert", "electra, wider", "electra, narrower", "albert"])
def test_neighbour_head_copies_what_it_reads(name):
    """W_o W_v is a projection of the head's rank, without any direction of a position."""
    model = model_of(config_of(name))
    start_at_neighbors(model.base_model)
    weights = attention_weights(layers_of(model.base_model)[0], 4)
    codes = embedding_map_of(model.base_model)[:, -position_dims(model.get_input_embeddings().weight.shape[1]) :]
    for head in range(4):
        rows = slice(32 * head, 32 * head + 32)
        product = (weights.output[:, rows] @ weights.value[rows]).detach()
        torch.testing.assert_close(product @ product, product, atol=1e-5, rtol=0)
        torch.testing.assert_close(product, product.T, atol=1e-5, rtol=0)
        assert torch.trace(product).item() == pytest.approx(32, abs=1e-3)
        assert (product @ codes).abs().max() < 1e-5


def test_rotated_position_codes_equal_their_neighbours():
    codes = position_codes(40, 16)
    np.testing.assert_allclose(codes[5:30] @ rotation((3,), 16).T, codes[8:33], atol=1e-12)
    mean = (codes[3:28] + codes[1:26]) / 2
    np.testing.assert_allclose(codes[5:30] @ rotation((-2, -4), 16).T, mean, atol=1e-12)
    assert (np.linalg.norm(codes, axis=1) ** 2 == pytest.approx(8)) and frequencies(8).max() < math.pi
    assert [position_dims(size) for size in (8, 128, 200, 768)] == [2, 32, 50, 64]


def test_position_dimensions_are_used_only_by_positions():
    model = model_of(config_of("roberta"))
    embeddings = model.base_model.embeddings
    with torch.no_grad():
        words = embeddings.word_embeddings.weight
        words[:, 96:] = 0.0
        words.mul_(3.0 / words.norm(dim=1, keepdim=True).clamp(min=1e-9))
    start_at_neighbors(model.base_model)
    assert not embeddings.word_embeddings.weight[:, 96:].any() and not embeddings.token_type_embeddings.weight[:, 96:].any()
    positions = embeddings.position_embeddings.weight
    assert not positions[:, :96].any() and not positions[:1].any(), "RoBERTa counts from pad_token_id + 1"
    # As large as the numbers of a token with norm 3 in 96 dimensions.
    torch.testing.assert_close(positions[1:].square().mean(), torch.tensor(9 / 96 / 4), rtol=0.02, atol=0)


def test_models_without_learned_positions_are_refused():
    model = TlmModel.from_config(AutoConfig.for_model("modernbert", **TINY_CONFIGS["modernbert"]))
    with pytest.raises(ModelError, match="learned positions; a modernbert body has other positions"):
        start_at_neighbors(model.base_model)


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_copying_heads_of_a_layer_sum_to_the_identity(model_type):
    """Together all heads of a layer pass on what they read, and each head a part of it."""
    set_seed(0)
    body = TlmModel.from_config(AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])).base_model
    before = [layer.state_dict() for layer in layers_of(body)]
    copying_heads(body)
    assert len(before) == (1 if model_type == "albert" else 2)
    for layer in layers_of(body):
        weights = attention_weights(layer, body.config.num_attention_heads)
        torch.testing.assert_close(weights.output @ weights.value, torch.eye(16), atol=1e-5, rtol=0)
        one = weights.output[:, :8] @ weights.value[:8]
        torch.testing.assert_close(one @ one, one, atol=1e-5, rtol=0)


def zipf(count, seed=0):
    p = 1.0 / np.arange(1, V - 4)
    return np.random.default_rng(seed).choice(np.arange(5, V), size=count, p=p / p.sum())


@pytest.mark.parametrize("name", [*LEARNED, "modernbert"])
def test_first_loss_is_the_entropy_of_the_frequencies(name):
    """Otherwise a masked LM needs its first hundred steps to learn them."""
    changes = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    if name == "modernbert":
        config = AutoConfig.for_model("modernbert", **COMMON, **SIZE, **changes)
    else:
        config = config_of(name)
    set_seed(0)
    model = TlmModel.from_config(config).eval()
    counts = np.bincount(zipf(200_000), minlength=V)
    before = model.family.decoder(model.mlm_head).weight.detach().clone()
    ids = torch.from_numpy(zipf(64 * 60, seed=1)).reshape(64, 60)
    labels = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.15, ids, -100)
    batch = {"input_ids": torch.where(labels != -100, 4, ids), "attention_mask": torch.ones_like(ids), "mlm_labels": labels}

    def loss():
        with torch.no_grad():
            return model(**batch).mlm_loss.item() / (labels != -100).sum().item()

    assert loss() > 7.4
    unigram_bias(model.family.decoder(model.mlm_head), counts, ignore=range(5))
    # The entropy estimated from these few hundred masked tokens: the mean of its terms over them.
    entropy = -np.log((counts + 1) / (counts + 1).sum())[labels[labels != -100].numpy()].mean()
    assert loss() == pytest.approx(entropy, abs=0.05)
    assert torch.equal(model.family.decoder(model.mlm_head).weight, before)


def test_token_counts_set_the_bias():
    counts = token_counts([[1, 2, 2], [], [2, 4]], 6)
    assert counts.tolist() == [0, 1, 3, 0, 1, 0]
    decoder = nn.Linear(3, 6)
    unigram_bias(decoder, counts, ignore=[1])
    expected = torch.tensor([1.0, 1.0, 4.0, 1.0, 2.0, 1.0])
    torch.testing.assert_close(decoder.bias.detach(), (expected / expected.sum()).log())
    for wrong, message in ((nn.Linear(3, 6, bias=False), "has no bias"), (nn.Linear(3, 5), r"has 5\.")):
        with pytest.raises(ModelError, match=message):
            unigram_bias(wrong, counts)


@pytest.mark.parametrize("name", ["bert", "electra, wider", "electra, narrower"])
def test_transform_is_near_the_identity(name):
    """The head passes nearly the original embedding of a hidden state to the output embedding."""
    model = model_of(config_of(name))
    carried = embedding_map_of(model.base_model)
    if name != "bert":
        start_at_neighbors(model.base_model)
        carried = embedding_map_of(model.base_model)
    dense = next(m for m in model.mlm_head.modules() if isinstance(m, nn.Linear) and m.out_features != V)
    near_identity(dense, carried)
    vectors = torch.randn(50, carried.shape[1])
    back = model.family.transform(model.mlm_head, vectors @ carried.T)
    similarity = nn.functional.cosine_similarity(back, vectors, dim=1).mean()
    assert similarity > (0.65 if name.endswith("narrower") else 0.85)


@pytest.mark.parametrize("width", [64, 768, 1024])
def test_products_are_equally_large_at_any_width(width):
    config = AutoConfig.for_model(
        "bert", hidden_size=width, num_hidden_layers=1, num_attention_heads=4, vocab_size=50, intermediate_size=width
    )
    scale_to_width(config)
    set_seed(0)
    dense = TlmModel.from_config(config).base_model.encoder.layer[0].attention.self.query
    product = dense(torch.randn(100, width)).std().item()
    assert product == pytest.approx(0.02 * math.sqrt(768), rel=0.05)
