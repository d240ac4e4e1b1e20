"""Fine-tuning by the papers' protocol: of all labels or a share, one model per seed, chosen by validation, tested once."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from peft import PeftModel
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, set_seed

from hf_tlm.data.text_checks import spread_texts, warn_of_cut
from hf_tlm.hub.cards import finetuned_card
from hf_tlm.models import export_adapter, trained_parameters
from hf_tlm.models.base import save_tokenizer
from hf_tlm.objectives import TaskLoss, TeacherLoss, ValueLoss, WeightedSum
from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset import check_subset
from hf_tlm.runs.arguments import CheckpointArguments
from hf_tlm.runs.averaging import averaged_seeds, beside, of_one_class
from hf_tlm.runs.baselines import to_beat
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import PEFT_TASK_TYPES, EvaluationSet, check_kind, kind_module, label_names
from hf_tlm.runs.finetuning.models import FinetuneTrainer, load_finetuned, load_model, load_pretrained
from hf_tlm.runs.price import price
from hf_tlm.runs.records import (
    SAVED_FILE,
    SeededRun,
    logged_scores,
    predictions_jsonl,
    read_saved,
    saved_settings,
    started,
    summarise,
)
from hf_tlm.runs.sharing import share_seeds
from hf_tlm.runs.teachers.ask import ask_teacher, check_passage_options, content_of, open_teacher
from hf_tlm.tasks import Task
from hf_tlm.tasks.sampling import strata
from hf_tlm.tasks.spec import check_task
from hf_tlm.training import ArgumentsError
from hf_tlm.training.base_trainer import trained_model
from hf_tlm.training.optimizers import check_adapted
from hf_tlm.training.publishing import CheckpointPushes, check_hub, fetch_run
from hf_tlm.training.run_folder import SEED, claim, finish, finished, saying_if_finished, settings, unseal
from hf_tlm.training.teacher import Teacher
from hf_tlm.utils.files import atomic_directory, atomic_write
from hf_tlm.utils.locks import shares_output_dir
from hf_tlm.utils.options import check_given
from hf_tlm.utils.process import uses_fsdp
from hf_tlm.utils.run_files import PREDICTIONS, TRAIN_IDS_FILE, predictions_file, seed_folder


def draw_fraction(train: Dataset, fraction: float, seed: int, kind: str) -> np.ndarray:
    """Indices, int64 and ascending, of round(fraction x n) of the n examples of every class, at least one of each.

    They depend on the data, the fraction and the seed alone, so that every model learns from the same ones, and those of a
    smaller fraction are among those of a larger one. Regression draws from ten quantiles of its labels as from classes;
    question answering, multiple choice and tagging from all examples together (COCO-LM, Figure 7, has fractions of MNLI).

    Args:
        train: column `label` for classification and regression.
        fraction: in (0, 1]; 1 is all of them.
        kind: of the task, see `hf_tlm.tasks.TaskSpec`.
    """
    if fraction == 1:
        return np.arange(len(train))
    groups, drawn = strata(train, kind), []
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        order = np.random.default_rng([seed, int(group)]).permutation(members)
        drawn.append(order[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(drawn))


class FinetuneRun(SeededRun):
    """What `finetune` returns and writes as `results.json`."""


@shares_output_dir
def finetune(
    task: Task,
    checkpoint: CheckpointArguments,
    args: FinetuneArguments,
    *,
    test: bool = True,
    subset: Subset | None = None,
) -> FinetuneRun:
    """Fine-tune a pretrained encoder on a task, once per seed, in `args.output_dir`.

    The folder then holds the stock model of the seed best on validation (an adapter with `use_peft`), its tokenizer and
    card, `results.json`, and `seed-<n>/` with each seed's model, predictions and results. Finished seeds are not repeated,
    and an interrupted one continues, when the same settings are run in the same folder again; several such processes share
    the seeds.

    The test split is scored once a seed, with the checkpoint that validation has chosen.

    Args:
        test: False leaves the test split alone, for runs that are yet to be chosen from. The same call with True scores it.
        subset: passages that the teacher of `args` answers for, which are then training texts too.

    Raises:
        ArgumentsError: options that the kind of task has no use for, or that do not go together.
        ProtocolError: the folder holds a run with other settings, or other files.
        ModelError, TokenizerError, HubError: see `load_pretrained`, `load_model`.
    """
    check_task(task)
    if subset is not None:
        check_subset(subset)
    check_given(ArgumentsError, checkpoint=(checkpoint, CheckpointArguments), args=(args, FinetuneArguments))
    check_kind(args, task.spec.kind)
    check_finetuning(checkpoint, args)
    if subset is not None and not args.taught:
        raise ArgumentsError("The passages of a subset have no labels: fine-tuning on them needs a --teacher. Give one.")
    output_dir = args.folder
    details = {
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        **task.about_splits(),
        "kind": task.spec.kind,
        "metric": task.metric,
        "further_metrics": list(task.spec.further_metrics),
        "arguments": settings(args),
        "model": asdict(checkpoint),
    }
    with args.main_process_first(desc="checking the output folder"):
        with saying_if_finished(output_dir):
            pretrained = load_pretrained(task, checkpoint, args.max_length)
            content = content_of(open_teacher(task, args))
        check_passage_options(task, subset is not None, args)
        check_hub(args, adapter=checkpoint.use_peft, base=checkpoint.model_name_or_path)
        fetch_run(args)
        if subset is not None:
            details["teacher_subset"] = subset.manifest
        data = ("task_fingerprint", "kind", "metric", "further_metrics", "teacher_subset", "teacher_content")
        given = {"teacher_subset": None, **details, "teacher_content": content}
        claimed = claim(output_dir, given, data, args.process_index, options=(args, checkpoint))
    if args.seed_figure != "mean":
        details["seed_figure"] = args.seed_figure
    details |= {"pairs": task.has_pairs, **started(details)}
    if args.process_index == 0:
        if task.kind in ("classification", "regression"):
            sample, advice = spread_texts(task.train), "Give a longer --max_length, if the model's positions suffice."
            warn_of_cut("the task's training texts", sample, pretrained[-1], args.max_length, advice)
        if subset is not None:
            subset.tell_of_other_task(task)
        details["baselines"] = to_beat(task, _draws(task, args))
    passages = None if subset is None else subset.dataset
    with claimed:
        teacher = ask_teacher(task, passages, args)
    if teacher is not None:
        details |= teacher.write(output_dir if args.process_index == 0 else None)
    with claimed, CheckpointPushes(output_dir, args) as pushes:
        seeds = _Seeds(task, checkpoint, args, details, *pretrained, pushes, test, teacher, passages)
        records = share_seeds(args, seeds.train, seeds.has_all, alone=args.pushes_checkpoints)
    if args.process_index == 0:
        details |= {**averaged_seeds(task, output_dir, records), **of_one_class(task, output_dir, records)}
        if args.train_fraction == 1:  # Else baselines are of draws, too.
            details |= beside(task, output_dir, records, details["baselines"])
    run = FinetuneRun(records, summarise(records, args.seed_figure), details, output_dir).write(args, finetuned_card)
    pushes.check()
    return run


def _draws(task: Task, args: FinetuneArguments) -> list[Task]:
    """The task as each seed learns it, where that is from a share of the training texts."""
    if args.train_fraction == 1 or task.spec.kind != "classification":
        return []
    chosen = [draw_fraction(task.train, args.train_fraction, seed, task.spec.kind) for seed in args.run_seeds]
    return [replace(task, splits={**task.splits, "train": task.train.select(rows)}) for rows in chosen]


def check_finetuning(checkpoint: CheckpointArguments, args: FinetuneArguments) -> None:
    """Refuse options of fine-tuning that do not go together, for which it needs no task.

    Raises:
        ArgumentsError: FSDP, use_peft with Muon or crf, or label smoothing with crf.
    """
    if uses_fsdp(args):
        raise ArgumentsError("Fine-tuning does not work with FSDP. Use DDP: the preset accelerate/ddp.")
    if args.crf and args.label_smoothing_factor:
        raise ArgumentsError(
            f"label_smoothing_factor {args.label_smoothing_factor} smooths the loss of single tags, and with crf "
            "the loss is of whole sentences. Leave one of them out."
        )
    check_adapted(args, checkpoint.use_peft)
    if checkpoint.use_peft and args.crf:
        raise ArgumentsError("use_peft adapts a stock model, and with crf there is a CRF around it. Leave one of them out.")


@dataclass
class _Seeds:
    """What the seeds of a run have in common."""

    task: Task
    checkpoint: CheckpointArguments
    args: FinetuneArguments
    details: Mapping[str, Any]
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    pushes: CheckpointPushes
    test: bool
    teacher: Teacher | None = None
    passages: Dataset | None = None

    @cached_property
    def held_out(self) -> dict[str, EvaluationSet]:
        """Validation, and test where there is one and it is asked for. Finished seeds need neither."""
        splits = ("validation", "test") if self.test else ("validation",)
        kind = kind_module(self.task.spec.kind)
        with self.args.main_process_first(desc="tokenising"):
            return {
                split: EvaluationSet(kind, self.task.splits[split], self.tokenizer, self.args)
                for split in splits
                if split in self.task.splits
            }

    def has_all(self, record: Mapping[str, Any]) -> bool:
        """Whether a finished seed has its test scores, where they are asked for."""
        return not self.test or self.task.test is None or "test" in record

    def train(self, seed: int) -> dict[str, Any]:
        """Training, evaluation, predictions and export of one seed; loaded where it is finished."""
        folder = seed_folder(self.args.folder, seed)
        if (record := finished(folder, self.args, fields=SEED)) is not None:
            self._discard_checkpoints(folder)  # A kill between record and removal has left them.
            return record if self.has_all(record) else self._tested(record, folder)
        task, args = self.task, self.args
        kind, config, tokenizer = kind_module(task.spec.kind), self.config, self.tokenizer
        chosen = draw_fraction(task.train, args.train_fraction, seed, task.spec.kind)
        with args.main_process_first(desc="tokenising train"):
            rows = task.train if len(chosen) == len(task.train) else task.train.select(chosen)
            features = kind.encode(rows, tokenizer, args)
            if self.teacher is not None:
                taught = None if self.passages is None else self.teacher.texts(self.passages)
                taught = taught and kind.encode(taught, tokenizer, args)
                features = self.teacher.answered(features, taught, args.teacher_share)
        validation = self.held_out["validation"]
        terms = getattr(kind, "loss_terms", None)
        set_seed(seed)
        model = load_model(task, self.checkpoint, config, args)
        trainer = self._trainer(
            model,
            args,
            seed,
            validation,
            train_dataset=features,
            compute_metrics=lambda found: validation.score(task, validation.in_order(found.predictions), model, args),
            callbacks=[self.pushes],
            loss_terms=terms and partial(terms, args=args),
            objective=_taught(args, task.kind) if self.teacher is not None else None,
        )
        trainer.train(resume_from_checkpoint=True)
        trainer.compute_metrics = None  # It is of validation, and `predict` would apply it to test.
        record = {
            "seed": seed,
            "model_type": config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "trained_parameters": trained_parameters(model),
            "train_examples": len(chosen),
            "cost": trainer.cost().to_dict(),
            "history": [
                {"step": entry["step"], **logged_scores(entry, "eval_")}
                for entry in trainer.state.log_history
                if "eval_loss" in entry
            ],
            "tables": {},
        }
        written = {}
        for split, held_out in self.held_out.items():
            outputs = held_out.outputs(trainer)
            if split == "validation":
                args = held_out.with_validation_choices(task, outputs, args)
            written[split] = self._score(split, held_out.decode(outputs, model, args), record)
        trained = trained_model(trainer)
        if trainer.is_world_process_zero():
            for split, text in written.items():
                atomic_write(predictions_file(folder, split), text)
            if len(chosen) < len(task.train):
                atomic_write(folder / TRAIN_IDS_FILE, json.dumps(rows["id"][:]) + "\n")
            files = {
                SAVED_FILE: saved_settings(task, vars(args)),
                "README.md": self._card(record),
            }
            _export(trained, tokenizer, folder / "model", files, PEFT_TASK_TYPES.get(task.spec.kind))
            record["price"] = price(folder / "model")
            finish(folder, record, "model", PREDICTIONS, TRAIN_IDS_FILE)
        self._discard_checkpoints(folder)
        trainer.accelerator.wait_for_everyone()
        return record

    def _discard_checkpoints(self, folder: Path) -> None:
        """Remove those of a finished seed, on the first process."""
        for left in folder.glob("checkpoint-*") if self.args.process_index == 0 else ():
            shutil.rmtree(left, ignore_errors=True)

    def _trainer(
        self, model: nn.Module, args: FinetuneArguments, seed: int, held_out: EvaluationSet, **options: Any
    ) -> FinetuneTrainer:
        kind = self.task.spec.kind
        return FinetuneTrainer(
            model,
            args.for_seed(seed_folder(self.args.folder, seed), seed, self.task.metric, label_names(kind)),
            eval_dataset=held_out.by_length,
            data_collator=partial(kind_module(kind).collate, self.tokenizer),
            processing_class=self.tokenizer,
            **options,
        )

    def _card(self, record: dict[str, Any]) -> str:
        """The card of the model of one seed."""
        return finetuned_card({**self.details, "summary": {}, "seeds": [record]}, record["seed"])

    def _score(self, split: str, predictions: list[dict[str, Any]], record: dict[str, Any]) -> str:
        """Add a split's scores and tables to the record of a seed; returns the predictions as JSON lines."""
        task, rows = self.task, self.held_out[split].rows
        kind = kind_module(task.spec.kind)
        record[split] = kind.score(task, predictions, rows)
        if (tables := getattr(kind, "tables", None)) is not None:
            record["tables"][split] = tables(task, predictions, rows)
        return predictions_jsonl(task.spec.kind, task.label_names, rows, predictions)

    def _tested(self, record: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The record of a finished seed that was not to see the test split, with its scores."""
        model_folder, kind, test = folder / "model", self.task.spec.kind, self.held_out["test"]
        args = copy.copy(self.args)
        for name, value in read_saved(model_folder)[2].items():
            setattr(args, name, value)  # Some was settled on validation.
        model = load_finetuned(model_folder, kind, args, self.checkpoint.trust_remote_code)
        trainer = self._trainer(model, args, record["seed"], test)
        text = self._score("test", test.decode(test.outputs(trainer), model, args), record)
        if trainer.is_world_process_zero():
            unseal(folder)
            atomic_write(predictions_file(folder, "test"), text)
            atomic_write(model_folder / "README.md", self._card(record))
            finish(folder, record, "model", PREDICTIONS, TRAIN_IDS_FILE)
        trainer.accelerator.wait_for_everyone()
        return record


def _taught(args: FinetuneArguments, kind: str) -> WeightedSum:
    """The task loss, and the teacher's beside it."""
    own = TaskLoss(args.label_smoothing_factor) if kind == "classification" else ValueLoss()
    return WeightedSum((1.0, own), (args.teacher_weight, TeacherLoss(args.teacher_temperature)))


def _export(
    model, tokenizer: PreTrainedTokenizerBase, output_dir: Path, files: dict[str, str], task_type: str | None
) -> None:
    """A folder for stock classes, which appears at once."""
    if isinstance(model, PeftModel):
        export_adapter(model, tokenizer, output_dir, files, task_type=task_type)
        return
    with atomic_directory(output_dir) as folder:
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder, model.config.model_type)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
