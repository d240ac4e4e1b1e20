"""The commands of hf_tlm: what `hf-tlm COMMAND` is called, the recipe that it runs, and what it does."""

from __future__ import annotations

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


def command_of(name: str) -> str | None:
    """The command of a name: its own, with _ for -, or that of its recipe (`train_tlm`); None for another name."""
    names = {recipe: command for command, (recipe, _) in COMMANDS.items()} | {name: name for name in COMMANDS}
    return names.get(name) or names.get(name.replace("_", "-")) or names.get(name.replace("-", "_"))


# Said of a key at the top of a YAML file that the recipe at hand does not know.
OTHER_SECTIONS = f" Options of another command go into its section: one of {', '.join(RECIPES)}."
