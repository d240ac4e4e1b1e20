"""Metrics of classes, numbers and tags of words, and what all share: `evaluate.Metric` modules that need no network."""

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
from hf_tlm.utils.options import of_python

logger = logging.getLogger(__name__)
Tags = Sequence[str | None]  # Of one sentence.
UNKNOWN = "I-\0"  # In a reference: a span of a type that nothing predicts.


class TaskMetric(evaluate.Metric):
    """A metric of N examples; `compute(predictions=, references=)` gives at least {name: value}, and larger is better.

    What it takes is `feature`, for predictions and, unless `reference_feature` says otherwise, for references.
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
    """0, which is what a score counts for where it is not defined; a warning says why it is not."""
    logger.warning("%s is not defined and counts as 0: %s.", metric, why)
    return 0.0


class _ClassificationMetric(TaskMetric):
    """Single-label classification: integer predictions [N] against integer references [N], a value of at most 1."""

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
        """See `evaluate.Metric`, which would cut numbers short, and count what is no class as one.

        Raises:
            HfTlmError: one is no index of a class.
        """
        for what, values in (("predictions", predictions), ("references", references)):
            if values is None or _are_classes(values):
                continue
            raise HfTlmError(
                f"{self.name}: expected {what} to be indices of classes, [N]; received {of_python(values)!r:.60}. Take the "
                "argmax of logits, number names of classes, and leave texts without a label out."
            )
        super().add_batch(predictions=predictions, references=references, **options)


def _are_classes(values: Any) -> bool:
    """Whether values are whole numbers, 0 or more, one after the other."""
    try:
        given = np.asarray(of_python(values))
        # Whole numbers of pandas may be objects.
        given = np.asarray(given.tolist()) if given.dtype.kind == "O" else given
    except ValueError:  # Lists of several lengths.
        return False
    if not given.size:
        return True
    numbers = given.dtype.kind in "biuf" and given.ndim == 1
    return bool(numbers and (given >= 0).all() and (given == np.floor(given)).all())


class MicroF1(_ClassificationMetric):
    """Micro-averaged F1; for single-label classification it equals accuracy."""

    name = "micro_f1"
    description = "F1 of true positives, false positives and false negatives counted over all classes together."

    def _compute(self, predictions, references):
        return {self.name: float(f1_score(references, predictions, average="micro"))}


class MacroF1(_ClassificationMetric):
    """The mean of the classes' F1; classes neither referred to nor predicted do not count."""

    name = "macro_f1"
    description = "Unweighted mean of the F1 of every class that occurs in references or predictions."

    def _compute(self, predictions, references):
        return {self.name: float(f1_score(references, predictions, average="macro", zero_division=0.0))}


class BinaryF1(_ClassificationMetric):
    """F1 of class 1 of two, GLUE's for MRPC and QQP; 0 where class 1 is neither referred to nor predicted.

    Raises:
        HfTlmError: a class index other than 0 and 1.
    """

    name = "f1"
    description = "F1 of the class with index 1 in binary classification."

    def _compute(self, predictions, references):
        classes = {*predictions, *references}
        if more := classes - {0, 1}:
            raise HfTlmError(f"f1 is of class 1 against class 0; received class {max(more)}. Use macro_f1 or micro_f1.")
        if 1 not in classes:
            return {self.name: undefined(self.name, "class 1 is neither referred to nor predicted")}
        return {self.name: float(f1_score(references, predictions))}


class Accuracy(_ClassificationMetric):
    """The share of right predictions."""

    name = "accuracy"
    description = "Share of predictions that equal their reference."

    def _compute(self, predictions, references):
        return {self.name: float(accuracy_score(references, predictions))}


class Matthews(_ClassificationMetric):
    """The correlation of predictions with references (Matthews 1975), GLUE's metric for CoLA; 0 where one never varies."""

    name = "matthews"
    description = "Matthews correlation coefficient, from -1 to 1."

    def _compute(self, predictions, references):
        for what, values in (("predictions", predictions), ("references", references)):
            if len(set(values)) == 1:
                return {self.name: undefined(self.name, f"the {what} are all of one class")}
        return {self.name: float(matthews_corrcoef(references, predictions))}


