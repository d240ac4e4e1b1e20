"""Selection of a smaller subset: by influence on the task (ISS), by a teacher, or by a control method at the same size."""

from __future__ import annotations

import copy
from collections import Counter
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
from hf_tlm.utils.options import check_numbers, to_python

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
    """Select the passages of a subset that help the task most; they keep the subset's order.

    ISS (Wang et al., 2023): a passage's influence on a batch of validation examples is the inner product of the gradient of
    its masked-LM loss and the gradient of their task loss: to first order, how much a step on the passage lowers their loss.

    Args:
        method: "iss", or another rule that keeps the same number of passages: "confidence" and "disagreement" (the highest
            `scores` of teachers), "dsir" (likelihood of their n-grams in the training texts, see
            `hf_tlm.influence.selection`), "bm25-rank" (the first of the subset), "random".
        fraction: share of the subset to keep, rounded to a passage. Give exactly one of `fraction`, `num_passages` and
            `top_k`.
        top_k: iss only: keep the union of the `top_k` passages that each task batch ranks first.
        num_passages: number of passages to keep.
        balance: "class" lets the classes of the validation examples take turns; a task batch then holds examples of one
            class, and examples that do not fill a batch are left out. With a teacher, the classes that it predicts for
            the passages take turns. Needs `fraction` or `num_passages`.
        corpus_batch_size: B_p of the paper's Table A.1, passages that are scored together; 1 scores each by itself, at the
            same cost.
        task_batch_size: B_t, examples of the task that share a gradient.
        task_split: split on whose loss influence is measured: "validation" (Algorithm 1) or "train" (the released code).
        group_loss: loss of passages that are scored together. "passages": the sum of each passage's mean over its masked
            tokens; "tokens": the mean over all masked tokens of the group (the released code). Equal without groups.
        seed: seed of "dsir" and "random".
        scorer: for "iss", an `InfluenceScorer` of the score model or its checkpoints.
        scores: for "confidence" and "disagreement", see `hf_tlm.runs.teacher_scores`.
        max_length: for iss, the length at which texts are truncated for scoring; default: see `InfluenceScorer.max_length`.
        score_model: the name of the score model in the manifest, a JSON value.
        work_dir, process_index, num_processes: see `hf_tlm.influence.score`.
        sharding: score on an executor of datatrove instead, started by this process alone; see
            `hf_tlm.influence.sharded.score_sharded`.

    Returns:
        A subset with the same columns; for iss also `influence` (float32, mean over task batches) and `influence_rank`
        (int32, the best rank of the passage's group over task batches, from 1); for a teacher's method `teacher_score`
        (float32). The manifest has the additional entry `selection`.

    Raises:
        InfluenceError: the size is missing, given more than once or larger than the subset; the subset is empty or a
            selection already; iss has no scorer, no validation split, or not enough passages that can be scored; a teacher's
            method has no `scores`, scores of other passages, or too few; `max_length` does not fit the scorer
            (`InfluenceScorer.max_length`); or see `hf_tlm.influence.score`.
        TaskError: the task is not a classification task.
    """
    check_task(task, "Selection by influence", "classification")
    check_subset(subset)
    # Convert to Python numbers: the manifest is JSON.
    fraction, top_k, num_passages, seed, max_length = map(to_python, (fraction, top_k, num_passages, seed, max_length))
    check_numbers(InfluenceError, seed=seed)
    corpus_batch_size, task_batch_size = map(to_python, (corpus_batch_size, task_batch_size))
    sizes: dict[str, Any] = {"fraction": fraction, "top_k": top_k, "num_passages": num_passages}
    batches = {"corpus_batch_size": corpus_batch_size, "task_batch_size": task_batch_size}
    check_selection(method, **sizes, **batches, balance=balance, task_split=task_split, group_loss=group_loss)
    of_batches: dict[str, Any] = {"balance": balance, "task_batch_size": task_batch_size}
    size = check_inputs(task, subset, method, **sizes, task_split=task_split, **of_batches)
    _check_given(method, subset, scorer, scores, sharding, num_processes)
    description: dict[str, Any] = {"method": method, **{name: value for name, value in sizes.items() if value is not None}}
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
        selection = select_rows(
            influence,
            corpus_batch_size=corpus_batch_size,
            top_k=top_k,
            num_passages=size,
            classes=classes,
            weights=scorer.masked_tokens(passages) if group_loss == "tokens" else None,
        )
        chosen, columns = selection.rows, {"influence": selection.influence, "influence_rank": selection.rank}
        description |= {
            **batches,
            # The paper's values are left out, so that manifests equal those of versions without these options.
            **({"task_split": task_split} if task_split != "validation" else {}),
            **({"group_loss": group_loss} if group_loss != "passages" else {}),
            "task_batches": influence.shape[1],
            "balance": balance,
            "validation_examples_left_out": left_out,
            "passages_without_score": selection.unscored,
            "passages_not_finite": selection.not_finite,
            "max_length": max_length,
            "score_model": score_model,
            "scorer_fingerprint": scorer.fingerprint,
            **scorer.settings,
        }
    else:
        assert size is not None  # Only iss accepts top_k instead.
        if method in BY_TEACHER:
            assert scores is not None
            chosen = best_rows(scores.values, size, scores.classes if balance else None)
            columns = {"teacher_score": scores.values[chosen].astype(np.float32)}
            description |= {"balance": balance, "passages_without_score": int(np.isnan(scores.values).sum()), **scores.about}
        elif method == "dsir":
            weights = log_importance_weights(example_texts(task.train), subset.dataset["text"])
            chosen = resample(weights, subset.dataset["id"][:], size, seed)
            description |= {"num_buckets": NUM_BUCKETS, "seed": seed}
        elif method == "random":
            chosen = np.sort(np.random.default_rng(seed % 2**64).permutation(len(subset))[:size])
            description |= {"seed": seed}
        else:
            chosen = np.arange(size)
    return _create_subset(subset, chosen, columns, description)


