"""Inputs and output gradients of modules, token by token, from which gradients of their parameters follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Tokens:
    """What a module saw of the tokens (A of them, ordered by text) at which its output has a gradient.

    text: int64 [A], the text of each. inputs: float [A, I], or int64 [A] for an embedding. gradients: float [A, O], of the
    loss by the module's output. Floats are float32 or wider.
    """

    text: torch.Tensor
    inputs: torch.Tensor
    gradients: torch.Tensor

    def of_texts(self, text: torch.Tensor) -> Tokens:
        """The same tokens as those of other texts, int64 [A], ordered by them."""
        order = torch.argsort(text, stable=True)
        return Tokens(text[order], self.inputs[order], self.gradients[order])


class Capture:
    """Keeps the inputs and outputs of modules during a forward pass in which no parameter needs a gradient.

    The outputs are made to need one: autograd's graph begins there, and all that lies before is a plain forward pass. Texts
    are the first dimension of inputs and outputs.

    Args:
        num_texts: what is computed once for all texts, as the embeddings of positions may be, is given a row for each.
        tail: modules that see tokens of all texts in a row, [1, M, ...] (see `Tail`); tail_text: int64 [M], their texts.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        num_texts: int,
        tail: Collection[nn.Module] = (),
        tail_text: torch.Tensor | None = None,
    ):
        self.modules, self.num_texts = list(modules), num_texts
        self._text = [tail_text if module in tail else None for module in self.modules]
        self._calls: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in self.modules]

    def __enter__(self) -> Capture:
        self._handles = [module.register_forward_hook(self._keep) for module in self.modules]
        return self

    def __exit__(self, *error) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep(self, module: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
        place, inputs = self.modules.index(module), arguments[0]
        if len(output) != self.num_texts and self._text[place] is None:
            inputs = inputs.expand(self.num_texts, *inputs.shape[1:])
            output = output.expand(self.num_texts, *output.shape[1:])
        # Of an output that needs one already this changes nothing.
        output.requires_grad_()
        self._calls[place].append((inputs.detach(), output))
        return output

    def tokens(self, loss: torch.Tensor) -> list[Tokens]:
        """Of each module, all of its calls together. The graph is used up."""
        outputs = [output for calls in self._calls for _, output in calls]
        gradients = iter(torch.autograd.grad(loss, outputs, allow_unused=True))
        found = []
        for calls, text in zip(self._calls, self._text, strict=True):
            parts = [_active(inputs, output, next(gradients), text) for inputs, output in calls]
            calls.clear()
            found.append(parts[0] if len(parts) == 1 else _together(parts))
        return found


def _together(parts: Sequence[Tokens]) -> Tokens:
    text = torch.cat([part.text for part in parts])
    inputs, gradients = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "gradients"))
    return Tokens(text, inputs, gradients).of_texts(text)


def _active(
    inputs: torch.Tensor, output: torch.Tensor, gradient: torch.Tensor | None, tail_text: torch.Tensor | None
) -> Tokens:
    if gradient is None:
        gradient = torch.zeros_like(output)
    active = (gradient != 0).any(dim=-1)
    gradients, inputs = gradient[active], inputs[active]
    wide = torch.promote_types(gradients.dtype, torch.float32)
    if inputs.is_floating_point():
        inputs = inputs.to(wide)
    text = active.nonzero()[:, 0] if tail_text is None else tail_text[active[0]]
    return Tokens(text, inputs, gradients.to(wide))
