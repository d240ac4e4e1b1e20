"""Read and check the results of runs, one `Result` per seed, for the analyses that compare runs.

    for result in find_results({"rho1": "runs/rho1"}):
        print(result.run, result.seed, result.settings["rho1"], result.score("test"))

A path may be a run of `train_tlm.py`, `finetune.py`, `few_shot.py` or `baseline.py`, a grid, an output folder of
`reproduce.py`, or a folder of such folders.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from hf_tlm.errors import AnalysisError
from hf_tlm.tasks.spec import KINDS
from hf_tlm.utils.json_files import (
    check_fields,
    entry,
    listed,
    mapped,
    maybe,
    one_of,
    read_object,
    real,
    record,
    such,
    whole,
)
from hf_tlm.utils.run_files import GRID_FILE, RESULTS_FILE, SEED_FIGURES, SETTINGS_FILE
from hf_tlm.utils.shown import kind_of, suggested_path

_MAX_INTEGER = 10**300  # Largest integer accepted; the sum of larger ones may overflow a float.
SPLITS = ("validation", "test")
NOT_FINISHED = "not finished"
_DAMAGED = "The file is damaged."
read_json = partial(read_object, error=AnalysisError, advice="Create it again, or remove its folder from the analysis.")
_MAX_DEPTH = 4  # Levels of nested folders that are searched for runs.
# Names of folders inside a run, which are never runs themselves.
_INNER_FOLDERS = re.compile(
    r"\..*|(?:seed|split|checkpoint|nonfinite-step)-\d+|stage\d|predictions|model|mlm|training|analysis"
)
_SUBSET_FIELDS = "retriever query_mode max_query_terms top_k variant k1 b delta stopwords stemmer".split()
_SELECTION_FIELDS = ("method", "fraction", "layer")
_METHODS = {
    **{"bm25-rank": "by rank", "random": "at random", "iss": "by ISS", "dsir": "by DSIR"},
    **{"confidence": "by a teacher's confidence", "disagreement": "by teachers' disagreement"},
}


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a number that fits a float; NaN and infinity do."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= _MAX_INTEGER)


_NAME = such(lambda value: isinstance(value, str), "a text")
_TEXT, _OBJECT = maybe(_NAME), maybe(record({}))
_INTEGER, _COUNT = such(lambda value: isinstance(value, int), "a whole number"), maybe(whole(0, 2**53))
_NUMBER = maybe(such(is_number, "a number"))
_NUMBERS, _COSTS = maybe(mapped(_NUMBER, 10**6)), maybe(mapped(maybe(real(0, 1e300)), 10**6))
_MANIFEST_FIELDS = {
    **{"retriever": _TEXT, "top_k": _COUNT, "corpus": maybe(record({"size": _COUNT, "tokens": _COUNT}))},
    "counts": maybe(record({"union": _COUNT, "passages": _COUNT})),
    "selection": maybe(record({"size": _COUNT, "method": _TEXT, "fraction": _NUMBER})),
}
_COST_FIELDS = {"flops": _NUMBER, "seconds": _NUMBER}
_TEACHER = maybe(record({**_COST_FIELDS, "training": maybe(record(_COST_FIELDS))}))
_RUN_FIELDS = {
    **{"metric": _TEXT, "task": maybe(such(lambda value: isinstance(value, (str, dict)), "a text or an object"))},
    **{"kind": maybe(one_of(*KINDS)), "arguments": _OBJECT, "model": _OBJECT, "subset": maybe(record(_MANIFEST_FIELDS))},
    "teacher": _TEACHER,
    **{"cost": _COSTS, "validation": _NUMBERS, "test": _NUMBERS, "held_out": maybe(mapped(real(0, 1), 100))},
    **dict.fromkeys(("seeds", "splits"), maybe(listed(lambda value: value, 10**6))),
}
_TABLE_FIELDS = {
    **dict.fromkeys(("name", "kind", "task", "arm", "status"), _NAME),
    **{"seed": _INTEGER, "settings": record({}), "error": _TEXT, "metric": _TEXT, "teacher": _TEACHER},
    **{"validation": _NUMBERS, "test": _NUMBERS, "cost": _COSTS, "subset": maybe(record(_MANIFEST_FIELDS))},
}
_TAG = record({"support": whole(0, 2**53), **dict.fromkeys(("precision", "recall", "f1"), real(0, 1))})
_SEED_FIELDS = {
    **{"seed": _INTEGER, "parameters": maybe(_INTEGER), "trained_parameters": maybe(_INTEGER)},
    **{"cost": _COSTS, "validation": _NUMBERS, "test": _NUMBERS},
    **{
        "stages": maybe(mapped(maybe(record({"cost": _COSTS})), 100)),
        "history": maybe(listed(record({}), 10**7)),
        "tables": maybe(mapped(record({"tags": maybe(listed(_TAG, 10**6))}), 100)),
    },
}


def check_record(record: Mapping[str, Any], path: Path) -> None:
    """Check the record of a run, or a subset's manifest.

    Raises:
        AnalysisError: a field has a type that no recipe writes, or the kind of task is unknown.
    """
    fields = _RUN_FIELDS if record.get("subset") else _RUN_FIELDS | _MANIFEST_FIELDS
    check_fields(record, fields, AnalysisError, f"{path} is not what recipes write", _DAMAGED)


def check_seed(record: Any, path: Path) -> None:
    """Check the record of a seed, or of a split, like `check_record`."""
    seed = entry(record, "seed")
    where = f"{path} is not what recipes write: the record of {'a seed' if seed is None else f'seed {seed!r:.60}'}"
    check_fields(record, _SEED_FIELDS, AnalysisError, where, _DAMAGED)


@dataclass(frozen=True)
class Result:
    """The result of one seed of a run.

    run: the name of its folder, relative to the given path.
    arm: the name under which results are compared: the arm of `reproduce.py`, else the run's name without the task's.
    scores: split -> metric -> score, a share of 1; empty if there are none.
    cost: see `hf_tlm.training.cost.Cost`.
    teacher: the record of the teacher; empty without a teacher.
    settings: name -> value of the arguments, the model's and the subset's settings; `subset` describes the subset in words.
    seed_figure: the statistic that the run reports over its seeds, see `hf_tlm.utils.run_files`; for a point of a grid, the
        grid's; None for an unfinished run, which has not recorded it yet.
    error: why there are no scores; None if there are.
    """

    run: str
    folder: Path
    task: str
    arm: str
    seed: int | None
    metric: str | None = None
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    teacher: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed_figure: str | None = "mean"
    error: str | None = None

    def score(self, split: str) -> float | None:
        """Return the score on the task's metric, a share of 1; None if it is missing or not finite."""
        value = self.scores.get(split, {}).get(self.metric or "")
        return value if value is not None and math.isfinite(value) else None


