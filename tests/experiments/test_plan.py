"""The plan of a table: its steps and their order, without running any."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from hf_tlm.config import ConfigError, parse, read_configs
from hf_tlm.corpora import CorpusArguments
from hf_tlm.experiments import PUBLISHED, Arm, ReproductionError, Selection, TableArguments, TaskEntry, make_plan
from hf_tlm.experiments import plan as plan_module
from hf_tlm.experiments.steps import parse_step, parse_task
from hf_tlm.models.generator_discriminator_parts import generator_config
from hf_tlm.retrieval import SubsetArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.run_folder import settings
from hf_tlm.training.stages import LONGEST

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "recipes" / "configs" / "reproduce"
CORPUS = {"corpus": "corpus.parquet"}


def plan_of_arms(arms, tasks=("one",), seeds=(0,), **options):
    arms = [Arm.read(arm if isinstance(arm, str) else json.dumps(arm)) for arm in arms]
    tasks = [TaskEntry.read(task if isinstance(task, str) else json.dumps(task)) for task in tasks]
    return make_plan(tasks, arms, seeds, "out", **{"corpus": CORPUS, **options})


def names(steps):
    return [step.name for step in steps]


@pytest.mark.parametrize(
    "text,expected",
    [
        ("none", (None, None, None)),
        ("task only", (None, None, None)),
        ("random", ("random", None, None)),
        ("bm25", ("bm25", None, None)),
        ("BM25 + ISS 20%", ("bm25", "iss", 0.2)),
        ("ISS 2.5%", ("bm25", "iss", 0.025)),
        ("DSIR 40%", ("bm25", "dsir", 0.4)),
        ("BM25 20%", ("bm25", "bm25-rank", 0.2)),
        ("random 80%", ("bm25", "random", 0.8)),
        ("confidence 10%", ("bm25", "confidence", 0.1)),
        ("BM25 + disagreement 10%", ("bm25", "disagreement", 0.1)),
    ],
)
def test_subset_is_parsed_from_its_name(text, expected):
    selection = Selection.read(text)
    assert (selection.retriever, selection.method) == expected[:2] and selection.fraction == pytest.approx(expected[2])


@pytest.mark.parametrize(
    "text,message",
    [
        ("BM26", "A subset is none, random, BM25"),
        ("ISS 0%", "received 'ISS 0%'"),
        ("ISS 120%", "received 'ISS 120%'"),
        ('{"name": "x", "subset": "BM25", "rho1": 3}', "An arm has no key 'rho1': the keys are name, subset"),
        ('{"name": "x", "subset": "BM25"', "a name or a JSON object"),
        ('{"subset": "BM25", "published": ["TLM Table 9: x"]}', "unknown published row 'TLM Table 9: x'"),
        ('{"name": "x", "pretrained": true, "subset": "BM25"}', "uses no subset, objective or teacher"),
        ('{"name": "x", "pretrained": true, "tokenizer": "own"}', "which has its own tokenizer and .* Remove these keys"),
        ('{"name": "x", "subset": "BM25", "tokenizer": "mine"}', "tokenizer must be one of shared, own; received 'mine'"),
        ('{"name": "x", "subset": "BM25", "train_tlm": 3}', "a mapping of options of recipes/train_tlm.py"),
        ("{}", "needs a name"),
    ],
)
def test_invalid_arm_is_refused(text, message):
    with pytest.raises(ReproductionError, match=message):
        Arm.read(text)


def test_arm_with_a_teacher_runs_after_it():
    """The teacher has the same task and seed; without an encoder to fine-tune neither is run."""
    arms = [{"name": "BM25 and teacher", "subset": "BM25", "teacher": "pretrained"}, "pretrained", "BM25"]
    plan = plan_of_arms(arms, tasks=["one", "two"], seeds=[0, 1], pretrained="encoder")
    taught = [step for step in plan.trainings if step.inputs.get("teacher")]
    assert {step.name: step.inputs["teacher"] for step in taught} == {
        f"{task}/bm25-and-teacher/seed-{seed}": f"{task}/pretrained/seed-{seed}"
        for task in ("one", "two")
        for seed in (0, 1)
    }
    order = [step.name for phase in plan.phases for step in phase]
    assert all(order.index(step.inputs["teacher"]) < order.index(step.name) for step in taught)
    assert "--teacher out/one/pretrained/seed-0" in plan.command(taught[0])
    other = plan_of_arms(arms, pretrained="other encoder")
    assert taught[0].name in names(other.trainings)
    changed = next(step for step in other.trainings if step.name == taught[0].name)
    assert other.fingerprint(changed) != plan.fingerprint(taught[0]), "another teacher is another run"
    alone = plan_of_arms(arms, seeds=[0])
    assert names(alone.trainings) == ["one/bm25/seed-0"] and len(alone.left_out) == 2
    for teacher in ("nobody", "linear", "BM25 and teacher"):
        with pytest.raises(ReproductionError, match="teacher must name another arm of the table"):
            plan_of_arms([{"name": "x", "subset": "BM25", "teacher": teacher}, *arms, "linear"], pretrained="encoder")


def test_average_of_an_arm_teaches_every_seed():
    """Teachers are all models of the averaged arm on the same task; with one seed only that one. Without an encoder
    neither is run.
    """
    arms = ["BM25", {"name": "both", "average": "BM25"}, {"name": "taught", "subset": "BM25", "teacher": "both"}]
    plan = plan_of_arms(arms, tasks=["one", "two"], seeds=[3, 5])
    taught = [step for step in plan.trainings if step.teachers]
    expected = {task: [f"{task}/bm25/seed-3", f"{task}/bm25/seed-5"] for task in ("one", "two")}
    assert len(taught) == 4 and all(step.teachers == expected[step.task_name] for step in taught)
    order = [step.name for phase in plan.phases for step in phase]
    assert all(order.index(name) < order.index(step.name) for step in taught for name in step.teachers)
    assert "--teacher out/one/bm25/seed-3 out/one/bm25/seed-5" in plan.command(taught[0])
    fewer = plan_of_arms(arms, tasks=["one"], seeds=[3, 7])
    changed = next(step for step in fewer.trainings if step.name == "one/taught/seed-3")
    same = next(step for step in taught if step.name == "one/taught/seed-3")
    assert fewer.fingerprint(changed) != plan.fingerprint(same), "another teacher is another run"
    alone = next(step for step in plan_of_arms(arms, tasks=["one"], seeds=[3]).trainings if step.teachers)
    assert alone.inputs["teacher"] == "one/bm25/seed-3"
    encoders = ["pretrained", {"name": "both", "average": "pretrained"}, *arms[2:], {"name": "pupils", "average": "taught"}]
    assert {
        step.arm.name for step in plan_of_arms(encoders, seeds=[0, 1], pretrained="x").trainings if step.kind != "average"
    } == {"pretrained", "taught"}
    left = plan_of_arms([*encoders, "BM25"], seeds=[0, 1])
    assert {step.arm.name for step in left.trainings} == {"BM25"} and len(left.left_out) == 4
    with pytest.raises(ReproductionError, match="or the average of one; received 'pupils'"):
        plan_of_arms([*encoders, {"name": "third", "subset": "BM25", "teacher": "pupils"}], seeds=[0, 1], pretrained="x")


def test_steps_are_shared_and_ordered_by_their_inputs():
    arms = ["task only", "random", "BM25", "BM25 + ISS 20%", "BM25 20%"]
    plan = plan_of_arms(arms, tasks=["one", {"task": "data/two", "seeds": [7]}], seeds=[0, 1])
    assert [sorted(names(phase)) for phase in plan.phases[:3]] == [
        ["one/tokenizer", "two/tokenizer"],
        ["one/subsets/bm25", "two/subsets/bm25"],
        [f"{task}/subsets/{kind}" for task in ("one", "two") for kind in ("bm25-rank-20", "iss-20", "random")],
    ]
    folders = ["task-only", "random", "bm25", "bm25-iss-20", "bm25-20"]
    expected = [f"{task}/{arm}/seed-{seed}" for task, seed in (("one", 0), ("two", 7), ("one", 1)) for arm in folders]
    assert names(plan.trainings) == expected and len(plan.phases) == 4
    everything = names((*plan.preparations, *plan.trainings))
    assert len(everything) == len(set(everything))
    finished = set()
    for phase in plan.phases:  # The inputs of a step belong to earlier phases.
        assert all(set(step.inputs.values()) <= finished for step in phase)
        finished |= set(names(phase))


def test_baselines_run_once_with_the_metric_of_the_task():
    task = {"task": "data/two", "train_tlm": {"metric": "micro_f1", "rho1": 1}}
    plan = plan_of_arms(["majority class", "linear", "task only"], tasks=[task], seeds=[3, 4], objective_options={"mlm": {}})
    without, trained = plan.trainings[:2], plan.trainings[2:]
    assert names(without) == ["two/majority-class/seed-3", "two/linear/seed-3"] and len(trained) == 2
    for step in without:
        assert (step.kind, step.inputs) == ("baseline", {})
        task_args, args = parse_step(plan, step)
        assert task_args.metric == "micro_f1" and args.baseline == step.arm.name
        assert plan.record_file(step).parent.name == "runs"
    assert shlex.split(plan.command(without[1]))[:2] == ["hf-tlm", "baseline"]
    assert [arm.name for arm in Arm.read("linear").with_objectives([("mlm", {}), ("cocolm", {})])] == ["linear"]


def test_every_arm_has_the_same_tokenizer_and_budget():
    plan = plan_of_arms(["task only", "random", "ISS 20%"], budget={"max_steps": 50})
    assert [step.inputs.get("subset") for step in plan.trainings] == [None, "one/subsets/random", "one/subsets/iss-20"]
    assert {step.inputs["tokenizer_name"] for step in plan.trainings} == {"one/tokenizer"}
    assert [step.options for step in plan.trainings] == [
        {"max_steps": 50, "rho1": 0, "seed": 0},
        {"max_steps": 50, "seed": 0},
        {"max_steps": 50, "seed": 0},
    ]
    (iss,) = [step for step in plan.preparations if step.kind == "select_influence"]
    assert iss.inputs == {"subset": "one/subsets/bm25", "tokenizer_name": "one/tokenizer"}
    given = plan_of_arms(["task only", "ISS 20%"], tokenizer_name="some/tokenizer")
    assert "one/tokenizer" not in names(given.preparations)
    assert all(given.values(step)["tokenizer_name"] == "some/tokenizer" for step in given.trainings)


def test_arm_may_have_its_own_tokenizer():
    arms = ["BM25", {"name": "own", "subset": "BM25", "tokenizer": "own", "train_tlm": {"vocab_size": 9}}]
    shared, own_tokenizer = plan_of_arms(arms).trainings
    assert shared.inputs == {"subset": "one/subsets/bm25", "tokenizer_name": "one/tokenizer"}
    assert own_tokenizer.inputs == {"subset": "one/subsets/bm25"} and own_tokenizer.options["vocab_size"] == 9
    alone = plan_of_arms(arms[1:])
    assert names(alone.preparations) == ["one/subsets/bm25"] and "tokenizer" not in alone.command(alone.trainings[0])
    with pytest.raises(ReproductionError, match="--tokenizer_name has no effect, because no arm uses a shared"):
        plan_of_arms(arms[1:], tokenizer_name="some")
    with pytest.raises(ReproductionError, match="a checkpoint has its own tokenizer"):
        plan_of_arms([{**arms[1], "train_tlm": {"model_name_or_path": "x"}}])


def test_options_of_tasks_and_arms_apply_to_their_steps():
    task = {"task": "one", "train_tlm": {"rho1": 9, "vocab_size": 99}, "retrieve": {"top_k": 5}}
    arms = ["BM25", {"name": "K = 7", "subset": "BM25", "retrieve": {"top_k": 7}}]
    arms += [{"name": "rho1 = 1", "subset": "BM25", "train_tlm": {"rho1": 1}}]
    arms += [{"name": "last layer", "subset": "ISS 20%", "select_influence": {"layer": -1}}]
    arms += [{"name": "first layer", "subset": "ISS 20%", "select_influence": {"layer": 1}}]
    arms += [{"name": "another draw", "subset": "random", "retrieve": {"seed": 4}}]
    plan = plan_of_arms(arms, tasks=[task])
    options = {step.name: step.options for step in plan.preparations}
    assert options["one/subsets/bm25"]["top_k"] == 5 and options["one/subsets/bm25-top_k=7"]["top_k"] == 7
    assert options["one/subsets/random-seed=4"]["seed"] == 4 and "seed" not in options["one/subsets/bm25"]
    assert options["one/subsets/iss-20-layer=-1"]["layer"] == -1 and options["one/subsets/iss-20-layer=1"]["layer"] == 1
    assert options["one/tokenizer"]["vocab_size"] == 99
    assert [step.options["rho1"] for step in plan.trainings] == [9, 9, 1, 9, 9, 9]
    assert [step.inputs["subset"].split("/")[-1] for step in plan.trainings][:3] == ["bm25", "bm25-top_k=7", "bm25"]


def test_arms_are_repeated_for_each_objective():
    read = TableArguments(tasks=["one"], arms=["BM25", "pretrained"], seeds=[0], pretrained="encoder")
    read.objectives = ["mlm", '{"objective": "cocolm", "model_config": "cocolm.json"}']
    plan = read.plan(CorpusArguments(corpus="corpus.parquet"), "out", ())
    assert names(plan.trainings) == ["one/bm25-mlm/seed-0", "one/bm25-coco-lm/seed-0", "one/pretrained/seed-0"]
    assert [step.options.get("objective") for step in plan.trainings] == ["mlm", "cocolm", None]
    assert [step.options.get("model_config") for step in plan.trainings] == [None, "cocolm.json", None]
    # The published figures for the subset of BM25 are those of masked LMs.
    assert [bool(step.arm.published) for step in plan.trainings] == [True, False, True]
    assert plan.trainings[2].kind == "finetune" and plan.values(plan.trainings[2])["model_name_or_path"] == "encoder"
    read.objectives = ["mlm", "electra", '{"objective": "cocolm", "learning_rate": "5e-4"}']
    read.objective_options = ['{"objective": "electra", "model_config": "narrow.json"}']
    read.objective_options += ['{"objective": "cocolm", "model_config": "body.json", "learning_rate": "1e-3"}']
    plan = read.plan(CorpusArguments(corpus="corpus.parquet"), "out", ())
    assert [step.options.get("model_config") for step in plan.trainings] == [None, "narrow.json", "body.json", None]
    # The objective's own option wins over objective_options.
    assert [step.options.get("learning_rate") for step in plan.trainings] == [None, None, "5e-4", None]
    read.objectives = ["xlm"]
    with pytest.raises(ReproductionError, match="An objective is one of mlm, span, electra"):
        read.plan(CorpusArguments(corpus="corpus.parquet"), "out", ())


def test_options_of_an_objective_are_for_arms_that_have_it_from_elsewhere(tmp_path):
    """By default, from the files, or from an arm's own options of train_tlm."""
    (tmp_path / "scale.yaml").write_text("train_tlm: {objective: electra}")
    objective_options = {name: {"learning_rate": name} for name in ("mlm", "electra", "ale")}
    arms = ["BM25", {"name": "own", "subset": "BM25", "train_tlm": {"objective": "ale"}}]
    for files, rates in (([], ["mlm", "ale"]), ([str(tmp_path / "scale.yaml")], ["electra", "ale"])):
        plan = plan_of_arms(arms, seeds=[0], files=files, objective_options=objective_options)
        assert [step.options["learning_rate"] for step in plan.trainings] == rates


