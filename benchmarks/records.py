"""Pack the records of a table into one file of JSON lines, which git keeps in place of hundreds of small files.

    python benchmarks/records.py unpack coffee   # benchmarks/results/coffee.jsonl -> benchmarks/results/coffee/
    python recipes/reproduce.py ... --records_dir benchmarks/results/coffee
    python benchmarks/records.py pack coffee

A table is computed from one record per step (`runs/`, `preparations/`), so that processes can share the work and an
interrupted table continues. Git ignores these files; a line holds one of them, `{"file": its path, "record": its content}`,
sorted by path. `pack` keeps the lines of files that do not exist, and replaces the line of a file with other content.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hf_tlm.utils.files import atomic_write

RESULTS = Path(__file__).resolve().parent / "results"
# Files of a table's folder that the table is computed from. The results (main.json, main.md, ...) are not packed.
PATTERNS = ("runs/*.json", "preparations/*.json", "*.seed-*.json")


def read_packed(file: Path) -> dict[str, Any]:
    """Return path in the table's folder -> record; empty if the file does not exist."""
    if not file.is_file():
        return {}
    with open(file, encoding="utf-8") as lines:  # str.splitlines would also split at U+2028 within a text.
        return {line["file"]: line["record"] for line in map(json.loads, lines)}


def pack(folder: Path) -> int:
    """Write the records of a table's folder, with those packed before, to `<folder>.jsonl`; return their number."""
    target = folder.with_suffix(".jsonl")
    records = read_packed(target)
    for path in sorted(path for pattern in PATTERNS for path in folder.glob(pattern)):
        records[path.relative_to(folder).as_posix()] = json.loads(path.read_text(encoding="utf-8"))
    lines = [json.dumps({"file": name, "record": records[name]}, ensure_ascii=False) for name in sorted(records)]
    atomic_write(target, "".join(f"{line}\n" for line in lines))
    return len(records)


def unpack(folder: Path) -> int:
    """Write the packed records of a table that are not in its folder; return their number."""
    written = 0
    for name, record in read_packed(folder.with_suffix(".jsonl")).items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            atomic_write(folder / name, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
            written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("tables", nargs="+", help="Folders of benchmarks/results.")
    options = parser.parse_args()
    for table in options.tables:
        folder = RESULTS / table
        if not folder.is_dir() and not folder.with_suffix(".jsonl").is_file():
            parser.error(f"there is neither {folder} nor {folder.name}.jsonl beside it")
        number = (pack if options.what == "pack" else unpack)(folder)
        print(f"{table}: {number} records {'in ' + folder.name + '.jsonl' if options.what == 'pack' else 'written'}")


if __name__ == "__main__":
    main()
