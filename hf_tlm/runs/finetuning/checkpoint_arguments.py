"""Which pretrained encoder is fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hf_tlm.errors import ArgumentsError
from hf_tlm.hub.repo import split_revision
from hf_tlm.models.arguments import LoraArguments
from hf_tlm.utils.options import named, option


@dataclass
class CheckpointArguments(LoraArguments):
    """The pretrained model."""

    model_name_or_path: str = field(
        kw_only=True,
        metadata={
            "help": "The pretrained encoder: folder, or Hub id with @revision if wanted. finetune: a pattern, such "
            "as 'runs/cocolm/training/checkpoint-*', each of those folders."
        },
    )
    model_revision: str | None = option(None, "Branch, tag or commit of the checkpoint, instead of @revision.")
    tokenizer_name: str | None = option(
        None, "Tokenizer by folder, or Hub id with @revision if wanted. Default: the checkpoint's."
    )
    trust_remote_code: bool = option(False, "Run code that comes with the checkpoint.")
    attn_implementation: str | None = option(
        None, "sdpa, eager, flash_attention_2, ...; the last needs its package, a GPU and bf16. Default: sdpa."
    )
    use_peft: bool = option(False, "Train a LoRA adapter and the head of the task instead of all weights.")

    def __post_init__(self):
        super().__post_init__()
        for name in ("model_name_or_path", "tokenizer_name"):
            setattr(self, name, named(name, getattr(self, name), ArgumentsError))
        # What is recorded, and what a card calls the base model, is the id.
        self.model_name_or_path, self.model_revision = split_revision(self.model_name_or_path, self.model_revision)

    @property
    def tokenizer_source(self) -> dict[str, Any]:
        """The arguments of `load_tokenizer`."""
        # The revision is the checkpoint's: another repository has its own.
        revision = None if self.tokenizer_name else self.model_revision
        name = self.tokenizer_name or self.model_name_or_path
        return {"name_or_path": name, "revision": revision, "trust_remote_code": self.trust_remote_code}
