"""Command line of the scripts that generate pages: `python docs/make_X.py` writes them, `--check` lists outdated ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(about: str, make_pages: Callable[[], dict[Path, str]], outdated: Callable[[dict[Path, str]], list[str]]):
    """Run the command line of a script.

    Args:
        about: text of `--help`.
        make_pages: returns every page that the script generates: path -> text.
        outdated: returns the names of those pages whose files differ from what would be generated now.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Only say which pages are out of date.")
    check = parser.parse_args().check
    pages = make_pages()
    if not check:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
    elif stale := outdated(pages):
        sys.exit(f"Out of date: {', '.join(stale)}. Run python docs/{Path(sys.argv[0]).name}.")
