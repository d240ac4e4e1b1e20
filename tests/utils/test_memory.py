"""Freed memory is kept and reused, measured by page faults and resident memory."""

import platform
import subprocess
import sys

import pytest

from hf_tlm.utils import process

PROGRAM = """
import resource, sys
from hf_tlm.utils.process import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
pages = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64 << 20)
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(pages[1:]) * resource.getpagesize() / (3 * 64 << 20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told anything")
def test_freed_memory_is_kept():
    shares = [
        float(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True).stdout)
        for how in ("as it is", "keep")
    ]
    assert shares[1] < 0.01 < 0.5 < shares[0]


HOLES = """
import resource
from hf_tlm.utils.process import keep_freed_memory
keep_freed_memory()
kept = []
for size in range(130, 190, 4):
    block, small = bytearray(size << 20), bytearray(1 << 20)  # A small one, which stays, after each large one.
    kept.append(small)
    del block
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * resource.getpagesize() >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told anything")
def test_large_blocks_of_growing_sizes_leave_no_holes():
    """2.4 GB are allocated and freed in sequence, each block too large for the space of the one before."""
    megabytes = int(subprocess.run([sys.executable, "-c", HOLES], check=True, capture_output=True, text=True).stdout)
    empty = int(subprocess.run([sys.executable, "-c", HOLES.replace("190", "131")], check=True, capture_output=True).stdout)
    assert megabytes - empty < 100


GIVEN_BACK = """
import resource
from hf_tlm.utils.process import give_back_freed_memory, keep_freed_memory
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20
keep_freed_memory()
blocks, small = [], []
for _ in range(10):
    blocks.append(bytearray(64 << 20))
    small.append(bytearray(1 << 20))
whole = resident()
blocks.clear()
kept = resident()
give_back_freed_memory()
print(whole - kept, kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told anything")
def test_kept_memory_is_returned_on_request():
    """Also memory between blocks that are in use."""
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], check=True, capture_output=True, text=True)
    at_once, when_asked = map(int, done.stdout.split())
    assert at_once < 70 and when_asked > 560


@pytest.mark.parametrize(
    "most,taken", [(2**31, [(-3, 2**27), (-1, 2**31 - 1)]), (2**25, [(-3, 2**25), (-1, 2**31 - 1)]), (0, [])]
)
def test_thresholds_that_older_versions_of_glibc_accept(monkeypatch, most, taken):
    """If no threshold is accepted, none is fixed, so that glibc still adapts it."""
    accepted = []

    class Libc:
        def mallopt(self, parameter, value):
            accepted.extend([(parameter, value)] if parameter == -1 or value <= most else [])
            return int(parameter == -1 or value <= most)

    monkeypatch.setattr(process.platform, "libc_ver", lambda: ("glibc", "2.17"))
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: Libc())
    process.keep_freed_memory()
    assert accepted == taken
