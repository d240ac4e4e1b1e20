"""TLM's protocol: both stages per seed, the checkpoint best on validation, test scores, mean and deviation over seeds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import set_seed

from hf_tlm.evaluation.metrics import compute_metrics_for
from hf_tlm.evaluation.records import environment, predictions_jsonl
from hf_tlm.evaluation.seeds import aggregate
from hf_tlm.files import HfTlmError, atomic_write
from hf_tlm.hub.cards import tlm_card
from hf_tlm.models import TrainedModel, add_lora, export_model, trained_parameters
from hf_tlm.retrieval import Subset
from hf_tlm.tasks import Task
from hf_tlm.training import Cost, ModelArguments, Setup, TlmArguments, TlmTrainer, prepare, run_stage

RESULTS_FILE = "results.json"
SETTINGS_FILE = "settings.json"

# Arguments that may change between two starts of one run: they change what is printed or stored, not what is computed.
_FREE = (
    "output_dir run_name report_to project logging_strategy logging_steps logging_first_step disable_tqdm log_level "
    "log_level_replica log_on_each_node dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory "
    "dataloader_persistent_workers save_strategy save_steps save_total_limit save_only_model seeds seed "
    "per_device_eval_batch_size local_rank hub_token"
).split()


class ProtocolError(HfTlmError):
    """A run that cannot be started or continued in this folder."""


@dataclass
class Run:
    """What `run_tlm` returns and writes as `results.json`.

    seeds: one record per seed: scores on validation and test, cost per stage and in total.
    summary: metric -> {"mean", "std", "n", "values"} for validation and test.
    """

    seeds: list[dict[str, Any]]
    summary: dict[str, dict[str, Any]]
    details: dict[str, Any]
    output_dir: Path

    def to_dict(self) -> dict[str, Any]:
        return {**self.details, "summary": self.summary, "seeds": self.seeds}

    def to_text(self) -> str:
        """The end of a run, for a person."""
        metric, lines = self.details["metric"], []
        for split in ("validation", "test"):
            if split in self.summary:
                score = self.summary[split][metric]
                spread = "" if score["std"] is None else f" ± {100 * score['std']:.2f} over {score['n']} seeds"
                lines.append(f"{split:<12}{metric} {100 * score['mean']:.2f}{spread}")
        cost, trained, parameters = (self.seeds[-1][name] for name in ("cost", "trained_parameters", "parameters"))
        if trained < parameters:
            lines.append(f"parameters   {trained:,} of {parameters:,} trained ({100 * trained / parameters:.2g}%)")
        lines.append(
            f"cost a seed  {cost['steps']:,} steps, {cost['tokens']:,} tokens ({cost['real_tokens']:,} not padding), "
            f"{cost['flops']:.3g} FLOPs ({cost['flops_ratio']:.2g} of RoBERTa-Large), {cost['seconds']:.0f} s"
        )
        if "energy_kwh" in cost:
            co2 = f", {cost['co2_kg']:.3g} kg of CO2" if "co2_kg" in cost else ""
            share = 100 * cost["estimated_kwh"] / (cost["energy_kwh"] or 1.0)
            lines.append(f"energy       {cost['energy_kwh']:.3g} kWh a seed ({share:.0f}% of it estimated){co2}")
        lines.append(f"model        {self.output_dir}")
        return "\n".join(lines)


def run_tlm(
    task: Task,
    subset: Subset | None,
    args: TlmArguments,
    model_args: ModelArguments,
) -> Run:
    """Train and evaluate one model per seed in `args.output_dir`, and export the one best on validation.

    The folder then holds the stock model of the best seed (see `hf_tlm.models.export_stock`; `export_adapter` with
    `use_peft`) with its card, `results.json`, and `seed-<n>/` with each seed's model, predictions, results, and stages.
    Finished seeds and stages are not repeated, and an interrupted one continues, when the same settings are run in the
    same folder again.

    Args:
        subset: the corpus data of stage 1, of the vocabulary, and of spectral embeddings; None for task data only.

    Raises:
        ProtocolError: the folder holds a run with other settings, or other files.
        ArgumentsError, ModelError, TokenizerError: see `prepare`.
    """
    output_dir = Path(args.output_dir)
    details = {
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        "metric": task.metric,
        "subset": None if subset is None else subset.manifest,
        "arguments": _settings(args),
        "model": {**model_args.__dict__},
    }
    with args.main_process_first(desc="checking the output folder"):
        _claim(output_dir, details, args)
    setup = prepare(task, None if subset is None else subset.dataset, args, model_args)
    details |= {"command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]), "environment": environment()}
    if setup.spectral is not None:
        details["spectral"] = setup.spectral.report
    records = [
        _run_seed(seed, task, setup, args, model_args, details, output_dir / f"seed-{seed}") for seed in args.run_seeds
    ]
    summary = {
        split: aggregate([record[split] for record in records]) for split in ("validation", "test") if split in records[0]
    }
    run = Run(records, summary, details, output_dir)
    if args.process_index == 0:
        best = max(records, key=lambda record: record["validation"][task.metric])
        _publish_locally(output_dir / f"seed-{best['seed']}" / "model", output_dir)
        atomic_write(output_dir / RESULTS_FILE, json.dumps(run.to_dict(), indent=2) + "\n")
        atomic_write(output_dir / "README.md", tlm_card(run.to_dict(), best["seed"]))
    return run


def _run_seed(
    seed: int,
    task: Task,
    setup: Setup,
    args: TlmArguments,
    model_args: ModelArguments,
    details: Mapping[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Both stages, evaluation, predictions and export of one seed; loaded where they are finished."""
    if (folder / RESULTS_FILE).is_file():
        return json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
    compute_metrics = compute_metrics_for(task.metric)
    shared = {"compute_metrics": compute_metrics, "id2label": task.id2label}
    stages: dict[str, Any] = {}
    total = Cost()
    make_model = setup.make_model
    for stage in (1, 2) if args.stage == "both" else (int(args.stage),):
        stage_args = args.for_stage(stage, folder / f"stage{stage}", seed, task.metric)
        start = _with_fresh_classifier(make_model, seed) if stage == 2 and args.stage2_reset_classifier else make_model
        if stage == 2 and model_args.use_peft and model_args.model_name_or_path is None:
            start = _with_adapter(start, model_args, folder / "stage1" / "model")
        model, cost, scores = run_stage(stage, start, stage_args, setup.data, setup.tokenizer, **shared)
        stages[str(stage)] = {"cost": cost.to_dict(), "validation": scores}
        total += cost
        make_model = _returning(model)
    trainer = TlmTrainer(
        model,
        stage_args,
        train_dataset=setup.data.train,
        eval_dataset=setup.data.validation,
        processing_class=setup.tokenizer,
        compute_metrics=compute_metrics,
    )
    if trainer.is_fsdp_enabled:
        # Left to itself the Trainer would shard the model, which FSDP does with an optimizer only.
        trainer.accelerator.prepare_model(model.to(args.device), evaluation_mode=True)
    record: dict[str, Any] = {
        "seed": seed,
        "parameters": model.num_parameters(),
        "trained_parameters": trained_parameters(model),
        "cost": total.to_dict(),
        "stages": stages,
    }
    predictions = {}
    for split, rows, source in (
        ("validation", setup.data.validation, task.validation),
        ("test", setup.test, task.test),
    ):
        if rows is not None:
            output = trainer.predict(rows, metric_key_prefix=split)
            names = (task.metric, "accuracy")
            record[split] = {name: output.metrics[f"{split}_{name}"] for name in names}
            predictions[split] = predictions_jsonl(source, output.predictions, task.id2label)
    if trainer.is_world_process_zero():
        for split, text in predictions.items():
            atomic_write(folder / "predictions" / f"{split}.jsonl", text)
        card = tlm_card({**details, "summary": {}, "seeds": [record]}, seed)
        export_model(model, setup.tokenizer, folder / "model", {"README.md": card})
        # Last: its presence says that the seed is finished.
        atomic_write(folder / RESULTS_FILE, json.dumps(record, indent=2) + "\n")
    trainer.accelerator.wait_for_everyone()
    return record


