"""TLM's two training stages, each resumable, and the initialisation of the weights of a run's models.

A finished stage is loaded, an unfinished one continues from its last checkpoint. The statistics that
`InitializationArguments` need are computed once and written into each model.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from peft import PeftModel
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback, set_seed

from hf_tlm.data import tokenize
from hf_tlm.data.tokenization import longest_first, special_ids, text_lengths
from hf_tlm.errors import ArgumentsError
from hf_tlm.models import GeneratorDiscriminator, TrainedModel, export_model, load_adapter, load_exported
from hf_tlm.models.adapters import ADAPTER_FILE
from hf_tlm.models.arguments import InitializationArguments
from hf_tlm.models.base import body_of, embedding_weight
from hf_tlm.models.cpu_kernels import set_dropout
from hf_tlm.models.initialization import (
    OFFSETS,
    copying_heads,
    embedding_map_of,
    near_identity,
    position_dims,
    position_embeddings,
    start_at_neighbors,
    token_counts,
    unigram_bias,
)
from hf_tlm.models.linear_start import LabelledTexts, LinearStart, fit_linear_start
from hf_tlm.models.spectral import SpectralEmbeddings, spectral_embeddings
from hf_tlm.models.tlm import MlmHead
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.training.arguments import TlmArguments
from hf_tlm.training.base_trainer import trained_model
from hf_tlm.training.cost import Cost
from hf_tlm.training.model_arguments import ModelArguments
from hf_tlm.training.run_arguments import check_rdrop
from hf_tlm.training.run_folder import STAGE, finished
from hf_tlm.training.trainer import TlmTrainer
from hf_tlm.utils.run_files import STAGE_FILE
from hf_tlm.utils.seals import write_seal

logger = logging.getLogger(__name__)

# Share of the training texts that stage2_max_length 0 does not truncate.
SHARE_OF_TEXTS = 0.99
MULTIPLE = 32
# Maximum length if the model's positions allow a longer one: self-attention is quadratic.
LONGEST = 512


def with_task_defaults(
    args: TlmArguments, train: Dataset, tokenizer: PreTrainedTokenizerBase, positions: int | None, *, num_texts: int
) -> TlmArguments:
    """Return a copy of `args` with the maximum length and number of steps of stage 2 that depend on the task filled in.

    `stage2_max_length` 0 becomes the 99% quantile of the lengths of the training texts, rounded up to a multiple of 32, at
    most 512 and at most the number of positions of the model. If the epochs of stage 2 have fewer than `stage2_min_steps`
    steps, `stage2_max_steps` becomes that number.

    Args:
        train: the task's training split, not tokenised.
        positions: number of positions of the model; None for no limit.
        num_texts: texts of an epoch of stage 2; with a teacher these are not the training split alone.
    """
    args = copy.copy(args)
    if args.stage == "1":
        return args
    if args.stage2_max_length == 0:
        max_length = min(LONGEST, positions or LONGEST)
        lengths = text_lengths(tokenize(train, tokenizer, max_length, description="Measuring the task's texts"))
        task_length = math.ceil(float(np.quantile(lengths, SHARE_OF_TEXTS)) / MULTIPLE) * MULTIPLE
        args.stage2_max_length = min(task_length, max_length)
    if args.stage2_min_steps:
        epoch = math.ceil(num_texts / args.stage2_total_batch_size)
        if args.stage2_num_train_epochs * epoch < args.stage2_min_steps:
            args.stage2_max_steps = args.stage2_min_steps
        args.stage2_min_steps = 0
    return args


def check_stage_2(args: TlmArguments, config: PreTrainedConfig, model_args: ModelArguments) -> None:
    """Check that the body supports `stage2_classifier_pooling` and has dropout for R-Drop, or raise an ArgumentsError."""
    if 2 not in args.stages:
        return
    if args.stage2_classifier_pooling is not None and not hasattr(config, "classifier_pooling"):
        raise ArgumentsError(
            "stage2_classifier_pooling is for bodies whose stock classifier can pool (modernbert); received "
            f"{args.stage2_classifier_pooling!r} for a body of the type {config.model_type!r}. Remove it, or pass another "
            "--model_config."
        )
    dropout = args.stage2_dropout
    if dropout is None:
        # The names of dropout options differ between model types; one of a head for another task may be among them.
        values = [value for name, value in config.to_dict().items() if "drop" in name]
        dropout = max((value for value in values if isinstance(value, int | float)), default=0.0)
    check_rdrop(args.stage2_rdrop, dropout > 0 or (model_args.use_peft and model_args.lora_dropout > 0))


@dataclass
class StageData:
    """Tokenised data of a stage: columns `input_ids`, and `label` in task data.

    train, validation: splits of the task.
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
    """Train one stage in `args.output_dir`, or load its model if it is finished and intact.

    Args:
        model: creates the model to start from; for a finished stage it is called only if an adapter needs its base.
        args: from `TlmArguments.for_stage(stage, ...)`.
        compute_metrics: `EvalPrediction -> {name: value}`, with `args.metric_for_best_model` among the names.
        attn_implementation: attention implementation of a model that is loaded; `model` sets its own.

    Returns:
        (the model at the end of the stage, its cost, its scores on validation). In stage 2, and in stage 1 with
        `load_best_model_at_end`, the model is that of the checkpoint with the best validation score.
    """
    model_dir = args.folder / "model"
    if (record := finished(model_dir, args, STAGE_FILE, STAGE)) is not None:
        if (model_dir / ADAPTER_FILE).is_file():
            adapted = model()
            assert isinstance(adapted, PeftModel)  # The same run, with the same settings, trained the adapter.
            loaded: TrainedModel | PeftModel = load_adapter(adapted, model_dir)
        else:
            loaded = load_exported(model_dir, id2label=id2label, attn_implementation=attn_implementation)
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
    assert isinstance(trained, (TrainedModel, PeftModel))  # The type of `model()`.
    trainer.save_state()
    if trainer.is_world_process_zero():
        record = {"stage": stage, "cost": cost.to_dict(), "validation": scores}
        export_model(trained, tokenizer, model_dir, {STAGE_FILE: json.dumps(record, indent=2)})
        write_seal(model_dir)
    trainer.accelerator.wait_for_everyone()
    return trained, cost, scores


