"""Metrics of classification, regression and tagging, and their base class: `evaluate.Metric` modules without network."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from hf_tlm.errors import HfTlmError
from hf_tlm.tasks.tagging import is_iob2
from hf_tlm.utils.options import to_python

logger = logging.getLogger(__name__)
Tags = Sequence[str | None]  # The tags of one sentence.
UNKNOWN = "I-\0"  # Stands for a missing reference tag: a span of a type that no prediction has.


class TaskMetric(evaluate.Metric):
    """A metric over N examples: `compute(predictions=, references=)` returns at least {name: value}; larger is better.

    `feature` is the type of a prediction and, unless `reference_feature` is set, of a reference.
    """

    name: str
    description: str
    citation: str
    reference_url: str
    inputs: str
    feature: ClassVar[Any]
    reference_feature: ClassVar[Any] = None

    def __init__(self):
        # In memory: processes that evaluate side by side would otherwise share one cache file.
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": self.feature, "references": self.reference_feature or self.feature}
        return evaluate.MetricInfo(
            description=self.description,
            citation=self.citation,
            inputs_description=self.inputs,
            features=datasets.Features(features),
            reference_urls=[self.reference_url],
        )


def undefined(metric: str, why: str) -> float:
    """Return 0, the value of a score that is not defined, and log a warning that says why it is not."""
    logger.warning("%s is not defined and counts as 0: %s.", metric, why)
    return 0.0


class _ClassificationMetric(TaskMetric):
    """Base class of single-label classification metrics: class indices [N] against class indices [N], at most 1."""

    feature = datasets.Value("int64")
    inputs = "predictions: class indices [N]. references: class indices [N]."
    reference_url = "https://scikit-learn.org/stable/modules/model_evaluation.html"
    citation = """@article{scikit-learn,
  title = {Scikit-learn: Machine Learning in {P}ython},
  author = {Pedregosa, F. and others},
  journal = {Journal of Machine Learning Research},
  volume = {12},
  pages = {2825--2830},
  year = {2011}
}"""

    def add_batch(self, *, predictions=None, references=None, **options):
        """Add a batch as `evaluate.Metric` does, or raise an HfTlmError if a value is not a class index.

        The base class would truncate fractions, and count a value that is no class index as a class.

        Raises:
            HfTlmError: a value is not a class index.
        """
        for side, values in (("predictions", predictions), ("references", references)):
            if values is None or _are_classes(values):
                continue
            raise HfTlmError(
                f"{self.name}: expected {side} to be indices of classes, [N]; received {to_python(values)!r:.60}. Use the "
                "argmax of logits and indices of class names, and remove texts without a label."
            )
        super().add_batch(predictions=predictions, references=references, **options)


def _are_classes(values: Any) -> bool:
    """Return whether the values are a flat sequence of whole numbers, 0 or more."""
    try:
        array = np.asarray(to_python(values))
        # pandas may store integers as objects.
        array = np.asarray(array.tolist()) if array.dtype.kind == "O" else array
    except ValueError:  # Lists of different lengths.
        return False
    if not array.size:
        return True
    is_numeric = array.dtype.kind in "biuf" and array.ndim == 1
    return bool(is_numeric and (array >= 0).all() and (array == np.floor(array)).all())


class MicroF1(_ClassificationMetric):
    """Micro-averaged F1; for single-label classification it equals accuracy."""

    name = "micro_f1"
    description = "F1 of true positives, false positives and false negatives counted over all classes together."

    def _compute(self, predictions, references):
        return {self.name: float(f1_score(references, predictions, average="micro"))}


class MacroF1(_ClassificationMetric):
    """The unweighted mean of the F1 of every class; classes in neither references nor predictions are left out."""

    name = "macro_f1"
    description = "Unweighted mean of the F1 of every class that occurs in references or predictions."

    def _compute(self, predictions, references):
        return {self.name: float(f1_score(references, predictions, average="macro", zero_division=0.0))}


class BinaryF1(_ClassificationMetric):
    """F1 of class 1 in binary classification, GLUE's metric for MRPC and QQP; 0 if class 1 occurs on neither side.

    Raises:
        HfTlmError: a class index is neither 0 nor 1.
    """

    name = "f1"
    description = "F1 of the class with index 1 in binary classification."

    def _compute(self, predictions, references):
        classes = {*predictions, *references}
        if others := classes - {0, 1}:
            raise HfTlmError(f"f1 is for the classes 0 and 1; received class {max(others)}. Use macro_f1 or micro_f1.")
        if 1 not in classes:
            return {self.name: undefined(self.name, "class 1 occurs in neither references nor predictions")}
        return {self.name: float(f1_score(references, predictions))}


class Accuracy(_ClassificationMetric):
    """The share of right predictions."""

    name = "accuracy"
    description = "Share of predictions that equal their reference."

    def _compute(self, predictions, references):
        return {self.name: float(accuracy_score(references, predictions))}


class Matthews(_ClassificationMetric):
    """Matthews correlation coefficient (Matthews 1975), GLUE's metric for CoLA; 0 if one side has a single class."""

    name = "matthews"
    description = "Matthews correlation coefficient, from -1 to 1."

    def _compute(self, predictions, references):
        for side, values in (("predictions", predictions), ("references", references)):
            if len(set(values)) == 1:
                return {self.name: undefined(self.name, f"the {side} are all of one class")}
        return {self.name: float(matthews_corrcoef(references, predictions))}


