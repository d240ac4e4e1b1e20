"""TLM's protocol: both stages for each seed, the checkpoint best on validation, its test scores, mean and std over seeds."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from peft import PeftModel

from hf_tlm.data import in_first_order, longest_first
from hf_tlm.hub.cards import tlm_card
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.models import TrainedModel, add_lora, export_model, trained_parameters
from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset import check_subset
from hf_tlm.runs.averaging import averaged_entry, baseline_entries, one_class_entry
from hf_tlm.runs.baselines import to_beat
from hf_tlm.runs.export.export import int8_entry
from hf_tlm.runs.price import price
from hf_tlm.runs.records import (
    SAVED_FILE,
    SeededRun,
    logits_to_predictions,
    predictions_jsonl,
    provenance_entries,
    saved_settings,
    summarise,
)
from hf_tlm.runs.sharing import share_seeds
from hf_tlm.runs.teachers.ask import (
    answered_subset,
    ask_teacher,
    asked_passages,
    check_passage_options,
    digest_teacher,
    open_teacher,
)
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.training import (
    ArgumentsError,
    Cost,
    ModelArguments,
    ScoreModelArguments,
    Setup,
    TlmArguments,
    TlmTrainer,
    check_sources,
    check_tlm,
    prepare,
    run_stage,
)
from hf_tlm.training.prepare import tell_of_long_evaluations, tell_of_no_saving, tell_of_other_stage
from hf_tlm.training.publishing import CheckpointPushes, check_hub, claim_run
from hf_tlm.training.run_folder import SEED, finish, finished, settings
from hf_tlm.training.run_folder import ProtocolError as ProtocolError
from hf_tlm.training.stages import begin_stage
from hf_tlm.training.teacher import teacher_cost
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.locks import let_others_in, shares_output_dir
from hf_tlm.utils.options import check_given
from hf_tlm.utils.run_files import PREDICTIONS, mention_if_finished, predictions_file, seed_folder, stage_folder


class Run(SeededRun):
    """The result of `run_tlm`, also written as `results.json`; the cost of a seed is given per stage and in total."""


@shares_output_dir
def run_tlm(
    task: Task,
    subset: Subset | None,
    args: TlmArguments,
    model_args: ModelArguments,
) -> Run:
    """Train and evaluate one model per seed in `args.output_dir`, and export the one best on validation.

    The folder then holds the stock model of the best seed (see `hf_tlm.models.export_stock`; `export_adapter` with
    `use_peft`) with its card, `results.json`, and `seed-<n>/` with each seed's model, predictions, results, and stages.
    When the same settings are run again in the same folder, finished seeds and stages are not repeated, and an interrupted
    one resumes; several such processes share the seeds.

    With `teacher_rounds` above 1 the folder holds a complete run per round in `round-<n>/` instead of seeds, and the model
    of the best round.

    Args:
        subset: the corpus data for stage 1, for the vocabulary, and for spectral embeddings; None for task data only.

    Raises:
        ProtocolError: the folder holds a run with other settings, or other files.
        TaskError: the task is of another kind than classification.
        ArgumentsError, ModelError, TokenizerError: see `prepare` and `ask_teacher`.
    """
    check_task(task, "TLM", "classification")
    if subset is not None:
        check_subset(subset)
    check_given(ArgumentsError, args=(args, TlmArguments), model_args=(model_args, ModelArguments))
    check_tlm(subset is not None, args, model_args)
    output_dir = args.folder
    details = {
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        **task.about_splits(),
        "metric": task.metric,
        "subset": None if subset is None else subset.manifest,
        "arguments": settings(args),
        "model": {**model_args.with_objective_defaults(args.objective).__dict__},
    }
    with args.main_process_first(desc="checking the output folder"):
        longest = max(args.max_length, args.corpus_max_length or 0, args.stage2_max_length or 0)
        with mention_if_finished(output_dir):
            mlm = args.stage != "2" or args.stage2_rho2 > 0
            check_sources(model_args, longest, mlm=mlm, whole_word_mask=args.whole_word_mask)
            content = digest_teacher(open_teacher(task, args))
        check_passage_options(task, subset is not None, args)
        check_hub(args, adapter=model_args.use_peft, base=model_args.model_name_or_path)
        data_keys = ("task_fingerprint", "metric", "subset", "teacher_content")
        claimed = claim_run(args, {**details, "teacher_content": content}, data_keys, (args, model_args))
    if args.teacher_rounds > 1:
        with claimed, let_others_in(output_dir):
            runs = _run_rounds(task, subset, args, model_args)
        return _write_best_round(runs, task, args)
    tell_of_other_stage(args)
    tell_of_no_saving(args)
    # A score model is trained without the test split, so its task would look like another one: the selection warns instead.
    # Nor is it compared with baselines.
    reported = args.process_index == 0 and not isinstance(args, ScoreModelArguments)
    if subset is not None and reported:
        subset.tell_of_other_task(task)
    passages = None if subset is None else subset.dataset
    with claimed:
        teacher = ask_teacher(task, passages, args)
        setup = prepare(task, passages, args, model_args, teacher)
    details |= {"pairs": task.has_pairs, **provenance_entries(details)}
    args = setup.args
    if 2 in args.stages:
        stage_args = args.for_stage(2, stage_folder(output_dir, 2), args.run_seeds[0], task.metric)
        tell_of_long_evaluations(stage_args, task, len(setup.data[2].train), args.stage2_total_batch_size)
    if reported:
        details["baselines"] = to_beat(task)
    if setup.initialization is not None:
        details["initialization"] = setup.initialization.report
    if teacher is not None:
        details |= teacher.write(output_dir if args.process_index == 0 else None)
        if args.teacher_output is not None and subset is not None and args.process_index == 0:
            answered_subset(subset, teacher, task.label_names).save(args.teacher_output)
    with claimed, CheckpointPushes(output_dir, args) as pushes:
        seeds = _SeedTraining(task, setup, model_args, details, pushes)
        records = share_seeds(args, seeds.train, alone=args.pushes_checkpoints)
    if args.process_index == 0:
        details |= {**averaged_entry(task, output_dir, records), **one_class_entry(task, output_dir, records)}
    if reported:
        details |= baseline_entries(task, output_dir, records, details["baselines"])
    run = Run(records, summarise(records), details, output_dir).write(args, tlm_card, partial(int8_entry, task=task))
    pushes.check()
    return run


def _run_rounds(task: Task, subset: Subset | None, args: TlmArguments, model_args: ModelArguments) -> list[Run]:
    """Run TLM once per round in `round-<n>/`; the teacher of a round is the average of the previous round's seeds.

    The first round has the given teacher, or no teacher where the run is to teach itself.
    """
    output_dir, runs, teacher = args.folder, [], args.teacher
    if args.taught_by_itself and args.teacher_marks and subset is not None:
        asked_passages(task, subset.dataset, args)  # Missing marks raise an error before the first round, not after it.
    for round_number in range(1, args.teacher_rounds + 1):
        run_args = copy.copy(args) if round_number > 1 or not args.taught_by_itself else args.untaught()
        run_args.output_dir, run_args.teacher_rounds = str(output_dir / f"round-{round_number}"), 1
        run_args.push_to_hub = run_args.export_int8 = False
        args.track_as_part(run_args, run_args.folder)
        if round_number > 1:
            run_args.teacher, run_args.teacher_labels = teacher, None
        if run_args.taught:
            run_args.teacher_output = args.teacher_output if round_number == args.teacher_rounds else None
        runs.append(run_tlm(task, subset, run_args, model_args))
        teacher = [str(seed_folder(run_args.folder, seed) / "model") for seed in args.run_seeds]
    return runs


def _write_best_round(runs: Sequence[Run], task: Task, args: TlmArguments) -> Run:
    """Write the model and the record of the round with the best mean validation score over seeds to the output folder."""
    best = max(runs, key=lambda run: run.summary["validation"][task.metric]["mean"])
    rounds: list[dict[str, float]] = [{"validation": run.summary["validation"][task.metric]["mean"]} for run in runs]
    for round_index, (round_record, run) in enumerate(zip(rounds, runs, strict=True)):
        # Teachers after the first are earlier rounds, whose training is counted there.
        teacher_report = {**run.details.get("teacher", {}), **({"training": None} if round_index else {})}
        for name in ("flops", "seconds"):
            round_record[name] = sum(seed["cost"][name] for seed in run.seeds) + teacher_cost(teacher_report, name)
    details = {**best.details, "arguments": settings(args), "rounds": rounds, "round": runs.index(best) + 1}
    return replace(best, details=details, output_dir=args.folder).write(
        args, tlm_card, partial(int8_entry, task=task), best.output_dir
    )


@dataclass
class _SeedTraining:
    """The data and settings that all seeds of a run share, and the training of a seed."""

    task: Task
    setup: Setup
    model_args: ModelArguments
    details: Mapping[str, Any]
    pushes: CheckpointPushes

    def train(self, seed: int) -> dict[str, Any]:
        """Train both stages of a seed, evaluate, predict and export, and return the record; a finished seed is loaded."""
        task, setup, args = self.task, self.setup, self.setup.args
        folder = seed_folder(args.folder, seed)
        if (record := finished(folder, args, fields=SEED)) is not None:
            return record
        compute_metrics = compute_metrics_for(task.metric)
        stages: dict[str, Any] = {}
        total = Cost()
        model: TrainedModel | PeftModel | None = None
        for stage in args.stages:
            stage_args = args.for_stage(stage, stage_folder(folder, stage), seed, task.metric)
            start = partial(self._begin_model, stage, seed, model)
            model, cost, scores = run_stage(
                *(stage, start, stage_args, setup.data[stage], setup.tokenizer),
                compute_metrics=compute_metrics,
                id2label=task.id2label,
                callbacks=[self.pushes],
                attn_implementation=self.model_args.attn_implementation,
            )
            stages[str(stage)] = {"cost": cost.to_dict(), "validation": scores, "max_length": stage_args.max_length}
            total += cost
        assert model is not None  # `args.stages` has at least one stage.
        trainer = TlmTrainer(
            model,
            stage_args,
            train_dataset=setup.data[stage].train,
            eval_dataset=setup.data[stage].validation,
            processing_class=setup.tokenizer,
            compute_metrics=compute_metrics,
        )
        if trainer.is_fsdp_enabled:
            # Otherwise the Trainer would shard the model itself, which FSDP does only with an optimizer.
            trainer.accelerator.prepare_model(model.to(args.device), evaluation_mode=True)  # type: ignore[arg-type]  # transformers' wrapper loses its `self`.
        record = {
            "seed": seed,
            "model_type": model.config.model_type,
            "parameters": model.num_parameters(),
            "trained_parameters": trained_parameters(model),
            "cost": total.to_dict(),
            "stages": stages,
        }
        predictions, names = {}, task.label_names
        for split, rows, source in (
            ("validation", setup.data[stage].validation, task.validation),
            ("test", setup.test, task.test),
        ):
            if rows is not None:
                by_length, order = longest_first(rows)
                output = trainer.predict(by_length, metric_key_prefix=split)
                assert output.metrics is not None and isinstance(output.predictions, np.ndarray)  # The rows have labels.
                record[split] = {name: output.metrics[f"{split}_{name}"] for name in (task.metric, "accuracy")}
                split_predictions = logits_to_predictions(in_first_order(output.predictions, order), names)
                predictions[split] = predictions_jsonl("classification", names, source, split_predictions)
        if trainer.is_world_process_zero():
            for split, text in predictions.items():
                atomic_write(predictions_file(folder, split), text)
            card = tlm_card({**self.details, "summary": {}, "seeds": [record]}, seed)
            saved = saved_settings(task, {"max_length": stage_args.max_length})
            export_model(model, setup.tokenizer, folder / "model", {SAVED_FILE: saved, "README.md": card})
            record["price"] = price(folder / "model")
            finish(folder, record, "model", PREDICTIONS)
        trainer.accelerator.wait_for_everyone()
        return record

    def _begin_model(
        self, stage: int, seed: int, previous_model: TrainedModel | PeftModel | None
    ) -> TrainedModel | PeftModel:
        """Return the initial model of a stage: a new one, or the model that the previous stage has trained."""
        args, lora = self.setup.args, self.model_args
        model: Any = self.setup.make_model() if previous_model is None else previous_model
        begin_stage(model, stage, args, seed, self.setup.initialization)
        if stage == 2 and lora.use_peft and lora.model_name_or_path is None:
            return add_lora(model, lora, stage_folder(seed_folder(args.folder, seed), 1) / "model")
        return model
