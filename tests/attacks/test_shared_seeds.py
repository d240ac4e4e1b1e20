"""Several processes of one command share the seeds of a run: each seed is trained once, with the result of one process."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from attacks.attack import attack
from attacks.holding import holder
from hf_tlm.utils.locks import try_lock

pytestmark = pytest.mark.slow
# Measured values, and where they were measured.
MEASURED = {"seconds", "measured_flops", "price", "command", "environment"}


def computed_results(folder):
    """Return file -> bytes of models and predictions, and the results without measured values."""

    def plain(value):
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items() if name not in MEASURED}
        return [plain(one) for one in value] if isinstance(value, list) else value

    files = [*folder.glob("seed-*/model/model.safetensors"), *folder.glob("**/predictions/*"), folder / "model.safetensors"]
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    assert len(found) >= 7
    return found, plain(json.loads((folder / "results.json").read_text()))


def seeds_trained(outcome):
    """Return the seeds that a process says it trains."""
    assert outcome.status == 0, outcome.stderr[-3000:]
    return set(re.findall(r"Seed (\d)", outcome.stdout))


@pytest.mark.parametrize("recipe", ["train_tlm", "finetune"])
def test_seed_that_another_process_trains_is_waited_for(toys, recipe):
    command = [*toys.commands[recipe], "--seeds", 0, 1, 2]
    assert seeds_trained(attack(recipe, *command)) == {"0", "1", "2"}
    alone = toys.out.rename(toys.out.with_name("alone"))
    with ThreadPoolExecutor(2) as pool:
        shared = pool.submit(attack, recipe, *command)

        def wait_for(*files):
            deadline = time.monotonic() + 60
            while not all((toys.out / file).is_file() for file in files):
                assert not shared.done() and time.monotonic() < deadline, shared.result(1).stderr[-3000:]
                time.sleep(0.02)

        wait_for("settings.json")
        with holder(toys.out / "seed-2"):
            wait_for("seed-0/results.json", "seed-1/results.json")
            lock = try_lock(toys.out)  # Another process may get the lock.
            assert lock is not None
            lock.release()
            assert not (toys.out / "seed-2").exists() and not (toys.out / "results.json").exists()
        outcome = shared.result()
    assert seeds_trained(outcome) == {"0", "1", "2"}
    assert computed_results(toys.out) == computed_results(alone)


@pytest.mark.parametrize("recipe", ["train_tlm", "finetune"])
def test_command_started_twice_shares_the_seeds(toys, recipe):
    command = [*toys.commands[recipe], "--seeds", 0, 1, 2]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: attack(recipe, *command), range(2))
    assert seeds_trained(first) | seeds_trained(second) == {"0", "1", "2"} and not seeds_trained(first) & seeds_trained(
        second
    )
    shared = toys.out.rename(toys.out.with_name("shared"))
    assert seeds_trained(attack(recipe, *command)) == {"0", "1", "2"}
    assert computed_results(shared) == computed_results(toys.out)