class _Correlation(TaskMetric):
    """Base class of correlations of numbers [N] with numbers [N], from -1 to 1; 0 if one side is constant.

    Raises:
        HfTlmError: a number is not finite.
    """

    feature = datasets.Value("float64")
    inputs = "predictions: numbers [N]. references: numbers [N]."
    reference_url = "https://docs.scipy.org/doc/scipy/reference/stats.html#correlation-and-association-tests"
    citation = """@inproceedings{wang2019glue,
  title = {{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author = {Wang, Alex and others},
  booktitle = {International Conference on Learning Representations},
  year = {2019}
}"""

    def _compute(self, predictions, references):
        sides = {"predictions": np.array(predictions, float), "references": np.array(references, float)}
        for side, values in sides.items():
            if not np.isfinite(values).all():
                raise HfTlmError(
                    f"{self.name}: {(~np.isfinite(values)).sum()} of {len(values)} {side} are not finite. If a model "
                    "predicted them, training has diverged: lower the learning rate or lengthen the warm-up."
                )
            if np.ptp(values) == 0:
                return {self.name: undefined(self.name, f"the {side} are all {values[0]:g}")}
        deviations = [values - values.mean() for values in map(self._values, sides.values())]
        # Normalised to unit length first: products of very small or very large deviations would under- or overflow.
        first, second = (values / np.linalg.norm(values) for values in (v / np.abs(v).max() for v in deviations))
        return {self.name: float(np.clip(first @ second, -1, 1))}

    def _values(self, numbers: np.ndarray) -> np.ndarray:
        """Return the values that are correlated, [N]."""
        return numbers


class Pearson(_Correlation):
    """The linear correlation of predictions with references."""

    name = "pearson"
    description = "Pearson correlation coefficient, from -1 to 1."


class Spearman(_Correlation):
    """The linear correlation of the ranks of predictions and references; ties share their mean rank."""

    name = "spearman"
    description = "Spearman rank correlation coefficient, from -1 to 1."

    def _values(self, numbers):
        return rankdata(numbers)


