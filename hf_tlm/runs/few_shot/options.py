"""What a few-shot run can be asked for: fields, defaults and help texts, without what it takes to train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(repr=False)
class FewShotOptions:
    """Options of learning from few labels, and those of the Trainer whose defaults they change.

    Defaults are LM-BFF's (Gao, Fisch and Chen, ACL 2021). Recipes hand this class to `parse` and receive a
    `FewShotArguments`.
    """

    extends: ClassVar[str] = "transformers.TrainingArguments"
    stands_for: ClassVar[str] = "hf_tlm.runs.few_shot.arguments.FewShotArguments"

    output_dir: str | None = field(
        default=None, metadata={"help": "Folder of the run: its models and results. Default: trainer_output."}
    )
    method: str = field(
        default="prompt",
        metadata={
            "help": "prompt: fine-tune a masked LM to fill the prompt. finetune: with a classification head, the baseline, "
            "on the same examples. zero_shot: fill the prompt without training; k, splits and the grid have no effect then.",
            "choices": ["prompt", "finetune", "zero_shot"],
        },
    )

    # The examples.
    k: int = field(default=16, metadata={"help": "Training examples of each class, and as many for validation."})
    splits: int = field(default=5, metadata={"help": "How many samples of examples: the first of split_seeds."})
    split_seeds: list[int] = field(
        default_factory=lambda: [13, 21, 42, 87, 100],
        metadata={"help": "Seeds of samples and their training.", "nargs": "+"},
    )

    # The prompt.
    template: str | None = field(
        default=None,
        metadata={
            "help": "Such as '{text} It was {mask}.'; {text:bare} is without its final punctuation, {text_pair:lower} "
            "begins small. Default: LM-BFF's for GLUE's tasks and SNLI."
        },
    )
    label_words: list[str] | None = field(
        default=None,
        metadata={"help": "class=word for every class. Default: LM-BFF's for GLUE's tasks and SNLI.", "nargs": "+"},
    )
    demonstrations: bool = field(
        default=False, metadata={"help": "One answered example of each class follows the text that is asked about."}
    )
    demonstration_sets: int = field(
        default=16, metadata={"help": "With demonstrations: how many sets of them are averaged over in evaluation."}
    )
    similarity_model: str | None = field(
        default=None,
        metadata={
            "help": "With demonstrations: a sentence encoder, folder or Hub id; examples are of the half most similar to "
            "the text by its mean-pooled vectors. Default: any."
        },
    )

    # The grid, of which every split takes the point best on its validation examples.
    learning_rates: list[float] = field(
        default_factory=lambda: [1e-5, 2e-5, 5e-5], metadata={"help": "Peak learning rates to choose from.", "nargs": "+"}
    )
    batch_sizes: list[int] = field(
        default_factory=lambda: [2, 4, 8],
        metadata={"help": "Texts per optimizer step over all processes, to choose from.", "nargs": "+"},
    )

    # Overridden defaults.
    max_steps: int = field(default=1000, metadata={"help": "Optimizer steps of each training."})
    eval_steps: float | None = field(
        default=100, metadata={"help": "Evaluate every so many steps (a share of all below 1); the best checkpoint is kept."}
    )
    max_length: int = field(
        default=128, metadata={"help": "Longest input in tokens: texts are cut, the longest first, the prompt never."}
    )
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Texts per device and micro-batch, at most."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Inputs per device when evaluating."})
    logging_steps: float = field(default=100, metadata={"help": "Log every so many optimizer steps."})
    save_total_limit: int | None = field(
        default=1, metadata={"help": "Checkpoints to keep beside the best one; they go when a training is finished."}
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Not here: such a loss ends the run."})
