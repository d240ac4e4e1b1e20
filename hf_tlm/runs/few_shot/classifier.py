"""A masked LM, its prompt and its demonstrations as one classifier: the logits of label words where the mask is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.hub.repo import check_named, checkpoint_folder
from hf_tlm.models import MLM_SUBFOLDER, ModelError
from hf_tlm.models.loading import hub_options, load_stock, reading
from hf_tlm.runs.few_shot.encoding import PromptCollator, PromptEncoder
from hf_tlm.runs.few_shot.inputs import Demonstrations, EvaluationInputs, TrainingInputs, averaged, embed
from hf_tlm.runs.few_shot.templates import Prompt, PromptError
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.json_files import listed, mapped, maybe, read_fields, record, truth, whole, words

PROMPT_FILE = "prompt.json"
# A stranger may have written the file.
_TEXT = words(1 << 20)
_EXAMPLE = record({"text": _TEXT, "text_pair": _TEXT, "label": whole(0, 1000)}, optional=["text_pair"])
_SAVED = {
    **{"template": words(10_000), "label_words": mapped(words(1000), 1000), "max_length": whole(1, 1 << 15)},
    **{"seed": whole(0, 2**63 - 1), "sets": whole(1, 1000), "similarity_model": maybe(words(1000))},
    **dict.fromkeys(("first_text_limit", "other_text_limit"), maybe(whole(1, 1 << 15))),
    "tail": truth,
    "examples": maybe(listed(_EXAMPLE, 10_000)),
}
# Not in files from before there was a choice.
_LATER = ("first_text_limit", "other_text_limit", "tail")


def load_masked_lm(
    model_name_or_path: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """Load a stock masked LM: any checkpoint that has an LM head, or the folder of one of our runs.

    Of a run `mlm/` is taken. The weights are float32, whatever the checkpoint's are.

    Raises:
        HubError: see `checkpoint_folder`.
        ModelError: it cannot be loaded, or lacks weights, as an ELECTRA discriminator or a classifier lacks an LM head.
    """
    options = hub_options(revision, trust_remote_code, attn_implementation)
    folder = Path(checkpoint_folder(model_name_or_path, revision, trust_remote_code=trust_remote_code))
    subfolder = MLM_SUBFOLDER if (folder / MLM_SUBFOLDER / "config.json").is_file() else ""
    with reading(f"a masked language model from {model_name_or_path!r}"):
        config = AutoConfig.from_pretrained(folder / subfolder, **options)
        model, info = load_stock(AutoModelForMaskedLM, str(folder / subfolder), config, **options)
    if missing := sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}):
        raise ModelError(
            f"{model_name_or_path} has no trained LM head ({', '.join(missing[:3])} are missing), and a prompt is answered "
            "by one. Give a masked LM (BERT, RoBERTa, ...), a run of this package that ends with one (objective mlm or "
            "cocolm), or of an ELECTRA run its folder generator/; or fine-tune with a new head: --method finetune."
        )
    return model


def label_word_logits(
    model: nn.Module,
    word_ids: list[int],
    input_ids: torch.LongTensor,
    attention_mask: torch.LongTensor,
    mask_positions: torch.LongTensor,
    stock: nn.Module | None = None,
) -> torch.Tensor:
    """Compute a masked LM's logits of the label words at the masks, float [B, C].

    Only these tokens reach its LM head.

    Args:
        word_ids: int [C], a class's label word.
        input_ids, attention_mask: int64 [B, S]; mask_positions: int64 [B].
        stock: the masked LM, where `model` wraps it (for several processes).
    """
    stock = model if stock is None else stock
    assert isinstance(stock, PreTrainedModel)
    with _only_at(stock, mask_positions):
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
    return logits[:, 0, word_ids]


@contextmanager
def _only_at(stock: PreTrainedModel, positions: torch.LongTensor) -> Iterator[None]:
    """Restrict a masked LM, within the block, to the logits at one position of each text.

    The body hands on one hidden state a text, [B, 1, H], and the head, which judges every token for itself, computes the
    logits of these alone, [B, 1, V], in the stock class's own `forward`.
    """

    def choose(body, inputs, outputs):
        rows = torch.arange(len(positions), device=positions.device)
        outputs.last_hidden_state = outputs.last_hidden_state[rows, positions].unsqueeze(1)
        return outputs

    handle = stock.base_model.register_forward_hook(choose)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class PromptClassifier:
    """Classifies texts by what a masked LM puts in the place of a mask.

    Args:
        max_length: longest input in tokens; first_text_limit, other_text_limit, tail: how it is reached, see
            `PromptEncoder`.
        seed: of the demonstrations.
        examples: what demonstrations are drawn from, columns `text`, `text_pair` (of pairs) and `label`; None: there are
            none.
        sets: over how many draws of demonstrations the logits are averaged.
        similarity_model: the encoder by which examples are similar to a text, see `embed`; None: all are.

    Raises:
        PromptError: see `PromptEncoder` and `Demonstrations`.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt: Prompt
    max_length: int = 128
    seed: int = 0
    examples: Dataset | None = None
    sets: int = 1
    similarity_model: str | None = None
    first_text_limit: int | None = None
    other_text_limit: int | None = None
    tail: bool = False
    encoder: PromptEncoder = field(init=False, repr=False)
    demonstrations: Demonstrations | None = field(init=False, default=None, repr=False)

    def __post_init__(self):
        shown = 0 if self.examples is None else len(self.prompt.label_words)
        limits = (self.first_text_limit, self.other_text_limit, self.tail)
        self.encoder = PromptEncoder(self.tokenizer, self.prompt, self.max_length, shown, *limits)
        if self.examples is not None:
            self.demonstrations = Demonstrations(self.encoder.encode(self.examples), self.examples["label"][:])

    @classmethod
    def from_pretrained(cls, name_or_path: str) -> PromptClassifier:
        """What `save` wrote: a folder, or a repository of the Hub.

        Raises:
            PromptError: there is no prompt.json, or one that `save` did not write.
            HubError, ModelError, TokenizerError: see `check_named`, `load_masked_lm`, `load_tokenizer`.
        """
        folder = Path(checkpoint_folder(name_or_path))
        try:
            saved = read_fields(folder / PROMPT_FILE, _SAVED, PromptError, optional=_LATER)
        except OSError as error:
            raise PromptError(
                f"{name_or_path} has no {PROMPT_FILE}, which says how it classifies. Give split-<seed>/model of a run of "
                "`hf-tlm few-shot`, or make a PromptClassifier with a prompt of your own."
            ) from error
        if saved["similarity_model"] is not None:
            check_named(saved["similarity_model"], folder)
        prompt, examples = Prompt(saved.pop("template"), saved.pop("label_words")), saved.pop("examples")
        if examples and not all(row["label"] < len(prompt.label_words) for row in examples):
            raise PromptError(f"{PROMPT_FILE} of {name_or_path} has examples of more classes than it has label words.")
        examples = Dataset.from_list(list(examples)) if examples else None
        return cls(load_masked_lm(name_or_path), load_tokenizer(name_or_path), prompt, examples=examples, **saved)

    def to_dict(self) -> dict[str, Any]:
        """What prompt.json holds."""
        examples = self.examples
        if examples is not None:
            columns = [name for name in ("text", "text_pair", "label") if name in examples.column_names]
            examples = examples.select_columns(columns).to_list()
        return {
            "template": self.prompt.template,
            "label_words": dict(self.prompt.label_words),
            "max_length": self.max_length,
            "seed": self.seed,
            "sets": self.sets,
            "similarity_model": self.similarity_model,
            **{name: value for name in _LATER if (value := getattr(self, name)) not in (None, False)},
            "examples": examples,
        }

    def save(self, folder: str | os.PathLike, files: Mapping[str, str] | None = None) -> None:
        """Write the stock masked LM, its tokenizer and prompt.json. The whole folder appears at once.

        Args:
            files: further text files, name -> content.
        """
        with atomic_directory(folder) as work:
            self.model.save_pretrained(work)
            self.tokenizer.save_pretrained(work)
            text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
            for name, content in {PROMPT_FILE: text, **(files or {})}.items():
                (work / name).write_text(content, encoding="utf-8")

    def inputs(self, rows: Dataset) -> EvaluationInputs:
        """Texts to be classified: columns `text`, `text_pair` (of pairs) and, where it is known, `label`."""
        labels = rows["label"][:] if "label" in rows.column_names else None
        return EvaluationInputs(
            self.encoder,
            self.encoder.encode(rows),
            labels,
            self.seed,
            self.demonstrations,
            self.draws,
            self._similarities(rows),
        )

    def training_inputs(self, rows: Dataset, length: int) -> TrainingInputs:
        """The texts of a training of so many, in order. With demonstrations `rows` are `examples`."""
        return TrainingInputs(
            self.encoder,
            self.encoder.encode(rows),
            rows["label"][:],
            length,
            self.seed,
            self.demonstrations,
            self._similarities(rows),
        )

    @property
    def draws(self) -> int:
        """How often a text is classified."""
        return 1 if self.demonstrations is None else self.sets

    @property
    def collator(self) -> PromptCollator:
        return PromptCollator(self.tokenizer)

    @torch.inference_mode()
    def logits(self, rows: Dataset, batch_size: int = 32) -> np.ndarray:
        """float32 [N, C]: of the classes' words, for rows as `inputs` takes them, on the model's device."""
        self.model.eval()
        found = []
        for batch in DataLoader(self.inputs(rows), batch_size=batch_size, collate_fn=self.collator):
            batch = {name: value.to(self.model.device) for name, value in batch.items() if name != "labels"}
            found.append(label_word_logits(self.model, self.encoder.word_ids, **batch).float().cpu().numpy())
        return averaged(np.concatenate(found), self.draws)

    def predict(self, rows: Dataset, batch_size: int = 32) -> list[dict[str, Any]]:
        """`prediction` (a class) and `probabilities` (class -> share of 1) of each row, in order."""
        classes = list(self.prompt.label_words)
        shares = torch.softmax(torch.from_numpy(self.logits(rows, batch_size)), dim=-1).tolist()
        return [
            {"prediction": classes[int(np.argmax(row))], "probabilities": dict(zip(classes, row, strict=True))}
            for row in shares
        ]

    @cached_property
    def _example_vectors(self) -> np.ndarray:
        assert self.examples is not None and self.similarity_model is not None
        return embed(self.examples, self.similarity_model, device=self.model.device)

    def _similarities(self, rows: Dataset) -> np.ndarray | None:
        """Cosines float [rows, examples]."""
        if self.similarity_model is None:
            return None
        return embed(rows, self.similarity_model, device=self.model.device) @ self._example_vectors.T
