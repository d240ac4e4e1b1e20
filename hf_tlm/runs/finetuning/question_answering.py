"""Extractive question answering (SQuAD 1.1 and 2.0): predict the start and end of the answer in the context, or no answer.

A context that does not fit is split into windows that overlap by `doc_stride` tokens (at most half a window), each after
the question. For windows without the complete answer, and for unanswerable questions, the labels point at [CLS] (Devlin et
al., NAACL 2019, section 4.3). The question comes first, independent of the tokenizer's padding side. The best answers are
found over all windows of a question, by exact search.

Shapes: W windows, S positions, T tokens of the context in a window, L answer length, N examples, A answers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import best_threshold
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import (
    check_offsets,
    compute_scores,
    make_features,
    pad,
    ragged,
    token_spans,
    tokenize_with_offsets,
)
from hf_tlm.tasks import Task

# The odds of no answer for a context without a word: above any threshold, and finite, as JSON requires.
NO_ANSWER_ODDS = 1e6
MAX_SPANS = 1 << 20  # Number of spans that are scored at once.
AUTO_CLASS = "AutoModelForQuestionAnswering"
MAX_LISTED_ANSWERS = 5  # Number of answers that a prediction lists.


@dataclass(frozen=True)
class Answers:
    """The answers of all examples, grouped by example, the best first.

    bounds: int64 [N + 1], offsets of the examples' answers.
    scores, begins, ends: [A], for each answer start logit + end logit, and its character offsets in the context.
    null: float [N], start logit + end logit of [CLS], the minimum over windows.
    odds: float [N], null minus the best score (`NO_ANSWER_ODDS` without an answer): a large value means no answer.
    """

    bounds: np.ndarray
    scores: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    null: np.ndarray
    odds: np.ndarray

    def slice_of(self, example: int) -> slice:
        """Return the slice of an example's answers."""
        return slice(int(self.bounds[example]), int(self.bounds[example + 1]))

    def best(self, example: int, context: str) -> str:
        """Return the text of the best answer; "" where the context has no word."""
        answers = self.slice_of(example)
        return self.text(answers.start, context) if answers.stop > answers.start else ""

    def text(self, answer: int, context: str) -> str:
        """Return the text of an answer, with the combining marks after its last character, which many tokenizers drop."""
        end = self.ends[answer]
        while end < len(context) and unicodedata.combining(context[end]):
            end += 1
        return context[self.begins[answer] : end]


def search(outputs: tuple[np.ndarray, ...], features: Dataset, num_examples: int, args: FinetuneArguments) -> Answers:
    """Find the `n_best` distinct answers of every example.

    These are the spans of at most `max_answer_length` tokens within the context of a window with the highest start logit +
    end logit.

    Args:
        outputs: start and end logits, float [W, S] each.
        features: see `question_answering.encode`.
    """
    starts, ends = outputs[:2]
    columns = features.select_columns(["example", "cls"]).with_format("numpy")[:]
    example, cls = columns["example"], columns["cls"]
    null = np.full(num_examples, np.inf)
    windows = np.arange(len(features))
    np.minimum.at(null, example, starts[windows, cls].astype(np.float64) + ends[windows, cls])
    chunks = list(_search_windows(starts, ends, features, args.max_answer_length, args.n_best))
    window, score, start, end = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    examples = example[window]
    # Keep the best score of an answer that several windows contain, then the best answers of each example.
    order = np.lexsort((-score, end, start, examples))
    new = np.append(True, np.any(np.diff([values[order] for values in (examples, start, end)]) != 0, axis=0))[: len(order)]
    order = order[new]
    order = order[np.lexsort((end[order], start[order], -score[order], examples[order]))]
    rank = np.arange(len(order)) - np.searchsorted(examples[order], examples[order])
    order = order[rank < args.n_best]
    bounds = np.searchsorted(examples[order], np.arange(num_examples + 1))
    score, has_answer = score[order].astype(np.float64), np.diff(bounds) > 0
    odds = np.full(num_examples, NO_ANSWER_ODDS)
    odds[has_answer] = null[has_answer] - score[bounds[:-1][has_answer]]
    return Answers(bounds, score, start[order], end[order], null, odds)


