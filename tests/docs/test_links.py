"""Links of all pages: files and anchors exist, addresses are well formed, and index pages link every page."""

import re
from urllib.parse import unquote, urlsplit

import pytest

from support.documentation import DOCS, anchors, links, page_name, pages

PAGES = pages()


def problems(page, text):
    """Return the problems of a page's links, one line each."""
    found = []
    for target in links(text):
        if "://" in target:
            parts = urlsplit(target)
            if parts.scheme != "https" or "." not in parts.netloc or re.search(r"[\s<>]", target):
                found.append(f"{target}: expected https://host/path")
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / unquote(path)) if path else page
        if not file.exists():
            found.append(f"{target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.resolve()):
            found.append(f"{target}: no such anchor; there are {', '.join(sorted(anchors(file.resolve())))}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_of_a_page_are_valid(page):
    assert not problems(page, page.read_text(encoding="utf-8"))


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.md").write_text("# One thing: `x`\n## One thing: `x`\n")
    text = "[a](a.md#one-thing-x) [b](a.md#one-thing-x-1) [c](a.md#two) ![d](d.png) [e](http://x.org) [f](https://x.org/a)"
    found = [line.split(": ")[0] for line in problems(tmp_path / "page.md", text)]
    assert found == ["a.md#two", "d.png", "http://x.org"]
    assert not problems(tmp_path / "page.md", "`[a](gone.md)`\n```\n[a](gone.md)\n```\n")


@pytest.mark.parametrize("section", [path.name for path in sorted(DOCS.iterdir()) if (path / "index.md").is_file()])
def test_index_links_every_page_of_its_section(section):
    index = DOCS / section / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index.read_text(encoding="utf-8"))}
    missing = {path.name for path in index.parent.glob("*.md") if path != index and path.resolve() not in linked}
    assert not missing
