"""Lay out the npm packages of exported pages as `npm install` does: python tests/support/page_runtime.py FOLDER."""

import sys
from pathlib import Path

from hf_tlm.errors import ArgumentsError
from hf_tlm.runs.export.page import RUNTIME, read_runtime

if __name__ == "__main__":
    try:
        found = read_runtime()
    except ArgumentsError as error:
        sys.exit(str(error))
    for package, names in RUNTIME.items():
        place = Path(sys.argv[1]) / "node_modules" / package.rpartition("@")[0] / "dist"
        place.mkdir(parents=True)
        for name in names:
            (place / name).write_bytes(found[name])
