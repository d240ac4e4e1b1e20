"""Atomic outputs: a reader sees the old file or folder or the whole new one, never a part."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class HfTlmError(ValueError):
    """An error meant for the user: it names what was expected, what was received and what to do.

    Recipes print it as one message without a traceback (see `hf_tlm.parser.run`).
    """


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it to `path` when the block ends without an error.

    An existing folder at `path` changes places with the new one in a single step and is then removed. After an error or
    a kill `path` is as it was, or whole (a kill leaves at most a hidden `.<name>.*` sibling, which nothing ever reads).
    Where the system cannot exchange folders (NFS, macOS) there are two renames instead, and for a moment nothing at `path`:
    a kill in it leaves the old folder in `.<name>.old.*`, from where it can be moved back.

    Raises:
        HfTlmError: the disk cannot be written (full, read-only, no permission); the cause is in the message.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise HfTlmError(f"Cannot write under {path.parent}: {error}. Choose another output folder.") from error
    try:
        # mkdtemp makes private folders; a result is as readable as any other folder made under this umask.
        umask = os.umask(0)
        os.umask(umask)
        work.chmod(0o777 & ~umask)
        yield work
        if not path.exists():
            os.rename(work, path)
        elif not _exchange(path, work):
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent)) / path.name
            os.rename(path, old)
            try:
                os.rename(work, path)
            except BaseException:
                os.rename(old, path)
                raise
            finally:
                shutil.rmtree(old.parent, ignore_errors=True)
    except OSError as error:
        raise HfTlmError(f"Cannot write {path}: {error}. What was there before is unchanged.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step (renameat2 with RENAME_EXCHANGE); False where system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    at_fdcwd, exchange = -100, 2
    return renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), exchange) == 0


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yield a temporary sibling of `path`, open for writing; rename it to `path` when the block ends without an error.

    Raises:
        HfTlmError: the disk cannot be written; the previous file, if any, is intact.
    """
    path = Path(path)
    # Containers that share a folder often share process ids too.
    work = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(work, "wb") as stream:
            yield stream
        os.replace(work, path)
    except OSError as error:
        raise HfTlmError(f"Cannot write {path}: {error}. A previous file there is unchanged.") from error
    finally:
        with contextlib.suppress(OSError):
            work.unlink()


def atomic_write(path: str | os.PathLike, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path` as `atomic_file` does."""
    with atomic_file(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


def sha256(path: str | os.PathLike) -> str:
    """Hex digest of a file's content, read in blocks of 1 MiB."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
