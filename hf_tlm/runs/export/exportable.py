"""A finished model, or several as one, ready to be exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.models import ModelError
from hf_tlm.models.loading import check_positions
from hf_tlm.models.onnx_graph import LEAST_SHARE
from hf_tlm.runs.averaging import shown_member
from hf_tlm.runs.export import fill_mask
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import kind_module
from hf_tlm.runs.finetuning.loading import load_finished, set_token_types
from hf_tlm.runs.prediction.source import Source

# What models of one graph have in common.
_IN_COMMON: dict[str, Callable[[Any], Any]] = {
    "the tokenizer": lambda model: model.tokenizer.backend_tokenizer.to_str(),
    "the classes in one order": lambda model: model.stock.config.id2label,
    "the inputs": lambda model: model.inputs,
    "the max_length": lambda model: model.args.max_length,
}


@dataclass
class Exportable:
    """A finished model, ready to be exported, and how its outputs are read.

    others: further stock models, whose answers are averaged with this one's.
    """

    source: Source
    kind: ModuleType
    stock: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    args: FinetuneArguments
    decoder: Any
    others: Sequence[PreTrainedModel] = ()
    inputs: list[str] = field(init=False)
    outputs: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        config = self.stock.config
        self.inputs = ["input_ids", "attention_mask"]
        if "token_type_ids" in self.tokenizer.model_input_names and getattr(config, "type_vocab_size", 0) > 1:
            self.inputs.append("token_type_ids")
        answers = self.source.spec.kind == "question_answering"
        self.outputs = ("start_logits", "end_logits") if answers else ("logits",)

    @property
    def kind_name(self) -> str:
        return "fill_mask" if self.kind is fill_mask else self.source.spec.kind

    def at_tokens(self, outputs: Any, lengths: np.ndarray) -> Any:
        """Logits without those of padding, which mean nothing and differ.

        Args:
            outputs: float [N, S, ...], or a tuple of such; of classifiers they have no S and stay as they are.
            lengths: int [N].
        """
        if self.kind is not fill_mask and self.source.spec.kind not in ("tagging", "question_answering"):
            return outputs
        if isinstance(outputs, tuple):
            return tuple(self.at_tokens(part, lengths) for part in outputs)
        padding = np.arange(outputs.shape[1]) >= lengths[:, None]
        return np.where(padding.reshape(*padding.shape, *[1] * (outputs.ndim - 2)), np.float32(-100), outputs)

    @property
    def members(self) -> list[PreTrainedModel]:
        return [self.stock, *self.others]

    @property
    def averages_shares(self) -> bool:
        return self.source.spec.kind == "classification"

    @torch.inference_mode()
    def __call__(self, batch: Mapping[str, torch.Tensor]) -> tuple[np.ndarray, ...]:
        """The logits of torch."""
        found = [member(**{name: batch[name] for name in self.inputs}) for member in self.members]
        if not self.others:
            return tuple(found[0][name].numpy() for name in self.outputs)
        logits = torch.stack([one["logits"] for one in found])
        return (
            (logits.softmax(-1).mean(0).clamp_min(LEAST_SHARE).log() if self.averages_shares else logits.mean(0)).numpy(),
        )


def load_exportable(source: Source, scratch: str, trust_remote_code: bool) -> Exportable:
    """Load a finished network; a ModelError where it is none, or has a tokenizer that nothing else reads."""
    if source.linear:
        raise ModelError(
            f"{source.folder} is a linear model, of which there is no graph. `hf-tlm predict` takes it as it is, by itself "
            "or beside exports (--backend onnx)."
        )
    kind = fill_mask if source.fills_masks else kind_module(source.spec.kind)
    tokenizer = load_tokenizer(str(source.folder), trust_remote_code=trust_remote_code, masking=source.fills_masks)
    if not tokenizer.is_fast:
        raise ModelError(
            f"{source.folder} has a tokenizer in pure Python ({type(tokenizer).__name__}) and no tokenizer.json, which "
            "everything that loads an export reads. Only models with a fast tokenizer are exported."
        )
    stock = load_finished(source.folder, kind.AUTO_CLASS, trust_remote_code).float().eval()
    if (max_length := source.arguments.get("max_length")) is not None:
        check_positions(stock.config, str(source.folder), max_length)
    if stock.config.model_type == "cocolm":
        stock.set_attn_implementation("eager")  # With its bias torch cannot export the fused one for free lengths.
    if source.stock:
        set_token_types(tokenizer, stock.config)
    if source.spec.kind == "regression":
        stock.config.problem_type = "regression"
    args = source.finetune_arguments(scratch, use_cpu=True)
    restore = getattr(kind, "restore", None)
    decoder = stock if restore is None else restore(stock, source.folder, args)
    return Exportable(source, kind, stock, tokenizer, args, decoder)


def as_one(names: Sequence[str], models: Sequence[Exportable]) -> Exportable:
    """Several models as one, whose graph takes one tokenizer's ids; a ModelError where they have none in common."""
    first = models[0]
    for name, model in zip(names, models, strict=True):
        apart = [what for what, of in _IN_COMMON.items() if of(model) != of(first)]
        if apart:
            raise ModelError(
                f"One graph of several models needs {' and '.join(apart)} in common, and those of {shown_member(name)} "
                f"are not those of {shown_member(names[0])}. Export them one by one; predict averages them too."
            )
    return replace(first, others=[model.stock for model in models[1:]])
