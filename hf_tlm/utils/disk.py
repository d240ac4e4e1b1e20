"""What a disk's error means, in words: full, over its quota, read-only, not ours, broken."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# How libraries that have error types of their own quote the system's.
_QUOTED = re.compile(r"\(os error (\d+)\)|\[[Ee]rrno (\d+)\]")
_PHRASES = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)}
_PHRASES |= {"disk is full": errno.ENOSPC, "readonly database": errno.EROFS}  # of SQLite
_FREE, _OTHER = "free some space or choose another folder", "choose another folder"
_WORDS = {
    errno.ENOSPC: f"The disk{{of}} is full{{free}}: {_FREE}",
    errno.EDQUOT: f"The quota on the disk{{of}} is used up: {_FREE}",
    errno.EROFS: f"The file system{{of}} is read-only: {_OTHER}",
    errno.EACCES: f"There is no permission{{for_}}: {_OTHER}, or have it made yours",
    errno.EIO: f"The disk{{of}} fails (input/output error): {_OTHER} on another disk",
}
_WORDS[errno.EPERM] = _WORDS[errno.EACCES]
_CACHE = dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "read-only")
_CACHE |= dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "no folder")
_VARIABLES = ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_HOME")


def disk_problem(error: BaseException, path: str | os.PathLike | None = None) -> str | None:
    """What is wrong with the disk, and what to do, without a full stop; None for an error of another kind.

    Args:
        error: it or what it was raised from; of libraries that only quote the system's error, too.
        path: what was being written, for an error that does not say.
    """
    for one in _causes(error):
        code = _code(one)
        named = getattr(one, "filename", None)
        if not isinstance(named, (str, bytes, os.PathLike)):
            named = path
        place = None if named is None else Path(os.fsdecode(named))
        if place is not None and code in _CACHE and (cache := _cache_of(place)) is not None:
            return f"The cache {cache} is {_CACHE[code]}: set HF_HOME or HF_DATASETS_CACHE to a folder that can be written"
        if code not in _WORDS:
            continue
        of, for_ = ("", "") if place is None else (f" of {place}", f" for {place}")
        return _WORDS[code].format(of=of, for_=for_, free=_free(place))
    return None


def told(error: Exception, path: str | os.PathLike, otherwise: str = "") -> str:
    """The error in words, or as the system says it, and then what to do `otherwise`; to end a sentence."""
    return disk_problem(error, path) or str(error).rstrip(".") + (f". {otherwise}" if otherwise else "")


def cache_problem(error: BaseException) -> str | None:
    """As `disk_problem`, of what libraries write to their caches while they read a file; None for an error of reading."""
    only_written = any(_code(one) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) for one in _causes(error))
    problem = disk_problem(error)
    return problem if only_written or (problem or "").startswith("The cache ") else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _code(error: BaseException) -> int | None:
    """The system's number of an error, from its attribute or its text."""
    code = getattr(error, "errno", None)
    if isinstance(error, OSError) and isinstance(code, int):
        return code
    text = str(error)[:10_000]
    if (quoted := _QUOTED.search(text)) is not None:
        return int(quoted[1] or quoted[2])
    return next((code for phrase, code in _PHRASES.items() if phrase in text), None)


def _cache_of(place: Path) -> Path | None:
    """The cache of Hugging Face libraries that a path is in, or would be made in."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    folders = [home, *(Path(os.environ[name]) for name in _VARIABLES if name in os.environ)]
    place = place.absolute()
    for folder in folders:
        folder = folder.expanduser().absolute()
        if place.is_relative_to(folder) or folder.is_relative_to(place):
            return folder
    return None


def _free(place: Path | None) -> str:
    for folder in () if place is None else (place, *place.absolute().parents):
        try:
            return f" ({shutil.disk_usage(folder).free:,} bytes free)"
        except OSError:
            continue
    return ""
