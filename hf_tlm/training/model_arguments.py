"""The arguments that choose a run's model and tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from hf_tlm.errors import ArgumentsError
from hf_tlm.hub.repo import split_revision
from hf_tlm.models.arguments import InitializationArguments, LoraArguments
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, named, option

_SHARING = NoEffect("freeze_auxiliary", (True,), "with freeze_auxiliary, which shares nothing. Remove it.")


@dataclass
class ModelArguments(InitializationArguments, LoraArguments):
    """Settings of the model of a run, its tokenizer, its adapter and the initialisation of its weights.

    The model is trained from scratch (`model_config`) or from a checkpoint (`model_name_or_path`).
    """

    model_config: str = option(
        "recipes/configs/models/bert_tiny.json",
        "JSON file with a transformers config, a preset (models/bert_tiny), or a Hub id (optionally with @revision), "
        "of which the architecture is used, not the weights.",
    )
    model_name_or_path: str | None = option(
        None, "Checkpoint to start from, instead of from scratch: a folder, or a Hub id, optionally with @revision."
    )
    model_revision: str | None = option(None, "Branch, tag or commit of the checkpoint, instead of @revision.")
    auxiliary_size: float | None = option(
        None,
        "electra, ale, cocolm, from scratch: width of the auxiliary model (hidden size, heads, FFN) relative to the "
        "model's. Default: 0.25; cocolm: 1.",
    )
    auxiliary_layers: int | None = option(
        None,
        "electra, ale, cocolm, from scratch: number of layers of the auxiliary model. Default: as many as the model; "
        "cocolm: a third.",
    )
    auxiliary_name_or_path: str | None = option(
        None,
        "electra, ale, cocolm, from a checkpoint (or with freeze_auxiliary): checkpoint of the auxiliary model. "
        "Default: the folder generator/ in the model's checkpoint.",
    )
    freeze_auxiliary: bool = option(
        False, "electra, ale, cocolm: do not train the auxiliary model, which comes from a checkpoint and shares no weights."
    )
    share_embedding_norm: Annotated[bool, _SHARING] = option(
        False,
        "electra, ale: share the LayerNorm of the embeddings between both models too, as in Google's ELECTRA. "
        "Default: share token, position and type embeddings only, as transformers' classes do.",
    )
    temperature: float | None = option(
        None,
        "electra, ale, cocolm: temperature of the softmax from which replacements are drawn; 0 is argmax. Default: "
        "0.8; cocolm: 1.",
    )
    replacements: str = option(
        "sampled",
        "electra, ale, cocolm: replacement tokens. sampled: from the auxiliary model. random: random tokens of the "
        "vocabulary.",
        choices=["sampled", "random"],
    )
    attn_implementation: str | None = option(
        None,
        "Attention implementation: sdpa, eager, flash_attention_2, ...; the last one needs its package, a GPU and "
        "bf16. Default: sdpa.",
    )
    trust_remote_code: bool = option(False, "Run code that comes with the checkpoint.")
    tokenizer_name: str | None = option(
        None,
        "Tokenizer: a folder, or a Hub id, optionally with @revision. Default: the checkpoint's; from scratch, a "
        "WordPiece vocabulary trained on the run's own texts.",
    )
    vocab_size: int = option(8000, "Size of the vocabulary, if one is trained.")
    lowercase: bool = option(True, "Whether the vocabulary is lower-cased, if one is trained.")

    def __post_init__(self):
        if hasattr(self.model_config, "to_json_string"):  # A config object of transformers; records are JSON.
            self.model_config = json.loads(self.model_config.to_json_string())
        for name in ("model_name_or_path", "tokenizer_name", "auxiliary_name_or_path"):
            setattr(self, name, named(name, getattr(self, name), ArgumentsError))
        check_ranges(self, ArgumentsError)
        check_effects(self, ArgumentsError)
        if self.model_name_or_path is not None:
            # Records, and the base model of a card, have the id without the revision.
            self.model_name_or_path, self.model_revision = split_revision(self.model_name_or_path, self.model_revision)
        if self.model_name_or_path is not None and (chosen := list(self.chosen())):
            # A preset may have chosen them, so removing them is no advice.
            names = [words.split()[0] for words in chosen]
            defaults = " ".join(f"--{name} {getattr(InitializationArguments, name)}" for name in names)
            raise ArgumentsError(
                f"{' and '.join(chosen)} would replace learned weights of the checkpoint model_name_or_path "
                f"{self.model_name_or_path!r}. Initialisations are for models from scratch: pass {defaults}."
            )
        if self.freeze_auxiliary and self.auxiliary_name_or_path is None and self.model_name_or_path is None:
            raise ArgumentsError(
                "freeze_auxiliary needs a trained auxiliary model: pass --auxiliary_name_or_path, for instance the folder "
                "generator/ of an earlier run."
            )
        if self.auxiliary_name_or_path is not None and self.model_name_or_path is None and not self.freeze_auxiliary:
            raise ArgumentsError(
                f"The auxiliary model {self.auxiliary_name_or_path!r} would get the random embeddings of a model from "
                "scratch. Pass --model_name_or_path too, or --freeze_auxiliary true, which shares no weights."
            )

    @property
    def tokenizer_source(self) -> dict[str, Any] | None:
        """The arguments of `load_tokenizer`; None if a tokenizer is trained."""
        name = self.tokenizer_name or self.model_name_or_path or self.auxiliary_name_or_path
        if name is None:
            return None
        # The revision belongs to the checkpoint and not to another repository.
        revision = self.model_revision if not self.tokenizer_name and self.model_name_or_path else None
        return {"name_or_path": name, "revision": revision, "trust_remote_code": self.trust_remote_code}

    def with_objective_defaults(self, objective: str) -> ModelArguments:
        """Return a copy with the defaults that depend on the objective."""
        spec = OBJECTIVES[objective]
        return replace(
            self,
            auxiliary_size=spec.auxiliary_size if self.auxiliary_size is None else self.auxiliary_size,
            temperature=spec.temperature if self.temperature is None else self.temperature,
        )