def _search_windows(
    starts: np.ndarray, ends: np.ndarray, features: Dataset, max_length: int, n_best: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (window, score, start character, end character) of the best answers in each window, some windows at a time."""
    first = features.select_columns("first").with_format("numpy")[:]["first"]
    char_starts, bounds = ragged(features, "begins")
    char_ends, _ = ragged(features, "ends")
    widest = int(np.diff(bounds).max())
    length = min(max_length, widest)
    step = max(1, MAX_SPANS // max(1, length * widest))
    for low in range(0, len(features) if widest else 0, step):
        window = np.arange(low, min(low + step, len(features)))[:, None]
        token = np.arange(widest)
        inside = token < np.diff(bounds)[window]
        flat_index = np.minimum(bounds[window] + token, len(char_starts) - 1)
        # A token of white space cannot begin or end an answer.
        usable = inside & (char_starts[flat_index] < char_ends[flat_index])
        positions = np.minimum(first[window] + token, starts.shape[1] - 1)
        start = np.where(usable, starts[window, positions], -np.inf)
        end = np.where(usable, ends[window, positions], -np.inf)
        scores = np.full((len(window), length, widest), -np.inf, dtype=np.float32)
        for offset in range(length):
            scores[:, offset, : widest - offset] = start[:, : widest - offset] + end[:, offset:]
        flat = scores.reshape(len(window), -1)
        count = min(n_best, flat.shape[1])
        best = np.argpartition(flat, -count, axis=1)[:, -count:]
        score = np.take_along_axis(flat, best, axis=1)
        offsets, token = divmod(best, widest)
        kept = np.isfinite(score)
        row = np.nonzero(kept)[0]
        flat_indices = bounds[window[row, 0]] + token[kept]
        yield window[row, 0], score[kept], char_starts[flat_indices], char_ends[flat_indices + offsets[kept]]
    # Empty arrays, so that there is something to concatenate where no context has a token.
    yield np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: FinetuneArguments) -> Dataset:
    """Encode rows as windows, one feature for each, in the order of rows and contexts.

    Args:
        rows: columns `context` and `question`; with `answers` and `starts` the features are labelled by the first answer.

    Returns:
        `input_ids`, [`token_type_ids`], `example`, [`start_positions`, `end_positions`], and for `decode`: `cls`, the index
        of [CLS]; `first`, the index of the window's first context token; `begins` and `ends`, the character offsets in the
        context of the window's context tokens.

    Raises:
        TokenizerError: the tokenizer is in pure Python.
        HfTlmError: `max_length` leaves no room for question and context.
    """
    check_offsets(tokenizer, "Question answering")
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if args.max_length < special + 2:
        raise HfTlmError(
            f"max_length must leave room for question and context beside {special} special tokens; received "
            f"{args.max_length}. Raise it: 384 is usual."
        )
    # The question fills at most half of a window.
    limit = min(args.max_query_length, (args.max_length - special) // 2)

    def encode_batch(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
        tokens = tokenize_with_offsets(tokenizer, batch["question"], batch["context"])
        features: list[dict[str, Any]] = []
        for row, example in enumerate(indices):
            sequence_ids = np.array([-1 if sequence_id is None else sequence_id for sequence_id in tokens.sequence_ids(row)])
            question, context = np.flatnonzero(sequence_ids == 0), np.flatnonzero(sequence_ids == 1)
            char_starts, char_ends = token_spans(
                [tokens["offset_mapping"][row][position] for position in context], batch["context"][row]
            )
            first, last = (context[0], context[-1] + 1) if len(context) else (len(sequence_ids), len(sequence_ids))
            prefix = np.setdiff1d(np.arange(first), question[limit:])
            capacity = args.max_length - len(prefix) - (len(sequence_ids) - last)
            columns = {name: np.array(tokens[name][row]) for name in ("input_ids", "token_type_ids") if name in tokens}
            is_cls = (columns["input_ids"] == tokenizer.cls_token_id) & (sequence_ids == -1)
            answer = _find_answer_tokens(batch, row, char_starts, char_ends)
            step = capacity - min(args.doc_stride, capacity // 2)  # Neighbouring windows overlap by at most a half.
            for start in range(0, max(len(context) - capacity, 0) + step, step):
                end = min(start + capacity, len(context))
                positions = np.concatenate([prefix, context[start:end], np.arange(last, len(sequence_ids))])
                feature = {name: values[positions] for name, values in columns.items()}
                # Without a [CLS] token the first token is used instead.
                cls = int(is_cls[positions].argmax())
                feature |= {"example": example, "cls": cls, "first": len(prefix)}
                feature |= {"begins": char_starts[start:end], "ends": char_ends[start:end]}
                if answer is not None:
                    inside = start <= answer[0] <= answer[1] < end
                    position = (len(prefix) + token - start if inside else cls for token in answer)
                    feature |= zip(("start_positions", "end_positions"), position, strict=True)
                features.append(feature)
        return {name: [feature[name] for feature in features] for name in features[0]}

    settings = [args.max_length, limit, args.doc_stride, tokenizer.cls_token_id]
    return make_features(rows, tokenizer, encode_batch, settings, "Tokenising questions and contexts", one_of_each=False)


def _find_answer_tokens(
    batch: Mapping[str, list], row: int, token_starts: np.ndarray, token_ends: np.ndarray
) -> tuple[int, int] | None:
    """Return the first and last token that overlap with the answer.

    first > last means that there is no answer, or no token of it; None that the rows have no labels.
    """
    if "starts" not in batch:
        return None
    if not batch["starts"][row]:
        return 1, 0
    start = batch["starts"][row][0]
    end = start + len(batch["answers"][row][0])
    return int((token_ends <= start).sum()), int((token_starts < end).sum()) - 1


def collate(tokenizer: PreTrainedTokenizerBase, features: list[dict]) -> dict[str, torch.Tensor]:
    """Pad features to a batch, always on the right, so that token indices of features remain valid.

    It has `input_ids`, `attention_mask`, [`token_type_ids`] int64 [B, S] and [`start_positions`, `end_positions`] int64 [B].
    """
    labels = [name for name in ("start_positions", "end_positions") if name in features[0]]
    return pad(features, tokenizer) | {name: torch.tensor([feature[name] for feature in features]) for name in labels}


def decode(outputs, features: Dataset, rows: Dataset, model, args: FinetuneArguments) -> list[dict[str, Any]]:
    """Convert logits to the best answer over all windows of each row.

    Args:
        outputs: start and end logits, float [W, S] each.
        args: `n_best`, `max_answer_length`; `null_threshold`: None where every question has an answer.

    Returns:
        For every row `prediction`, a slice of the context, and `probability`, from a softmax of start + end logits over the
        `n_best` answers; `n_best`: the best five as {"text", "start", "probability"}. With a threshold the prediction is ""
        where `null_odds`, the score of no answer (the minimum over windows) minus that of the best answer, exceeds it, and
        `no_answer_probability` is part of the softmax. Where a context has no word the prediction is "".
    """
    answers = search(outputs, features, len(rows), args)
    return [
        _create_prediction(answers, example, context, args.null_threshold)
        for example, context in enumerate(rows["context"][:])
    ]


def validation_choices(task: Task, outputs, features: Dataset, rows: Dataset, args: FinetuneArguments) -> dict[str, Any]:
    """Choose `null_threshold` for `decode` by the F1 on all labelled rows.

    A threshold given in `args` is kept; it is None where every training question has an answer (SQuAD 1.1).
    """
    if args.null_threshold is not None or all(map(len, task.train["starts"])):
        return {"null_threshold": args.null_threshold}
    answers = search(outputs, features, len(rows), args)
    best_answers = [answers.best(example, context) for example, context in enumerate(rows["context"][:])]
    return {"null_threshold": best_threshold(answers.odds, best_answers, list(rows["answers"]))[0]}


def score(task: Task, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
    """Compute F1 and exact match of the answers, as defined by the official script."""
    return compute_scores(task, [prediction["prediction"] for prediction in predictions], list(rows["answers"]))


def _create_prediction(answers: Answers, example: int, context: str, threshold: float | None) -> dict[str, Any]:
    candidates, odds = answers.slice_of(example), float(answers.odds[example])
    scores = np.append(answers.scores[candidates], [] if threshold is None else answers.null[example])
    exponentials = np.exp(scores - scores.max(initial=-np.inf))
    probabilities = (exponentials / exponentials.sum()).round(6).tolist()
    top_answers = [
        {"text": answers.text(answer, context), "start": int(answers.begins[answer]), "probability": probability}
        for answer, probability in zip(
            range(candidates.start, candidates.stop)[:MAX_LISTED_ANSWERS], probabilities, strict=False
        )
    ]
    prediction = {"prediction": "", "probability": 1.0, "n_best": top_answers}
    if top_answers:
        prediction |= {"prediction": top_answers[0]["text"], "probability": top_answers[0]["probability"]}
    if threshold is not None:
        if odds > threshold:
            prediction |= {"prediction": "", "probability": probabilities[-1]}
        prediction |= {"no_answer_probability": probabilities[-1], "null_odds": odds}
    return prediction
