"""What numba compiles is told of once, where it really has to: on a new machine, or after an update of packages."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from typing import Any

from numba.core import event

logger = logging.getLogger(__name__)


class _Telling(event.Listener):
    told = False

    def on_start(self, event: Any) -> None:
        """The compiler begins with a function, which it has not found in its cache."""
        function = getattr(event.data["dispatcher"], "py_func", None)
        if not self.told and getattr(function, "__module__", "").startswith("hf_tlm."):
            self.told = True
            logger.warning("Compiling the code that indexes and searches: once on this machine, for up to a minute.")

    def on_end(self, event: Any) -> None:
        pass


@functools.cache
def tell_of_compiling() -> None:
    """Say so in a line when the compiler begins, in the first process of a job and none of its children."""
    if os.environ.get("RANK", "0") == "0" and multiprocessing.parent_process() is None:
        event.register("numba:compile", _Telling())
