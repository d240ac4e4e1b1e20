"""The end of the last layer, where no token sees another: there only the tokens that a loss reads need to be computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers.models.bert.modeling_bert import BertSelfOutput
from transformers.models.electra.modeling_electra import ElectraSelfOutput
from transformers.models.roberta.modeling_roberta import RobertaSelfOutput

from hf_tlm.influence.parameters import layers_of
from hf_tlm.models import TlmModel

# What follows attention in a layer, called with attention's result and the residual.
_AFTER_ATTENTION = (BertSelfOutput, ElectraSelfOutput, RobertaSelfOutput)


class Tail:
    """All that comes after attention in the last layer: two thirds of its products, in a forward pass and in a backward one.

    Only layers that are built like BERT's have a place where tokens can be left out; of others the tail is empty.

    modules: those that see only the tokens that are left.
    """

    def __init__(self, model: TlmModel):
        layer = layers_of(model)[-1][0][1]
        outputs = [module for module in layer.modules() if isinstance(module, _AFTER_ATTENTION)]
        self._first = outputs[0] if len(outputs) == 1 else None
        self.modules: set[nn.Module] = set()
        if self._first is not None:
            self.modules = set(layer.modules()) - set(layer.attention.modules()) | set(self._first.modules())

    @contextmanager
    def only(self, chosen: torch.Tensor) -> Iterator[None]:
        """Leave out the tokens that are not chosen, bool [R, S]: the modules see float [1, M, H], M chosen tokens."""
        if self._first is None:
            yield
            return
        handle = self._first.register_forward_pre_hook(lambda module, inputs: tuple(x[chosen][None] for x in inputs))
        try:
            yield
        finally:
            handle.remove()
