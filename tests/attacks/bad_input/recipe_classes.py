"""The classes that each recipe parses its command line into."""

import runpy
import sys

import pytest

from hf_tlm import config as parser
from support.warm import ROOT

RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))


class Parsed(Exception):
    """Raised to end a recipe once it has named the classes that it parses."""


def classes_of(recipe):
    """Return the classes that a recipe parses its command line into."""
    recorded = []

    def parse(*classes, **_):
        recorded.extend(map(parser.imported, classes))
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "parse", parse)
        patch.setattr(sys, "path", [*sys.path, str(ROOT / "recipes")])
        with pytest.raises(Parsed):
            runpy.run_path(str(ROOT / "recipes" / f"{recipe}.py"), run_name="recipe")["main"]()
    return recorded


CLASSES = {recipe: classes_of(recipe) for recipe in RECIPES}