def find_results(places: Mapping[str, str | os.PathLike]) -> list[Result]:
    """Return the results of all seeds of all runs in the given folders, in the order of `places` and of folder names.

    Args:
        places: name -> folder.

    Raises:
        AnalysisError: a folder does not exist, none has a run with a task, or a file of a run is not what recipes write.
    """
    check_places(places)
    results: list[Result] = []
    for name, path in places.items():
        if not Path(path).is_dir():
            raise AnalysisError(f"Expected folders of runs; there is no folder {path}.{suggested_path(str(path))}")
        results += _read_folder(Path(path), name, "" if len(places) == 1 else f"{name}/", 0)
    if not results:
        listed = ", ".join(map(str, places.values())) or "no folder given"
        raise AnalysisError(
            f"No run with a task is in {listed}. Set --run to folders written by `hf-tlm train`, finetune, few-shot, "
            "reproduce or baseline, or to a folder of such folders."
        )
    return results


def check_places(places: Any) -> None:
    """Check that `places` maps names to folders, or raise an AnalysisError that says what to pass."""
    if not isinstance(places, Mapping):
        raise AnalysisError(
            f"places: expected a mapping of names to folders; received {kind_of(places)}. Pass {{name: folder}}."
        )


def is_baseline(record: Mapping[str, Any]) -> bool:
    """Return whether the record was written by `hf-tlm baseline`."""
    return isinstance(record.get("scores"), dict) and "name" in record and "seeds" not in record


def baseline_seed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a baseline in the form of a seed's record. A baseline is deterministic, so it has one seed."""
    return {"seed": 0, **{split: record["scores"][split] for split in SPLITS if split in record["scores"]}}


