"""Initialisation of a classifier as a linear model of its tokens.

A linear model of a task is a few numbers for each token. Written into dimensions of the token embeddings that are reserved
for them, they reach the classifier through the residual stream and the mean over tokens, which the stock class computes
anyway. So before its first step the network classifies like the linear model. Every weight is one of the stock model and is
trained like any other. This is an addition of hf_tlm to the published methods.

Shapes: N texts, V vocabulary, C classes, R dimensions of evidence, H hidden size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel

from hf_tlm.errors import ModelError
from hf_tlm.models.base import body_of, embedding_weight, encode
from hf_tlm.models.families import Stock, family_of
from hf_tlm.models.initialization import layers_of

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

# Inverse strength of the penalty, for features that are shares of a text's tokens times SCALE and idf. Once logits are
# scaled, its value hardly matters on held-out texts (SciERC, ChemProt, Reuters R8), and more confident logits on the
# training texts leave less to learn.
C, SCALE = 1.0, 10.0
ITERATIONS = 500
# Maximum number of texts of a split that are used.
MOST_TEXTS = 30_000
# Maximum share of an embedding's dimensions that hold evidence.
MOST_DIMS = 1 / 8
# Root mean square of a token's evidence, as a share of the norm of its embedding; MAX_STRENGTH is the maximum for any token.
STRENGTH, MAX_STRENGTH = 0.25, 0.95
# Weight of evidence in the head's first layer, whose result is then about as large as that of all other dimensions.
GAIN = 0.5
# Texts, and tokens of each, on which the network's logits are scaled to the size of the linear model's.
SCALING_TEXTS, SCALING_TOKENS = 8, 128


@dataclass
class LabelledTexts:
    """Tokenised texts and their labels.

    Attributes:
        ids: token ids of each text, as they are trained on.
        labels: int [N].
    """

    ids: Sequence[Sequence[int]]
    labels: np.ndarray

    @classmethod
    def of(cls, rows: Dataset) -> LabelledTexts:
        """Read a tokenised split, columns `input_ids` and `label`, into memory; of more than 30,000 texts a sample.

        Texts without tokens are left out.
        """
        if len(rows) > MOST_TEXTS:
            rows = rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_TEXTS]))
        pairs = [(ids, label) for ids, label in zip(rows["input_ids"], rows["label"], strict=True) if len(ids)]
        return cls([ids for ids, _ in pairs], np.array([label for _, label in pairs]))


@dataclass
class LinearStart:
    """A fitted linear model of the tokens, which can be written into a classifier.

    Attributes:
        evidence: float32 [V, R]; the mean over a text's tokens, times readout, gives its logits.
        readout: float32 [R, C].
        sample: token ids of some texts, on which the network's logits are scaled to the size of these.
        report: number of dimensions and accuracy on the held-out texts.
    """

    evidence: np.ndarray
    readout: np.ndarray
    sample: Sequence[Sequence[int]]
    report: dict[str, Any]

    def write_to(self, classifier: PreTrainedModel) -> None:
        """Write this linear model into a stock classifier with random or pretrained weights, in place.

        All embeddings get their median length, so that the LayerNorm after them changes only their scale. Evidence takes
        the last dimensions, and no layer writes into these any more. The head's first layer reads each of them twice, with
        both signs, as GELU(x) - GELU(-x) = x. The classifier reads only these outputs, and its logits are scaled to the size
        of the linear model's. Whatever else a pretrained body computes stays, except in those dimensions.
        """
        stock: Stock = classifier
        weight, dims = embedding_weight(classifier), self.evidence.shape[1]
        rest = weight.shape[1] - dims
        with torch.no_grad():
            vectors = weight.detach().double().cpu()
            length = vectors.norm(dim=1).median()
            evidence = torch.from_numpy(self.evidence).double() * (STRENGTH * length)
            norms = evidence.norm(dim=1, keepdim=True)
            evidence = evidence * (MAX_STRENGTH * length / norms.clamp(min=1e-12)).clamp(max=1.0)
            others = vectors[:, :rest]
            # All numbers of an embedding sum up to 0, so that the LayerNorm subtracts nothing.
            others = others - others.mean(1, keepdim=True)
            shift = evidence.sum(1, keepdim=True) / rest
            remaining = (length**2 - evidence.square().sum(1, keepdim=True) - rest * shift**2).clamp(min=0)
            others = others * (remaining.sqrt() / others.norm(dim=1, keepdim=True).clamp(min=1e-12)) - shift
            weight.copy_(torch.cat([others, evidence], dim=1).to(weight))
            body: Stock = body_of(classifier)
            layer: Stock
            for layer in layers_of(body):
                for output_layer in (layer.attn.Wo, layer.mlp.Wo):
                    output_layer.weight[rest:] = 0.0
                    if output_layer.bias is not None:
                        output_layer.bias[rest:] = 0.0
            _reset_norm(body.embeddings.norm, slice(rest, None))
            _reset_norm(body.final_norm, slice(rest, None))
            _reset_norm(stock.head.norm, slice(2 * dims))
            dense, readout = stock.head.dense.weight, torch.from_numpy(self.readout).to(weight)
            dense[: 2 * dims] = 0.0
            dense[:dims, rest:] = GAIN * torch.eye(dims)
            dense[dims : 2 * dims, rest:] = -GAIN * torch.eye(dims)
            if stock.head.dense.bias is not None:
                stock.head.dense.bias[: 2 * dims] = 0.0
            stock.classifier.weight.zero_()
            stock.classifier.weight[:, :dims] = readout.T
            stock.classifier.weight[:, dims : 2 * dims] = -readout.T
            stock.classifier.bias.zero_()
            if self.sample:
                logits = _compute_logits(classifier, self.sample)
                expected = torch.from_numpy(_token_shares(self.sample, len(self.evidence)) @ self.evidence @ self.readout)
                stock.classifier.weight.mul_(float((logits * expected).sum() / logits.square().sum().clamp(min=1e-12)))


def check_linear_start(config: PreTrainedConfig) -> None:
    """Raise a ModelError unless this config's stock classifier reads the mean over tokens and its head has GELU."""
    pooling = getattr(config, "classifier_pooling", None)
    if config.model_type != "modernbert" or pooling != "mean":
        raise ModelError(
            "classifier_init linear needs a stock classifier that reads the mean over tokens, such as a ModernBERT's with "
            f"classifier_pooling mean; received the type {config.model_type!r}"
            + (f" with classifier_pooling {pooling!r}" if pooling else "")
            + ". Choose another --model_config (models/modernbert_3x128), or remove classifier_init."
        )
    if config.classifier_activation != "gelu":
        raise ModelError(
            "classifier_init linear needs a head with the activation gelu; received classifier_activation "
            f"{config.classifier_activation!r}. Change it in the --model_config, or remove classifier_init."
        )


