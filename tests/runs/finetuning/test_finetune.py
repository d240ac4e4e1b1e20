"""Fine-tuning of stock models: the files written, that all parameters learn, and exact repetition and resuming."""

import json
import logging
import shutil
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sklearn.metrics import f1_score
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    BertForSequenceClassification,
    pipeline,
    set_seed,
)

from hf_tlm.analysis.report import about
from hf_tlm.analysis.report.run_folder import read_run
from hf_tlm.data import load_tokenizer
from hf_tlm.models.adapters import load_merged
from hf_tlm.runs import CheckpointArguments, FinetuneArguments, linear_model
from hf_tlm.runs.finetuning import classification, draw_fraction
from hf_tlm.runs.finetuning.kinds import feature_lengths
from hf_tlm.runs.finetuning.models import FinetuneTrainer, load_model, load_pretrained
from hf_tlm.tasks import TaskSpec, task_from_datasets
from support.tiny_checkpoints import FAST, files, go, pretrained
from support.toys import TINY_CONFIGS, code_blocks, make_task, sentences


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    return pretrained(tmp_path_factory.mktemp("base") / "bert", tokenizer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base):
    """Two seeds, two epochs of 6 steps, with dropout."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, go(out, base, seeds=[3, 4], num_train_epochs=2)


def test_run_writes_results_predictions_and_the_best_model(whole):
    out, run = whole
    task, results = make_task(), json.loads((out / "results.json").read_text())
    assert results == json.loads(json.dumps(run.to_dict()))
    assert [record["seed"] for record in results["seeds"]] == [3, 4]
    for split in ("validation", "test"):
        values = [record[split]["macro_f1"] for record in results["seeds"]]
        assert results["summary"][split]["macro_f1"]["mean"] == pytest.approx(sum(values) / 2)
        lines = [json.loads(line) for line in (out / f"seed-4/predictions/{split}.jsonl").read_text().splitlines()]
        assert [line["id"] for line in lines] == task.splits[split]["id"][:]
        score = f1_score([line["label"] for line in lines], [line["prediction"] for line in lines], average="macro")
        assert score == pytest.approx(values[1])
        assert all(sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-4) for line in lines)
    record = results["seeds"][0]
    lengths = feature_lengths(Dataset.from_list([{"input_ids": [1, 2]}, {"input_ids": [1]}]))
    assert lengths.tolist() == [2, 1]
    assert record["cost"]["steps"] == 12 and record["cost"]["tokens"] == 12 * 8 * 32
    assert record["cost"]["flops"] == 6 * record["cost"]["tokens"] * record["parameters"]
    assert 12 * 8 * 5 < record["cost"]["real_tokens"] < record["cost"]["tokens"]
    assert [entry["step"] for entry in record["history"]] == [6, 12]
    assert record["validation"]["macro_f1"] == max(entry["macro_f1"] for entry in record["history"])
    assert "±" in run.to_text() and "accuracy" not in run.to_text()
    # The folder is the model of the seed best on validation; checkpoints are gone.
    best = run.best["seed"]
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (out / f"seed-{best}/model" / name).read_bytes()
    assert not list(out.rglob("checkpoint-*")) and not list(out.rglob("train_ids.json"))
    assert f"seed {best}" in (out / "README.md").read_text() and "mean ± std of 2 seeds" in (out / "README.md").read_text()


@pytest.mark.parametrize("figure,word,of", [("max", "maximum", max), ("median", "median", statistics.median)])
def test_seed_figure_is_in_record_text_card_and_report(whole, base, tmp_path, figure, word, of):
    """ALE reports the maximum of its runs and COCO-LM the median; the score is labelled accordingly everywhere."""
    shutil.copytree(whole[0], tmp_path / "out")
    run = go(tmp_path / "out", base, seeds=[3, 4], num_train_epochs=2, seed_figure=figure)
    results = json.loads((tmp_path / "out/results.json").read_text())
    score = results["summary"]["test"]["macro_f1"]
    value, mean = f"{100 * of(score['values']):.2f}", f"{100 * score['mean']:.2f}"
    assert results["seed_figure"] == figure and score[figure] == of(score["values"])
    assert f"macro_f1 {value}, the {word} of 2 seeds (mean {mean} ±" in run.to_text()
    card = (tmp_path / "out/README.md").read_text()
    assert f"\n| test, {word} of 2 seeds | {value} |" in card and f"\n| test, mean ± std of 2 seeds | {mean} ±" in card
    folder = read_run(tmp_path / "out")
    name, said, what = about.highlights(folder)[0]
    assert (name, said) == ("test Macro-F1", f"{value} %") and what.startswith(f"{word} of 2 seeds, mean {mean} ±")
    (table, *_) = about.scores(folder).blocks
    assert [column.title for column in table.columns] == ["metric", "split", "mean", "±", word, "seed 3", "seed 4"]
    assert [row[4].text for row in table.rows if row[1].text == "test"][0] == value


def test_pipeline_gives_the_saved_predictions(whole):
    out, run = whole
    classify = pipeline("text-classification", model=str(out), top_k=None, device="cpu")
    lines = [json.loads(line) for line in (out / f"seed-{run.best['seed']}/predictions/test.jsonl").read_text().splitlines()]
    for line, found in zip(lines, classify(make_task().test["text"][:]), strict=True):
        assert {entry["label"]: pytest.approx(entry["score"], abs=1e-5) for entry in found} == line["probabilities"]
        assert found[0]["label"] == line["prediction"]


def test_same_seed_gives_the_same_weights(whole, base, tmp_path):
    out, _ = whole
    go(tmp_path / "out", base, seeds=[3], num_train_epochs=2)
    same, other = (load_file(folder / "model/model.safetensors") for folder in (tmp_path / "out/seed-3", out / "seed-4"))
    for name, value in load_file(out / "seed-3/model/model.safetensors").items():
        assert torch.equal(value, same[name]), name
    assert not torch.equal(same["classifier.weight"], other["classifier.weight"])


def test_interrupted_run_resumes_bit_for_bit(whole, base, tmp_path, monkeypatch):
    out, run = whole
    shutil.copytree(out / "seed-3", tmp_path / "out" / "seed-3")
    shutil.copy(out / "settings.json", tmp_path / "out")
    steps, original = [], FinetuneTrainer.training_step

    def interrupt(self, *args, **kwargs):
        steps.append(self.state.global_step)
        if len(steps) == 9:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FinetuneTrainer, "training_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", base, seeds=[3, 4], num_train_epochs=2)
    assert [path.name for path in (tmp_path / "out").rglob("checkpoint-*")] == ["checkpoint-6"]
    again = go(tmp_path / "out", base, seeds=[3, 4], num_train_epochs=2)
    # The finished seed was not repeated; of the other only the second epoch was trained again.
    assert steps == [*range(9), *range(6, 12)]
    for name in ("history", "validation", "test"):
        assert again.seeds[1][name] == run.seeds[1][name]
    assert files(tmp_path / "out/seed-4/model").keys() == files(out / "seed-4/model").keys()
    assert (tmp_path / "out/model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert (tmp_path / "out/seed-4/model/model.safetensors").read_bytes() == (
        out / "seed-4/model/model.safetensors"
    ).read_bytes()
    # Only checkpoints remain to be removed, as after a kill between a seed's record and the removal of its checkpoints.
    (tmp_path / "out/seed-4/checkpoint-12").mkdir()
    go(tmp_path / "out", base, seeds=[3, 4], num_train_epochs=2)
    assert len(steps) == 15 and not list((tmp_path / "out").rglob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["bert", "xlnet", "electra", "albert", "modernbert", "cocolm", "roberta"])
def test_every_parameter_is_trained(model_type, tokenizer, tmp_path):
    """For checkpoints without a head for the task, and for ELECTRA's discriminator."""
    auto = {"auto_class": AutoModelForPreTraining} if model_type == "electra" else {}
    folder = pretrained(tmp_path / "base", tokenizer, model_type, **auto)
    task, out = make_task(train=16, validation=6, test=6), tmp_path / "out"
    run = go(out, folder, task, select_by="last", eval_strategy="no", max_steps=3)
    checkpoint, args = CheckpointArguments(model_name_or_path=str(folder)), FinetuneArguments(**FAST)
    config, _ = load_pretrained(task, checkpoint, args.max_length)
    set_seed(0)
    before = load_model(task, checkpoint, config, args).state_dict()
    after = load_file(out / "model.safetensors")
    unused = {"transformer.mask_emb"}  # XLNet uses it only in pretraining.
    still = {name for name, value in after.items() if torch.equal(value, before[name])}
    assert still <= unused and run.seeds[0]["model_type"] == model_type
    classify = pipeline("text-classification", model=str(out), device="cpu", trust_remote_code=model_type == "cocolm")
    assert classify(task.test["text"][0])[0]["label"] in ("down", "none", "up")


