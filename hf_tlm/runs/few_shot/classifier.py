"""A classifier by prompt: a masked LM, its prompt and its demonstrations, and the logits of label words at the mask.

The inputs are defined here too: filled prompts in the order of training, with demonstrations (LM-BFF, section 6).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_tlm.data import load_tokenizer, tokenize
from hf_tlm.hub.repo import check_named, checkpoint_folder
from hf_tlm.models import MLM_SUBFOLDER, ModelError
from hf_tlm.models.loading import hub_options, load_stock, reading
from hf_tlm.runs.few_shot.prompts import Prompt, PromptEncoder, PromptError, Texts, collate
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.json_files import listed, mapped, maybe, read_fields, record, truth, whole, words

PROMPT_FILE = "prompt.json"
# The schema of prompt.json, which may be written by somebody who is not trusted.
_TEXT = words(1 << 20)
_EXAMPLE = record({"text": _TEXT, "text_pair": _TEXT, "label": whole(0, 1000)}, optional=["text_pair"])
_SCHEMA = {
    **{"template": words(10_000), "label_words": mapped(words(1000), 1000), "max_length": whole(1, 1 << 15)},
    **{"seed": whole(0, 2**63 - 1), "sets": whole(1, 1000), "similarity_model": maybe(words(1000))},
    **dict.fromkeys(("first_text_limit", "other_text_limit"), maybe(whole(1, 1 << 15))),
    "tail": truth,
    "examples": maybe(listed(_EXAMPLE, 10_000)),
}
# Fields that files of earlier versions lack.
_OPTIONAL_FIELDS = ("first_text_limit", "other_text_limit", "tail")
# Demonstrations are drawn from this share of a class's examples, the most similar ones (LM-BFF, section 6.2).
SIMILAR_SHARE = 0.5
# Keys of independent streams of random numbers with the same seed.
_ORDER, _TRAIN, _SET = range(3)


def load_masked_lm(
    model_name_or_path: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """Load a stock masked LM from any checkpoint with an LM head, or from the folder of one of our runs.

    From a run, `mlm/` is loaded if it exists. The weights are float32, whatever the dtype of the checkpoint.

    Raises:
        HubError: see `checkpoint_folder`.
        ModelError: the model cannot be loaded, or lacks weights, such as the LM head of an ELECTRA discriminator or a
            classifier.
    """
    options = hub_options(revision, trust_remote_code, attn_implementation)
    folder = Path(checkpoint_folder(model_name_or_path, revision, trust_remote_code=trust_remote_code))
    subfolder = MLM_SUBFOLDER if (folder / MLM_SUBFOLDER / "config.json").is_file() else ""
    with reading("a masked language model from", model_name_or_path):
        config = AutoConfig.from_pretrained(folder / subfolder, **options)
        model, info = load_stock(AutoModelForMaskedLM, str(folder / subfolder), config, **options)
    if missing := sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}):
        raise ModelError(
            f"{model_name_or_path} has no trained LM head (missing: {', '.join(missing[:3])}), which answers the prompt. "
            "Pass a masked LM (BERT, RoBERTa, ...), a run of this package that ends with one (objective mlm or cocolm), "
            "or the folder generator/ of an ELECTRA run; or fine-tune with a new head: --method finetune."
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

    The LM head is applied only to the mask tokens.

    Args:
        word_ids: int [C], token id of each class's label word.
        input_ids, attention_mask: int64 [B, S]; mask_positions: int64 [B].
        stock: the masked LM itself, if `model` wraps it (for several processes).
    """
    stock = model if stock is None else stock
    assert isinstance(stock, PreTrainedModel)
    with _restrict_logits(stock, mask_positions):
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
    return logits[:, 0, word_ids]


