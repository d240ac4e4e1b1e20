"""Models of fine-tuning: load a pretrained checkpoint with a head for a task, train it, and load a fine-tuned folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.data.interleave import TASK, InterleavedBatchSampler
from hf_tlm.data.text_checks import check_known, spread_texts
from hf_tlm.hub.repo import ADAPTER_FILE, checkpoint_folder
from hf_tlm.models import FAMILIES, ModelError, add_lora, applied_parameters
from hf_tlm.models.adapters import check_targets, load_merged
from hf_tlm.models.cpu_kernels import use_cpu_kernels
from hf_tlm.models.loading import check_fit, hub_options, load_stock, new_weights, reading
from hf_tlm.objectives import WeightedSum
from hf_tlm.runs.arguments import CheckpointArguments
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import feature_lengths, kind_module, texts_per_feature
from hf_tlm.runs.finetuning.tagging import CrfTagger
from hf_tlm.tasks import Task
from hf_tlm.training import Cost, training_flops
from hf_tlm.training.base_trainer import SampledTrainer
from hf_tlm.training.objectives import LossAverages, in_pairs

logger = logging.getLogger(__name__)


def load_pretrained(
    task: Task, checkpoint: CheckpointArguments, max_length: int
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Load the config of a checkpoint, with the classes of a task, and the tokenizer.

    Raises:
        ModelError: the config cannot be loaded, or has fewer positions than `max_length`, fewer tokens than the tokenizer,
            or none of the layers to be adapted.
        HubError, TokenizerError: see `checkpoint_folder`, `load_tokenizer`, `check_known`.
    """
    name, source = checkpoint.model_name_or_path, checkpoint.tokenizer_source
    folder = _folder(checkpoint)
    with reading("a config from", name):
        config = AutoConfig.from_pretrained(folder, **_labels(task), **_options(checkpoint))
    tokenizer = load_tokenizer(**source, masking=False)
    check_fit(config, name, max_length=max_length, tokenizer=tokenizer, tokenizer_name=source["name_or_path"])
    check_known(tokenizer, spread_texts(task.train), source["name_or_path"])
    if checkpoint.use_peft:
        check_targets(checkpoint, config, checkpoint.trust_remote_code)
    set_token_types(tokenizer, config)
    tokenizer.model_max_length = max_length
    return config, tokenizer


def load_model(
    task: Task, checkpoint: CheckpointArguments, config: PreTrainedConfig, args: FinetuneArguments
) -> PreTrainedModel | nn.Module:
    """Load the stock model of the task's kind with the weights of a checkpoint.

    Missing weights of the head are initialised at random, under the current seed (`transformers.set_seed`). A head of other
    shapes is replaced. The weights are float32. With `use_peft` the model has an adapter.

    Raises:
        ModelError: the model cannot be loaded, or weights of its body are missing.
    """
    kind = kind_module(task.spec.kind)
    name = checkpoint.model_name_or_path
    with reading("a model from", name):
        auto_class = getattr(transformers, kind.AUTO_CLASS)
        model, info = load_stock(auto_class, _folder(checkpoint), config, **_options(checkpoint))
    new = new_weights(model, info, name)
    logger.info("%s: newly initialized weights: %s.", name, ", ".join(sorted(new)) or "none")
    if config.model_type in FAMILIES:
        use_cpu_kernels(model)
    wrap = getattr(kind, "wrap", None)
    if wrap is not None:
        model = wrap(model, args)
    if checkpoint.use_peft:
        return add_lora(model, checkpoint, name, checkpoint.model_revision)
    return model


def load_finetuned(
    folder: Path, kind: str, args: FinetuneArguments, trust_remote_code: bool = False
) -> PreTrainedModel | CrfTagger:
    """Load the model that fine-tuning wrote to a folder like `load_finished`, with the wrapper of its kind if it has one."""
    module = kind_module(kind)
    model = load_finished(folder, module.AUTO_CLASS, trust_remote_code)
    restore = getattr(module, "restore", None)
    return model if restore is None else restore(model, folder, args)


