"""Execution of the steps of a plan: each runs what its recipe does, in this process."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.config import parse, read_configs
from hf_tlm.corpora import CorpusArguments
from hf_tlm.data import train_wordpiece
from hf_tlm.experiments.arms import ReproductionError
from hf_tlm.experiments.plan import AVERAGE, TOKENIZER, TRAININGS, Plan, Step
from hf_tlm.influence import SelectionArguments
from hf_tlm.influence.checks import BY_TEACHER
from hf_tlm.models.arguments import InitializationArguments
from hf_tlm.retrieval import RetrievalArguments, Subset, retrieval_report
from hf_tlm.retrieval.subset import discard_damaged, subset_problem
from hf_tlm.runs.arguments import BaselineArguments
from hf_tlm.runs.averaging import Predictions, averaged_scores, class_indices, score_with_linear, seed_predictions
from hf_tlm.runs.baselines import make_baselines
from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments, finetune
from hf_tlm.runs.price import linear_price
from hf_tlm.runs.records import SPLITS, environment
from hf_tlm.runs.score_model import select_part
from hf_tlm.runs.tlm import run_tlm
from hf_tlm.tasks import Task, TaskArguments
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.training import Cost, ModelArguments, ScoreModelArguments, TlmArguments, prepare
from hf_tlm.training.teacher import teacher_cost
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.locks import awaited
from hf_tlm.utils.options import option
from hf_tlm.utils.run_files import seed_folder
from hf_tlm.utils.seals import SEAL, seal_problem, write_seal

logger = logging.getLogger(__name__)

SUBSETS = ("retrieve", "select_influence")  # Kinds of steps that write a subset.
SAMPLE_SEED = 0
MOST_ANSWERS = 10_000  # Records stay small: a split with more texts has no predictions in them.
COSTS = ("steps", "tokens", "real_tokens", "flops", "seconds")


@dataclass
class TokenizerArguments:
    """Settings of the WordPiece vocabulary that all arms of a task share."""

    passages: int = option(help="Number of random passages of the corpus, in addition to the task's training texts.")
    vocab_size: int = ModelArguments.vocab_size
    lowercase: bool = ModelArguments.lowercase
    max_length: int = TlmArguments.max_length


def parse_step(plan: Plan, step: Step, elsewhere: bool = False) -> tuple:
    """Parse the step's arguments as its recipe would.

    Args:
        elsewhere: trainings and selections will run on another machine, so this one needs no GPU for them.

    Raises:
        HfTlmError: an option is unknown to the recipe, or the recipe refuses a value.
    """
    values = plan.values(step)
    if elsewhere and step.kind in ("select_influence", "train_tlm", "finetune"):
        values |= {"use_cpu": True, "tf32": None}  # Without these, a machine without a GPU refuses bf16 and tf32.
    elif step.kind == "select_influence" and step.options["method"] not in ("iss", *BY_TEACHER):
        values |= {"bf16": False, "tf32": None}  # These methods compute nothing in these precisions.
    if values.get("retriever") == "random":
        values["index_dir"] = None  # An option of BM25 only; a random subset shares BM25's options.
    if step.kind == "train_tlm":
        values.pop("subset", None)
    if step.teachers:
        records = [read_record(plan.record_file(plan.by_name[teacher])) for teacher in step.teachers]
        if all(records):
            values["teacher"] = [str(model_folder(plan, record)) for record in records if record]
    if step.kind == AVERAGE:
        values = {name: value for name, value in values.items() if name not in step.inputs}
    if step.kind not in ("retrieve", "baseline", TOKENIZER, AVERAGE):
        values["output_dir"] = str(plan.folder(step))
    # Files have sections for recipes only, not for tokenizers and averages.
    files = ["--config", *plan.files] if plan.files and step.kind not in (TOKENIZER, AVERAGE) else []
    return parse(*RECIPES[step.kind][1], recipe=step.kind, description="", args=files, values=values)


def parse_task(plan: Plan, step: Step) -> TaskArguments:
    """Parse the step's task, without the other arguments of its recipe."""
    values = {**read_configs(plan.files, step.kind), **plan.values(step)}
    task_values = {entry.name: values[entry.name] for entry in fields(TaskArguments) if entry.name in values}
    (task_args,) = parse(TaskArguments, recipe=step.kind, description="", args=[], values=task_values)
    return task_args


def model_folder(plan: Plan, record: Mapping[str, Any]) -> Path:
    """Return the folder of a recorded run; for a record adopted from an equal run, the folder of that run."""
    return plan.output_dir / record.get("same_run_as", record["name"])