def regression_task(labels=None):
    rows = sentences(40)
    values = labels or [len(row["text"].split()) / 10 for row in rows]
    data = Dataset.from_list(
        [{"text": row["text"], "text_pair": "the cell", "label": value} for row, value in zip(rows, values, strict=True)]
    )
    spec = TaskSpec(name="toy", path="memory", kind="regression", text_columns=("text", "text_pair"))
    return task_from_datasets(spec, {"train": data, "validation": data.select(range(12)), "test": data.select(range(6))})


def test_regression_of_pairs(base, tmp_path):
    run = go(tmp_path / "out", base, regression_task(), num_train_epochs=4)
    record = run.seeds[0]
    assert set(record["test"]) == {"pearson", "spearman"} and record["validation"]["pearson"] > 0.5
    lines = [json.loads(line) for line in (tmp_path / "out/seed-0/predictions/test.jsonl").read_text().splitlines()]
    texts = [{"text": row["text"], "text_pair": row["text_pair"]} for row in regression_task().test]
    found = pipeline("text-classification", model=str(tmp_path / "out"), device="cpu")(texts)
    assert [answer["score"] for answer in found] == pytest.approx([line["prediction"] for line in lines], abs=1e-4)
    assert "spearman" in run.to_text()
    card = (tmp_path / "out/README.md").read_text()
    assert code_blocks(card, tmp_path / "out") == 1 and '"text_pair": ' in card
    with pytest.raises(ValueError, match="label_smoothing_factor 0.1 has no effect on a regression task"):
        go(tmp_path / "other", base, regression_task(), label_smoothing_factor=0.1)


