"""Report sections on a run's predictions: confusion matrices, errors, and scores by groups of rows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.analysis.report.blocks import (
    Column,
    Matrix,
    Row,
    Section,
    Table,
    Text,
    make_table,
    printable,
    scatter,
    texts_table,
)
from hf_tlm.analysis.report.predictions import (
    SCORES,
    Group,
    Predictions,
    Rows,
    TrainingWords,
    by_quantile,
    by_value,
    heading,
    mean_and_std,
    read_predictions,
    rows_of,
    tags_of,
)
from hf_tlm.analysis.report.run_folder import RunFolder
from hf_tlm.analysis.runs import SPLITS
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.json_files import read_json
from hf_tlm.utils.run_files import EXAMPLES_FILE, TRAIN_IDS_FILE

if TYPE_CHECKING:
    from hf_tlm.tasks import Task

MOST_CLASSES = 25
OTHERS = "(others)"
ABOUT_ERRORS = {
    "tagging": "The words with a wrong tag are listed for each sentence; the probability is the highest of these tags.",
    "question_answering": "An answer is an error unless it equals a correct one, ignoring case, punctuation and articles.",
}
LONGEST_NAME = 60
NARROW_MATRIX = 4  # Most classes for two matrices side by side.

# Split -> its predictions, and their rows if the task is available, else None.
Predicted = dict[str, tuple[Predictions, Rows | None]]


def predictions_of(run: RunFolder, task: Task | None, options: ReportPageArguments, missing: list[str]) -> Predicted:
    """Read the predictions of a run on each split; add sentences to `missing` about what is not available."""
    predicted: Predicted = {}
    file, training_ids = _training_examples(run)
    training = None if task is None else TrainingWords(task, training_ids)
    scored = [split for split in SPLITS if any(split in record for record in run.seeds)]
    if run.kind == "few_shot":
        scored = ["test"]  # Every split has validation examples of its own.
    for split in scored if run.kind not in ("pretrain", "subset") else ():
        predictions, absent = read_predictions(run, split)
        missing += absent
        if predictions is not None:
            scored_split = run.record.get("scored_split", split)
            rows = None if training is None else rows_of(training, scored_split, predictions.ids, options.rare_below)
            predicted[split] = predictions, rows
    if predicted and task is None:
        missing.append(
            "The task's texts: predictions are shown by id, and the error analysis has no groups by length or rare "
            "words. Pass the run's task as --task."
        )
    if predicted and task is not None and file is not None and training_ids is None:
        missing.append(
            f"The training examples of {run.part} {run.best_seed}: {file} in its folder is missing or damaged, so rare "
            "words are determined from the task's complete training split."
        )
    return predicted


def error_sections(run: RunFolder, predicted: Predicted, options: ReportPageArguments) -> list[Section]:
    """Return the sections on confusions, errors and their analysis, with every split in each."""
    by_section: dict[str, list[Any]] = {"confusion": [], "errors": [], "analysis": []}
    for predictions, rows in predicted.values():
        by_section["confusion"] += [*confusions(predictions), *tag_tables(predictions, run.seeds)]
        if not by_section["errors"] and predictions.kind in ABOUT_ERRORS:
            by_section["errors"].append(Text(ABOUT_ERRORS[predictions.kind]))
        by_section["errors"].append(error_table(predictions, rows, run.best_seed, options))
        by_section["analysis"] += group_tables(predictions, groups_of(predictions, rows))
    titles = {"confusion": "Confusions", "errors": "Errors", "analysis": "Error analysis"}
    if by_section["confusion"] and not any(
        len(getattr(block, "names", ())) > NARROW_MATRIX for block in by_section["confusion"]
    ):
        by_section["confusion"] = [Row(by_section["confusion"])]
    if by_section["analysis"]:
        by_section["analysis"] = [Row(by_section["analysis"])]
    return [Section(titles[name], name, blocks) for name, blocks in by_section.items() if blocks]


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix; counts: int64 [C, C], rows are true classes, columns predicted ones."""

    names: Sequence[str]
    counts: np.ndarray

    @property
    def support(self) -> np.ndarray:
        """Number of rows of each true class, int64 [C]."""
        return self.counts.sum(axis=1)

    @property
    def shares(self) -> np.ndarray:
        """Share of each prediction within its true class, float [C, C]; 0 for a class without rows."""
        return self.counts / np.maximum(1, self.support)[:, None]


