"""Processes that are forked from the warm server have the tests' settings and leave nothing behind."""

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


def hub_settings():
    seen = (huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)
    caches = (huggingface_hub.constants.HF_HUB_CACHE, str(datasets.config.HF_DATASETS_CACHE))
    return repr((*seen, *caches, *(os.environ.get(name) for name in VARIABLES)))


def print_hub_settings():
    print(hub_settings())


def print_hub_settings_after(variables):
    warm.take_over(variables)
    print_hub_settings()


def test_child_knows_whether_the_hub_is_on(request):
    """Also where the server was started while the Hub was on, whose state its children have."""
    before, off = hub_settings(), {name: os.environ.get(name) for name in VARIABLES}
    assert warm.call(print_hub_settings).stdout.strip() == before and off["HF_TOKEN"] is None
    request.getfixturevalue("hub")
    assert warm.call(print_hub_settings).stdout.strip() == hub_settings() != before
    assert warm.call(print_hub_settings_after, off).stdout.strip() == before


def write_hub_settings(file):
    Path(file).write_text(hub_settings())


def test_child_that_is_not_waited_for_knows_whether_the_hub_is_on(hub, tmp_path):
    assert warm.ended(warm.start(partial(write_hub_settings, tmp_path / "known"), 1), 60) == 0
    assert (tmp_path / "known").read_text() == hub_settings()


def hold_a_lock():
    global lock
    lock = multiprocessing.get_context("spawn").Lock()
    print(lock._semlock.name)
    sys.exit(3)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="named semaphores are files on Linux alone")
def test_child_releases_its_locks():
    """Otherwise the tests end with warnings of leaked semaphores."""
    done = warm.call(hold_a_lock)
    assert done.status == 3 and done.stdout.startswith("/"), done
    assert not Path("/dev/shm", f"sem.{done.stdout.strip()[1:]}").exists()


def names(nodes, kind, attribute):
    return {getattr(node, attribute) for top in nodes for node in ast.walk(top) if isinstance(node, kind)}


def imported(body):
    return {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_conftest_starts_the_server_for_every_module_that_forks(request):
    """A test module that imports a function which calls `warm`, itself or through another function of its file, also
    imports a name in `FORKS`.
    """
    forks = {"warm"}
    for file in {*(TESTS / "support").glob("*.py"), *(TESTS / "attacks").glob("*.py")}:
        body = ast.parse(file.read_text(encoding="utf-8")).body
        if "warm" in imported(body):
            uses = {node.name: names([node], ast.Name, "id") for node in body if isinstance(node, ast.FunctionDef)}
            callers = {"warm"}
            while more := {name for name, used in uses.items() if used & callers} - callers:
                callers |= more
            forks |= callers
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert {"run_recipe", "two_are_one"} <= forks & conftest.STARTS_PROCESSES
    for file in TESTS.rglob("test_*.py"):
        imports = imported(ast.parse(file.read_text(encoding="utf-8")).body)
        assert not imports & forks or imports & conftest.FORKS, (file.name, imports & forks)


def print_state_of_pytest():
    hooks = [finder for finder in sys.meta_path if "pytest" in type(finder).__module__]
    shown = [entry for entry in warnings.filters if entry[0] == "always" and entry[2] is DeprecationWarning]
    open_now = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    sockets = [file for file in open_now if "socket" in file]
    print(hooks, faulthandler.is_enabled(), shown, logging.root.handlers, threading.active_count(), sockets)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are told of by /proc")
def test_child_has_no_state_of_pytest():
    """It has no hook, no warning filter and no connection of the process that runs the tests."""
    done = warm.call(print_state_of_pytest)
    assert done.stdout == "[] False [] [] 1 []\n", done