def test_budget_is_read_from_the_command_line():
    assert TableArguments(tasks=["one"]).budget == {}
    assert TableArguments(tasks=["one"], max_flops=1e14).budget == {"max_steps": 0, "max_flops": 1e14}
    assert TableArguments(tasks=["one"], max_steps=5, max_tokens=10).budget == {"max_steps": 5, "max_tokens": 10}


def test_arms_and_tasks_of_config_files_are_chosen_by_name(tmp_path):
    """A name given on the command line keeps the tokenizer, metric and options of the file."""
    (tmp_path / "table.yaml").write_text(
        "reproduce:\n  tasks:\n    - {task: one, seeds: [5], train_tlm: {metric: micro_f1}}\n    - other\n"
        "  arms:\n    - linear\n    - {name: Random, subset: random, tokenizer: own}\n"
        "    - {name: short, subset: none, train_tlm: {max_flops: 2.5e12}}\n"
        '    - {subset: BM25, retrieve: {top_k: 3}}\n    - \'{"name": "text", "subset": "BM25"}\'\n'
    )
    files = [str(tmp_path / "table.yaml")]

    def plan_of(args, files=files):
        (table_args,) = parse(TableArguments, recipe="reproduce", description="", args=["--config", *files, *args])
        table_args.check_budget([*files, str(CONFIGS / CPU[0])])
        return table_args.plan(CorpusArguments(corpus="corpus.parquet"), "out", files)

    def arms_of(plan):
        return {step.arm.name: step.arm for step in plan.trainings}

    whole, named = (
        arms_of(plan_of(args))
        for args in ([], ["--arms", "linear", "random", "short", "bm25", '{"name": "x", "subset": "BM25"}'])
    )
    assert whole["Random"].tokenizer == "own"
    assert named.pop("x") == Arm("x", Selection("bm25"))
    assert named == {name: arm for name, arm in whole.items() if name != "text"}

    plan = plan_of(["--arms", "random", "--tasks", "one", "two", "--seeds", "0", "1"])
    assert [(step.task_name, step.seed) for step in plan.trainings] == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    assert [step.options.get("metric") for step in plan.trainings] == ["micro_f1", None, "micro_f1", None]

    with pytest.raises(
        ReproductionError, match="received 'shrot'. The --config files define the arms 'Random', 'short', 'BM25'."
    ):
        plan_of(["--arms", "shrot"])
    with pytest.raises(ReproductionError, match="received 'shrot'.$"):
        TableArguments(tasks=["one"], arms=["shrot"]).plan(CorpusArguments(corpus="c.parquet"), "out", [])


