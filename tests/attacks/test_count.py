"""How many bad inputs recipes are attacked with by the tables here; SECURITY.md says the number."""

import re

from attacks import test_numbers, test_paths, test_tasks_and_models, test_trainer_options, test_types
from attacks.attack import ROOT


def attacks():
    """Table -> command lines that a recipe has to refuse."""
    models, tasks = test_tasks_and_models, test_tasks_and_models.TASKS
    return {
        "paths": len(test_paths.CASES) + 5 * len(test_paths.WRITTEN),
        "types": len(test_types.CASES) + 4 * len(test_types.CLASSES),
        "numbers": len(test_numbers.SAMPLE),
        "options of the Trainer": len(test_trainer_options.CASES),
        "tasks": len(tasks) * len(models.OF_TASKS),
        "checkpoints": len(models.MODELS) * len(models.OF_MODELS),
        "sizes": len(models.LARGE),
    }


def test_there_are_as_many_as_is_said():
    said = re.search(r"([\d,]+) command lines", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))[1]
    assert 500 <= int(said.replace(",", "")) <= sum(attacks().values())
