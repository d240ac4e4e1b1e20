"""Metrics of tagging: the tags of the words of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import datasets

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics.base import TaskMetric, undefined
from hf_tlm.tasks.tagging import is_iob2

Tags = Sequence[str | None]  # Of one sentence.
UNKNOWN = "I-\0"  # In a reference: a span of a type that nothing predicts.


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