def test_arm_without_its_encoder_is_left_out_and_named():
    plan = plan_of_arms(["task only", "pretrained"])
    assert names(plan.trainings) == ["one/task-only/seed-0"]
    assert plan.left_out == ("pretrained: no pretrained encoder was given (--pretrained)",)
    with pytest.raises(ReproductionError, match="pretrained: no pretrained encoder was given. Pass --pretrained"):
        plan_of_arms(["pretrained"])


def test_tasks_are_found_in_tasks_dir_or_on_the_hub(tmp_path):
    (tmp_path / "one").mkdir()
    plan = plan_of_arms(["task only"], tasks=["one", "owner/two@main"], tasks_dir=str(tmp_path))
    assert [step.task for step in plan.trainings] == [str(tmp_path / "one"), "owner/two@main"]
    assert names(plan.trainings) == ["one/task-only/seed-0", "two/task-only/seed-0"]


@pytest.mark.parametrize(
    "arms,options,message",
    [
        ([], {}, "needs tasks, arms and seeds"),
        (["BM25", "bm25"], {}, "The arm bm25 is given twice"),
        (["BM25"], {"tasks": ["one", "data/one"]}, "The task one is given twice"),
        (["BM25"], {"seeds": [0, 0]}, "The seed 0 is given twice"),
        (["BM25"], {"corpus": {}}, "needs a corpus: pass --corpus"),
        (
            ["confidence 20%"],
            {},
            "Arm confidence 20% selects by confidence, which needs a teacher; received none. Set the teacher",
        ),
        (["disagreement 20%"], {}, "needs at least two teachers; received none"),
        (
            [{"subset": "disagreement 20%", "select_influence": {"teacher": "linear"}}],
            {},
            "at least two teachers; received linear",
        ),
    ],
)
def test_invalid_plan_is_refused(arms, options, message):
    with pytest.raises(ReproductionError, match=message):
        plan_of_arms(arms, **options)


