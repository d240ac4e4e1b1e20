"""Subset -> smaller Subset: by influence on the task (ISS), by a teacher, or by one of the controls at the same size."""

from __future__ import annotations

import copy
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, Value
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.tokenization import tokenize
from hf_tlm.errors import InfluenceError
from hf_tlm.influence.checks import BY_TEACHER, check_executor, check_selection
from hf_tlm.influence.score_files import score
from hf_tlm.influence.selection import NUM_BUCKETS, PassageScores, best_rows, log_importance_weights, resample, select_rows
from hf_tlm.retrieval.subset import Subset, check_subset
from hf_tlm.retrieval.texts import example_texts
from hf_tlm.tasks.spec import Task, check_task

if TYPE_CHECKING:
    from hf_tlm.influence.scorer import InfluenceScorer
    from hf_tlm.retrieval import Sharding

PACKAGES = ("torch", "transformers")


def select(
    task: Task,
    subset: Subset,
    *,
    method: str = "iss",
    fraction: float | None = None,
    top_k: int | None = None,
    num_passages: int | None = None,
    balance: str | None = None,
    corpus_batch_size: int = 4,
    task_batch_size: int = 4,
    task_split: str = "validation",
    group_loss: str = "passages",
    seed: int = 0,
    scorer: InfluenceScorer | None = None,
    scores: PassageScores | None = None,
    max_length: int | None = None,
    score_model: Any = None,
    work_dir: str | Path | None = None,
    sharding: Sharding | None = None,
    process_index: int = 0,
    num_processes: int = 1,
) -> Subset:
    """The passages of a subset that help the task most, in the subset's order.

    ISS (Wang et al., 2023): a passage's influence on a batch of validation examples is the inner product of the gradient of
    its masked-LM loss with the gradient of their task loss: to first order, what a step on the passage takes off their loss.

    Args:
        method: "iss"; or as many passages by another rule: "confidence" and "disagreement" of teachers, whose `scores` are
            highest; "dsir" (likelihood of their n-grams in the training texts, see `hf_tlm.influence.selection`),
            "bm25-rank" (the first of the subset), "random".
        fraction: share of the subset to keep, rounded to a passage; `num_passages`: how many; `top_k`: of iss, the union of
            the passages that each task batch ranks first, so many of each. One of the three.
        balance: "class" lets the classes of the validation examples take turns; a task batch then holds examples of one
            class, and what does not fill one is left out. By a teacher the classes that it takes passages for take turns.
            With `fraction` or `num_passages`.
        corpus_batch_size: B_p of the paper's Table A.1, passages that are judged together; 1 judges each by itself, at the
            same cost.
        task_batch_size: B_t, examples of the task that share a gradient.
        task_split: "validation", whose loss influence is measured on (Algorithm 1), or "train" (the released code).
        group_loss: of passages that are judged together. "passages": the sum of each one's own mean over its masked tokens;
            "tokens": the mean over the masked tokens of all (the released code). Without groups the two are one.
        seed: of "dsir" and "random".
        scorer: of "iss", an `InfluenceScorer` of the score model or its checkpoints.
        scores: of "confidence" and "disagreement", see `hf_tlm.runs.teacher_scores`.
        max_length: of iss, tokens after which a text is cut for scoring; default see `InfluenceScorer.max_length`.
        score_model: what the manifest calls the score model, a plain value.
        work_dir, process_index, num_processes: see `hf_tlm.influence.score`.
        sharding: score on an executor of datatrove instead, started by this process alone; see
            `hf_tlm.influence.sharded.score_sharded`.

    Returns:
        The same columns; for iss also `influence` (float32, mean over task batches) and `influence_rank` (int32, the best
        over task batches of the passage's group, from 1); by a teacher `teacher_score` (float32). The manifest has a
        `selection` more.

    Raises:
        InfluenceError: no size or several, or more than there are passages; an empty subset, or a selection; iss without a
            scorer, a validation split, or enough passages that can be scored; a teacher's method without `scores`, of other
            passages, or of too few; a `max_length` that does not suit the scorer
            (`InfluenceScorer.max_length`); or see `hf_tlm.influence.score`.
        TaskError: the task is of another kind than classification.
    """
    check_task(task, "Selection by influence", "classification")
    check_subset(subset)
    sizes: dict[str, Any] = {"fraction": fraction, "top_k": top_k, "num_passages": num_passages}
    batches = {"corpus_batch_size": corpus_batch_size, "task_batch_size": task_batch_size}
    check_selection(method, **sizes, **batches, balance=balance, task_split=task_split, group_loss=group_loss)
    size = check_inputs(task, subset, method, **sizes, task_split=task_split)
    _check_given(method, subset, scorer, scores, sharding, num_processes)
    made: dict[str, Any] = {"method": method, **{name: value for name, value in sizes.items() if value is not None}}
    columns: dict[str, np.ndarray] = {}
    if method == "iss":
        assert scorer is not None
        max_length = scorer.max_length(max_length)
        rows, classes, left_out = _task_rows(task, task_split, scorer.tokenizer, max_length, task_batch_size, balance)
        texts = subset.dataset.select_columns("text")
        passages = tokenize(texts, scorer.tokenizer, max_length, description="Tokenising passages")
        passages = passages.add_column("id", subset.dataset["id"][:])
        if sharding is None:
            processes = {"process_index": process_index, "num_processes": num_processes}
            influence = score(rows, passages, scorer, work_dir, task_batch_size=task_batch_size, **processes)
        else:
            from hf_tlm.influence.sharded import score_sharded

            influence = score_sharded(rows, passages, scorer, sharding, work_dir, task_batch_size=task_batch_size)
        found = select_rows(
            influence,
            corpus_batch_size=corpus_batch_size,
            top_k=top_k,
            num_passages=size,
            classes=classes,
            weights=scorer.masked_tokens(passages) if group_loss == "tokens" else None,
        )
        chosen, columns = found.rows, {"influence": found.influence, "influence_rank": found.rank}
        made |= {
            **batches,
            # As the paper has them, a manifest says no more than before there was a choice.
            **({"task_split": task_split} if task_split != "validation" else {}),
            **({"group_loss": group_loss} if group_loss != "passages" else {}),
            "task_batches": influence.shape[1],
            "balance": balance,
            "validation_examples_left_out": left_out,
            "passages_without_score": found.unscored,
            "passages_not_finite": found.not_finite,
            "max_length": max_length,
            "score_model": score_model,
            "scorer_fingerprint": scorer.fingerprint,
            **scorer.settings,
        }
    else:
        assert size is not None  # Only iss takes top_k instead.
        if method in BY_TEACHER:
            assert scores is not None
            chosen = best_rows(scores.values, size, scores.classes if balance else None)
            columns = {"teacher_score": scores.values[chosen].astype(np.float32)}
            made |= {"balance": balance, "passages_without_score": int(np.isnan(scores.values).sum()), **scores.about}
        elif method == "dsir":
            weights = log_importance_weights(example_texts(task.train), subset.dataset["text"])
            chosen = resample(weights, subset.dataset["id"][:], size, seed)
            made |= {"num_buckets": NUM_BUCKETS, "seed": seed}
        elif method == "random":
            chosen = np.sort(np.random.default_rng(seed % 2**64).permutation(len(subset))[:size])
            made |= {"seed": seed}
        else:
            chosen = np.arange(size)
    return _selected(subset, chosen, columns, made)


