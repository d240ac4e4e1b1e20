"""The reference is generated from the code: pages are current, and the page on formats names every file and column."""

import argparse

import pytest

from hf_tlm.commands import COMMANDS
from hf_tlm.config import parse
from hf_tlm.retrieval.bm25.files import FILES, META_FILE
from hf_tlm.retrieval.subset_files import CARD_FILE, COLUMNS, DATA_FILE, REPORT_FILE
from hf_tlm.training.run_folder import RECORDS
from hf_tlm.utils.run_files import MANIFEST_FILE
from make_reference import REFERENCE, filled, make_pages, option_row, outdated, plain, read_command


def test_pages_are_current():
    assert not outdated(make_pages()), "run python docs/make_reference.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_page_of_a_command_has_every_option_of_its_help(name, capsys):
    command = read_command(name)
    with pytest.raises(SystemExit):
        parse(*command.classes, recipe=command.recipe, description="", args=["--help"])
    printed = [line.split()[0].rstrip(",") for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    page = (REFERENCE / f"{name.replace('-', '_')}.md").read_text(encoding="utf-8")
    options = [option for option in printed if option not in ("--help_all", "--config") and not option.startswith("--no_")]
    assert len(options) > 3
    assert not [option for option in options if f"| `{option}`<br>" not in page]


def test_outdated_pages_are_named(tmp_path):
    pages = {tmp_path / "a.md": "new\n", tmp_path / "b.md": "same\n", tmp_path / "c.md": "missing\n"}
    (tmp_path / "a.md").write_text("old\n")
    (tmp_path / "b.md").write_text("same\n")
    (tmp_path / "d.md").write_text("<!-- Made by docs/make_reference.py from what is gone. -->\n")
    (tmp_path / "e.md").write_text("by hand\n")
    assert outdated(pages, tmp_path) == ["a.md", "c.md", "d.md"]


def test_only_generated_parts_of_a_page_are_replaced():
    page = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n"
    assert filled(page, {"x": lambda: "new\n"}) == "a\n<!-- generated: x -->\n\nnew\n\n<!-- end -->\nb\n"
    assert filled(filled(page, {"x": lambda: "new"}), {"x": lambda: "new"}) == filled(page, {"x": lambda: "new"})


def test_table_cells_are_escaped():
    assert plain("a|b *c* <d>\n e `*f*`") == "a\\|b \\*c\\* \\<d> e `*f*`"


def test_page_on_formats_names_every_file_and_column():
    page = (REFERENCE / "file_formats.md").read_text(encoding="utf-8")
    names = [*COLUMNS, DATA_FILE, MANIFEST_FILE, CARD_FILE, REPORT_FILE, META_FILE, *FILES, *RECORDS]
    assert not [name for name in names if f"`{name}`" not in page]


def test_table_row_of_an_option():
    parser = argparse.ArgumentParser()
    several = parser.add_argument("--a", type=int, nargs="+", default=[1, 2], help="Some.")
    assert option_row(several) == ["`--a`<br>whole number ...", "`1 2`", "Some."]
    choice = parser.add_argument("--b", choices=["x", "y"], required=True, help="x or another.")
    assert option_row(choice) == ["`--b`<br>choice", "*required*", "x or another. One of `x`, `y`."]
    named = parser.add_argument("--c", choices=["x", "y"], default="x", help="x, y (default: %(default)s).")
    assert option_row(named) == ["`--c`<br>choice", "`x`", "x, y (default: x)."]
    assert option_row(parser.add_argument("--d")) == ["`--d`<br>text", "", ""]
