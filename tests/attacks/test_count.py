"""The number of bad inputs in these tables that recipes are attacked with, which SECURITY.md states."""

import re

from attacks.bad_input import checkpoints, numbers, paths, recipe_classes, tasks, trainer_options, wrong_types
from support.warm import ROOT


def attacks():
    """Return table -> number of command lines that a recipe has to refuse."""
    return {
        "paths": len(paths.CASES) + len(paths.OUTPUTS) * len(paths.WRITTEN),
        "types": len(wrong_types.CASES) + len(wrong_types.NO_OPTIONS) * len(recipe_classes.CLASSES),
        "numbers": len(numbers.SAMPLE),
        "options of the Trainer": len(trainer_options.CASES),
        "tasks": len(tasks.TASKS) * len(tasks.OF_TASKS),
        "checkpoints": len(checkpoints.MODELS) * len(checkpoints.OF_MODELS),
        "sizes": len(checkpoints.LARGE),
    }


def test_tables_have_as_many_attacks_as_security_md_says():
    stated = re.search(r"([\d,]+) command lines", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))[1]
    assert 500 <= int(stated.replace(",", "")) <= sum(attacks().values())
