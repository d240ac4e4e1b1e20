"""The few-shot protocol on toy data: training, selection, testing and the files written; resuming; and errors."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_tlm.models import ModelError
from hf_tlm.runs import CheckpointArguments, FewShotArguments, PointsError, PromptClassifier, run_few_shot
from hf_tlm.runs.few_shot import PromptError, draw_episode, few_shot, prompt_for
from hf_tlm.runs.few_shot.classifier import load_masked_lm
from hf_tlm.runs.few_shot.points import Prompted, PromptTrainer
from hf_tlm.runs.sharing import try_lock
from hf_tlm.tasks import TaskError, TaskSpec, task_from_datasets
from hf_tlm.training import ArgumentsError
from hf_tlm.training.run_folder import ProtocolError
from support.prompts import FAST, LABEL_WORDS, NO_DROPOUT, TEMPLATE, byte_level, go, masked_lm, save, wordpiece
from support.toys import code_blocks, make_task


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save(tmp_path_factory.mktemp("masked-lm"), wordpiece(), max_position_embeddings=80)


@pytest.fixture(scope="module")
def whole(checkpoint, tmp_path_factory):
    """A run with demonstrations, and its folder."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return go(out, make_task(), checkpoint, max_length=64, demonstrations=True, demonstration_sets=2), out