def begin_stage(
    model: TrainedModel | PeftModel, stage: int, args: TlmArguments, seed: int, initialization: Initialization | None
) -> None:
    """Apply the changes to a model that its stage starts with, in place.

    For stage 2 these are a new classifier (`stage2_reset_classifier`, seeded with `seed`), its dropout and its pooling, in
    the configs too; for the last stage, a classifier that is a linear model.
    """
    if stage == 2:
        if args.stage2_reset_classifier:
            set_seed(seed)
            stock: Any = model  # An adapter passes the call on to its base model.
            stock.reset_classifier()
        body_and_head = getattr(model, "main", model)  # The auxiliary model of a pair is not used in stage 2.
        if args.stage2_dropout is not None:
            set_dropout(body_and_head, args.stage2_dropout)
        if args.stage2_classifier_pooling is not None:
            for module in (model, *body_and_head.modules()):
                if isinstance(config := vars(module).get("config"), PreTrainedConfig):
                    config.classifier_pooling = args.stage2_classifier_pooling
    # Not before: joint training would unlearn part of it.
    if initialization is not None and initialization.linear is not None and stage == args.stages[-1]:
        assert isinstance(model, TrainedModel)  # Adapters have no initialisation of ours, see `prepare`.
        initialization.linear.write_to(model.main if isinstance(model, GeneratorDiscriminator) else model)


def final_scores(trainer: Trainer) -> dict[str, float]:
    """Return the validation scores of the trained model.

    With `load_best_model_at_end` they are read from the log, which has those of the best checkpoint; else it is evaluated.
    """
    if trainer.args.load_best_model_at_end:
        for entry in trainer.state.log_history:
            if "eval_loss" in entry and entry["step"] == trainer.state.best_global_step:
                return entry
    return trainer.evaluate()


