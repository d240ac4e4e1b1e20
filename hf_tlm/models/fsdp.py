"""A model that FSDP has sharded, whole again."""

from __future__ import annotations

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from hf_tlm.models.tlm import TlmModel


def gather_fsdp(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model, or where FSDP2 has sharded it a whole copy on each process, all of which must call this.

    FSDP shards a model in place and for good, and what follows a stage needs all of it: the export, and the next stage,
    which shards it anew.
    """
    if not isinstance(model, FSDPModule):
        return model
    state = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in model.state_dict().items()
    }
    copy = TlmModel.from_config(model.config)
    copy.to(model.dtype)  # type: ignore[arg-type]  # The wrapper that transformers has around it loses its `self`.
    copy.load_state_dict(state)
    return copy