def confusion(pairs: Iterable[tuple[str, str]], names: Sequence[str] = ()) -> Confusion:
    """Count (true class, predicted class) pairs; classes in the order of `names`, then others by frequency and name."""
    pairs = list(pairs)
    frequency = Counter(truth for truth, _ in pairs)
    others = {name for pair in pairs for name in pair} - set(names)
    ordered = [*names, *sorted(others, key=lambda name: (-frequency[name], name))]
    class_index = {name: index for index, name in enumerate(ordered)}
    counts = np.zeros((len(ordered), len(ordered)), np.int64)
    for (truth, predicted), count in Counter(pairs).items():
        counts[class_index[truth], class_index[predicted]] = count
    return Confusion(ordered, counts)


def fewer_classes(found: Confusion, most: int = MOST_CLASSES) -> Confusion:
    """Keep the most frequent classes in their order, and merge all others into one."""
    if len(found.names) <= most:
        return found
    kept = np.sort(np.argsort(-found.support, kind="stable")[: most - 1])
    merged = np.setdiff1d(np.arange(len(found.names)), kept)
    groups = [*(np.array([index]) for index in kept), merged]
    counts = np.array([[found.counts[np.ix_(rows, columns)].sum() for columns in groups] for rows in groups])
    return Confusion([*(found.names[index] for index in kept), OTHERS], counts)


def confusions(found: Predictions) -> list[Any]:
    """Return the confusion matrix of classes, all seeds together, or the scatter plot of a regression; else nothing."""
    judged = [row for rows in found.by_seed.values() for row in rows]
    if found.kind == "regression":
        chart = scatter(f"{found.split}: predicted against true", "true", "predicted", [row.numbers for row in judged])
        return [chart] if chart else []
    if found.kind not in ("classification", "multiple_choice"):
        return []
    shown = fewer_classes(confusion([(row.gold, row.predicted) for row in judged], found.names))
    n = len(found.seeds)
    caption = f"{found.split}: share of each true class (row) by predicted class (column), and counts"
    caption += f" of {n} {found.part}s together" if n > 1 else ""
    names = [printable(name, LONGEST_NAME) for name in shown.names]
    counts = [[f"{count:,}" for count in row] for row in shown.counts.tolist()]
    return [Matrix(caption, names, counts, shown.shares.tolist())]


def error_table(found: Predictions, rows: Rows | None, best: int | None, options: ReportPageArguments) -> Table:
    """Return a table of errors of the model best on validation, most confident first, with the number of seeds that err.

    For a regression, all rows are listed, with the largest absolute error first.
    """
    seed = best if best is not None and best in found.by_seed else found.seeds[0]
    judged = found.by_seed[seed]
    regression = found.kind == "regression"
    wrong = [index for index, row in enumerate(judged) if not row.right]
    wrong.sort(key=lambda index: -(judged[index].score if regression else judged[index].probability or 0.0))
    several = len(found.seeds) > 1 and not regression
    columns = [Column("id"), *([Column("text", wide=True)] if rows else []), Column("gold"), Column("predicted")]
    probability = {"probability": Column("probability", "number", "{:.3f}")}
    numbers = {
        "regression": {"score": Column("absolute error", "number", "{:.3f}")},
        "question_answering": probability | {"score": Column("F1", "number", "{:.2f}")},
        "tagging": probability | {"score": Column("share of correct tags", "number", "{:.2f}")},
    }.get(found.kind, probability | {"of_gold": Column("probability of gold", "number", "{:.3f}")})
    columns += numbers.values()
    columns += [Column(f"wrong in (of {len(found.seeds)} {found.part}s)", "number")] if several else []

    def values(index: int) -> list[Any]:
        row = judged[index]
        gold, predicted = row.gold, row.predicted
        if row.wrong and rows:
            words = rows.columns["tokens"][index]
            gold, predicted = tags_of(row.wrong, 1, words), tags_of(row.wrong, 2, words)
        shown = (getattr(row, name) for name in numbers)
        misses = [int((~found.right[:, index]).sum())] if several else []
        return [row.id, *([rows.texts[index]] if rows else []), gold, predicted, *shown, *misses]

    title = "Rows, the largest error first" if regression else "Errors, the most confident first"
    model_note = f" ({found.part} {seed}, the best on validation)" if len(found.seeds) > 1 else ""
    caption = f"{found.split}: {title.lower()}{model_note}"
    return texts_table(caption, columns, map(values, wrong), len(wrong), options)


