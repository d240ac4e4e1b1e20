"""Energy: readings are summed over stages, resumes and nodes; codecarbon reads without network or files."""

import json
import socket
import sys
import threading
from types import SimpleNamespace

import codecarbon
import pytest
import torch

from hf_tlm.training import ArgumentsError, Cost, TlmArguments
from hf_tlm.training.cost import Energy
from support.training_runs import At, history, trainer

ARGS = {"output_dir": "unused", "use_cpu": True, "report_to": "none"}


class RAM:
    pass


class CPU:
    _mode = "cpu_load"


class GPU:
    pass


class Tracker:
    """Reads one kWh more each time: 0.5 of the GPU, 0.3 of the CPU, 0.2 of memory; half a kilogram of CO2."""

    made = []
    parts = (RAM, CPU, GPU)

    def __init__(self, output_handlers, country_iso_code, **options):
        self.handler, self.country, self.options, self.kwh, self.stopped = (
            output_handlers[0],
            country_iso_code,
            options,
            0,
            0,
        )
        self._hardware = [part() for part in self.parts]
        self.made.append(self)

    def total(self):
        self.kwh += 1
        kwh = self.kwh
        return SimpleNamespace(
            energy_consumed=kwh, cpu_energy=0.3 * kwh, ram_energy=0.2 * kwh, gpu_energy=0.5 * kwh, emissions=kwh / 2
        )

    def read(self, model=None):
        self.handler.live_out(self.total(), None)

    def start(self):
        self.read()

    def stop(self):
        self.stopped += 1
        self.handler.out(self.total(), None)
        self.handler.exit()


@pytest.fixture
def tracker(monkeypatch):
    monkeypatch.setattr(codecarbon, "OfflineEmissionsTracker", Tracker)
    monkeypatch.setattr(Tracker, "made", [])
    return Tracker


def read(model):
    Tracker.made[-1].read()


def test_energy_is_logged_and_continues_after_a_resume(tmp_path, data, tokenizer, tracker):
    options = {"track_energy": True, "save_strategy": "steps", "save_steps": 2, "rho1": 1}
    first = trainer(tmp_path, data, tokenizer, callbacks=[At(2, read)], energy_country="FRA", **options)
    first.train()
    # One reading at the start, one in the second step, one at the end.
    assert history(first, "energy_kwh", "estimated_kwh", "co2_kg") == [[1, 0.5, 0.5], *[[2, 1.0, 1.0]] * 3]
    cost = first.cost()
    assert (cost.energy_kwh, cost.estimated_kwh, cost.co2_kg) == (3, 1.5, 1.5)
    assert [(made.country, made.stopped) for made in tracker.made] == [("FRA", 1)]
    rest = trainer(tmp_path, data, tokenizer, max_steps=6, **options)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    # Two until the checkpoint, then one at the start and one at the end; without a country there is no CO2.
    assert rest.cost().energy_kwh == 4 and rest.cost().co2_kg is None
    assert "co2_kg" not in rest.state.log_history[-2] and tracker.made[-1].country is None
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["Energy"] == {"kwh": 3, "estimated_kwh": 1.5, "co2_kg": 1.5}


@pytest.mark.parametrize(
    "mode,gpu,estimated", [("intel_rapl", True, 0.2), ("constant", True, 0.5), ("cpu_load", False, 0.5)]
)
def test_estimated_share_depends_on_the_hardware(tmp_path, data, tokenizer, tracker, monkeypatch, mode, gpu, estimated):
    monkeypatch.setattr(CPU, "_mode", mode)
    monkeypatch.setattr(tracker, "parts", (RAM, CPU, GPU)[: 2 + gpu])
    run = trainer(tmp_path, data, tokenizer, max_steps=1, track_energy=True)
    run.train()
    assert run.cost().estimated_kwh == pytest.approx(2 * estimated)


