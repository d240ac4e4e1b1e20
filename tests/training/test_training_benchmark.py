"""All sections of benchmarks/training.py run, at a size at which its timings mean nothing."""

import importlib.util
import json
import random
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset

from hf_tlm.data.collator import TlmCollator
from hf_tlm.models import cpu_kernels

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
COMPILED = ["--compile_backend", "eager"]  # The tests are about tracing, not about code generation.


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("training_benchmark", BENCHMARKS / "training.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # A process for each run would import torch dozens of times.
    monkeypatch.setattr(module, "fresh", lambda function, **arguments: function(**arguments))
    return module


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Return a folder like the real data, with tasks/chemprot and corpus/ of random words, and a folder for tokenised
    texts."""
    folder, rng = tmp_path_factory.mktemp("benchmark"), random.Random(0)
    words = [f"word{i}" for i in range(200)]
    text = lambda: ". ".join(" ".join(rng.sample(words, rng.randrange(2, 9))) for _ in range(6)) + "."  # noqa: E731
    columns = {"corpus/a": 150, "tasks/chemprot/train": 40, "tasks/chemprot/validation": 6}
    for name, number in columns.items():
        table = {"text": [text() for _ in range(number)], "source": ["s"] * number}
        if "tasks" in name:
            table = {"text": table["text"], "label": [("up", "down", "none")[i % 3] for i in range(number)]}
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    return folder, folder / "work"


@pytest.fixture
def run(benchmark, work, tmp_path, monkeypatch):
    data, folder = work
    monkeypatch.setenv("HF_TLM_DATA", str(data))

    def run(*sections, options=()):
        options = [
            "--bodies",
            "2x64",
            "--threads",
            "1",
            "--vocab_size",
            "300",
            "--batch_size",
            "16",
            "--repeats",
            "2",
            *options,
        ]
        options += ["--work_dir", str(folder), "--results_dir", str(tmp_path), "--sections", *sections]
        monkeypatch.setattr(sys, "argv", ["training.py", *options])
        torch._dynamo.reset()
        benchmark.main()
        results = json.loads((tmp_path / "training.json").read_text())
        return [results[section]["rows"] for section in sections]

    return run


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_sections_on_speed_and_memory(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "dropout_noise", cpu_kernels.dropout_noise)  # The section replaces it.
    options = ["--texts", "short", "--packing", "group", "--corpus_sizes", "1", "--repeats", "1", "--steps", "4"]
    sections = ["throughput", "ceiling", "pipeline", "step", "memory", "corpus"]
    throughput, ceiling, pipeline, step, memory, corpus = run(*sections, options=options)
    assert [row["side"] for row in throughput] == ["plain", "ours, group"] and throughput[0]["ratio"] == 1
    assert throughput[1]["fill"] > throughput[0]["fill"] > 0.1
    short, mean = sorted(ceiling, key=lambda row: -row["tokens a row"])
    assert short["tokens a row"] == 128 > mean["tokens a row"] > 5
    assert all(row["ratio"] == row["lowest"] == row["highest"] == row["all"][0] > 0 for row in ceiling)
    assert [(row["texts a batch"], row["workers"]) for row in pipeline] == [(32, 0), (32, 2), (256, 0), (256, 2)]
    assert all(row["ms a batch"] > 0 for row in pipeline)
    assert [row["dropout"] for row in step] == ["torch's", "ours"] and step[1]["dropout's random numbers"] > 0
    assert all(row["peak"] >= row["before"] > 100 for row in memory)
    assert corpus[0]["texts"] == 2500 and corpus[0]["peak"] > 100
    assert "| ratio" in (tmp_path / "training.md").read_text() and "| all" not in (tmp_path / "training.md").read_text()


@pytest.mark.slow
def test_loss_curves_are_equal(run):
    (rows,) = run("curves", options=["--steps", "12"])
    assert [row["layout"] for row in rows] == ["none", "group", "pack"]
    for row in rows:
        assert len(row["all"]["ours"]) == len(row["all"]["plain"]) == 12
        assert row["largest difference"] < 1e-4
        # The loss falls, and every step has other texts.
        assert row["last loss, plain"] < row["first loss"] - 0.05 and len(set(row["all"]["ours"])) == 12


def test_loop_without_the_trainer_takes_the_same_steps(run, benchmark, monkeypatch):
    """With our interleaving and no dropout the losses of the plain loop equal the Trainer's, also for task batches."""
    loops, losses = sys.modules["training_loops"], {"loop": [], "trainer": []}
    ours, loss, logged, labelled = loops.ours, loops.Loop.loss, [], []

    def without_dropout(*args, **kwargs):
        trainer = ours(*args, dropout=0.0, **kwargs)
        compute, log = trainer.compute_loss, trainer.log
        monkeypatch.setattr(trainer, "compute_loss", lambda *a, **k: keep("trainer", compute(*a, **k), a[1]))
        monkeypatch.setattr(trainer, "log", lambda logs, *a: (logged.append(trainer.state.global_step), log(logs, *a)))
        return trainer

    def keep(side, value, batch=()):
        losses[side].append(float(value.detach()))
        labelled.append("labels" in batch)
        return value

    for module in (loops, benchmark.measures):
        monkeypatch.setattr(module, "LEARNING_RATE", 1e-6)
    monkeypatch.setattr(loops, "ours", without_dropout)
    monkeypatch.setattr(loops.Loop, "loss", lambda self, batch: keep("loop", loss(self, batch), batch))
    monkeypatch.setattr(loops.Loop, "touch", lambda self, batches: None)
    (rows,) = run("overhead", options=["--repeats", "1"])
    (times,) = rows[0]["all"]
    assert {side: len(steps) for side, steps in times.items()} == {"trainer": 8, "loop": 8} and rows[0]["steps"] == 8
    assert rows[0]["lowest"] == rows[0]["highest"] == rows[0]["ratio"] == sum(times["trainer"]) / sum(times["loop"])
    pairs = list(zip(times["trainer"], times["loop"], strict=True))
    assert rows[0]["of single steps"] == pytest.approx(statistics.median(a / b for a, b in pairs))
    assert min(times["trainer"] + times["loop"]) > 0
    # Both train one model: every batch is used twice, and the second use is one step later.
    assert losses["loop"] == pytest.approx(losses["trainer"], abs=0.001) and len(losses["loop"]) == 12 + 8
    assert losses["loop"][0] == pytest.approx(losses["trainer"][0], abs=1e-6)
    # Alternating: the Trainer's first step, the loop's, the Trainer's second, ...
    assert labelled == [step % 4 == 3 for step in range(20) for _ in range(2)] and logged[:2] == [4, 8]


@pytest.mark.slow
def test_section_on_precision(run):
    (rows,) = run("precision", options=COMPILED)
    names = ["float32, torch's products", "float32", "bf16", "float32, compiled", "bf16, compiled"]
    assert [row["precision"] for row in rows] == names
    assert rows[1]["ratio to float32"] == 1 and all(row["ms a step"] > 0 and len(row["all"]) == 4 for row in rows)
    assert [row["recompilations"] for row in rows] == [0] * 5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_gpu_sections_run_on_a_cpu(run, benchmark):
    arms, kernels = run("gpu", "kernels", options=[*COMPILED, "--bf16", "--steps", "3", "--packing", "pack"])
    sides = ["plain", "ours, pack"]
    assert [(row["side"], row["compiled"]) for row in arms] == [(side, way) for way in ("no", "yes") for side in sides]
    assert arms[0]["ratio"] == 1 and all(row["real tokens/s"] > 0 and row["failed"] is None for row in arms)
    assert {(row["precision"], row["texts a step"], row["steps"], row["recompilations"]) for row in arms} == {
        ("bf16", 16, 3, 0)
    }
    best = max((arms[1], arms[3]), key=lambda row: row["real tokens/s"])
    assert len(kernels) == 11 and {(row["side"], row["compiled"]) for row in kernels} == {(best["side"], best["compiled"])}
    assert sum(row["share"] for row in kernels) == pytest.approx(1) and kernels[0]["share"] >= kernels[9]["share"] > 0


def test_failing_configuration_does_not_stop_the_others(run, benchmark, monkeypatch, capsys):
    train = benchmark.measures.train

    def refused(**arguments):
        if arguments["side"] == "ours, group":
            raise RuntimeError("not on this machine")
        return train(**arguments)

    monkeypatch.setattr(benchmark.measures, "train", refused)
    (arms,) = run("gpu", options=["--no-compile", "--steps", "1"])
    assert [(row["side"], row["failed"]) for row in arms] == [
        ("plain", None),
        ("ours, group", "RuntimeError"),
        ("ours, pack", None),
    ]
    assert arms[1]["ratio"] is None and arms[2]["ratio"] == arms[2]["real tokens/s"] / arms[0]["real tokens/s"]
    assert "not on this machine" in capsys.readouterr().err


def test_spread_of_repeats(benchmark):
    assert benchmark._spread([1.5, 1.0, 4.0]) == {"ratio": 1.5, "lowest": 1.0, "highest": 4.0, "all": [1.5, 1.0, 4.0]}


def test_plain_and_own_training_have_the_same_optimizer(benchmark, tokenizer):
    measures, rows = benchmark.measures, Dataset.from_dict({"input_ids": [[2, 7, 3]] * 4})
    setting = measures.Setting(threads=1)
    trainers = [measures.side_of(side)(rows, tokenizer, "2x64", 2, 0, setting=setting) for side in ("plain", "ours, pack")]
    names = "optim learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_type".split()
    plain, ours = ({name: getattr(trainer.args, name) for name in names} for trainer in trainers)
    assert plain == ours and plain["weight_decay"] == 0.01
    assert trainers[1].args.layout == "pack" and trainers[0].args.per_device_train_batch_size == 32


@pytest.mark.parametrize("row_length, places", [(None, 8), (10, 7)])
def test_tokens_of_a_step_are_counted(benchmark, tokenizer, row_length, places):
    """Texts of 3 and 4 tokens, padded and packed."""
    measures, texts = benchmark.measures, [{"input_ids": [2, 7, 3], "draw": 0}, {"input_ids": [2, 7, 8, 3], "draw": 1}]
    trainer = SimpleNamespace(training_step=lambda model, inputs: torch.tensor(0.5), add_callback=lambda callback: None)
    watch = measures.Watch(trainer, measures.Setting(threads=1), 0)
    for _ in range(2):
        trainer.training_step(None, TlmCollator(tokenizer, row_length=row_length)(texts))
    assert watch.counts(0) == (2 * places, 14, 50) and watch.counts(1) == (places, 7, 25) and watch.losses == [0.5, 0.5]


def test_needed_flops_count_products_and_attention(benchmark):
    """A layer has one product per weight and token, and attention."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=2, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, vocab_size=9)
    body = BertModel(config)
    parameters = sum(parameter.numel() for parameter in body.encoder.parameters())
    # Texts of 3 and 4 tokens.
    assert benchmark.measures.needed_flops(body, 7, 25) == 6 * parameters * 7 + 12 * 1 * 2 * 25


def test_gpu_sections_at_full_size_need_a_gpu(benchmark, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["training.py", "--sections", "gpu"])
    with pytest.raises(SystemExit, match="--device cuda"):
        benchmark.main()
    monkeypatch.setattr(sys, "argv", ["training.py", "--device", "cuda"])
    with pytest.raises(SystemExit, match="torch sees none"):
        benchmark.main()
