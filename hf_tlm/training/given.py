"""What `TlmTrainer` is given by whoever knows `transformers.Trainer`, checked before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from hf_tlm.data.streaming import StreamedBlocks
from hf_tlm.models.base import TrainedModel
from hf_tlm.training.errors import ArgumentsError
from hf_tlm.training.run_arguments import RunArguments


def check_given(model: Any, args: Any, tokenizer: Any, datasets: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Check what a `TlmTrainer` was given: what the Trainer takes, and this one does not, is a sentence.

    Args:
        datasets: `train` and `corpus`; None where there is none.
        others: the Trainer's own arguments.

    Raises:
        ArgumentsError: it says what to pass.
    """
    if not isinstance(args, RunArguments):
        raise ArgumentsError(
            f"args: expected a TlmArguments; received {type(args).__name__}. It takes the same options, and rho1, rho2 and "
            "more: TlmArguments(output_dir=..., rho1=3)."
        )
    if others.get("model_init") is not None or model is None:
        raise ArgumentsError(
            "model: expected a model; received none. model_init is not called here: make the model, after set_seed, and "
            "pass it."
        )
    if not any(isinstance(module, TrainedModel) for module in model.modules()):
        raise ArgumentsError(
            "model: expected a TlmModel, GeneratorDiscriminator, or a TrainedModel of your own "
            f"(examples/own_model_and_loss.py); received {type(model).__name__}. TlmModel.from_config(config) makes "
            "one from scratch, TlmModel.from_checkpoint(folder) of a stock checkpoint."
        )
    if tokenizer is None:
        raise ArgumentsError("processing_class: expected the tokenizer of the texts; received none.")
    if "data_collator" in others:
        raise ArgumentsError(
            "data_collator: TlmTrainer makes its own (TlmCollator), which masks by seed and visit. Leave it out, and give "
            "what it is to do in args (mlm_probability, packing, ...)."
        )
    for name, rows in datasets.items():
        columns = getattr(rows, "column_names", None)
        if rows is not None and not isinstance(rows, StreamedBlocks) and "input_ids" not in (columns or ()):
            found = type(rows).__name__ if columns is None else f"one with the columns {', '.join(columns)}"
            raise ArgumentsError(
                f"{name}_dataset: expected a datasets.Dataset with the column input_ids; received {found}. "
                "hf_tlm.data.tokenize(rows, tokenizer, max_length) makes it of texts, Dataset.from_list of a list."
            )


def label_column(rows: Dataset | None) -> str | None:
    """The column of labels of a task's texts; None without texts.

    Raises:
        ArgumentsError: there is none: the masked LM would learn, and the task would not.
    """
    names = getattr(rows, "column_names", None)
    if names is None:
        return None
    found = next((name for name in ("label", "labels") if name in names), None)
    if found is None:
        raise ArgumentsError(
            f"train_dataset has the columns {', '.join(names)}: expected label (or labels), an index of a class. Texts "
            "without labels are corpus_dataset."
        )
    return found
