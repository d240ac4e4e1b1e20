"""benchmarks/records.py: the packed records that git keeps of a table can be unpacked completely."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from records import RESULTS, pack, read_packed, unpack  # noqa: E402


def write_records(folder, files):
    for name, record in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(record, indent=2), encoding="utf-8")


def contents(folder):
    return {p.relative_to(folder).as_posix(): json.loads(p.read_text("utf-8")) for p in folder.rglob("*.json")}


def test_packed_records_are_unpacked_unchanged(tmp_path):
    files = {"runs/a.seed-0.json": {"score": 0.1 + 0.2, "text": "ä\u2028\n"}, "preparations/b.json": {"of": [1, None, True]}}
    write_records(tmp_path / "table", files | {"main.json": {"made": "of them"}})
    assert pack(tmp_path / "table") == 2
    other = tmp_path / "other"
    (tmp_path / "table.jsonl").rename(tmp_path / "other.jsonl")
    assert unpack(other) == 2 and contents(other) == files
    assert unpack(other) == 0


def test_packing_keeps_records_without_files(tmp_path):
    folder = tmp_path / "table"
    write_records(folder, {"runs/a.json": {"score": 1}, "runs/b.json": {"score": 2}})
    pack(folder)
    (folder / "runs/a.json").unlink()
    write_records(folder, {"runs/b.json": {"score": 3}})
    assert pack(folder) == 2
    assert read_packed(tmp_path / "table.jsonl") == {"runs/a.json": {"score": 1}, "runs/b.json": {"score": 3}}


@pytest.mark.parametrize("table", ["cpu", "coffee", "plateau"])
def test_packed_tables_of_the_repository_are_readable(table):
    records = read_packed(RESULTS / f"{table}.jsonl")
    assert len(records) > 40 and list(records) == sorted(records)
    finished = [record for name, record in records.items() if record.get("status", "finished") == "finished"]
    assert len(finished) > 40


def test_git_has_no_unpacked_records():
    listed = subprocess.run(["git", "ls-files", "benchmarks/results"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("THE FILES OF THE REPOSITORY ARE NOT KNOWN: this is no git checkout")
    names = listed.stdout.split()
    assert names and not [name for name in names if "/runs/" in name or "/preparations/" in name or ".seed-" in name]
