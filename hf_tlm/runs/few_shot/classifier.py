"""A masked LM, its prompt and its demonstrations as one classifier, in one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.hub.checkpoint import checkpoint_folder
from hf_tlm.hub.repo import check_named
from hf_tlm.runs.few_shot.demonstrations import Demonstrations, embed
from hf_tlm.runs.few_shot.encoding import PromptCollator, PromptEncoder
from hf_tlm.runs.few_shot.inputs import EvaluationInputs, TrainingInputs, averaged
from hf_tlm.runs.few_shot.model import label_word_logits, load_masked_lm
from hf_tlm.runs.few_shot.templates import Prompt, PromptError
from hf_tlm.utils.checked import listed, mapped, maybe, read_fields, record, truth, whole, words
from hf_tlm.utils.files import atomic_directory

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
        return {
            "template": self.prompt.template,
            "label_words": dict(self.prompt.label_words),
            "max_length": self.max_length,
            "seed": self.seed,
            "sets": self.sets,
            "similarity_model": self.similarity_model,
            **{name: value for name in _LATER if (value := getattr(self, name)) not in (None, False)},
            "examples": None if self.examples is None else self._shown().to_list(),
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
        return PromptCollator(self.tokenizer.pad_token_id)

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

    def _shown(self) -> Dataset:
        assert self.examples is not None  # With demonstrations there are examples.
        return self.examples.select_columns([c for c in ("text", "text_pair", "label") if c in self.examples.column_names])

    @cached_property
    def _example_vectors(self) -> np.ndarray:
        assert self.examples is not None and self.similarity_model is not None
        return embed(self.examples, self.similarity_model, device=self.model.device)

    def _similarities(self, rows: Dataset) -> np.ndarray | None:
        """Cosines float [rows, examples]."""
        if self.similarity_model is None:
            return None
        return embed(rows, self.similarity_model, device=self.model.device) @ self._example_vectors.T
