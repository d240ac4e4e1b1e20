"""COCO-LM through the recipes: pretraining on two processes, and training on a task from it."""

import json

import pytest

from support.launching import PRETRAIN, TINY, run_recipe
from support.toys import TINY_CONFIGS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_coco_lm_pretraining_and_training_on_a_task_from_it(work, subset):
    """Pretrain on two processes, then train on the subset and the task with the same objective."""
    values = {k: v for k, v in TINY_CONFIGS["cocolm"].items() if k not in ("vocab_size", "num_labels", "copy_head")}
    (work / "cocolm.json").write_text(json.dumps({"model_type": "cocolm", **values}))
    out = work / "cocolm"
    text = run_recipe(
        "recipes/pretrain.py", "--corpus", work / "corpus.parquet", *PRETRAIN, "recipes/configs/pretrain/cocolm_tiny.yaml",
        "--model_config", work / "cocolm.json", "--max_steps", "2", "--per_device_train_batch_size", "2", "--output_dir",
        out, processes=2,
    )  # fmt: skip
    assert (
        text.count("scl loss") == 1 and "copy accuracy original" in text and (out / "generator/model.safetensors").is_file()
    )
    run_recipe(
        "recipes/train_tlm.py", "--task", work / "task", "--subset", subset, *TINY, "--max_length", "16", "--objective",
        "cocolm", "--model_name_or_path", out, "--logging_steps", "1", "--output_dir", work / "cocolm-task",
    )  # fmt: skip
    log = json.loads((work / "cocolm-task/seed-0/stage1/trainer_state.json").read_text())["log_history"]
    assert {"corpus/scl_loss", "corpus/lm_loss"} <= log[0].keys() and any("task/task_loss" in entry for entry in log)
    folders = {path.name for path in (work / "cocolm-task").iterdir() if (path / "config.json").is_file()}
    assert folders == {"mlm", "generator"}
