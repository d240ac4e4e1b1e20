"""Fine-tuning by the papers' protocol: on all labels or a share, one model per seed, selected on validation, tested once."""

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
from hf_tlm.models.families import longest_input
from hf_tlm.objectives import TaskLoss, TeacherLoss, ValueLoss, WeightedSum
from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset import check_subset
from hf_tlm.runs.arguments import CheckpointArguments
from hf_tlm.runs.averaging import averaged_entry, baseline_entries, one_class_entry
from hf_tlm.runs.baselines import to_beat
from hf_tlm.runs.export.export import int8_entry
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import PEFT_TASK_TYPES, EvaluationSet, check_kind, kind_module, label_names
from hf_tlm.runs.finetuning.models import FinetuneTrainer, load_finetuned, load_model, load_pretrained
from hf_tlm.runs.price import price
from hf_tlm.runs.records import (
    SAVED_FILE,
    SeededRun,
    logged_scores,
    predictions_jsonl,
    provenance_entries,
    read_saved,
    saved_settings,
    summarise,
)
from hf_tlm.runs.sharing import share_seeds
from hf_tlm.runs.teachers.ask import ask_teacher, check_passage_options, digest_teacher, open_teacher
from hf_tlm.tasks import Task
from hf_tlm.tasks.sampling import strata
from hf_tlm.tasks.spec import check_task
from hf_tlm.training import ArgumentsError
from hf_tlm.training.base_trainer import trained_model
from hf_tlm.training.optimizers import check_adapted
from hf_tlm.training.prepare import tell_of_long_evaluations
from hf_tlm.training.publishing import CheckpointPushes, check_hub, claim_run
from hf_tlm.training.run_folder import SEED, finish, finished, settings, unseal
from hf_tlm.training.teacher import Teacher
from hf_tlm.utils.files import atomic_directory, atomic_write
from hf_tlm.utils.locks import shares_output_dir
from hf_tlm.utils.options import check_given
from hf_tlm.utils.process import uses_fsdp
from hf_tlm.utils.run_files import PREDICTIONS, TRAIN_IDS_FILE, mention_if_finished, predictions_file, seed_folder


