"""Fine-tuning of every kind of task on the device; predictions, averages and exports equal those of the CPU."""

import json
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from hf_tlm.runs import export_onnx, predict
from hf_tlm.runs.finetuning.classification import checkpoint_logits
from hf_tlm.runs.records import environment
from support.gpu import DEVICE, ON_CPU, ON_DEVICE
from support.kind_toys import labels_of, rows_of, task_of
from support.tiny_checkpoints import NO_DROPOUT, go, pretrained
from support.toys import make_task

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    return pretrained(tmp_path_factory.mktemp("base") / "bert", tokenizer)


@pytest.fixture(scope="module")
def run(tmp_path_factory, base):
    folder = tmp_path_factory.mktemp("run") / "out"
    return go(folder, base, make_task(), seeds=list(SEEDS), num_train_epochs=8, **ON_DEVICE), folder


@pytest.fixture
def texts(tmp_path):
    make_task().test.select_columns(["text"]).to_json(tmp_path / "texts.jsonl")
    return str(tmp_path / "texts.jsonl")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same(found, expected, tolerance=1e-4):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one["prediction"] == other["prediction"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=tolerance)


def predict_on_both(tmp_path, models, data):
    """Return the predictions for a file on the CPU, and on the device."""
    outputs = (("cpu.jsonl", ON_CPU), ("device.jsonl", ON_DEVICE))
    return [read_lines(predict(models, data, tmp_path / name, **where)) for name, where in outputs]


def test_run_learns_and_records_the_device(run):
    record = json.loads((run[1] / "results.json").read_text())
    assert record["environment"] == environment() and ("accelerator" in record["environment"]) is (DEVICE.type == "cuda")
    assert max(seed["validation"]["macro_f1"] for seed in run[0].seeds) > 0.4  # Chance level is one third.


def test_predictions_equal_the_cpu_and_the_run(run, texts, tmp_path):
    on_cpu, on_device = predict_on_both(tmp_path, str(run[1] / "seed-0/model"), texts)
    assert_same(on_device, on_cpu)
    assert_same(on_device, read_lines(run[1] / "seed-0/predictions/test.jsonl"))


def test_averaged_predictions_equal_the_cpu(run, texts, tmp_path):
    on_cpu, on_device = predict_on_both(tmp_path, [str(run[1] / f"seed-{seed}/model") for seed in SEEDS], texts)
    assert_same(on_device, on_cpu)
    assert "averaged" in json.loads((run[1] / "results.json").read_text())


def test_checkpoint_logits_equal_the_cpu(run):
    found = [checkpoint_logits(str(run[1]), make_task(), max_length=32, device=device) for device in ("cpu", DEVICE)]
    for split, logits in found[0].items():
        assert found[1][split] == pytest.approx(logits, abs=1e-4)


def test_exported_model_predicts_as_on_the_device(run, texts, tmp_path):
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        pytest.skip("NO EXPORT TESTED: pip install 'hf-tlm[onnx]'")
    made = export_onnx(str(run[1]), tmp_path / "onnx", task=make_task(), max_drop=100)
    assert made.record["files"]["onnx/model.onnx"]["max_difference"] <= 1e-4
    exported = read_lines(predict(str(tmp_path / "onnx"), texts, tmp_path / "exported.jsonl", backend="onnx", **ON_CPU))
    on_device = read_lines(predict(str(run[1]), texts, tmp_path / "device.jsonl", **ON_DEVICE))
    assert_same(on_device, exported)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_interrupted_run_resumes_bit_for_bit(base, tmp_path, monkeypatch, bf16, deterministic):
    """With dropout."""
    from hf_tlm.runs.finetuning.models import FinetuneTrainer

    step = FinetuneTrainer.training_step

    def interrupt(self, *given, **named):
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return step(self, *given, **named)

    options = {
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_steps": 2,
        "eval_strategy": "steps",
        "bf16": bf16,
        **ON_DEVICE,
    }
    go(tmp_path / "whole", base, **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FinetuneTrainer, "training_step", interrupt)
        go(tmp_path / "cut", base, **options)
    go(tmp_path / "cut", base, **options)
    ends = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", ["tagging", "tagging crf", "question_answering", "multiple_choice"])
def test_other_kinds_predict_as_on_the_cpu(kind, base, tmp_path):
    kind, _, crf = kind.partition(" ")
    if crf and find_spec("torchcrf") is None:
        pytest.skip("NO CRF TESTED: pip install 'hf-tlm[crf]'")
    task = task_of(kind, rows_of(kind, 24), labels_of(kind), train=rows_of(kind, 64))
    options = {"num_train_epochs": 4, "seeds": [1], "learning_rate": 5e-3, **({"crf": True} if crf else {}), **ON_DEVICE}
    record = go(tmp_path / "out", base, task, **options).seeds[0]
    if kind == "tagging":
        assert record["validation"]["tag_accuracy"] > 0.5
    truth = {"tags", "label", "answers", "starts"} & set(task.validation.column_names)
    task.validation.remove_columns(sorted(truth)).to_json(tmp_path / "rows.jsonl")
    on_cpu, on_device = predict_on_both(tmp_path, str(tmp_path / "out"), str(tmp_path / "rows.jsonl"))
    assert [row["prediction"] for row in on_device] == [row["prediction"] for row in on_cpu]
    of_run = read_lines(tmp_path / "out/seed-1/predictions/validation.jsonl")
    assert [row["prediction"] for row in on_device] == [row["prediction"] for row in of_run]


def test_adapter_predicts_as_on_the_cpu(base, tmp_path, texts):
    go(tmp_path / "lora", base, make_task(), model={"use_peft": True, "lora_r": 4}, **ON_DEVICE)
    on_cpu, on_device = predict_on_both(tmp_path, str(tmp_path / "lora"), texts)
    assert_same(on_device, on_cpu)


def test_accumulation_gives_the_same_weights_for_tagging(tokenizer, tmp_path):
    """Texts differ in their numbers of tags."""
    task = task_of("tagging", rows_of("tagging", 12), labels_of("tagging"), train=rows_of("tagging", 32))
    base, ends = pretrained(tmp_path / "base", tokenizer, **NO_DROPOUT), []
    for size in (8, 1):
        folder = tmp_path / str(size)
        options = {"per_device_train_batch_size": size, "max_steps": 3, "adam_epsilon": 1e-4, **ON_DEVICE}
        go(folder, base, task, **options)
        ends.append(torch.cat([weight.flatten() for weight in load_file(folder / "model.safetensors").values()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-3)
