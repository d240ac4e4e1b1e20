"""The Trainer of TLM's stages, of score models and of pretraining."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.collator import TlmCollator, leading_texts, repeat_rows, thinned
from hf_tlm.data.interleave import CORPUS, TASK, InterleavedBatchSampler
from hf_tlm.data.masking import with_draws
from hf_tlm.data.streaming import ShardStream, StreamedBlocks
from hf_tlm.data.tokenization import text_lengths
from hf_tlm.errors import ArgumentsError
from hf_tlm.models.base import TrainedModel, applied_parameters
from hf_tlm.models.generator_discriminator import GeneratorDiscriminator
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.objectives import RDrop, TaskLoss
from hf_tlm.objectives.task import class_weights
from hf_tlm.objectives.terms import accumulation_dtype
from hf_tlm.training.base_trainer import SampledTrainer
from hf_tlm.training.cost import (
    TICKS,
    Cost,
    Energy,
    count_flops,
    first_step,
    model_flops_utilization,
    nominal_tokens,
    training_flops,
)
from hf_tlm.training.given import check_classes, check_data, check_given, check_lengths, check_objectives
from hf_tlm.training.objectives import LossAverages, corrective_lm, in_pairs, tlm_objectives
from hf_tlm.training.optimizers import AveragedWeights
from hf_tlm.training.run_arguments import RunArguments, check_rdrop

logger = logging.getLogger(__name__)

# Maximum number of steps of a run with a time budget alone.
ENDLESS = 10**9


class TlmTrainer(SampledTrainer):
    """A `transformers.Trainer` on interleaved task and corpus batches.

    These are the changes to the Trainer; evaluation, schedules and distribution are its own:

    - Task and corpus batches alternate (`InterleavedBatchSampler`).
    - `compute_loss` applies the objective of the batch's stream, normalised over the complete optimizer step:
      `get_batch_samples` counts the elements of each mean on all processes.
    - With `mlm_probability_end` the masks of a batch are thinned to the step's masking probability, in training by
      `get_batch_samples`, in evaluation by `_prepare_inputs`.
    - `log` adds the objectives' named terms and the cost.
    - A non-finite loss ends the run, checkpoints are sealed, and SIGTERM saves a checkpoint (`ResumableTrainer`).

    Args:
        model: a `TlmModel`, or for objectives with replaced tokens a `GeneratorDiscriminator`.
        args: a `TlmArguments`, usually from `TlmArguments.for_stage`, or a `PretrainArguments`.
        train_dataset: tokenised task texts, columns `input_ids` and `label` or `labels` (`hf_tlm.data.tokenize`), and
            with a teacher `teacher_probs` (`hf_tlm.training.teacher`); None when rho1 is inf.
        corpus_dataset: tokenised passages or blocks, column `input_ids`; None when rho1 is 0.
        objectives: stream -> objective; default `tlm_objectives(args)`.

    Raises:
        ArgumentsError: an argument is missing or invalid; the message says what to pass.
    """

    args: RunArguments
    model: TrainedModel | PeftModel
    train_dataset: Dataset | None
    data_collator: TlmCollator

    # compute_loss returns the micro-batch's share of the mean over the optimizer step.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: TrainedModel | PeftModel | None = None,
        args: RunArguments | None = None,
        *,
        train_dataset: Dataset | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        corpus_dataset: Dataset | StreamedBlocks | None = None,
        objectives: Mapping[str, Any] | None = None,
        **kwargs,
    ):
        check_given(model, args, processing_class, {"train": train_dataset, "corpus": corpus_dataset}, kwargs)
        assert model is not None and args is not None and processing_class is not None  # `check_given` checks this.
        kwargs.pop("data_collator", None)  # Only None passes `check_given`.
        weights = None
        label = check_classes(train_dataset, kwargs.get("eval_dataset"), model.config)
        if args.class_balance and train_dataset is not None:
            classes = model.config.num_labels
            assert classes is not None  # The models have a classifier.
            weights = class_weights(train_dataset[label][:], classes, args.class_balance)
        trains = {
            TASK: train_dataset is not None and args.rho1 < math.inf,
            CORPUS: corpus_dataset is not None and args.rho1 > 0,
        }
        check_objectives(objectives, trains)
        self.objectives = dict(objectives or tlm_objectives(args, weights))
        self.corpus_dataset = corpus_dataset
        self._terms, self._eval_terms, self._micro_batches = LossAverages(), LossAverages(), 1
        super().__init__(
            model=model,
            args=args,
            max_hours=args.max_hours,
            train_dataset=train_dataset,
            processing_class=processing_class,
            data_collator=_create_collator(args, processing_class),
            **kwargs,
        )
        if train_dataset is None:
            # Without a task the corpus objective is evaluated, whose labels are `mlm_labels`; every batch has them.
            self.label_names = ["mlm_labels"]
        for module in model.modules():  # The model itself, or the one that an adapter wraps.
            if isinstance(module, TrainedModel):
                module.max_logits = args.max_logits
            if isinstance(module, GeneratorDiscriminator):
                self._configure_model(module)
        check_rdrop(args.rdrop, any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()))
        self.averages = AveragedWeights(args.ema_decay) if args.ema_decay else None
        self.energy = Energy(self.accelerator, args.energy_country) if args.track_energy else None
        for callback in (self.averages, self.energy):
            if callback is not None:
                self.add_callback(callback)

    def _configure_model(self, model: GeneratorDiscriminator) -> None:
        """Configure a model for the objectives: its LM loss and its second view (COCO-LM)."""
        corrective = corrective_lm(self.objectives)
        if corrective is not None:
            if model.clm_heads is None:
                raise ArgumentsError(
                    f"objective {self.args.objective} with clm {self.args.clm} needs a model that corrects tokens, and this "
                    "one detects them. Create it with heads='clm', or set --clm rtd."
                )
            model.lm_loss = corrective.lm_loss
        model.corrupts = self.args.mlm_probability > 0
        model.second_view_learns = not self.args.scl_cosines
        model.second_view = self.data_collator.crop_fraction or 0.0 if self.args.mlm_probability > 0 else 0.0
        vars(model).pop("_parameter_count", None)  # How many parameters are applied depends on these.

    def train(self, *args, **kwargs):
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ArgumentsError(
                "model: none of its parameters requires gradients, so nothing would be trained. An InfluenceScorer switches "
                "them off; model.requires_grad_(True) switches them on again."
            )
        try:
            return super().train(*args, **kwargs)
        finally:
            if self.energy is not None:
                self.energy.stop()

    def hyperparameter_search(self, *args, **kwargs):
        """Raise an ArgumentsError, because the Trainer's search creates models by `model_init`, which is not supported.

        Raises:
            ArgumentsError: always; the message says what to do instead.
        """
        raise ArgumentsError(
            "hyperparameter_search creates models with model_init, which TlmTrainer does not call. Create a model and a "
            "TlmTrainer for each setting, after set_seed, and compare evaluate(); hf_tlm.runs.run_grid searches settings of "
            "fine-tuning."
        )

    # Not in the constructor: a trainer that only evaluates needs no corpus.
    @cached_property
    def batch_sampler(self) -> InterleavedBatchSampler:
        args, corpus, tokens = self.args, self.corpus_dataset, self.args.micro_batch_tokens
        streamed = corpus if isinstance(corpus, StreamedBlocks) else None
        check_data(self.train_dataset, corpus, args.rho1)
        return InterleavedBatchSampler(
            check_lengths("train", text_lengths(self.train_dataset), self.model.config),
            check_lengths("corpus", text_lengths(None if streamed is not None else corpus), self.model.config),
            corpus_stream=None if streamed is None else partial(ShardStream, streamed),
            rho1=args.rho1,
            batch_size=self._train_batch_size if tokens is None else None,
            batch_tokens=tokens,
            group_by_length=args.layout == "group",
            world_size=args.world_size,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            seed=args.data_seed if args.data_seed is not None else args.seed,
        )

    def _budgeted_steps(self) -> int:
        """Return the step at which the first budget is reached; `ENDLESS` if only the time is limited."""
        args, parameters = self.args, applied_parameters(self.model)
        limits = [args.max_steps] if args.max_steps > 0 else []
        if (flops := args.max_flops) is not None:
            limits.append(
                first_step(lambda step: training_flops(nominal_tokens(self.batch_sampler, args, step), parameters) >= flops)
            )
        if (tokens := args.max_tokens) is not None:
            limits.append(first_step(lambda step: self._real_tokens(step) >= tokens))
        return min(limits, default=ENDLESS)

    def _real_tokens(self, step: int) -> int:
        return sum(self.batch_sampler.count_tokens(stream, step) for stream in self.batch_sampler.streams)

    def floating_point_ops(self, inputs):
        return self.model.floating_point_ops(inputs)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self.args.max_hours is None or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        scheduler = super().create_scheduler(TICKS, optimizer)
        if not isinstance(scheduler, LambdaLR):
            raise ArgumentsError(
                f"lr_scheduler_type {self.args.lr_scheduler_type} cannot follow the clock of max_hours. Choose linear, "
                "cosine, polynomial, constant_with_warmup, ..."
            )
        self.clock.schedule(scheduler, num_training_steps)
        return scheduler

    def get_train_dataloader(self) -> DataLoader:
        if self.args.has_budget:
            # The Trainer reads max_steps after it has created the loader.
            self.args.max_steps = self._budgeted_steps()
        steps = self._count_steps()
        if math.isfinite(self.args.rho1) and steps <= self.args.rho1:
            logger.warning(
                "Training ends after step %d, before the first task batch (one after rho1 = %d corpus batches): this stage "
                "trains on the corpus alone.",
                steps,
                self.args.rho1,
            )
        return super().get_train_dataloader()

    def _report_warmup(self, message: str) -> None:
        if self.args.has_budget:
            raise ArgumentsError(message)
        super()._report_warmup(message)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Return the micro-batches of one optimizer step, and the counts that their means divide by.

        Returns:
            (batches, name of a mean -> mean of its count over the processes; None without batches).
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        if self.args.mlm_probability_end is not None:
            batches = [thinned(batch, self._mlm_probability) for batch in batches]
        objective = self.objectives[_stream_of(batches[0])]
        counts: dict[str, torch.Tensor] = {}
        for batch in batches:
            for name, count in objective.count(batch).items():
                counts[name] = counts.get(name, 0) + count
        # DDP averages gradients over processes, so each divides its sum by the mean count.
        values = [*counts.values(), torch.full((), self.clock.share, device=device)]
        values = torch.stack([value.to(device, accumulation_dtype(device)) for value in values])
        *totals, progress = self.accelerator.reduce(values, reduction="mean").unbind()
        if self.clock.limit is not None:
            self.clock.progress = progress.item()
        self._micro_batches = len(batches)
        self.watch.begin(_stream_of(batches[0]), batches)
        return batches, dict(zip(counts, totals, strict=True))

    @property
    def _mlm_probability(self) -> float:
        """Masking probability of the next step."""
        first, last = self.args.mlm_probability, self.args.mlm_probability_end
        if last is None:
            return first
        # As in the schedule of the learning rate: a run with limits on time and steps ends at the first one.
        progress = max(self.clock.progress, self.state.global_step / self.state.max_steps)
        return first + (last - first) * min(1.0, progress)

    def _prepare_inputs(self, inputs):
        """Prepare inputs as the Trainer does, with evaluation passages masked at the final masking probability."""
        inputs, last = super()._prepare_inputs(inputs), self.args.mlm_probability_end
        return inputs if last is None or "chances" not in inputs else thinned(inputs, last)

    def training_step(self, model, inputs, num_items_in_batch=None):
        stream, measured = _stream_of(inputs), self._flops_per_token
        if stream in measured:
            return super().training_step(model, inputs, num_items_in_batch)
        # The counter cannot see into compiled code, so one step of each stream runs without compilation.
        eager = torch.compiler.set_stance("force_eager") if self.args.torch_compile else nullcontext()
        with eager, count_flops() as count:
            loss = super().training_step(model, inputs, num_items_in_batch)
        measured[stream] = count.get_total_flops() / int(inputs["attention_mask"].sum())
        return loss

    @property
    def _flops_per_token(self) -> dict[str, float]:
        """Measured FLOPs per real token of each stream, at its first step; kept in the checkpoints' trainer state.

        They differ slightly in steps with another masking probability.
        """
        callbacks = self.state.stateful_callbacks
        assert isinstance(callbacks, dict)  # The state has converted it from a list.
        return callbacks.setdefault("flops_per_token", {})

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if not model.training:
            loss, outputs = self._evaluation_loss(model, inputs)
            return (loss, outputs) if return_outputs else loss
        stream = _stream_of(inputs)
        objective = self.objectives[stream]
        texts = {name: values for name, values in inputs.items() if name != "teacher_probs"}
        outputs = model(**(repeat_rows(texts) if isinstance(objective, RDrop) else texts))
        terms = objective(outputs, inputs, num_items_in_batch)
        loss = terms.pop("loss")
        self.watch.add(loss, {name: value for name, value in terms.items() if not value.dim()})
        # Each micro-batch has a share of the step's mean, so its count is a share too.
        shares = in_pairs(terms, lambda name, share: (share, 1 / self._micro_batches))
        self._terms.add(shares, prefix=f"{stream}/")
        return (loss, outputs) if return_outputs else loss

    def get_eval_dataloader(self, eval_dataset=None):
        """Return the Trainer's evaluation loader; without a task, passages without a column `draw` get one first."""
        if self.train_dataset is None:
            self.eval_dataset, eval_dataset = with_draws(self.eval_dataset), with_draws(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def _evaluation_loss(self, model: TrainedModel, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Any]:
        """Return loss and outputs of an evaluation batch.

        Task texts are scored by the task loss without masks, whatever the training objective. Passages are scored by the
        corpus objective, whose terms are collected.
        """
        if _stream_of(inputs) == TASK:
            outputs = model(**inputs)
            return TaskLoss()(outputs, inputs)["loss"], outputs
        num_own_texts = self._count_own_texts(inputs)
        inputs = leading_texts(inputs, num_own_texts) if num_own_texts else inputs
        outputs, objective = model(**inputs), self.objectives[CORPUS]
        terms = objective(outputs, inputs)
        loss = terms.pop("loss")
        counts = {f"{name}_loss": count for name, count in objective.count(inputs).items()}
        pairs = in_pairs(terms, lambda name, mean: (mean * counts[name], counts[name]))
        # A process with repeated texts alone adds zeros, because all processes take part in the sums.
        self._eval_terms.add(pairs if num_own_texts else {name: torch.zeros_like(pair) for name, pair in pairs.items()})
        return loss, outputs

    def _count_own_texts(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """Count the texts of an evaluation batch without those repeated to fill up the last batches of the processes."""
        num_texts = len(inputs.get("first_tokens", inputs["input_ids"]))
        state = self.accelerator.gradient_state
        if not state.end_of_dataloader or state.remainder < 1:
            return num_texts
        # As in `gather_for_metrics`, the batches of the processes follow one another.
        return min(num_texts, max(0, state.remainder - self.args.process_index * self.args.eval_batch_size))

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix: str = "eval"
    ):
        """Run the Trainer's evaluation loop, and add the named terms of the corpus objective, as means over all passages."""
        with self._use_averages():
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        terms = self._eval_terms.read(self.accelerator)
        assert output.metrics is not None  # They have the loss.
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in terms.items()})
        return output

    def _use_averages(self) -> AbstractContextManager[None]:
        return nullcontext() if self.averages is None else self.averages.applied()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with self._use_averages():
            super().save_model(output_dir, _internal_call)
        if self.averages is not None and output_dir is not None and _internal_call and self.args.should_save:
            with self._store_failures():
                self.averages.save(Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.averages is not None:
            self.averages.load(self.model, Path(resume_from_checkpoint))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._terms.read(self.accelerator)
            if self.args.mlm_probability_end is not None:
                logs["mlm_probability"] = self._mlm_probability
        if "loss" in logs or "train_loss" in logs:
            cost = self.cost()
            logs |= {name: value for name, value in cost.to_dict().items() if name != "steps"}
            if self.args.device.type == "cuda":  # Not for a GPU that the run does not use.
                mfu = model_flops_utilization(cost.measured_flops, cost.seconds, self.args.world_size)
                if mfu is not None:
                    logs["mfu"] = mfu
        super().log(logs, start_time)

    def cost(self) -> Cost:
        """Return the cost of this stage up to now.

        Tokens and FLOPs follow from the step number alone, so that a resumed run counts every step once.
        """
        sampler, step = self.batch_sampler, self.state.global_step
        energy = {}
        if self.energy is not None:
            total = self.energy.total
            energy = {"energy_kwh": total["kwh"], "estimated_kwh": total["estimated_kwh"]}
            if self.args.energy_country is not None:
                energy["co2_kg"] = total["co2_kg"]
        tokens = nominal_tokens(sampler, self.args, step)
        passes = 1 + bool(self.args.rdrop)
        return Cost(
            steps=step,
            tokens=tokens,
            real_tokens=self._real_tokens(step),
            flops=passes * training_flops(tokens, applied_parameters(self.accelerator.unwrap_model(self.model))),
            measured_flops=float(
                sum(rate * sampler.count_tokens(stream, step) for stream, rate in self._flops_per_token.items())
            ),
            seconds=round(self.clock.seconds, 3),
            **energy,
        )


def _create_collator(args: RunArguments, tokenizer: PreTrainedTokenizerBase) -> TlmCollator:
    spec = OBJECTIVES[args.objective]
    return TlmCollator(
        tokenizer,
        mlm_probability=max(args.mlm_probability, args.mlm_probability_end or 0.0),
        seed=args.seed,
        row_length=args.row_length if args.layout == "pack" else None,
        eval_row_length=args.row_length if args.layout != "none" else None,
        replacing=spec.corrupts,
        spans=spec.masks_spans,
        whole_word_mask=args.whole_word_mask,
        thinning=args.mlm_probability_end is not None,
        mask_special=spec.mask_special,
        crop_fraction=args.crop_fraction if spec.contrasts and (args.scl or args.scl_cosines) else None,
    )


def _stream_of(batch: Mapping[str, torch.Tensor]) -> str:
    """Return the stream of a batch: task batches have labels."""
    return TASK if "labels" in batch else CORPUS