@dataclass(frozen=True)
class Initialization:
    """Initial weights for models from scratch, and for the classifier before the last stage.

    spectral: token embeddings.
    neighbors: whether attention starts at neighbouring tokens (`copying_heads`, `start_at_neighbors`).
    counts: token counts, int64 [V], for the masked-LM head.
    never_predicted: ids of tokens that the head never predicts.
    linear: linear model as which the classifier starts the last stage.
    """

    spectral: SpectralEmbeddings | None = None
    neighbors: bool = False
    counts: np.ndarray | None = None
    never_predicted: Collection[int] = ()
    linear: LinearStart | None = None

    def write_to(self, model: TrainedModel) -> None:
        """Write the initial weights into a random model, in place. Random numbers come from torch's generator."""
        if self.spectral is not None:
            self.spectral.write_to(model)
        for body, head in _bodies_and_heads(model):
            if self.neighbors:
                copying_heads(body)
                if position_embeddings(body) is not None:
                    start_at_neighbors(body, None if self.spectral is None else self.spectral.known)
            if self.counts is not None and head is not None:
                self._write_head(body, head, self.counts)
        if self.counts is not None and isinstance(model, GeneratorDiscriminator) and model.clm_heads is not None:
            unigram_bias(model.clm_heads.lm_head, self.counts, self.never_predicted)

    def _write_head(self, body: PreTrainedModel, head: MlmHead, counts: np.ndarray) -> None:
        decoder = head.family.decoder(head)
        unigram_bias(decoder, counts, self.never_predicted)
        carried = embedding_map_of(body)
        for module in head.modules():
            # COCO-LM's copy head is not a transform; the shape excludes it.
            if isinstance(module, nn.Linear) and module is not decoder and module.weight.shape == carried.T.shape:
                near_identity(module, carried)

    @property
    def report(self) -> dict[str, Any]:
        """A summary of the initialisation for records and cards."""
        return {
            "spectral": None if self.spectral is None else self.spectral.report,
            "neighbors": [list(offsets) for offsets in OFFSETS] if self.neighbors else None,
            "token_counts": None if self.counts is None else int(self.counts.sum()),
            "linear": None if self.linear is None else self.linear.report,
        }


def _bodies_and_heads(model: TrainedModel) -> Iterator[tuple[PreTrainedModel, MlmHead | None]]:
    """Yield the trainable bodies of a model, each with its masked-LM head.

    The main model of a pair has no such head: None.
    """
    if isinstance(model, GeneratorDiscriminator):
        yield body_of(model.main), None
        if not model.auxiliary.frozen:
            yield model.auxiliary.base_model, model.auxiliary.mlm_head
    else:
        head = model.mlm_head
        assert isinstance(head, MlmHead)
        yield body_of(model), head


def with_initialization(
    make_model: Callable[[], TrainedModel | PeftModel],
    rows: Iterable[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    options: InitializationArguments,
    *,
    objective: str = "mlm",
    task_texts: Sequence[LabelledTexts] | None = None,
) -> tuple[Callable[[], TrainedModel], Initialization]:
    """Wrap `make_model` so that its models get the initial weights of `options`.

    `weight_init` is not applied here but in the config, see `model_factory`.

    Args:
        make_model: creates a model from scratch.
        rows: token ids of the texts whose tokens are counted.
        objective: name of the objective; COCO-LM's also predicts special tokens.
        task_texts: training and validation texts of a task, for a classifier that starts as a linear model.

    Returns:
        (function that creates a model with these weights, the weights).
    """

    def from_scratch() -> TrainedModel:
        model = make_model()
        assert isinstance(model, TrainedModel)  # Adapters are for checkpoints, whose weights do not change.
        return model

    special = special_ids(tokenizer)
    spectral = counts = None
    neighbors = options.attention_init == "neighbors"
    model = from_scratch() if options.embedding_init == "spectral" or options.classifier_init == "linear" else None
    if options.embedding_init == "spectral":
        assert model is not None
        size = embedding_weight(model).shape[1]
        learned = neighbors and any(position_embeddings(body) is not None for body, _ in _bodies_and_heads(model))
        num_position_dims = position_dims(size) if learned else 0
        scale = options.spectral_scale
        spectral = spectral_embeddings(rows, len(tokenizer), size - num_position_dims, scale=scale, ignore=special).padded(
            size
        )
        logger.info("Spectral embeddings: %s", spectral.report)
    if options.lm_head_init == "frequencies":
        counts = token_counts(rows, len(tokenizer))
    excluded = () if OBJECTIVES[objective].mask_special else special
    linear = None
    if options.classifier_init == "linear":
        assert model is not None and task_texts is not None  # `prepare` passes them.
        sizes = {"vocab_size": len(tokenizer), "classes": model.config.num_labels, "hidden_size": model.config.hidden_size}
        linear = fit_linear_start(*task_texts, **sizes)
        logger.info("Linear initialisation of the classifier: %s", linear.report)
    initialization = Initialization(spectral, neighbors, counts, excluded, linear)

    def make() -> TrainedModel:
        model = from_scratch()
        initialization.write_to(model)
        return model

    return make, initialization
