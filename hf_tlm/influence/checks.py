"""Checks of a selection's options; imports nothing heavy, because recipes' `--help` reads this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_tlm.errors import InfluenceError
from hf_tlm.retrieval.settings import SELECTIONS
from hf_tlm.utils.options import check_numbers

METHODS = tuple(SELECTIONS)
# Methods that rank passages by the scores of a teacher.
BY_TEACHER = ("confidence", "disagreement")
# Methods without a model.
CONTROLS = tuple(method for method in METHODS if method not in ("iss", *BY_TEACHER))
BALANCES = ("class",)
TASK_SPLITS = ("validation", "train")
GROUP_LOSSES = ("passages", "tokens")
# Options that only iss uses, besides those that are refused below.
OF_ISS = (
    *("corpus_batch_size", "task_batch_size", "score_model", "layer", "parameters", "projection_dim", "work_dir"),
    *("score_mlm_probability", "score_max_length", "score_batch_size", "task_split", "mask_task_texts", "group_loss"),
)


def check_selection(
    method: str,
    *,
    fraction: float | None,
    top_k: int | None,
    num_passages: int | None,
    balance: str | None,
    corpus_batch_size: int,
    task_batch_size: int,
    task_split: str = "validation",
    group_loss: str = "passages",
) -> None:
    """Check the options of a selection, as far as possible before subset and task are read.

    Raises:
        InfluenceError: the method, balance, split or loss is unknown, or the size is missing, given twice, out of range, or
            of a kind that the method does not support.
    """
    if method not in METHODS:
        raise InfluenceError(f"method: expected one of {', '.join(METHODS)}; received {method!r}.")
    sizes = {"fraction": fraction, "top_k": top_k, "num_passages": num_passages}
    given = {name: value for name, value in sizes.items() if value is not None}
    if len(given) != 1:
        received = ", ".join(f"{name} {value}" for name, value in given.items()) or "none"
        raise InfluenceError(f"A selection needs its size as exactly one of {', '.join(sizes)}; received {received}.")
    check_numbers(InfluenceError, **sizes, corpus_batch_size=corpus_batch_size, task_batch_size=task_batch_size)
    if top_k is not None and method != "iss":
        raise InfluenceError(
            f"top_k is the number of passages per task batch, which only iss has; received method {method}. Pass fraction "
            "or num_passages instead: the size of the subset to compare with."
        )
    for name, value, known in (("task_split", task_split, TASK_SPLITS), ("group_loss", group_loss, GROUP_LOSSES)):
        if value not in known:
            raise InfluenceError(f"{name} must be {' or '.join(known)}; received {value!r}.")
    if balance is None:
        return
    if balance not in BALANCES:
        raise InfluenceError(f"balance must be {' or '.join(BALANCES)}, or None; received {balance!r}.")
    if method not in ("iss", *BY_TEACHER) or top_k is not None:
        raise InfluenceError(
            f"balance {balance!r} distributes passages over classes: it needs method iss, {' or '.join(BY_TEACHER)}, and "
            f"fraction or num_passages; received method {method}{'' if top_k is None else f', top_k {top_k}'}. Remove it."
        )


def check_executor(
    method: str, executor: str | None, num_shards: int | None, workers: int | None, executor_options: str | None
) -> None:
    """Check the options of an executor.

    Raises:
        InfluenceError: an executor is given with another method than iss, its options are given without an executor, or a
            number is out of range.
    """
    options = {"num_shards": num_shards, "workers": workers, "executor_options": executor_options}
    given = {name: value for name, value in options.items() if value is not None}
    if executor is None and given:
        raise InfluenceError(
            f"{', '.join(given)} have no effect without an executor: add --executor local (ray, slurm, jobs), or remove "
            "them."
        )
    if executor is not None and method != "iss":
        raise InfluenceError(f"An executor scores passages, which only iss does; received {executor} with {method}.")
    check_numbers(InfluenceError, num_shards=num_shards, workers=workers)


def without_effect(method: str, given: Mapping[str, Any]) -> list[str]:
    """Return the options that the method does not use, as "name value".

    They are not an error, because the files of a table or of a scale give them for all of its selections.

    Args:
        given: options that are not at their default.
    """
    idle = {name: value for name, value in given.items() if name in OF_ISS and method != "iss"}
    if method not in ("iss", *BY_TEACHER) and "teacher" in given:
        idle["teacher"] = given["teacher"]
    if method in ("bm25-rank", *BY_TEACHER) and "selection_seed" in given:
        idle["selection_seed"] = given["selection_seed"]
    return [f"{name} {value}" for name, value in idle.items()]
