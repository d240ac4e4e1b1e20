"""Python of every page, unless it is marked as skipped: it parses, has all its names, and calls of ours fit.

Blocks of a page are typed in one session, in order, so a later block may use the names of an earlier one.
"""

import ast
import builtins
import importlib
import inspect

import pytest

from support.documentation import blocks, page_name, pages


def stored(tree):
    """The names that a block defines, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def imported(tree):
    """The objects that a block imports from us, by the names it gives them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "hf_tlm":
            for alias in node.names:
                yield alias.asname or alias.name, getattr(importlib.import_module(node.module), alias.name)


def problems(text):
    """What would fail in a page's Python, with the line of its block."""
    known, ours = {*dir(builtins)}, {}
    for block in blocks(text):
        if block.language != "python" or block.skipped:
            continue
        try:
            tree = ast.parse(block.text)
            known |= {*stored(tree)}
            ours |= dict(imported(tree))
        except (SyntaxError, ImportError, AttributeError) as error:
            yield f"line {block.line}: {error}"
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in known:
                yield f"line {block.line}: {node.id} is not defined"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours:
                try:
                    given = {word.arg: None for word in node.keywords}
                    inspect.signature(ours[node.func.id]).bind(*node.args, **given)
                except TypeError as error:
                    yield f"line {block.line}: {node.func.id}: {error}"


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_python_is_complete(page):
    assert not list(problems(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("python", "wrong"),
    [
        ("load_task('a.csv')", "load_task is not defined"),
        ("from hf_tlm import load_tasks", "load_tasks"),
        ("from hf_tlm import load_task\nload_task('a.csv', columns_of_text='b')", "columns_of_text"),
        ("{1: 2, ...}", "':' expected"),
    ],
)
def test_what_is_missing_is_said(python, wrong):
    (problem,) = problems(f"```python\n{python}\n```\n")
    assert wrong in problem
    assert not list(problems("```python\nnames = [1]\n```\n```python\nprint([name for name in names])\n```\n"))


def test_block_that_may_be_skipped_is_not_needed_by_later_ones():
    skippable = {}
    for path in pages():
        text, sentence, rest = path.read_text(encoding="utf-8").partition("Skip it if you have your own files.")
        if sentence:
            skippable[page_name(path)] = text + rest.partition("```python\n")[2].partition("```\n")[2]
    assert len(skippable) >= 2
    assert not {name: found for name, text in skippable.items() if (found := [*problems(text)])}