class _TaggingMetric(TaskMetric):
    """Base class of tagging metrics: the predicted tags of N sentences against the reference tags of the same words.

    A prediction of None or "" is a word without a prediction (the model did not see it); a reference of None or "" is a
    tag that cannot be predicted (the training data lacks it). Both count as errors.

    Raises:
        HfTlmError: the predictions and references of a sentence differ in length, or there are no words.
    """

    inputs = "predictions: lists of tags [N], a tag a word. references: the same."
    feature = datasets.List(datasets.Value("string"))

    def add_batch(self, *, predictions=None, references=None, **kwargs):
        """Add a batch with None replaced by an empty string, as the base class accepts no None."""
        sides = ([[tag or "" for tag in tags] for tags in side or []] for side in (predictions, references))
        super().add_batch(**dict(zip(("predictions", "references"), sides, strict=True)), **kwargs)

    def _compute(self, predictions, references):
        for sentence, (predicted, truth) in enumerate(zip(predictions, references, strict=True)):
            if len(predicted) != len(truth):
                raise HfTlmError(
                    f"{self.name}: sentence {sentence} has {len(truth)} reference tags and {len(predicted)} predicted ones. "
                    "Pass a tag, None or an empty string for every word."
                )
        if not any(references):
            raise HfTlmError(f"{self.name}: there are no words to score.")
        return {self.name: self._score(predictions, references)}


class TagAccuracy(_TaggingMetric):
    """The share of words with the correct tag, over all sentences together."""

    name = "tag_accuracy"
    description = "Share of words whose predicted tag equals the reference tag."
    reference_url = "https://universaldependencies.org/conll18/evaluation.html"
    citation = """@article{marcus1993building,
  title = {Building a Large Annotated Corpus of {E}nglish: The {P}enn {T}reebank},
  author = {Marcus, Mitchell P. and Santorini, Beatrice and Marcinkiewicz, Mary Ann},
  journal = {Computational Linguistics},
  year = {1993}
}"""

    def _score(self, predictions: Sequence[Tags], references: Sequence[Tags]) -> float:
        pairs = [pair for sentence in zip(predictions, references, strict=True) for pair in zip(*sentence, strict=True)]
        return sum(bool(truth) and predicted == truth for predicted, truth in pairs) / len(pairs)


class SpanF1(_TaggingMetric):
    """Micro-averaged F1 of complete spans (entities, chunks); a span is correct if its words and its type are.

    Tags are IOB2 (B-type, I-type, O), read as CoNLL-2000's script reads them: an I- tag begins a span if the tag before
    it is not of the same type. A word without a prediction ends a span. The score is 0 if neither side has a span.

    Raises:
        HfTlmError: a tag has another form.
    """

    name = "span_f1"
    description = "Micro-averaged F1 of the spans that IOB2 tags mark."
    reference_url = "https://www.clips.uantwerpen.be/conll2000/chunking/"
    citation = """@inproceedings{tjong2000introduction,
  title = {Introduction to the {C}o{NLL}-2000 Shared Task Chunking},
  author = {Tjong Kim Sang, Erik F. and Buchholz, Sabine},
  booktitle = {Fourth Conference on Computational Natural Language Learning},
  year = {2000}
}"""

    def _score(self, predictions: Sequence[Tags], references: Sequence[Tags]) -> float:
        predicted, truth = set(), set()
        for sentence, (predicted_tags, true_tags) in enumerate(zip(predictions, references, strict=True)):
            predicted |= {(sentence, *span) for span in spans([tag or "O" for tag in predicted_tags])}
            truth |= {(sentence, *span) for span in spans([tag or UNKNOWN for tag in true_tags])}
        if not predicted and not truth:
            return undefined(self.name, "neither predictions nor references have a span")
        return 2 * len(predicted & truth) / (len(predicted) + len(truth))


def spans(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the spans that the IOB2 tags of one sentence mark: (index of the first word, index after the last, type)."""
    start, open_kind = 0, None
    for word, tag in enumerate([*tags, "O"]):
        if not is_iob2(tag):
            raise HfTlmError(f"span_f1 needs IOB2 tags (O, B-type, I-type); received {tag!r}. Use tag_accuracy for others.")
        kind = None if tag == "O" else tag[2:]
        if open_kind is not None and (kind != open_kind or tag.startswith("B-")):
            yield start, word, open_kind
            open_kind = None
        if kind is not None and open_kind is None:
            start, open_kind = word, kind
