"""A classifier that starts as a linear model: it gives that model's logits, and unsupported models are refused."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from transformers import AutoModelForSequenceClassification, ModernBertConfig, set_seed

from hf_tlm.models import ModelError
from hf_tlm.models.linear_start import LabelledTexts, check_linear_start, fit_linear_start

VOCABULARY, CLASSES, WIDTH = 200, 4, 64
SIZES = {"vocab_size": VOCABULARY, "classes": CLASSES, "hidden_size": WIDTH}


def texts(count: int, seed: int, classes: int = CLASSES) -> LabelledTexts:
    """Return random tokens, a third of them more likely in the text's class, between [CLS] 2 and [SEP] 3."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    rows = []
    for label in labels.tolist():
        length = random.integers(8, 40)
        own = random.integers(5, 5 + VOCABULARY // 2, size=length) // classes * classes + label
        any_ = random.integers(5, VOCABULARY, size=length)
        tokens = np.where(random.random(length) < 0.35, np.minimum(own, VOCABULARY - 1), any_)
        rows.append([2, *tokens.tolist(), 3])
    return LabelledTexts(rows, labels)


def classifier(classes: int = CLASSES, width: int = WIDTH, **changes):
    set_seed(0)
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * width,
        num_labels=classes,
        classifier_pooling="mean",
        **{"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3, **changes},
    )
    return AutoModelForSequenceClassification.from_config(config).eval()


@torch.no_grad()
def logits_of(model, rows) -> np.ndarray:
    return np.concatenate([model(input_ids=torch.tensor([row])).logits.double().numpy() for row in rows])


def shares(rows) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=VOCABULARY) / len(row) for row in rows])


def plain_logits(train: LabelledTexts, rows) -> np.ndarray:
    """Compute the linear model's logits: with idf of scikit-learn's `smooth_idf`, and ten times the shares."""
    seen, asked = shares(train.ids), shares(rows)
    idf = np.log((1 + len(seen)) / (1 + (seen > 0).sum(axis=0))) + 1
    found = LogisticRegression(C=1.0, max_iter=500).fit(10 * seen * idf, train.labels).decision_function(10 * asked * idf)
    found = np.stack([-found / 2, found / 2], axis=1) if found.ndim == 1 else found
    return found - found.mean(axis=1, keepdims=True)


@torch.no_grad()
def perturb(model):
    """Change all weights, including norms and biases, so that layers contribute much."""
    for parameter in model.parameters():
        scale = 0.3 if parameter.dim() == 1 else 0.5 * parameter.std()
        parameter.add_(scale * torch.randn_like(parameter))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("classes", [2, CLASSES])
def test_first_logits_equal_the_linear_model(classes, trained):
    train, held_out, unseen = (texts(count, seed, classes) for count, seed in ((300, 0), (100, 1), (200, 2)))
    start = fit_linear_start(train, held_out, **{**SIZES, "classes": classes})
    expected = plain_logits(train, unseen.ids)
    of_evidence = shares(unseen.ids) @ start.evidence @ start.readout
    factor = (expected * of_evidence).sum() / np.square(of_evidence).sum()
    # The solver of the oldest supported scikit-learn stops at 0.04, for either form of the same numbers.
    np.testing.assert_allclose(factor * of_evidence, expected, atol=0.05 * np.abs(expected).max())

    right = (plain_logits(train, held_out.ids).argmax(1) == held_out.labels).mean()
    assert start.report == {"dimensions": classes - 1, "held_out_accuracy": pytest.approx(right, abs=1e-3)}

    model = classifier(classes, **dict.fromkeys(["norm_bias", "attention_bias", "mlp_bias", "classifier_bias"], trained))
    if trained:
        perturb(model)
    before = logits_of(model, unseen.ids)
    start.write_to(model)
    found = logits_of(model, unseen.ids)
    cosines = (found * of_evidence).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(of_evidence, axis=1)
    sure = np.abs(factor * of_evidence).max(axis=1) > 0.1  # A text without evidence has no direction.
    # Other contributions of a trained body differ between tokens, and the LayerNorm weights tokens by them.
    least = np.quantile(cosines[sure], 0.02) > 0.9 if trained else cosines[sure].min() > 0.99
    assert least and sure.mean() > 0.9
    assert (found.argmax(1) == of_evidence.argmax(1)).mean() > (0.95 if trained else 0.98)
    right = (found.argmax(1) == unseen.labels).mean()
    assert right > 1.5 / classes and right > (before.argmax(1) == unseen.labels).mean() + 0.2


