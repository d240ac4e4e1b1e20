"""Tables of tiny runs: what is written, what is not repeated, what fails, and two processes that share a table."""

import json
import logging
import multiprocessing
import os
import re
import runpy
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset

from hf_tlm.config import ConfigError
from hf_tlm.data import load_tokenizer
from hf_tlm.errors import HfTlmError
from hf_tlm.experiments import Arm, ReproductionError, Step, TaskEntry, make_plan, reproduce
from hf_tlm.experiments.reproduce import write_table
from hf_tlm.experiments.steps import parse_step
from hf_tlm.experiments.table import SCORES, Table
from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.retrieval.subset_files import DATA_FILE
from hf_tlm.runs import PointsError, format_score, sharing
from hf_tlm.tasks import TaskError
from hf_tlm.utils import seals
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.seals import SealError
from support.subsets import save_subset
from support.toys import FAST, TINY_CONFIGS, sentences

ROOT = Path(__file__).resolve().parents[2]
MODEL = {name: value for name, value in TINY_CONFIGS["bert"].items() if name not in ("vocab_size", "num_labels")}
ARMS = [{"name": "task only"}, {"name": "BM25", "published": ["TLM Table 4: Top-50", "TLM Table 2: TLM (small-scale)"]}]
# Fields of a record that depend on the clock or the machine.
CLOCK = ("seconds", "price", "wall_seconds", "subset_seconds", "started_by", "commit", "environment")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A task with the name of one of the papers', a corpus, and the options of all recipes."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "tasks" / "scierc").mkdir(parents=True)
    for split, count in (("train", 24), ("validation", 12), ("test", 12)):
        Dataset.from_list(sentences(count, len(split))).to_json(folder / "tasks" / "scierc" / f"{split}.jsonl")
    Dataset.from_list([{"text": row["text"]} for row in sentences(60, 9)]).to_parquet(folder / "corpus.parquet")
    (folder / "model.json").write_text(json.dumps({"model_type": "bert", **MODEL}))
    shared = {"model_config": str(folder / "model.json"), "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    train = {**FAST, **shared, "max_steps": 2, "stage2_max_steps": 2, "stage2_eval_steps": 1, "vocab_size": 120}
    influence = {**shared, "max_length": 32, "num_train_epochs": 1, "save_strategy": "no"}
    finetune = {"max_steps": 2, "max_length": 32, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    files = {"retrieve": {"top_k": 4}, "train_tlm": train, "select_influence": influence, "finetune": finetune}
    (folder / "options.yaml").write_text(yaml.safe_dump(files))
    return folder


def plan_of_arms(work, output_dir, arms=ARMS, seeds=(0, 1), **options):
    arms = [Arm.read(arm if isinstance(arm, str) else json.dumps(arm)) for arm in arms]
    corpus = {"corpus": {"corpus": str(work / "corpus.parquet")}}
    options_of_work = corpus | {"files": [str(work / "options.yaml")], "tasks_dir": str(work / "tasks")}
    return make_plan([TaskEntry("scierc")], arms, seeds, output_dir, **{**options_of_work, **options})


@pytest.fixture(scope="module")
def prepared(work, tmp_path_factory):
    """A subset, and half of it, without any run on them."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    reproduce(plan_of_arms(work, out, ["BM25", "BM25 50%"], seeds=[0]), prepare_only=True)
    return out


def change_file(file, before=None, after=None):
    content = file.read_bytes()
    at = len(content) // 2
    changed = (
        content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if before is None else content.replace(before, after)
    )
    assert changed != content
    file.write_bytes(changed)


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_clock(value):
    if isinstance(value, dict):
        return {name: without_clock(entry) for name, entry in value.items() if name not in CLOCK}
    return [without_clock(entry) for entry in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def finished_table(work, tmp_path_factory):
    """A finished table of two arms and two seeds: its folder, and the table."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, reproduce(plan_of_arms(work, out))


def comparable(*folders):
    """Return the results of the first folder without the clock and the names of the folders."""
    text = json.dumps(without_clock(json.loads((folders[0] / "results.json").read_text())), indent=1)
    for folder in folders:
        text = text.replace(str(folder), "OUT")
    return text


MODULE = sys.modules[reproduce.__module__]


def fake_step(plan, step):
    """Return a record without any work, with scores computed from the step's name."""
    plan.folder(step).mkdir(parents=True, exist_ok=True)
    if "broken" in step.name or step.options.get("layer") == 9:
        raise HfTlmError("it is broken")
    if step.kind in ("retrieve", "select_influence"):
        save_subset(plan.folder(step))
    if step.kind not in ("train_tlm", "finetune"):
        return {}
    scores = {split: {"macro_f1": len(step.name) / 100 + step.seed / 10} for split in ("validation", "test")}
    cost = {"steps": 4, "tokens": 9, "real_tokens": 8, "flops": 7.0, "seconds": 6.0}
    return {"metric": "macro_f1", "parameters": 5, "cost": cost, "subset": None, **scores}


@pytest.fixture
def faked(monkeypatch):
    """Train nothing; the list of the names of the steps that would run."""
    names = []
    monkeypatch.setattr(MODULE, "make_step", lambda plan, step: (names.append(step.name), fake_step(plan, step))[1])
    monkeypatch.setattr(MODULE, "tokenise", lambda plan, step: names.append(f"tokenised {step.name}"))
    monkeypatch.setattr(sharing, "POLL_SECONDS", 0.05)
    return names


@pytest.mark.slow
def test_arm_with_a_teacher_records_its_cost(work, tmp_path):
    arms = [{"name": "taught", "subset": "BM25", "teacher": "BM25", "train_tlm": {"teacher_passages": 5}}, "BM25"]
    arms += [{"name": "chosen", "subset": "confidence 50%", "select_influence": {"teacher": "linear", "balance": "class"}}]
    table = reproduce(plan_of_arms(work, tmp_path / "out", arms, seeds=(0,)))
    rows = {row.arm: row for row in table.rows}
    taught, teacher, chosen = rows["taught"], rows["BM25"], rows["chosen"].runs[0]["subset"]
    assert chosen["selection"]["method"] == "confidence" and chosen["passages"] == round(chosen["selection"]["of"] / 2)
    assert taught.runs[0]["teacher"]["model"] == "bm25/seed-0" and taught.runs[0]["teacher"]["passages"] <= 5
    assert teacher.teacher_cost("flops") is None
    report = taught.runs[0]["teacher"]
    for name in ("flops", "seconds"):
        assert report["training"][name] == teacher.runs[0]["cost"][name] > 0 < report[name]
        assert taught.teacher_cost(name) == report[name] + teacher.cost(name)
    assert "| teacher FLOPs | teacher hours |" in table.to_text() and "The cost of the teacher is" in table.to_text()


@pytest.mark.slow
def test_records_and_results_of_a_table(work, finished_table):
    out, table = finished_table
    assert sorted(path.name for path in (out / "runs").glob("*.json")) == [
        f"scierc.{arm}.seed-{seed}.json" for arm in ("bm25", "task-only") for seed in (0, 1)
    ]
    assert len(list((out / "preparations").glob("*.json"))) == 2 and not list(out.rglob("*.lock"))
    record = json.loads((out / "runs/scierc.bm25.seed-1.json").read_text())
    results = json.loads((out / "scierc/bm25/seed-1/results.json").read_text())
    assert record["command"].startswith("hf-tlm train --config ") and record["started_by"]
    assert (record["task"], record["arm"], record["seed"], record["objective"]) == ("scierc", "BM25", 1, "mlm")
    for name in ("validation", "test", "cost", "parameters", "stages"):
        assert record[name] == results["seeds"][0][name]
    assert record["cost"]["steps"] == 4 and record["subset"]["passages"] == results["subset"]["counts"]["union"]
    assert record["environment"]["torch"] and record["metric"] == "macro_f1"
    # None outside of a git checkout.
    assert record["commit"] is None or re.fullmatch("[0-9a-f]{40}[+]?", record["commit"])
    assert not list(out.rglob("checkpoint-*")), "finished runs are not continued"

    values = [json.loads((out / f"runs/scierc.bm25.seed-{seed}.json").read_text())["test"]["macro_f1"] for seed in (0, 1)]
    row = table.rows[1].to_dict()
    assert row["test"]["values"] == values and row["test"]["mean"] == pytest.approx(sum(values) / 2)
    assert row["test"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert json.loads((out / "results.json").read_text())["rows"] == json.loads(
        json.dumps([r.to_dict() for r in table.rows])
    )


@pytest.mark.slow
def test_arms_share_a_tokenizer_and_have_equally_many_parameters(finished_table):
    out, table = finished_table
    folders = ("tokenizer", "bm25/seed-0", "task-only/seed-1")
    vocabularies = [json.loads((out / "scierc" / name / "tokenizer.json").read_text())["model"]["vocab"] for name in folders]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]
    assert len({row.to_dict()["parameters"] for row in table.rows}) == 1
    prepared = json.loads((out / "preparations/scierc.tokenizer.json").read_text())
    assert prepared["task_texts"] == 24 and prepared["corpus_passages"] == 60 and prepared["command"] is None


def test_page_shows_scores_beside_published_figures(finished_table):
    out, table = finished_table
    text = (out / "results.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    cells = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    assert [(row["task"], row["arm"], row["seeds"]) for row in cells] == [
        ("scierc", "task only", "2"),
        ("scierc", "BM25", "2"),
    ]
    assert cells[1]["published validation"] == "77.61 ± 1.75 (TLM Table 4: Top-50)"
    assert cells[1]["published test"] == "80.51 ± 1.53 (TLM Table 2: TLM (small-scale))" and cells[0]["published test"] == ""
    score = table.rows[1].score("test")
    assert cells[1]["test"] == f"{100 * score['mean']:.2f} ± {100 * score['std']:.2f}"
    assert "4 of 4 runs are finished." in text and "Published** figures are the papers' own" in text
    flops = sum(run["cost"]["flops"] for run in table.records) / 4
    assert f"TLM Table 2, TLM (small-scale): 2.74e+18 FLOPs, {float(f'{2.74e18 / flops:.1e}'):,.0f} times ours" in text
    assert "scierc, trained from scratch: 4 steps, " in text and "60 passages (work" in text


def test_page_names_commands_commits_and_machines(work, finished_table):
    out, table = finished_table
    plan = plan_of_arms(work, out)
    records = {record["name"]: dict(record) for record in table.records}
    first, second = list(records.values())[:2]
    first["commit"], second["commit"] = "a" * 40, "b" * 40 + "+"
    second["environment"] = {**second["environment"], "accelerator": "1 x GPU"}
    steps = (*plan.preparations, *plan.trainings)
    text = Table(plan, {step.name: records.get(step.name) for step in steps}).to_text()
    assert f"{'a' * 12}" in text and f"{'b' * 12}+" in text and "1 x GPU" in text
    assert "of the runs)" not in text and "the last" not in text
    # A shared run was started by another table's command; a run of one stage does not choose a checkpoint.
    first["started_by"], second["started_by"] = "another table", second["started_by"] + " --this"
    first["stages"] = {"1": first["stages"]["1"]}
    third, fourth = list(records.values())[2:]
    third["started_by"] = fourth["started_by"] = second["started_by"]
    text = Table(plan, {step.name: records.get(step.name) for step in steps}).to_text()
    assert f"Made by `{second['started_by']}` (3 of the runs), `another table` (1 of the runs) at commit" in text
    assert "the checkpoint best on validation (of stage 1 alone, the last)." in text


def test_page_names_only_some_of_many_commands(work, finished_table, tmp_path):
    plan = plan_of_arms(work, tmp_path, ARMS, seeds=(0, 1, 2))
    (record, *_) = finished_table[1].records
    records = {step.name: {**record, "started_by": f"command {n}"} for n, step in enumerate(plan.trainings)}
    text = Table(plan, {step.name: None for step in plan.preparations} | records).to_text()
    assert text.count("` (1 of the runs), ") == 4
    assert "` (1 of the runs), 2 more, which the runs' records name (2 of the runs), at commit" in text


def test_errors_and_names_on_a_page_are_no_markup(work, tmp_path):
    plan = plan_of_arms(work, tmp_path, ["task only"], seeds=[0])
    record = {"status": "failed", "error": "It *broke*\n\n# <b>here</b>"}
    table = Table(replace(plan, left_out=("*x*: no encoder",)), {step.name: record for step in plan.steps})
    assert "- scierc, task only, seed 0: It \\*broke\\* \\# \\<b\\>here\\</b\\>\n" in table.to_text() + "\n"
    assert "- \\*x\\*: no encoder" in table.to_text() and "It *broke* # <b>here</b>\n" in table.to_summary()


def test_summary_shows_scores_by_arm_and_task(work, finished_table, tmp_path):
    """The summary has no costs; for a single task it shows both splits."""
    out, table = finished_table
    rows = [line.split("|")[1:-1] for line in table.to_summary().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows]
    scores = [[f"{100 * s['mean']:.2f} ± {100 * s['std']:.2f}" for s in map(row.score, SCORES)] for row in table.rows]
    assert cells[0] == ["arm", "validation (macro_f1)", "test (macro_f1)"]
    assert cells[2:] == [["task only", *scores[0]], ["BM25", *scores[1]]]
    assert table.to_summary().endswith("4 of 4 runs are finished.")

    first, second = table.records[0], {**table.records[1], "status": "failed", "error": "It broke."}
    steps = plan_of_arms(work, tmp_path).trainings
    others = [replace(step, name=step.name.replace("scierc", "other")) for step in steps if step.arm.name == "BM25"]
    alone = [step for step in steps if step.arm.name == "task only"]
    plan = replace(plan_of_arms(work, tmp_path), phases=((*plan_of_arms(work, tmp_path).preparations, *alone, *others),))
    records = {step.name: None for step in plan.steps} | {alone[0].name: first, others[0].name: second}
    text = Table(plan, records).to_summary()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert cells[0] == ["arm", "scierc (macro_f1)", "other validation"]
    assert cells[2:] == [["task only", f"{100 * first['test']['macro_f1']:.2f} (1 of 2)", ""], ["BM25", "", "failed"]]
    assert "1 of 4 runs are finished, 1 failed, 2 to be done." in text and "- other, BM25, seed 0: It broke." in text

    # A task without a test split beside one that has it, and a plan without runs.
    records[others[0].name] = {name: value for name, value in first.items() if name != "test"}
    text = Table(plan, records).to_summary()
    assert "| scierc (macro_f1) | other validation (macro_f1) |" in text
    assert f"{100 * first['validation']['macro_f1']:.2f} (1 of 2)" in text
    assert Table(replace(plan, phases=()), {}).to_summary().endswith("0 of 0 runs are finished.")


def test_resumed_table_equals_an_uninterrupted_one(work, finished_table, tmp_path, monkeypatch):
    """The last run was killed after its training, before its record was written."""
    out = tmp_path / "out"
    shutil.copytree(finished_table[0], out)
    plan = plan_of_arms(work, out)
    for name in ("scierc/task-only/seed-1/seed-1", "scierc/task-only/seed-1/results.json"):
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    settings = out / "scierc/task-only/seed-1/settings.json"
    settings.write_text(settings.read_text().replace(str(finished_table[0]), str(out)))
    (out / "runs/scierc.task-only.seed-1.json").unlink()
    assert "3 of 4 runs are finished, 1 to be done." in write_table(plan).to_text()
    steps, original = [], MODULE.make_step
    monkeypatch.setattr(MODULE, "make_step", lambda plan, step: (steps.append(step.name), original(plan, step))[1])
    reproduce(plan)
    assert steps == ["scierc/task-only/seed-1"]
    assert comparable(out, finished_table[0]) == comparable(finished_table[0])


def test_pretrained_encoder_is_fine_tuned(work, finished_table, tmp_path):
    encoder = str(finished_table[0] / "scierc/bm25/seed-0")
    table = reproduce(plan_of_arms(work, tmp_path / "out", ["pretrained"], seeds=[0], pretrained=encoder))
    assert table.failures == []
    record = table.records[0]
    assert record["kind"] == "finetune" and record["checkpoint"]["model_name_or_path"] == encoder
    assert record["cost"]["steps"] == 2 and 0 <= record["test"]["macro_f1"] <= 1 and record["objective"] is None
    assert "1 of 1 runs are finished." in (tmp_path / "out/results.md").read_text()


def test_baselines_run_once_for_all_seeds(work, tmp_path):
    """They are deterministic; here they are really trained."""
    table = reproduce(plan_of_arms(work, tmp_path, ["majority class", "linear"], seeds=(0, 1)))
    rows = {row.arm: row.to_dict() for row in table.rows}
    assert rows["linear"]["test"]["mean"] > rows["majority class"]["test"]["mean"] > 0
    assert rows["linear"]["seeds"] == 1 and rows["linear"]["finished"] == [0] and rows["linear"]["parameters"] is None
    record = json.loads((tmp_path / "runs" / "scierc.linear.seed-0.json").read_text())
    assert record["chosen"]["n_grams"] in (1, 2, 3) and record["metric"] == "macro_f1"
    assert (tmp_path / "scierc" / "linear" / "seed-0" / "predictions" / "test.jsonl").is_file()
    price = record["price"]
    assert price["megabytes"] > 0 and 0 < price["milliseconds"]["32"] and set(price["texts_per_second"]) == {"32", "128"}
    assert "the time for 128 words with scikit-learn" in table.to_text() and f"{price['megabytes']:.3g}" in table.to_text()
    assert "2 of 2 runs are finished" in table.to_text() and "support vector machine" in table.to_text()
    assert "fine-tuned encoders" not in table.to_text()


def test_table_continues_after_ctrl_c(work, tmp_path, faked, monkeypatch):
    plan = plan_of_arms(work, tmp_path / "out")
    fake = MODULE.make_step

    def interrupted(plan, step):
        if step.name == "scierc/task-only/seed-1":
            raise KeyboardInterrupt
        return fake(plan, step)

    monkeypatch.setattr(MODULE, "make_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(plan)
    assert "2 of 4 runs are finished, 2 to be done." in (tmp_path / "out/results.md").read_text()
    assert [path.name for path in (tmp_path / "out/runs").glob("*seed-1*")] == []
    monkeypatch.setattr(MODULE, "make_step", fake)
    del faked[:]
    reproduce(plan)
    assert faked == ["scierc/task-only/seed-1", "scierc/bm25/seed-1"]
    del faked[:]
    assert reproduce(plan).total == 4 and faked == []


def test_failed_runs_are_named_and_the_others_continue(work, tmp_path, faked):
    arms = ["task only", {"name": "broken", "subset": "BM25"}]
    arms += [{"name": "no layer", "subset": "ISS 20%", "select_influence": {"layer": 9}}]
    plan = plan_of_arms(work, tmp_path / "out", arms, seeds=[0])
    table = reproduce(plan)
    assert [len(row.runs) for row in table.rows] == [1, 0, 0]
    assert table.failures == [
        "scierc, broken, seed 0: HfTlmError: it is broken",
        "scierc, no layer, seed 0: ReproductionError: The run needs scierc/subsets/iss-20-layer=9, which failed: "
        "HfTlmError: it is broken",
    ]
    text = (tmp_path / "out/results.md").read_text()
    assert "1 of 3 runs are finished, 2 failed." in text and all(failure in text for failure in table.failures)
    del faked[:]
    assert len(reproduce(plan).failures) == 2
    assert sorted(faked) == ["scierc/broken/seed-0", "scierc/subsets/iss-20-layer=9"], "what failed is tried again"
    del faked[:]
    with pytest.raises(PointsError, match="iss-20-layer=9: "):
        reproduce(plan, prepare_only=True)
    assert [name for name in faked if name.startswith("tokenised")] == ["tokenised scierc/broken/seed-0"]


def test_run_whose_record_cannot_be_written_has_failed(work, tmp_path, faked, monkeypatch):
    def write(path, content):
        if Path(path).parent.name == "runs":
            raise HfTlmError("The disk is full")
        atomic_write(path, content)

    monkeypatch.setattr(sys.modules["hf_tlm.experiments.reproduce"], "atomic_write", write)
    plan = plan_of_arms(work, tmp_path / "out", ["task only"], seeds=[0])
    with pytest.raises(PointsError, match="task-only/seed-0: The disk is full"):
        reproduce(plan)


def test_recipe_fails_if_a_run_failed(work, tmp_path, faked, monkeypatch, capsys):
    files = [work / "options.yaml", "--tasks_dir", work / "tasks", "--tasks", "scierc", "--output_dir", tmp_path / "out"]
    arms = ["--arms", "task only", '{"name": "broken", "subset": "none", "train_tlm": {"rho2": 1}}', "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", list(map(str, ["recipes/reproduce.py", "--config", *files, *arms])))
    main = runpy.run_path(str(ROOT / "recipes" / "reproduce.py"), run_name="recipe")["main"]
    with pytest.raises(ReproductionError, match="1 of 2 runs failed"):
        main()
    assert "1 of 2 runs are finished, 1 failed." in capsys.readouterr().out
    # With --prepare_only no run is tried, so none fails.
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--prepare_only"])
    main()
    assert "Prepared in " in capsys.readouterr().out


def test_wall_seconds_of_a_step_are_kept(work, tmp_path, faked, monkeypatch):
    monkeypatch.setattr(MODULE, "make_step", lambda plan, step: {**fake_step(plan, step), "wall_seconds": 7.5})
    plan = plan_of_arms(work, tmp_path / "out", ["task only"], seeds=[0])
    assert reproduce(plan).records[0]["wall_seconds"] == 7.5


def test_unexpected_error_fails_only_its_run(work, tmp_path, faked, monkeypatch):
    fake = MODULE.make_step

    def out_of_memory(plan, step):
        return fake(plan, step) if step.seed != 0 else {}["memory"]

    monkeypatch.setattr(MODULE, "make_step", out_of_memory)
    table = reproduce(plan_of_arms(work, tmp_path / "out", ["task only"]))
    assert table.failures == ["scierc, task only, seed 0: KeyError: 'memory'"] and len(table.rows[0].runs) == 1


def test_invalid_table_is_refused_before_any_step(work, finished_table, tmp_path, faked):
    plan = plan_of_arms(work, tmp_path / "out", [{"name": "x", "subset": "none", "train_tlm": {"rho_1": 2}}])
    with pytest.raises(ConfigError, match="Unknown key 'rho_1'"):
        reproduce(plan)
    changed = plan_of_arms(work, finished_table[0], budget={"max_steps": 3})
    with pytest.raises(ReproductionError, match="created with other settings .max_steps: 2 in the folder, 3 requested"):
        reproduce(changed)
    with pytest.raises(TaskError, match="nosuch"):
        reproduce(replace(plan, phases=((Step("train_tlm", "a/b/seed-0", "nosuch", arm=Arm("b")),),)))
    assert faked == [] and not (tmp_path / "out").exists()
    (tmp_path / "records").write_text("A file.")
    with pytest.raises(HfTlmError, match="Cannot write .*records"):
        reproduce(plan_of_arms(work, tmp_path / "out", ["random"], records_dir=str(tmp_path / "records")))
    assert faked == []


def test_folder_of_a_run_is_refused_for_a_table(work, tmp_path, faked):
    """Otherwise the table would replace its results."""
    path = tmp_path / "run" / "results.json"
    path.parent.mkdir()
    path.write_text('{"seeds": []}')
    with pytest.raises(
        ReproductionError, match="run/results.json is not a table, but a table would replace it. Choose another"
    ):
        reproduce(plan_of_arms(work, path.parent))
    assert path.read_text() == '{"seeds": []}' and list(path.parent.iterdir()) == [path] and not faked
    path.write_text("")  # A damaged table is created again.
    assert reproduce(plan_of_arms(work, path.parent)).rows


def test_preparations_run_first_and_checkpoints_are_removed(work, tmp_path, faked):
    plan = plan_of_arms(work, tmp_path / "out", ["random", "BM25", "BM25 20%"])
    reproduce(plan, prepare_only=True)
    preparations = [f"scierc/{name}" for name in ("tokenizer", "subsets/bm25", "subsets/random", "subsets/bm25-rank-20")]
    arms = [f"tokenised scierc/{arm}/seed-0" for arm in ("random", "bm25", "bm25-20")]
    assert faked == preparations + arms and not list((tmp_path / "out").rglob("*.lock"))
    plan = plan_of_arms(work, tmp_path / "out", ["random", "BM25", "BM25 20%"], seeds=[0])
    for keep in (True, False):
        for step in plan.trainings:
            for name in ("stage1/checkpoint-2", "stage1/model", "model"):
                (plan.folder(step) / "seed-0" / name).mkdir(parents=True)
        reproduce(plan, keep_checkpoints=keep)
        assert len(list((tmp_path / "out").rglob("checkpoint-2"))) == (3 if keep else 0)
        assert len(list((tmp_path / "out").rglob("model"))) == (6 if keep else 3)
        shutil.rmtree(tmp_path / "out" / "scierc")
        shutil.rmtree(tmp_path / "out" / "runs")
    # The model of stage 1 is the base of an adapter, and stays.
    folder = plan.folder(plan.trainings[0])
    for name in ("stage1/model", "stage2/model", "stage2/checkpoint-2"):
        (folder / "seed-0" / name).mkdir(parents=True)
    (folder / "adapter_config.json").touch()
    reproduce(plan)
    assert [path.parent.name for path in (tmp_path / "out").rglob("model")] == ["stage1"]
    assert not list((tmp_path / "out").rglob("checkpoint-2"))


def test_table_for_a_gpu_is_prepared_without_one(work, tmp_path, monkeypatch, caplog):
    """bf16 is refused without a GPU unless another machine trains; selection by influence is left to that machine too."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # The processor does not support bf16 either.
    options = yaml.safe_load((work / "options.yaml").read_text())
    for recipe in ("train_tlm", "select_influence"):
        options[recipe] |= {"use_cpu": False, "bf16": True, "tf32": True}
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(options))
    tokenised, arms = [], ["BM25", "BM25 20%", "BM25 + ISS 20%"]
    monkeypatch.setattr(MODULE, "tokenise", lambda plan, step: tokenised.append(step.arm.name))
    plan = plan_of_arms(work, tmp_path / "out", arms, seeds=(0,), files=[str(tmp_path / "gpu.yaml")])
    with pytest.raises(ValueError, match="bf16"):
        reproduce(plan)
    with caplog.at_level(logging.WARNING):
        reproduce(plan, prepare_only=True)
    created = sorted(path.parent.name for path in (tmp_path / "out/scierc/subsets").glob("*/manifest.json"))
    assert created == ["bm25", "bm25-rank-20"] and tokenised == ["BM25", "BM25 20%"]
    (message,) = [line for line in caplog.messages if "is left to the machine that trains" in line]
    assert message.startswith("scierc/subsets/iss-20 is left") and "bf16 needs a GPU" in message
    # The other machine runs this step, and the trainings that need it.
    others = []
    monkeypatch.setattr(MODULE, "parse_step", lambda plan, step, elsewhere=False: parse_step(plan, step, elsewhere=True))
    monkeypatch.setattr(MODULE, "make_step", lambda plan, step: (others.append(step.name), fake_step(plan, step))[1])
    assert not reproduce(plan).failures
    arms = [f"scierc/{arm}/seed-0" for arm in ("bm25-20", "bm25-iss-20", "bm25")]
    assert sorted(others) == [*arms, "scierc/subsets/iss-20"]


def test_teacher_of_another_table_is_used_from_its_folder(work, tmp_path, faked):
    reproduce(plan_of_arms(work, tmp_path / "out", ["BM25"], seeds=[0]))
    same = {"name": "large", "subset": "BM25", "retrieve": {"top_k": 4}}
    pupil = {"name": "pupil", "subset": "BM25", "teacher": "large"}
    plan = plan_of_arms(work, tmp_path / "out", [same, pupil], seeds=[0], table_name="taught")
    reproduce(plan)
    assert not (tmp_path / "out/scierc/large").exists()
    step = next(step for step in plan.trainings if step.arm.name == "pupil")
    assert parse_step(plan, step)[-1].teacher == [str(tmp_path / "out/scierc/bm25/seed-0")]


def test_missing_model_of_a_teacher_is_named(work, tmp_path, faked, caplog):
    options = {"seeds": [0], "records_dir": tmp_path / "records"}
    reproduce(plan_of_arms(work, tmp_path / "there", ["BM25"], **options))
    assert "will not be run" not in caplog.text
    arms = ["BM25", {"name": "pupil", "subset": "BM25", "teacher": "BM25"}, {"name": "other", "subset": "random"}]
    table = reproduce(plan_of_arms(work, tmp_path / "here", arms, **options))
    (failure,) = table.failures
    file = tmp_path / "records/runs/scierc.bm25.seed-0.json"
    reason = f"model of scierc/bm25/seed-0, which is recorded as finished, but is not in {tmp_path / 'here'}"
    assert reason in failure
    assert f"delete {file}: the same command then trains it again" in failure
    # The warning comes before any step, which may take hours.
    first = next(line for line in caplog.messages if line.startswith("Making scierc/other") or "will not be run" in line)
    assert first.startswith("scierc/pupil/seed-0 will not be run. The run needs the ") and reason in first
    file.unlink()
    caplog.clear()
    assert not reproduce(plan_of_arms(work, tmp_path / "here", arms, **options)).failures
    assert "will not be run" not in caplog.text


def test_pupil_is_prepared_before_its_teacher_is_trained(work, tmp_path, faked):
    reproduce(
        plan_of_arms(work, tmp_path / "out", ["BM25", {"name": "pupil", "subset": "BM25", "teacher": "BM25"}]),
        prepare_only=True,
    )
    assert [name for name in faked if name.startswith("tokenised")] == [
        "tokenised scierc/bm25/seed-0",
        "tokenised scierc/pupil/seed-0",
    ]


def test_index_dir_option_has_no_effect_on_random_subsets(work, tmp_path):
    (tmp_path / "index.yaml").write_text(yaml.safe_dump({"retrieve": {"index_dir": str(tmp_path / "index")}}))
    files = [str(work / "options.yaml"), str(tmp_path / "index.yaml")]
    reproduce(plan_of_arms(work, tmp_path / "out", ["random"], seeds=[0], files=files), prepare_only=True)
    assert (tmp_path / "index").is_dir() and (tmp_path / "out/scierc/subsets/random/manifest.json").is_file()


def test_damaged_tokenizer_is_reported_and_created_again(work, tmp_path, caplog):
    """A changed byte leaves the file readable, but gives every arm other tokens."""
    plan = plan_of_arms(work, tmp_path / "out", ["task only"], seeds=[0])
    reproduce(plan, prepare_only=True)
    file = tmp_path / "out/scierc/tokenizer/tokenizer.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"a"', b'"b"', 1))
    seals._check_once.cache_clear()  # A process checks a folder only once.
    with pytest.raises(SealError, match="tokenizer.json has changed .* run its command again"):
        load_tokenizer(str(file.parent))
    reproduce(plan, prepare_only=True)
    assert file.read_bytes() == content and "tokenizer.json has changed since it was saved" in caplog.text
    (file.parent / "seal.json").unlink()  # Older versions wrote no seals.
    caplog.clear()
    reproduce(plan, prepare_only=True)
    assert "Making scierc/tokenizer" not in caplog.text


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("bm25", lambda folder: change_file(folder / DATA_FILE), "train-00000-of-00001.parquet does not match the manifest"),
        ("bm25", lambda folder: os.truncate(folder / DATA_FILE, 100), "parquet does not match the manifest"),
        (
            "bm25",
            lambda folder: (folder / DATA_FILE).unlink(),
            r"parquet does not match the manifest \(sha256 no such file",
        ),
        ("bm25", lambda folder: (folder / "manifest.json").unlink(), "has no readable manifest.json"),
        ("bm25", lambda folder: (folder / "manifest.json").write_text(""), "has no readable manifest.json"),
        (
            "bm25",
            lambda folder: change_file(folder / "manifest.json", b'"k1"', b'"k2"'),
            "manifest.json is not what recipes write: k1",
        ),
        ("bm25-rank-50", lambda folder: (folder / "manifest.json").unlink(), "has no readable manifest.json"),
    ],
)
def test_damaged_subset_is_reported_and_created_again(work, prepared, tmp_path, caplog, monkeypatch, name, harm, said):
    """Otherwise every run on it would fail, and repeating the command would not help."""
    monkeypatch.setattr(MODULE, "tokenise", lambda plan, step: None)
    out = tmp_path / "out"
    shutil.copytree(prepared, out)
    plan, folder = plan_of_arms(work, out, ["BM25", "BM25 50%"], seeds=[0]), out / "scierc/subsets" / name
    content = files_of(folder)
    (folder / "analysis").mkdir()  # Written by `hf-tlm analyze`.
    (folder / "analysis/figure.csv").write_text("a")
    harm(folder)
    reproduce(plan, prepare_only=True)
    assert re.search(f"{said}.*. It will be created again.", caplog.text) and f"Making scierc/subsets/{name}." in caplog.text
    assert "failed" not in caplog.text and files_of(folder) == content and caplog.text.count("Making") == 1
    caplog.clear()
    reproduce(plan, prepare_only=True)
    assert "Making" not in caplog.text


def test_subset_folder_with_other_files_is_not_replaced(work, prepared, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(prepared, out)
    folder = out / "scierc/subsets/bm25"
    (folder / "manifest.json").unlink()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(PointsError, match=r"contains something other than a saved subset \(notes.txt\)"):
        reproduce(plan_of_arms(work, out, ["BM25"], seeds=[0]), prepare_only=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_prepare_only_tokenizes_for_the_training(work, tmp_path):
    """A later training finds all tokens in the cache of `datasets`."""

    def tokenised():
        return set(Path(datasets.config.HF_DATASETS_CACHE).rglob("cache-*.arrow"))

    corpus = {"corpus": str(tmp_path / "corpus.parquet")}
    Dataset.from_list([{"text": row["text"]} for row in sentences(40, 77)]).to_parquet(corpus["corpus"])
    before, plan = tokenised(), plan_of_arms(work, tmp_path / "out", ["BM25"], seeds=[0], corpus=corpus)
    table = reproduce(plan, prepare_only=True)
    beforehand = tokenised()
    assert beforehand > before and table.total == 1 and not table.rows[0].runs
    assert len(reproduce(plan).rows[0].runs) == 1 and tokenised() == beforehand


def test_records_suffice_without_the_folders(work, tmp_path, faked):
    """On another machine only the records exist: no run is repeated, and only subsets that are still needed are
    created.
    """
    options = {"records_dir": tmp_path / "records", "table_name": "main"}
    arms = ["random", "BM25", "BM25 20%"]
    table = reproduce(plan_of_arms(work, tmp_path / "out", arms, seeds=[0], **options))
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["main.json", "main.md", "preparations", "runs"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["scierc"]
    del faked[:]
    shutil.rmtree(tmp_path / "out")
    again = reproduce(plan_of_arms(work, tmp_path / "out", arms, seeds=[0], **options))
    assert faked == [] and again.to_text() == table.to_text() and not (tmp_path / "out").exists()
    (tmp_path / "records/runs/scierc.bm25-20.seed-0.json").unlink()
    again = reproduce(plan_of_arms(work, tmp_path / "out", arms, seeds=[0], **options))
    created = ["tokenizer", "subsets/bm25", "subsets/bm25-rank-20", "bm25-20/seed-0"]
    assert faked == [f"scierc/{name}" for name in created]
    first, second = (
        [{**row, "subset_seconds": None} for row in each_table.to_dict()["rows"]] for each_table in (table, again)
    )
    assert first == second  # Only the time to create the subset differs.


def test_tables_share_equal_runs(work, tmp_path, faked):
    """An arm of one table is an arm of another under its own name if their inputs and options are equal."""
    reproduce(plan_of_arms(work, tmp_path / "out", ["task only", "BM25"], seeds=[0]))
    del faked[:]
    same = {"name": "K = 4", "subset": "BM25", "retrieve": {"top_k": 4}}  # As in the options of the scale.
    more = {"name": "K = 6", "subset": "BM25", "retrieve": {"top_k": 6}}
    longer = {"name": "longer", "subset": "BM25", "train_tlm": {"max_steps": 3}}
    plan = plan_of_arms(work, tmp_path / "out", [same, more, longer, {"name": "none"}], seeds=[0], table_name="top_k")
    table = reproduce(plan)
    assert faked == ["scierc/subsets/bm25-top_k=6", "scierc/k-6/seed-0", "scierc/longer/seed-0"]
    assert [(row.arm, len(row.runs)) for row in table.rows] == [("K = 4", 1), ("K = 6", 1), ("longer", 1), ("none", 1)]
    record = json.loads((tmp_path / "out/runs/scierc.k-4.seed-0.json").read_text())
    first = json.loads((tmp_path / "out/runs/scierc.bm25.seed-0.json").read_text())
    assert record == {**first, "name": "scierc/k-4/seed-0", "arm": "K = 4", "same_run_as": "scierc/bm25/seed-0"}
    assert "4 of 4 runs are finished." in table.to_text()
    del faked[:]
    assert reproduce(plan).to_text() == table.to_text() and faked == [], "the same command again"
    assert "| K = 4 " in (tmp_path / "out/top_k.md").read_text() and (tmp_path / "out/results.md").is_file()
    file, before = tmp_path / "out/runs/scierc.k-6.seed-0.json", (tmp_path / "out/runs/scierc.k-6.seed-0.json").read_text()
    step = next(step for step in plan.trainings if step.name == "scierc/k-6/seed-0")
    assert MODULE._adopt_equal_run(plan, step) and file.read_text() == before, (
        "finished by another process: no copy of itself"
    )
    for name in ("a/b", ""):
        with pytest.raises(ReproductionError, match=f"A table's name may have lower-case letters.*; received '{name}'"):
            plan_of_arms(work, tmp_path / "out", table_name=name)


def test_runs_on_other_subsets_or_data_are_refused(work, tmp_path, faked):
    """A table only contains runs of the current plan."""
    plan = plan_of_arms(work, tmp_path / "out", ["BM25"], seeds=[0])
    reproduce(plan)
    more = tmp_path / "more.yaml"
    more.write_text("retrieve: {top_k: 5}")
    changed = plan_of_arms(work, tmp_path / "out", ["BM25"], seeds=[0, 1], files=[str(work / "options.yaml"), str(more)])
    with pytest.raises(
        ReproductionError, match="subsets/bm25 was created with other settings .top_k: 4 in the folder, 5 requested"
    ):
        reproduce(changed)
    (tmp_path / "out/preparations/scierc.subsets.bm25.json").unlink()
    with pytest.raises(
        ReproductionError, match="created from inputs with other settings .scierc/tokenizer, scierc/subsets/bm25"
    ):
        reproduce(changed)
    record = tmp_path / "out/runs/scierc.bm25.seed-0.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"task_fingerprint": "another"}))
    with pytest.raises(ReproductionError, match="seed-0.json is a run on other data: its task scierc has fingerprint anot"):
        reproduce(plan_of_arms(work, tmp_path / "out", ["task only"], seeds=[1]))


def test_two_processes_share_a_table(work, tmp_path, faked, monkeypatch):
    """The processes are forked, so that they need not import everything again."""

    def work_in_child(name):
        def slowly(plan, step):
            (tmp_path / f"{name}.{step.name.replace('/', '.')}").touch()
            time.sleep(0.1)
            return fake_step(plan, step)

        monkeypatch.setattr(MODULE, "make_step", slowly)
        reproduce(plan_of_arms(work, tmp_path / "shared", [*ARMS, "random"]))

    fork = multiprocessing.get_context("fork")
    pair = [fork.Process(target=work_in_child, args=(name,)) for name in "ab"]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]
    by = {name: {path.name[2:] for path in tmp_path.glob(f"{name}.*")} for name in "ab"}
    assert len(by["a"] | by["b"]) == 9 and not by["a"] & by["b"] and by["a"] and by["b"]
    reproduce(plan_of_arms(work, tmp_path / "alone", [*ARMS, "random"]))
    assert comparable(tmp_path / "shared") == comparable(tmp_path / "alone")


def test_average_of_other_seeds_replaces_the_record(work, tmp_path, faked):
    """It is named by its first seed; analyses would take two for two seeds."""
    arms = ["task only", {"name": "together", "average": "task only"}]
    for seeds in ((0, 1), (1, 2)):
        reproduce(plan_of_arms(work, tmp_path, arms, seeds=seeds))
    assert [file.name for file in (tmp_path / "runs").glob("scierc.together.*")] == ["scierc.together.seed-1.json"]


@pytest.mark.slow
def test_average_of_seeds_combines_their_predictions(work, tmp_path):
    arms = ["task only", {"name": "together", "average": "task only"}]
    out = tmp_path / "out"
    rows = {row.arm: row for row in reproduce(plan_of_arms(work, out, arms)).rows}
    single, both = rows["task only"], rows["together"].runs[0]
    files = [out / f"scierc/task-only/seed-{seed}/seed-{seed}/predictions/test.jsonl" for seed in (0, 1)]
    predictions = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    right = [
        a["label"] == max(a["probabilities"], key=lambda name: a["probabilities"][name] + b["probabilities"][name])
        for a, b in zip(*predictions, strict=True)
    ]
    assert both["test"]["accuracy"] == sum(right) / len(right)
    assert both["averaged"] == 2 and both["cost"]["flops"] == sum(run["cost"]["flops"] for run in single.runs)
    assert both["price"]["megabytes"] == sum(run["price"]["megabytes"] for run in single.runs)
    # With a third seed there is another average, as if the table had had three seeds from the start.
    again = {row.arm: row for row in reproduce(plan_of_arms(work, out, arms, seeds=(0, 1, 2))).rows}["together"]
    assert again.runs[0]["averaged"] == 3 and again.finished == "all 3"


@pytest.mark.slow
def test_leads_over_the_linear_model_come_from_recorded_answers(work, tmp_path, monkeypatch):
    """A lead is that of the mean over seeds, or of the seeds' average."""
    out = tmp_path / "out"
    arms = ["linear", "task only", {"name": "together", "average": "task only"}]
    table = reproduce(plan_of_arms(work, out, arms))
    rows = {row.arm: row for row in table.rows}
    answers = {name: [run["answers"] for run in row.runs] for name, row in rows.items()}
    labels = [int(label) for label in answers["linear"][0]["labels"].split()]
    scorers = {
        name: [scorer("macro_f1", labels, [int(index) for index in answer["predictions"].split()]) for answer in several]
        for name, several in answers.items()
    }
    every = np.arange(len(labels))
    for name, scores in scorers.items():
        assert [score(every) for score in scores] == [run["test"]["macro_f1"] for run in rows[name].runs]
    for name in ("task only", "together"):
        lead = paired_bootstrap(scorers[name], scorers["linear"], len(labels))
        assert rows[name].lead == lead and rows[name].to_dict()["over_linear"] == lead.to_dict()
        shown = f"{100 * lead.difference:+.1f} ({100 * lead.low:+.1f} to {100 * lead.high:+.1f})"
        assert f"| {shown} " in table.to_text()
    # The table also has the score of each model averaged with the linear one.
    together = [run["with_linear"]["test"]["macro_f1"] for run in rows["task only"].runs]
    assert rows["task only"].with_linear()["values"] == together and len(rows["together"].with_linear()["values"]) == 1
    assert f"| {format_score(rows['task only'].with_linear())} " in table.to_text() and "With linear: " in table.to_text()
    validation = [run["with_linear"]["validation"]["macro_f1"] for run in rows["task only"].runs]
    assert rows["task only"].to_dict()["with_linear_validation"]["values"] == validation
    assert rows["linear"].with_linear() is None
    run = json.loads((out / "scierc/task-only/seed-1/results.json").read_text())
    assert run["with_linear"]["test"]["macro_f1"]["values"] == together[1:]
    assert rows["linear"].lead is None and rows["linear"].to_dict()["over_linear"] is None
    assert "Over linear: lead" in table.to_text() and "answers" not in (out / "results.json").read_text()
    # Records of older versions, of other texts, and damaged ones have no lead.
    file = out / "runs" / "scierc.task-only.seed-1.json"
    record = json.loads(file.read_text())
    for damage in (
        *(None, 3, {"split": "test"}, {**record["answers"], "labels": "0 1"}),
        *({**record["answers"], "predictions": "0 x"}, {**record["answers"], "split": "validation"}),
        *({**record["answers"], "split": ["test"]}, {**record["answers"], "labels": "", "predictions": ""}),
        {name: text for name, text in record["answers"].items() if name != "split"},
    ):
        file.write_text(json.dumps(record | {"answers": damage}))
        rows = {row.arm: row for row in write_table(plan_of_arms(work, out, arms)).rows}
        assert rows["task only"].lead is None and rows["together"].lead is not None
    for damage in (3, {"test": 3}, {"test": {"macro_f1": "much"}}):
        file.write_text(json.dumps(record | {"with_linear": damage}))
        rows = {row.arm: row for row in write_table(plan_of_arms(work, out, arms)).rows}
        assert rows["task only"].with_linear() is None and rows["together"].with_linear() is not None
    # Without the linear model there is no lead; answers of many texts are not recorded.
    assert "over linear" not in write_table(plan_of_arms(work, out, ["task only"])).to_text()
    monkeypatch.setattr("hf_tlm.experiments.steps.MOST_ANSWERS", len(labels) - 1)
    (run,) = reproduce(plan_of_arms(work, tmp_path / "many", ["linear"], seeds=(0,))).rows[0].runs
    assert "answers" not in run


@pytest.mark.parametrize(
    "arm,message",
    [
        ({"name": "a", "average": "linear"}, "Arm a: average must name another arm of the table with a network"),
        ({"name": "a", "average": "none such"}, "Arm a: average must name another arm of the table with a network"),
        ({"name": "a", "average": "BM25", "subset": "BM25"}, "an average has only a name. Remove subset"),
    ],
)
def test_invalid_average_is_refused(work, tmp_path, arm, message):
    with pytest.raises(ReproductionError, match=message):
        plan_of_arms(work, tmp_path, ["BM25", "linear", arm])


def test_average_of_one_seed_is_left_out_and_named(work, tmp_path):
    plan = plan_of_arms(work, tmp_path, ["BM25", {"name": "a", "average": "BM25"}], seeds=(0,))
    assert [step.arm.name for step in plan.trainings] == ["BM25"]
    assert plan.left_out == ("a, scierc: an average is of several seeds, and there is one",)
