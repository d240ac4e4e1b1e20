"""Environment variables of odd values: one line that names the variable."""

import pytest

from attacks.attack import assert_refused, attack
from hf_tlm.utils.variables import check_variables

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
def test_odd_values_are_refused(toys, recipe, name, value):
    assert_refused(attack(recipe, *toys.commands[recipe], environment={name: value}), name, repr(value))
    assert not toys.out.exists()


def test_values_that_launchers_set(monkeypatch):
    for name, value in {"LOCAL_RANK": "-1", "ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": "BF16"}.items():
        monkeypatch.setenv(name, value)
    check_variables()
