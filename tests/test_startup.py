"""Fast start: names are imported when they are first used, and `--help` of a recipe imports no heavy package."""

import ast
import dataclasses
import importlib
import inspect
import math
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from transformers import HfArgumentParser, TrainingArguments

from hf_tlm.config import ConfigError, parse
from hf_tlm.training import PretrainArguments, TlmArguments
from hf_tlm.utils.lazy import outline

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ["torch", "transformers", "datasets", "evaluate", "numba", "scipy", "sklearn", "pandas", "pyarrow", "numpy"]
TLM, PRETRAIN = "hf_tlm.training.TlmArguments", "hf_tlm.training.PretrainArguments"
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
PACKAGES = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in sorted((ROOT / "hf_tlm").rglob("__init__.py"))
    if "export_lazily" in path.read_text(encoding="utf-8")
]


def python(program, *arguments):
    """Run a program in a new process and return its standard output."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_no_heavy_package(package):
    python(f"import sys, {package}\nfound = set({HEAVY}) & set(sys.modules)\nassert not found, found")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_help_of_a_recipe_imports_no_heavy_package(recipe):
    text = python(
        "import runpy, sys\n"
        "sys.argv = [sys.argv[1], '--help']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        f"found = set({HEAVY}) & set(sys.modules)\n"
        "assert not found, found\n",
        str(recipe),
    )
    source = recipe.read_text(encoding="utf-8")
    own_options = [
        field.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    ]
    assert not [name for name in own_options if f"\n  --{name}" not in text]
    has_tlm_options = f'"{TLM}"' in source or '"hf_tlm.training.ScoreModelArguments"' in source
    has_trainer_options = (
        has_tlm_options or re.search(r'"hf_tlm\.\w+\.(Pretrain|Finetune|FewShot)Arguments"', source) is not None
    )
    assert own_options or has_trainer_options or re.search("(Analyze|Predictor|Publish)Arguments", source)
    assert has_trainer_options == ("Every option of transformers.TrainingArguments is accepted too" in text)
    assert has_tlm_options == ("\n  --rho1 RHO1" in text) and "gradient_accumulation_steps GR" not in text


def help_of(capsys, *dataclasses, option="--help"):
    with pytest.raises(SystemExit) as stop:
        parse(*dataclasses, recipe="train_tlm", description="", args=[option])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_all_adds_the_trainers_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = help_of(capsys, TLM, option="--help_all")
    missing = [f.name for f in dataclasses.fields(TlmArguments) if f.init and f"--{f.name}" not in text]
    assert not missing and "--help_all lists them" not in text


def test_help_shows_a_field_as_transformers_does(capsys, monkeypatch):
    """Flags, choices and help agree line by line; defaults are added where there is one to show.

    Transformers shows each option with hyphens too, which this parser accepts without showing it.
    """
    monkeypatch.setenv("COLUMNS", "400")
    theirs = HfArgumentParser(outline(TLM)).format_help().splitlines()
    theirs = [line.removesuffix(" (default: None)").removesuffix(" (default: False)") for line in theirs]
    theirs = [line.split(", --")[0] if line.startswith("  --") else line for line in theirs]
    ours = help_of(capsys, TLM).splitlines()
    for name in ("stage", "seeds", "rho1", "packing", "stage2_reset_classifier"):
        (at,) = [i for i, line in enumerate(ours) if line.startswith(f"  --{name} ") or line.startswith(f"  --{name},")]
        expected = [i for i, line in enumerate(theirs) if line == ours[at]]
        assert expected and theirs[expected[0] + 1] == ours[at + 1], ours[at : at + 2]
    hyphens = ["--output-dir", "unused", "--use-cpu", "true", "--stage2-reset-classifier", "true"]
    (args,) = parse(TLM, recipe="train_tlm", description="", args=hyphens)
    assert args.stage2_reset_classifier is True and args.output_dir == "unused"


def test_parse_returns_the_named_class(tmp_path):
    command = ["--output_dir", str(tmp_path), "--gradient_accumulation_steps", "3", "--use_cpu", "true"]
    (args,) = parse(TLM, recipe="train_tlm", description="", args=[*command, "--rho1", "7"])
    assert type(args) is TlmArguments
    assert (args.rho1, args.gradient_accumulation_steps) == (7, 3)
    (args,) = parse(PRETRAIN, recipe="pretrain", description="", args=command)
    assert type(args) is PretrainArguments
    assert (args.rho1, args.gradient_accumulation_steps) == (math.inf, 3)


@pytest.mark.parametrize("option", ["rho1", "rho2", "loss_normalization", "stage", "seeds", "stage2_max_steps"])
def test_options_of_task_training_are_unknown_to_pretraining(tmp_path, capsys, option):
    with pytest.raises(SystemExit):
        parse(PRETRAIN, recipe="pretrain", description="", args=["--output_dir", str(tmp_path), f"--{option}", "1"])
    assert f"unknown argument --{option}" in capsys.readouterr().err
    (tmp_path / "a.yaml").write_text(f"{option}: 1")
    with pytest.raises(ConfigError, match=f"Unknown key '{option}'"):
        parse(PRETRAIN, recipe="pretrain", description="", args=["--config", str(tmp_path / "a.yaml")])


NAMED = [
    *("hf_tlm.training.TlmArguments", "hf_tlm.training.ScoreModelArguments", "hf_tlm.training.PretrainArguments"),
    *("hf_tlm.runs.FinetuneArguments", "hf_tlm.runs.FewShotArguments"),
]


def test_named_classes_are_all_that_recipes_use():
    found = {name for recipe in RECIPES for name in re.findall(r'"(hf_tlm[\w.]+Arguments)"', recipe.read_text())}
    assert found == set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_help_shows_the_options_that_a_class_adds_to_the_trainer(name):
    """Fields, types, defaults and help agree; `--help` leaves out only the Trainer's own options."""
    package, _, class_name = name.rpartition(".")
    cls = getattr(importlib.import_module(package), class_name)

    def described(arguments):
        hints = get_type_hints(arguments)
        defaults = [
            (f, f.default_factory() if callable(f.default_factory) else f.default) for f in dataclasses.fields(arguments)
        ]
        return {field.name: (hints[field.name], default, dict(field.metadata)) for field, default in defaults if field.init}

    shown, trainer, full = described(outline(name)), described(TrainingArguments), described(cls)
    assert outline(name).extends == ("transformers.TrainingArguments",)
    fixed = {field.name for field in dataclasses.fields(outline(name)) if not field.init}
    assert full == {field: value for field, value in (trainer | shown).items() if field not in fixed}
    assert outline(name).__doc__ == inspect.getdoc(cls)
    changed = {field for field in shown.keys() & trainer if shown[field][1] != trainer[field][1]}
    assert {"logging_nan_inf_filter", "save_total_limit", "per_device_eval_batch_size"} <= changed