def fit_linear_start(
    train: LabelledTexts, held_out: LabelledTexts, *, vocab_size: int, classes: int, hidden_size: int
) -> LinearStart:
    """Fit a linear model of the tokens of texts: logistic regression on each token's share of a text, weighted by idf.

    If the classes need more than `hidden_size` / 8 dimensions, evidence is approximated by its leading singular vectors.

    Args:
        held_out: other texts. The scale of all logits minimises the cross-entropy on them, with a prior around 1, so that
            few texts do not move it far.

    Raises:
        ModelError: the task has values instead of classes, or its training texts have a single class.
    """
    if classes < 2:
        raise ModelError(
            "classifier_init linear is for classification, and this task is regression. Remove classifier_init."
        )
    if len(set(np.asarray(train.labels).tolist())) < 2:
        raise ModelError(
            "classifier_init linear needs training texts of at least two classes; found one. Remove classifier_init."
        )
    shares = _token_shares(train.ids, vocab_size)
    idf = np.log((1 + len(train.ids)) / (1 + shares.getnnz(axis=0))) + 1.0
    coefficients, intercept = _fit_coefficients(shares @ sp.diags(SCALE * idf), train.labels, classes)
    logits = SCALE * idf[:, None] * coefficients + intercept
    logits -= logits.mean(axis=1, keepdims=True)
    occurrences = np.asarray(shares.sum(axis=0)).ravel()
    dims = max(1, min(classes - 1, int(hidden_size * MOST_DIMS)))
    readout = np.linalg.svd(np.sqrt(occurrences)[:, None] * logits, full_matrices=False)[2][:dims]
    evidence = logits @ readout.T
    evidence_rms = math.sqrt(occurrences @ np.square(evidence).sum(1) / occurrences.sum())
    held_out_logits = _token_shares(held_out.ids, vocab_size) @ evidence @ readout
    report = {
        "dimensions": dims,
        "held_out_accuracy": round(float((held_out_logits.argmax(1) == held_out.labels).mean()), 4),
    }
    scaled = readout * (evidence_rms * _best_scale(held_out_logits, held_out.labels))
    sample = [ids[:SCALING_TOKENS] for ids in held_out.ids[:SCALING_TEXTS]]
    return LinearStart((evidence / max(evidence_rms, 1e-12)).astype(np.float32), scaled.astype(np.float32), sample, report)


