"""Vectors of texts for any family and batch size; pooling, layers, pairs, cosines and t-SNE follow their definitions."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2Model,
    T5Config,
    T5Model,
    XLNetConfig,
    XLNetModel,
    set_seed,
)

from hf_tlm.analysis import (
    AnalysisError,
    alignment,
    cosine_similarities,
    embed_texts,
    load_encoder,
    project,
    random_pairs,
    same_class_pairs,
    silhouette,
    uniformity,
)
from hf_tlm.analysis import encoders as module
from hf_tlm.errors import HfTlmError
from hf_tlm.models import add_lora
from hf_tlm.models.adapters import export_adapter
from hf_tlm.runs import CheckpointArguments
from support.toys import TINY_CONFIGS, sentences

TEXTS = [row["text"] for row in sentences(30, seed=4)]


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    """Return a function from a family and a head to the folder of a tiny checkpoint."""

    def save(model, name):
        folder = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    def make(family, head=AutoModelForMaskedLM):
        set_seed(0)
        config = {**TINY_CONFIGS[family], "vocab_size": len(tokenizer)}
        return save(head.from_config(AutoConfig.for_model(family, **config)), family)

    make.save = save
    return make


def embed(folder, texts=TEXTS, pairs=None, **options):
    model, tokenizer = load_encoder(folder, max_length=32)
    return embed_texts(model, tokenizer, texts, pairs, **{"max_length": 32, **options})


def hidden_states(folder, texts, layer=-1):
    """Yield the body's hidden states [S, H] of each text, without padding."""
    model, tokenizer = load_encoder(folder, max_length=32)
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=32)
        with torch.inference_mode():
            yield model(**inputs, output_hidden_states=True).hidden_states[layer][0].numpy()


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_vectors_do_not_depend_on_batches_and_padding(family, saved):
    folder = saved(family)
    cls = np.stack([hidden[0] for hidden in hidden_states(folder, TEXTS)])
    mean = np.stack([hidden.mean(axis=0) for hidden in hidden_states(folder, TEXTS)])
    assert embed(folder, batch_size=1) == pytest.approx(cls, abs=1e-5)
    assert embed(folder, batch_size=8) == pytest.approx(cls, abs=1e-5)
    assert embed(folder, batch_size=8, pooling="mean") == pytest.approx(mean, abs=1e-5)
    assert np.abs(cls - mean).max() > 1e-2 and embed(folder).dtype == np.float32


def test_order_of_texts_is_kept_across_chunks(saved, monkeypatch):
    folder = saved("bert")
    whole = embed(folder)
    monkeypatch.setattr("hf_tlm.analysis.encoders.CHUNK_BATCHES", 2)
    assert embed(folder, batch_size=3) == pytest.approx(whole, abs=1e-5)


def test_layer_is_chosen(saved):
    folder = saved("electra")
    for layer in (0, 1, 2, -2):
        expected = np.stack([hidden.mean(axis=0) for hidden in hidden_states(folder, TEXTS[:5], layer)])
        assert embed(folder, TEXTS[:5], layer=layer, pooling="mean") == pytest.approx(expected, abs=1e-5)
    assert (embed(folder, layer=2) == embed(folder)).all()
    with pytest.raises(AnalysisError, match="layer must be from 0 to 2, or -1 for the last; received 3"):
        embed(folder, layer=3)


def test_pairs_are_one_input(saved):
    folder = saved("bert")
    model, tokenizer = load_encoder(folder, max_length=32)
    inputs = tokenizer("the gene", "the cell", return_tensors="pt")
    assert inputs["token_type_ids"].max() == 1
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state[0, 0].numpy()
    assert embed(folder, ["a drug", "the gene"], ["an acid", "the cell"])[1] == pytest.approx(expected, abs=1e-5)


