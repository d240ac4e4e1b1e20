"""Count the file operations below a folder, and let one of them fail, or all from one on."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

# A full disk refuses the operations that need space, not those that free it.
FILLING = ("mkdir", "link", "rename", "replace", "fsync", "write", "open")
FREEING = ("unlink", "remove", "rmdir")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Faults:
    """Operations below a root in their order; number `at` raises, with `lasting` also later ones that need space."""

    def __init__(self, root: Path, at: int | None = None, code: int = errno.ENOSPC, lasting: bool = False):
        self.root, self.at, self.code, self.lasting = str(root), at, code, lasting
        self.seen: list[str] = []

    def count(self, name: str, path: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fsdecode(path)
        if not path.startswith(self.root):
            return
        number = len(self.seen)
        self.seen.append(f"{name} {path}")
        if self.at is not None and (number == self.at or (self.lasting and number > self.at and name in FILLING)):
            raise OSError(self.code, os.strerror(self.code), path)


class _Stream:
    """A file open for writing; a write that fails has written half of the data."""

    def __init__(self, stream: Any, path: Any, faults: Faults):
        self._stream, self._path, self._faults = stream, path, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator:
        return iter(self._stream)

    def write(self, data: Any) -> int:
        try:
            self._faults.count("write", self._path)
        except OSError:
            self._stream.write(data[: len(data) // 2])
            raise
        return self._stream.write(data)


def _of_safetensors(error: OSError) -> Exception:
    return SafetensorError(f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})")


def _of_torch(error: OSError) -> Exception:
    return RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/0")


@contextlib.contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """Count Python's own file operations within the block, and each write of safetensors, torch and Arrow as one."""
    real_open, real_os_open = io.open, os.open

    def opened(file, mode="r", *args, **named):
        if not set(mode) & set("wax+"):
            return real_open(file, mode, *args, **named)
        if isinstance(file, int):  # A descriptor: opening it was counted before.
            return _Stream(real_open(file, mode, *args, **named), file, faults)
        faults.count("open", file)
        return _Stream(real_open(file, mode, *args, **named), file, faults)

    def os_opened(path, flags, *args, **named):
        if flags & _WRITING and "dir_fd" not in named:
            faults.count("open", path)
        return real_os_open(path, flags, *args, **named)

    def counted(name, function, position=0):
        def call(*args, **named):
            if named.get("dir_fd") is None:
                faults.count(name, args[position])
            return function(*args, **named)

        return call

    def cut_short(function, position, error_of):
        def write(*args, **named):
            path = args[position]
            if not isinstance(path, (str, os.PathLike)):
                return function(*args, **named)
            try:
                faults.count("write", path)
            except OSError as error:
                Path(path).write_bytes(b"half")
                raise error_of(error) from None
            return function(*args, **named)

        return write

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        patch.setattr(os, "open", os_opened)
        for name in ("mkdir", "link", "rename", "replace", "fsync", *FREEING):
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(safetensors.torch, "serialize_file", cut_short(safetensors.torch.serialize_file, 1, _of_safetensors))
        patch.setattr(torch, "save", cut_short(torch.save, 1, _of_torch))
        patch.setattr(pyarrow, "OSFile", cut_short(pyarrow.OSFile, 0, lambda error: error))
        yield faults
