"""Memory that a process has freed: kept for the next step, or given back to the system."""

from __future__ import annotations

import ctypes
import platform

# mallopt's parameters of malloc.h: how much free memory at the end of the heap, and how large a block, goes back at once.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Bytes of the largest block that is kept. Attention weights of long texts, in each batch of another length, would leave
# holes that no later ones fit: with 16 texts of 800 to 2,048 tokens 10 GB after forty steps, and ever more; 4 GB so.
_LARGEST_KEPT = 2**27


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, but for the largest blocks. glibc only; elsewhere, nothing.

    A step on a CPU frees its activations and gradients, and the next one asks for as much. By default glibc gives all of
    it back to the system in between, which then hands out every page anew, filled with zeros: some 6 % of a step of a
    BERT of 4 layers x 256.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # Older versions accept no more than 32 MiB. Without either, the threshold must go on growing by itself, which the
        # other one would end.
        if libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) or libc.mallopt(_MMAP_THRESHOLD, 2**25):
            libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Give the system what `keep_freed_memory` has kept. glibc only; elsewhere, nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
