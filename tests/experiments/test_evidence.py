"""benchmarks/evidence.py: the page of all tables agrees with the records."""

import csv
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from hf_tlm.corpora import load_corpus
from hf_tlm.experiments import Arm, TaskEntry, make_plan, reproduce
from hf_tlm.retrieval import retrieve
from support.card_records import RUN
from support.subsets import save_subset
from support.toys import make_task, sentences

ROOT = Path(__file__).resolve().parents[2]
MODULE = sys.modules[reproduce.__module__]
SCORES = {"task only": (0.2, 0.3), "BM25": (0.5, 0.7), "random": (0.45, 0.6), "rho1 = 1": (0.5, 0.7), "rho1 = 9": (0.1, 0.2)}


@pytest.fixture(scope="module")
def evidence():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "benchmarks" / "evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake_step(plan, step):
    plan.folder(step).mkdir(parents=True, exist_ok=True)
    if step.kind in ("retrieve", "select_influence"):
        save_subset(plan.folder(step))
    if step.kind != "train_tlm":
        return {}
    if step.arm.name == "BM25" and step.task_name == "toy" and step.seed == 1:
        raise ValueError("too much")
    score = SCORES[step.arm.name][step.seed]
    cost = {"steps": 4, "tokens": 90, "real_tokens": 80, "flops": 1.2e13, "measured_flops": 6e12, "seconds": 60.0}
    environment = {"processor": "a CPU", "cpu_cores": 2, "torch_threads": 2}
    found = {"metric": "macro_f1", "parameters": 5, "cost": cost, "subset": None, "environment": environment}
    return found | {split: {"macro_f1": score - (split == "validation") / 10} for split in ("validation", "test")}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The records of two tables of one scale, with one failed run."""
    monkeypatch.setattr(MODULE, "make_step", fake_step)
    for name in ("scierc", "toy"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
        for split in ("train", "validation", "test"):
            Dataset.from_list(sentences(6, len(split))).to_json(tmp_path / "tasks" / name / f"{split}.jsonl")
    Dataset.from_list([{"text": row["text"]} for row in sentences(9, 9)]).to_parquet(tmp_path / "corpus.parquet")
    # The first table runs BM25 on scierc under a name of its own.
    same = json.dumps({"name": "rho1 = 1", "subset": "BM25"})
    arms = {"rho1": [same, json.dumps({"name": "rho1 = 9", "subset": "BM25", "train_tlm": {"rho1": 9}})]}
    arms["main"] = ["task only", "random", "BM25"]
    for table, names in arms.items():
        plan = make_plan(
            [TaskEntry("scierc"), TaskEntry("toy", seeds=(0, 1))] if table == "main" else [TaskEntry("scierc")],
            [Arm.read(name) for name in names],
            (0, 1),
            tmp_path / "out",
            tasks_dir=str(tmp_path / "tasks"),
            corpus={"corpus": str(tmp_path / "corpus.parquet")},
            records_dir=tmp_path / "results" / "cpu",
            table_name=table,
        )
        reproduce(plan)
    return tmp_path / "results"


def table_after(text, heading):
    """Return the first table below a line, as lists of cells."""
    lines = text.partition(heading)[2].strip().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_page_shows_scores_differences_time_and_cost(evidence, results, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--results_dir", str(results)])
    evidence.main()
    text = (results / "RESULTS.md").read_text(encoding="utf-8")
    test = table_after(text, "\nTest:\n")
    assert test[0] == ["task", "metric", "", "task only", "random", "BM25"]
    assert test[1] == ["scierc", "macro_f1", "here", "25.00 ± 7.07", "52.50 ± 10.61", "60.00 ± 14.14"]
    assert test[2] == ["scierc", "", "published", "", "", "80.51 ± 1.53"]
    assert test[3][3:] == ["25.00 ± 7.07", "52.50 ± 10.61", "50.00 (1 of 2)"] and len(test) == 4
    assert table_after(text, "\nValidation:\n")[1][3] == "15.00 ± 7.07"
    apart = table_after(text, "Differences of test scores")
    assert apart[1][1:3] == ["**+35.00 ± 15.81**", "+7.50 ± 17.68"], "sqrt(14.14^2 + 7.07^2), sqrt(14.14^2 + 10.61^2)"
    assert apart[2][1:3] == ["+25.00", "-2.50"], "one seed has no deviation"
    assert "Failed:\n\n- toy, BM25, seed 1: ValueError: too much" in text and "11 of 12 runs" in text
    rho1 = table_after(text, "## rho1")
    assert rho1[0][:3] == ["arm", "scierc, validation", "scierc, test"]
    assert rho1[2][:3] == ["rho1 = 9", "5.00 ± 7.07", "15.00 ± 7.07"] and len(rho1) == 3
    # Runs of 60 s on 2 threads are 30 runs per hour and core; each counts 6e12 FLOPs, so 5e10 per second and core.
    time = table_after(text, "## What time buys")
    assert time[1][:4] == ["one core, one hour", "measured", "30", "1.8e+14"]
    assert time[4][2] == "", "nobody knows how many runs of a small model a GPU takes"
    assert "Not begun: stages, rho2" in text and "labels included (its Algorithm 1)" in text
    cost = table_after(text, "## Score against cost")
    points = {row[0]: row[3] for row in cost[1:] if not row[4]}
    assert points == {
        "task only": "25.00 ± 7.07 (2 seeds)",
        "random": "52.50 ± 10.61 (2 seeds)",
        "BM25": "60.00 ± 14.14 (2 seeds)",
    }, "of scierc alone"
    assert (results / "cpu" / "cost.png").is_file() and "(cpu/cost.png)" in text and "(cpu/rho1.md)" in text


def test_findings_are_linked_and_budgets_are_drawn_as_curves(evidence, results, monkeypatch):
    (results / "findings.md").write_text("# What it says\n\nThat BM25 helps.\n")
    table = json.loads((results / "cpu" / "main.json").read_text())
    for row, flops in zip(table["rows"][:3], (1e13, 2e13, 4e13), strict=True):
        row["cost"]["flops"], row["arm"] = flops, {1e13: "BM25, 1e13", 2e13: "BM25", 4e13: "random"}[flops]
    (results / "cpu" / "budget.json").write_text(json.dumps({**table, "rows": table["rows"][:3], "left_out": ["toy: why"]}))
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--results_dir", str(results)])
    evidence.main()
    text = (results / "RESULTS.md").read_text(encoding="utf-8")
    assert text.index("benchmarks/evidence.py") < text.index("[findings.md](findings.md)") < text.index("# Two CPU cores")
    assert "![Test score by training FLOPs](cpu/budget.png)" in text and "Left out:\n\n- toy: why" in text
    assert "mathdefault" not in (results / "cpu" / "budget.svg").read_text(), "numbers a reader can read"
    with open(results / "cpu" / "budget.csv", newline="") as file:
        points = [(row["arm"], float(row["flops"]), round(float(row["score"]), 1)) for row in csv.DictReader(file)]
    assert points == [("BM25", 1e13, 25.0), ("BM25", 2e13, 52.5), ("random", 4e13, 60.0)]


def test_cards_of_the_best_run_and_of_subsets(evidence, results, tmp_path, monkeypatch):
    """The run is the best on validation and shows its arm's mean; subsets are described without their passages."""
    runs, cards = tmp_path / "out", tmp_path / "cards"
    cards.mkdir()
    (cards / "tlm-scierc-old.md").touch()
    # The scores of SCORES; the records of BM25 are those of this arm.
    for seed, score in enumerate((0.5, 0.7)):
        scores = {"validation": {"micro_f1": score - 0.1, "accuracy": 0.5}, "test": {"micro_f1": score, "accuracy": 0.5}}
        run = {**RUN, "task": "scierc", "seeds": [RUN["seeds"][0] | scores | {"seed": seed}], "summary": {}}
        (runs / f"scierc/rho1-1/seed-{seed}/results.json").write_text(json.dumps(run))
    for folder in runs.glob("*/subsets/*"):  # Subsets may be on another machine.
        shutil.rmtree(folder)
    corpus = load_corpus(Dataset.from_list([{"text": f"passage {number} of them"} for number in range(9)]))
    drawn = retrieve(make_task(6, 3), corpus, retriever="random", num_passages=3, cache_dir=str(tmp_path / "cache"))
    drawn.save(runs / "scierc/subsets/iss-20")
    # A run whose subset was selected with the validation examples is not considered.
    table = json.loads((results / "cpu" / "main.json").read_text())
    chosen = {"name": "scierc/bm25-iss-20/seed-0", "arm": "BM25 + ISS 20%", "validation": {"macro_f1": 0.99}}
    table["runs"].append(table["runs"][0] | chosen)
    (results / "cpu" / "main.json").write_text(json.dumps(table))
    command = ["--results_dir", results, "--runs", runs, "--cards_dir", cards]
    monkeypatch.setattr(sys, "argv", ["evidence.py", *map(str, command)])
    evidence.main()
    assert sorted(path.name for path in cards.iterdir()) == ["subset-scierc-iss-20.md", "tlm-scierc-bm25.md"]
    text = (cards / "tlm-scierc-bm25.md").read_text()
    assert "from seed 1, the best of 2 seeds on validation (0, 1)" in text
    assert "| test, this seed | 70.00 |" in text and "| test, mean ± std of 2 seeds | 60.00 ± 14.14 |" in text
    text = (cards / "subset-scierc-iss-20.md").read_text()
    assert "3 of the 9 passages" in text and "passage 1" not in text


def test_tuning_tables_show_validation_only(evidence, results, monkeypatch):
    shutil.copy(results / "cpu" / "rho1.json", results / "cpu" / "tuning.json")
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--results_dir", str(results)])
    evidence.main()
    text = (results / "RESULTS.md").read_text(encoding="utf-8")
    assert table_after(text, "## Learning rates")[0] == ["arm", "scierc, validation"]
