"""Every block of every tutorial runs, in order, in one empty folder, at the scale that its directives set."""

import os
import sys

import pytest

from support.documentation import DOCS, ROOT, page_name, run_page

TUTORIALS = [path for path in sorted((DOCS / "tutorials").glob("*.md")) if path.name != "index.md"]


@pytest.fixture
def as_installed(tmp_path, monkeypatch):
    """Put this clone's command and this Python first on the PATH; return an empty folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "hf-tlm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hf_tlm.cli "$@"\n')
    for name in ("python", "python3"):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    path = os.pathsep.join([str(programs), os.path.dirname(sys.executable), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_tutorial_runs(page, as_installed, request, monkeypatch, capfd):
    if page.stem == "publish_and_load":
        request.getfixturevalue("hub")  # alice is logged in.
    run_page(page.read_text(encoding="utf-8"), as_installed, monkeypatch, capfd)


def test_blocks_of_a_page_run_in_order(as_installed, monkeypatch, capfd):
    page = """
<!-- test: replace 1000 -> 3 -->
<!-- test: append > numbers -->
```bash
seq 1 \\
    1000
```
```python
numbers = open("numbers").read().split()
```
```python
assert numbers == ["1", "2", "3"]
open("done", "w").close()
```
```bash
hf-tlm --version && mv done \\
    ended
```
<!-- test: skip needs the Hub -->
```bash
false
```
```json
{"for": "the eye"}
```
"""
    run_page(page, as_installed, monkeypatch, capfd)
    assert (as_installed / "ended").exists()


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("```bash\nfalse | cat\n```\n", "line 1"),
        ("```bash\nhf-tlm --version && false\n```\n", "line 1"),
        ("```bash\nhf-tlm presets nowhere\ntrue\n```\n", "line 1"),
        ("<!-- test: replace a -> b -->\n```bash\nls\n```\n", "no 'a' to replace"),
        ("<!-- test: apend x -->\n```bash\nls\n```\n", "unknown directive apend"),
        ("<!-- test: append x -->\n```text\nls\n```\n", "directives of a block that does not run"),
        ("```python\nassert 1 == 2, 'not equal'\n```\n", "not equal"),
    ],
)
def test_failing_block_is_named(page, wrong, as_installed, monkeypatch, capfd):
    with pytest.raises(AssertionError, match=wrong):
        run_page(page, as_installed, monkeypatch, capfd)
