"""Fine-tuning intermediate pretraining checkpoints equals fine-tuning their exports; scores against pretraining steps."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, set_seed

from hf_tlm.analysis import AnalysisError
from hf_tlm.analysis.report.about import curves
from hf_tlm.analysis.report.run_folder import read_run
from hf_tlm.analysis.trainer_logs import read_runs
from hf_tlm.corpora import load_corpus
from hf_tlm.data import BlockArguments
from hf_tlm.models.loading import load_stock
from hf_tlm.runs import GridArguments, run_pretraining
from hf_tlm.runs.grid_points import GridError
from hf_tlm.training import ModelArguments, PretrainArguments
from support.toys import TINY_CONFIGS, sentences, write_files

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
FAST = {
    **{
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        "save_steps": 1,
        "save_total_limit": 9,
    },
    **{"max_steps": 2, "learning_rate": 1e-2, "max_length": 32, "per_device_train_batch_size": 8},
}
RUNS = {
    "bert": {},
    "modernbert": {},
    "electra": {"objective": "electra"},
    "albert": {"objective": "ale"},
    "cocolm": {"objective": "cocolm"},
}
# Where the exported folder of a run without a task has the main model.
PLACES = {"electra": "discriminator"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    corpus = load_corpus(Dataset.from_list([{"text": row["text"] + "."} for row in sentences(150, seed=9)]))
    made = {}

    def make(model_type):
        if model_type not in made:
            folder = tmp_path_factory.mktemp("runs") / model_type
            config = {k: v for k, v in TINY_CONFIGS[model_type].items() if k != "vocab_size"}
            model_args = ModelArguments(model_config={"model_type": model_type, **config}, vocab_size=120)
            args = PretrainArguments(output_dir=str(folder), **FAST, **RUNS[model_type])
            run_pretraining(corpus, args, model_args, BlockArguments(validation_share=0.2, shard_size=8))
            made[model_type] = folder
        return made[model_type]

    return make


def load_classifier(auto_class, folder):
    """Load a model for three classes, whose head is initialised at random with a fixed seed."""
    config = AutoConfig.from_pretrained(folder, num_labels=3)
    set_seed(5)
    return load_stock(auto_class, str(folder), config)


@pytest.mark.parametrize("model_type", RUNS)
def test_checkpoint_loads_like_the_export(pretrained, model_type):
    folder = pretrained(model_type)
    from_checkpoint, info = load_classifier(AutoModelForSequenceClassification, folder / "training" / "checkpoint-2")
    expected, exported = load_classifier(AutoModelForSequenceClassification, folder)
    assert type(from_checkpoint) is type(expected) and from_checkpoint.dtype == torch.float32
    # ALE's export is a complete AlbertModel, whose pooler was not trained.
    assert {name for name in info["missing_keys"] if model_type != "albert" or "pooler" not in name} == exported[
        "missing_keys"
    ]
    for name, value in expected.state_dict().items():
        assert torch.equal(value, from_checkpoint.state_dict()[name]) or name in info["missing_keys"], name
    earlier, _ = load_classifier(AutoModelForSequenceClassification, folder / "training" / "checkpoint-1")
    earlier = earlier.base_model.state_dict()
    assert any(not torch.equal(value, earlier[name]) for name, value in from_checkpoint.base_model.state_dict().items())


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "cocolm"])
def test_checkpoint_loads_with_its_lm_head(pretrained, model_type):
    folder = pretrained(model_type)
    from_checkpoint, info = load_classifier(AutoModelForMaskedLM, folder / "training" / "checkpoint-2")
    expected, _ = load_classifier(AutoModelForMaskedLM, folder)
    assert not info["missing_keys"]
    assert all(torch.equal(value, from_checkpoint.state_dict()[name]) for name, value in expected.state_dict().items())


def test_one_command_finetunes_all_checkpoints(pretrained, tmp_path, monkeypatch):
    """As in Figure 3 of COCO-LM: one fine-tuning per checkpoint, and the curve of their scores."""
    training = pretrained("electra") / "training"
    write_files(tmp_path)
    command = ["--task", str(tmp_path / "task"), "--model_name_or_path", f"{training}/checkpoint-*", "--seeds", "0", "1"]
    command += ["--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--max_length", "32", "--report_to", "none"]
    command += ["--use_cpu", "true", "--eval_strategy", "steps", "--eval_steps", "2", "--disable_tqdm", "true"]
    monkeypatch.setattr(sys, "argv", ["finetune.py", *command])
    runpy.run_path(str(RECIPES / "finetune.py"), run_name="__main__")
    record = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert [Path(point["values"]["model_name_or_path"]).name for point in record["points"]] == [
        "checkpoint-1",
        "checkpoint-2",
    ]
    curve = read_runs({"out": tmp_path / "out"})["out"].seeds[1].curve("eval_macro_f1")
    assert curve.x["steps"].tolist() == [1, 2] and (curve.x["flops"] > 0).all()
    assert curve.values.tolist() == [point["validation"]["macro_f1"]["values"][1] for point in record["points"]]
    # The top-level model started from the better of the two.
    chosen = record["chosen"]["values"]["model_name_or_path"]
    settings = json.loads((tmp_path / "out" / record["chosen"]["folder"] / "settings.json").read_text())
    assert settings["model"]["model_name_or_path"] == chosen
    # Neither the records nor the folder names contain a local path.
    assert str(training) not in json.dumps(record) and str(tmp_path)[1:].replace("/", "-") not in json.dumps(record)
    # With --report the page has the curve, if there are three checkpoints or more.
    assert not curves(read_run(tmp_path / "out"))
    point = next(point for point in record["points"] if point["values"]["model_name_or_path"].endswith("checkpoint-2"))
    third = {**point, "values": {"model_name_or_path": "training/checkpoint-3"}}
    record["points"].append(third)
    (tmp_path / "out" / "grid.json").write_text(json.dumps(record))
    (chart,) = curves(read_run(tmp_path / "out"))
    assert "by step of the pretraining" in chart.title and [name for name, _ in chart.lines] == ["seed 0", "seed 1"]
    assert [cell.text for row in chart.numbers.rows for cell in row[:2]][:6] == ["seed 0", "1", "seed 0", "2", "seed 0", "3"]
    scores = third["validation"]["macro_f1"] | {"values": [10**400, 0]}
    for damaged in ({"folder": ""}, {**third, "validation": {"macro_f1": scores}}):
        record["points"][-1] = damaged
        (tmp_path / "out" / "grid.json").write_text(json.dumps(record))
        with pytest.raises(AnalysisError, match="grid.json is not what a grid writes: (KeyError|OverflowError)"):
            curves(read_run(tmp_path / "out"))
    with pytest.raises(GridError, match="No folder matches.*--save_strategy and --save_steps.*--save_total_limit"):
        GridArguments().read(None, f"{training}/none-*")
