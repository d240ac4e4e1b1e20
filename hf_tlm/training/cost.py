"""The cost of a run in tokens, FLOPs, time and electricity, and budgets that end it.

FLOPs are counted as in the papers. The step at which a budget of FLOPs or tokens ends is known before the first one.
Electricity is measured by codecarbon (https://github.com/mlco2/codecarbon), without a network.
"""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils import flop_counter
from transformers import TrainerCallback

from hf_tlm.data.interleave import CORPUS, TASK, InterleavedBatchSampler
from hf_tlm.errors import ArgumentsError
from hf_tlm.objectives.terms import accumulation_dtype
from hf_tlm.training.run_arguments import RunArguments

if TYPE_CHECKING:
    import codecarbon

logger = logging.getLogger(__name__)

# TLM paper, section 1 and Table 2.
ROBERTA_LARGE_FLOPS = 4.36e21
# Peak dense half-precision FLOP/s from the manufacturers' data sheets, by a part of CUDA's device name; first match.
PEAK_FLOPS = {
    "B200": 2.25e15,
    "H200": 9.89e14,
    "H100 PCIe": 7.56e14,
    "H100": 9.89e14,
    "A100": 3.12e14,
    "L40S": 3.62e14,
    "L40": 1.81e14,
    "L4": 1.21e14,
    "A10": 1.25e14,
    "V100": 1.25e14,
    "T4": 6.5e13,
    "RTX 4090": 1.65e14,
    "RTX 3090": 7.1e13,
}
_aten = torch.ops.aten
# Number of steps of a schedule that follows the clock.
TICKS = 1_000_000
# Modes of codecarbon for a CPU without an energy counter that it may read.
_MODELLED_CPU = ("cpu_load", "constant")
_READING = ("kwh", "estimated_kwh", "co2_kg")  # See `Energy`.