def draw_fraction(train: Dataset, fraction: float, seed: int, kind: str) -> np.ndarray:
    """Draw a stratified sample of training examples: round(fraction x n) of the n examples of every class, at least one.

    The sample depends only on the data, the fraction and the seed, so that every model learns from the same examples, and a
    smaller fraction is a subset of a larger one. Regression is stratified by ten quantiles of its labels; question
    answering, multiple choice and tagging draw from all examples together (COCO-LM, Figure 7, has fractions of MNLI).

    Args:
        train: the training split, with the column `label` for classification and regression.
        fraction: in (0, 1]; 1 selects all examples.
        kind: the kind of task, see `hf_tlm.tasks.TaskSpec`.

    Returns:
        Indices of the drawn examples, int64, ascending.
    """
    if fraction == 1:
        return np.arange(len(train))
    groups, samples = strata(train, kind), []
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        order = np.random.default_rng([seed, int(group)]).permutation(members)
        samples.append(order[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(samples))


class FinetuneRun(SeededRun):
    """The result of `finetune`, also written as `results.json`."""


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
    card, `results.json`, and `seed-<n>/` with each seed's model, predictions and results. When the same settings are run
    again in the same folder, finished seeds are not repeated, and an interrupted one resumes; several such processes share
    the seeds.

    The test split is scored once per seed, with the checkpoint selected on validation.

    Args:
        test: False does not score the test split, for runs among which one is still to be chosen. The same call with True
            scores it.
        subset: passages that the teacher of `args` labels; they are added to the training texts.

    Raises:
        ArgumentsError: options that have no effect on the kind of task, or exclude each other.
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
        raise ArgumentsError("The passages of a subset have no labels: fine-tuning on them needs a teacher. Pass --teacher.")
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
        with mention_if_finished(output_dir):
            pretrained = load_pretrained(task, checkpoint, args.max_length)
            content = digest_teacher(open_teacher(task, args))
        check_passage_options(task, subset is not None, args)
        check_hub(args, adapter=checkpoint.use_peft, base=checkpoint.model_name_or_path)
        if subset is not None:
            details["teacher_subset"] = subset.manifest
        data_fields = ("task_fingerprint", "kind", "metric", "further_metrics", "teacher_subset", "teacher_content")
        claim_details = {"teacher_subset": None, **details, "teacher_content": content}
        claimed = claim_run(args, claim_details, data_fields, (args, checkpoint))
    if args.seed_figure != "mean":
        details["seed_figure"] = args.seed_figure
    details |= {"pairs": task.has_pairs, **provenance_entries(details)}
    if args.process_index == 0:
        if task.kind in ("classification", "regression"):
            advice = _advice_on_length(pretrained[0], args.max_length)
            warn_of_cut("the task's training texts", spread_texts(task.train), pretrained[-1], args.max_length, advice)
        if subset is not None:
            subset.tell_of_other_task(task)
        details["baselines"] = to_beat(task, _sample_tasks(task, args))
    passages = None if subset is None else subset.dataset
    with claimed:
        teacher = ask_teacher(task, passages, args)
    num_texts = round(args.train_fraction * len(task.train))
    if teacher is not None:
        details |= teacher.write(output_dir if args.process_index == 0 else None)
        num_texts = teacher.count_texts(num_texts, args.teacher_share)
    tell_of_long_evaluations(args, task, num_texts, args.total_batch_size)
    with claimed, CheckpointPushes(output_dir, args) as pushes:
        seeds = _Seeds(task, checkpoint, args, details, *pretrained, pushes, test, teacher, passages)
        records = share_seeds(args, seeds.train, seeds.has_all_scores, alone=args.pushes_checkpoints)
    if args.process_index == 0:
        details |= {**averaged_entry(task, output_dir, records), **one_class_entry(task, output_dir, records)}
        if args.train_fraction == 1:  # Otherwise the linear model, fitted to all texts, would not be comparable.
            details |= baseline_entries(task, output_dir, records, details["baselines"])
    run = FinetuneRun(records, summarise(records, args.seed_figure), details, output_dir).write(
        args, finetuned_card, partial(int8_entry, task=task)
    )
    pushes.check()
    return run


def _advice_on_length(config: PreTrainedConfig, max_length: int) -> str:
    longest = longest_input(config)
    if longest is None:
        return "Pass a larger --max_length."
    if max_length < longest:
        return f"Pass a larger --max_length: the model reads up to {longest:,} tokens."
    return "The model reads no longer texts; one with more positions would."


def _sample_tasks(task: Task, args: FinetuneArguments) -> list[Task]:
    """Return the task with each seed's sample of the training texts; an empty list where seeds train on all texts."""
    if args.train_fraction == 1 or task.spec.kind != "classification":
        return []
    row_indices = [draw_fraction(task.train, args.train_fraction, seed, task.spec.kind) for seed in args.run_seeds]
    return [replace(task, splits={**task.splits, "train": task.train.select(rows)}) for rows in row_indices]


def check_finetuning(checkpoint: CheckpointArguments, args: FinetuneArguments) -> None:
    """Check options of fine-tuning that exclude each other for every task.

    Raises:
        ArgumentsError: FSDP, use_peft with Muon or crf, or label smoothing with crf.
    """
    if uses_fsdp(args):
        raise ArgumentsError("Fine-tuning does not work with FSDP. Use DDP: the preset accelerate/ddp.")
    if args.crf and args.label_smoothing_factor:
        raise ArgumentsError(
            f"label_smoothing_factor {args.label_smoothing_factor} smooths the loss of single tags, but crf computes the "
            "loss of complete sentences. Remove one of these options."
        )
    check_adapted(args, checkpoint.use_peft)
    if checkpoint.use_peft and args.crf:
        raise ArgumentsError("use_peft adapts a stock model, but crf adds a CRF to the model. Remove one of these options.")


@dataclass
class _Seeds:
    """The data and settings that all seeds of a run share, and the training of a seed."""

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
        """The encoded validation split, and test where there is one and `test` is set. Finished seeds need neither."""
        splits = ("validation", "test") if self.test else ("validation",)
        kind = kind_module(self.task.spec.kind)
        with self.args.main_process_first(desc="tokenising"):
            return {
                split: EvaluationSet(kind, self.task.splits[split], self.tokenizer, self.args)
                for split in splits
                if split in self.task.splits
            }

    def has_all_scores(self, record: Mapping[str, Any]) -> bool:
        return not self.test or self.task.test is None or "test" in record

    def train(self, seed: int) -> dict[str, Any]:
        """Train, evaluate, predict and export a seed, and return its record; a finished one is loaded."""
        folder = seed_folder(self.args.folder, seed)
        if (record := finished(folder, self.args, fields=SEED)) is not None:
            self._discard_checkpoints(folder)  # They remain if the process was killed after it had written the record.
            return record if self.has_all_scores(record) else self._score_test_split(record, folder)
        task, args = self.task, self.args
        kind, config, tokenizer = kind_module(task.spec.kind), self.config, self.tokenizer
        row_indices = draw_fraction(task.train, args.train_fraction, seed, task.spec.kind)
        with args.main_process_first(desc="tokenising train"):
            rows = task.train if len(row_indices) == len(task.train) else task.train.select(row_indices)
            features = kind.encode(rows, tokenizer, args)
            if self.teacher is not None:
                passages = None if self.passages is None else self.teacher.texts(self.passages)
                passages = passages and kind.encode(passages, tokenizer, args)
                features = self.teacher.answered(features, passages, args.teacher_share)
        validation = self.held_out["validation"]
        loss_terms = getattr(kind, "loss_terms", None)
        set_seed(seed)
        model = load_model(task, self.checkpoint, config, args)
        trainer = self._trainer(
            model,
            args,
            seed,
            validation,
            train_dataset=features,
            compute_metrics=lambda prediction: validation.score(
                task, validation.in_order(prediction.predictions), model, args
            ),
            callbacks=[self.pushes],
            loss_terms=loss_terms and partial(loss_terms, args=args),
            objective=_create_objective(args, task.kind) if self.teacher is not None else None,
        )
        trainer.train(resume_from_checkpoint=True)
        trainer.compute_metrics = None  # It scores validation, and `predict` would apply it to test.
        record = {
            "seed": seed,
            "model_type": config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "trained_parameters": trained_parameters(model),
            "train_examples": len(row_indices),
            "cost": trainer.cost().to_dict(),
            "history": [
                {"step": entry["step"], **logged_scores(entry, "eval_")}
                for entry in trainer.state.log_history
                if "eval_loss" in entry
            ],
            "tables": {},
        }
        prediction_texts = {}
        for split, held_out in self.held_out.items():
            outputs = held_out.outputs(trainer)
            if split == "validation":
                args = held_out.with_validation_choices(task, outputs, args)
            prediction_texts[split] = self._score(split, held_out.decode(outputs, model, args), record)
        trained = trained_model(trainer)
        if trainer.is_world_process_zero():
            for split, text in prediction_texts.items():
                atomic_write(predictions_file(folder, split), text)
            if len(row_indices) < len(task.train):
                atomic_write(folder / TRAIN_IDS_FILE, json.dumps(rows["id"][:]) + "\n")
            files = {SAVED_FILE: saved_settings(task, vars(args)), "README.md": self._card(record)}
            _export(trained, tokenizer, folder / "model", files, PEFT_TASK_TYPES.get(task.spec.kind))
            record["price"] = price(folder / "model")
            finish(folder, record, "model", PREDICTIONS, TRAIN_IDS_FILE)
        self._discard_checkpoints(folder)
        trainer.accelerator.wait_for_everyone()
        return record

    def _discard_checkpoints(self, folder: Path) -> None:
        """Remove the checkpoints of a finished seed, on the first process."""
        for checkpoint in folder.glob("checkpoint-*") if self.args.process_index == 0 else ():
            shutil.rmtree(checkpoint, ignore_errors=True)

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
        return finetuned_card({**self.details, "summary": {}, "seeds": [record]}, record["seed"])

    def _score(self, split: str, predictions: list[dict[str, Any]], record: dict[str, Any]) -> str:
        """Add a split's scores and tables to the record of a seed, and return the predictions as JSON lines."""
        task, rows = self.task, self.held_out[split].rows
        kind = kind_module(task.spec.kind)
        record[split] = kind.score(task, predictions, rows)
        if (tables := getattr(kind, "tables", None)) is not None:
            record["tables"][split] = tables(task, predictions, rows)
        return predictions_jsonl(task.spec.kind, task.label_names, rows, predictions)

    def _score_test_split(self, record: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Score a finished seed, which was trained with `test=False`, on the test split, and return its completed record."""
        model_folder, kind, test = folder / "model", self.task.spec.kind, self.held_out["test"]
        args = copy.copy(self.args)
        for name, value in read_saved(model_folder)[2].items():
            setattr(args, name, value)  # Some values were chosen on validation.
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


def _create_objective(args: FinetuneArguments, kind: str) -> WeightedSum:
    task_loss = TaskLoss(args.label_smoothing_factor) if kind == "classification" else ValueLoss()
    return WeightedSum((1.0, task_loss), (args.teacher_weight, TeacherLoss(args.teacher_temperature)))


def _export(
    model, tokenizer: PreTrainedTokenizerBase, output_dir: Path, files: dict[str, str], task_type: str | None
) -> None:
    """Write the model to a folder that stock classes can load; the folder appears atomically."""
    if isinstance(model, PeftModel):
        export_adapter(model, tokenizer, output_dir, files, task_type=task_type)
        return
    with atomic_directory(output_dir) as folder:
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder, model.config.model_type)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