def groups_of(found: Predictions, rows: Rows | None) -> dict[str, list[Group]]:
    """Return criterion -> groups of rows: by class or true number, and by what `rows` distinguish."""
    groups: dict[str, list[Group]] = {}
    judged = next(iter(found.by_seed.values()))
    if found.kind in ("classification", "multiple_choice"):
        groups["Class"] = by_value([row.gold for row in judged], found.names)
    elif found.kind == "regression":
        groups["True number"] = by_quantile(np.array([row.numbers[0] for row in judged]), "{:g}")
    return groups | (rows.groups if rows else {})


def group_tables(found: Predictions, groups: dict[str, list[Group]]) -> list[Table]:
    """Return a table for each criterion: rows and score, with deviation over seeds; for classes also precision and F1."""
    score_name = SCORES[found.kind]
    as_share = found.larger_is_better
    tables = []
    for criterion, members in groups.items():
        columns = [
            Column(heading(criterion)),
            Column("rows", "number"),
            Column(score_name, "share" if as_share else "number", "{:.3f}"),
        ]
        deviation = Column("±\u00a0/%", "number", "{:.1f}") if as_share else Column("±", "number", "{:.3f}")
        columns += [deviation] if len(found.seeds) > 1 else []
        values: list[list[Any]] = []
        for group in members:
            mean, std = mean_and_std(found.scores[:, group.rows])
            values.append([group.name, len(group.rows), mean, *([] if std is None else [100 * std if as_share else std])])
        if criterion == "Class":
            columns += [Column("precision", "share"), Column("F1", "share")]
            for row, extra in zip(values, _precision_and_f1(found, [group.name for group in members]), strict=True):
                row += extra
        tables.append(
            make_table(
                f"{found.split}: {score_name} by {criterion[0].lower()}{criterion[1:]}", columns, values, characters=200
            )
        )
    return tables


def tag_tables(found: Predictions, seeds: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of tags that a tagging run recorded, means over its seeds, in a list; empty without one."""
    by_tag: dict[str, list[dict[str, Any]]] = {}
    for record in seeds:
        for row in ((record.get("tables") or {}).get(found.split) or {}).get("tags") or ():
            by_tag.setdefault(str(row.get("tag")), []).append(row)
    if not by_tag:
        return []
    columns = [Column("tag"), Column("words", "number"), *(Column(name, "share") for name in ("precision", "recall", "F1"))]
    rows = [
        (
            tag,
            tag_rows[0]["support"],
            *(float(np.mean([row[name] for row in tag_rows])) for name in ("precision", "recall", "f1")),
        )
        for tag, tag_rows in by_tag.items()
    ]
    return [make_table(f"{found.split}: tags", columns, rows)]


def _training_examples(run: RunFolder) -> tuple[str | None, frozenset[str] | None]:
    """Return (file that lists the best seed's training examples, their ids).

    The file is None if all examples were used, the ids None if the file cannot be read.
    """
    arguments = run.record.get("arguments")
    is_sampled = isinstance(arguments, dict) and arguments.get("train_fraction", 1) != 1
    if run.best_seed is None or not (is_sampled or run.kind == "few_shot"):
        return None, None
    file, ids = EXAMPLES_FILE if run.kind == "few_shot" else TRAIN_IDS_FILE, None
    with contextlib.suppress(OSError, HfTlmError):
        ids = read_json(run.seed_folder(run.best_seed) / file, HfTlmError)
    if run.kind == "few_shot":
        ids = ids.get("train") if isinstance(ids, dict) else None
    return file, frozenset(map(str, ids)) if isinstance(ids, list) else None


def _precision_and_f1(predictions: Predictions, names: Sequence[str]) -> list[list[float]]:
    """Return precision and F1 of each class, [classes, 2], means over the seeds; 0 for a class never predicted."""
    by_seed = []
    for rows in predictions.by_seed.values():
        table = confusion([(row.gold, row.predicted) for row in rows], predictions.names)
        right, predicted = np.diagonal(table.counts), table.counts.sum(axis=0)
        values = np.stack([right / np.maximum(1, predicted), 2 * right / np.maximum(1, predicted + table.support)], axis=1)
        by_seed.append(values[[table.names.index(name) for name in names]])
    return np.mean(by_seed, axis=0).tolist()