def test_constant_predictions_score_zero(base, tmp_path):
    """The head is zero and does not learn, so correlations are undefined."""
    run = go(tmp_path / "out", base, regression_task([0.5] * 40), learning_rate=0.0, max_steps=1)
    assert run.seeds[0]["validation"]["pearson"] == 0.0
    run = go(tmp_path / "other", base, make_task(metric="matthews", train=12), learning_rate=0.0, max_steps=1)
    assert run.seeds[0]["validation"]["matthews"] == 0.0
    name = run.details["one_class"]["0"]
    assert f"one class    the model of seed 0 predicts {name} for every validation text: it does" in run.to_text()


@pytest.mark.slow
def test_select_by_last_needs_no_evaluation(whole, base, tmp_path):
    run = go(tmp_path / "out", base, num_train_epochs=2, select_by="last", eval_strategy="no", save_strategy="no")
    assert run.seeds[0]["history"] == []
    every = go(tmp_path / "every", base, max_steps=12, eval_strategy="steps", eval_steps=0.25)
    assert [entry["step"] for entry in every.seeds[0]["history"]] == [3, 6, 9, 12]


def test_train_fractions_are_stratified_nested_and_seeded():
    labels = [0] * 50 + [1] * 30 + [2] * 3
    rows = Dataset.from_dict({"label": labels})
    tenth, fifth = (draw_fraction(rows, share, 5, "classification") for share in (0.1, 0.2))
    assert np.bincount(np.array(labels)[tenth]).tolist() == [5, 3, 1]
    assert set(tenth) < set(fifth) and list(tenth) == sorted(tenth)
    assert list(tenth) == list(draw_fraction(rows, 0.1, 5, "classification"))
    assert list(tenth) != list(draw_fraction(rows, 0.1, 6, "classification"))
    assert [len(draw_fraction(rows, share, 0, "tagging")) for share in (1.0, 0.5, 0.001)] == [83, 42, 1]
    numbers = Dataset.from_dict({"label": [float(i) for i in np.random.default_rng(0).permutation(100)]})
    drawn = np.array(numbers["label"])[draw_fraction(numbers, 0.2, 0, "regression")]
    assert np.bincount((drawn // 10).astype(int)).tolist() == [2] * 10


def test_train_fraction_is_recorded(base, tmp_path):
    run = go(tmp_path / "out", base, train_fraction=0.25, max_steps=1)
    ids = json.loads((tmp_path / "out/seed-0/train_ids.json").read_text())
    train = make_task().train
    assert ids == train.select(draw_fraction(train, 0.25, 0, "classification"))["id"][:]
    assert run.seeds[0]["train_examples"] == len(ids) == 12
    card = (tmp_path / "out/README.md").read_text()
    assert "12 training examples (25% of the training split" in card
    # The linear baseline learned from the same texts.
    same = replace(make_task(), splits={**make_task().splits, "train": train.filter(lambda row: row["id"] in ids)})
    linear = 100 * linear_model(same).scores["test"]["macro_f1"]
    assert f"linear {linear:.2f} (macro_f1 on test)" in run.to_text() and f"linear model on TF-IDF | {linear:.2f} |" in card


def test_linear_baseline_is_in_text_and_card(base, tmp_path):
    run = go(tmp_path / "out", base, max_steps=1)
    results = json.loads((tmp_path / "out/results.json").read_text())
    linear = 100 * results["baselines"][1]["scores"]["test"]["macro_f1"]
    assert f"linear {linear:.2f} (macro_f1 on test)" in run.to_text()
    assert f"| test, linear model on TF-IDF | {linear:.2f} |" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    "positions, max_length, advice",
    [
        (64, 32, None),
        (64, 6, "Pass a larger --max_length: the model reads up to 64 tokens."),
        (6, 6, "The model reads no longer texts; one with more positions would."),
    ],
)
def test_truncated_texts_are_warned_about(tokenizer, tmp_path, caplog, positions, max_length, advice):
    base = pretrained(tmp_path / "base", tokenizer, max_position_embeddings=positions)
    go(tmp_path / "out", base, max_steps=1, max_length=max_length)
    warning = f"of the tokens of the task's training texts are cut off, as each text is truncated to 6 tokens. {advice}"
    assert (warning in caplog.text) == (advice is not None)


def test_new_head_is_not_reported_by_transformers(base, tmp_path, monkeypatch, caplog):
    """transformers listed a checkpoint's other weights as a problem, once for every seed."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    go(tmp_path / "out", base, max_steps=1)
    assert "LOAD REPORT" not in caplog.text
    BertForSequenceClassification.from_pretrained(base)
    assert "LOAD REPORT" in caplog.text


def test_adapter_is_priced_beside_its_base_model_and_without_warnings(base, tmp_path, recwarn):
    """Every seed's training warned of an attribute that peft reads and transformers has renamed."""
    run = go(tmp_path / "out", base, model={"use_peft": True}, max_steps=1)
    assert " MB, beside the base model\n" in run.to_text()
    assert " MB, beside the base model." in (tmp_path / "out/README.md").read_text()
    assert dict(about._model_facts(read_run(tmp_path / "out")))["Cost of a prediction"].endswith("beside the base model")
    load_merged(tmp_path / "out", "AutoModelForSequenceClassification")
    assert not [warning for warning in recwarn if "gradient_checkpointing" in str(warning.message)]


def test_micro_batch_size_does_not_change_the_run(tokenizer, tmp_path):
    folder = pretrained(tmp_path / "base", tokenizer, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    one = go(tmp_path / "one", folder, max_steps=4)
    four = go(tmp_path / "four", folder, max_steps=4, per_device_train_batch_size=3)
    assert four.details["arguments"]["texts_per_step"] == 8
    losses = [run.seeds[0]["history"][-1]["loss"] for run in (one, four)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_warmup_beyond_the_run_is_warned_about(base, tmp_path, caplog):
    go(tmp_path / "out", base, warmup_steps=6)
    assert "warmup_steps 6 is not less than the 6 steps of this run" in caplog.text


def test_nonfinite_loss_ends_the_run(base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    weights["embeddings.LayerNorm.weight"][:] = float("nan")
    save_file(weights, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="The loss of step 1 is not finite"):
        go(tmp_path / "out", tmp_path / "base")


def test_checkpoint_with_missing_weights_is_refused(base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1" not in k}, tmp_path / "base/model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ValueError, match=r"lacks weights of its body \(bert.encoder.layer.1"):
        go(tmp_path / "out", tmp_path / "base")


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"train_fraction": 0.0}, "train_fraction: expected"),
        ({"eval_strategy": "no"}, "select_by best needs validation scores"),
        ({"save_strategy": "steps", "save_steps": 7}, "select_by best saves a checkpoint at every evaluation"),
        ({"save_strategy": "no"}, "remove save_strategy no and save_steps 500; or pass --select_by last"),
        ({"select_by": "worst"}, "select_by: expected one of best, last; received 'worst'"),
        ({"metric_for_best_model": "loss"}, "chosen by the task's metric"),
        ({"seeds": [1, 1]}, "contains a seed twice"),
        ({"total_batch_size": 0}, "total_batch_size: expected"),
        ({"max_steps": 0}, "max_steps: expected 1 or more, or -1"),
        ({"gradient_accumulation_steps": 2}, "is determined by total_batch_size"),
        ({"train_sampling_strategy": "sequential"}, "must be group_by_length or random"),
        ({"max_length": 2}, "max_length: expected"),
        ({"max_length": 41}, "more than the 40 positions"),
        ({"crf": True}, "crf True has no effect on a classification task"),
        ({"doc_stride": 4}, "doc_stride 4 has no effect"),
        ({"layerwise_lr_decay": 1.5}, r"layerwise_lr_decay: expected"),
    ],
)
def test_invalid_arguments_are_refused(base, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        go(tmp_path / "out", base, **changes)
    assert not (tmp_path / "out" / "seed-0").exists()


@pytest.mark.parametrize("model", [{}, {"use_peft": True}])
def test_gradient_checkpointing_of_a_body_without_it_is_refused(tokenizer, tmp_path, model):
    """transformers' own error named a class, at the first step."""
    albert = pretrained(tmp_path / "base", tokenizer, "albert")
    with pytest.raises(ValueError, match="gradient_checkpointing: .*cannot recompute layers of the type albert. Rem"):
        go(tmp_path / "out", albert, model=model, gradient_checkpointing=True, max_steps=1)
    assert not (tmp_path / "out").exists()


def test_missing_checkpoint_and_too_small_vocabulary_are_refused(base, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="Cannot load a config from .*nothing': There is no local path of this name, and a"):
        go(tmp_path / "out", tmp_path / "nothing")
    small = pretrained(tmp_path / "small", tokenizer, vocab_size=60)
    with pytest.raises(ValueError, match=r"has 120 tokens, and the vocabulary of .* has 60"):
        go(tmp_path / "out", small)


def test_half_precision_checkpoint_is_trained_in_float32(base, tmp_path):
    AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float16).save_pretrained(tmp_path)
    load_tokenizer(str(base)).save_pretrained(tmp_path)
    task, args, checkpoint = make_task(), FinetuneArguments(**FAST), CheckpointArguments(model_name_or_path=str(tmp_path))
    model = load_model(task, checkpoint, load_pretrained(task, checkpoint, args.max_length)[0], args)
    assert {value.dtype for value in model.parameters()} == {torch.float32}


