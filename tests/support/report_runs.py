"""Folders of runs in the layout that recipes write, built without training; tests choose which rows are predicted wrong."""

import json

from datasets import Dataset

from hf_tlm.tasks import TaskSpec, task_from_datasets

COST = {"steps": 10, "tokens": 4000, "real_tokens": 3000, "flops": 2.5e9, "measured_flops": 1e9, "seconds": 7200.0}
EVIL = "</script></style><img src=x onerror=\"document.title='broken'\"> {{ 7 * 7 }} & 'q' \u202e\ud800\x00"


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def log(steps=(3, 5, 10), **last):
    return {"log_history": [{"step": step, "loss": 2.0 - step / 10, **last} for step in steps]}


def text_task(rows, name="toy"):
    """Build a task from (text, label) pairs per split; ids are `<split>-<row>`."""
    splits = {
        split: Dataset.from_list([{"text": text, "label": label} for text, label in pairs]) for split, pairs in rows.items()
    }
    return task_from_datasets(TaskSpec(name=name, path="memory"), splits)


def record_of(task, seeds, scores, **more):
    """Return the results.json of a run with these test scores; validation scores are 0.1 lower."""
    metric = task.metric

    def summary(values):
        mean = sum(values) / len(values)
        std = None if len(values) == 1 else (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
        return {metric: {"mean": mean, "std": std, "n": len(values), "values": values}}

    records = [
        {"seed": seed, "parameters": 1000, "model_type": "bert", "cost": COST}
        | {"validation": {metric: score - 0.1}, "test": {metric: score}}
        for seed, score in zip(seeds, scores, strict=True)
    ]
    return {
        **{"task": task.name, "task_fingerprint": task.fingerprint, "metric": metric, "arguments": {"learning_rate": 0.5}},
        **{"model": {"model_config": "tiny.json"}, "command": "train_tlm.py --rho1 3", "environment": {"torch": "9.9"}},
        **{"summary": {"test": summary(list(scores))}, "seeds": records, **more},
    }


def classified(task, split, wrong, sure=0.9):
    """Return predictions of a split: the next class for the rows in `wrong`, with increasing probability."""
    names, lines = task.label_names, []
    for at, (identifier, label) in enumerate(zip(task.splits[split]["id"], task.splits[split]["label"], strict=True)):
        predicted = names[(label + (at in wrong)) % len(names)]
        share = sure + at / 1000
        probabilities = {name: share if name == predicted else (1 - share) / (len(names) - 1) for name in names}
        lines.append({"id": identifier, "label": names[label], "prediction": predicted, "probabilities": probabilities})
    return lines


def tlm_run(folder, task, wrong, scores, subset=None):
    """Write a finished run of recipes/train_tlm.py.

    Args:
        wrong: seed -> rows of every split that it predicts wrong.
    """
    write_json(folder / "results.json", record_of(task, list(wrong), scores, subset=subset))
    write_json(folder / "settings.json", {"task": task.name, "subset": subset})
    for seed, rows in wrong.items():
        for split in ("validation", "test"):
            write_lines(folder / f"seed-{seed}" / "predictions" / f"{split}.jsonl", classified(task, split, rows))
        losses = {"corpus/mlm_loss": 3.0, "task/mlm_loss": 2.0, "task/task_loss": 1.0}
        write_json(folder / f"seed-{seed}" / "stage1" / "trainer_state.json", log(**losses))
        state = log(**{"task/task_loss": 1.0})
        state["log_history"] += [{"step": step, f"eval_{task.metric}": step / 20} for step in (3, 5, 10)]
        write_json(folder / f"seed-{seed}" / "stage2" / "trainer_state.json", state)
    return folder


def kind_run(folder, task, lines, score=0.5, **seed):
    """Write a finished run of recipes/finetune.py for a task of any kind.

    Args:
        lines: split -> predictions.
    """
    record = record_of(task, [0], [score], kind=task.kind, further_metrics=[])
    for split in ("validation", "test"):
        if split not in lines:
            del record["seeds"][0][split]
    record["seeds"][0] |= seed
    write_json(folder / "results.json", record)
    for split, predictions in lines.items():
        write_lines(folder / "seed-0" / "predictions" / f"{split}.jsonl", predictions)
    return folder