def test_arm_that_selects_by_a_teacher_needs_its_option(tmp_path):
    """The option may be set by the arm, the task or a config file."""
    of_arm = {"subset": "disagreement 20%", "select_influence": {"teacher": ["runs/a", "runs/b"]}}
    of_task = {"task": "two", "select_influence": {"teacher": "linear"}}
    (tmp_path / "a.yaml").write_text("select_influence: {teacher: linear}")
    plan_of_arms([of_arm])
    plan_of_arms(["confidence 20%"], [of_task])
    plan_of_arms(["confidence 20%"], files=[str(tmp_path / "a.yaml")])


CPU = ("../tlm/coffee.yaml", "cpu.yaml")
SCALES = pytest.mark.parametrize("scale", [CPU, ("gpu.yaml",)], ids=["cpu", "gpu"])


# Options that arms of these tables set.
CHANGED = ("stage", "max_flops", "learning_rate", "per_device_train_batch_size", "stage2_learning_rate", "stage2_max_steps")


def from_files(*files, args=()):
    files = [str(CONFIGS / file) for file in files]
    arguments = ["--config", *files, "--corpus", "corpus.parquet", *args]
    table_args, corpus_args = parse(TableArguments, CorpusArguments, recipe="reproduce", description="", args=arguments)
    return table_args.plan(corpus_args, "out", files)