def splits_without_price(run):
    """Return the run's splits without the measured cost of a prediction."""
    return [{name: value for name, value in split.items() if name != "price"} for split in run.splits]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_points_are_chosen_on_validation_and_tested_once(whole, task):
    run, out = whole
    assert read(out / "results.json") == json.loads(json.dumps(run.to_dict()))
    assert run.splits[0]["price"]["milliseconds"]["32"] > 0 and "A prediction costs " in run.to_text()
    majority, linear = (100 * one["scores"]["test"]["macro_f1"] for one in run.details["baselines"])
    to_beat = (
        f"To beat, with the same number of examples: majority class {majority:.2f}, linear {linear:.2f} (macro_f1 on test)"
    )
    assert to_beat in (out / "results.md").read_text() and run.details["baselines"][1]["settings"] == {"draws": 2}
    assert [record["seed"] for record in run.splits] == [13, 21]
    for record in run.splits:
        folder = out / f"split-{record['seed']}"
        assert [(p["learning_rate"], p["batch_size"]) for p in record["points"]] == [(3e-2, 4), (1e-3, 4)]
        best = max(record["points"], key=lambda point: point["validation"]["macro_f1"])
        assert {name: record[name] for name in best} == best and best["best_step"] in (2, 4)
        drawn = read(folder / "examples.json")
        assert len(drawn["train"]) == len(drawn["validation"]) == 12 and set(drawn["train"]) <= set(task.train["id"])
        # The saved predictions give the reported score, and the saved model the predictions.
        lines = [json.loads(line) for line in (folder / "predictions/test.jsonl").read_text().splitlines()]
        assert [line["id"] for line in lines] == task.test["id"][:]
        assert record["test"]["accuracy"] == np.mean([line["prediction"] == line["label"] for line in lines])
        model = PromptClassifier.from_pretrained(str(folder / "model"))
        for ours, line in zip(model.predict(task.test.remove_columns("label"), batch_size=5), lines, strict=True):
            assert ours["prediction"] == line["prediction"]
            assert ours["probabilities"] == pytest.approx(line["probabilities"], abs=2e-6)
        card = (folder / "model" / "README.md").read_text(encoding="utf-8")
        assert f"seed {record['seed']};" in card and code_blocks(card, folder / "model") == 1
        # Files of the other points are removed.
        assert {path.name for path in folder.glob("lr*/*")} == {"results.json", "seal.json"} and not list(
            out.rglob("checkpoint-*")
        )
        _, info = AutoModelForMaskedLM.from_pretrained(folder / "model", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
    values = [record["test"]["macro_f1"] for record in run.splits]
    assert run.summary["test"]["macro_f1"]["mean"] == pytest.approx(np.mean(values))
    assert run.summary["test"]["macro_f1"]["std"] == pytest.approx(np.std(values, ddof=1))
    assert (out / "results.md").read_text() == run.to_text() + "\n" and "mean ± std" in run.to_text()


@pytest.mark.slow
def test_finished_run_is_not_repeated_and_more_splits_extend_it(whole, task, checkpoint, tmp_path, monkeypatch):
    run, out = whole
    copy, trained = tmp_path / "out", []
    shutil.copytree(out, copy)
    train = Prompted.train
    monkeypatch.setattr(Prompted, "train", lambda self, point, *rest: trained.append(point) or train(self, point, *rest))
    options = {"max_length": 64, "demonstrations": True, "demonstration_sets": 2}
    leftover = next(copy.glob("split-13/lr*")) / "model"
    leftover.mkdir()  # As after a kill at the end of testing.
    assert go(copy, task, checkpoint, **options).splits == run.splits and not trained and not leftover.exists()
    longer = go(copy, task, checkpoint, splits=3, **options)
    assert longer.splits[:2] == run.splits and [point.split for point in trained] == [42, 42]
    with pytest.raises(ProtocolError, match="other settings .*max_steps"):
        go(copy, task, checkpoint, **options, max_steps=6)


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_result(whole, task, checkpoint, tmp_path, monkeypatch):
    """Stopped in the second training after a checkpoint, and again before the first test."""
    run, _ = whole
    options = {"max_length": 64, "demonstrations": True, "demonstration_sets": 2, "splits": 1}
    step, steps = PromptTrainer.training_step, []

    def stopping(self, *args, **kwargs):
        steps.append(self.args.output_dir)
        if len(steps) == 7:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(PromptTrainer, "training_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", task, checkpoint, **options)
    assert len(list((tmp_path / "out").glob("split-*/lr*/results.json"))) == 1
    monkeypatch.setattr(Prompted, "logits", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", task, checkpoint, **options)
    # 4 steps; 2 and an interrupted one; and 2 from the checkpoint of step 2.
    assert len(steps) == 4 + 3 + 2
    monkeypatch.undo()
    assert splits_without_price(go(tmp_path / "out", task, checkpoint, **options)) == splits_without_price(run)[:1]


def test_split_finished_by_another_process_is_not_repeated(whole, task, checkpoint, tmp_path, monkeypatch, caplog):
    """The other process holds the points of one split, tests it and removes the models before this one looks at them."""
    (run, finished), out, trained = whole, tmp_path / "out", []
    out.mkdir()
    shutil.copy(finished / "settings.json", out)
    finish = few_shot.finish
    with contextlib.ExitStack() as other:
        for point in finished.glob("split-13/lr*"):
            other.enter_context(try_lock(out / point.relative_to(finished)))

        def finish_after(folder, *rest):
            finish(folder, *rest)
            trained.append(folder)
            if len(trained) == 2:
                shutil.copytree(finished / "split-13", out / "split-13", dirs_exist_ok=True)
                other.close()

        monkeypatch.setattr(few_shot, "finish", finish_after)
        again = go(out, task, checkpoint, max_length=64, demonstrations=True, demonstration_sets=2)
    assert (
        splits_without_price(again) == splits_without_price(run) and len(trained) == 3 and "created again" not in caplog.text
    )
    assert {folder.relative_to(out).parts[0] for folder in trained} == {"split-21"}


@pytest.mark.slow
def test_run_stopped_before_testing_in_the_old_layout_resumes(task, checkpoint, tmp_path, monkeypatch):
    """Before seals existed: the chosen model is in the split's folder, which has no record yet."""
    run = go(tmp_path / "out", task, checkpoint, splits=1)
    for name in ("results.json", "seal.json", "lr*/seal.json"):
        for path in (tmp_path / "out/split-13").glob(name):
            path.unlink()
    assert splits_without_price(go(tmp_path / "out", task, checkpoint, splits=1)) == splits_without_price(run)


def test_folder_is_removed_when_all_trainings_fail(task, checkpoint, tmp_path, monkeypatch):
    train, failing = Prompted.train, [0]

    def failing_train(self, point, *rest):
        if failing[0] < 4:
            failing[0] += 1
            raise TaskError("no such text")
        return train(self, point, *rest)

    monkeypatch.setattr(Prompted, "train", failing_train)
    with pytest.raises(PointsError, match="4 of 4 runs failed"):
        go(tmp_path / "out", task, checkpoint)
    assert not (tmp_path / "out").exists()
    failing[0] = 1
    with pytest.raises(PointsError, match="3 of 4 runs failed"):
        go(tmp_path / "out", task, checkpoint, max_steps=2)
    assert (tmp_path / "out/settings.json").is_file()


def test_gradient_accumulation_gives_the_same_result(task, checkpoint, tmp_path):
    one = go(tmp_path / "one", task, checkpoint, splits=1, learning_rates=[1e-3])
    parts = go(tmp_path / "parts", task, checkpoint, splits=1, learning_rates=[1e-3], per_device_train_batch_size=2)
    assert splits_without_price(parts) == splits_without_price(one)
    models = [load_masked_lm(str(tmp_path / name / "split-13/model")).state_dict() for name in ("one", "parts")]
    start = load_masked_lm(checkpoint).state_dict()
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=1e-3, atol=1e-5)
        assert not torch.equal(value, start[name]), f"{name} did not learn"


def test_zero_shot_equals_the_untrained_checkpoint(task, checkpoint, tmp_path):
    run = go(tmp_path / "out", task, checkpoint, method="zero_shot")
    model = Prompted(task, CheckpointArguments(model_name_or_path=checkpoint), *_prompt_settings(tmp_path)).classifier(None)
    right = [
        row["prediction"] == task.id2label[label]
        for row, label in zip(model.predict(task.test), task.test["label"], strict=True)
    ]
    assert len(run.splits) == 1 and run.splits[0]["test"]["accuracy"] == np.mean(right)
    assert "mean" not in run.to_text() and "validation" not in run.summary and "split:" not in run.to_text()
    shown = go(tmp_path / "shown", task, checkpoint, method="zero_shot", demonstrations=True, max_length=64)
    assert [record["seed"] for record in shown.splits] == [13, 21]


def _prompt_settings(tmp_path):
    args = FewShotArguments(output_dir=str(tmp_path / "x"), method="zero_shot", max_length=32, use_cpu=True)
    return args, wordpiece(), prompt_for("toy", ["down", "none", "up"], TEMPLATE, LABEL_WORDS)


def test_finetuning_does_not_warn_about_pinned_memory(task, checkpoint, tmp_path, recwarn):
    """torch warned for each split, between the scores."""
    steps = {"splits": 1, "learning_rates": [1e-3], "max_steps": 1, "eval_steps": 1}
    go(tmp_path / "out", task, checkpoint, method="finetune", use_cpu=False, **steps)
    assert not [one for one in recwarn if "pin_memory" in str(one.message)]


@pytest.mark.slow
def test_finetuning_learns_from_the_same_examples(task, checkpoint, tmp_path):
    run = go(tmp_path / "out", task, checkpoint, method="finetune", splits=1, learning_rates=[1e-3], weight_decay=0.02)
    prompted = go(tmp_path / "prompt", task, checkpoint, splits=1, learning_rates=[1e-3])
    for record, other in zip(run.splits, prompted.splits, strict=True):
        folder = tmp_path / "out" / f"split-{record['seed']}"
        assert read(folder / "examples.json") == read(tmp_path / f"prompt/split-{other['seed']}/examples.json")
        assert set(record["test"]) == {"macro_f1", "accuracy"}
        lines = [json.loads(line) for line in (folder / "predictions/test.jsonl").read_text().splitlines()]
        assert [line["id"] for line in lines] == task.test["id"][:]
        assert record["test"]["accuracy"] == np.mean([line["prediction"] == line["label"] for line in lines])
        assert AutoModelForSequenceClassification.from_pretrained(folder / "model").config.num_labels == 3
        settings = read(folder / "model/settings.json")["arguments"]
        assert (settings["max_steps"], settings["eval_steps"], settings["weight_decay"]) == (4, 2, 0.02)
        assert settings["warmup_steps"] == 0 and settings["max_length"] == 32


def test_saved_adapter_gives_the_scored_predictions(task, checkpoint, tmp_path):
    """With `use_peft`, loading the saved model as its card describes."""
    values = {**FAST, "method": "finetune", "splits": 1, "learning_rates": [1e-2], "output_dir": str(tmp_path / "out")}
    start = CheckpointArguments(model_name_or_path=checkpoint, use_peft=True, lora_r=2)
    run = run_few_shot(task, start, FewShotArguments(**values))
    assert " MB, beside the base model." in run.to_text()
    (record,) = run.splits
    folder = tmp_path / "out" / f"split-{record['seed']}"
    lines = [json.loads(line) for line in (folder / "predictions/test.jsonl").read_text().splitlines()]
    assert record["test"]["accuracy"] == np.mean([line["prediction"] == line["label"] for line in lines])
    base = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, config=AutoConfig.from_pretrained(folder / "model"), ignore_mismatched_sizes=True
    )
    model = PeftModel.from_pretrained(base, folder / "model").eval()
    inputs = AutoTokenizer.from_pretrained(folder / "model")(task.test["text"][:], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits
    found = [task.label_names[index] for index in logits.argmax(dim=1).tolist()]
    assert found == [line["prediction"] for line in lines]


def test_half_precision_checkpoint_is_trained_in_float32(checkpoint, tmp_path):
    AutoModelForMaskedLM.from_pretrained(checkpoint, dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert load_masked_lm(str(tmp_path)).dtype == torch.float32


def test_similarity_model_chooses_demonstrations(task, checkpoint, tmp_path):
    rows = draw_episode(task, 4, 13).train
    prompt = prompt_for("toy", task.label_names, TEMPLATE, LABEL_WORDS)
    settings = {"max_length": 64, "seed": 13, "examples": rows, "sets": 2}
    model = PromptClassifier(load_masked_lm(checkpoint), wordpiece(), prompt, **settings, similarity_model=checkpoint)
    assert set(task.test["id"][:]).isdisjoint(rows["id"])
    model.save(tmp_path / "model")
    again = PromptClassifier.from_pretrained(str(tmp_path / "model"))
    assert again.to_dict() == model.to_dict() and again.predict(task.test) == model.predict(task.test)
    inputs, training = model.inputs(task.test), model.training_inputs(rows, 8)
    assert inputs.similarities.shape == (24, 12) and np.abs(inputs.similarities).max() <= 1 + 1e-5
    assert np.diag(training.similarities) == pytest.approx(np.ones(12), abs=1e-5)
    model.similarity_model = None
    assert [inputs[i]["input_ids"] for i in range(48)] != [model.inputs(task.test)[i]["input_ids"] for i in range(48)]


def test_pairs_with_a_byte_level_tokenizer_are_learned(tmp_path):
    rows = [
        {"text": f"It was {'good' if i % 2 else 'bad'}.", "text_pair": "It was good.", "label": i % 2} for i in range(40)
    ]
    spec = TaskSpec(name="rte", path="memory", text_columns=("text", "text_pair"), metric="accuracy")
    task = task_from_datasets(spec, {name: Dataset.from_list(rows) for name in ("train", "validation")})
    tokenizer, folder = byte_level(), tmp_path / "model"
    model = masked_lm("roberta", tokenizer, **NO_DROPOUT, initializer_range=0.2)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    grid = {"splits": 1, "learning_rates": [1e-2], "batch_sizes": [8], "max_steps": 20, "eval_steps": 20}
    args = FewShotArguments(output_dir=str(tmp_path / "out"), **{**FAST, **grid})
    run = run_few_shot(task, CheckpointArguments(model_name_or_path=str(folder)), args)
    assert run.details["prompt"]["label_words"] == {"0": "Yes", "1": "No"} and run.details["scored_split"] == "validation"
    assert "Test scores are on the task's validation split" in run.to_text()
    assert run.summary["test"]["accuracy"]["mean"] == 1.0, "a word of the first text tells"


@pytest.mark.parametrize(
    "changes,error,message",
    [
        ({"k": 0}, ArgumentsError, "k: expected"),
        ({"k": 9}, TaskError, "16 training examples of class"),
        ({"splits": 6}, ArgumentsError, "Pass more --split_seeds"),
        (
            {"split_seeds": [1, 1], "splits": 1},
            ArgumentsError,
            "split_seeds must contain at least one value, and each only once",
        ),
        ({"learning_rate": 1e-3}, ArgumentsError, "learning_rate 0.001 has no effect: it is determined by learning_rates"),
        ({"seed": 3}, ArgumentsError, "determined by split_seeds"),
        ({"learning_rates": [0.0]}, ArgumentsError, "learning_rates: expected"),
        ({"eval_steps": 9}, ArgumentsError, "at most max_steps 4"),
        ({"demonstration_sets": 3}, ArgumentsError, "without demonstrations. Remove it"),
        ({"method": "finetune", "demonstrations": True}, ArgumentsError, "method finetune has no prompt"),
        ({"method": "finetune", "truncation": "tail"}, ArgumentsError, "truncation tail has no effect: method finetune"),
        ({"method": "finetune", "first_text_limit": 9}, ArgumentsError, "method finetune has no prompt"),
        ({"method": "finetune", "other_text_limit": 9}, ArgumentsError, "method finetune has no prompt"),
        ({"method": "zero_shot", "max_steps": 3}, ArgumentsError, "method zero_shot does not train"),
        ({"push_to_hub": True}, ArgumentsError, "hf-tlm publish"),
        ({"optim": "lamb"}, ArgumentsError, "optim lamb is for large batches"),
        ({"optim": "muon"}, ArgumentsError, "optim muon is for large batches and training from scratch"),
        ({"fsdp": "full_shard"}, ArgumentsError, "FSDP is not supported"),
        ({"max_length": 81}, ModelError, "more than the 80 positions"),
        ({"max_length": 6}, PromptError, "Raise --max_length"),
        ({"template": None}, PromptError, "no built-in prompt"),
        (
            {"label_words": ["down=goodly", "none=fine", "up=good"]},
            PromptError,
            "'goodly' of class 'down' must be one piece.* Pass --label_words with down=word, and one for every other class",
        ),
    ],
)
def test_invalid_options_are_refused_before_the_folder_is_created(task, checkpoint, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        go(tmp_path / "out", task, checkpoint, **changes)
    assert not (tmp_path / "out").exists()


def test_other_kinds_of_tasks_and_adapters_are_refused(checkpoint, tmp_path, task):
    args = FewShotArguments(output_dir=str(tmp_path / "out"), template=TEMPLATE, label_words=LABEL_WORDS, **FAST)
    model = CheckpointArguments(model_name_or_path=checkpoint)
    task.spec.__dict__["kind"] = "regression"
    with pytest.raises(TaskError, match="toy is a regression task"):
        run_few_shot(task, model, args)
    task.spec.__dict__["kind"] = "classification"
    model.use_peft = True
    with pytest.raises(ArgumentsError, match="use_peft is only for --method finetune"):
        run_few_shot(task, model, args)


def test_folder_without_a_prompt_is_refused(checkpoint):
    with pytest.raises(PromptError, match="has no prompt.json"):
        PromptClassifier.from_pretrained(checkpoint)
