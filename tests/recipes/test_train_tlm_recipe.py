"""recipes/train_tlm.py, on one and two processes, and recipes/quickstart.py, as a user starts them."""

import csv
import json
from pathlib import Path

import pytest

from support.launching import TINY, fails, launch, run_benchmark, run_recipe
from support.toys import TINY_CONFIGS


@pytest.mark.slow
def test_train_tlm_with_replaced_token_detection(work, subset):
    values = {k: v for k, v in TINY_CONFIGS["electra"].items() if k not in ("vocab_size", "num_labels")}
    (work / "electra.json").write_text(json.dumps({"model_type": "electra", **values}))
    tiny = list(TINY)
    tiny[tiny.index("--max_steps") + 1] = "8"  # A curve needs three points.
    out = run_recipe(
        "recipes/train_tlm.py", "--task", work / "task", "--subset", subset, "--model_config", work / "electra.json", *tiny,
        "--objective", "electra", "--auxiliary_size", "0.5", "--logging_steps", "1", "--output_dir", work / "electra",
        "--report",
    )  # fmt: skip
    assert "cost a seed" in out
    page = (work / "electra/analysis/report.html").read_text(encoding="utf-8")
    assert all(f'<section id="{part}"' in page for part in ("scores", "errors", "analysis", "curves", "retrieved"))
    assert "What is missing" not in page and "corpus: replaced tokens" in page
    entry = json.loads((work / "electra/seed-0/stage1/trainer_state.json").read_text())["log_history"][0]
    assert 0 < entry["corpus/rtd_loss"] and 0 < entry["corpus/replaced_fraction"] < 1
    from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraForSequenceClassification

    for cls, folder in (
        (ElectraForSequenceClassification, ""),
        (ElectraForPreTraining, "discriminator"),
        (ElectraForMaskedLM, "generator"),
    ):
        _, info = cls.from_pretrained(work / "electra" / folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def train(work, subset, processes, *more, config=None):
    """Run recipes/train_tlm.py with the same total batches; return results, losses, and predictions by split.

    config: a config file of `accelerate launch`, which then starts the recipe.
    """
    out = work / "-".join(["run", config or str(processes), *(Path(name).name for name in more[1:2])])
    arguments = ["--task", work / "task", "--subset", subset, "--model_config", work / "model.json", *TINY, *more]
    arguments += ["--max_steps", "4", "--total_batch_size", "8", "--per_device_train_batch_size", 8 // processes]
    arguments += ["--stage2_total_batch_size", "8", "--logging_steps", "1", "--output_dir", out]
    if config is None:
        text = run_recipe("recipes/train_tlm.py", *arguments, processes=processes)
    else:
        text = launch("recipes/train_tlm.py", *arguments, config=config, processes=processes)
    assert text.count("cost a seed") == 1
    history = json.loads((out / "seed-0/stage1/trainer_state.json").read_text())["log_history"]
    return {
        "results": json.loads((out / "results.json").read_text()),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        **{
            split: [json.loads(line) for line in (out / f"seed-0/predictions/{split}.jsonl").read_text().splitlines()]
            for split in ("validation", "test")
        },
    }


@pytest.fixture(scope="module")
def on_one_process(work, subset):
    return train(work, subset, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("config,file", [("cpu_2", "optimizer.pt"), ("fsdp", "pytorch_model_fsdp.bin")], ids=["ddp", "fsdp"])
def test_two_processes_compute_the_results_of_one(work, subset, on_one_process, config, file):
    """With equal total batches, DDP and FSDP give the same losses, scores, predictions and cost, up to rounding."""
    one, two = on_one_process, train(work, subset, 2, config=config)
    assert list((work / f"run-{config}/seed-0/stage2").glob(f"checkpoint-*/{file}")), f"{config} was not used"
    compare(one, two)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_teacher_on_two_processes_gives_the_results_of_one(work, subset):
    teacher = ("--teacher", "linear", "--teacher_passages", "20")
    # Two processes first: they run the teacher, and the single process finds its answers in the cache.
    two, one = (train(work, subset, processes, *teacher) for processes in (2, 1))
    assert one["results"]["teacher"] == two["results"]["teacher"] and one["results"]["teacher"]["passages"] > 0
    compare(one, two)
    # Both processes together run a finished run as the teacher.
    teacher = ("--teacher", work / "run-1-linear", "--teacher_temperature", "2", "--teacher_passages", "20")
    two, one = (train(work, subset, processes, *teacher) for processes in (2, 1))
    assert one["results"]["teacher"]["model"].endswith("/run-1-linear") and one["results"]["teacher"]["tokens"] > 0
    compare(one, two)


def compare(one, two):
    """Check that one and two processes have the same results, up to rounding."""
    assert two["results"]["environment"]["processes"] == 2
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    for split in ("validation", "test"):
        for ours, expected in zip(two[split], one[split], strict=True):
            assert ours["id"] == expected["id"]
            assert ours["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-4)
    for key in ("steps", "tokens", "real_tokens", "flops"):
        assert one["results"]["seeds"][0]["cost"][key] == two["results"]["seeds"][0]["cost"][key], key


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_own_table_from_retrieval_to_predictions(work, tmp_path):
    """The options are only given once: predictions of two processes equal those of the run."""
    rows = [row for split in ("train", "validation", "test") for row in _rows(work / "task" / f"{split}.jsonl")]
    lines = ["number;Body;queue", *(f"{i:04};{row['text']};{row['label']}" for i, row in enumerate(rows))]
    (tmp_path / "tickets.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = ["--task", tmp_path / "tickets.csv", "--text_column", "Body", "--label_column", "queue"]
    table += ["--max_train_samples", 20]
    run_recipe(
        "recipes/retrieve.py",
        *table,
        "--corpus",
        work / "corpus.parquet",
        "--top_k",
        "4",
        "--output_dir",
        tmp_path / "subset",
    )
    out = run_recipe(
        "recipes/train_tlm.py", *table, "--subset", tmp_path / "subset", "--model_config", work / "model.json", *TINY,
        "--output_dir", tmp_path / "run", "--predict", tmp_path / "tickets.csv",
    )  # fmt: skip
    assert f"predictions  {tmp_path / 'run/predictions/tickets.jsonl'}" in out
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    assert settings["held_out"] == {"validation": 0.1, "test": 0.1}
    assert settings["train_sampled"]["examples"] == 20 < settings["train_sampled"]["of"]
    out = run_recipe(
        "recipes/predict.py", "--model_name_or_path", tmp_path / "run", "--data", tmp_path / "tickets.csv", "--output",
        tmp_path / "answered.csv", "--use_cpu", "true", processes=2,
    )  # fmt: skip
    assert out.count("predictions  ") == 1
    with (tmp_path / "answered.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, delimiter=";"))
    assert [row["number"] for row in found] == [f"{i:04}" for i in range(len(rows))]
    first = _rows(tmp_path / "run/predictions/tickets.jsonl")
    for row_of_predict, row_of_run in zip(found, first, strict=True):
        for name, share in row_of_run["probabilities"].items():
            assert float(row_of_predict[f"probability_{name}"]) == pytest.approx(share, abs=1e-5)


def _rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_options_are_read_from_yaml(work, subset):
    config = work / "config.yaml"
    config.write_text(f"train_tlm:\n  model_config: {work / 'model.json'}\n  rho2: 5\nretrieve:\n  top_k: 3\n")
    run_recipe(
        "recipes/train_tlm.py", "--config", config, "--task", work / "task", "--subset", subset, *TINY, "--seeds", "0", "1",
        "--output_dir", work / "yaml",
    )  # fmt: skip
    results = json.loads((work / "yaml/results.json").read_text())
    assert results["arguments"]["rho2"] == 5 and len(results["seeds"]) == 2


@pytest.mark.slow
def test_quickstart_compares_all_arms(work):
    out = run_recipe(
        "recipes/quickstart.py", "--task", work / "task", "--corpus", work / "corpus.parquet", "--output_dir",
        work / "quick", "--max_flops", "1e9", "--stage2_max_steps", "2", "--top_k", "4",
    )  # fmt: skip
    table = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(table) == 9 and "BM25 and teacher" in table[-1]
    assert (work / "quick/model/model.safetensors").is_file() and not list((work / "quick/model").glob("seed-*"))
    rows = json.loads((work / "quick/table.json").read_text())
    arms = ["majority class", "linear", "no stage 1", "task only", "random subset", "BM25 subset", "BM25 and teacher"]
    assert [row["arm"] for row in rows] == arms
    assert "no-stage-1" in (work / "quick/report.html").read_text() and str(work / "quick/report.html") in out
    assert "('a text of yours')" in out  # Not one of the demo's.


@pytest.mark.slow
def test_quickstart_benchmark_averages_seeds(work, tmp_path):
    """benchmarks/quickstart.py has the scores of all seeds, and does not repeat finished ones."""
    given = [
        *("--seeds", "0", "1", "--metric", "accuracy"),
        *("--output_dir", tmp_path / "out", "--results_dir", tmp_path / "results"),
        *("--options", "--task", work / "task", "--corpus", work / "corpus.parquet", "--max_flops", "1e8"),
        *("--stage2_max_steps", "2", "--top_k", "4"),
    ]
    run_benchmark("benchmarks/quickstart.py", *given)
    tables = [json.loads((tmp_path / f"out/seed-{seed}/table.json").read_text()) for seed in (0, 1)]
    rows = json.loads((tmp_path / "results/quickstart.json").read_text())["quickstart"]["rows"]
    assert len(rows) == len(tables[0]) == 7 and all(row["seeds"] == 2 for row in rows)
    scores = [table[3]["test accuracy"]["mean"] for table in tables]
    assert rows[3]["test accuracy"].startswith(f"{50 * sum(scores):.2f} ± ") and rows[3]["arm"] == "task only"
    times = [(tmp_path / f"out/seed-{seed}/table.json").stat().st_mtime_ns for seed in (0, 1)]
    run_benchmark("benchmarks/quickstart.py", *given)
    assert times == [(tmp_path / f"out/seed-{seed}/table.json").stat().st_mtime_ns for seed in (0, 1)]


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--task", "{task}", "--subset", "nowhere"], "received 'nowhere', which is neither"),
        (["--task", "nowhere", "--subset", "{subset}"], "No task 'nowhere'"),
        (["--task", "{task}", "--subset", "{subset}", "--label_column", "y"], "no column 'y'"),
        (["--task", "{task}"], "pass --subset"),
        (["--task", "{task}", "--subset", "{subset}", "--rho1", "0.5"], "rho1 must be"),
        (["--task", "{task}", "--subset", "{subset}", "--config", "nowhere.yaml"], "Cannot read --config nowhere.yaml"),
        (["--task", "{task}", "--subset", "{subset}", "--model_config", "nowhere.json"], "neither a JSON file"),
    ],
)
def test_errors_have_no_traceback(work, subset, tmp_path, arguments, message):
    filled = [argument.format(task=work / "task", subset=subset) for argument in arguments]
    fails("recipes/train_tlm.py", *TINY, *filled, "--output_dir", tmp_path / "out", message=message)


def test_muon_for_an_adapter_is_refused_before_the_task_is_read(tmp_path):
    fails(
        "recipes/train_tlm.py", *TINY, "--task", tmp_path / "nowhere", "--output_dir", tmp_path / "out",
        "--optim", "muon", "--use_peft", "true", message="optim muon is for complete matrices",
    )  # fmt: skip
