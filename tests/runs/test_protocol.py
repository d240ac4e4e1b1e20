"""The complete protocol on toy data: the files written, that stock classes load them, resuming, and errors."""

import dataclasses
import json
import logging
import shutil
import subprocess
import sys

import pytest
import torch
from sklearn.metrics import f1_score
from transformers import TrainerCallback, pipeline

from hf_tlm.analysis.report.run_folder import read_run, recorded_task
from hf_tlm.data import TokenizerError
from hf_tlm.hub.push import published
from hf_tlm.models import ModelError
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import ProtocolError, format_score, run_tlm
from hf_tlm.tasks import Task, load_task
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, prepare
from support.toys import FAST, TINY_CONFIGS, make_task, write_files


def config(model_type):
    own = ("vocab_size", "num_labels")
    return {"model_type": model_type, **{k: v for k, v in TINY_CONFIGS[model_type].items() if k not in own}}


CONFIG = config("bert")


def go(folder, task, subset, model=None, **changes):
    args = TlmArguments(output_dir=str(folder), **{**FAST, **changes})
    return run_tlm(task, subset, args, ModelArguments(**{"model_config": CONFIG, "vocab_size": 120, **(model or {})}))


@pytest.fixture
def subset(task, corpus):
    return retrieve(task, corpus, top_k=5)


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_complete_run_is_recorded(tmp_path, task, subset):
    out = tmp_path / "out"
    run = go(out, task, subset, seeds=[3, 4])
    results = json.loads((out / "results.json").read_text())
    assert results == json.loads(json.dumps(run.to_dict()))
    assert [record["seed"] for record in results["seeds"]] == [3, 4]
    for split in ("validation", "test"):
        values = [record[split]["macro_f1"] for record in results["seeds"]]
        assert results["summary"][split]["macro_f1"]["values"] == values
        assert results["summary"][split]["macro_f1"]["mean"] == pytest.approx(sum(values) / 2)
        assert results["summary"][split]["macro_f1"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    record = results["seeds"][0]
    assert record["cost"]["steps"] == 10
    assert record["cost"]["tokens"] == 10 * 8 * 32
    assert record["cost"]["flops"] == 6 * record["cost"]["tokens"] * record["parameters"]
    assert results["subset"]["counts"]["union"] == len(subset.dataset)
    assert "±" in run.to_text() and "2 seeds" in run.to_text() and "energy" not in run.to_text()
    assert [one["name"] for one in results["baselines"]] == ["majority class", "linear"]
    assert "to beat      majority class " in run.to_text() and "(macro_f1 on test)" in run.to_text()
    assert set(results["baselines"][1]["lead"]) == {"validation", "test"}
    assert "95% interval" in run.to_text() and "95% interval over resampled texts" in (out / "README.md").read_text()
    together = results["with_linear"]["test"]["macro_f1"]
    averaged_text = f"test {format_score(together)}: averaged predictions of each seed's model and the linear"
    assert together["n"] == 2 and averaged_text in run.to_text()
    assert f"| test, averaged with the linear model | {format_score(together)} |" in (out / "README.md").read_text()
    both = f"{100 * results['averaged_with_linear']['test']['macro_f1']:.2f}"
    assert f"test {both}: the 2 seeds' models as one, averaged with the linear one" in run.to_text()
    said = "average of the 2 seeds' models, averaged with the linear model"
    assert f"| test, {said} | {both} |" in (out / "README.md").read_text()
    linear = 100 * results["baselines"][1]["scores"]["test"]["macro_f1"]
    assert f"| test, linear model on TF-IDF | {linear:.2f} |" in (out / "README.md").read_text()
    assert "| test, majority class |" in (out / "seed-3/model/README.md").read_text()
    cost = {**record["cost"], "energy_kwh": 0.25, "estimated_kwh": 0.05, "co2_kg": 0.014}
    tracked = dataclasses.replace(run, seeds=[{**record, "cost": cost}])
    assert "energy       0.25 kWh a seed (20% of it estimated), 0.014 kg of CO2" in tracked.to_text()

    # The saved predictions give the reported score.
    lines = [json.loads(line) for line in (out / "seed-3/predictions/test.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == task.test["id"][:]
    score = f1_score([line["label"] for line in lines], [line["prediction"] for line in lines], average="macro")
    assert score == pytest.approx(record["test"]["macro_f1"])
    assert all(sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-4) for line in lines)
    # Texts were scored longest first, yet every row has its own text's prediction.
    lengths = [len(text.split()) for text in task.test["text"]]
    assert lengths != sorted(lengths, reverse=True)
    answers = pipeline("text-classification", str(out / "seed-3/model"), top_k=None)(task.test["text"][:])
    for line, answer in zip(lines, answers, strict=True):
        assert line["probabilities"] == pytest.approx({one["label"]: one["score"] for one in answer}, abs=2e-5)

    # The folder itself is the model of the seed best on validation, with its card.
    best = max(results["seeds"], key=lambda r: r["validation"]["macro_f1"])["seed"]
    for name in ("model.safetensors", "mlm/model.safetensors", "config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (out / f"seed-{best}/model" / name).read_bytes()
    card = (out / "README.md").read_text()
    assert f"seed {best}" in card and "mean ± std of 2 seeds" in card and "library_name: transformers" in card


PROGRAM = """
import sys
sys.modules["hf_tlm"] = None  # importing it fails
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, pipeline
folder, code = sys.argv[1], {"trust_remote_code": sys.argv[2] == "cocolm"}
for auto, path in ((AutoModelForSequenceClassification, folder), (AutoModelForMaskedLM, folder + "/mlm")):
    model, info = auto.from_pretrained(path, output_loading_info=True, **code)
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]), info
long = "the gene inhibits the cell " * 200
answers = pipeline("text-classification", folder, **code)(["the gene inhibits the cell", long], truncation=True)
assert {answer["label"] for answer in answers} <= {"up", "down", "none"}, answers
assert pipeline("fill-mask", folder + "/mlm", **code)("the [MASK] binds")
"""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["bert", "cocolm"])
def test_result_works_without_hf_tlm(tmp_path, task, subset, model_type):
    go(tmp_path / "out", task, subset, {"model_config": config(model_type)})
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "out"), model_type]
    done = subprocess.run(program, capture_output=True, text=True)
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("trust_remote_code=True" in card) == (model_type == "cocolm")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_finished_run_is_not_repeated_and_interrupted_one_resumes(tmp_path, task, subset, monkeypatch):
    whole = go(tmp_path / "whole", task, subset, seeds=[0, 1])
    # Killed after the first stage of the second seed.
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    shutil.rmtree(cut / "seed-1" / "stage2")
    for name in ("seed-1/results.json", "results.json"):
        (cut / name).unlink()
    from hf_tlm.training import stages

    trained = []
    original = stages.TlmTrainer.train
    monkeypatch.setattr(
        stages.TlmTrainer, "train", lambda self, **kw: (trained.append(self.args.output_dir), original(self, **kw))[1]
    )
    again = go(cut, task, subset, seeds=[0, 1])
    assert trained == [str(cut / "seed-1" / "stage2")]

    def without_seconds(records):
        return json.loads(
            json.dumps(records), object_hook=lambda d: {k: v for k, v in d.items() if k not in ("seconds", "price")}
        )

    assert without_seconds(again.seeds) == without_seconds(whole.seeds)
    trained.clear()
    go(cut, task, subset, seeds=[0, 1])
    assert trained == []


