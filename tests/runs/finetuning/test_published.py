"""The published folder of a fine-tuned model, for every kind of task, with and without an adapter: card and
predictions."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import set_seed

from hf_tlm.runs import CheckpointArguments, FinetuneArguments, predict
from hf_tlm.runs.finetuning.models import load_model, load_pretrained
from hf_tlm.tasks import TaskSpec, task_from_datasets
from support.kind_toys import labels_of, rows_of, task_of
from support.tiny_checkpoints import FAST, files, go, pretrained
from support.toys import code_blocks, make_task

PEFT_TYPES = {"classification": "SEQ_CLS", "question_answering": "QUESTION_ANS", "tagging": "TOKEN_CLS"}
KINDS = ["classification", "question_answering", "multiple_choice", "tagging"]


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    return pretrained(tmp_path_factory.mktemp("base") / "bert", tokenizer)


def task_for(kind):
    if kind == "classification":
        return make_task(train=12, validation=6, test=5)
    return task_of(kind, rows_of(kind, 6), labels_of(kind), train=rows_of(kind, 12))


@pytest.mark.slow
@pytest.mark.parametrize("peft", [False, True], ids=["all", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_card_code_works_and_predictions_equal_those_of_the_run(kind, peft, base, tmp_path):
    task, out = task_for(kind), tmp_path / "out"
    model = {"use_peft": True, "lora_r": 2} if peft else {}
    record = go(out, base, task, model, max_steps=2).seeds[0]
    card = (out / "README.md").read_text()
    assert code_blocks(card, out) == 1 and ModelCard(card).data.library_name == ("peft" if peft else "transformers")
    assert "None" not in card.replace("[None]", "") and "{%" not in card
    task.validation.to_parquet(tmp_path / "rows.parquet")
    path = predict(str(out), str(tmp_path / "rows.parquet"), tmp_path / "found.jsonl", use_cpu=True)
    found = [json.loads(line)["prediction"] for line in path.read_text().splitlines()]
    lines = (out / "seed-0/predictions/validation.jsonl").read_text().splitlines()
    assert found == [json.loads(line)["prediction"] for line in lines]
    if not peft:
        return
    # Only an adapter and the head were trained, and all of their weights changed.
    assert json.loads((out / "adapter_config.json").read_text())["task_type"] == PEFT_TYPES.get(kind)
    weights = load_file(out / "adapter_model.safetensors")
    heads = ("classifier", "qa_outputs", "pooler")
    assert all("lora_" in name or any(head in name for head in heads) for name in weights)
    assert record["trained_parameters"] == sum(value.numel() for value in weights.values()) < record["parameters"]
    checkpoint, args = CheckpointArguments(model_name_or_path=str(base), **model), FinetuneArguments(**FAST)
    set_seed(0)
    before = load_model(task, checkpoint, load_pretrained(task, checkpoint, args.max_length)[0], args).state_dict()
    saved = {name.replace(".default", "").replace(".modules_to_save", ""): value for name, value in before.items()}
    # The bias of a head with one output adds the same number to every option or position.
    same = [name for name, value in weights.items() if value.equal(saved[name]) and not name.endswith("bias")]
    assert same == []


@pytest.mark.slow
def test_adapter_is_loaded_on_the_revision_it_was_trained_on(hub, tokenizer, tmp_path, monkeypatch):
    """With a learning rate of 0 the model equals the base at the tag v1; main has another base."""
    for revision, spread in (("v1", 0.2), ("main", 0.5)):
        hub.put("alice/base", files(pretrained(tmp_path / revision, tokenizer, initializer_range=spread)), revision=revision)
    task, out = task_for("classification"), tmp_path / "out"
    go(out, "alice/base@v1", task, {"use_peft": True, "lora_r": 2}, max_steps=1, learning_rate=0.0)
    hub.put("alice/adapter", {name: content for name, content in files(out).items() if "/" not in name})
    task.validation.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    # Not in a local folder alice/adapter, which would be loaded instead of the Hub's model the next time.
    path = predict("alice/adapter", "rows.parquet", use_cpu=True)
    assert path.resolve() == tmp_path / "predictions" / "rows.jsonl" and not (tmp_path / "alice").exists()
    runs = (out / "seed-0/predictions/validation.jsonl").read_text().splitlines()
    for line, other in zip(map(json.loads, path.read_text().splitlines()), map(json.loads, runs), strict=True):
        assert line["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    card = (out / "README.md").read_text()
    assert code_blocks(card, out) == 1 and '    revision="v1",\n' in card


def test_card_of_a_regression(base, tmp_path):
    rows = make_task(train=12, validation=6).splits
    spec = TaskSpec(name="toy", path="memory", kind="regression")
    numbers = {name: split.map(lambda row, i: {"score": i / 4}, with_indices=True) for name, split in rows.items()}
    numbers = {name: split.remove_columns("label").rename_column("score", "label") for name, split in numbers.items()}
    go(tmp_path / "out", base, task_from_datasets(spec, numbers), max_steps=1)
    card = (tmp_path / "out/README.md").read_text()
    assert code_blocks(card, tmp_path / "out") == 1 and "| | Pearson correlation | Spearman correlation |" in card


@pytest.mark.slow
def test_published_model_predicts(hub, base, tmp_path, monkeypatch):
    task, push = task_for("tagging"), {"push_to_hub": True, "hub_model_id": "alice/tagger"}
    task.validation.to_parquet(tmp_path / "rows.parquet")
    go(tmp_path / "out", base, task, max_steps=1, crf=True)
    local = predict(str(tmp_path / "out"), str(tmp_path / "rows.parquet"), use_cpu=True)
    run = go(tmp_path / "out", base, task, max_steps=1, crf=True, **push)
    files = hub.files("alice/tagger")
    assert {"model.safetensors", "crf.safetensors", "finetuned.json", "README.md"} <= set(files)
    assert run.push.commit and not [name for name in files if "predictions" in name or "seed" in name]
    monkeypatch.chdir(tmp_path)
    found = predict("alice/tagger", str(tmp_path / "rows.parquet"), use_cpu=True)
    assert found == Path("predictions/rows.jsonl") and found.read_bytes() == local.read_bytes()
    # An adapter whose base is on this machine could not be loaded elsewhere.
    with pytest.raises(ValueError, match="would need a base model on this machine"):
        go(tmp_path / "adapter", base, task_for("classification"), {"use_peft": True}, max_steps=1, **push)
