"""How the weights of a run's models begin: what `InitializationArguments` ask for, counted once and written into each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data.tokenization import special_ids
from hf_tlm.models import GeneratorDiscriminator, TrainedModel
from hf_tlm.models.arguments import InitializationArguments
from hf_tlm.models.base import body_of, embedding_weight
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

logger = logging.getLogger(__name__)


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
