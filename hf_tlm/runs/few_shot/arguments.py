"""The arguments of a few-shot run, in addition to those of `transformers.TrainingArguments`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from hf_tlm.errors import ArgumentsError
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.optimizers import OWN
from hf_tlm.utils.options import NoEffect, option
from hf_tlm.utils.process import uses_fsdp

# Options of the Trainer that are determined by other options here -> those options.
SETTLED = {
    "learning_rate": "learning_rates",
    "num_train_epochs": "max_steps",
    "gradient_accumulation_steps": "batch_sizes and per_device_train_batch_size",
    "seed": "split_seeds",
    "data_seed": "split_seeds",
    "eval_strategy": "eval_steps",
    "save_strategy": "eval_steps",
    "save_steps": "eval_steps",
    "train_sampling_strategy": "split_seeds",
    "load_best_model_at_end": "the task's metric",
    "metric_for_best_model": "the task's metric",
    "resume_from_checkpoint": "output_dir (the same command resumes)",
}
_NO_PROMPT = NoEffect("method", ("finetune",), ": method finetune has no prompt. Leave it out.")
_NO_DEMONSTRATIONS = NoEffect(
    "demonstrations", (False,), "without demonstrations. Remove it, or pass --demonstrations true."
)
_NO_TRAINING = NoEffect("method", ("zero_shot",), ": method zero_shot does not train. Leave it out.")


@dataclass(repr=False)
class FewShotArguments(BaseArguments):
    """Settings of few-shot learning, including options of the Trainer with other defaults.

    Defaults are LM-BFF's (Gao, Fisch and Chen, ACL 2021).
    """

    fits_micro_batch: ClassVar[bool] = True

    method: str = option(
        "prompt",
        "prompt: fine-tune a masked LM to fill the prompt. finetune: fine-tune a classification head on the same examples, "
        "as a baseline. zero_shot: fill the prompt without training; the grid has no effect, and without demonstrations "
        "neither have k and splits.",
        choices=["prompt", "finetune", "zero_shot"],
    )

    # The examples.
    k: int = option(16, "Training examples per class, and as many for validation.")
    splits: int = option(5, "Number of samples of examples to run, with the first seeds of split_seeds.")
    split_seeds: list[int] = option(
        help="Seeds of the samples of examples, and of their training.", factory=lambda: [13, 21, 42, 87, 100], nargs="+"
    )

    # The prompt.
    template: Annotated[str | None, _NO_PROMPT] = option(
        None,
        "Template, such as '{text} It was {mask}.'; {text:bare} removes the final punctuation, {text_pair:lower} makes the "
        "first letter lower case. Default: LM-BFF's for GLUE's tasks and SNLI.",
    )
    label_words: Annotated[list[str] | None, _NO_PROMPT] = option(
        None, "A word for every class, as class=word. Default: LM-BFF's for GLUE's tasks and SNLI.", nargs="+"
    )
    demonstrations: Annotated[bool, _NO_PROMPT] = option(
        False, "Add an example of each class with its label word to the input, after the text to classify."
    )
    demonstration_sets: Annotated[int, _NO_PROMPT, _NO_DEMONSTRATIONS] = option(
        16, "With demonstrations: number of sets of demonstrations to average over in evaluation."
    )
    similarity_model: Annotated[str | None, _NO_PROMPT, _NO_DEMONSTRATIONS] = option(
        None,
        "With demonstrations: a sentence encoder, folder or Hub id; they are drawn from the half of the examples of a class "
        "that is most similar to the text, by its mean-pooled vectors. Default: from all examples.",
    )

    # The grid. For every split, the point that is best on its validation examples is used.
    learning_rates: Annotated[list[float], _NO_TRAINING] = option(
        help="Peak learning rates to choose from.", factory=lambda: [1e-5, 2e-5, 5e-5], nargs="+"
    )
    batch_sizes: Annotated[list[int], _NO_TRAINING] = option(
        help="Texts per optimizer step over all processes, to choose from.", factory=lambda: [2, 4, 8], nargs="+"
    )

    # Overridden defaults.
    max_steps: Annotated[int, _NO_TRAINING] = option(1000, "Optimizer steps of each training.")
    eval_steps: Annotated[float | None, _NO_TRAINING] = option(
        100, "Number of steps between evaluations (below 1: a share of all steps); the best checkpoint is kept."
    )
    max_length: int = option(
        128, "Maximum length of an input in tokens: texts are truncated, the longest first; the prompt never is."
    )
    truncation: Annotated[str, _NO_PROMPT] = option(
        "longest",
        "How to shorten inputs longer than max_length. longest: truncate texts, the longest first. tail: cut off everything "
        "after max_length tokens, demonstrations too, as in LM-BFF's code; the mask is kept.",
        choices=["longest", "tail"],
    )
    first_text_limit: Annotated[int | None, _NO_PROMPT] = option(
        None,
        "Maximum length in tokens of the first text of the row to classify, applied before max_length. LM-BFF uses 240 for "
        "RTE, with max_length 256.",
    )
    other_text_limit: Annotated[int | None, _NO_PROMPT] = option(
        None, "The same for all other texts: the second texts of pairs, and the texts of demonstrations."
    )
    optim: str = option("adamw_torch_fused", "One of the Trainer's optimizers: adamw_torch_fused, adamw_torch, ...")
    per_device_train_batch_size: int = option(8, "Maximum number of texts per device and micro-batch.")
    logging_steps: float = option(100, "Number of optimizer steps between logs.")
    save_total_limit: int | None = option(
        1, "Number of checkpoints to keep in addition to the best one; all are deleted when a training is finished."
    )
    hub_strategy: str = option("end", argparse.SUPPRESS)  # push_to_hub is refused.

    def __post_init__(self):
        defaults = defaults_of(type(self))
        for name, source in SETTLED.items():
            if getattr(self, name) != defaults[name]:
                raise ArgumentsError(f"{name} {getattr(self, name)} has no effect: it is determined by {source}. Remove it.")
        if self.push_to_hub:
            raise ArgumentsError(
                "A few-shot run ends with one model for every split, in split-<seed>/model. Remove push_to_hub, and "
                "publish the model you want with `hf-tlm publish`."
            )
        if self.optim in OWN:
            raise ArgumentsError(
                f"optim {self.optim} is for large batches and training from scratch, which hf-tlm train and pretrain do; a "
                "few-shot run has neither. Use adamw_torch_fused."
            )
        super().__post_init__()
        if self.max_steps < 1:
            raise ArgumentsError(f"max_steps must be at least 1; received {self.max_steps}.")
        for name in ("split_seeds", "learning_rates", "batch_sizes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ArgumentsError(f"{name} must contain at least one value, and each only once; received {values}.")
        if self.splits > len(self.split_seeds):
            raise ArgumentsError(
                f"splits {self.splits} needs as many split_seeds; received {len(self.split_seeds)}: {self.split_seeds}. "
                "Pass more --split_seeds, or fewer --splits."
            )
        if self.eval_steps is None or self.eval_steps > self.max_steps:
            raise ArgumentsError(
                f"eval_steps must be at most max_steps {self.max_steps}, so that there is a checkpoint to "
                f"keep; received {self.eval_steps}."
            )
        if uses_fsdp(self):
            raise ArgumentsError(
                "A few-shot run is for one device, or for several by DDP (the preset accelerate/ddp). FSDP is not supported."
            )
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = True  # The copy head of COCO-LM, for one.

    @property
    def run_split_seeds(self) -> list[int]:
        """The seeds of the splits to run."""
        return self.split_seeds[: self.splits]

    @property
    def total_batch_size(self) -> int:
        """The batch size over all processes; meaningful for arguments of one point of the grid, see `for_point`."""
        return self.batch_sizes[0]

    def for_point(self, learning_rate: float, batch_size: int, output_dir: str | os.PathLike, seed: int, metric: str):
        """Return the arguments of a training for one point of the grid, see `for_trainer`.

        The best checkpoint is chosen by the task's metric.
        """
        args = self._copy(output_dir, seed)
        args.batch_sizes, args.learning_rates, args.learning_rate = [batch_size], [learning_rate], learning_rate
        args = args.for_trainer(output_dir, seed)
        args.eval_strategy = args.save_strategy = "steps"
        assert self.eval_steps is not None  # `__post_init__` has checked it.
        args.save_steps = self.eval_steps
        args.load_best_model_at_end, args.metric_for_best_model, args.greater_is_better = True, metric, True
        # `TrainingInputs` are already in the order of training.
        args.train_sampling_strategy = "sequential"
        return args


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the defaults of a dataclass's init fields by name."""
    return {
        entry.name: entry.default_factory() if callable(entry.default_factory) else entry.default
        for entry in fields(cls)
        if entry.init
    }
