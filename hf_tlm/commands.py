"""The commands of hf_tlm, the recipes that they run, and the settings that come with them, by name: presets.

`tlm/coffee` is the file recipes/configs/tlm/coffee.yaml. A name stands for a preset only where there is no such file: what
lies in the working folder comes first. Old spellings, with folder and ending (`recipes/configs/models/bert_tiny.json`), name
the same presets wherever a command is started.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import textwrap
from pathlib import Path

# Command -> (recipe, one line of description). A new recipe is one more line here; sections of YAML files have its name.
COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": ("quickstart", "Run the whole method on demo data, in minutes on a laptop."),
    "retrieve": ("retrieve", "Retrieve the passages of a corpus that resemble a task."),
    "select-influence": ("select_influence", "Keep the most influential part of a subset (ISS)."),
    "train": ("train_tlm", "Train a classifier from scratch on a task and a subset (TLM), and evaluate it."),
    "pretrain": ("pretrain", "Pretrain on a corpus or a subset alone: masked LM, ELECTRA, ALE, COCO-LM."),
    "finetune": ("finetune", "Fine-tune a pretrained encoder on a task of any kind, with seeds and grids."),
    "few-shot": ("few_shot", "Learn a task from a few examples a class, by filling a prompt (LM-BFF)."),
    "predict": ("predict", "Predict with a finished model: a table in, the same table with predictions out."),
    "export": ("export", "Export a finished model to ONNX, in float32 and 8 bits, checked when it is made."),
    "analyze": ("analyze", "Make figures, tables and a report of runs, models and subsets."),
    "baseline": ("baseline", "Score the largest class and a linear model: what there is to beat."),
    "publish": ("publish", "Publish a run or a subset on the Hub, or convert a released checkpoint."),
    "reproduce": ("reproduce", "Make a table of arms x tasks x seeds at your own budget."),
}
RECIPES = tuple(recipe for recipe, _ in COMMANDS.values())
# Said of a key at the top of a YAML file that the recipe at hand does not know.
OTHER_SECTIONS = f" Options of another command go into its section: one of {', '.join(RECIPES)}."
_SPELLING = re.compile(r"^(?:\./)?recipes/configs/|\.(?:yaml|json)$")


def command_of(name: str) -> str | None:
    """The command of a name: its own, with _ for -, or that of its recipe (`train_tlm`); None for another name."""
    names = {recipe: command for command, (recipe, _) in COMMANDS.items()} | {name: name for name in COMMANDS}
    return names.get(name) or names.get(name.replace("_", "-")) or names.get(name.replace("-", "_"))


@functools.cache
def recipes_folder() -> Path:
    """The folder of the recipes: within the package where it was installed, beside it in a clone."""
    package = Path(__file__).resolve().parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


@functools.cache
def presets() -> dict[str, Path]:
    """Name -> file of everything in `configs`, sorted by name."""
    configs = recipes_folder() / "configs"
    files = sorted(path for path in configs.glob("*/*") if path.suffix in (".yaml", ".json"))
    return {path.relative_to(configs).with_suffix("").as_posix(): path for path in files}


def find_preset(name: str | os.PathLike) -> Path:
    """The file of that name, or of the preset of that name; where there is neither, the name as a path."""
    path = Path(name)
    if os.path.isfile(path):
        return path
    return presets().get(_SPELLING.sub("", os.fspath(name)), path)


def did_you_mean(name: str | os.PathLike) -> str:
    """A sentence that names presets like `name`, with a space before it; nothing where none is."""
    folder, _, wanted = _SPELLING.sub("", os.fspath(name)).rpartition("/")
    inside = [preset for preset in presets() if preset.startswith(f"{folder}/")] or list(presets())
    parts = {preset.partition("/")[2]: preset for preset in inside}
    close = difflib.get_close_matches(wanted, parts, n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(parts[part] for part in close)}?" if close else ""


def describe(path: Path) -> str:
    """One line of up to 100 characters on a preset: the first sentence of its comment; of a model, its type and size."""
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
