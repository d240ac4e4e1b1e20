"""Environment variables with invalid values: one line that names the variable."""

import pytest

from attacks.attack import assert_refused, attack
from hf_tlm.utils.process import SIZE_VARIABLES, check_variables

CASES = [
    ("finetune", "ACCELERATE_MIXED_PRECISION", "bogus"),
    ("finetune", "ACCELERATE_USE_CPU", "abc"),
    ("train_tlm", "LOCAL_RANK", "abc"),
    ("retrieve", "RANK", "abc"),
    ("train_tlm", "ACCELERATE_DYNAMO_BACKEND", "bogus"),
    ("retrieve", "NUMBA_NUM_THREADS", "0"),
    ("baseline", "RANK", ""),
    ("reproduce", "WORLD_SIZE", "abc"),
    ("quickstart", "WORLD_SIZE", "1.5"),
    ("pretrain", "WORLD_SIZE", "0"),
]


@pytest.mark.parametrize("recipe,name,value", CASES)
def test_invalid_environment_variable_is_refused(toys, recipe, name, value):
    assert_refused(attack(recipe, *toys.commands[recipe], environment={name: value}), name, repr(value))
    assert not toys.out.exists()


def test_values_set_by_launchers_are_accepted(monkeypatch):
    for name, value in {"LOCAL_RANK": "-1", "ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": "BF16"}.items():
        monkeypatch.setenv(name, value)
    check_variables()


@pytest.mark.parametrize("size", [None, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_single_process_where_several_were_requested_is_warned_about(monkeypatch, caplog, size):
    """`accelerate launch --cpu --num_processes 2` sets these variables and starts one process; MPI starts them all."""
    for name in SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    check_variables()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    check_variables()
    assert not caplog.text  # One process was requested.
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    if size is not None:
        monkeypatch.setenv(size, "2")
    check_variables()
    assert ("should start several processes, but has started only one" in caplog.text) == (size is None)
