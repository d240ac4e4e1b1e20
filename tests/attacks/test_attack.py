"""The tools of the attacks: the commands succeed without bad input, and the assertions can fail."""

import sys
import time

import pytest

import hf_tlm
from attacks.attack import Outcome, assert_refused, attack, call
from hf_tlm.errors import HfTlmError
from support.warm import ROOT


@pytest.mark.parametrize("recipe", ["retrieve", "train_tlm", "baseline", "pretrain"])
def test_commands_succeed_without_bad_input(toys, recipe):
    outcome = attack(recipe, *toys.commands[recipe], limit=240)
    assert outcome.status == 0, outcome.stderr
    assert outcome.seconds > 0
    assert any(toys.out.iterdir())


def refuse():
    raise HfTlmError("Expected three; received two.")


def fail():
    raise KeyError("two")


def sleep():
    time.sleep(60)


def test_error_of_the_package_counts_as_refused():
    assert_refused(call(refuse), "Expected three", "received two")


def test_other_outcomes_do_not_count_as_refused():
    with pytest.raises(AssertionError):
        assert_refused(call(fail))
    with pytest.raises(AssertionError, match="is not in the message"):
        assert_refused(call(refuse), "four")
    with pytest.raises(AssertionError):
        assert_refused(Outcome(0, "", ""))


def test_hang_is_noticed(monkeypatch):
    monkeypatch.setattr("attacks.attack.LIMIT", 1)
    with pytest.raises(AssertionError, match="hangs"):
        assert_refused(call(sleep))


def report_imports():
    raise HfTlmError(f"preloaded: {'support.preload' in sys.modules and 'torch' in sys.modules}, {hf_tlm.__file__}")


def test_processes_inherit_the_imports_of_the_server():
    assert_refused(call(report_imports), "preloaded: True", str(ROOT / "hf_tlm"))