class _Correlation(TaskMetric):
    """Numbers [N] against numbers [N], a value from -1 to 1; 0 where one side never varies.

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
        for what, values in sides.items():
            if not np.isfinite(values).all():
                raise HfTlmError(
                    f"{self.name}: {(~np.isfinite(values)).sum()} of {len(values)} {what} are not finite. If they are a "
                    "model's, training has diverged: lower the learning rate or lengthen the warm-up."
                )
            if np.ptp(values) == 0:
                return {self.name: undefined(self.name, f"the {what} are all {values[0]:g}")}
        deviations = [values - values.mean() for values in map(self._values, sides.values())]
        # Of unit length first: products of very small or very large deviations would leave the range of floats.
        one, other = (values / np.linalg.norm(values) for values in (v / np.abs(v).max() for v in deviations))
        return {self.name: float(np.clip(one @ other, -1, 1))}

    def _values(self, numbers: np.ndarray) -> np.ndarray:
        """What is correlated, [N]."""
        return numbers


class Pearson(_Correlation):
    """The linear correlation of predictions with references."""

    name = "pearson"
    description = "Pearson correlation coefficient, from -1 to 1."


class Spearman(_Correlation):
    """The correlation of their ranks; equal numbers share the mean of their ranks."""

    name = "spearman"
    description = "Spearman rank correlation coefficient, from -1 to 1."

    def _values(self, numbers):
        return rankdata(numbers)


class _TaggingMetric(TaskMetric):
    """Tags of N sentences against tags of the same words.

    A predicted None or "" is a word without a prediction (the model did not see it), a reference None or "" a tag that
    cannot be predicted (training lacks it): both are errors.

    Raises:
        HfTlmError: a sentence's predictions and references are of different lengths, or there are no words.
    """

    inputs = "predictions: lists of tags [N], a tag a word. references: the same."
    feature = datasets.List(datasets.Value("string"))

    def add_batch(self, *, predictions=None, references=None, **kwargs):
        """As the base class's, which takes no None where a string may be."""
        sides = ([[tag or "" for tag in tags] for tags in side or []] for side in (predictions, references))
        super().add_batch(**dict(zip(("predictions", "references"), sides, strict=True)), **kwargs)

    def _compute(self, predictions, references):
        for sentence, (predicted, truth) in enumerate(zip(predictions, references, strict=True)):
            if len(predicted) != len(truth):
                raise HfTlmError(
                    f"{self.name}: sentence {sentence} has {len(truth)} reference tags and {len(predicted)} predicted ones. "
                    "Give a tag, None or an empty string for every word."
                )
        if not any(references):
            raise HfTlmError(f"{self.name}: there are no words to score.")
        return {self.name: self._score(predictions, references)}


class TagAccuracy(_TaggingMetric):
    """The share of words with the right tag, over all sentences together."""

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
    """F1 of whole spans (entities, chunks), of all types together; a span is right if its words and its type are.

    Tags are IOB2 (B-type, I-type, O) and read as CoNLL-2000's script reads them: an I- whose predecessor is not of its
    type begins a span. A word without a prediction ends one. 0 where neither side has a span.

    Raises:
        HfTlmError: a tag of another form.
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
        for sentence, (ours, theirs) in enumerate(zip(predictions, references, strict=True)):
            predicted |= {(sentence, *span) for span in spans([tag or "O" for tag in ours])}
            truth |= {(sentence, *span) for span in spans([tag or UNKNOWN for tag in theirs])}
        if not predicted and not truth:
            return undefined(self.name, "neither predictions nor references have a span")
        return 2 * len(predicted & truth) / (len(predicted) + len(truth))


def spans(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """The spans that IOB2 tags of one sentence mark: first word, word after the last, type."""
    start, of = 0, None
    for word, tag in enumerate([*tags, "O"]):
        if not is_iob2(tag):
            raise HfTlmError(f"span_f1 needs IOB2 tags (O, B-type, I-type); received {tag!r}. Use tag_accuracy for others.")
        kind = None if tag == "O" else tag[2:]
        if of is not None and (kind != of or tag.startswith("B-")):
            yield start, word, of
            of = None
        if kind is not None and of is None:
            start, of = word, kind