def test_files_are_read_once_for_all_fingerprints(monkeypatch):
    """Fingerprints are needed each time the remaining steps are listed."""
    plan, read = plan_of_arms(["BM25", "BM25 20%"], seeds=[0, 1]), []
    monkeypatch.setattr(plan_module, "read_configs", lambda files, kind: read.append(kind) or {})
    first = {step.name: plan.fingerprint(step) for step in plan.steps}
    assert len(read) == len(plan.steps) and len({*first.values()}) == len(first)
    assert {step.name: plan.fingerprint(step) for step in plan.steps} == first and len(read) == len(plan.steps)


@SCALES
@pytest.mark.parametrize(
    "table", ["fractions", "layers", "main", "objectives", "rho1", "rho2", "stages", "teacher", "tiny", "top_k", "tuning"]
)
def test_every_table_of_the_presets_is_valid(table, scale, monkeypatch):
    """Every step is parsed as its recipe parses it."""
    monkeypatch.chdir(ROOT)
    plan = from_files(
        *scale, f"{table}.yaml", args=["--pretrained", "encoder", *(["--tasks", "x"] if table == "tiny" else [])]
    )
    arms = {step.arm.name: step for step in plan.trainings}
    assert len(arms) >= 2 and all(name in PUBLISHED for step in arms.values() for name in step.arm.published)
    for step in ({step.kind: step for step in plan.preparations} | arms).values():
        if step.kind in ("select_influence", "train_tlm", "finetune"):
            # bf16 is refused without a GPU.
            step = replace(step, options={**step.options, "bf16": False})
        task_args, *_ = parse_step(plan, step)
        assert parse_task(plan, step) == task_args


