"""One model whose gradients are taken: forward passes, and what they leave at the chosen parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from xxhash import xxh3_64

from hf_tlm.errors import InfluenceError
from hf_tlm.influence.gradients import Capture, EmbeddingGradient, MatrixGradient, Tokens, VectorGradient
from hf_tlm.influence.losses import Decoded, mlm_loss, task_loss
from hf_tlm.influence.parameters import Parameter
from hf_tlm.models import TlmModel
from hf_tlm.models.cpu_kernels import faster_kernels
from hf_tlm.models.tail import Tail

Gradient = VectorGradient | MatrixGradient | EmbeddingGradient
# What a config says of where a model came from and how it was kept; the weights tell their own dtype.
_NOT_OF_THE_MODEL = {"_name_or_path", "architectures", "dtype", "transformers_version"}


class Checkpoint:
    """A trained model, and the gradients that are taken of its chosen parameters.

    Attributes:
        modules: those that own the chosen parameters.
        gradients: of each parameter, the place of its module and what is kept of gradients. Keys begin with `number`.
    """

    def __init__(self, model: TlmModel, parameters: Sequence[Parameter], number: int, projection_dim: int | None, seed: int):
        body: Any = model.base_model
        self.model, self.tail = model, Tail(body)
        self.modules = list(dict.fromkeys(parameter.module for parameter in parameters))
        self.gradients: list[tuple[int, Gradient]] = []
        for place, parameter in enumerate(parameters):
            module, key = parameter.module, f"{number}/{place}/{parameter.name}"
            gradient: Gradient
            if isinstance(module, nn.Embedding):
                gradient = EmbeddingGradient(key, module, tied=module.weight is model.mlm_head.weight)
            elif isinstance(module, nn.Linear) and parameter.attribute == "weight":
                gradient = MatrixGradient(key, module, projection_dim, seed)
            else:
                gradient = VectorGradient(key, module, parameter.attribute)
            self.gradients.append((self.modules.index(module), gradient))

    def of_tasks(self, batch: dict[str, torch.Tensor], weights: torch.Tensor) -> list[Tokens]:
        """By module, of the loss of each text times its weight, float [B]."""
        batch, weights = self._here(batch), weights.to(self.model.device)
        with faster_kernels(self.model.device), torch.enable_grad(), Capture(self.modules, len(weights)) as capture:
            return capture.tokens(task_loss(self.model, batch, weights))

    def of_passages(self, batch: dict[str, torch.Tensor], vocabulary: torch.Tensor | None) -> list:
        """By parameter, of the masked-LM loss of each passage, in the form that meets the task batches'."""
        batch = self._here(batch)
        count, text = len(batch["input_ids"]), (batch["mlm_labels"] != -100).nonzero()[:, 0]
        with (
            faster_kernels(self.model.device),
            torch.enable_grad(),
            Capture(self.modules, count, self.tail.modules, text) as capture,
        ):
            loss, decoded = mlm_loss(self.model, batch, vocabulary)
            tokens = capture.tokens(loss)
        return [gradient.of_passages(tokens[at], count, decoded) for at, gradient in self.gradients]

    def add_to(self, digest: xxh3_64) -> None:
        """Add the model's config and weights to a hash."""
        config = {name: value for name, value in self.model.config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())

    def _here(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: values.to(self.model.device) for name, values in batch.items()}


def check_alike(models: Sequence[TlmModel]) -> None:
    """Raise an InfluenceError for models with other parameters than the first."""
    first, *others = ({name: tuple(p.shape) for name, p in model.named_parameters()} for model in models)
    for number, shapes in enumerate(others, start=2):
        if differ := sorted(name for name in {*first, *shapes} if first.get(name) != shapes.get(name)):
            raise InfluenceError(
                f"Scores are averaged over checkpoints of one model: number {number} has another {differ[0]} than the first "
                f"({shapes.get(differ[0])} for {first.get(differ[0])}). Give checkpoints of one run."
            )


def nbytes(values: Any) -> int:
    """Of all tensors in what `Checkpoint.of_passages` returns."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    if isinstance(values, Decoded):
        values = list(vars(values).values())
    return sum(map(nbytes, values)) if isinstance(values, (list, tuple)) else 0
