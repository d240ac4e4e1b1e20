"""Training with DeepSpeed's ZeRO, and the model at its end."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import Trainer

from hf_tlm.models import gather_fsdp
from hf_tlm.training.checkpoints import CheckpointError
from hf_tlm.training.deepspeed import renew_deepspeed
from hf_tlm.training.resumable import ResumableTrainer

# What DeepSpeed writes of the optimizer in a checkpoint, a file a process.
OPTIMIZER_PIECES = "global_step*/*_optim_states.pt"


class ShardedTrainer(ResumableTrainer):
    """A Trainer that computes with DeepSpeed's ZeRO what it computes with DDP; outside of DeepSpeed nothing is changed.

    ZeRO-1 shards the optimizer's state and ZeRO-2 the gradients too; every process keeps all weights. The only changes: each
    trainer has settings of its own, and `skip_unused`. Subclasses give groups of parameters that are used together.
    """

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.deepspeed_plugin is not None:
            renew_deepspeed(self.args)
        super().create_accelerator_and_postprocess()

    def _checkpoint_to_resume(self, wanted: str | bool | None) -> str | None:
        path = super()._checkpoint_to_resume(wanted)
        if path is None:
            return None
        pieces = len(list(Path(path).glob(OPTIMIZER_PIECES)))
        expected = self.args.world_size if self.is_deepspeed_enabled else 0
        if pieces != expected:
            before, now = (f"with DeepSpeed on {n} processes" if n else "without DeepSpeed" for n in (pieces, expected))
            raise CheckpointError(
                f"{path} was saved {before}, and this run is one {now}, which cannot take over the optimizer's state. Start "
                "it as before, or in another output folder."
            )
        return path

    def create_optimizer(self, model=None):
        created = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if created and self.is_deepspeed_enabled:
            skip_unused(optimizer)
        return optimizer


def skip_unused(optimizer: torch.optim.Optimizer) -> None:
    """Let parameter groups without a gradient in a step be, as any optimizer does outside of DeepSpeed.

    ZeRO hands over zeros instead, by which Adam would go on along its old moments: a classifier during corpus batches.

    Args:
        optimizer: with groups of parameters that are used in the same batches, before DeepSpeed flattens them.
    """
    used: set[int] = set()
    for number, group in enumerate(optimizer.param_groups):
        group["number"] = number  # The group's list of parameters is replaced, and the group itself by resuming.
        for parameter in group["params"]:
            parameter.register_hook(lambda gradient, number=number: used.add(number))

    def before_step(optimizer, args, kwargs):
        # DeepSpeed takes the step of one group at a time.
        for group in optimizer.param_groups:
            if group["number"] not in used:
                for piece in group["params"]:
                    piece.grad = None
            used.discard(group["number"])

    optimizer.register_step_pre_hook(before_step)


def trained_model(trainer: Trainer) -> nn.Module:
    """Return the model that `trainer` trained, whole and free of what distributed it.

    All processes must call this, and the trainer cannot train any more.

    With DeepSpeed weights are float32 whatever it computed in, as with DDP: they are the optimizer's.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not trainer.is_deepspeed_enabled:
        return gather_fsdp(model)
    from deepspeed.utils import safe_get_full_fp32_param

    for parameter in model.parameters():
        # Weights are pieces of one long tensor, and frozen ones have no others.
        precise = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
        parameter.data = (parameter.data if precise is None else precise).float().clone()
        parameter.grad = None
    # Its hooks would take the gradients of the next stage.
    trainer.deepspeed.destroy()
    return model
