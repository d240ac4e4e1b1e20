"""Every option that takes a path, in every recipe: what is not there, empty, of another kind, or of a hostile name."""

import pytest

from attacks.attack import assert_refused, attack, tree

TASK, FOLDER, FILE = "task", "folder", "file"
# Recipe (and analysis) -> options that name what is read.
READ = {
    "retrieve": ("task", "corpus", "config", "like"),
    "select_influence": ("task", "subset", "score_model", "config", "tokenizer_name"),
    "train_tlm": ("task", "subset", "model_config", "config", "tokenizer_name", "model_name_or_path"),
    "baseline": ("task", "config"),
    "pretrain": ("corpus", "model_config", "config", "tokenizer_name", "model_name_or_path"),
    "finetune": ("task", "model_name_or_path", "config", "grid", "tokenizer_name"),
    "few_shot": ("task", "model_name_or_path", "config"),
    "publish": ("model", "config"),
    "reproduce": ("tasks", "corpus", "config"),
    "quickstart": ("task", "corpus", "config"),
    "analyze heads": ("models", "texts"),
    "analyze words": ("task", "subsets"),
    "analyze embeddings": ("models", "task"),
    "analyze curves": ("run",),
    "analyze cost": ("run",),
    "analyze subsets": ("subsets", "task"),
    "analyze tables": ("run",),
    "analyze report": ("run",),
}
PLACES = ("missing", "empty folder", "empty file", "binary file", "nothing", "newline", "escape", "long", "surrogate")
# What these options take: a file without keys changes nothing.
FINE = {("config", "empty file")}
# One option of a recipe shows what the parser says of names, whatever they are of.
NAMES = ("newline", "escape", "long", "surrogate")
CASES = [
    (recipe, option, place)
    for recipe, options in READ.items()
    for number, option in enumerate(options)
    for place in PLACES
    if (option, place) not in FINE and (place not in NAMES or number == 0)
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    (folder / "empty").mkdir()
    (folder / "blank").write_text("")
    (folder / "binary").write_bytes(bytes(range(256)) * 4)
    names = {"missing": folder / "nowhere" / "at all", "empty folder": folder / "empty", "empty file": folder / "blank"}
    names |= {"binary file": folder / "binary", "nothing": "", "newline": f"{folder}/a\nb", "escape": f"{folder}/\x1b[31m"}
    return folder, names | {"long": f"{folder}/{'x' * 300}", "surrogate": f"{folder}/\udc80"}


@pytest.mark.parametrize("recipe,option,place", CASES)
def test_it_is_refused_in_one_line(toys, places, recipe, option, place):
    folder, names = places
    before = tree(folder)
    outcome = attack(recipe.split()[0], *toys.commands[recipe], f"--{option}", names[place])
    assert_refused(outcome)
    assert "\x1b" not in outcome.stderr
    assert tree(folder) == before
    # A table of runs names those that failed, and the same command tries them again.
    assert not toys.out.exists() or (recipe, option) == ("reproduce", "corpus")


WRITTEN = ["retrieve", "select_influence", "train_tlm", "baseline", "pretrain", "finetune", "few_shot", "reproduce"]
WRITTEN += ["quickstart", *(name for name in READ if name.startswith("analyze"))]


@pytest.mark.parametrize("recipe", WRITTEN)
@pytest.mark.parametrize("place", ["a file", "below a file", "long", "surrogate", "null"])
def test_an_output_folder_that_cannot_be_is_refused(toys, tmp_path, recipe, place):
    (tmp_path / "file").write_text("mine")
    out = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "out", "long": tmp_path / ("x" * 300)}
    out |= {"surrogate": f"{tmp_path}/\udc80", "null": f"{tmp_path}/a\0b"}
    outcome = attack(recipe.split()[0], *toys.commands[recipe], "--output_dir", out[place])
    assert_refused(outcome)
    assert tree(tmp_path) == {"file": b"mine"}
