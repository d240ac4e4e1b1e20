"""Where a budget ends a run, known before its first step, so that warm-up and decay fit it."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

# What a schedule that follows the clock is divided into.
TICKS = 1_000_000


def first_step(reached: Callable[[int], bool]) -> int:
    """The smallest number of steps, 1 or more, for which `reached`, a monotone function, is true."""
    high = 1
    while not reached(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


class TimeBudgetCallback(TrainerCallback):
    """Training time over interruptions, and the end of a run whose budget is time (Izsak et al. 2021 train so).

    Clocks read differently on every process, so `progress` is what the Trainer's reduction agreed on
    (`TlmTrainer.get_batch_samples`), not what this process reads. It is a step old when the run ends.

    seconds: of training up to now. Those before a resume are in the checkpoint's trainer state.
    progress: share of `max_hours` that had passed when the step began; 0 without a limit.
    """

    def __init__(self, max_hours: float | None = None):
        self.limit = None if max_hours is None else 3600.0 * max_hours
        self.progress = 0.0
        self._before, self._started = 0.0, None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._started is None else time.monotonic() - self._started)

    @property
    def share(self) -> float:
        """Share of the limit that has passed on this process's clock."""
        return 0.0 if self.limit is None else self.seconds / self.limit

    def on_train_begin(self, args, state, control, **kwargs):
        # The key is the name that the first versions wrote.
        self._before = state.stateful_callbacks.get("Clock", {}).get("seconds", 0.0)
        self._started = time.monotonic()
        self.progress = self.share
        # A run that was killed after its last checkpoint has no time left.
        if self.progress >= 1.0:
            control.should_training_stop = True

    def on_step_end(self, args, state, control, **kwargs):
        state.stateful_callbacks["Clock"] = {"seconds": self.seconds}
        if self.progress >= 1.0:
            control.should_training_stop = True

    def on_train_end(self, args, state, control, **kwargs):
        self._before, self._started = self.seconds, None

    def schedule(self, scheduler: LambdaLR, max_steps: int) -> None:
        """Make a schedule of `TICKS` steps follow the clock, or the steps where those come to `max_steps` sooner."""

        def follow(factor: Callable[[int], float]) -> Callable[[int], float]:
            return lambda step: factor(min(TICKS, round(TICKS * max(self.progress, step / max_steps))))

        scheduler.lr_lambdas = [follow(factor) for factor in scheduler.lr_lambdas]