@pytest.mark.parametrize("package", PACKAGES)
def test_lazy_exports_equal_the_imports_for_the_type_checker(package):
    module = importlib.import_module(package)
    (block,) = [
        node
        for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) == set(dir(module)) == set(seen)
    for name, home in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name), name


def test_lazy_exports_are_read_from_the_type_checking_block_only(tmp_path, monkeypatch):
    """They have the names that the imports bind; other `if` blocks are ignored."""
    (tmp_path / "sparsely.py").write_text(
        "import sys\nfrom typing import TYPE_CHECKING\n"
        "from hf_tlm.utils.lazy import export_lazily\n"
        "if TYPE_CHECKING:\n    from math import floor, pi as circle\n"
        "if sys.platform == 'none':\n    from math import tau\n"
        "__getattr__, __dir__, __all__ = export_lazily(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("sparsely")
    monkeypatch.delitem(sys.modules, "sparsely")
    assert package.__all__ == ["floor", "circle"] and package.circle == math.pi and package.floor is math.floor


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import hf_tlm.retrieval.retrieve",
        "from hf_tlm.retrieval.retrieve import default_top_k",
        "from hf_tlm.retrieval import default_top_k",
        "import hf_tlm; hf_tlm.retrieve",
    ],
)
def test_function_with_the_name_of_its_module_is_exported(before):
    python(
        f"{before}\n"
        "import pickle, sys\n"
        "from hf_tlm.retrieval import retrieve\n"
        "assert callable(retrieve), retrieve\n"
        "import hf_tlm.retrieval, hf_tlm.retrieval.retrieve\n"
        "assert hf_tlm.retrieval.retrieve is hf_tlm.retrieve is retrieve\n"
        "assert sys.modules['hf_tlm.retrieval.retrieve'].retrieve is retrieve\n"
        "assert pickle.loads(pickle.dumps(retrieve)) is retrieve\n"
    )


def test_lazy_names_can_be_pickled_and_documented():
    import hf_tlm.training

    for name in ("TlmArguments", "ModelArguments", "prepare"):
        value = getattr(hf_tlm.training, name)
        assert pickle.loads(pickle.dumps(value)) is value
    text = pydoc.render_doc(hf_tlm.training, renderer=pydoc.plaintext)
    assert "class TlmTrainer" in text and "run_stage(" in text


@pytest.mark.slow
def test_every_export_can_be_imported_without_the_extras():
    """Optional packages are imported where they are used, not at the head of a module."""
    extras = "Stemmer datasketch datatrove ray elasticsearch codecarbon pytorch_optimizer torchcrf optuna openpyxl".split()
    extras += ["onnx", "onnxscript", "onnxruntime"]
    python(
        "import importlib, sys\n"
        f"sys.modules |= dict.fromkeys({extras})\n"  # As if they were not installed.
        "for engine in ('elastic_index', 'elastic_search', 'sharded.sharded'):\n"
        "    importlib.import_module(f'hf_tlm.retrieval.{engine}')\n"
        f"for package in {PACKAGES}:\n"
        "    module = importlib.import_module(package)\n"
        "    for name in module.__all__:\n"
        "        getattr(module, name)\n"
    )
