"""Runs that skip testing at first and are tested later give the results of runs that test at once."""

import dataclasses
import json

import pytest

from hf_tlm.runs import CheckpointArguments, FinetuneArguments, finetune
from support.kind_toys import labels_of, rows_of, task_of
from support.tiny_checkpoints import FAST, files, pretrained
from support.toys import make_task


@pytest.mark.slow
@pytest.mark.parametrize("kind,crf,peft", [("classification", 0, 1), ("question_answering", 0, 0), ("tagging", 1, 0)])
def test_testing_later_gives_the_same_scores_and_predictions(kind, crf, peft, tmp_path, tokenizer):
    task = make_task(12, 6, 5)
    if kind != "classification":
        task = task_of(kind, rows_of(kind, 6), labels_of(kind), train=rows_of(kind, 12))
        task = dataclasses.replace(task, splits={**task.splits, "test": task.train})
    base = pretrained(tmp_path / "base", tokenizer)
    checkpoint = CheckpointArguments(model_name_or_path=str(base), **({"use_peft": True, "lora_r": 2} if peft else {}))

    def go(name, **how):
        args = FinetuneArguments(output_dir=str(tmp_path / name), **FAST, max_steps=2, crf=bool(crf))
        return finetune(task, checkpoint, args, **how)

    whole, first = go("whole"), go("later", test=False)
    assert "test" not in first.seeds[0] and "test" not in first.summary
    assert not (tmp_path / "later/seed-0/predictions/test.jsonl").exists()
    model = (tmp_path / "later/seed-0/model").stat().st_ino
    later = go("later")
    assert (tmp_path / "later/seed-0/model").stat().st_ino == model, "it was trained again"

    def without_cost(record):
        return {name: value for name, value in record.items() if name not in ("cost", "price")}

    assert json.loads(json.dumps(without_cost(later.seeds[0]))) == json.loads(json.dumps(without_cost(whole.seeds[0])))
    assert later.summary == whole.summary
    for name in ("README.md", "results.json", "seed-0/predictions/test.jsonl"):
        assert (tmp_path / "later" / name).is_file()
    ours, theirs = (files(tmp_path / name / "seed-0/predictions") for name in ("later", "whole"))
    if not peft:  # Merging an adapter's weights into the model when it is loaded rounds.
        assert ours == theirs
    assert json.loads((tmp_path / "later/results.json").read_text())["summary"] == later.summary