def make_step(plan: Plan, step: Step) -> dict[str, Any]:
    """Run a step, which writes its folder; return what its record adds to the plan's facts, such as scores and cost."""
    return RECIPES[step.kind][0](plan, step, *parse_step(plan, step))


def _make_tokenizer(
    plan: Plan, step: Step, task_args: TaskArguments, corpus_args: CorpusArguments, args: TokenizerArguments
) -> dict[str, Any]:
    """Train a task's tokenizer on its texts and a sample of the whole corpus, so that it favours no arm's subset."""
    rows = task_args.load().train
    texts = [text for name in columns_of_texts(rows) for text in rows[name][:]]
    details: dict[str, Any] = {"task_texts": len(texts), "corpus_passages": 0, "corpus": None}
    corpus = corpus_args.load(optional=True)
    if corpus is not None and args.passages:
        passages = corpus.to_dataset()
        size = min(args.passages, len(passages))
        sample = np.sort(np.random.default_rng(SAMPLE_SEED).choice(len(passages), size, replace=False))
        texts += passages.select(sample)["text"][:]
        details |= {"corpus_passages": size, "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint}}
    tokenizer = train_wordpiece(texts, args.vocab_size, lowercase=args.lowercase, max_length=args.max_length)
    with atomic_directory(plan.folder(step)) as work:
        tokenizer.save_pretrained(work)
        write_seal(work)
    return details | {"vocabulary": len(tokenizer)}


def damage(plan: Plan, step: Step) -> str | None:
    """Return what is wrong with the output of a finished step, in one line; None if nothing is wrong, or it does not exist.

    A tokenizer without a seal, from a version without seals, is accepted. The output of a training is checked when it is
    read.
    """
    folder = plan.folder(step)
    if step.kind == TOKENIZER and (folder / SEAL).is_file():
        return seal_problem(folder)
    return subset_problem(folder) if step.kind in SUBSETS and folder.is_dir() else None


def _save_subset(plan: Plan, step: Step, subset: Subset) -> None:
    """Save the subset of a step; a damaged one in its folder is replaced."""
    record = read_record(plan.record_file(step))
    if record is not None and record["status"] == "finished":
        discard_damaged(plan.folder(step))
    subset.save(plan.folder(step), report=retrieval_report(subset))


def _make_retrieval(
    plan: Plan, step: Step, task_args: TaskArguments, corpus_args: CorpusArguments, args: RetrievalArguments
) -> dict[str, Any]:
    task = task_args.load()
    subset = args.retrieve(task, corpus_args.load(optional=args.retriever == "elasticsearch"))
    _save_subset(plan, step, subset)
    return {"subset": describe_subset(subset)}


def _make_selection(
    plan: Plan,
    step: Step,
    task_args: TaskArguments,
    selection: SelectionArguments,
    model_args: ModelArguments,
    args: Any,
) -> dict[str, Any]:
    task, subset = task_args.load(), Subset.open(selection.subset)
    # Selections of one task share a score model and its scores in the cache: one computes them, and the others wait.
    lock: AbstractContextManager = awaited(plan.folder(step).with_name("influence"))
    lock = lock if selection.method == "iss" and args.process_index == 0 else nullcontext()
    with lock:
        start_time = time.time()  # The wait for another selection is not counted.
        selected = select_part(task, subset, selection, args, model_args)
    if args.process_index == 0:
        _save_subset(plan, step, selected)
    return {"subset": describe_subset(selected), "wall_seconds": round(time.time() - start_time, 1)}


def _make_training(
    plan: Plan, step: Step, task_args: TaskArguments, model_args: ModelArguments, args: Any
) -> dict[str, Any]:
    subset = _open_subset(plan, step)
    task = task_args.load()
    run = run_tlm(task, subset, args, model_args)
    return _describe_run(run, task) | {"subset": None if subset is None else describe_subset(subset)}


def _open_subset(plan: Plan, step: Step) -> Subset | None:
    folder = step.inputs.get("subset")
    return None if folder is None else Subset.open(str(plan.output_dir / folder))


def tokenise(plan: Plan, step: Step) -> None:
    """Tokenise the data of a training from scratch into the cache of `datasets`, as it does before its first step."""
    task_args, model_args, args = parse_step(plan, step, elsewhere=True)
    subset = _open_subset(plan, step)
    # Use default initialization options: initial weights would be computed in vain, as they are not kept.
    default_initialization = {entry.name: entry.default for entry in fields(InitializationArguments)}
    model_args = replace(model_args, **default_initialization)
    prepare(task_args.load(), None if subset is None else subset.dataset, args, model_args)


def _make_finetuning(plan: Plan, step: Step, task_args: TaskArguments, checkpoint: Any, args: Any) -> dict[str, Any]:
    task = task_args.load()
    return _describe_run(finetune(task, checkpoint, args), task) | {"checkpoint": asdict(checkpoint)}


def _make_baseline(plan: Plan, step: Step, task_args: TaskArguments, args: BaselineArguments) -> dict[str, Any]:
    task = task_args.load()
    (baseline,) = make_baselines(task, args.baseline)
    baseline.save(plan.folder(step), task)
    details = {"task_fingerprint": task.fingerprint, "metric": task.metric, "environment": environment(use_cpu=True)}
    if baseline.model is not None:
        details["price"] = linear_price(baseline.model, task)
    details |= _format_answers(task, {split: predictions.tolist() for split, predictions in baseline.predictions.items()})
    cost = Cost(seconds=baseline.seconds).to_dict()
    return {**details, **baseline.scores, "cost": cost, "parameters": None, "chosen": baseline.settings}


def _make_average(plan: Plan, step: Step, task_args: TaskArguments) -> dict[str, Any]:
    """Score the average of the seeds' stored predictions, and add up the seeds' costs."""
    steps = [plan.by_name[name] for name in step.inputs.values()]
    records = [record for training in steps if (record := read_record(plan.record_file(training)))]
    seeds = [seed_folder(model_folder(plan, record), record["seed"]) for record in records]
    task = task_args.load()
    scores = averaged_scores(task, seeds, "Copy the file again, or delete the record of its run and make the table again.")
    if missing := [split for split in SPLITS if split in records[0] and split not in scores]:
        raise ReproductionError(
            f"The predictions of {', '.join(step.inputs.values())} on {missing[0]} are incomplete in {plan.output_dir}: "
            "the runs were made elsewhere, their folders were deleted, or the task supports no average."
        )
    names = ("task_fingerprint", "metric", "environment", "subset")
    details: dict[str, Any] = {name: records[0][name] for name in names if name in records[0]}
    details |= _describe_predictions(task, {split: seed_predictions(task, seeds, split) for split in scores})
    details |= _add_up_teachers_and_prices(records)
    cost = _add_up([record["cost"] for record in records])
    parameters = sum(record["parameters"] for record in records)
    return {**details, **scores, "averaged": len(records), "cost": cost, "parameters": parameters}


def _add_up_teachers_and_prices(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the total cost of the teachers of these runs, and the total price of their models, if all records have one."""
    totals: dict[str, Any] = {}
    if teachers := [record["teacher"] for record in records if "teacher" in record]:
        totals["teacher"] = _add_up_teachers(teachers)
    if all("price" in record for record in records):
        price_keys = ("megabytes", "parameters", "milliseconds")  # Not texts per second, which cannot be added.
        totals["price"] = _add_up([{name: record["price"].get(name, {}) for name in price_keys} for record in records])
    return totals


def _add_up_teachers(teachers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the total cost of teachers: predicting counts for each, and training once for a teacher that seeds share."""
    asking = [{**teacher, "training": None} for teacher in teachers]
    trainings = {
        str(teacher["training"]): {"training": teacher["training"]} for teacher in teachers if teacher.get("training")
    }
    cost_records = [*asking, *trainings.values()]
    return {name: sum(teacher_cost(teacher, name) for teacher in cost_records) for name in ("flops", "seconds")}


def _add_up(mappings: Sequence[Any]) -> dict[str, Any]:
    """Sum the numbers that all of these mappings have, recursively in nested mappings."""
    total: dict[str, Any] = {}
    for name in mappings[0]:
        values = [mapping.get(name) for mapping in mappings]
        if all(isinstance(value, Mapping) for value in values):
            total[name] = _add_up(values)
        elif all(isinstance(value, (int, float)) for value in values):
            total[name] = sum(values)
    return total


# Kind of a step -> the function that runs it, and the classes of its arguments.
RECIPES: Mapping[str, tuple[Callable[..., dict[str, Any]], tuple[type, ...]]] = {
    TOKENIZER: (_make_tokenizer, (TaskArguments, CorpusArguments, TokenizerArguments)),
    "retrieve": (_make_retrieval, (TaskArguments, CorpusArguments, RetrievalArguments)),
    "select_influence": (_make_selection, (TaskArguments, SelectionArguments, ModelArguments, ScoreModelArguments)),
    "train_tlm": (_make_training, (TaskArguments, ModelArguments, TlmArguments)),
    "finetune": (_make_finetuning, (TaskArguments, CheckpointArguments, FinetuneArguments)),
    "baseline": (_make_baseline, (TaskArguments, BaselineArguments)),
    AVERAGE: (_make_average, (TaskArguments,)),
}


def _describe_run(run: Any, task: Task) -> dict[str, Any]:
    """Return the record of a run with one seed: its scores, its predictions, the task's facts and the environment."""
    names = ("task_fingerprint", "metric", "environment", "teacher")
    details = {name: run.details[name] for name in names if name in run.details}
    (record,) = run.seeds
    run_folder = run.output_dir / f"round-{run.details['round']}" if "round" in run.details else run.output_dir
    folder = seed_folder(run_folder, record["seed"])
    details |= _describe_predictions(
        task, {split: seed_predictions(task, [folder], split) for split in SPLITS if split in record}
    )
    return details | {name: value for name, value in record.items() if name != "seed"}


def _describe_predictions(task: Task, answers_by_split: Mapping[str, Predictions | None]) -> dict[str, Any]:
    """Return what a table compares models by: their predictions, and their scores when averaged with the linear model."""
    if any(answers is None for answers in answers_by_split.values()):
        return {}
    answers = {split: answers for split, answers in answers_by_split.items() if answers is not None}
    scores_with_linear = score_with_linear(task, answers)
    classes = {split: class_indices(task, predictions) for split, predictions in answers.items()}
    return {**_format_answers(task, classes), **({"with_linear": scores_with_linear} if scores_with_linear else {})}


def _format_answers(task: Task, classes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return labels and predictions of the last split as strings of numbers; empty for a large split.

    classes: split -> class indices, one for each row.
    """
    split = list(classes)[-1]
    if len(classes[split]) > MOST_ANSWERS:
        return {}
    columns = {"labels": task.splits[split]["label"], "predictions": classes[split]}
    return {"answers": {"split": split, **{name: " ".join(map(str, values)) for name, values in columns.items()}}}


def describe_subset(subset: Subset) -> dict[str, Any]:
    """Return what a table shows of a subset: how it was retrieved and selected, from which corpus, and its size."""
    manifest = subset.manifest
    names = ("method", "fraction", "layer", "parameters", "score_model", "size", "of")
    selection = manifest.get("selection")
    return {
        "passages": len(subset),
        "retriever": manifest["retriever"],
        "top_k": manifest.get("top_k"),
        "corpus": manifest["corpus"],
        "selection": selection and {name: selection[name] for name in names if name in selection},
    }


def discard_checkpoints(folder: Path) -> None:
    """Remove what only an unfinished run needs: checkpoints, and the models at the ends of stages.

    The model of stage 1 is kept if the run's result is an adapter, because it is the adapter's base.
    """
    adapter = (folder / "adapter_config.json").is_file()
    for pattern in ("seed-*/**/checkpoint-*", "seed-*/stage2/model" if adapter else "seed-*/stage*/model"):
        for intermediate in sorted(folder.glob(pattern)):
            if intermediate.is_dir():
                shutil.rmtree(intermediate)


def read_record(file: Path) -> dict[str, Any] | None:
    """Return the record of a step; None if it has none yet or, with a warning, a damaged one."""
    record = find_object(file)
    if record is None or _is_record(record):
        return record
    logger.warning("%s is damaged: it is not a record that recipes write. It will be created again.", file)
    return None


def _is_record(record: Mapping[str, Any]) -> bool:
    """Return whether an object has the fields of a record that tables need."""
    if record.get("status") not in ("finished", "failed") or not isinstance(record.get("settings"), dict):
        return False
    is_finished = record["status"] == "finished"
    if not all(isinstance(record.get(name), str) for name in ("name", "kind", *([] if is_finished else ["error"]))):
        return False
    if not is_finished or record["kind"] not in TRAININGS:
        return True
    metric, cost = record.get("metric"), record.get("cost")
    scores = [record[split] for split in SPLITS if split in record]
    return (
        type(record.get("seed")) is int
        and isinstance(metric, str)
        and isinstance(cost, dict)
        and all(isinstance(cost.get(name), (int, float)) for name in COSTS)
        and all(isinstance(score, dict) and isinstance(score.get(metric), (int, float)) for score in scores)
        and isinstance(record.get("subset") or {}, dict)
    )