@dataclass(frozen=True)
class Cost:
    """Totals of a stage or a run, over all processes.

    steps: optimizer steps.
    tokens: steps x batch x sequence length, as TLM section 4.1 counts training tokens (nominal, padding included).
    real_tokens: tokens that are not padding.
    flops: 6 x tokens x applied parameters (TLM Table 2, after Brown et al. 2020; `hf_tlm.models.base.applied_parameters`).
    measured_flops: FLOPs of forward and backward passes by torch.utils.flop_counter, including those on padding: one
        micro-batch of each stream is counted, without compilation, and scaled by real tokens. 0 if not counted
        (fine-tuning).
    seconds: wall-clock time of training, evaluation during training included.
    energy_kwh: electricity of the machines during training, see `Energy`; None if not measured.
    estimated_kwh: the part of it that codecarbon could only estimate; None if not measured.
    co2_kg: kilograms of CO2; None if not measured.
    """

    steps: int = 0
    tokens: int = 0
    real_tokens: int = 0
    flops: float = 0.0
    measured_flops: float = 0.0
    seconds: float = 0.0
    energy_kwh: float | None = None
    estimated_kwh: float | None = None
    co2_kg: float | None = None

    def __add__(self, other: Cost) -> Cost:
        values = {name: (value, getattr(other, name)) for name, value in self.__dict__.items()}
        known = {name: [value for value in pair if value is not None] for name, pair in values.items()}
        return Cost(**{name: sum(pair) for name, pair in known.items() if pair})

    def to_dict(self) -> dict[str, float]:
        """Return the fields that are not None and `flops_ratio`, `flops` over RoBERTa-Large's training FLOPs."""
        known = {name: value for name, value in self.__dict__.items() if value is not None}
        return {**known, "flops_ratio": self.flops / ROBERTA_LARGE_FLOPS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cost:
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


def nominal_tokens(sampler: InterleavedBatchSampler, args: RunArguments, step: int) -> int:
    """Count the training tokens of the first `step` steps as TLM section 4.1 does.

    They are texts x sequence length, or, for batches measured in tokens, steps x batch size.
    """
    amount = sampler.amount * sampler.batches_per_step
    if sampler.batch_size is None:
        return amount * step
    return amount * (
        sampler.count_steps(TASK, step) * args.max_length
        + sampler.count_steps(CORPUS, step) * (args.corpus_max_length or args.max_length)
    )


def training_flops(tokens: int, parameters: int) -> float:
    """Return 6 x tokens x parameters, the FLOPs of a forward and a backward pass (TLM Table 2, footnote 1).

    Args:
        parameters: number of parameters, each counted as often as it is applied, see
            `hf_tlm.models.base.applied_parameters`.
    """
    return 6.0 * tokens * parameters


def model_flops_utilization(flops: float, seconds: float, world_size: int) -> float | None:
    """Return the model FLOPs utilization (MFU): measured FLOPs per second over the peak of the GPUs.

    None without CUDA, for a GPU that is not in `PEAK_FLOPS`, or if `flops` or `seconds` is 0.
    """
    if not torch.cuda.is_available() or seconds <= 0 or flops <= 0:
        return None
    name = torch.cuda.get_device_name()
    peak = next((value for key, value in PEAK_FLOPS.items() if key in name), None)
    return None if peak is None else flops / seconds / (peak * world_size)


def _formula_of_shapes(count: int, flops: Callable[..., int]) -> Callable[..., int]:
    """Return a FLOPs formula for torch's counter that passes the shapes of an operator's first `count` arguments."""
    return lambda *arguments, **options: flops(*arguments[:count])


# Operators that torch's counter does not know: in-place products, those of oneDNN, and the attention kernel of CPUs.
_MORE_OPERATORS = {
    _aten.addmm_: _formula_of_shapes(3, lambda _, a, b: 2 * a[0] * a[1] * b[1]),
    _aten._scaled_dot_product_flash_attention_for_cpu: _formula_of_shapes(3, flop_counter.sdpa_flop_count),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _formula_of_shapes(4, flop_counter.sdpa_backward_flop_count),
}
if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    _MORE_OPERATORS[torch.ops.mkldnn._linear_pointwise] = _formula_of_shapes(
        2, lambda x, weight: 2 * math.prod(x) * weight[0]
    )


@contextlib.contextmanager
def count_flops() -> Iterator[flop_counter.FlopCounterMode]:
    """Count the floating-point operations of matrix products and attention in the block, backward passes included."""
    with warnings.catch_warnings(), flop_counter.FlopCounterMode(display=False, custom_mapping=_MORE_OPERATORS) as counter:
        # A model that will be compiled warns of the counter's hooks.
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        yield counter


def first_step(reached: Callable[[int], bool]) -> int:
    """Return the smallest number of steps, at least 1, for which the monotone function `reached` is true."""
    high = 1
    while not reached(high):
        high *= 2
    low = high // 2 + 1
    return low + bisect_left(range(low, high), True, key=reached)


class TimeBudgetCallback(TrainerCallback):
    """A callback that counts training time across interruptions and ends a run with a time budget (as Izsak et al. 2021).

    Clocks differ between processes, so `progress` is the value that the processes agreed on in a reduction
    (`TlmTrainer.get_batch_samples`), not that of this process. It is one step old when the run ends.

    seconds: training time up to now. The time before a resume is in the checkpoint's trainer state.
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
        # The key is the one of the first versions.
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
        """Make a schedule of `TICKS` steps follow the clock, or the steps if they approach `max_steps` sooner."""

        def follow(factor: Callable[[int], float]) -> Callable[[int], float]:
            return lambda step: factor(min(TICKS, round(TICKS * max(self.progress, step / max_steps))))

        scheduler.lr_lambdas = [follow(factor) for factor in scheduler.lr_lambdas]


class _LatestReading:
    """An output handler of codecarbon (`BaseOutput`) that keeps the newest reading of its thread."""

    reading = None

    def live_out(self, total, delta):
        self.reading = total

    out = live_out

    def exit(self):
        """Do nothing, because nothing was opened."""


class Energy(TrainerCallback):
    """A callback that measures the electricity of training on all nodes, across interruptions.

    One process per node measures the complete machine, including other programs, every 15 seconds and when training ends.
    codecarbon's own settings apply (`CODECARBON_PUE`, `CODECARBON_FORCE_CPU_POWER`, ...), except those that would write a
    file or use the network.

    total: the total up to the last reading: `kwh`; `estimated_kwh`, the part that no counter measured, which codecarbon
        models by load, rated power and size; `co2_kg`, kilograms of CO2 equivalents by the country's energy mix. The part
        before a resume is in the checkpoint's trainer state.

    Args:
        country: three-letter ISO code (`energy_country`); with None `co2_kg` is by the world's average and is not shown.
    """

    def __init__(self, accelerator: Accelerator, country: str | None = None):
        self.country = country
        self._before = self.total = dict.fromkeys(_READING, 0.0)
        self._accelerator = accelerator
        self._newest = _LatestReading()
        self._tracker: codecarbon.OfflineEmissionsTracker | None = None
        self._modelled: tuple[str, ...] = ()

    def on_train_begin(self, args, state, control, **kwargs):
        self._before = self.total = dict.fromkeys(_READING, 0.0) | state.stateful_callbacks.get("Energy", {})
        self._newest = _LatestReading()
        if args.local_process_index == 0:
            self._start(args.device)

    def on_step_end(self, args, state, control, **kwargs):
        self._sum_readings(state)

    def on_train_end(self, args, state, control, **kwargs):
        self.stop()
        self._sum_readings(state)

    def _start(self, device: torch.device) -> None:
        import codecarbon

        # Until its constructor has read `log_level`, it would log every step of its start.
        logging.getLogger("codecarbon").setLevel(logging.ERROR)
        self._tracker = tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code=self.country,
            output_methods=[],
            output_handlers=[self._newest],
            output_dir=tempfile.gettempdir(),
            emissions_endpoint=None,
            electricitymaps_api_token="",
            api_call_interval=1,  # Every measurement reaches the handler.
            allow_multiple_runs=True,  # Otherwise it creates a lock file.
            log_level="warning",
        )
        tracker.start()
        # Its constructor and `start` log errors and do not raise them.
        if self._newest.reading is None:
            self._tracker = None
            raise ArgumentsError("codecarbon could not start (see its log above). Remove track_energy.")
        hardware = {type(part).__name__: part for part in tracker._hardware}
        self._modelled = ("ram_energy",) if "RAM" in hardware else ()
        if "CPU" in hardware and hardware["CPU"]._mode in _MODELLED_CPU:
            self._modelled += ("cpu_energy",)
        logger.info(
            "Energy is measured for %s and estimated for %s.", ", ".join(hardware), ", ".join(self._modelled) or "nothing"
        )
        if device.type != "cpu" and not {"GPU", "AppleSiliconChip"} & set(hardware):
            logger.warning("codecarbon does not see the %s device: energy_kwh does not include its energy.", device.type)

    def stop(self) -> None:
        """Stop measuring, after a last reading."""
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def _sum_readings(self, state) -> None:
        """Sum the readings of all nodes. Every process calls this at the same step."""
        current, values = self._newest.reading, [0.0, 0.0, 0.0]
        if current is not None:
            values = [current.energy_consumed, sum(getattr(current, part) for part in self._modelled), current.emissions]
        device = self._accelerator.device
        reading = torch.tensor(values, dtype=accumulation_dtype(device), device=device)
        added = self._accelerator.reduce(reading, reduction="sum").tolist()
        self.total = {name: self._before[name] + value for name, value in zip(_READING, added, strict=True)}
        state.stateful_callbacks["Energy"] = self.total
