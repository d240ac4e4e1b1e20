"""How many bad inputs recipes are attacked with by the tables here; SECURITY.md says the number."""

import re

from attacks.bad_input import checkpoints, numbers, paths, recipe_classes, tasks, trainer_options, wrong_types
from support.warm import ROOT


def attacks():
    """Table -> command lines that a recipe has to refuse."""
    return {
        "paths": len(paths.CASES) + len(paths.OUTPUTS) * len(paths.WRITTEN),
        "types": len(wrong_types.CASES) + len(wrong_types.NO_OPTIONS) * len(recipe_classes.CLASSES),
        "numbers": len(numbers.SAMPLE),
        "options of the Trainer": len(trainer_options.CASES),
        "tasks": len(tasks.TASKS) * len(tasks.OF_TASKS),
        "checkpoints": len(checkpoints.MODELS) * len(checkpoints.OF_MODELS),
        "sizes": len(checkpoints.LARGE),
    }


def test_there_are_as_many_as_is_said():
    said = re.search(r"([\d,]+) command lines", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))[1]
    assert 500 <= int(said.replace(",", "")) <= sum(attacks().values())