def check_inputs(
    task: Task,
    subset: Subset,
    method: str,
    *,
    fraction: float | None = None,
    top_k: int | None = None,
    num_passages: int | None = None,
    task_split: str = "validation",
) -> int | None:
    """How many passages to keep, None where `top_k` decides, after what task and subset have against a selection.

    Raises as `select`.
    """
    if len(subset) == 0:
        raise InfluenceError("There is nothing to select from: the subset is empty.")
    if earlier := subset.manifest.get("selection"):
        raise InfluenceError(
            f"This subset is a selection already ({earlier['size']:,} of {earlier['of']:,} passages by "
            f"{earlier['method']}). Select from the subset that it was made of."
        )
    subset.tell_of_other_task(task)
    if method == "iss" and task_split == "validation" and not len(task.splits.get("validation") or ()):
        raise InfluenceError(
            f"Task {task.name} has no validation examples, whose loss influence is measured on. Split off some of training."
        )
    for name, value in (("num_passages", num_passages), ("top_k", top_k)):
        if value is not None and value > len(subset):
            raise InfluenceError(f"{name} {value:,} is more than the {len(subset):,} passages of the subset. Lower it.")
    return num_passages if fraction is None else max(1, round(fraction * len(subset)))


def _check_given(method, subset, scorer, scores, sharding, num_processes) -> None:
    """Whether what the method chooses by is there, and nothing beside it that it has no use for."""
    if method == "iss" and scorer is None:
        raise InfluenceError("Selection by influence needs a scorer: an InfluenceScorer of the score model.")
    if method in BY_TEACHER and (scores is None or len(scores.values) != len(subset)):
        received = "none" if scores is None else f"{len(scores.values):,}"
        raise InfluenceError(
            f"Selection by {method} needs the scores of a teacher for the {len(subset):,} passages, which "
            f"hf_tlm.runs.teacher_scores gives; received {received}."
        )
    if sharding is None:
        return
    check_executor(method, sharding.executor, sharding.num_shards, sharding.workers, None)
    if num_processes > 1:
        raise InfluenceError(
            f"An executor is started by one process; received {sharding.executor} in {num_processes} processes. Start it "
            "without accelerate launch, or leave the executor out."
        )


def _task_rows(
    task: Task, split: str, tokenizer: PreTrainedTokenizerBase, max_length: int, batch_size: int, balance: str | None
) -> tuple[Dataset, list[int] | None, int]:
    """Tokenised examples of a split in the order of their batches; the class of each batch; how many were left out."""
    rows = tokenize(task.splits[split], tokenizer, max_length, description=f"Tokenising {split}")
    if balance is None:
        return rows, None, 0
    labels = np.asarray(rows["label"][:])
    kept, classes = [], []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        batches = len(members) // batch_size
        if not batches:
            raise InfluenceError(
                f"Balance by class needs a task batch of every class: {task.label_names[label]!r} has {len(members)} "
                f"{split} examples, and task_batch_size is {batch_size}. Lower it to {len(members)} or less."
            )
        kept.append(members[: batches * batch_size])
        classes += [int(label)] * batches
    chosen = np.concatenate(kept)
    return rows.select(chosen), classes, len(rows) - len(chosen)


def _selected(subset: Subset, rows: np.ndarray, columns: dict[str, np.ndarray], made: dict[str, Any]) -> Subset:
    """The rows with further columns, and a manifest that tells of them."""
    dataset = subset.dataset.select(rows)
    for name, values in columns.items():
        if name in dataset.column_names:
            dataset = dataset.remove_columns(name)
        dataset = dataset.add_column(name, values, feature=Value(str(values.dtype)))
    manifest = copy.deepcopy(subset.manifest)
    manifest["selection"] = {"size": len(rows), "of": len(subset), **made}
    if hub := manifest.pop("hub", None):
        manifest["selection"]["hub"] = hub  # Where the whole is; the part is not there.
    manifest["counts"]["union"] = len(rows)
    if columns:
        manifest["versions"] = {**manifest.get("versions", {}), **{name: version(name) for name in PACKAGES}}
    return Subset(dataset, manifest)
