"""Which loss each stream of batches gets, and the averages of its terms that are logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator

from hf_tlm.data.interleave import CORPUS, TASK
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.objectives import (
    CorrectiveLm,
    Mlm,
    RDrop,
    ReplacedTokenDetection,
    SequenceContrastive,
    SequenceCosines,
    TaskLoss,
    TeacherLoss,
    WeightedMean,
    WeightedSum,
)
from hf_tlm.objectives.terms import accumulation_dtype
from hf_tlm.training.run_arguments import RunArguments


def tlm_objectives(args: RunArguments, weights: Sequence[float] | None = None) -> dict[str, Any]:
    """Return the objectives of a run of TLM: of corpus batches, where it has any, and of task batches.

    Stage 1 (TLM, section 3.1): corpus batches L_lm; task batches rho2 L_lm + L_task, divided by rho2 + 1 where
    `loss_normalization` is `mean`; L_lm is `language_objective`. Stage 2 (`for_stage(2)`): L_task, or with `stage2_rdrop`
    R-Drop's; with `stage2_rho2` the language-modelling loss beside it as in stage 1. With a `teacher` L_task has
    `teacher_weight` x `TeacherLoss` added in both stages.

    Args:
        weights: of the task's classes; None: all are 1.
    """
    smoothing = args.label_smoothing_factor
    task: Any = RDrop(args.rdrop, smoothing, weights) if args.rdrop else TaskLoss(smoothing, weights)
    if args.taught:
        task = WeightedSum((1.0, task), (args.teacher_weight, TeacherLoss(args.teacher_temperature)))
    if args.mlm_probability == 0:
        return {TASK: task}
    combine = WeightedMean if args.loss_normalization == "mean" else WeightedSum
    language = language_objective(args)
    return {CORPUS: language, TASK: combine((args.rho2, language), (1.0, task))}


def language_objective(args: RunArguments) -> Any:
    """Return L_lm, the language-modelling objective, as the facts of `args.objective` ask for it.

    It is the masked-LM loss; where an auxiliary model replaces tokens (electra, ale) that of the auxiliary model plus
    `rtd_weight` times replaced token detection (Clark et al. 2020, section 2); where the main model corrects them (cocolm)
    plus corrective language modelling and sequence contrastive learning (Meng et al., NeurIPS 2021, equation 4), or what
    `clm` and `scl` leave of them (Table 3).
    """
    spec = OBJECTIVES[args.objective]
    if not spec.corrupts:
        return Mlm()
    parts: list[tuple[float, Any]] = [(1.0, Mlm())]
    if not spec.corrects or args.clm == "rtd":
        parts.append((args.rtd_weight, ReplacedTokenDetection()))
    elif args.clm == "all_token":
        parts.append((1.0, CorrectiveLm(0.0, stop_gradient=False, all_tokens=True)))
    else:
        parts.append((1.0, CorrectiveLm(args.rtd_weight, copy=args.clm == "full", stop_gradient=args.stop_gradient)))
    if spec.contrasts and args.scl:
        parts.append((1.0, SequenceContrastive(args.scl_temperature)))
    elif args.scl_cosines:
        parts.append((1.0, SequenceCosines()))
    return WeightedSum(*parts)


def term_names(objective: Any) -> list[str]:
    """Names of the terms that an objective is logged and evaluated by, beside its loss."""
    return list(dict.fromkeys(name for part in _parts(objective) for name in getattr(part, "terms", ())))


def corrective_lm(objectives: Mapping[str, Any]) -> CorrectiveLm | None:
    """The one that is part of the objectives, if there is one."""
    return next(
        (part for objective in objectives.values() for part in _parts(objective) if isinstance(part, CorrectiveLm)), None
    )


def _parts(objective: Any) -> Iterator[Any]:
    yield objective
    if isinstance(objective, WeightedSum):
        for _, part in objective.parts:
            yield from _parts(part)


class LossAverages:
    """Sums and what they are divided by, by name, since they were last read."""

    def __init__(self):
        self._pairs: dict[str, torch.Tensor] = {}

    def add(self, pairs: Mapping[str, torch.Tensor], prefix: str = "") -> None:
        """Collect pairs (sum, count), `accumulation_dtype` [2], by name."""
        for name, pair in pairs.items():
            self._pairs[prefix + name] = self._pairs.get(prefix + name, 0.0) + pair

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """Return sum / count of every term over all processes, which must call this together; begin anew.

        A term of nothing (the accuracy on replaced tokens where none was) is left out.
        """
        if not self._pairs:
            return {}
        names = sorted(self._pairs)
        totals = accelerator.reduce(torch.stack([self._pairs[name] for name in names]), reduction="mean").tolist()
        self._pairs = {}
        return {name: round(total / count, 6) for name, (total, count) in zip(names, totals, strict=True) if count}


def in_pairs(terms: Mapping[str, torch.Tensor], sums: Callable[[str, torch.Tensor], tuple]) -> dict[str, torch.Tensor]:
    """The terms of an objective (`hf_tlm.objectives`), its scalars as pairs too: `sums` says of what sum and count."""

    def pair(name: str, value: torch.Tensor) -> torch.Tensor:
        if value.dim():
            return value
        # A number that is copied to a GPU waits for all that was begun there; one that is filled in does not.
        parts = [x if isinstance(x, torch.Tensor) else torch.full((), x, device=value.device) for x in sums(name, value)]
        return torch.stack([x.to(value.device, accumulation_dtype(value.device)) for x in parts])

    return {name: pair(name, value) for name, value in terms.items()}
