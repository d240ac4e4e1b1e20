"""SIGTERM: one message and status 143; the previous handler is restored, and child processes end."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hf_tlm.config import run
from hf_tlm.training import callbacks
from hf_tlm.training.callbacks import SigtermCallback
from hf_tlm.utils.process import Terminated, on_sigterm


def sigterm():
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    "main,message",
    [
        (sigterm, "Stopped by SIGTERM. Started again, the same command continues"),
        (lambda: (_ for _ in ()).throw(Terminated("Stopped by SIGTERM after step 3")), "Stopped by SIGTERM after step 3"),
    ],
)
def test_sigterm_ends_a_recipe_with_a_message(capsys, main, message):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        run(main)
    assert end.value.code == 143 and message in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def ctrl_c():
    """Set Python's own handler of Ctrl-C, which is ignored if the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Finalized:
    """Sends a signal from `__del__`, where Python drops exceptions."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)
        len("so that Python looks for signals")


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_during_finalization_of_an_object_is_not_lost(ctrl_c, capsys, number, status):
    def main():
        Finalized(number)
        time.sleep(10)

    before = sys.unraisablehook
    with pytest.raises(SystemExit) as end:
        run(main)
    assert end.value.code == status and capsys.readouterr().err.startswith("\nError: ")
    assert sys.unraisablehook is before


def test_ctrl_c_after_the_end_has_no_traceback(ctrl_c, monkeypatch):
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    run(lambda: None)
    assert at_exit == [(signal.signal, signal.SIGINT, signal.SIG_DFL)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # In the background SIGINT stays ignored.
    run(lambda: None)
    assert len(at_exit) == 1


def test_other_unraisable_exceptions_are_still_reported(capsys, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    class Broken:
        def __del__(self):
            raise KeyError

    run(Broken)
    assert [dropped.exc_type for dropped in reported] == [KeyError]


def test_signal_that_no_step_handles_goes_to_the_previous_handler():
    received, interruption = [], SigtermCallback()
    with on_sigterm(lambda: received.append(1)):
        with interruption.listening():
            sigterm()
            assert interruption.requested and not received
        assert received == [1]


def exit_status_of_fork(action):
    """Run an action in a forked process; return its exit status, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        action()
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_second_sigterm_ends_the_process_unless_it_is_an_echo(monkeypatch):
    def twice():
        with SigtermCallback().listening():
            sigterm()
            sigterm()
            os._exit(7)

    assert exit_status_of_fork(twice) == 7
    monkeypatch.setattr(callbacks, "ECHO_SECONDS", 0.0)
    assert exit_status_of_fork(twice) == -signal.SIGTERM


def test_sigterm_ends_forked_children():
    with on_sigterm(lambda: None):
        sigterm()
        assert exit_status_of_fork(sigterm) == -signal.SIGTERM


def test_handler_is_not_changed_in_another_thread():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with on_sigterm(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_process_ends_although_its_workers_ignore_sigterm():
    """Workers may be left when the process exits, such as persistent workers of a DataLoader."""
    code = (
        "import multiprocessing, time\n"
        "from hf_tlm.utils.process import ignore_sigterm\n"
        "def work(ready):\n    ignore_sigterm(0)\n    ready.set()\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('fork')\n    ready = context.Event()\n"
        "    context.Process(target=work, args=(ready,), daemon=True).start()\n    ready.wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


def test_process_with_an_open_pool_ends():
    """The pool's idle workers hold a lock that closing it waits for."""
    code = (
        "import hf_tlm.utils.process, multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    pool = multiprocessing.get_context('fork').Pool(2)\n    pool.map(abs, [1, 2])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
