"""benchmarks/compare_checkouts.py reports a commit as identical to itself, and finds a changed bit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def commit(tmp_path):
    """A folder with the files of HEAD, without uncommitted changes."""
    (tmp_path / "commit").mkdir()
    archived = subprocess.run(
        ["git", "-C", ROOT, "archive", "--output", tmp_path / "commit.tar", "HEAD"], capture_output=True
    )
    if archived.returncode:
        pytest.skip("this is no git repository")
    subprocess.run(["tar", "-xf", tmp_path / "commit.tar", "-C", tmp_path / "commit"], check=True)
    return tmp_path / "commit"


def compare(*arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / "compare_checkouts.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)


@pytest.mark.slow
def test_a_commit_is_identical_to_itself(commit, tmp_path):
    done = compare("HEAD", commit, "--only", "retrieve-random", "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    (line, _, last) = done.stdout.splitlines()
    assert line.startswith("retrieve-random  identical (") and last == "All identical."
    assert (tmp_path / "kept/after/results/retrieve-random/manifest.json").is_file()
    # The worktree of the revision is removed.
    assert not (tmp_path / "kept/before-checkout").exists()


def test_unknown_checkout_or_command_is_refused(tmp_path):
    for arguments, message in (
        ((ROOT, ROOT, "--only", "retrieve", "nothing"), "no command is called nothing; there are retrieve-bm25"),
        ((tmp_path, ROOT), "is no checkout"),
        (("no-such-revision", ROOT), "neither a folder nor a revision"),
    ):
        done = compare(*arguments)
        assert done.returncode and message in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def compare_folders(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from compare_folders import compare_folders

    return compare_folders


def write_run_folder(folder, weight=0.5, score=1.5, f1=0.25, seconds=3.0):
    (folder / "model").mkdir(parents=True)
    save_file({"a": np.array([1.0, weight], np.float32), "b": np.zeros(2, np.float16)}, folder / "model/model.safetensors")
    pq.write_table(pa.table({"id": ["p", "q"], "scores": [[1.0], [score]]}), folder / "rows.parquet")
    record = {"summary": [{"f1": f1}], "seconds": seconds, "run": f"{folder}/model"}
    (folder / "results.json").write_text(json.dumps(record))
    (folder / "test.jsonl").write_text(json.dumps({"id": "p", "f1": f1}) + "\n")
    (folder / "curves.csv").write_text(f"step,f1,seconds\n1,{f1},{seconds}\n")
    (folder / "README.md").write_text(f"{seconds} s")
    return folder


def test_folders_that_differ_in_times_and_paths_are_equal(compare_folders, tmp_path):
    before, after = write_run_folder(tmp_path / "before"), write_run_folder(tmp_path / "after", seconds=4.0)
    counts, differences = compare_folders(before, after, {str(before): "@", str(after): "@"})
    assert not differences and counts == {"tensors": 2, "values": 5 + 2 + 2 + 2}


@pytest.mark.parametrize(
    "change,message",
    [
        ({"weight": np.nextafter(np.float32(0.5), 1)}, "model/model.safetensors: a: 1 of 2 numbers, by 6e-08 at most"),
        ({"score": np.nextafter(1.5, 2)}, "rows.parquet: scores[1]: [1.5] / [1.5000000000000002]"),
        ({"f1": 0}, "results.json: summary[0].f1: 0.0 / 0"),
        ({"f1": -0.0}, "results.json: summary[0].f1: 0.0 / -0.0"),
    ],
)
def test_changed_bit_is_found(compare_folders, tmp_path, change, message):
    same = {name: 0.0 for name in change if name == "f1"}
    before, after = write_run_folder(tmp_path / "before", **same), write_run_folder(tmp_path / "after", **change)
    _, differences = compare_folders(before, after, {str(before): "@", str(after): "@"})
    assert message in differences and len(differences) == (3 if "f1" in change else 1)


def test_files_that_only_one_folder_has_are_named(compare_folders, tmp_path):
    before, after = write_run_folder(tmp_path / "before"), write_run_folder(tmp_path / "after")
    (before / "README.md").unlink()
    (after / "curves.csv").rename(after / "curve.csv")
    _, differences = compare_folders(before, after, {str(before): "@", str(after): "@"})
    assert differences == ["README.md: only after", "curve.csv: only after", "curves.csv: only before"]
