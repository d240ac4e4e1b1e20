"""SIGTERM during training: finish the step, save, stop."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from transformers import TrainerCallback

from hf_tlm.utils.signals import Terminated, end_at_once, on_sigterm

# Clusters signal every process, and torch's launcher then passes its own on: two signals so close are one request.
ECHO_SECONDS = 5.0


class SigtermCallback(TrainerCallback):
    """Ends a run at SIGTERM after the current step, its evaluation if one is due, and a checkpoint.

    Processes get the signal at different moments, or only some of them do. They agree on the step in the exchange that
    `NonFiniteLossCallback` makes before every optimizer step, so it costs nothing of its own.

    agreed: all processes stop after this step.
    """

    def __init__(self):
        self.agreed = self._saving = False
        self._since: float | None = None

    @property
    def requested(self) -> bool:
        """Whether this process got the signal."""
        return self._since is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM as a request within the block.

        A second one ends the process at once, and one that came too late for a step is handed to the previous handler.
        """
        self.agreed, self._saving, self._since = False, False, None
        with on_sigterm(self._request):
            yield
        if self.requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def _request(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since >= ECHO_SECONDS:
            end_at_once()

    def on_step_end(self, args, state, control, **kwargs):
        # At the end of an epoch there may be an evaluation to come, which a resumed run would leave out.
        if self.agreed and state.epoch != int(state.epoch):
            self._save(args, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.agreed:
            self._save(args, control)

    def _save(self, args, control) -> None:
        self._saving = True
        # The log too, as sums over steps not yet logged are not in a checkpoint.
        control.should_save = control.should_log = True
        # The model alone would not do to continue.
        args.save_only_model = False

    def on_save(self, args, state, control, **kwargs):
        if self._saving:
            raise Terminated(f"Stopped by SIGTERM after step {state.global_step}; saved. The same command continues.")
