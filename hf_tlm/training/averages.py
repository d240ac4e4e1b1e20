"""Averages over the steps of a run: of losses, and of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

from hf_tlm.objectives.terms import accumulation_dtype

# Of a checkpoint: the weights that training goes on from, where those of the model are averaged ones.
RAW_WEIGHTS = "raw_weights.safetensors"


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


class AveragedWeights(TrainerCallback):
    """Exponential moving average of the weights that a run trains (Polyak and Juditsky, 1992, with a decay).

    After step t (from 1) average = d average + (1 - d) weight, d = min(decay, (1 + t) / (10 + t)), so that the random first
    steps are soon forgotten. They start as the weights are when training begins. Processes that hold the same weights hold
    the same averages.

    Args:
        decay: share of the average that a step leaves.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.model: nn.Module | None = None
        # Empty: none are kept, before training and after it.
        self._averages: dict[str, torch.Tensor] = {}

    def _weights(self) -> dict[str, nn.Parameter]:
        assert self.model is not None  # `start` comes before all else.
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def start(self, model: nn.Module) -> None:
        """From the weights of `model` as they are."""
        self.model = model
        self._averages = {name: weight.detach().clone() for name, weight in self._weights().items()}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if not self._averages:  # A checkpoint was not read.
            self.start(model)

    @torch.no_grad()
    def on_step_end(self, args, state, control, **kwargs):
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        get_ema_multi_avg_fn(decay)([*self._averages.values()], [*self._weights().values()], state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if not args.load_best_model_at_end:  # Which would be averages already.
            self._exchange()
        self._averages = {}

    @torch.no_grad()
    def _exchange(self) -> None:
        """What is in the model is kept, and the other way round."""
        for name, weight in self._weights().items():
            kept = self._averages[name].clone()
            self._averages[name].copy_(weight)
            weight.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While training, the model has the averages in the block."""
        if not self._averages:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def save(self, checkpoint: Path) -> None:
        """Write the raw weights beside the averages, which the checkpoint has as its model's."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self._weights().items()}
        save_file(weights, checkpoint / RAW_WEIGHTS)

    @torch.no_grad()
    def load(self, model: nn.Module, checkpoint: Path) -> None:
        """Take the averages from `model`, into which the checkpoint was read, and give it the raw weights."""
        self.start(model)
        raw = load_file(checkpoint / RAW_WEIGHTS)
        for name, weight in self._weights().items():
            weight.copy_(raw[name])
