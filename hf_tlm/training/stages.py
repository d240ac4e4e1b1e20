"""TLM's two stages, each resumable, and how the weights of a run's models begin.

A finished stage is loaded, a started one continues from its last checkpoint. What `InitializationArguments` ask for is
counted once and written into each model.
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
    carried_by,
    copying_heads,
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


def check_stage_2(args: TlmArguments, config: PreTrainedConfig, model_args: ModelArguments) -> None:
    """Raise an ArgumentsError if the body has no word for the pooling of stage 2, or drops nothing for R-Drop."""
    if 2 not in args.stages:
        return
    if args.stage2_classifier_pooling is not None and not hasattr(config, "classifier_pooling"):
        raise ArgumentsError(
            "stage2_classifier_pooling is for bodies whose stock classifier can pool (modernbert); received "
            f"{args.stage2_classifier_pooling!r} for a body of the type {config.model_type!r}. Leave it out, or give "
            "another --model_config."
        )
    drops = args.stage2_dropout
    if drops is None:
        # Type by type the names differ; that of a head for another task may be among them.
        values = [value for name, value in config.to_dict().items() if "drop" in name]
        drops = max((value for value in values if isinstance(value, int | float)), default=0.0)
    check_rdrop(args.stage2_rdrop, drops > 0 or (model_args.use_peft and model_args.lora_dropout > 0))


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


@dataclass(frozen=True)
class Initialization:
    """What is written into a random model from scratch, and before the last stage.

    spectral: token embeddings. neighbors: of attention. counts: of tokens, int64 [V], for the masked-LM head.
    never_predicted: ids of tokens. linear: what the classifier of the last stage begins as.
    """

    spectral: SpectralEmbeddings | None = None
    neighbors: bool = False
    counts: np.ndarray | None = None
    never_predicted: Collection[int] = ()
    linear: LinearStart | None = None

    def write_to(self, model: TrainedModel) -> None:
        """Give a random model its first weights, in place; random numbers are torch's."""
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

    def before_last_stage(self, model: TrainedModel) -> None:
        """Let the classifier begin as a linear model where it was asked for, in place.

        Not before: joint training unlearns part of it.
        """
        if self.linear is not None:
            self.linear.write_to(model.main if isinstance(model, GeneratorDiscriminator) else model)

    def _write_head(self, body: PreTrainedModel, head: MlmHead, counts: np.ndarray) -> None:
        decoder = head.family.decoder(head)
        unigram_bias(decoder, counts, self.never_predicted)
        carried = carried_by(body)
        for module in head.modules():
            # COCO-LM's copy head is no transform.
            if isinstance(module, nn.Linear) and module is not decoder and module.weight.shape == carried.T.shape:
                near_identity(module, carried)

    @property
    def report(self) -> dict[str, Any]:
        """What was done, for records and cards."""
        return {
            "spectral": None if self.spectral is None else self.spectral.report,
            "neighbors": [list(offsets) for offsets in OFFSETS] if self.neighbors else None,
            "token_counts": None if self.counts is None else int(self.counts.sum()),
            "linear": None if self.linear is None else self.linear.report,
        }


def _bodies_and_heads(model: TrainedModel) -> Iterator[tuple[PreTrainedModel, MlmHead | None]]:
    """Yield the bodies of a model that learn, each with its masked-LM head.

    A main transformer beside an auxiliary one has no such head.
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
    """What makes the same models as `make_model` with other first weights, and those.

    `weight_init` is not among them: it is the config's, see `model_factory`.

    Args:
        rows: token ids of the texts to count in.
        objective: COCO-LM's predicts special tokens too.
        task_texts: training and validation texts of a task, for a classifier that begins as a linear model.
    """

    def from_scratch() -> TrainedModel:
        model = make_model()
        assert isinstance(model, TrainedModel)  # An adapter is of a checkpoint, whose weights stay as they are.
        return model

    special = special_ids(tokenizer)
    spectral = counts = None
    neighbors = options.attention_init == "neighbors"
    model = from_scratch() if options.embedding_init == "spectral" or options.classifier_init == "linear" else None
    if options.embedding_init == "spectral":
        assert model is not None
        size = embedding_weight(model).shape[1]
        learned = neighbors and any(position_embeddings(body) is not None for body, _ in _bodies_and_heads(model))
        free = position_dims(size) if learned else 0
        scale = options.spectral_scale
        spectral = spectral_embeddings(rows, len(tokenizer), size - free, scale=scale, ignore=special).padded(size)
        logger.info("Spectral embeddings: %s", spectral.report)
    if options.lm_head_init == "frequencies":
        counts = token_counts(rows, len(tokenizer))
    never = () if OBJECTIVES[objective].mask_special else special
    linear = None
    if options.classifier_init == "linear":
        assert model is not None and task_texts is not None  # `prepare` gives them.
        sizes = {"vocab_size": len(tokenizer), "classes": model.config.num_labels, "hidden_size": model.config.hidden_size}
        linear = fit_linear_start(*task_texts, **sizes)
        logger.info("A linear start: %s", linear.report)
    initialization = Initialization(spectral, neighbors, counts, never, linear)

    def make() -> TrainedModel:
        model = from_scratch()
        initialization.write_to(model)
        return model

    return make, initialization
