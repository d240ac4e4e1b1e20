"""A full, read-only or forbidden disk is named in a message with status 1, whichever library raises the error."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from attacks.attack import assert_refused, call
from hf_tlm.corpora import tables
from hf_tlm.errors import HubError
from hf_tlm.hub import Repo
from hf_tlm.hub.errors import explaining
from hf_tlm.retrieval import Subset
from hf_tlm.tasks import TaskError, load_task
from hf_tlm.utils.arrow_files import map_rows
from hf_tlm.utils.problems import disk_problem
from support.warm import ROOT


class SafetensorError(Exception):
    """Stands for the error of safetensors, which is not an OSError."""


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def raised_beside(error, other):
    error.__context__ = other
    return error


CASES = {
    "full": (OSError(errno.ENOSPC, "No space left on device", "/tmp/x/y"), "The disk of /tmp/x/y is full ("),
    "quota": (OSError(errno.EDQUOT, "Disk quota exceeded"), "The quota on the disk of /out is used up"),
    "limit": (
        OSError(errno.EFBIG, "File too large"),
        "The file size limit (ulimit -f, or the file system's) is exceeded for /out",
    ),
    "limit of datasets": (
        raised_from(RuntimeError("generating the dataset"), OSError("[Errno 27] Error writing bytes. Detail: [errno 27]")),
        "is exceeded for /out: raise it or",
    ),
    "read-only": (OSError(errno.EROFS, "Read-only file system", "/x"), "The file system of /x is read-only"),
    "permission": (PermissionError(errno.EACCES, "Permission denied", b"/x"), "Permission is denied for /x"),
    "broken": (OSError(errno.EIO, "Input/output error"), "The disk of /out fails"),
    "safetensors": (
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
        "The disk of /out is full",
    ),
    "arrow": (OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space"), "/out is full"),
    "numpy": (OSError("15000 requested and 12784 written"), "/out is full"),
    "torch": (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), "/out is full"),
    "torch's stream": (RuntimeError("basic_ios::clear: iostream error"), "/out is full"),
    "tokenizers": (Exception("No space left on device (os error 28)"), "/out is full"),
    "closing": (raised_beside(ValueError("I/O operation on closed file"), OSError(28, "No space left")), "/out is full"),
    "sqlite": (RuntimeError("(sqlite3.OperationalError) database or disk is full"), "/out is full"),
    "datasets": (raised_from(RuntimeError("generating the dataset"), OSError(30, "Read-only", "/x")), "/x is read-only"),
}


@pytest.mark.parametrize("case", CASES)
def test_disk_problem_is_described(case):
    error, words = CASES[case]
    assert words in disk_problem(error, "/out")


@pytest.mark.parametrize(
    "error",
    [
        OSError("plain"),
        FileNotFoundError(2, "No such file"),
        ValueError("error 28"),
        raised_beside(KeyError(), PermissionError(13, "Permission denied")),
    ],
)
def test_other_errors_are_not_disk_problems(error):
    assert disk_problem(error, "/out") is None


def test_message_about_a_cache_names_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for path in (tmp_path / "cache" / "deep" / "file", tmp_path / "cache", tmp_path):
        problem = disk_problem(OSError(errno.EROFS, "Read-only file system", str(path)))
        assert problem.startswith(f"The cache {tmp_path / 'cache'} is read-only: set HF_HOME or HF_DATASETS_CACHE to a ")
    full = disk_problem(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "cache")))
    assert full.startswith(f"The disk of {tmp_path / 'cache'} is full (") and "bytes free" in full
    assert full.endswith(": free some space or set HF_HOME or HF_DATASETS_CACHE to a folder on another disk")
    above = disk_problem(OSError(errno.ENOSPC, "No space left on device", str(tmp_path)))
    assert above.endswith(": free some space or choose another folder")


def raise_case(case):
    raise CASES[case][0]


@pytest.mark.parametrize("case", CASES)
def test_recipe_ends_with_one_line(case):
    assert_refused(call(raise_case, case), disk_problem(CASES[case][0]).partition(" (")[0], "the same command continues")


def test_full_cache_is_named(tmp_path, monkeypatch, made_toys):
    """`datasets` does not say where it writes, and fails once more when it closes the file."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    rows = Dataset.from_file(Dataset.from_parquet(str(made_toys.corpus)).cache_files[0]["filename"])

    def write(*args, **options):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            raise ValueError("I/O operation on closed file")

    for owner, name in ((Dataset, "map"), (Dataset, "from_parquet"), (tables, "load_dataset")):
        monkeypatch.setattr(owner, name, write)
    for work, words in (
        (lambda: map_rows(rows, len), f"The disk of {Path(rows.cache_files[0]['filename']).parent} is full ("),
        (lambda: Subset.load(made_toys.subset), f"The disk of {tmp_path} is full ("),
        (lambda: load_task(str(made_toys.task)), f"train.jsonl: The disk of {tmp_path} is full ("),
    ):
        with pytest.raises((OSError, TaskError)) as found:
            work()
        problem = str(found.value) if found.type is TaskError else disk_problem(found.value)
        assert words in problem and "set HF_HOME or HF_DATASETS_CACHE to a folder on another disk" in problem


@pytest.mark.parametrize("words", [os.strerror(errno.ENOSPC), "Not enough disk space. Needed: 9 GB"])
def test_hub_cache_without_space_for_a_repository_is_named(tmp_path, monkeypatch, words):
    """The Hub's client does not say where it writes; `datasets` has a message of its own."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HubError) as found, explaining(Repo("alice/toy", None, "model")):
        raise OSError(words)
    assert f"alice/toy could not be fetched. The disk of {tmp_path} is full (" in str(found.value)


def test_cache_that_is_a_file_is_refused(toys, tmp_path):
    (tmp_path / "cache").write_text("")
    done = subprocess.run(
        [sys.executable, "recipes/retrieve.py", *map(str, toys.commands["retrieve"])],
        cwd=ROOT,
        env=os.environ | {"HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"The cache {tmp_path / 'cache'} is no folder: set HF_HOME" in done.stderr
    assert not toys.out.exists()


READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"')


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["retrieve", "pretrain"])
def test_read_only_cache_is_refused(toys, tmp_path, recipe):
    """The cache is a read-only mount: root may write everywhere else."""
    cache = tmp_path / "cache"
    cache.mkdir()
    if subprocess.run([*READ_ONLY, cache, "true"], capture_output=True, check=False).returncode:
        pytest.skip("No file system can be mounted here.")
    command = [sys.executable, f"recipes/{recipe}.py", *map(str, toys.commands[recipe])]
    environment = os.environ | {"HF_HOME": str(cache)}
    done = subprocess.run(
        [*READ_ONLY, cache, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.endswith(
        f"The cache {cache} is read-only: set HF_HOME or HF_DATASETS_CACHE to a folder that can be written.\n"
    )
    assert not toys.out.exists()
