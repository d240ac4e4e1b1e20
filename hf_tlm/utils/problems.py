"""Messages for errors that a user can fix: a full disk, a GPU out of memory, a process of the job that has ended."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# How libraries with their own error types quote errors of the system.
_QUOTED_ERRNO = re.compile(r"\(os error (\d+)\)|\[[Ee]rrno (\d+)\]")
_PHRASES = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)}
_PHRASES |= {"disk is full": errno.ENOSPC, "readonly database": errno.EROFS}  # SQLite
_PHRASES["Not enough disk space"] = errno.ENOSPC  # datasets
# Messages of NumPy and torch for an incomplete write, which have no errno.
_CUT_SHORT = re.compile(r"^\d+ requested and \d+ written$|PytorchStreamWriter failed writing|unexpected pos|iostream error")
_OTHER_FOLDER = "choose another folder"
_OTHER_CACHE = "set HF_HOME or HF_DATASETS_CACHE to a folder on another disk"
_MESSAGES = {
    errno.ENOSPC: "The disk{of} is full{free}: free some space or {other}",
    errno.EDQUOT: "The quota on the disk{of} is used up: free some space or {other}",
    errno.EFBIG: "The file size limit (ulimit -f, or the file system's) is exceeded{for_}: raise it or {other}",
    errno.EROFS: f"The file system{{of}} is read-only: {_OTHER_FOLDER}",
    errno.EACCES: f"Permission is denied{{for_}}: {_OTHER_FOLDER}, or ask for permission",
    errno.EIO: f"The disk{{of}} fails (input/output error): {_OTHER_FOLDER} on another disk",
}
_MESSAGES[errno.EPERM] = _MESSAGES[errno.EACCES]
_REASONS = dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "read-only")
_REASONS |= dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "no folder")
_CACHE_VARIABLES = ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_HOME")
# An error raised while one of these is handled, for example by closing the file, has the same cause.
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Messages of gloo and NCCL when the process at the other end of a connection has ended.
_BROKEN_CONNECTION = re.compile(r"Connection (closed|reset) by peer|remote process exited|Broken pipe")


def disk_problem(error: BaseException, path: str | os.PathLike | None = None) -> str | None:
    """Describe an error of the disk and what to do, without a full stop; None for an error of another kind.

    Args:
        error: the error; the errors that it was raised from are examined too, also those of libraries that only quote the
            system's error.
        path: what was being written, for an error that does not name a file.
    """
    for cause in _causes(error):
        if (code := _find_errno(cause)) not in (*_REASONS, *_MESSAGES):
            continue
        file_name = getattr(cause, "filename", None)
        if not isinstance(file_name, (str, bytes, os.PathLike)):
            file_name = path
        location = None if file_name is None else Path(os.fsdecode(file_name))
        cache = None if location is None else _find_cache(location)
        if cache is not None and code in _REASONS:
            return f"The cache {cache} is {_REASONS[code]}: set HF_HOME or HF_DATASETS_CACHE to a folder that can be written"
        if code not in _MESSAGES:
            continue
        of_path, for_path = ("", "") if location is None else (f" of {location}", f" for {location}")
        alternative = _OTHER_CACHE if location and cache and location.absolute().is_relative_to(cache) else _OTHER_FOLDER
        return _MESSAGES[code].format(of=of_path, for_=for_path, free=_format_free_space(location), other=alternative)
    return None


def describe_error(error: Exception, path: str | os.PathLike, otherwise: str = "") -> str:
    """Describe an error for the end of a sentence; other errors than the disk's are quoted, with the advice `otherwise`."""
    problem = disk_problem(error, path)
    if problem is None and isinstance(error, (FileExistsError, NotADirectoryError)):
        problem = f"a file is where a folder is expected ({error.filename}): {_OTHER_FOLDER}"
    return problem or str(error).rstrip(".") + (f". {otherwise}" if otherwise else "")


def cache_problem(error: BaseException, folder: str | os.PathLike) -> str | None:
    """Describe an error of writing to a cache while a library reads a file, as `disk_problem`; None for a read error."""
    only_written = any(_find_errno(cause) in (*_DISK_FULL, errno.EROFS) for cause in _causes(error))
    problem = disk_problem(error, folder if only_written else None)
    return problem if only_written or (problem or "").startswith("The cache ") else None


@contextlib.contextmanager
def writing_cache(folder: str | os.PathLike) -> Iterator[None]:
    """Add the folder's name to an OSError of a full disk raised in the block: `datasets` does not say where it writes."""
    try:
        yield
    except Exception as error:
        full_code = next((code for cause in _causes(error) if (code := _find_errno(cause)) in _DISK_FULL), None)
        if full_code is None:
            raise
        raise OSError(full_code, os.strerror(full_code), os.fspath(folder)) from error


def gpu_problem(error: Exception) -> str | None:
    """Describe an out-of-memory error of a GPU and what to do, without a full stop; None for an error of another kind."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    message = re.split(r"(?<= is free)\.", str(error))[0].rstrip(".")  # Without torch's list of processes and its advice.
    return (
        f"{message}. Use fewer texts at a time (--per_device_train_batch_size, with --total_batch_size for those of a step; "
        "--per_device_eval_batch_size), shorter ones (--max_length) or a smaller model, or end other processes on the GPU"
    )


def process_problem(error: Exception) -> str | None:
    """Describe the end of another process of the same job, without a full stop; None for an error of another kind."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if not is_initialized or not isinstance(error, RuntimeError) or not _BROKEN_CONNECTION.search(str(error)):
        return None  # A broken connection to the Hub is not a RuntimeError.
    return "Another process of this job has ended: its error is above, or it was killed"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes (`raise from`); of errors in its context, only those of a full disk."""
    seen_ids: set[int] = set()
    in_context = False
    while error is not None and id(error) not in seen_ids:
        seen_ids.add(id(error))
        if not in_context or _find_errno(error) in _DISK_FULL:
            yield error
        in_context = in_context or error.__cause__ is None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _find_errno(error: BaseException) -> int | None:
    """Return an error's errno, from its attribute or from its message; None if it has none."""
    code = getattr(error, "errno", None)
    if isinstance(error, OSError) and isinstance(code, int):
        return code
    text = str(error)[:10_000]
    if (match := _QUOTED_ERRNO.search(text)) is not None:
        return int(match[1] or match[2])
    if _CUT_SHORT.search(text) is not None and isinstance(error, (OSError, RuntimeError)):
        return errno.ENOSPC
    return next((code for phrase, code in _PHRASES.items() if phrase in text), None)


def _find_cache(path: Path) -> Path | None:
    """Return the cache folder of Hugging Face libraries that contains a path, or would be created in it; else None."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    folders = [home, *(Path(os.environ[name]) for name in _CACHE_VARIABLES if name in os.environ)]
    path = path.absolute()
    for folder in folders:
        folder = folder.expanduser().absolute()
        if path.is_relative_to(folder) or folder.is_relative_to(path):
            return folder
    return None


def _format_free_space(path: Path | None) -> str:
    for folder in () if path is None else (path, *path.absolute().parents):
        try:
            return f" ({shutil.disk_usage(folder).free:,} bytes free)"
        except OSError:
            continue
    return ""