def test_preset_tables_name_the_tables_of_the_papers():
    shown = {
        file.stem: {name.partition(":")[0] for step in from_files(*CPU, file.name).trainings for name in step.arm.published}
        for file in CONFIGS.glob("*.yaml")
        if "tasks" in read_configs([str(file)], "reproduce")
    }
    assert shown == {
        "main": {"TLM Table 2", "TLM Table 3", "TLM Table 4", "ISS Table 3", "ISS Table 5"},
        "top_k": {"TLM Table 4"},
        "rho1": {"TLM Table 5"},
        "rho2": {"TLM Table 6"},
        "stages": {"TLM Table 7"},
        "teacher": {"TLM Table 2", "TLM Table 3"},
        "linear_start": {"TLM Table 2", "TLM Table 3"},
        "passages": {"TLM Table 2", "TLM Table 3"},
        "vocabulary": {"TLM Table 2", "TLM Table 3"},
        "retrieved": set(),
        "fractions": {"TLM Table 2", "TLM Table 3", "ISS Table 3", "ISS Table 5"},
        "layers": {"ISS Table 7"},
        "objectives": {"COCO-LM Table 1"},
        "budget": {"TLM Table 2", "TLM Table 3", "TLM Table 4"},
        "additions": set(),
        "encoder_teacher": set(),
        "pupil": set(),
        "self_taught": set(),
        "small_body": set(),
        "larger_body": set(),
        "thousand_labels": set(),
        "hundred_labels": set(),
        "tuning": set(),
        "tuning_seeds": set(),
        "tuning_objectives": set(),
        "score_model": {"TLM Table 2", "TLM Table 3"},
    }
    steps = [step for step in from_files(*CPU, "rho1.yaml").trainings if step.name.startswith("scierc/rho1")]
    assert [step.options["rho1"] for step in steps if step.seed == 0] == [1, 3, 99, 999]


def test_encoder_has_the_length_and_batch_size_of_stage_2():
    scratch, encoder = (read_configs([str(CONFIGS / file) for file in CPU], name) for name in ("train_tlm", "finetune"))
    assert scratch["stage2_max_length"] == 0 and encoder["max_length"] == LONGEST
    assert encoder["total_batch_size"] == scratch["stage2_total_batch_size"]


@pytest.mark.parametrize("file", [file.name for file in CONFIGS.glob("*.yaml") if "  arms:" in file.read_text()])
def test_every_table_has_the_linear_baseline(file):
    assert "linear" in read_configs([str(CONFIGS / file)], "reproduce")["arms"]


@pytest.mark.parametrize("table", ["budget", "tuning", "tuning_seeds", "stages"])
def test_arms_differ_and_have_the_flops_in_their_names(table):
    """The FLOPs in a name are those of stage 1, and no two arms are the same run."""
    scale = read_configs([str(CONFIGS / file) for file in CPU], "train_tlm")
    arms = {step.arm.name: (step.arm.subset, scale | step.options) for step in from_files(*CPU, f"{table}.yaml").trainings}
    changed = {name: (subset, *(options.get(key) for key in CHANGED)) for name, (subset, options) in arms.items()}
    assert len(set(changed.values())) == len(changed) > 1
    for name, (_, options) in arms.items():
        if found := re.search(r", (\d[\d.]*e1\d)$", name):
            assert float(options["max_flops"]) == float(found[1]), name
    if table == "budget":
        assert {float(options["max_flops"]) for _, options in arms.values()} == {4e13, 4e13 / 4, 4e13 / 16}
    if table == "stages":
        # A step of stage 2 costs 6 x 1.55e6 parameters x 16 texts of 96 tokens.
        stage_2 = 6 * 1.55e6 * 16 * 96
        both = float(scale["max_flops"]) + int(scale["stage2_max_steps"]) * stage_2
        assert float(arms["stage 1 only, FLOPs of both"][1]["max_flops"]) == pytest.approx(both, rel=0.1)
        assert arms["stage 2 only, FLOPs of both"][1]["stage2_max_steps"] * stage_2 == pytest.approx(both, rel=0.15)


