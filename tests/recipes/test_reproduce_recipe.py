"""recipes/reproduce.py as a user starts it: every kind of arm, with two steps each."""

import json
import re

import pytest

from hf_tlm.retrieval import Subset
from support.launching import fails, run_recipe

TABLE = ["recipes/reproduce.py", "--config", "recipes/configs/reproduce/tiny.yaml"]


@pytest.fixture(scope="module")
def options(work):
    """The tiny table with an even smaller model, on CPUs."""
    model = {"model_config": str(work / "model.json"), "use_cpu": True}
    (work / "options.yaml").write_text(json.dumps({"train_tlm": {**model, "vocab_size": 120}, "select_influence": model}))
    return [*TABLE, work / "options.yaml", "--corpus", work / "corpus.parquet", "--tasks_dir", work]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_table_of_every_kind_of_arm(work, options):
    out = work / "table"
    command = [*options, "--tasks", "task", "--output_dir", out, "--max_steps", "2", "--report"]
    text = run_recipe(*command)
    assert "Tokenizers and subsets: 4; trainings: 5." in text and "5 of 5 runs are finished." in text
    results = json.loads((out / "results.json").read_text())
    assert [row["arm"] for row in results["rows"]] == ["linear", "task only", "random", "BM25", "BM25 + ISS 20%"]
    networks = results["rows"][1:]
    assert {row["cost"]["steps"] for row in networks} == {6} and results["failures"] == []
    assert len({row["parameters"] for row in networks}) == 1
    bm25, random, iss = (Subset.load(out / "task/subsets" / name) for name in ("bm25", "random", "iss-20"))
    assert len(random) == len(bm25) and len(iss) == round(0.2 * len(bm25)) and iss.manifest["selection"]["method"] == "iss"
    record = json.loads((out / "runs/task.bm25-iss-20.seed-0.json").read_text())
    assert "--max_steps 2" in record["command"] and record["started_by"].startswith("reproduce.py --config")
    page = (out / "results.md").read_text()
    assert page.startswith("| task | metric ") and all(
        f"\n| task | macro_f1 | {row['arm']} " in page for row in results["rows"]
    )
    assert f"Costs, leads and how the table was made: {out / 'results.md'}; all figures: .json, runs/." in text
    scores = results["rows"][-1]["test"]
    assert re.search(rf"\| BM25 \+ ISS 20% +\| [0-9.]+ +\| {100 * scores['mean']:.2f} ", text)
    pages = [path.read_text() for path in out.glob("task/*/seed-0/analysis/report.html")]
    assert len(pages) == 5 and all("</html>" in page for page in pages)


def test_error_has_no_traceback(options, tmp_path):
    arguments = ["--tasks", "task", "--arms", "BM26", "--output_dir", tmp_path / "out"]
    fails(*options, *arguments, message="A subset is none, random, BM25")