def check_inputs(
    task: Task,
    subset: Subset,
    method: str,
    *,
    fraction: float | None = None,
    top_k: int | None = None,
    num_passages: int | None = None,
    task_split: str = "validation",
    balance: str | None = None,
    task_batch_size: int = 1,
) -> int | None:
    """Check that passages of the subset can be selected for the task; return how many to keep, None if `top_k` decides.

    Raises:
        InfluenceError, TaskError: see `select`.
    """
    if len(subset) == 0:
        raise InfluenceError("Cannot select from an empty subset.")
    if earlier := subset.manifest.get("selection"):
        raise InfluenceError(
            f"This subset is a selection already ({earlier['size']:,} of {earlier['of']:,} passages by "
            f"{earlier['method']}). Select from the subset that it was chosen from."
        )
    subset.tell_of_other_task(task)
    if method == "iss" and task_split == "validation" and not len(task.splits.get("validation") or ()):
        raise InfluenceError(
            f"Task {task.name} has no validation examples, on whose loss influence is measured. Split off some training "
            "examples."
        )
    if method == "iss" and balance is not None:
        for label, count in sorted(Counter(task.splits[task_split]["label"][:]).items()):
            if count < task_batch_size:
                raise InfluenceError(
                    f"Balance by class needs a task batch of every class: {task.label_names[label]!r} has {count} "
                    f"{task_split} examples, and task_batch_size is {task_batch_size}. Lower task_batch_size to {count} or "
                    "less."
                )
    for name, value in (("num_passages", num_passages), ("top_k", top_k)):
        if value is not None and value > len(subset):
            raise InfluenceError(f"{name} {value:,} is more than the {len(subset):,} passages of the subset. Lower {name}.")
    return num_passages if fraction is None else max(1, round(fraction * len(subset)))


def _check_given(method, subset, scorer, scores, sharding, num_processes) -> None:
    """Check that the method has the scorer or scores that it needs and supports the executor, or raise InfluenceError."""
    if method == "iss" and scorer is None:
        raise InfluenceError("Selection by influence needs a scorer. Pass an InfluenceScorer of the score model.")
    if method in BY_TEACHER and (scores is None or len(scores.values) != len(subset)):
        received = "none" if scores is None else f"{len(scores.values):,}"
        raise InfluenceError(
            f"Selection by {method} needs the scores of a teacher for the {len(subset):,} passages, which "
            f"hf_tlm.runs.teacher_scores computes; received {received}."
        )
    if sharding is None:
        return
    check_executor(method, sharding.executor, sharding.num_shards, sharding.workers, None)
    if num_processes > 1:
        raise InfluenceError(
            f"An executor must be started by a single process; received {sharding.executor} in {num_processes} processes. "
            "Start the command without accelerate launch, or remove the executor."
        )


def _task_rows(
    task: Task, split: str, tokenizer: PreTrainedTokenizerBase, max_length: int, batch_size: int, balance: str | None
) -> tuple[Dataset, list[int] | None, int]:
    """Return the tokenised examples of a split in batch order, the class of each batch, and how many were left out."""
    rows = tokenize(task.splits[split], tokenizer, max_length, description=f"Tokenising {split}")
    if balance is None:
        return rows, None, 0
    labels = np.asarray(rows["label"][:])
    groups, classes = [], []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        batches = len(members) // batch_size
        groups.append(members[: batches * batch_size])
        classes += [int(label)] * batches
    selected = np.concatenate(groups)
    return rows.select(selected), classes, len(rows) - len(selected)


def _create_subset(subset: Subset, rows: np.ndarray, columns: dict[str, np.ndarray], description: dict[str, Any]) -> Subset:
    """Return the subset's `rows` with additional columns, and a manifest that describes the selection."""
    dataset = subset.dataset.select(rows)
    for name, values in columns.items():
        if name in dataset.column_names:
            dataset = dataset.remove_columns(name)
        dataset = dataset.add_column(name, values, feature=Value(str(values.dtype)))
    manifest = copy.deepcopy(subset.manifest)
    manifest["selection"] = {"size": len(rows), "of": len(subset), **description}
    if hub := manifest.pop("hub", None):
        manifest["selection"]["hub"] = hub  # The complete subset is on the Hub, the selection is not.
    manifest["counts"]["union"] = len(rows)
    if columns:
        manifest["versions"] = {**manifest.get("versions", {}), **{name: version(name) for name in PACKAGES}}
    return Subset(dataset, manifest)