def test_command_of_a_step_parses_to_its_options(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = from_files(*CPU, "rho1.yaml")
    step = next(step for step in plan.trainings if step.arm.name == "corpus only")
    program, command, *arguments = shlex.split(plan.command(step))
    assert (program, command) == ("hf-tlm", "train")
    classes = (TaskArguments, ModelArguments, TlmArguments, SubsetArguments)
    *typed, subset = parse(*classes, recipe="train_tlm", description="", args=arguments)
    task_args, model_args, args = parse_step(plan, step)
    assert typed[:2] == [task_args, model_args] and settings(typed[2]) == settings(args)
    assert args.rho1 == float("inf") and args.output_dir == "out/scierc/corpus-only/seed-0"
    assert subset.subset == "out/scierc/subsets/bm25"


def test_recorded_subsets_have_the_fingerprints_of_the_plan(monkeypatch):
    """Changing a preset must not affect tables that are recorded with their commands."""
    monkeypatch.chdir(ROOT)
    lines = map(json.loads, (ROOT / "benchmarks/results/coffee.jsonl").read_text(encoding="utf-8").splitlines())
    recorded = {line["record"]["name"]: line["record"] for line in lines if line["record"]["kind"] == "retrieve"}
    corpus = next(iter(recorded.values()))["settings"]["corpus"]
    plan = from_files(*CPU, "main.yaml", args=["--corpus", corpus])
    same = [step for step in plan.preparations if step.name in recorded]
    assert same and parse_step(plan, same[0])[1].passage_words is None
    assert {step.name: recorded[step.name]["fingerprint"] for step in same} == {
        step.name: plan.fingerprint(step) for step in same
    }


def test_table_without_a_budget_is_refused():
    arm_with_budget = '{"name": "short", "subset": "none", "train_tlm": {"max_steps": 3}}'
    cpu, coffee = str(CONFIGS / "cpu.yaml"), str(CONFIGS / CPU[0])
    with pytest.raises(ReproductionError, match="The length of stage 1 of the arm task only is not set.*tlm/coffee"):
        TableArguments(tasks=["x"]).check_budget([cpu])
    TableArguments(tasks=["x"]).check_budget([coffee, cpu])
    TableArguments(tasks=["x"], max_flops=1e12).check_budget([cpu])
    TableArguments(tasks=["x"], arms=["linear", "pretrained", arm_with_budget]).check_budget([cpu])


def test_unknown_option_of_a_recipe_is_refused():
    plan = plan_of_arms([{"name": "x", "subset": "none", "train_tlm": {"rho": 3}}])
    with pytest.raises(ConfigError, match="Unknown key 'rho' in the values given for train_tlm. Did you mean rho"):
        parse_step(plan, plan.trainings[0])


@pytest.mark.parametrize(
    "arm,message",
    [
        (
            {"train_tlm": {"tokenizer_name": "x"}},
            "Arm y: train_tlm's tokenizer_name is set by the table .--tokenizer_name",
        ),
        ({"train_tlm": {"subset": "x"}}, "subset is set by the table .an arm's own key `subset`"),
        ({"train_tlm": {"seed": 3}}, "seed is set by the table .--seeds"),
        (
            {"train_tlm": {"vocab_size": 9}},
            "vocab_size belongs to the tokenizer, which all arms of a task share.*tokenizer: own",
        ),
        ({"select_influence": {"fraction": 0.3}}, "select_influence's fraction is set by the table"),
        ({"finetune": {"model_name_or_path": "x"}}, "finetune's model_name_or_path is set by the table .--pretrained"),
    ],
)
def test_options_that_the_table_sets_are_refused(arm, message):
    with pytest.raises(ReproductionError, match=message):
        plan_of_arms([{"name": "y", "subset": "BM25 + ISS 20%", **arm}])


@pytest.mark.parametrize(
    "arm, message",
    [
        ({"subset": "DSIR 20%", "select_influence": {"layer": 1}}, "without effect with method dsir: layer 1. Remove"),
        ({"subset": "random 20%", "select_influence": {"max_steps": 9}}, "without effect with method random: max_steps 9"),
        ({"subset": "BM25 20%", "select_influence": {"selection_seed": 1}}, "with method bm25-rank: selection_seed 1"),
        ({"subset": "DSIR 20%", "select_influence": {"teacher": "linear"}}, "with method dsir: teacher linear"),
        ({"subset": "confidence 20%", "select_influence": {"teacher": "linear", "layer": 1}}, "method confidence: layer 1"),
        (
            {"subset": "BM25", "select_influence": {"layer": 1}},
            "of select_influence have no effect, .* only runs retrieve, train",
        ),
        (
            {"subset": "none", "retrieve": {"top_k": 1}},
            "of retrieve have no effect, because it only runs train_tlm",
        ),
        ({"subset": "BM25", "finetune": {"max_steps": 1}}, "options of finetune have no effect"),
        ({"pretrained": True, "train_tlm": {"max_steps": 1}}, "options of train_tlm have no effect"),
    ],
)
def test_options_without_effect_for_an_arm_are_refused(arm, message):
    with pytest.raises(ReproductionError, match=f"Arm x: .*{message}"):
        plan_of_arms([{"name": "x", **arm}], pretrained="encoder")
    read = {"subset": "DSIR 20%", "select_influence": {"selection_seed": 1}, "retrieve": {"top_k": 2}}
    assert plan_of_arms([{"name": "x", **read}])


def test_options_that_the_table_sets_are_refused_in_files_and_tasks(tmp_path):
    (tmp_path / "scale.yaml").write_text("train_tlm: {tokenizer_name: x}")
    with pytest.raises(ReproductionError, match="Section train_tlm of .*scale.yaml: train_tlm's tokenizer_name is set"):
        plan_of_arms(["BM25"], files=[str(tmp_path / "scale.yaml")])
    with pytest.raises(ReproductionError, match="Task one: retrieve's output_dir is set by the table"):
        plan_of_arms(["BM25"], tasks=[{"task": "one", "retrieve": {"output_dir": "x"}}])
    with pytest.raises(ReproductionError, match="Objective cocolm: lowercase belongs to the tokenizer"):
        plan_of_arms(["BM25"], objective_options={"cocolm": {"lowercase": False}})


def test_tokenizer_has_the_task_options_of_the_models(tmp_path):
    (tmp_path / "scale.yaml").write_text("train_tlm: {text_column: sentence, metric: accuracy}")
    plan = plan_of_arms(
        ["BM25"], tasks=[{"task": "one", "train_tlm": {"task_config": "small"}}], files=[str(tmp_path / "scale.yaml")]
    )
    task_args = parse_step(plan, plan.preparations[0])[0]
    assert plan.preparations[0].kind == "tokenizer"
    assert (task_args.text_column, task_args.task_config) == ("sentence", "small")


@SCALES
def test_body_for_electra_has_a_smaller_auxiliary_model(scale):
    """The auxiliary model is narrower than the main model or, where token embeddings are as wide as its body,
    shallower.
    """
    args = ["--objectives", "electra", "--arms", "task only", "--tasks", "x"]
    scale_options = read_configs([str(CONFIGS / file) for file in scale], "train_tlm")
    options = scale_options | from_files(*scale, args=args).trainings[0].options
    assert options["objective"] == "electra"
    body, mlm = (
        json.loads((ROOT / objective_options["model_config"]).read_text()) for objective_options in (options, scale_options)
    )
    size, layers = options.get("auxiliary_size", 0.25), options.get("auxiliary_layers")
    auxiliary = generator_config(AutoConfig.for_model(**body), size, layers)
    assert any(getattr(auxiliary, name) < body[name] for name in ("hidden_size", "num_hidden_layers"))
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    assert [body[name] for name in sizes] == [mlm[name] for name in sizes], "arms differ in their objective alone"


def test_command_of_a_retrieval_states_passage_words():
    plan = plan_of_arms(["BM25"], tasks=["one"])
    assert "--passage_words 0" in plan.command(plan.preparations[-1])
    cut = plan_of_arms([{"name": "cut", "subset": "BM25", "retrieve": {"passage_words": 50}}], tasks=["one"])
    assert "--passage_words 50" in cut.command(cut.preparations[-1])