def test_data_seed_sets_the_order_of_examples(base, tmp_path):
    task, tokenizer = make_task(train=24), load_tokenizer(str(base))
    batches = []
    for seeds in ({}, {"data_seed": 0}, {"data_seed": 1}):
        args = FinetuneArguments(**FAST, **seeds, select_by="last", eval_strategy="no")
        features = classification.encode(task.train, tokenizer, args)
        run = args.for_seed(tmp_path, 0, "macro_f1", ["labels"])
        model = BertForSequenceClassification(BertConfig(**TINY_CONFIGS["bert"]))
        trainer = FinetuneTrainer(model, run, data_collator=len, processing_class=tokenizer, train_dataset=features)
        batches.append(list(trainer.batch_sampler))
    assert batches[0] == batches[1] != batches[2]


def test_layerwise_learning_rate_decay(base, tmp_path):
    task, args = make_task(train=12), FinetuneArguments(**FAST, layerwise_lr_decay=0.5, select_by="last", eval_strategy="no")
    checkpoint = CheckpointArguments(model_name_or_path=str(base))
    config, tokenizer = load_pretrained(task, checkpoint, args.max_length)
    model = load_model(task, checkpoint, config, args)
    run = args.for_seed(tmp_path, 0, "macro_f1", ["labels"])
    trainer = FinetuneTrainer(model, run, data_collator=len, processing_class=tokenizer)
    groups = trainer.create_optimizer().param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(model.classifier.weight)] == pytest.approx(1e-2)
    assert rates[id(model.bert.embeddings.word_embeddings.weight)] == pytest.approx(1e-2 / 8)
