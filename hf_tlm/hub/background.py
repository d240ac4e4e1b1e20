"""Uploads beside other work: one at a time, and of those that wait only the newest."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class Uploads:
    """A thread that uploads folders, each of which is removed when it was uploaded, or passed over for a newer one.

    succeeded: how many were uploaded.
    errors: of those that were not.
    """

    def __init__(self, upload: Callable[[Path], Any]):
        self._upload, self._lock = upload, threading.Lock()
        self._waiting: Path | None = None
        self._thread: threading.Thread | None = None
        self.succeeded = 0
        self.errors: list[Exception] = []

    def submit(self, folder: Path) -> None:
        """Upload it as soon as the upload in progress has ended, unless a newer one is submitted until then."""
        with self._lock:
            passed_over, self._waiting = self._waiting, folder
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
                self._thread.start()
        if passed_over is not None:
            shutil.rmtree(passed_over, ignore_errors=True)

    def wait(self) -> None:
        """Until everything that was submitted is uploaded, or has failed."""
        while (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                folder, self._waiting = self._waiting, None
                if folder is None:
                    self._thread = None
                    return
            try:
                self._upload(folder)
                self.succeeded += 1
            except Exception as error:  # Whatever it is, it must not end with the thread.
                self.errors.append(error)
                logger.warning("An upload failed, and the work goes on: %s", error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