@contextmanager
def _restrict_logits(stock: PreTrainedModel, positions: torch.LongTensor) -> Iterator[None]:
    """Make a masked LM compute, within the block, logits only at one position of each text.

    A hook reduces the encoder's output to one hidden state per text, [B, 1, H]. The head works on each token independently,
    so the stock class's own `forward` then computes only the logits of these, [B, 1, V].
    """

    def select_positions(body, inputs, outputs):
        rows = torch.arange(len(positions), device=positions.device)
        outputs.last_hidden_state = outputs.last_hidden_state[rows, positions].unsqueeze(1)
        return outputs

    handle = stock.base_model.register_forward_hook(select_positions)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class PromptClassifier:
    """A classifier of texts by the words that a masked LM predicts at the mask of a prompt.

    Args:
        max_length: maximum length of an input in tokens. For first_text_limit, other_text_limit and tail, which say how
            inputs are truncated to it, see `PromptEncoder`.
        seed: seed of the demonstrations.
        examples: rows to draw demonstrations from, with columns `text`, `text_pair` (only for pairs) and `label`; None: no
            demonstrations.
        sets: number of draws of demonstrations over which the logits are averaged.
        similarity_model: encoder that measures how similar examples are to a text, see `embed`; None: demonstrations are
            drawn from all examples.

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
        num_demonstrations = 0 if self.examples is None else len(self.prompt.label_words)
        limits = (self.first_text_limit, self.other_text_limit, self.tail)
        self.encoder = PromptEncoder(self.tokenizer, self.prompt, self.max_length, num_demonstrations, *limits)
        if self.examples is not None:
            texts, labels = self.encoder.encode(self.examples), self.examples["label"][:]
            self.demonstrations = Demonstrations(texts, labels, num_demonstrations)

    @classmethod
    def from_pretrained(cls, name_or_path: str) -> PromptClassifier:
        """Load a classifier that `save` wrote, from a folder or a repository on the Hub.

        Raises:
            PromptError: there is no prompt.json, or `save` did not write it.
            HubError, ModelError, TokenizerError: see `check_named`, `load_masked_lm`, `load_tokenizer`.
        """
        folder = Path(checkpoint_folder(name_or_path))
        try:
            saved = read_fields(folder / PROMPT_FILE, _SCHEMA, PromptError, optional=_OPTIONAL_FIELDS)
        except OSError as error:
            raise PromptError(
                f"{name_or_path} has no {PROMPT_FILE}, which describes how the model classifies. Pass split-<seed>/model "
                "of a run of `hf-tlm few-shot`, or create a PromptClassifier with your own prompt."
            ) from error
        if saved["similarity_model"] is not None:
            check_named(saved["similarity_model"], folder)
        prompt, examples = Prompt(saved.pop("template"), saved.pop("label_words")), saved.pop("examples")
        if examples and not all(row["label"] < len(prompt.label_words) for row in examples):
            raise PromptError(f"{PROMPT_FILE} of {name_or_path} has examples of more classes than it has label words.")
        labels = {row["label"] for row in examples or ()}
        if missing := [name for label, name in enumerate(prompt.label_words) if labels and label not in labels]:
            raise PromptError(
                f"{PROMPT_FILE} of {name_or_path} has examples, but none of class {missing[0]!r}: expected two or more of "
                "each class. Add them, or set examples to null to classify without demonstrations."
            )
        examples = Dataset.from_list(list(examples)) if examples else None
        return cls(load_masked_lm(name_or_path), load_tokenizer(name_or_path), prompt, examples=examples, **saved)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of prompt.json."""
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
            **{name: value for name in _OPTIONAL_FIELDS if (value := getattr(self, name)) not in (None, False)},
            "examples": examples,
        }

    def save(self, folder: str | os.PathLike, files: Mapping[str, str] | None = None) -> None:
        """Write the stock masked LM, its tokenizer and prompt.json to a folder atomically.

        Args:
            files: additional text files, name -> content.
        """
        with atomic_directory(folder) as work:
            self.model.save_pretrained(work)
            self.tokenizer.save_pretrained(work)
            text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
            for name, content in {PROMPT_FILE: text, **(files or {})}.items():
                (work / name).write_text(content, encoding="utf-8")

    def inputs(self, rows: Dataset) -> EvaluationInputs:
        """Return the inputs to classify rows.

        Args:
            rows: columns `text`, `text_pair` (only for pairs) and, if known, `label`.
        """
        return EvaluationInputs(**self._input_arguments(rows), sets=self.draws)

    def training_inputs(self, rows: Dataset, length: int) -> TrainingInputs:
        """Return the `length` inputs of a training in order. With demonstrations, `rows` must be `examples`."""
        return TrainingInputs(**self._input_arguments(rows), length=length)

    def _input_arguments(self, rows: Dataset) -> dict[str, Any]:
        """Return the arguments that `TrainingInputs` and `EvaluationInputs` share."""
        return {
            "encoder": self.encoder,
            "texts": self.encoder.encode(rows),
            "labels": rows["label"][:] if "label" in rows.column_names else None,
            "seed": self.seed,
            "demonstrations": self.demonstrations,
            "similarities": self._similarities(rows),
        }

    @property
    def draws(self) -> int:
        """Number of inputs for each text: one for each set of demonstrations."""
        return 1 if self.demonstrations is None else self.sets

    @property
    def collator(self) -> Callable[[list[dict]], dict[str, torch.Tensor]]:
        return partial(collate, self.tokenizer)

    @torch.inference_mode()
    def logits(self, rows: Dataset, batch_size: int = 32) -> np.ndarray:
        """Compute the logits of the classes' label words, float32 [N, C], on the model's device.

        Args:
            rows: see `inputs`.
        """
        self.model.eval()
        batch_logits = []
        for batch in DataLoader(self.inputs(rows), batch_size=batch_size, collate_fn=self.collator):
            batch = {name: value.to(self.model.device) for name, value in batch.items() if name != "labels"}
            batch_logits.append(label_word_logits(self.model, self.encoder.word_ids, **batch).float().cpu().numpy())
        return average_over_sets(np.concatenate(batch_logits), self.draws)

    def predict(self, rows: Dataset, batch_size: int = 32) -> list[dict[str, Any]]:
        """Return the `prediction` (a class) and `probabilities` (class -> probability) of each row, in order."""
        classes = list(self.prompt.label_words)
        probabilities = torch.softmax(torch.from_numpy(self.logits(rows, batch_size)), dim=-1).tolist()
        return [
            {"prediction": classes[int(np.argmax(row))], "probabilities": dict(zip(classes, row, strict=True))}
            for row in probabilities
        ]

    @cached_property
    def _example_vectors(self) -> np.ndarray:
        assert self.examples is not None and self.similarity_model is not None
        return embed(self.examples, self.similarity_model, device=self.model.device)

    def _similarities(self, rows: Dataset) -> np.ndarray | None:
        """Compute the cosine similarities of rows and examples, float [rows, examples]; None without a similarity model."""
        if self.similarity_model is None:
            return None
        return embed(rows, self.similarity_model, device=self.model.device) @ self._example_vectors.T


