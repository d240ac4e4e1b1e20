"""Store the benchmarks' figures: one JSON file per benchmark with an entry per section, and a Markdown page."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def show(value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{model}, {os.cpu_count()} cores"


def machine_and_load() -> str:
    """Describe the machine with its load, as other processes slow timed figures down."""
    return f"{machine()}, load average {os.getloadavg()[0]:.1f} at the start"


class ResultsFile:
    """The files `<folder>/<name>.json` and `.md`, written after every section, so that an interrupted run keeps its results.

    titles, notes: section -> text, in the order of the page. hidden: columns that only the JSON has.
    """

    def __init__(self, folder: str, name: str, titles: Mapping[str, str], notes: Mapping[str, str], hidden: tuple = ()):
        self.folder, self.name, self.titles, self.notes, self.hidden = Path(folder), name, titles, notes, hidden
        file = self.folder / f"{name}.json"
        self.results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def add(self, section: str, rows: list[dict], hardware: str | None = None) -> None:
        """Replace one section's figures with those of the running command."""
        command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        self.results[section] = {"command": command, "machine": hardware or machine(), "rows": rows}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{self.name}.json").write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")
        (self.folder / f"{self.name}.md").write_text(self.to_text(), encoding="utf-8")

    def to_text(self) -> str:
        from hf_tlm.runs.records import format_table

        parts = []
        for section in (s for s in self.titles if s in self.results):
            entry = self.results[section]
            columns = [column for column in entry["rows"][0] if column not in self.hidden]
            table = format_table([{c: show(row[c]) for c in columns} for row in entry["rows"]], columns)
            how = f"Made by `{entry['command']}` on {entry['machine']}."
            parts.append(f"## {self.titles[section]}\n\n{how} {self.notes[section]}\n\n{table}\n")
        return "\n".join(parts)


def run_sections(
    parser: argparse.ArgumentParser,
    benchmark: Callable[[argparse.Namespace], object],
    name: str,
    titles: Mapping[str, str],
    notes: Mapping[str, str],
    hidden: tuple = (),
) -> None:
    """Run the command line of a benchmark that has one method per section, which returns its rows.

    Args:
        parser: has the benchmark's own arguments.
        benchmark: called with the parsed arguments.
        name: default name of the result files.
        titles, notes, hidden: see `ResultsFile`.
    """
    parser.add_argument("--sections", nargs="+", choices=list(titles), default=list(titles))
    parser.add_argument("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--name", default=name, help="Name of the result files.")
    options = parser.parse_args()
    file = ResultsFile(options.results_dir, options.name, titles, notes, hidden)
    made = benchmark(options)
    for section in options.sections:
        file.add(section, getattr(made, section)())
    print("\n" + file.to_text())