def test_classifier_is_embedded_by_its_body(saved):
    """As in a TLM run; the head does not matter."""
    folder = saved("bert", AutoModelForSequenceClassification)
    body = AutoModelForSequenceClassification.from_pretrained(folder).base_model.eval()
    model, tokenizer = load_encoder(folder, max_length=32)
    with torch.inference_mode():
        expected = body(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state[0, 0].numpy()
    assert embed(folder)[0] == pytest.approx(expected, abs=1e-5)
    assert not model.training


def test_adapter_is_applied_to_its_base_model(saved, tokenizer, tmp_path):
    base = saved("bert", AutoModelForSequenceClassification)
    lora = CheckpointArguments(model_name_or_path=base, use_peft=True)
    adapted = add_lora(AutoModelForSequenceClassification.from_pretrained(base), lora, base)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    folder = export_adapter(adapted, tokenizer, tmp_path / "adapter")
    with torch.inference_mode():
        inputs = tokenizer(TEXTS[0], return_tensors="pt")
        expected = adapted.eval().base_model.model.bert(**inputs).last_hidden_state[0, 0].numpy()
    vector = embed(str(folder))[0]
    assert vector == pytest.approx(expected, abs=1e-4) and np.abs(vector - embed(base)[0]).max() > 1e-2


def test_encoder_of_an_encoder_decoder_is_used(saved, tokenizer):
    size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    set_seed(0)
    model = T5Model(T5Config(vocab_size=len(tokenizer), **size)).eval()
    folder = saved.save(model, "t5")
    with torch.inference_mode():
        ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
        expected = model.encoder(ids).last_hidden_state[0].mean(dim=0).numpy()
    assert embed(folder, pooling="mean")[0] == pytest.approx(expected, abs=1e-5)


def test_cls_token_may_be_the_last(saved, tokenizer):
    """XLNet puts [CLS] last, and pads on the left."""
    model = XLNetModel(XLNetConfig(vocab_size=len(tokenizer), d_model=16, n_layer=2, n_head=2, d_inner=32)).eval()
    model, tokenizer = load_encoder(saved.save(model, "xlnet"), max_length=32)
    tokenizer.padding_side, tokenizer.cls_token, tokenizer.sep_token = "left", tokenizer.sep_token, tokenizer.cls_token
    with torch.inference_mode():
        inputs = tokenizer(TEXTS[0], return_tensors="pt")
        expected = model(**inputs).last_hidden_state[0, -1].numpy()
    longer = f"{TEXTS[0]} and the {TEXTS[0]}"
    assert embed_texts(model, tokenizer, [TEXTS[0], longer], max_length=32)[0] == pytest.approx(expected, abs=1e-5)


def test_cls_vector_of_a_decoder_is_refused(saved, tokenizer):
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=40, n_embd=16, n_layer=2, n_head=2)
    folder = saved.save(GPT2Model(config), "gpt2")
    with pytest.raises(AnalysisError, match=r"same \[CLS\] vector: the model is a decoder"):
        embed(folder)
    assert np.ptp(embed(folder, pooling="mean"), axis=0).max() > 1e-3
    assert len(embed(folder, ["a gene", "a gene"])) == 2


def test_blank_text_unknown_pooling_or_long_input_is_refused(saved, tmp_path):
    folder = saved("bert")
    for texts in (["a gene", None], ["a gene", " "]):
        with pytest.raises(AnalysisError, match="Text 1 is null or blank"):
            embed(folder, texts)
    with pytest.raises(AnalysisError, match="pooling must be one of cls, mean; received 'max'"):
        embed(folder, pooling="max")
    with pytest.raises(AnalysisError, match="40 positions, fewer than 128. Set --max_length to at most 40"):
        load_encoder(folder)
    with pytest.raises(HfTlmError, match="nothing"):
        load_encoder(str(tmp_path / "nothing"))


def test_damaged_weights_are_refused(saved):
    broken = AutoModel.from_pretrained(saved("bert"))
    broken.encoder.layer[1].output.dense.weight.data[0, 0] = torch.nan
    with pytest.raises(AnalysisError, match="not finite"):
        embed(saved.save(broken, "broken"))
    shallow = AutoModel.from_pretrained(saved("bert"))
    shallow.encoder.layer = shallow.encoder.layer[:1]
    with pytest.raises(AnalysisError, match=r"lacks weights of its body \(encoder.layer.1"):
        embed(saved.save(shallow, "shallow"))