def load_finished(folder: Path, auto_class: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """Load the stock model of a finished folder by the name of its Auto class; an adapter is merged into its base.

    Raises:
        ModelError: the model or the base of an adapter cannot be loaded, or lacks weights.
    """
    with reading("the model in", folder):
        if (folder / ADAPTER_FILE).is_file():
            return load_merged(folder, auto_class, trust_remote_code)
        model, info = getattr(transformers, auto_class).from_pretrained(
            folder, trust_remote_code=trust_remote_code, output_loading_info=True
        )
        if missing := sorted(info["missing_keys"]):
            raise ModelError(
                f"{folder} lacks weights ({', '.join(missing[:3])}), which would be initialized at random. Pass a finished "
                "model."
            )
        return model


def set_token_types(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Make a tokenizer return token types if the body has embeddings of two or more types, and none otherwise.

    The setting is saved with the tokenizer, which does not know the body: the tokenizers of ALBERT and XLNet leave token
    types out (in transformers 5), and a trained WordPiece tokenizer returns them for every body. If a body without two
    types is of a family that is not in `FAMILIES`, its tokenizer does not change.
    """
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    if config.model_type == "xlnet" or getattr(config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    elif config.model_type not in FAMILIES:
        return
    # `save_pretrained` writes the one in init_kwargs.
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


def _folder(checkpoint: CheckpointArguments) -> str:
    trust = checkpoint.trust_remote_code
    return checkpoint_folder(checkpoint.model_name_or_path, checkpoint.model_revision, trust_remote_code=trust)


def _options(checkpoint: CheckpointArguments) -> dict[str, Any]:
    return hub_options(checkpoint.model_revision, checkpoint.trust_remote_code, checkpoint.attn_implementation)


def _labels(task: Task) -> dict[str, Any]:
    """Return the entries of a model's config on the classes and the problem type of a task."""
    if task.spec.kind == "regression":
        # With names: num_labels alone would contradict a checkpoint's classes, and transformers would warn.
        return {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if task.spec.kind == "classification":
        return {"id2label": task.id2label, "label2id": task.label2id, "problem_type": "single_label_classification"}
    if task.spec.kind == "tagging":
        return {"id2label": task.id2label, "label2id": task.label2id}
    # Start and end logits for question answering; the classes of a checkpoint that was a classifier are dropped. Multiple
    # choice does not read num_labels.
    return {"id2label": {0: "LABEL_0", 1: "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "problem_type": None}


class FinetuneTrainer(SampledTrainer):
    """A `transformers.Trainer` for stock models, which compute their own losses.

    It differs from `SampledTrainer` in these points: all batches are of the task, all steps have the same number of
    examples, and evaluation keeps the given order. The loss of a step is the mean over all its examples, however they are
    divided into micro-batches.

    Args:
        args: from `FinetuneArguments.for_seed`.
        train_dataset: features of the task's kind; a trainer that only predicts has none.
        eval_dataset: features by length, see `EvaluationSet`.
        loss_terms: batch -> int64 [], the number of terms that its loss is the mean of; None where all batches have the same
            number.
        objective: the loss of training batches (`hf_tlm.objectives`) instead of the model's own, which then gets no labels;
            with a teacher the weighted sum of the task loss and the teacher's.
    """

    args: FinetuneArguments

    def __init__(
        self,
        model: nn.Module,
        args: FinetuneArguments,
        *,
        loss_terms: Callable[[dict[str, torch.Tensor]], torch.Tensor] | None = None,
        objective: WeightedSum | None = None,
        **kwargs,
    ):
        super().__init__(model, args, **kwargs)
        # Stock models differ in their use of `num_items_in_batch`, so it is not passed to them.
        self.model_accepts_loss_kwargs = False
        self.loss_terms = loss_terms
        self.text_loss: WeightedSum | None = objective
        self._loss_averages = LossAverages()

    @cached_property
    def batch_sampler(self) -> InterleavedBatchSampler:
        return InterleavedBatchSampler(
            feature_lengths(self.train_dataset),
            np.zeros(0, np.int32),
            rho1=0,
            batch_size=self._train_batch_size,
            group_by_length=self.args.train_sampling_strategy == "group_by_length",
            world_size=self.args.world_size,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
        )

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler:
        return SequentialSampler(eval_dataset)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.watch.begin(TASK, batches)
        if self.loss_terms is not None:
            terms = torch.stack([self.loss_terms(batch) for batch in batches]).to(device)
            # Average number per micro-batch over all processes.
            terms = self.accelerator.gather(terms).float()
            self.average_terms = terms.mean().clamp(min=1 / len(terms))
        if self.text_loss is not None and batches:
            batch_counts = [self.text_loss.count(batch) for batch in batches]
            counts = torch.stack([torch.stack(list(count.values())) for count in batch_counts]).to(device).float()
            # Average number per micro-batch over the step and all processes: the Trainer averages over micro-batches.
            self.average_counts = dict(
                zip(batch_counts[0], self.accelerator.reduce(counts.mean(0), reduction="mean"), strict=True)
            )
        return batches, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if model.training and self.text_loss is not None:
            model_inputs = {name: values for name, values in inputs.items() if name not in ("labels", "teacher_probs")}
            outputs = model(**model_inputs)
            terms = self.text_loss(outputs, inputs, self.average_counts)
            loss = terms.pop("loss")
            self.watch.add(loss, terms)
            self._loss_averages.add(in_pairs(terms, lambda name, value: (value, 1.0)))
            return (loss, outputs) if return_outputs else loss
        # A copy, because label smoothing takes the labels out.
        loss, outputs = super().compute_loss(model, {**inputs}, return_outputs=True)
        if model.training and self.loss_terms is not None:
            terms = self.loss_terms(inputs)
            # The mean over no terms is NaN; such a batch contributes 0.
            loss = loss if terms > 0 or loss.isfinite() else 0 * outputs["logits"].sum()
            loss = loss * (terms / self.average_terms)
        if model.training:
            self.watch.add(loss, {"task_loss": loss.detach()})
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._loss_averages.read(self.accelerator)
        super().log(logs, start_time)

    def cost(self) -> Cost:
        """Return the cost so far, computed from the step number alone, so that a resumed run counts every step once."""
        sampler, step = self.batch_sampler, self.state.global_step
        examples = step * sampler.batches_per_step * sampler.amount
        tokens = examples * texts_per_feature(self.train_dataset) * self.args.max_length
        return Cost(
            steps=step,
            tokens=tokens,
            real_tokens=sampler.count_tokens(TASK, step),
            flops=training_flops(tokens, applied_parameters(self.accelerator.unwrap_model(self.model))),
            seconds=round(self.clock.seconds, 3),
        )
