"""The end of the last layer, where no token sees another: there only the tokens that a loss reads need to be computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.bert.modeling_bert import BertSelfOutput
from transformers.models.electra.modeling_electra import ElectraSelfOutput
from transformers.models.roberta.modeling_roberta import RobertaSelfOutput
from transformers.utils.generic import is_flash_attention_requested

from hf_tlm.models.base import encode, layer_stack

# What follows attention in a layer, called with attention's result and the residual.
_AFTER_ATTENTION = (BertSelfOutput, ElectraSelfOutput, RobertaSelfOutput)


class Tail:
    """All that comes after attention in a body's last layer: two thirds of its products, in a forward pass and a backward.

    Only layers that are built like BERT's have a place where tokens can be left out; of others the tail is empty. So it is
    with flash attention, whose kernels for texts of varying lengths take them in one row, where tokens stand elsewhere.

    modules: those that see only the tokens that are left.
    """

    def __init__(self, body: PreTrainedModel):
        layer = layer_stack(body)[-1]
        outputs = [module for module in layer.modules() if isinstance(module, _AFTER_ATTENTION)]
        self._first = outputs[0] if len(outputs) == 1 and not is_flash_attention_requested(body.config) else None
        self.modules: set[nn.Module] = set()
        if self._first is not None:
            within = set(self._first.modules())
            attention = next(set(m.modules()) for m in layer.modules() if m is not layer and within < set(m.modules()))
            self.modules = set(layer.modules()) - attention | within

    @contextmanager
    def only(self, chosen: torch.Tensor) -> Iterator[None]:
        """Leave out the tokens that are not chosen: the modules see float [1, M, H].

        chosen: int64 [M], places in the flattened rows.
        """
        assert self._first is not None  # An empty tail leaves nothing out.

        def leave_out(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(x.flatten(0, 1)[chosen][None] for x in inputs)

        handle = self._first.register_forward_pre_hook(leave_out)
        try:
            yield
        finally:
            handle.remove()


# How many there are differs from batch to batch: compiled, it would be compiled again and again.
@torch.compiler.disable
def places(chosen: torch.Tensor) -> torch.Tensor:
    """Where bool [R, S] is True in the flattened rows, int64 [M], ascending.

    A GPU has to be waited for until it has counted them: once, before a pass begins, and not wherever they are read.
    """
    found = chosen.flatten().nonzero().squeeze(1)
    torch._dynamo.maybe_mark_dynamic(found, 0)  # Else what is compiled with the first number of them is compiled once more.
    return found


def encode_masked_positions(
    body: PreTrainedModel,
    chosen: torch.Tensor,
    input_ids: torch.Tensor,
    *inputs: torch.Tensor | None,
) -> torch.Tensor:
    """Return the hidden states of the M chosen tokens, float [M, H], where nothing reads the others'.

    `chosen` are their `places`, int64 [M]. The states are those of `encode` with the same arguments. Where the body allows
    it, the tail is computed for them alone.
    """
    # What is compiled must not depend on M. A layer that is computed again in the backward pass, for its gradient, would be
    # computed whole. BERT's pooler wants a first token, whatever it is.
    whole = torch.compiler.is_compiling() or (body.training and body.is_activation_checkpointing) or not len(chosen)
    if not whole and (tail := Tail(body)).modules:
        with tail.only(chosen):
            return encode(body, input_ids, *inputs).hidden[0]
    return _choose(encode(body, input_ids, *inputs).hidden, chosen)


@torch.compiler.disable
def _choose(hidden: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return hidden.flatten(0, 1)[chosen]
