"""Processes that start warm know what the tests set, and leave nothing behind."""

import ast
import faulthandler
import logging
import multiprocessing
import os
import sys
import threading
import warnings
from functools import partial
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from support import warm
from support.loopback import VARIABLES

TESTS = Path(__file__).resolve().parent


def what_is_known():
    seen = (huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)
    places = (huggingface_hub.constants.HF_HUB_CACHE, str(datasets.config.HF_DATASETS_CACHE))
    return repr((*seen, *places, *(os.environ.get(name) for name in VARIABLES)))


def tell():
    print(what_is_known())


def after_the_hub(variables):
    warm.take_over(variables)
    tell()


def test_a_child_knows_whether_the_hub_is_on(request):
    """Even of a server that was started when it was on, whose state a child of then has."""
    before, off = what_is_known(), {name: os.environ.get(name) for name in VARIABLES}
    assert warm.call(tell).stdout.strip() == before and off["HF_TOKEN"] is None
    request.getfixturevalue("hub")
    assert warm.call(tell).stdout.strip() == what_is_known() != before
    assert warm.call(after_the_hub, off).stdout.strip() == before


def where(file):
    Path(file).write_text(what_is_known())


def test_a_child_without_an_outcome_knows_it_too(hub, tmp_path):
    assert warm.ended(warm.start(partial(where, tmp_path / "known"), 1), 60) == 0
    assert (tmp_path / "known").read_text() == what_is_known()


def hold_a_lock():
    global lock
    lock = multiprocessing.get_context("spawn").Lock()
    print(lock._semlock.name)
    sys.exit(3)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="named semaphores are files on Linux alone")
def test_a_child_gives_its_locks_back():
    """Else the tests end with warnings of leaked semaphores."""
    done = warm.call(hold_a_lock)
    assert done.status == 3 and done.stdout.startswith("/"), done
    assert not Path("/dev/shm", f"sem.{done.stdout.strip()[1:]}").exists()


def names(nodes, kind, attribute):
    return {getattr(node, attribute) for top in nodes for node in ast.walk(top) if isinstance(node, kind)}


def imported(body):
    return {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_all_that_forks_has_the_server_started_early(request):
    """Of what each test module imports one is known to, if any calls `warm`, itself or through another of its file."""
    forks = {"warm"}
    for file in {*(TESTS / "support").glob("*.py"), *(TESTS / "attacks").glob("*.py")}:
        body = ast.parse(file.read_text(encoding="utf-8")).body
        if "warm" in imported(body):
            uses = {node.name: names([node], ast.Name, "id") for node in body if isinstance(node, ast.FunctionDef)}
            found = {"warm"}
            while more := {name for name, used in uses.items() if used & found} - found:
                found |= more
            forks |= found
    sets = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert {"run_recipe", "two_are_one"} <= forks & sets.STARTS_PROCESSES
    for file in TESTS.rglob("test_*.py"):
        seen = imported(ast.parse(file.read_text(encoding="utf-8")).body)
        assert not seen & forks or seen & sets.FORKS, (file.name, seen & forks)


def tell_of_the_tests():
    hooks = [finder for finder in sys.meta_path if "pytest" in type(finder).__module__]
    shown = [one for one in warnings.filters if one[0] == "always" and one[2] is DeprecationWarning]
    open_now = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    sockets = [place for place in open_now if "socket" in place]
    print(hooks, faulthandler.is_enabled(), shown, logging.root.handlers, threading.active_count(), sockets)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are told of by /proc")
def test_a_child_has_nothing_of_pytest():
    """No hook, no setting of warnings and no connection of the process of the tests is in it."""
    done = warm.call(tell_of_the_tests)
    assert done.stdout == "[] False [] [] 1 []\n", done
