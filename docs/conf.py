"""Sphinx's settings. Build with `sphinx-build -W -b html docs docs/_build/html`.

The pages are Markdown that GitHub shows as it is. So that they need no directives, two things are done here while a page is
read: the index page of a section gets a toctree of the pages that it links, in its order, and of those that it does not;
and links to folders outside docs/, which a browser of the built pages does not have, become plain text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from hf_tlm.version import __version__  # noqa: E402

project = "hf_tlm"
author = "The hf_tlm authors"
copyright = "The hf_tlm authors"
version = release = __version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"hf_tlm {__version__}"
html_static_path: list[str] = []
html_show_sourcelink = False

myst_enable_extensions = ["amsmath", "dollarmath", "deflist"]
myst_heading_anchors = 4  # As GitHub names them.
copybutton_exclude = ".linenos, .gp, .go"

napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

SECTIONS = ("tutorials", "how_to", "explanation", "reference", "results")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def read_page(app, docname: str, source: list[str]) -> None:
    """Add toctrees to index pages and take links to folders out; called by Sphinx with the page's text in `source`."""
    folder = DOCS / posixpath.dirname(docname)

    def without_folders(link: re.Match) -> str:
        outside = "://" not in link[2] and (folder / link[2]).is_dir()
        return link[1] if outside else link[0]

    text = LINK.sub(without_folders, source[0])
    section = posixpath.dirname(docname)
    if docname == "index":
        text += toctree([f"{name}/index" for name in SECTIONS])
    elif section in SECTIONS and posixpath.basename(docname) == "index":
        pages = {path.stem for path in folder.glob("*.md")} - {"index"}
        linked = [link[2].removesuffix(".md") for link in LINK.finditer(source[0])]
        order = [name for name in dict.fromkeys(linked) if name in pages]
        text += toctree([*order, *sorted(pages - set(order))])
    source[0] = text


def toctree(names: list[str]) -> str:
    """A hidden toctree: the side bar's."""
    return "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read_page)
