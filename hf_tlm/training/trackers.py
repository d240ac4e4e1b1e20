"""Trackers of experiments: every training of a command, a seed's or a stage's, is a run of its own there, in one group."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from hf_tlm.utils.shown import relative_name


class WandbRuns(WandbCallback):
    """W&B's callback; the only changes: a training ends the run of the one before it, and its own is in a group.

    A run that is not of another training here, such as one that a program began itself, goes on. So does the one that
    `WANDB_RUN_ID` names.
    """

    _begun: Any = None

    def __init__(self, group: str | None):
        super().__init__()
        self._group = group

    def setup(self, args, state, model, **kwargs):
        """Begin the run, on the first process."""
        wandb = self._wandb
        if state.is_world_process_zero and args.run_name and not os.getenv("WANDB_RUN_ID"):
            if wandb.run is not None and wandb.run is WandbRuns._begun and wandb.run.name != args.run_name:
                wandb.finish()
            if wandb.run is None:
                project, group = os.getenv("WANDB_PROJECT", "huggingface"), os.getenv("WANDB_RUN_GROUP", self._group)
                wandb.init(project=project, name=args.run_name, group=group)
                WandbRuns._begun = wandb.run
        super().setup(args, state, model, **kwargs)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Begin the run; that of a search's trial by its name and in its group, which the callback would forget."""
        if self._wandb is None or not (state.is_hyper_param_search and args.run_name):
            return super().on_train_begin(args, state, control, model, **kwargs)
        return self.setup(args, state, model, **kwargs)


class TrackioRuns(TrackioCallback):
    """Trackio's callback; the only changes: runs are in a group, and only what goes on continues a run of its name."""

    _begun: set[str | None] = set()

    def __init__(self, group: str | None):
        super().__init__()
        self._group = group

    def setup(self, args, state, model, **kwargs):
        """Begin the run, on the first process, or go on with it: after a checkpoint, or for what is evaluated later."""
        goes_on = state.global_step > 0 or args.run_name in self._begun
        options = {"group": self._group, "resume": "allow" if goes_on else "never"}
        self._begun.add(args.run_name)
        trackio, self._trackio = self._trackio, _With(self._trackio, options)
        try:
            super().setup(args, state, model, **kwargs)
        finally:
            self._trackio = trackio


class _With:
    """A module whose `init` is called with some options more."""

    def __init__(self, module: ModuleType, options: dict[str, Any]):
        self._module, self._options = module, options

    def init(self, **options: Any) -> Any:
        return self._module.init(**options | self._options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def track_by_training(trainer: Trainer, group: str | None) -> None:
    """Have the trackers that a trainer reports to keep a run for each training, by `args.run_name`, in a group."""
    ours: dict[type[TrainerCallback], type[WandbRuns | TrackioRuns]]
    ours = {WandbCallback: WandbRuns, TrackioCallback: TrackioRuns}
    for callback in list(trainer.callback_handler.callbacks):
        if (made := ours.get(type(callback))) is not None:
            trainer.remove_callback(callback)
            trainer.add_callback(made(group))
        elif isinstance(callback, TensorBoardCallback) and callback.logging_dir is not None and trainer.args.run_name:
            # TENSORBOARD_LOGGING_DIR; otherwise it is a folder in the training's own.
            callback.logging_dir = os.path.join(callback.logging_dir, relative_name(trainer.args.run_name))