def test_scale_minimizes_the_cross_entropy():
    """The network's logits are as large as the linear model's, which are scaled on held-out texts."""
    train, held_out = texts(300, 0), texts(400, 1)
    start = fit_linear_start(train, held_out, **SIZES)
    of_linear = torch.from_numpy(shares(held_out.ids) @ start.evidence @ start.readout)
    model = classifier(classifier_dropout=0.5).train()
    start.write_to(model)
    assert model.training
    found = torch.from_numpy(logits_of(model.eval(), held_out.ids[:50]))
    assert (found * of_linear[:50]).sum() / of_linear[:50].square().sum() == pytest.approx(1.0, abs=0.2)
    labels = torch.from_numpy(held_out.labels)
    losses = {factor: torch.nn.functional.cross_entropy(factor * of_linear, labels) for factor in (0.8, 1.0, 1.25)}
    assert losses[1.0] < min(losses[0.8], losses[1.25])


def test_few_held_out_texts_do_not_inflate_the_scale():
    """Eight correctly classified texts alone would be best explained by an arbitrarily large scale."""
    train, unseen = texts(300, 0), texts(200, 2)
    right = plain_logits(train, unseen.ids).argmax(1) == unseen.labels
    rows = np.flatnonzero(right)[:8]
    few = LabelledTexts([unseen.ids[row] for row in rows], unseen.labels[rows])
    sizes = [
        np.abs(shares(unseen.ids) @ start.evidence @ start.readout).mean()
        for start in (fit_linear_start(train, held_out, **SIZES) for held_out in (few, texts(400, 1)))
    ]
    assert sizes[0] < 3 * sizes[1]


@pytest.mark.parametrize("attention", ["eager", "flash_attention_2"])
def test_attention_implementation_is_kept(attention):
    model = classifier()
    model.config._attn_implementation = attention
    fit_linear_start(texts(100, 0), texts(20, 1), **SIZES).write_to(model)
    assert model.config._attn_implementation == attention


def test_many_classes_share_few_dimensions():
    """With 12 classes and embeddings of size 64, eight dimensions have most of the evidence."""
    train, held_out = texts(900, 0, 12), texts(200, 1, 12)
    start = fit_linear_start(train, held_out, **{**SIZES, "classes": 12})
    assert start.evidence.shape == (VOCABULARY, 8) and start.readout.shape == (8, 12)
    across = start.readout @ start.readout.T
    np.testing.assert_allclose(across, across[0, 0] * np.eye(8), atol=1e-5 * across[0, 0])
    model = classifier(12)
    start.write_to(model)
    expected = plain_logits(train, held_out.ids).argmax(1)
    assert (logits_of(model, held_out.ids).argmax(1) == expected).mean() > 0.5


def test_every_weight_is_trained():
    """Including those that start at zero, in rows that write into the evidence."""
    train, held_out = texts(100, 0), texts(50, 1)
    model = classifier()
    fit_linear_start(train, held_out, **SIZES).write_to(model)
    mask = torch.tensor([[1] * 10] * 8)
    rows, labels = torch.tensor([row[:10] for row in train.ids[:8]]), torch.from_numpy(train.labels[:8])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(3):
        model(input_ids=rows, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    dims = CLASSES - 1
    written = model.model.layers[0].mlp.Wo.weight[-dims:]
    assert (written != 0).all()


def test_class_without_training_texts_is_not_predicted():
    train, held_out = texts(300, 0, 3), texts(100, 1, 3)
    start = fit_linear_start(train, held_out, **SIZES)
    model = classifier()
    start.write_to(model)
    assert 3 not in logits_of(model, held_out.ids).argmax(1)


def test_large_split_is_sampled_without_empty_texts(monkeypatch):
    monkeypatch.setattr("hf_tlm.models.linear_start.MOST_TEXTS", 200)
    rows = Dataset.from_dict(
        {"input_ids": [[], *[[2, 5 + i % 9, 3] for i in range(299)]], "label": [i // 100 for i in range(300)]}
    )
    found = LabelledTexts.of(rows)
    assert 199 <= len(found.ids) == len(found.labels) <= 200 and [] not in found.ids
    assert set(found.labels.tolist()) == {0, 1, 2}
    assert len(LabelledTexts.of(rows.select(range(50))).ids) == 49


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"classifier_pooling": "cls"}, "received the type 'modernbert' with classifier_pooling 'cls'"),
        ({"classifier_activation": "silu"}, "received classifier_activation 'silu'"),
    ],
)
def test_unsupported_configs_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        check_linear_start(ModernBertConfig(**{"classifier_pooling": "mean", **changes}))


def test_regression_and_single_classes_are_refused():
    train, held_out = texts(20, 0), texts(10, 1)
    with pytest.raises(ModelError, match="is for classification, and this task is regression"):
        fit_linear_start(train, held_out, **{**SIZES, "classes": 1})
    one = LabelledTexts(train.ids, np.zeros(20, dtype=int))
    with pytest.raises(ModelError, match="needs training texts of at least two classes"):
        fit_linear_start(one, held_out, **SIZES)
