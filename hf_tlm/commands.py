"""The commands of hf_tlm, the recipes that they run, and presets: named settings that come with the recipes.

The preset `tlm/coffee` is the file recipes/configs/tlm/coffee.yaml. A file of that name in the working directory takes
precedence over the preset. Old spellings with folder and suffix (`recipes/configs/models/bert_tiny.json`) name the same
presets, in any working directory.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import textwrap
from pathlib import Path

# Command -> (recipe, one line of description). A new recipe needs a line here; sections of YAML files have its name.
COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": ("quickstart", "Run the whole method on demo data, in minutes on a laptop."),
    "retrieve": ("retrieve", "Retrieve the passages of a corpus that resemble a task."),
    "select-influence": ("select_influence", "Keep the most influential part of a subset (ISS)."),
    "train": ("train_tlm", "Train a classifier from scratch on a task and a subset (TLM), and evaluate it."),
    "pretrain": ("pretrain", "Pretrain on a corpus or a subset alone: masked LM, ELECTRA, ALE, COCO-LM."),
    "finetune": ("finetune", "Fine-tune a pretrained encoder on a task of any kind, with seeds and grids."),
    "few-shot": ("few_shot", "Learn a task from a few examples per class, by filling a prompt (LM-BFF)."),
    "predict": ("predict", "Predict with a finished model: a table in, the same table with predictions out."),
    "export": ("export", "Export a finished model to ONNX, in float32 and 8 bits, and check the export."),
    "analyze": ("analyze", "Make figures, tables and a report of runs, models and subsets."),
    "baseline": ("baseline", "Score two baselines: the largest class and a linear model."),
    "publish": ("publish", "Publish a run or a subset on the Hub, or convert a released checkpoint."),
    "reproduce": ("reproduce", "Make a table of arms x tasks x seeds at your own budget."),
}
# Commands whose work is for one process. Others that a launcher starts with it have nothing to do.
ONE_PROCESS = ("quickstart", "retrieve", "export", "analyze", "baseline", "publish")
RECIPES = tuple(recipe for recipe, _ in COMMANDS.values())
# Advice for a top-level key of a YAML file that the recipe does not know.
OTHER_SECTIONS = f" Put options of another command into its section: one of {', '.join(RECIPES)}."
_SPELLING = re.compile(r"^(?:\./)?recipes/configs/|\.(?:yaml|json)$")


def command_of(name: str) -> str | None:
    """Return the command with this name, also with _ for -, or of a recipe (`train_tlm`); None for any other name."""
    names = {recipe: command for command, (recipe, _) in COMMANDS.items()} | {name: name for name in COMMANDS}
    return names.get(name) or names.get(name.replace("_", "-")) or names.get(name.replace("-", "_"))


@functools.cache
def recipes_folder() -> Path:
    """Return the folder of the recipes: inside the package if it is installed, beside it in a clone."""
    package = Path(__file__).resolve().parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


@functools.cache
def presets() -> dict[str, Path]:
    """Return the file of every preset in `configs`, by name, sorted."""
    configs = recipes_folder() / "configs"
    files = sorted(path for path in configs.glob("*/*") if path.suffix in (".yaml", ".json"))
    return {path.relative_to(configs).with_suffix("").as_posix(): path for path in files}


def find_preset(name: str | os.PathLike) -> Path:
    """Return the file with this name, or else the file of the preset with this name, or else the name as a path."""
    path = Path(name)
    if os.path.isfile(path):
        return path
    return presets().get(_SPELLING.sub("", os.fspath(name)), path)


def did_you_mean(name: str | os.PathLike) -> str:
    """Return a sentence, after a space, with the presets most similar to `name`; an empty string if there are none."""
    folder, _, wanted = _SPELLING.sub("", os.fspath(name)).rpartition("/")
    inside = [preset for preset in presets() if preset.startswith(f"{folder}/")] or list(presets())
    parts = {preset.partition("/")[2]: preset for preset in inside}
    close = difflib.get_close_matches(wanted, parts, n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(parts[part] for part in close)}?" if close else ""


def describe(path: Path) -> str:
    """Describe a preset in at most 100 characters: the first sentence of its comment, or a model's type and size."""
    if path.suffix == ".json":
        config = json.loads(path.read_text(encoding="utf-8"))
        return f"{config['model_type']}, {config['num_hidden_layers']} layers x {config['hidden_size']}"
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    sentence = re.split(r"(?<=\w\w[.)]) (?=[A-Z])", " ".join(lines), maxsplit=1)[0]
    return textwrap.shorten(sentence, 100, placeholder=" ...")
