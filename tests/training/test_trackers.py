"""W&B, Trackio and TensorBoard: a run for every seed and stage, in a group; fake modules record the calls."""

import contextvars
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from transformers.integrations import TensorBoardCallback

from hf_tlm.runs import CheckpointArguments, FinetuneArguments, run_tlm
from hf_tlm.runs.few_shot import FewShotArguments, run_few_shot
from hf_tlm.runs.grid import run_grid
from hf_tlm.runs.grid_points import Grid
from hf_tlm.training import ModelArguments, TlmArguments, TlmTrainer, callbacks
from support import prompts
from support.toys import FAST, TINY_CONFIGS

CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}}
NAMES = [f"toy/seed-{seed}/stage{stage}" for seed in (0, 1) for stage in (1, 2)]


class Config(dict):
    def update(self, values, **_):
        super().update(values)


@pytest.fixture
def fake(monkeypatch):
    """Return a function: make("wandb") fakes the parts of that package that transformers uses, and returns it and its
    calls."""

    def make(name):
        module, calls = ModuleType(name), []
        module.__spec__, module.__version__ = ModuleSpec(name, None), "0.99.0"
        module.run, module.config, module.summary = None, Config(), {}

        def init(**options):
            calls.append(("init", options))
            module.run = SimpleNamespace(name=options["name"], id="x", summary={}, _label=lambda **_: None, url="")

        def finish():
            calls.append(("finish", module.run.name))
            module.run = None

        def log(values):
            assert module.run is not None
            calls.append(("log", module.run.name, values))

        module.init, module.finish, module.log = init, finish, log
        module.termwarn = lambda *_, **__: None  # Called where a run has the name of its folder.
        monkeypatch.setitem(sys.modules, name, module)
        if name == "wandb":
            errors = ModuleType("wandb.sdk.lib.config_util")
            errors.ConfigError = ValueError
            for part in ("wandb.sdk", "wandb.sdk.lib"):
                monkeypatch.setitem(sys.modules, part, ModuleType(part))
            monkeypatch.setitem(sys.modules, errors.__name__, errors)
        else:
            space = contextvars.ContextVar("space", default=None)
            module.context_vars = SimpleNamespace(current_space_id=space)
        return module, calls

    for variable in ("WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(callbacks.WandbRuns, "_begun", None)
    monkeypatch.setattr(callbacks.TrackioRuns, "_begun", set())
    return make


def go(folder, task, **options):
    args = {**FAST, "rho1": 0, "max_steps": 2, "stage2_max_steps": 2, "logging_steps": 1, "seeds": [0, 1], **options}
    run_tlm(task, None, TlmArguments(output_dir=str(folder), **args), ModelArguments(model_config=CONFIG, vocab_size=120))


def arguments_of(calls, what):
    return [call[1] for call in calls if call[0] == what]


def test_wandb_has_a_run_for_every_seed_and_stage(fake, tmp_path, task):
    module, calls = fake("wandb")
    go(tmp_path / "out", task, report_to="wandb", run_name="toy")
    runs = arguments_of(calls, "init")
    assert [options["name"] for options in runs] == NAMES and {options["group"] for options in runs} == {"toy"}
    # W&B ends the last run with the process.
    assert arguments_of(calls, "finish") == NAMES[:-1] and module.run.name == NAMES[-1]
    # Each run has its own steps, and the test scores are in the last stage's.
    for name in NAMES:
        values = [call[2] for call in calls if call[:2] == ("log", name)]
        assert [logged["train/global_step"] for logged in values if "train/loss" in logged] == [1, 2], name
        assert any("test/macro_f1" in logged for logged in values) == name.endswith("stage2")


def test_wandb_run_of_the_user_receives_everything(fake, tmp_path, task, monkeypatch):
    module, calls = fake("wandb")
    module.init(name="mine")
    go(tmp_path / "out", task, report_to="wandb", seeds=[0])
    assert (
        len(arguments_of(calls, "init")) == 1
        and not arguments_of(calls, "finish")
        and {call[1] for call in calls[1:]} == {"mine"}
    )


def test_trackio_has_a_run_for_every_seed_and_stage(fake, tmp_path, task, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, calls = fake("trackio")
    go("toy", task, report_to="trackio")
    runs = arguments_of(calls, "init")
    assert list(dict.fromkeys(options["name"] for options in runs)) == NAMES
    assert {options["group"] for options in runs} == {"toy"}
    # An earlier run with that name is not continued, but evaluation after training continues the run.
    for name in NAMES:
        first, *later = [options["resume"] for options in runs if options["name"] == name]
        assert first == "never" and set(later) == {"allow"}, name
    for name in NAMES:
        steps = [call[2]["train/global_step"] for call in calls if call[:2] == ("log", name) and "train/loss" in call[2]]
        assert steps == [1, 2], name


def steps_by_run(calls):
    """Return the steps whose loss was logged, in order, by run."""
    steps = {}
    for _, name, values in (call for call in calls if call[0] == "log"):
        steps.setdefault(name, []).extend([values["train/global_step"]] if "train/loss" in values else [])
    return steps


@pytest.mark.parametrize("tracker,run_name", [("wandb", "toy"), ("trackio", None)])
def test_rounds_of_a_teacher_are_separate_runs(fake, tmp_path, task, tracker, run_name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, calls = fake(tracker)
    options = {"teacher": "linear", "teacher_rounds": 2, "seeds": [0], "stage": "2", "run_name": run_name}
    go("toy", task, report_to=tracker, **options)
    assert {options["group"] for options in arguments_of(calls, "init")} == {"toy"}
    assert steps_by_run(calls) == {f"toy/round-{n}/seed-0/stage2": [1, 2] for n in (1, 2)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = prompts.save(tmp_path_factory.mktemp("masked-lm"), prompts.wordpiece(), max_position_embeddings=80)
    return CheckpointArguments(model_name_or_path=str(folder))


@pytest.mark.parametrize("run_name", ["toy", None])
def test_points_of_a_grid_are_separate_runs(fake, tmp_path, task, checkpoint, run_name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, calls = fake("wandb")
    values = {
        "max_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "max_length": 32,
        "disable_tqdm": True,
        "run_name": run_name,
    }
    args = FinetuneArguments(output_dir="toy", report_to="wandb", eval_strategy="no", select_by="last", **values)
    run_grid(task, checkpoint, args, Grid({"learning_rate": [1e-3, 2e-3]}, [0]))
    assert {options["group"] for options in arguments_of(calls, "init")} == {"toy"}
    names = [f"toy/points/{path.name}/seed-0" for path in Path("toy/points").iterdir() if path.is_dir()]
    assert len(names) == 2 and steps_by_run(calls) == dict.fromkeys(names, [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_trials_of_a_search_are_separate_runs(fake, tmp_path, task, checkpoint, tracker):
    _, calls = fake(tracker)
    values = {"max_steps": 2, "logging_steps": 1, "use_cpu": True, "max_length": 32, "disable_tqdm": True, "run_name": "toy"}
    folder = {"output_dir": str(tmp_path / "out"), "eval_strategy": "no", "select_by": "last"}
    args = FinetuneArguments(report_to=tracker, **folder, **values)
    run_grid(task, checkpoint, args, Grid({"learning_rate": [1e-3, 2e-3]}, [0]), trials=2)
    assert {options["group"] for options in arguments_of(calls, "init")} == {"toy"}
    steps = steps_by_run(calls)
    assert [name for name in steps if "/trials/" in name] == ["toy/trials/0", "toy/trials/1"]
    assert len(steps) == 3 and set(map(tuple, steps.values())) == {(1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("method,part", [("finetune", "model/seed-{}"), ("prompt", "training")])
def test_points_of_few_shot_are_separate_runs(fake, tmp_path, task, checkpoint, method, part):
    _, calls = fake("wandb")
    options = {**prompts.FAST, "learning_rates": [1e-3, 2e-3], "splits": 1}
    options |= {"max_steps": 2, "eval_steps": 2, "logging_steps": 1}
    if method == "prompt":
        options |= {"template": prompts.TEMPLATE, "label_words": prompts.LABEL_WORDS}
    options |= {"method": method, "report_to": "wandb", "run_name": "toy", "output_dir": str(tmp_path / "out")}
    run = run_few_shot(task, checkpoint, FewShotArguments(**options))
    assert {options["group"] for options in arguments_of(calls, "init")} == {"toy"}
    seeds, rates = [record["seed"] for record in run.splits], ("0.001", "0.002")
    names = [f"toy/split-{seed}/lr{rate}-batch4/{part.format(seed)}" for seed in seeds for rate in rates]
    tested = [f"toy/split-{seed}/model" for seed in seeds]
    assert steps_by_run(calls) == dict.fromkeys(names, [1, 2]) | {name: [] for name in tested}


def test_other_processes_report_nothing(fake):
    _, calls = fake("wandb")
    _, more = fake("trackio")
    other = SimpleNamespace(is_world_process_zero=False, global_step=0)
    for callback in (callbacks.WandbRuns("toy"), callbacks.TrackioRuns("toy")):
        callback.setup(SimpleNamespace(run_name="toy/seed-0"), other, None)
    assert not calls and not more


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_tensorboard_has_a_folder_for_every_seed_and_stage(tmp_path, task, monkeypatch, elsewhere):
    """Beside each training's checkpoints, or in subfolders of the folder that the environment variable names."""
    if elsewhere:
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "boards"))
    go(tmp_path / "out", task, report_to="tensorboard", run_name="toy")
    files = list(Path(tmp_path).rglob("events.out.*"))
    folders = {path.relative_to(tmp_path).as_posix().rpartition("/")[0].partition("/runs/")[0] for path in files}
    assert set(NAMES) <= {folder.replace("boards/", "").replace("out/", "toy/") for folder in folders}
    assert elsewhere == any(folder.startswith("boards/") for folder in folders)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_continues_an_interrupted_run(tmp_path, task, monkeypatch):
    """An interrupted training is one run, as in the other trackers, and its name contains no time."""
    monkeypatch.chdir(tmp_path)
    options = {"report_to": "tensorboard", "seeds": [0], "save_strategy": "steps", "save_steps": 1}
    step = TlmTrainer.training_step

    def interrupt(self, *given, **named):
        if self.state.global_step == 1 and "stage2" in str(self.args.output_dir):
            raise KeyboardInterrupt
        return step(self, *given, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TlmTrainer, "training_step", interrupt)
        go("out", task, **options)
    go("out", task, **options)
    folders = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("events.out.*")}
    assert folders == {"out/seed-0/stage1/runs/stage1", "out/seed-0/stage2/runs/stage2"}


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_folders_are_distinct_and_inside_its_folder(tmp_path, monkeypatch):
    """For every path and name of a run."""
    home, work, boards = tmp_path / "home", tmp_path / "home" / "work", tmp_path / "boards"
    work.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(boards))
    monkeypatch.chdir(work)

    def logging_dir_of(folder, run_name=None):
        args = TlmArguments(output_dir=str(folder), run_name=run_name, **{**FAST, "report_to": "none"})
        args = args.for_stage(1, Path(folder) / "seed-0" / "stage1", 0, "accuracy")
        callback = TensorBoardCallback()
        handler = SimpleNamespace(callbacks=[callback])
        callbacks.track_by_training(SimpleNamespace(callback_handler=handler, args=args), args.run_group)
        return Path(callback.logging_dir)

    assert (
        logging_dir_of("runs/x")
        == logging_dir_of(work / "runs/x")
        == logging_dir_of("./runs/x/")
        == boards / "runs/x/seed-0/stage1"
    )
    assert logging_dir_of("runs/x", "toy") == boards / "toy/seed-0/stage1"
    assert logging_dir_of("../elsewhere/run") == logging_dir_of(home / "elsewhere/run")
    folders = ["../elsewhere/run", "../../elsewhere/run", tmp_path / "a/q/run", tmp_path / "b/q/run", "~/q/run", ".", ".."]
    logging_dirs = [logging_dir_of(folder) for folder in folders] + [
        logging_dir_of("runs/x", name) for name in ("/x", "../x", "~/x", "x/../y")
    ]
    assert len(set(logging_dirs)) == len(logging_dirs)
    for path in logging_dirs:
        parts = path.relative_to(boards).parts
        assert not any(part.startswith(("~", ".")) for part in parts) and parts[-2] == "seed-0", path