def _returning(model: TrainedModel):
    return lambda: model


def _with_adapter(make_model, lora: ModelArguments, base: Path):
    return lambda: add_lora(make_model(), lora, base)


def _with_fresh_classifier(make_model, seed: int):
    def make() -> TrainedModel:
        model = make_model()
        set_seed(seed)
        model.reset_classifier()
        return model

    return make


def _settings(args: TlmArguments) -> dict[str, Any]:
    """The arguments that decide what is computed, as JSON values."""
    values = {name: value for name, value in args.to_dict().items() if name not in _FREE and "token" not in name}
    # The number of processes may change, the texts of a step may not.
    one = args.for_stage(1, args.output_dir, 0, "accuracy")
    values["texts_per_step"] = one.train_batch_size * one.gradient_accumulation_steps * one.world_size
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        del values[name]
    return json.loads(json.dumps(values, default=str))


def _claim(output_dir: Path, details: Mapping[str, Any], args: TlmArguments) -> None:
    """Make the folder this run's, or check that it is.

    Raises:
        ProtocolError: it holds another run, or files of something else.
    """
    path = output_dir / SETTINGS_FILE
    wanted = json.loads(json.dumps(details, default=str))
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            f"{name}: {there!r:.60} there, {here!r:.60} asked for"
            for section in ("arguments", "model")
            for name, here in wanted[section].items()
            if (there := found.get(section, {}).get(name)) != here
        ]
        changed += [
            f"another {name.replace('_', ' ')}"
            for name in ("task_fingerprint", "metric", "subset")
            if found.get(name) != wanted[name]
        ]
        if changed:
            raise ProtocolError(
                f"{output_dir} holds a run with other settings ({'; '.join(changed[:5])}). Choose another "
                "--output_dir, or delete that folder to start over."
            )
        return
    if args.process_index == 0:
        if output_dir.is_dir() and any(output_dir.iterdir()):
            raise ProtocolError(f"{output_dir} is not empty and holds no run. Choose an empty --output_dir.")
        atomic_write(path, json.dumps(wanted, indent=2) + "\n")


def _publish_locally(source: Path, target: Path) -> None:
    """Copy a model folder's files into `target`, each whole or not at all, the config last."""
    files = sorted(
        (p for p in source.rglob("*") if p.is_file()), key=lambda p: p.name in ("config.json", "adapter_config.json")
    )
    for file in files:
        destination = target / file.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        work = destination.with_name(f".{destination.name}.{os.getpid()}")
        shutil.copyfile(file, work)
        os.replace(work, destination)
