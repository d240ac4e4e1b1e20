"""Construction of the objective of each stream of batches, and the logged averages of its loss terms."""

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
    """Return the objectives of a run of TLM by stream: of corpus batches, if it can have any, and of task batches.

    Stage 1 (TLM, section 3.1): corpus batches have L_lm, task batches rho2 L_lm + L_task, divided by rho2 + 1 if
    `loss_normalization` is `mean`; L_lm is `language_objective`. Stage 2 (`for_stage(2)`): L_task, or with `stage2_rdrop`
    R-Drop's loss; with `stage2_rho2` it is combined with L_lm as in stage 1. With a `teacher`,
    `teacher_weight` x `TeacherLoss` is added to L_task in both stages.

    Args:
        weights: weights of the task's classes; None: all are 1.
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
    """Return L_lm, the language-modelling objective of `args.objective`.

    - mlm, span: the masked-LM loss.
    - electra, ale: the masked-LM loss of the auxiliary model, which replaces tokens, plus `rtd_weight` times replaced token
      detection (Clark et al. 2020, section 2).
    - cocolm: the masked-LM loss of the auxiliary model plus corrective language modelling and sequence contrastive learning
      (Meng et al., NeurIPS 2021, equation 4), unless `clm` and `scl` change or remove them (Table 3).
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
    """Return the names of an objective's terms that are logged and evaluated, besides its loss."""
    return list(dict.fromkeys(name for part in _parts(objective) for name in getattr(part, "terms", ())))


def corrective_lm(objectives: Mapping[str, Any]) -> CorrectiveLm | None:
    """Return the `CorrectiveLm` that is part of the objectives, or None."""
    return next(
        (part for objective in objectives.values() for part in _parts(objective) if isinstance(part, CorrectiveLm)), None
    )


def _parts(objective: Any) -> Iterator[Any]:
    yield objective
    if isinstance(objective, WeightedSum):
        for _, part in objective.parts:
            yield from _parts(part)


class LossAverages:
    """Running sums and counts of named loss terms since they were last read."""

    def __init__(self):
        self._pairs: dict[str, torch.Tensor] = {}

    def add(self, pairs: Mapping[str, torch.Tensor], prefix: str = "") -> None:
        """Add pairs (sum, count), `accumulation_dtype` [2], by name."""
        for name, pair in pairs.items():
            self._pairs[prefix + name] = self._pairs.get(prefix + name, 0.0) + pair

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """Return sum / count of every term over all processes, which must call this together, and reset the sums.

        A term with count 0 (such as the accuracy on replaced tokens if none was replaced) is left out.
        """
        if not self._pairs:
            return {}
        names = sorted(self._pairs)
        totals = accelerator.reduce(torch.stack([self._pairs[name] for name in names]), reduction="mean").tolist()
        self._pairs = {}
        return {name: round(total / count, 6) for name, (total, count) in zip(names, totals, strict=True) if count}


def in_pairs(terms: Mapping[str, torch.Tensor], sums: Callable[[str, torch.Tensor], tuple]) -> dict[str, torch.Tensor]:
    """Return the terms of an objective (`hf_tlm.objectives`) as pairs (sum, count), `accumulation_dtype` [2].

    Args:
        terms: pairs, which are returned unchanged, or scalars.
        sums: returns the sum and the count of a scalar term by its name and value.
    """

    def pair(name: str, value: torch.Tensor) -> torch.Tensor:
        if value.dim():
            return value
        # Copying a number to a GPU waits for all pending work there; filling a tensor with it does not.
        tensors = [x if isinstance(x, torch.Tensor) else torch.full((), x, device=value.device) for x in sums(name, value)]
        return torch.stack([x.to(value.device, accumulation_dtype(value.device)) for x in tensors])

    return {name: pair(name, value) for name, value in terms.items()}