def test_unsupported_accelerator_is_warned_about(tracker, monkeypatch, caplog):
    monkeypatch.setattr(tracker, "parts", (RAM, CPU))
    args = SimpleNamespace(local_process_index=0, device=torch.device("xpu"))
    energy = Energy(None)
    energy.on_train_begin(args, SimpleNamespace(stateful_callbacks={}), None)
    assert "does not see the xpu device" in caplog.text


def test_nodes_are_summed_and_only_first_processes_read(tracker):
    accelerator = SimpleNamespace(device="cpu", reduce=lambda values, reduction: values + torch.tensor([10.0, 5.0, 2.0]))
    totals = []
    for local in (0, 1):
        args, state = SimpleNamespace(local_process_index=local, device=torch.device("cpu")), SimpleNamespace()
        state.stateful_callbacks = {"Energy": {"co2_kg": 20.0, "estimated_kwh": 50.0, "kwh": 100.0}}
        energy = Energy(accelerator)
        energy.on_train_begin(args, state, None)
        energy.on_step_end(args, state, None)
        totals.append(energy.total)
    assert len(tracker.made) == 1
    first, other = totals
    assert first == {"kwh": 111, "estimated_kwh": 55.5, "co2_kg": 22.5}
    assert other == {"kwh": 110, "estimated_kwh": 55, "co2_kg": 22}


def test_failing_run_stops_the_tracker(tmp_path, data, tokenizer, tracker):
    def fail(model):
        raise ZeroDivisionError

    run = trainer(tmp_path, data, tokenizer, callbacks=[At(2, fail)], track_energy=True)
    with pytest.raises(ZeroDivisionError):
        run.train()
    assert tracker.made[0].stopped == 1


def test_tracker_that_does_not_start_is_an_error(tmp_path, data, tokenizer, tracker, monkeypatch):
    monkeypatch.setattr(tracker, "start", lambda self: None)
    run = trainer(tmp_path, data, tokenizer, track_energy=True)
    with pytest.raises(ArgumentsError, match="codecarbon could not start"):
        run.train()


def test_codecarbon_opens_no_connection_and_writes_no_file(tmp_path, data, tokenizer, monkeypatch):
    """No thread is left either, and its environment variables cannot enable them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODECARBON_EMISSIONS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("CODECARBON_CO2_SIGNAL_API_TOKEN", "secret")
    monkeypatch.setenv("CODECARBON_OUTPUT_METHODS", "csv,api")
    calls = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    run = trainer("out", data, tokenizer, track_energy=True, energy_country="FRA", max_steps=2)
    run.train()
    cost = run.cost()
    assert 0 < cost.estimated_kwh <= cost.energy_kwh * (1 + 1e-9) < 1  # Both are sums of the same parts.
    # The carbon intensity of France, in kilograms per kWh.
    assert 0.01 < cost.co2_kg / cost.energy_kwh < 0.2
    assert not calls and not [path for path in tmp_path.iterdir() if path.name != "out"]
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(5)
    assert not [timer for timer in timers if timer.is_alive()]


def test_invalid_options_and_missing_package_are_refused(monkeypatch):
    for options, message in (
        ({"energy_country": "FRA"}, "no effect without track_energy"),
        ({"track_energy": True, "energy_country": "France"}, "three-letter ISO code"),
    ):
        with pytest.raises(ArgumentsError, match=message):
            TlmArguments(**ARGS, **options)
    monkeypatch.setitem(sys.modules, "codecarbon.input", None)
    with pytest.raises(ArgumentsError, match=r"pip install 'hf-tlm\[energy\]'"):
        TlmArguments(**ARGS, track_energy=True)


def test_costs_add_up():
    read, unread = Cost(steps=1, energy_kwh=2.0, estimated_kwh=1.0), Cost(steps=2)
    assert read + read == Cost(steps=2, energy_kwh=4.0, estimated_kwh=2.0)
    assert unread + read == read + unread == Cost(steps=3, energy_kwh=2.0, estimated_kwh=1.0)
    assert Cost.from_dict(read.to_dict()) == read and "energy_kwh" not in unread.to_dict()