@dataclass
class Demonstrations:
    """The examples from which demonstrations are drawn.

    texts: [N], encoded by the prompt's encoder.
    labels: [N], indices of the classes.
    classes: number of classes, some of which may have no examples.

    Raises:
        PromptError: a class has no example, or only one, which could have no demonstration of its class in training.
    """

    texts: Sequence[Texts]
    labels: Sequence[int]
    classes: int
    by_class: list[np.ndarray] = field(init=False)

    def __post_init__(self):
        labels = np.asarray(self.labels)
        self.by_class = [np.flatnonzero(labels == label) for label in range(self.classes)]
        if min(map(len, self.by_class)) < 2:
            raise PromptError(
                "Demonstrations need at least two examples per class, one of which is shown with the other. Raise --k."
            )

    def draw(
        self, generator: np.random.Generator, *, exclude: int | None = None, similarities: np.ndarray | None = None
    ) -> list[tuple[Texts, int]]:
        """Draw one example of each class, in the order of the classes.

        Args:
            exclude: index of an example that must not be drawn, because it is the text to classify.
            similarities: float [N], similarity of each example to the text to classify; only the more similar half of each
                class is drawn from. None: all examples.
        """
        demonstrations = []
        for candidates in self.by_class:
            candidates = candidates[candidates != exclude] if exclude is not None else candidates
            if similarities is not None:
                order = np.argsort(-similarities[candidates], kind="stable")
                candidates = candidates[order[: max(1, int(SIMILAR_SHARE * len(candidates)))]]
            index = int(generator.choice(candidates))
            demonstrations.append((self.texts[index], int(self.labels[index])))
        return demonstrations


