"""What takes libraries time and shows nothing in tests is changed, in their process and in those that start warm."""

import os
from types import SimpleNamespace

import accelerate.utils.memory

from hf_tlm.runs import price


def change():
    """Change it, once in a process."""
    os.fsync = lambda descriptor: None  # No test has a power cut, and a disk takes milliseconds for each of many thousand.
    # Every Trainer collects garbage before it trains, for the memory of a GPU: a tenth of the time of these tests.
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: 0)
    price.SECONDS = 0.0  # One pass is enough where nobody looks at the time.
