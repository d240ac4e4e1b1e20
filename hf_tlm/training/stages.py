"""TLM's two stages, each resumable: a finished stage is loaded, a started one continues from its last checkpoint."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, Trainer, TrainerCallback, set_seed

from hf_tlm.data import tokenize
from hf_tlm.data.tokenization import longest_first, text_lengths
from hf_tlm.models import TrainedModel, export_model, load_adapter, load_exported
from hf_tlm.models.adapters import ADAPTER_FILE
from hf_tlm.models.cpu_kernels import set_dropout
from hf_tlm.training.arguments import TlmArguments
from hf_tlm.training.base_trainer import trained_model
from hf_tlm.training.cost import Cost
from hf_tlm.training.initialization import Initialization
from hf_tlm.training.run_folder import STAGE, finished
from hf_tlm.training.trainer import TlmTrainer
from hf_tlm.utils.run_files import STAGE_FILE
from hf_tlm.utils.seals import write_seal

# A text of which more is cut off than this share of all others' ends is rare enough.
SHARE_OF_TEXTS = 0.99
MULTIPLE = 32
# Tokens of the longest text where the model's positions set no limit: self-attention is quadratic.
LONGEST = 512


def with_task_defaults(
    args: TlmArguments, train: Dataset, tokenizer: PreTrainedTokenizerBase, positions: int | None
) -> TlmArguments:
    """A copy of `args` whose stage 2 has a length and a number of steps of its own, where they were left to the task.

    `stage2_max_length` 0 becomes the length that 99% of the training texts keep to, rounded up to a multiple of 32, at most
    512 and what the model has positions for. With `stage2_min_steps`, epochs that are fewer steps become so many steps.

    Args:
        train: the task's training split, as it is loaded.
        positions: tokens that the model has positions for; None for no limit.
    """
    args = copy.copy(args)
    if args.stage == "1":
        return args
    if args.stage2_max_length == 0:
        most = min(LONGEST, positions or LONGEST)
        lengths = text_lengths(tokenize(train, tokenizer, most, description="Measuring the task's texts"))
        own = math.ceil(float(np.quantile(lengths, SHARE_OF_TEXTS)) / MULTIPLE) * MULTIPLE
        args.stage2_max_length = min(own, most)
    if args.stage2_min_steps:
        epoch = math.ceil(len(train) / args.stage2_total_batch_size)
        if args.stage2_num_train_epochs * epoch < args.stage2_min_steps:
            args.stage2_max_steps = args.stage2_min_steps
        args.stage2_min_steps = 0
    return args


@dataclass
class StageData:
    """Tokenised data of a run: columns `input_ids`, and `label` for the task's.

    corpus: the subset's passages; None for task data only.
    """

    train: Dataset
    validation: Dataset
    corpus: Dataset | None = None


def run_stage(
    stage: int,
    model: Callable[[], TrainedModel | PeftModel],
    args: TlmArguments,
    data: StageData,
    tokenizer: PreTrainedTokenizerBase,
    *,
    compute_metrics: Callable,
    id2label: dict[int, str],
    callbacks: Sequence[TrainerCallback] = (),
    attn_implementation: str | None = None,
) -> tuple[TrainedModel | PeftModel, Cost, dict[str, float]]:
    """Train one stage in `args.output_dir`, or load it if it is finished there, and whole.

    Args:
        model: makes the model to start from; for a finished stage called only where an adapter needs its base.
        args: from `TlmArguments.for_stage(stage, ...)`.
        compute_metrics: `EvalPrediction -> {name: value}`, with `args.metric_for_best_model` among the names.
        attn_implementation: of the model of a finished stage; `model` sees to its own.

    Returns:
        (the model at the end of the stage, its cost, its scores on validation). In stage 2, and in stage 1 with
        `load_best_model_at_end`, the end is the checkpoint with the best validation score.
    """
    end = args.folder / "model"
    if (record := finished(end, args, STAGE_FILE, STAGE)) is not None:
        if (end / ADAPTER_FILE).is_file():
            adapted = model()
            assert isinstance(adapted, PeftModel)  # A finished adapter is of this run, whose settings are the same.
            loaded: TrainedModel | PeftModel = load_adapter(adapted, end)
        else:
            loaded = load_exported(end, id2label=id2label, attn_implementation=attn_implementation)
        return loaded, Cost.from_dict(record["cost"]), record["validation"]
    set_seed(args.seed)
    trainer = TlmTrainer(
        model(),
        args,
        train_dataset=data.train,
        corpus_dataset=data.corpus if stage == 1 and args.rho1 > 0 else None,
        eval_dataset=longest_first(data.validation)[0],
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=True)
    cost = trainer.cost()
    scores = {
        name.removeprefix("eval_"): value
        for name, value in final_scores(trainer).items()
        if name.removeprefix("eval_") in ("loss", "accuracy", args.metric_for_best_model)
    }
    trained = trained_model(trainer)
    assert isinstance(trained, (TrainedModel, PeftModel))  # As it came in.
    trainer.save_state()
    if trainer.is_world_process_zero():
        record = {"stage": stage, "cost": cost.to_dict(), "validation": scores}
        export_model(trained, tokenizer, end, {STAGE_FILE: json.dumps(record, indent=2)})
        write_seal(end)
    trainer.accelerator.wait_for_everyone()
    return trained, cost, scores


def begin_stage(
    model: TrainedModel | PeftModel, stage: int, args: TlmArguments, seed: int, initialization: Initialization | None
) -> None:
    """Change a model, in place, to what its stage begins with, where that is not what it is or the stage before left.

    That is a new classifier, the dropout and the pooling of stage 2, in its configs too, and what `initialization` has for
    the last stage.
    """
    if stage == 2:
        if args.stage2_reset_classifier:
            set_seed(seed)
            stock: Any = model  # An adapter hands the call on to the model that it is on.
            stock.reset_classifier()
        _prepare_stage_2(model, args)
    if initialization is not None and stage == args.stages[-1]:
        assert isinstance(model, TrainedModel)  # An adapter begins with nothing of ours, see `prepare`.
        initialization.before_last_stage(model)


def _prepare_stage_2(model: TrainedModel | PeftModel, args: TlmArguments) -> None:
    stock = getattr(model, "main", model)  # The auxiliary model of a pair has no part in stage 2.
    if args.stage2_dropout is not None:
        set_dropout(stock, args.stage2_dropout)
    if args.stage2_classifier_pooling is not None:
        for module in (model, *stock.modules()):
            if isinstance(config := vars(module).get("config"), PreTrainedConfig):
                config.classifier_pooling = args.stage2_classifier_pooling


def final_scores(trainer: Trainer) -> dict[str, float]:
    """The validation scores of the model as it is; those of the best checkpoint are in the log already."""
    if trainer.args.load_best_model_at_end:
        for entry in trainer.state.log_history:
            if "eval_loss" in entry and entry["step"] == trainer.state.best_global_step:
                return entry
    return trainer.evaluate()