@torch.inference_mode()
def embed(rows: Dataset, model_name_or_path: str, *, batch_size: int = 32, device: str | torch.device = "cpu") -> np.ndarray:
    """Compute sentence vectors of norm 1, float32 [N, H].

    These are mean-pooled last hidden states of the first 128 tokens of each row; a pair of texts is one input.

    Args:
        model_name_or_path: any encoder by folder or Hub id; LM-BFF uses one that was trained for this (Sentence-BERT).

    Raises:
        HubError, TokenizerError, ModelError: the encoder cannot be loaded.
    """
    folder = checkpoint_folder(model_name_or_path)
    tokenizer = load_tokenizer(model_name_or_path)
    with reading("the similarity model", model_name_or_path):
        model = AutoModel.from_pretrained(folder).eval().to(device)
    texts = rows.select_columns(columns_of_texts(rows))
    tokenized = tokenize(texts, tokenizer, 128, description="Tokenising for similarity")
    vectors = []
    for batch in DataLoader(tokenized, batch_size=batch_size, collate_fn=DataCollatorWithPadding(tokenizer)):
        hidden = model(**batch.to(device)).last_hidden_state.float()
        weights = batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        vectors.append(torch.nn.functional.normalize(mean, dim=-1).cpu().numpy())
    return np.concatenate(vectors)


@dataclass
class _Inputs(torch.utils.data.Dataset):
    """Texts with a prompt and, if there are any, demonstrations; each input is built when it is accessed.

    labels: [N], or None if unknown.
    similarities: similarities of texts and examples, float [N, examples], or None.
    """

    encoder: PromptEncoder
    texts: Sequence[Texts]
    labels: Sequence[int] | None
    seed: int
    demonstrations: Demonstrations | None = None
    similarities: np.ndarray | None = None

    def _build_input(self, index: int, *stream: int, exclude: int | None = None) -> dict:
        """Return the input of a text, with demonstrations drawn from a stream of random numbers."""
        demonstrations = []
        if self.demonstrations is not None:
            similarities = None if self.similarities is None else self.similarities[index]
            generator = np.random.default_rng([self.seed, *stream])
            demonstrations = self.demonstrations.draw(generator, exclude=exclude, similarities=similarities)
        features = self.encoder.fill(self.texts[index], demonstrations)
        return features if self.labels is None else {**features, "label": self.labels[index]}


@dataclass
class TrainingInputs(_Inputs):
    """All inputs of a training run in order.

    They consist of epochs over the examples, each epoch in another order. The demonstrations are drawn anew for every input
    and never contain its own text.

    An input depends only on the seed and its index, so that a run that resumes, or has more processes, gets the same.

    length: number of inputs of the run, steps x batch size.
    """

    length: int = field(kw_only=True)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict:
        epoch, offset = divmod(index, len(self.texts))
        row = int(np.random.default_rng([self.seed, _ORDER, epoch]).permutation(len(self.texts))[offset])
        return self._build_input(row, _TRAIN, index, exclude=row)


@dataclass
class EvaluationInputs(_Inputs):
    """Inputs for texts to classify: `sets` consecutive inputs per text (1 without demonstrations).

    The n-th inputs of all texts have the same demonstrations (with similarities: demonstrations from the same random
    numbers), so that the prediction for a text does not depend on the texts next to it.
    """

    sets: int = field(default=1, kw_only=True)

    def __len__(self) -> int:
        return len(self.texts) * self.sets

    def __getitem__(self, index: int) -> dict:
        row, set_index = divmod(index, self.sets)
        return self._build_input(row, _SET, set_index)


def average_over_sets(logits: np.ndarray, sets: int) -> np.ndarray:
    """Average the logits of `EvaluationInputs`, float [N x sets, C], over the sets of each text: [N, C], as LM-BFF does."""
    return logits.reshape(-1, sets, logits.shape[-1]).mean(axis=1)
