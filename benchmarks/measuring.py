"""Helpers of the benchmarks for measuring: fresh processes, memory, and seconds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def fresh(function, *values, **arguments):
    """Run a function in a new process and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *values, **arguments).result()


class Memory:
    """Measure a block's memory in megabytes (Linux).

    Attributes:
        before: resident memory at the start.
        peak: largest resident memory.
        anonymous: largest anonymous memory, sampled every 10 ms.
    """

    def __enter__(self):
        self.before = self.now("VmRSS")
        self.anonymous, self._stop = self.now("RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()
        self.anonymous = max(self.anonymous, self.now("RssAnon"))
        # The kernel updates counters in batches: just after a reset, the peak can be slightly below the resident memory.
        self.peak = max(self.before, self.now("VmHWM"))

    def _watch(self):
        while not self._stop.wait(0.01):
            self.anonymous = max(self.anonymous, self.now("RssAnon"))

    @staticmethod
    def now(name: str) -> float:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines[name].split()[0]) / 1024


class GpuMemory:
    """Measure the megabytes that torch has allocated on the GPU in a block: `before` it, and at the `peak`."""

    def __enter__(self):
        import torch

        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated() / 2**20
        return self

    def __exit__(self, *error):
        import torch

        self.peak = torch.cuda.max_memory_allocated() / 2**20


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
