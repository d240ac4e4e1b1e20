"""The attacks' own tools: what they start ends well without bad input, and what they assert can fail."""

import sys
import time

import pytest

import hf_tlm
from attacks.attack import Outcome, assert_refused, attack, call
from hf_tlm.errors import HfTlmError
from support.warm import ROOT


@pytest.mark.parametrize("recipe", ["retrieve", "train_tlm", "baseline", "pretrain"])
def test_the_commands_end_well(toys, recipe):
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


def test_an_error_of_ours_is_refused():
    assert_refused(call(refuse), "Expected three", "received two")


def test_other_errors_are_not():
    with pytest.raises(AssertionError):
        assert_refused(call(fail))
    with pytest.raises(AssertionError, match="is not in the message"):
        assert_refused(call(refuse), "four")
    with pytest.raises(AssertionError):
        assert_refused(Outcome(0, "", ""))


def test_a_hang_is_seen(monkeypatch):
    monkeypatch.setattr("attacks.attack.LIMIT", 1)
    with pytest.raises(AssertionError, match="hangs"):
        assert_refused(call(sleep))


def has_imported():
    raise HfTlmError(f"preloaded: {'support.preload' in sys.modules and 'torch' in sys.modules}, {hf_tlm.__file__}")


def test_processes_have_what_the_server_imported():
    assert_refused(call(has_imported), "preloaded: True", str(ROOT / "hf_tlm"))
