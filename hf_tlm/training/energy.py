"""The electricity of training, read by codecarbon (https://github.com/mlco2/codecarbon), without a network."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from hf_tlm.errors import ArgumentsError
from hf_tlm.objectives.terms import accumulation_dtype

if TYPE_CHECKING:
    import codecarbon

logger = logging.getLogger(__name__)

INSTALL = "pip install 'hf-tlm[energy]'"
# How codecarbon models a CPU that has no counter it may read.
_MODELLED_CPU = ("cpu_load", "constant")


def check_energy(country: str | None) -> None:
    """Raise an ArgumentsError if codecarbon is not installed, or has no data for the country."""
    try:
        from codecarbon.input import DataSource
    except ImportError as error:
        raise ArgumentsError(f"track_energy needs codecarbon: {INSTALL}, or leave it out.") from error
    if country is not None and country not in DataSource().get_global_energy_mix_data():
        raise ArgumentsError(
            f"energy_country must be the three-letter ISO code of a country that codecarbon knows, such as FRA or USA; "
            f"received {country!r}."
        )


@dataclass(frozen=True)
class Reading:
    """The electricity that was used, and what producing it emitted.

    Attributes:
        kwh: electricity.
        estimated_kwh: the part of it that no counter measured: codecarbon models it by load, rated power and size.
        co2_kg: what producing it emitted, kilograms of CO2 equivalents by the country's energy mix.
    """

    kwh: float = 0.0
    estimated_kwh: float = 0.0
    co2_kg: float = 0.0


class _Newest:
    """Takes codecarbon's readings (its `BaseOutput`), from its thread, and keeps the newest."""

    reading = None

    def live_out(self, total, delta):
        self.reading = total

    out = live_out

    def exit(self):
        """Nothing was opened."""


class Energy(TrainerCallback):
    """Electricity of training over interruptions and all nodes.

    One process of a node reads the whole machine, whatever else runs there, every 15 seconds and when training ends.
    codecarbon's own settings hold (`CODECARBON_PUE`, `CODECARBON_FORCE_CPU_POWER`, ...), but for those that would write a
    file or use the network.

    total: up to the last reading. That before a resume is in the checkpoint's trainer state.

    Args:
        country: three-letter ISO code, see `check_energy`; None leaves `co2_kg` the world's average, which is not shown.
    """

    def __init__(self, accelerator: Accelerator, country: str | None = None):
        self.country = country
        self.total = Reading()
        self._accelerator = accelerator
        self._before, self._newest = Reading(), _Newest()
        self._tracker: codecarbon.OfflineEmissionsTracker | None = None
        self._modelled: tuple[str, ...] = ()

    def on_train_begin(self, args, state, control, **kwargs):
        self._before = self.total = Reading(**state.stateful_callbacks.get("Energy", {}))
        self._newest = _Newest()
        if args.local_process_index == 0:
            self._start(args.device)

    def on_step_end(self, args, state, control, **kwargs):
        self._agree(state)

    def on_train_end(self, args, state, control, **kwargs):
        self.stop()
        self._agree(state)

    def _start(self, device: torch.device) -> None:
        import codecarbon

        # Until its constructor has read `log_level` it would tell every step of its start.
        logging.getLogger("codecarbon").setLevel(logging.ERROR)
        self._tracker = tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code=self.country,
            output_methods=[],
            output_handlers=[self._newest],
            output_dir=tempfile.gettempdir(),
            emissions_endpoint=None,
            electricitymaps_api_token="",
            api_call_interval=1,  # Every measurement reaches the handler.
            allow_multiple_runs=True,  # Else there is a lock file.
            log_level="warning",
        )
        tracker.start()
        # Its constructor and `start` log what goes wrong there, and go on.
        if self._newest.reading is None:
            self._tracker = None
            raise ArgumentsError("codecarbon could not start (its log above says why). Leave track_energy out.")
        parts = {type(part).__name__: part for part in tracker._hardware}
        self._modelled = ("ram_energy",) if "RAM" in parts else ()
        if "CPU" in parts and parts["CPU"]._mode in _MODELLED_CPU:
            self._modelled += ("cpu_energy",)
        logger.info("Energy is read of %s; estimated: %s.", ", ".join(parts), ", ".join(self._modelled) or "nothing")
        if device.type != "cpu" and not {"GPU", "AppleSiliconChip"} & set(parts):
            logger.warning("codecarbon does not see the %s device: energy_kwh is without what it uses.", device.type)

    def stop(self) -> None:
        """End reading, with a last reading."""
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def _agree(self, state) -> None:
        """Sum the nodes' readings: every process is here at the same step."""
        own, before = self._newest.reading, self._before
        values = [0.0, 0.0, 0.0]
        if own is not None:
            values = [own.energy_consumed, sum(getattr(own, part) for part in self._modelled), own.emissions]
        device = self._accelerator.device
        reading = torch.tensor(values, dtype=accumulation_dtype(device), device=device)
        kwh, estimated, co2 = self._accelerator.reduce(reading, reduction="sum").tolist()
        self.total = Reading(before.kwh + kwh, before.estimated_kwh + estimated, before.co2_kg + co2)
        state.stateful_callbacks["Energy"] = asdict(self.total)