def _token_shares(ids: Sequence[Sequence[int]], vocab_size: int) -> sp.csr_matrix:
    """Return the share of each token among the tokens of each text, float64 [N, V]."""
    lengths = np.array([len(row) for row in ids])
    rows = np.repeat(np.arange(len(ids)), lengths)
    tokens = np.concatenate([np.asarray(row) for row in ids])
    return sp.csr_matrix((1.0 / lengths[rows], (rows, tokens)), shape=(len(ids), vocab_size))


def logistic_regression(features: sp.csr_matrix, labels: np.ndarray, c: float, iterations: int) -> LogisticRegression:
    """Fit a logistic regression without convergence warnings.

    After `iterations` probabilities hardly move, whatever the gradient is.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=c, max_iter=iterations).fit(features, labels)


def _fit_coefficients(features: sp.csr_matrix, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights float64 [V, C] and biases [C] of a logistic regression, for all classes."""
    model = logistic_regression(features, labels, C, ITERATIONS)
    weights, bias = model.coef_.T, model.intercept_
    if weights.shape[1] == 1:  # For two classes sklearn has only their difference.
        weights, bias = np.hstack([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    # A class without training texts is less likely than any other.
    coefficients, intercept = np.zeros((features.shape[1], classes)), np.full(classes, bias.min() - 1.0)
    coefficients[:, model.classes_], intercept[model.classes_] = weights, bias
    return coefficients, intercept


def _best_scale(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the most probable scale of logits float64 [N, C], with a log-normal prior around 1 of deviation log 2."""
    values, classes = torch.from_numpy(logits), torch.as_tensor(labels)

    def cost(scale: float) -> float:
        prior = math.log(scale) ** 2 / (2 * math.log(2.0) ** 2)
        return float(cross_entropy(scale * values, classes, reduction="sum")) + prior

    return min(np.geomspace(0.05, 20.0, 121).tolist(), key=cost)


def _reset_norm(norm: Stock, dims: slice) -> None:
    """Reset what a LayerNorm has learned for some dimensions: weight 1 and bias 0."""
    norm.weight[dims] = 1.0
    if norm.bias is not None:
        norm.bias[dims] = 0.0


def _compute_logits(classifier: Stock, ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the logits of some texts, float64 [N, C], without dropout, by `sdpa`, which works on every device."""
    training, config = classifier.training, body_of(classifier).config
    attention, config._attn_implementation = config._attn_implementation, "sdpa"
    classifier.eval()
    length = max(len(row) for row in ids)
    device = embedding_weight(classifier).device
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids], device=device)
    tokens = torch.tensor([[*row, *[0] * (length - len(row))] for row in ids], device=device)
    try:
        return family_of(classifier.config).classify(classifier, encode(body_of(classifier), tokens, mask)).double().cpu()
    finally:
        config._attn_implementation = attention
        classifier.train(training)
