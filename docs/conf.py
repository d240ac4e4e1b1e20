"""Settings of Sphinx. Build with `sphinx-build -W -b html docs docs/_build/html`.

The pages are Markdown that GitHub shows as it is. To keep them free of directives, three changes are made when a page is
read: the index page of a section gets a toctree of the pages that it links, in its order, followed by the others; links to
files outside docs/, which readers of the built pages do not have, become plain text; and the pages of the Python API get the
docstrings.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

import make_reference  # noqa: E402
from hf_tlm.version import __version__  # noqa: E402

project = "hf_tlm"
author = "The hf_tlm authors"
copyright = "The hf_tlm authors"
version = release = __version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"hf_tlm {__version__}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
smartquotes = False  # Options begin with --.

myst_enable_extensions = ["amsmath", "dollarmath", "deflist"]
myst_heading_anchors = 4  # As on GitHub.
copybutton_exclude = ".linenos, .gp, .go"

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_inherit_docstrings = False
default_role = "py:obj"  # Names between backticks in docstrings become links where they are documented, else code.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

SECTIONS = ("tutorials", "how_to", "explanation", "reference", "results")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
LONGEST_SIGNATURE = 400  # Classes of arguments have a hundred fields, which are documented one by one.


def read_page(app, docname: str, source: list[str]) -> None:
    """Complete a page, given in `source`; called by Sphinx."""
    folder = DOCS / posixpath.dirname(docname)

    def without_outside(link: re.Match) -> str:
        inside = "://" in link[2] or (folder / link[2]).resolve().is_relative_to(DOCS)
        return link[0] if inside else link[1]

    text = LINK.sub(without_outside, source[0])
    if docname.startswith("reference/api_"):
        text += make_reference.autodoc(docname.removeprefix("reference/api_"))
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
    """Return a hidden toctree, for the side bar."""
    return "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def shorten_signature(app, what, name, obj, options, signature, return_annotation):
    """Replace very long signatures by (...); called by Sphinx for every name."""
    return ("(...)" if signature and len(signature) > LONGEST_SIGNATURE else signature), return_annotation


def prepare_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Adapt a docstring for napoleon; called by Sphinx for every name, before napoleon.

    A class's list of fields, a paragraph with lines of `field: what it is`, becomes a section "Attributes".
    """
    if what == "property":  # napoleon reads the text before a colon as the type.
        lines[:1] = [lines[0].replace(": ", " -- ")]
    fields = {field for cls in getattr(obj, "__mro__", ()) for field in vars(cls).get("__annotations__", ())}
    for place in range(1, len(lines) if what == "class" else 0):
        start = re.match(r"(\w+)[\w, ]*: ", lines[place].strip())
        if start and start[1] in fields and not lines[place - 1].strip():
            end = next((row for row in range(place, len(lines)) if not lines[row].strip()), len(lines))
            lines[place:end] = ["Attributes:", *(f"    {line}" for line in lines[place:end])]
            return


def write_math(writer, node) -> None:
    """Write a formula as MathML, which browsers render natively; called by Sphinx for every formula.

    Raises:
        SkipNode: always, as nothing more is to be written.
    """
    is_block = isinstance(node, nodes.math_block)
    written = tex2mathml(node.astext(), as_block=is_block)
    writer.body.append(f'<div class="math">{written}</div>' if is_block else written)
    raise nodes.SkipNode


def setup(app) -> None:
    """Connect the functions above to Sphinx's events; called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(write_math, None), block_renderers=(write_math, None))
    app.connect("source-read", read_page)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)