def subfolders(folder: Path) -> list[Path]:
    """Return the folders that may contain runs: neither hidden nor part of a run, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _INNER_FOLDERS.fullmatch(path.name))


def _read_folder(folder: Path, name: str, prefix: str, depth: int) -> Iterator[Result]:
    records = sorted((folder / "runs").glob("*.json"))
    file = next((path for path in (folder / RESULTS_FILE, folder / SETTINGS_FILE) if path.is_file()), None)
    if records:
        yield from _complete_failed_settings([_read_table_record(path, folder, prefix) for path in records])
    elif (folder / GRID_FILE).is_file():
        # The grid's statistic overrides that of its points: running a grid again with another one does not rerun the points.
        statistic = _recorded_statistic(read_json(folder / GRID_FILE))
        yield from (replace(result, seed_figure=statistic) for result in _read_subfolders(folder / "points", prefix, depth))
    elif file is not None:
        yield from _read_run_results(folder, name, read_json(file))
    elif depth < _MAX_DEPTH:
        yield from _read_subfolders(folder, prefix, depth)


def _read_subfolders(folder: Path, prefix: str, depth: int) -> Iterator[Result]:
    for path in subfolders(folder) if folder.is_dir() else ():
        yield from _read_folder(path, f"{prefix}{path.name}", f"{prefix}{path.name}/", depth + 1)


def _read_run_results(folder: Path, name: str, content: Mapping[str, Any]) -> Iterator[Result]:
    """Yield the results of one run; none for a pretraining, which has no task."""
    task = content.get("task")
    if not isinstance(task, str):
        return
    check_record(content, folder / RESULTS_FILE)
    arm, metric = _strip_task_name(name, task), content.get("metric")
    seeds = content.get("seeds") or content.get("splits") or ([baseline_seed(content)] if is_baseline(content) else None)
    statistic = None if seeds is None else _recorded_statistic(content)
    create_result = partial(Result, run=name, folder=folder, task=task, arm=arm, metric=metric, seed_figure=statistic)
    create_seed_result = partial(create_result, settings=_flatten_settings(content), teacher=content.get("teacher") or {})
    if seeds is None:  # Interrupted: the finished seeds have their own folders.
        seeds = [read_json(path) for path in sorted(folder.glob("s[ep]*-*/results.json"))]
        yield create_seed_result(seed=None, error=NOT_FINISHED)
    for seed_record in seeds:
        check_seed(seed_record, folder / RESULTS_FILE)
        scores = {split: seed_record[split] for split in SPLITS if seed_record.get(split)}
        yield create_seed_result(seed=seed_record["seed"], scores=scores, cost=seed_record.get("cost") or {})


def _recorded_statistic(record: Mapping[str, Any]) -> str:
    statistic = str(record.get("seed_figure"))
    return statistic if statistic in SEED_FIGURES else "mean"


def _complete_failed_settings(results: Sequence[Result]) -> list[Result]:
    """Give a failed run, whose record says less about its subset, the settings of its arm's finished seeds."""
    settings_by_arm = {(result.task, result.arm): result.settings for result in results if result.error is None}
    return [
        result
        if result.error is None
        else replace(result, settings=settings_by_arm.get((result.task, result.arm), result.settings))
        for result in results
    ]


def _read_table_record(path: Path, folder: Path, prefix: str) -> Result:
    """Return the result in a record that `reproduce.py` wrote for one run, finished or failed."""
    record = read_json(path)
    check_fields(record, _TABLE_FIELDS, AnalysisError, f"{path} is not the record of a run", _DAMAGED)
    settings, subset = dict(record["settings"]), record.get("subset")
    settings |= _subset_settings(subset, settings.get("subset")) if record["kind"] == "train_tlm" else {}
    # A teacher of the same table is the training with the pupil's own seed, so that its name differs between seeds.
    teacher, _, seed = str(settings.get("teacher")).rpartition("/")
    if teacher.startswith(f"{record['task']}/") and seed == f"seed-{record['seed']}":
        settings["teacher"] = teacher
    return Result(
        run=prefix + record["name"],
        folder=folder / record["name"],
        task=record["task"],
        arm=record["arm"],
        seed=record["seed"],
        metric=record.get("metric"),
        scores={split: record[split] for split in SPLITS if record.get(split)},
        cost=record.get("cost") or {},
        teacher=record.get("teacher") or {},
        settings={name: v for name, v in settings.items() if name != "seed"}
        | {"arm": record["arm"], "task": record["task"]},
        error=record.get("error") or "it failed" if record["status"] != "finished" else None,
    )


def _flatten_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**(content.get("model") or {}), **(content.get("arguments") or {})}
    if "subset" in content:
        settings |= _subset_settings(content["subset"], None)
    return {**settings, "task": content["task"]}


def _subset_settings(subset: Mapping[str, Any] | None, path: str | None) -> dict[str, Any]:
    """Return the settings of a subset, from its manifest or from the record of `reproduce.py`.

    Args:
        path: the subset's path in the settings of a failed run, which records nothing else; None for others.
    """
    if subset is None:
        return {"subset": path or "task only"}
    selection = subset.get("selection") or {}
    settings = {name: subset[name] for name in _SUBSET_FIELDS if name in subset}
    settings |= {name: selection[name] for name in _SELECTION_FIELDS if selection.get(name) is not None}
    words = str(subset.get("retriever") or "unknown").replace("bm25", "BM25")
    if selection:
        share = (
            f"{100 * selection['fraction']:g}%" if selection.get("fraction") else f"{selection.get('size', 'some')} passages"
        )
        method = selection.get("method") or ""
        words += f", {share} {_METHODS.get(method, method or 'chosen')}"
    return {**settings, "subset": words}


def _strip_task_name(name: str, task: str) -> str:
    """Return the run's name without that of its task: `iss-20` for a run `scierc-iss-20` on scierc."""
    short = re.escape(task.removeprefix("glue_"))
    shortened = re.sub(rf"(?<![A-Za-z0-9])(?:glue_)?{short}(?![A-Za-z0-9])", "", name, flags=re.IGNORECASE)
    return re.sub(r"(?<=[-_./])[-_./]+|^[-_./]+|[-_./]+$", "", shortened) or name
