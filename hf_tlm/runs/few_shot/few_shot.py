"""The few-shot protocol: samples of examples, a grid search for each, and mean and deviation of the test scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from hf_tlm.errors import ArgumentsError
from hf_tlm.hub.cards import prompted_card
from hf_tlm.runs.baselines import to_beat
from hf_tlm.runs.few_shot.arguments import FewShotArguments
from hf_tlm.runs.few_shot.points import Episode, Point, Prompted, WithHead, compute_scores, draw_episode, scored_split
from hf_tlm.runs.few_shot.prompts import prompt_for
from hf_tlm.runs.finetuning import CheckpointArguments
from hf_tlm.runs.finetuning.models import load_pretrained
from hf_tlm.runs.price import price, price_line
from hf_tlm.runs.records import (
    SPLITS,
    format_table,
    logits_to_predictions,
    predictions_jsonl,
    provenance_entries,
    summarise,
    to_beat_line,
)
from hf_tlm.runs.sharing import run_shared
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.training.run_folder import RESULTS_FILE, claim, finish, finished, settings
from hf_tlm.utils.files import atomic_directory, atomic_write
from hf_tlm.utils.json_files import read_object
from hf_tlm.utils.locks import awaited
from hf_tlm.utils.options import check_given
from hf_tlm.utils.run_files import EXAMPLES_FILE, PREDICTIONS, TABLE_FILE, predictions_file, split_folder

# Options that may grow to extend a run, and so are not among its settings.
_EXTENDABLE = ("splits", "split_seeds")


@dataclass
class FewShotRun:
    """The result of `run_few_shot`, which is also written as `results.json`.

    splits: one record per split: its seed, the point of the grid that was best on its validation examples, the scores of
        that point on them and on the task's test split, and the validation scores of all points.
    summary: "validation" (of the chosen points) and "test" -> metric -> {"mean", "std", "n", "values"}.
    details: facts about the task, the settings and the model.
    """

    splits: list[dict[str, Any]]
    summary: dict[str, dict[str, Any]]
    details: dict[str, Any]
    output_dir: Path

    def to_dict(self) -> dict[str, Any]:
        return {**self.details, "summary": self.summary, "splits": self.splits}

    def to_text(self) -> str:
        """Return the table of `results.md`: a row for each split, and the mean and standard deviation (n - 1).

        The text says so if the scored split is not the task's test split.
        """
        rows = [_format_row(record) for record in self.splits]
        if len(rows) > 1:
            mean_row = dict.fromkeys(rows[0], "") | {"split": "mean ± std"}
            for split, scores in self.summary.items():
                mean_row |= {f"{split} {name}": score for name, score in scores.items()}
            rows.append(mean_row)
        table, test_split = format_table(rows, list(rows[0])), self.details["scored_split"]
        if line := to_beat_line(self.details.get("baselines") or [], self.details["metric"], self.summary):
            table += f"\n\nTo beat, with the same number of examples: {line}."
        if prediction_price := self.splits[-1].get("price"):
            table += f"\n\nA prediction costs {price_line(prediction_price)}."
        if test_split != "test":
            table += f"\n\nTest scores are on the task's {test_split} split: there is no test split with labels."
        return table


def run_few_shot(task: Task, checkpoint: CheckpointArguments, args: FewShotArguments) -> FewShotRun:
    """Train on `args.k` examples per class and test, once for every split (LM-BFF, section 3).

    For each split, every point of the grid is trained on the split's examples. The point and the step with the best score
    on its validation examples (the first of equal ones) are tested on the task's test split, or on its validation split if
    the test split has no labels. The output folder contains `results.json`, `results.md` and, for each split,
    `split-<seed>/`: `model`, which `PromptClassifier.from_pretrained` loads, with its card, its test predictions and the
    ids of its examples.

    If the same settings are run in the same folder again, finished points are not repeated, and an interrupted one resumes;
    several such processes share the work.

    Raises:
        TaskError: the task is not a classification task, or has too few examples.
        PromptError: there is no prompt for the task, or the tokenizer cannot use it.
        ModelError: the model has no LM head; see `load_masked_lm`.
        ProtocolError: the folder contains a run with other settings, or other files.
        ArgumentsError: use_peft is combined with a prompt, or the processes cannot share a batch size.
        PointsError: some trainings failed.
    """
    check_task(task, "Few-shot learning", "classification")
    check_given(ArgumentsError, checkpoint=(checkpoint, CheckpointArguments), args=(args, FewShotArguments))
    output_dir, test_split = args.folder, scored_split(task)
    for batch_size in args.batch_sizes:
        args.for_point(args.learning_rates[0], batch_size, output_dir, 0, task.metric)
    if args.method == "zero_shot" and not args.demonstrations:
        # No examples are drawn, so all splits would be equal.
        episodes: dict[int, Episode | None] = {args.run_split_seeds[0]: None}
    else:
        episodes = {seed: draw_episode(task, args.k, seed) for seed in args.run_split_seeds}
    seeds = list(episodes)
    method, prompt = _create_method(task, checkpoint, args, episodes[seeds[0]])
    details = {
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        **task.about_splits(),
        "metric": task.metric,
        "scored_split": test_split,
        "method": args.method,
        "k": args.k,
        "prompt": prompt,
        "arguments": {name: value for name, value in settings(args).items() if name not in _EXTENDABLE},
        "model": dict(checkpoint.__dict__),
    }
    with args.main_process_first(desc="checking the output folder"):
        data_fields = ("task_fingerprint", "metric", "prompt")
        # Processes that share the work must claim the folder one after the other.
        with awaited(output_dir) if args.process_index == 0 else nullcontext():
            claimed = claim(output_dir, details, data_fields, args.process_index, options=(args, checkpoint))
    details |= provenance_entries(details)
    if args.process_index == 0:
        test_rows = task.splits[test_split]
        samples = [
            replace(task, splits={"train": episode.train, "validation": episode.validation, "test": test_rows})
            for episode in episodes.values()
            if episode is not None
        ]
        # Without examples, a linear baseline cannot be trained.
        details["baselines"] = to_beat(task, samples) if samples else []

    points = []
    if args.method != "zero_shot":
        points = [Point(*values) for values in product(seeds, args.learning_rates, args.batch_sizes)]
    work = _Work(task, args, method, test_split, episodes, points, details)
    with claimed:
        run_shared(points, lambda point: point.folder(output_dir), work.is_trained, work.train)
        run_shared(seeds, work.folder, work.is_tested, work.test)
        work.discard_models(points)  # Models that a killed process has left.

    records = [read_object(work.folder(seed) / RESULTS_FILE) for seed in seeds]
    run = FewShotRun(records, summarise(records), details, output_dir)
    if args.process_index == 0:
        atomic_write(output_dir / TABLE_FILE, run.to_text() + "\n")
        _write(output_dir / RESULTS_FILE, run.to_dict())
    return run


def _create_method(
    task: Task, checkpoint: CheckpointArguments, args: FewShotArguments, episode: Episode | None
) -> tuple[Prompted | WithHead, dict[str, Any] | None]:
    """Return the method, and its prompt as JSON values (None without one).

    Errors that every point would raise are raised here, before any training.

    Raises:
        ArgumentsError: use_peft is combined with a prompt. For other errors see `run_few_shot`.
    """
    _, tokenizer = load_pretrained(task, checkpoint, args.max_length)
    if args.method == "finetune":
        return WithHead(task, checkpoint, args), None
    if checkpoint.use_peft:
        raise ArgumentsError(
            "use_peft is only for --method finetune: a prompt is answered by a complete masked LM. Remove use_peft."
        )
    prompt = prompt_for(task.name, task.label_names, args.template, args.label_words, pairs=task.has_pairs)
    method = Prompted(task, checkpoint, args, tokenizer, prompt)
    method.classifier(episode)
    return method, {"template": prompt.template, "label_words": dict(prompt.label_words)}


@dataclass
class _Work:
    """The trainings and tests of a run.

    test_split: the split of the task that is tested on.
    episodes: seed of a split -> its examples; None if no examples are drawn.
    points: all points to train.
    details: facts about the run, for cards.
    """

    task: Task
    args: FewShotArguments
    method: Prompted | WithHead
    test_split: str
    episodes: Mapping[int, Episode | None]
    points: Sequence[Point]
    details: Mapping[str, Any]
    tested_seeds: set[int] = field(default_factory=set)  # Seeds of splits that are known to be tested.

    def folder(self, seed: int) -> Path:
        return split_folder(self.args.folder, seed)

    def is_tested(self, seed: int) -> bool:
        if seed not in self.tested_seeds and finished(self.folder(seed), self.args, local=True) is not None:
            self.tested_seeds.add(seed)
        return seed in self.tested_seeds

    def is_trained(self, point: Point) -> bool:
        folder = point.folder(self.args.folder)
        # Another process that tests the split removes the models of its points, possibly between these checks.
        return (
            self.is_tested(point.split)
            or (finished(folder, self.args, local=True) is not None and (folder / "model").is_dir())
            or self.is_tested(point.split)
        )

    def train(self, point: Point) -> None:
        folder, episode = point.folder(self.args.folder), self.episodes[point.split]
        assert episode is not None  # Without examples there are no points to train.
        record = self.method.train(point, episode, folder)
        if self.args.process_index == 0:
            finish(folder, {"learning_rate": point.learning_rate, "batch_size": point.batch_size, **record}, "model")

    def test(self, seed: int) -> None:
        """Test the best point of a split and keep its model as the split's; without points, test the checkpoint itself."""
        folder, episode = self.folder(seed), self.episodes[seed]
        rows, names = self.task.splits[self.test_split], self.task.label_names
        split_points = [point for point in self.points if point.split == seed]
        record = self._copy_best_model(split_points, folder / "model") if split_points else {}
        logits = self.method.logits(episode, folder / "model" if split_points else None, rows)
        record["test"] = compute_scores(self.task, logits, rows["label"][:])
        if self.args.process_index > 0:
            return
        text = predictions_jsonl("classification", names, rows, logits_to_predictions(logits, names))
        atomic_write(predictions_file(folder, "test"), text)
        if episode is not None:
            example_ids = {"train": episode.train["id"][:], "validation": episode.validation["id"][:]}
            _write(folder / EXAMPLES_FILE, example_ids)
        if split_points:
            record["price"] = price(folder / "model")
            if self.details["prompt"] is not None:  # A model with a head already has the card of fine-tuning.
                atomic_write(folder / "model" / "README.md", prompted_card(self.details, {"seed": seed, **record}))
        finish(folder, {"seed": seed, **record}, "model", PREDICTIONS, EXAMPLES_FILE)
        self.discard_models(split_points)

    def discard_models(self, points: Sequence[Point]) -> None:
        """Remove the models of points of tested splits, on the first process; the best one was copied to its split."""
        for point in points if self.args.process_index == 0 else ():
            shutil.rmtree(point.folder(self.args.folder) / "model", ignore_errors=True)

    def _copy_best_model(self, points: Sequence[Point], model: Path) -> dict[str, Any]:
        """Copy the model of the point that is best on its validation examples to `model`, and return the point's record."""
        folders = [point.folder(self.args.folder) for point in points]
        records = [read_object(folder / RESULTS_FILE) for folder in folders]
        best = max(range(len(records)), key=lambda index: records[index]["validation"][self.task.metric])
        with self.args.main_process_first(local=False, desc="choosing the model"):
            if self.args.process_index == 0:
                # Copied, not moved, so that the point's model stays intact until the split is finished, even after a kill.
                with atomic_directory(model) as work:
                    shutil.copytree(folders[best] / "model", work, dirs_exist_ok=True)
        return {**records[best], "points": records}


def _format_row(record: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: record[name] for name in ("learning_rate", "batch_size", "best_step") if name in record}
    scores = {f"{split} {name}": value for split in SPLITS for name, value in record.get(split, {}).items()}
    return {"split": record["seed"], **row, **{name: f"{100 * value:.2f}" for name, value in scores.items()}}


def _write(path: Path, content: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