VECTORS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.array([2, 0, 1, 1, 0, 4, 2, 2])


def pairs_of(found):
    return [tuple(sorted(pair)) for pair in found.tolist()]


def test_alignment_and_uniformity_follow_their_formulas(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 7)
    unit = [vector / np.linalg.norm(vector) for vector in VECTORS.astype(np.float64)]
    similar, every = [(0, 1), (5, 2), (39, 3)], list(combinations(range(40), 2))
    squared = {(x, y): sum((unit[x] - unit[y]) ** 2) for x, y in similar + every}
    expected = sum(squared[pair] for pair in similar) / 3
    assert alignment(cosine_similarities(VECTORS, np.array(similar))) == pytest.approx(expected, rel=1e-9)
    cosines = cosine_similarities(VECTORS, random_pairs(40, 10_000))
    expected = math.log(sum(math.exp(-2 * squared[pair]) for pair in every) / len(every))
    assert uniformity(cosines) == pytest.approx(expected, rel=1e-9)
    assert cosine_similarities(1e3 * VECTORS, random_pairs(40, 10_000)) == pytest.approx(cosines, abs=1e-6)


def test_cosines_alignment_and_uniformity_of_known_vectors():
    vectors = np.array([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, 0.0]])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4]])
    assert cosine_similarities(vectors, pairs).tolist() == [1, 0, -1, 0]
    assert [alignment(np.full(3, cosine)) for cosine in (1, 0, -1)] == [0, 2, 4]
    assert [uniformity(np.full(3, cosine)) for cosine in (1, 0, -1)] == pytest.approx([0, -4, -8])
    assert cosine_similarities(vectors, np.zeros((0, 2), np.int64)).shape == (0,)


def test_all_pairs_are_drawn_if_they_are_few():
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


def test_silhouette_follows_its_definition(monkeypatch):
    labels = np.arange(40) % 3
    distances = np.array([1 - cosine_similarities(VECTORS, np.stack([np.full(40, i), np.arange(40)], 1)) for i in range(40)])
    coefficients = []
    for i in range(40):
        within = distances[i][(labels == labels[i]) & (np.arange(40) != i)].mean()
        other = min(distances[i][labels == label].mean() for label in range(3) if label != labels[i])
        coefficients.append((other - within) / max(other, within))
    assert silhouette(VECTORS, labels) == pytest.approx(np.mean(coefficients), abs=1e-5)
    monkeypatch.setattr(module, "SILHOUETTE_TEXTS", 20)
    assert silhouette(VECTORS, labels) != pytest.approx(np.mean(coefficients), abs=1e-5)


def test_projection_keeps_clusters_and_is_reproducible():
    centers = 20 * np.eye(3, 60)
    vectors = np.concatenate([center + np.random.default_rng(i).normal(size=(15, 60)) for i, center in enumerate(centers)])
    points = project(vectors, seed=3)
    assert points.shape == (45, 2) and points.dtype == np.float32
    assert (project(vectors, seed=3) == points).all()
    for i in range(45):
        nearest = np.argsort(np.linalg.norm(points - points[i], axis=1))[1:6]
        assert (nearest // 15 == i // 15).all()
    assert (project(vectors, perplexity=5) != points).any()


@pytest.mark.parametrize("shape", [(3, 60), (4, 1), (5, 2)])
def test_projection_of_few_texts(shape):
    points = project(np.random.default_rng(1).normal(size=shape), perplexity=30)
    assert points.shape == (shape[0], 2) and np.isfinite(points).all()


def test_too_few_or_equal_vectors_are_not_projected():
    with pytest.raises(AnalysisError, match="at least 3 texts; received 2"):
        project(VECTORS[:2])
    with pytest.raises(AnalysisError, match="all 5 are the same"):
        project(np.ones((5, 4)))