def test_other_settings_in_the_same_folder_are_refused(tmp_path, task, subset):
    go(tmp_path / "out", task, subset)
    with pytest.raises(ProtocolError, match="max_steps: 4 in the folder, 5 requested"):
        go(tmp_path / "out", task, subset, max_steps=5)
    with pytest.raises(ProtocolError, match=r"\(other rows of the task\)"):
        go(tmp_path / "out", make_task(train=30), subset)
    with pytest.raises(ProtocolError, match="vocab_size"):
        run_tlm(
            task,
            subset,
            TlmArguments(output_dir=str(tmp_path / "out"), **FAST),
            ModelArguments(model_config=CONFIG, vocab_size=110),
        )
    with pytest.raises(ProtocolError, match="texts_per_step: 8 in the folder, 4 requested"):
        go(tmp_path / "out", task, subset, per_device_train_batch_size=4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(ProtocolError, match="is not empty and holds no run"):
        go(tmp_path / "other", task, subset)


@pytest.mark.slow
def test_changed_local_files_are_refused(tmp_path, task, subset):
    """Otherwise one seed of a run would have another architecture."""
    file = tmp_path / "model.json"
    file.write_text(json.dumps(CONFIG))
    go(tmp_path / "out", task, subset, {"model_config": str(file)})
    file.write_text(json.dumps(CONFIG | {"hidden_dropout_prob": 0.3}))
    with pytest.raises(ProtocolError, match="the files of model_config .*model.json have changed"):
        go(tmp_path / "out", task, subset, {"model_config": str(file)}, seeds=[0, 1])
    file.write_text(json.dumps(CONFIG))
    start = tmp_path / "out"
    go(tmp_path / "further", task, subset, {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(start)})
    (start / "README.md").write_text("A card of one's own.")
    go(tmp_path / "further", task, subset, {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(start)})
    (start / "results.json").write_text("{}")  # As another start of that run would write it.
    go(tmp_path / "further", task, subset, {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(start)})
    # A folder that was written before settings recorded precision and files.
    settings = json.loads((tmp_path / "further/settings.json").read_text())
    files, settings["arguments"]["bf16"] = settings.pop("files"), True
    (tmp_path / "further/settings.json").write_text(json.dumps(settings))
    go(tmp_path / "further", task, subset, {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(start)})
    (tmp_path / "further/settings.json").write_text(json.dumps(settings | {"files": files}))
    with pytest.raises(ProtocolError, match="bf16: True in the folder, False requested"):
        go(tmp_path / "further", task, subset, {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(start)})
    settings["arguments"]["bf16"] = False
    (tmp_path / "further/settings.json").write_text(json.dumps(settings | {"files": files}))
    shutil.copy(start / "config.json", start / "mlm" / "more.json")
    with pytest.raises(ProtocolError, match="the files of model_name_or_path .*out have changed"):
        go(tmp_path / "further", task, subset, {"model_config": None, "vocab_size": 30522, "model_name_or_path": str(start)})


def test_records_have_no_local_paths_and_resume_from_any_folder(tmp_path, subset, monkeypatch):
    data = tmp_path / "secret"
    data.mkdir()
    write_files(data)
    arguments = ["--task", str(data / "task"), f"--model_config={data / 'model.json'}"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/train_tlm.py", *arguments])
    task, out = load_task(str(data / "task")), tmp_path / "out"
    go(out, task, subset, {"model_config": str(data / "model.json")})
    for name in ("settings.json", "results.json", "README.md", "seed-0/model/README.md"):
        assert str(tmp_path) not in (out / name).read_text(), name
    results = json.loads((out / "results.json").read_text())
    assert results["command"].startswith("train_tlm.py --task .../secret/task --model_config=.../secret/model.json")
    assert results["model"]["model_config"] == ".../secret/model.json"
    monkeypatch.chdir(data)  # Where the same paths are displayed differently.
    before = (out / "seed-0" / "results.json").read_bytes()
    for path in (str(data / "model.json"), "model.json"):
        go(out, task, subset, {"model_config": path})
    assert (out / "seed-0" / "results.json").read_bytes() == before
    # Published files contain no local paths; on this machine they can still be resolved.
    assert not {name for name in published(out) if "places" in name}
    assert recorded_task(read_run(out)).fingerprint == task.fingerprint
    with pytest.raises(ArgumentsError, match="gone.csv.* The run in .*out is finished"):
        go(out, task, subset, {"model_config": str(data / "model.json")}, teacher=[str(data / "gone.csv")])


def test_corpus_batches_need_a_subset(tmp_path, task):
    with pytest.raises(ArgumentsError, match="pass --subset"):
        go(tmp_path / "out", task, None)
    assert not (tmp_path / "out").exists()


def test_subset_of_other_splits_is_warned_about(tmp_path, task, subset, caplog):
    """Its passages were compared with the held-out texts of the other splits."""
    other = Task(task.spec, {**task.splits, "test": task.splits["test"].select(range(2))}, task.label_names)
    with caplog.at_level(logging.WARNING):
        go(tmp_path / "same", task, subset, max_steps=1, stage="1")
        assert "was retrieved for" not in caplog.text
        go(tmp_path / "other", other, subset, max_steps=1, stage="1")
    warning = f"retrieved for toy (fingerprint {task.fingerprint}), not for toy (fingerprint {other.fingerprint})"
    assert caplog.text.count(warning) == 1 and "validation and test texts may be among its passages" in caplog.text


@pytest.mark.slow
def test_refused_start_leaves_no_folder(tmp_path, task, subset):
    """A corrected command can use the same folder."""
    one = go(tmp_path / "one", task, subset, stage="1")
    with pytest.raises(TokenizerError, match="onne"):
        go(tmp_path / "two", task, None, stage="2", model={"model_name_or_path": str(tmp_path / "onne")})
    base = {"model_name_or_path": str(one.output_dir)}
    with pytest.raises(ModelError, match="max_length 900 is more than"):
        go(tmp_path / "two", task, None, stage="2", model=base, max_length=900)
    with pytest.raises(ModelError, match="no.json"):
        go(tmp_path / "two", task, None, rho1=0, model={"model_config": str(tmp_path / "no.json")})
    assert not (tmp_path / "two").exists()
    go(tmp_path / "two", task, None, stage="2", model=base)


@pytest.mark.slow
def test_single_stages_run_on_task_data_only(tmp_path, task):
    run = go(tmp_path / "one", task, None, rho1=0, stage="1")
    assert set(run.seeds[0]["stages"]) == {"1"} and run.seeds[0]["cost"]["steps"] == 4
    run = go(tmp_path / "two", task, None, stage="2", model=None)
    assert set(run.seeds[0]["stages"]) == {"2"} and run.seeds[0]["cost"]["steps"] == 6


@pytest.mark.slow
def test_stage_two_starts_from_a_stage_one_folder(tmp_path, task, subset):
    go(tmp_path / "one", task, subset, stage="1")
    run = go(tmp_path / "two", task, None, stage="2", model={"model_name_or_path": str(tmp_path / "one")})
    both = go(tmp_path / "both", task, subset)
    assert run.seeds[0]["test"] == both.seeds[0]["test"]
    assert "trained further from" in (tmp_path / "two" / "README.md").read_text()


@pytest.mark.slow
def test_reset_classifier_changes_stage_two_only(tmp_path, task, subset):
    kept = go(tmp_path / "kept", task, subset)
    reset = go(tmp_path / "reset", task, subset, stage2_reset_classifier=True)
    stage1 = [r.seeds[0]["stages"]["1"]["validation"] for r in (kept, reset)]
    stage2 = [r.seeds[0]["stages"]["2"]["validation"] for r in (kept, reset)]
    assert stage1[0] == stage1[1] and stage2[0] != stage2[1]


@pytest.mark.slow
def test_spectral_initialization_is_used_and_recorded(tmp_path, task, subset):
    run = go(tmp_path / "out", task, subset, model={"embedding_init": "spectral", "spectral_scale": 0.5})
    plain = go(tmp_path / "plain", task, subset)
    assert run.details["initialization"]["spectral"]["scale"] == 0.5
    assert run.seeds[0]["stages"]["1"]["validation"] != plain.seeds[0]["stages"]["1"]["validation"]
    assert "spectral warm start" in (tmp_path / "out" / "README.md").read_text()
    assert "spectral" not in (tmp_path / "plain" / "README.md").read_text()


@pytest.mark.slow
def test_best_checkpoint_on_validation_is_kept(tmp_path, task, subset):
    run = go(tmp_path / "out", task, subset, stage2_max_steps=12)
    state = json.loads((tmp_path / "out/seed-0/stage2/trainer_state.json").read_text())
    scores = [entry["eval_macro_f1"] for entry in state["log_history"] if "eval_macro_f1" in entry]
    assert run.seeds[0]["validation"]["macro_f1"] == max(scores) == state["best_metric"]


@pytest.mark.slow
def test_both_stages_report_to_tensorboard(tmp_path, task, subset, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    go(tmp_path / "out", task, subset, report_to="tensorboard", logging_steps=1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged = {"stage1": "train/corpus/mlm_loss", "stage2": "train/task/task_loss"}
    for stage, loss_tag in logged.items():
        (folder,) = {file.parent for file in (tmp_path / "tb").rglob(f"{stage}/events*")}
        events = EventAccumulator(str(folder)).Reload()
        assert {"train/loss", loss_tag, "train/flops"} <= set(events.Tags()["scalars"])


@pytest.mark.slow
def test_no_token_is_stored(tmp_path, task, subset):
    go(tmp_path / "out", task, subset, hub_token="hf_secret")
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"hf_secret" not in path.read_bytes(), path


@pytest.mark.slow
def test_weights_are_finite_safetensors(tmp_path, task, subset):
    from safetensors.torch import load_file

    go(tmp_path / "out", task, subset)
    assert not any(name.endswith(".bin") and "training_args" not in name for name in files(tmp_path / "out"))
    assert all(torch.isfinite(t).all() for t in load_file(tmp_path / "out" / "model.safetensors").values())


def test_requested_attention_is_used(task, subset):
    args = TlmArguments(**FAST)
    # SDPA with a faster dropout, see `hf_tlm.models.cpu_kernels`.
    for model_args, expected in (({}, "hf_tlm_sdpa"), ({"attn_implementation": "eager"}, "eager")):
        model_args = ModelArguments(model_config=CONFIG, vocab_size=120, **model_args)
        model = prepare(task, subset.dataset, args, model_args).make_model()
        assert model.base_model.config._attn_implementation == expected


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "electra"])
def test_resumed_stage_uses_the_requested_attention(tmp_path, task, subset, monkeypatch, objective):
    """The result of stage 1 is loaded for stage 2 with it."""
    model = {"attn_implementation": "eager", "model_config": config("bert" if objective == "mlm" else "electra")}
    go(tmp_path / "out", task, subset, model, objective=objective)
    shutil.rmtree(tmp_path / "out/seed-0/stage2")
    (tmp_path / "out/seed-0/results.json").unlink()
    from hf_tlm.training import stages

    models, original = [], stages.TlmTrainer.train
    monkeypatch.setattr(stages.TlmTrainer, "train", lambda self, **kw: (models.append(self.model), original(self, **kw))[1])
    go(tmp_path / "out", task, subset, model, objective=objective)
    (trained,) = models
    configs = {module.config._attn_implementation for module in trained.modules() if hasattr(module, "config")}
    assert configs == {"eager"}


STAGE_2 = {"stage2_max_length": 0, "stage2_dropout": 0.2, "stage2_classifier_pooling": "mean", "max_length": 16}


def test_stage_2_uses_its_own_settings(tmp_path, task, subset):
    out = tmp_path / "out"
    model = {"model_config": config("modernbert")}
    run = go(out, task, subset, model, **STAGE_2)
    stages = run.seeds[0]["stages"]
    assert {stage: record["max_length"] for stage, record in stages.items()} == {"1": 16, "2": 32}
    exported = json.loads((out / "config.json").read_text())
    assert exported["classifier_pooling"] == "mean" and exported["attention_dropout"] == 0.2
    first = json.loads((out / "seed-0/stage1/model/config.json").read_text())
    assert first["classifier_pooling"] == "cls" and first["attention_dropout"] == 0.0
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 32
    card = (out / "README.md").read_text()
    assert (
        "Texts were truncated to 32 tokens in stage 2" in card
        and "Dropout in stage 2: 0.2." in card
        and "the mean over all tokens" in card
    )
    validation = [json.loads(line) for line in (out / "seed-0/predictions/validation.jsonl").read_text().splitlines()]
    assert ("one class    the model of seed 0" in run.to_text()) == (len({line["prediction"] for line in validation}) == 1)
    # The stock class computes the saved predictions.
    classify = pipeline("text-classification", str(out), top_k=None)
    lines = [json.loads(line) for line in (out / "seed-0/predictions/test.jsonl").read_text().splitlines()]
    for text, line in zip(task.test["text"][:4], lines, strict=False):
        found = {answer["label"]: answer["score"] for answer in classify([text], truncation=True)[0]}
        assert found == pytest.approx(line["probabilities"], abs=1e-4)


@pytest.mark.slow
def test_stage_2_with_its_own_settings_resumes_bit_for_bit(tmp_path, task, subset, monkeypatch):
    model = {"model_config": config("modernbert")}
    settings = STAGE_2 | {"save_strategy": "steps", "save_steps": 2}
    whole = go(tmp_path / "whole", task, subset, model, **settings)

    class Cut(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if "stage2" in args.output_dir and state.global_step == 4:
                raise KeyboardInterrupt

    from hf_tlm.training import stages

    original = stages.TlmTrainer.__init__

    def interrupted(self, *arguments, callbacks=(), **kwargs):
        original(self, *arguments, callbacks=[*callbacks, Cut()], **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stages.TlmTrainer, "__init__", interrupted)
        go(tmp_path / "cut", task, subset, model, **settings)
    assert not (tmp_path / "cut" / "results.json").exists()
    go(tmp_path / "cut", task, subset, model, **settings)
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert whole.seeds


def test_unsupported_pooling_and_length_are_refused(tmp_path, task, subset):
    with pytest.raises(
        ArgumentsError, match="stock classifier can pool .modernbert.; received 'mean' for a body of the type"
    ):
        go(tmp_path / "out", task, subset, stage2_classifier_pooling="mean")
    with pytest.raises(ModelError, match="max_length 64 needs 64 positions"):
        go(tmp_path / "other", task, subset, stage2_max_length=64)


def test_folder_older_than_an_option_resumes(tmp_path, task, subset):
    go(tmp_path / "out", task, subset)
    path = tmp_path / "out" / "settings.json"
    settings = json.loads(path.read_text())
    for name in ("stage2_max_length", "stage2_dropout", "stage2_min_steps", "rho2"):
        del settings["arguments"][name]
    del settings["model"]["embedding_init"]
    path.write_text(json.dumps(settings))
    go(tmp_path / "out", task, subset)
    with pytest.raises(ProtocolError, match="stage2_dropout: None in the folder, 0.1 requested"):
        go(tmp_path / "out", task, subset, stage2_dropout=0.1)
