"""Tagging of words (parts of speech, entities): the tag of a word is predicted at its first token.

This follows Devlin et al., NAACL 2019, section 5.3. The first token of a word is called its first piece.

A sentence is tokenised as its words joined by spaces, and character offsets assign pieces to words: so every fast tokenizer
sees the words as in running text. Words of which the tokenizer leaves no piece, and words beyond `max_length`, get no tag,
which counts as an error.

With `crf` a linear-chain conditional random field (Lafferty et al., ICML 2001), from pytorch-crf, models the tags of a
sentence. It sees words, not pieces: the emissions are the logits of every word's first piece.

Shapes: B sentences, S positions, W words, C tags.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from scipy.special import softmax
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import TokenClassifierOutput

from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import (
    check_offsets,
    compute_scores,
    make_features,
    pad,
    ragged,
    token_spans,
    tokenize_with_offsets,
)
from hf_tlm.tasks import Task

if TYPE_CHECKING:
    from torchcrf import CRF

logger = logging.getLogger(__name__)

AUTO_CLASS = "AutoModelForTokenClassification"
DROPPED, TRUNCATED = -1, -2  # Instead of the index of a word's first piece.
SENTENCES = 256  # Number of sentences decoded together.
CRF_FILE = "crf.safetensors"


def encode(rows: Dataset, tokenizer: PreTrainedTokenizerBase, args: FinetuneArguments) -> Dataset:
    """Encode each sentence as one feature.

    It has `input_ids`, [`token_type_ids`], `example`, `labels` where the rows have `tags`, and for `decode` `places`: for
    every word the index of its first piece, or -1 (it has none) or -2 (it is beyond `max_length`).

    Logs a warning with the number of missing words.

    Raises:
        TokenizerError: the tokenizer is in pure Python.
        HfTlmError: `max_length` leaves no room for a word.
    """
    check_offsets(tokenizer, "Tagging")
    capacity = args.max_length - tokenizer.num_special_tokens_to_add(pair=False)
    if capacity < 1:
        raise HfTlmError(
            f"max_length must leave room for a word beside special tokens; received {args.max_length}. Raise it."
        )

    def encode_batch(batch: dict[str, list], indices: list[int]) -> dict[str, list]:
        texts = [" ".join(tokens) for tokens in batch["tokens"]]
        tokens = tokenize_with_offsets(tokenizer, texts)
        names = [name for name in ("input_ids", "token_type_ids") if name in tokens]
        columns: dict[str, list] = {name: [] for name in (*names, "places")}
        for row, text in enumerate(texts):
            word_tokens = np.flatnonzero([part == 0 for part in tokens.sequence_ids(row)])
            token_starts, token_ends = token_spans(
                [tokens["offset_mapping"][row][position] for position in word_tokens], text
            )
            pieces = _first_pieces(batch["tokens"][row], token_starts, token_ends)
            kept = np.delete(np.arange(len(tokens["input_ids"][row])), word_tokens[capacity:])
            for name in names:
                columns[name].append(np.array(tokens[name][row])[kept])
            offset = word_tokens[0] if len(word_tokens) else 0
            columns["places"].append(np.where(pieces < capacity, np.where(pieces < 0, DROPPED, offset + pieces), TRUNCATED))
        if "tags" in batch:
            columns["labels"] = list(map(_labels, columns["input_ids"], columns["places"], batch["tags"]))
        return columns | {"example": indices}

    features = make_features(rows, tokenizer, encode_batch, [args.max_length], "Tokenising sentences")
    positions, _ = ragged(features, "places")
    dropped, truncated = (int((positions == reason).sum()) for reason in (DROPPED, TRUNCATED))
    if dropped or truncated:
        logger.warning(
            "Of %d words, %d are beyond max_length %d, and %d are empty after tokenization: they get no tag and count as "
            "errors.",
            *(len(positions), truncated, args.max_length, dropped),
        )
    return features


def _first_pieces(words: list[str], token_starts: np.ndarray, token_ends: np.ndarray) -> np.ndarray:
    """Return the index of each word's first piece, or -1, int64 [W]."""
    non_empty = np.flatnonzero(token_starts < token_ends)
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    word_starts = np.cumsum(lengths + 1) - lengths - 1
    index = np.searchsorted(token_starts[non_empty], word_starts)
    piece = np.append(non_empty, -1)[index]
    is_in_word = np.append(token_starts[non_empty], np.iinfo(np.int64).max)[index] < word_starts + lengths
    return np.where(is_in_word, piece, -1)


def _labels(ids: np.ndarray, positions: np.ndarray, tags: list[int]) -> np.ndarray:
    """Return labels, int64 [S]: the tag at every word's first piece, -100 elsewhere and for tags missing in training."""
    labels, word_tags = np.full(len(ids), -100), np.array(tags)
    is_labelled = (positions >= 0) & (word_tags >= 0)
    labels[positions[is_labelled]] = word_tags[is_labelled]
    return labels


def collate(tokenizer: PreTrainedTokenizerBase, features: list[dict]) -> dict[str, torch.Tensor]:
    """Pad features to a batch, always on the right, so that token indices of features remain valid.

    It has `input_ids`, `attention_mask`, [`token_type_ids`, `labels`] int64 [B, S].
    """
    return pad(features, tokenizer, names=["labels"])


def loss_terms(batch: dict[str, torch.Tensor], args: FinetuneArguments) -> torch.Tensor:
    """Return the number of terms that a batch's loss is the mean of, int64 []: tags, or with a CRF sentences with tags."""
    tags = (batch["labels"] != -100).sum(dim=1)
    return (tags > 0).sum() if args.crf else tags.sum()


def wrap(model, args: FinetuneArguments):
    """Add a new CRF to the model if `args.crf` is set; see `CrfTagger`."""
    return CrfTagger(model) if args.crf else model


def restore(model, folder: str | Path, args: FinetuneArguments):
    """Load the CRF of a trained model if its folder has one or `args.crf` is set; see `CrfTagger.load_crf`."""
    with_crf = args.crf or (Path(folder) / CRF_FILE).is_file()
    return CrfTagger(model).load_crf(folder) if with_crf else model


def decode(outputs, features: Dataset, rows: Dataset, model, args: FinetuneArguments) -> list[dict[str, Any]]:
    """Convert logits to the tags of the words of each sentence.

    Args:
        outputs: logits, float [rows, S, C].

    Returns:
        For every sentence `prediction`, a tag for every word, and `probabilities` of these tags; None for a word without a
        piece. With a CRF the tags are the most probable sequence, and the probabilities are marginals. `truncated_words` is
        the number of words at the end of a sentence that are beyond `max_length`, where there are any.
    """
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    names = np.array([model.config.id2label[index] for index in range(logits.shape[-1])], dtype=object)
    flat, bounds = ragged(features, "places")
    predictions = []
    for low in range(0, len(features), SENTENCES):
        positions = [flat[start:end] for start, end in zip(bounds[low:-1], bounds[low + 1 :], strict=True)][:SENTENCES]
        first_pieces = [word_positions[word_positions >= 0] for word_positions in positions]
        counts = np.array([len(word_positions) for word_positions in first_pieces])
        words = np.arange(max(1, counts.max())) < counts[:, None]
        emissions = np.zeros((*words.shape, logits.shape[-1]), dtype=np.float32)
        emissions[words] = logits[low + np.nonzero(words)[0], np.concatenate(first_pieces)]
        if isinstance(model, CrfTagger):
            tags, probabilities = model.best_tags(emissions, words)
        else:
            shares = softmax(emissions, axis=-1)
            tags, probabilities = shares.argmax(axis=-1), shares.max(axis=-1)
        for word_positions, count, row_tags, row_probabilities in zip(positions, counts, tags, probabilities, strict=True):
            prediction = np.full(len(word_positions), None, dtype=object)
            probability = prediction.copy()
            prediction[word_positions >= 0] = names[row_tags[:count]]
            probability[word_positions >= 0] = row_probabilities[:count].astype(np.float64).round(6).tolist()
            num_truncated = int((word_positions == TRUNCATED).sum())
            record = {"prediction": prediction.tolist(), "probabilities": probability.tolist()}
            predictions.append(record | ({"truncated_words": num_truncated} if num_truncated else {}))
    return predictions


def score(task: Task, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, float]:
    """Compute the task's metrics over all words; words without a prediction or with a tag missing in training are errors."""
    return compute_scores(task, [prediction["prediction"] for prediction in predictions], _references(task, rows))


def _references(task: Task, rows: Dataset) -> list[list[str | None]]:
    return [[task.label_names[tag] if tag >= 0 else None for tag in tags] for tags in rows["tags"]]


def tables(task: Task, predictions: list[dict[str, Any]], rows: Dataset) -> dict[str, list[dict[str, Any]]]:
    """Return two tables: the scores of every tag, and the number of words without a prediction.

    `tags`: for every tag, the most frequent first, its number of words (`support`), `precision`, `recall` (the accuracy on
    its words) and `f1`; the tag None stands for all tags missing in training. `missing_words`: the number of words without a
    prediction because of `max_length` (`truncated`), or because the tokenizer leaves no piece of them (`dropped`).
    """
    pairs: Counter[tuple[str | None, str | None]] = Counter()
    for prediction, tags in zip(predictions, _references(task, rows), strict=True):
        pairs.update(zip(tags, prediction["prediction"], strict=True))
    support: Counter[str | None] = Counter()
    assigned: Counter[str | None] = Counter()
    for (truth, predicted), count in pairs.items():
        support[truth] += count
        assigned[predicted] += count
    table = []
    for tag in sorted({*support, *assigned} - {None}, key=lambda tag: (-support[tag], tag)) + [None] * (None in support):
        num_correct = pairs[tag, tag] if tag is not None else 0
        rates = {
            "precision": num_correct / max(1, assigned[tag]),
            "recall": num_correct / max(1, support[tag]),
            "f1": 2 * num_correct / max(1, support[tag] + assigned[tag]),
        }
        table.append({"tag": tag, "support": support[tag]} | rates)
    truncated = sum(prediction.get("truncated_words", 0) for prediction in predictions)
    missing = {"words": support.total(), "truncated": truncated, "dropped": assigned[None] - truncated}
    return {"tags": table, "missing_words": [missing]}


def new_crf(num_tags: int) -> CRF:
    """Create a CRF of torchcrf, with transition scores drawn from U(-0.1, 0.1).

    These are `transitions` [C, C], from row to column; `start_transitions` and `end_transitions` [C].

    Raises:
        HfTlmError: pytorch-crf is not installed.
    """
    try:
        from torchcrf import CRF
    except ImportError as error:
        raise HfTlmError(
            "A CRF needs pytorch-crf, which is not installed. Install the extra [crf] (pip install 'hf-tlm[crf]'), or "
            "remove --crf."
        ) from error
    return CRF(num_tags, batch_first=True)


class CrfTagger(nn.Module):
    """A stock token classifier with the loss of a CRF. Other attributes (`config`, ...) are those of the classifier."""

    accepts_loss_kwargs = False  # The loss is a mean over sentences, not over the Trainer's count of labels.

    def __init__(self, tagger: PreTrainedModel):
        super().__init__()
        self.tagger = tagger
        assert tagger.config.num_labels is not None
        self.crf: CRF = new_crf(tagger.config.num_labels).to(tagger.device)

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("tagger"), name)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
    ) -> TokenClassifierOutput:
        """Compute the logits, float [B, S, C], and with `labels` the loss.

        `labels` are int64 [B, S], with -100 at tokens that are no word's first piece. The loss is the mean over sentences of
        the negative log-likelihood of their tags. A sentence without a labelled word does not count.
        """
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits = self.tagger(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return TokenClassifierOutput(None if labels is None else self._loss(logits.float(), labels), logits)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        emissions, tags, words = to_words(logits, labels)
        if not len(tags):
            return 0 * (logits.sum() + sum(parameter.sum() for parameter in self.crf.parameters()))
        return -self.crf(emissions, tags, mask=words, reduction="mean")

    def num_parameters(self, *args, **kwargs) -> int:
        """Return the number of parameters of the classifier and the CRF."""
        return self.tagger.num_parameters(*args, **kwargs) + sum(each.numel() for each in self.crf.parameters())

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs) -> None:
        """Save the stock classifier, which also works without the CRF (each tag by itself), and `crf.safetensors`."""
        self.tagger.save_pretrained(save_directory, **kwargs)
        state = {name: values.detach().cpu().contiguous() for name, values in self.crf.state_dict().items()}
        save_file(state, Path(save_directory) / CRF_FILE)

    def load_crf(self, folder: str | os.PathLike) -> CrfTagger:
        """Load the transition scores from a folder that `save_pretrained` wrote, and return the model.

        Raises:
            HfTlmError: the file cannot be read, or is of a model with other tags.
        """
        try:
            self.crf.load_state_dict(load_file(Path(folder) / CRF_FILE))
        except (OSError, RuntimeError) as error:
            raise HfTlmError(
                f"Cannot load {CRF_FILE} of {folder} for {self.crf.num_tags} tags: {error}. Use the {CRF_FILE} that was "
                "saved with this model."
            ) from error
        return self

    @torch.no_grad()
    def best_tags(self, emissions: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the most probable tag sequence of every sentence (Viterbi), and the marginal probabilities of its tags.

        Args:
            emissions: float [B, W, C].
            words: bool [B, W], the mask of words, padded on the right; a sentence without words gets arbitrary tags.

        Returns:
            Tags, int64 [B, W], and probabilities, float [B, W]; values after the end of a sentence have no meaning.
        """
        device = self.crf.transitions.device
        scores = torch.from_numpy(emissions).to(device, torch.float32)
        mask = torch.from_numpy(words.copy()).to(device)
        mask[:, 0] = True  # torchcrf requires a word in every sentence.
        best = np.zeros(words.shape, dtype=np.int64)
        for row, tags in enumerate(self.crf.decode(scores, mask=mask)):
            best[row, : len(tags)] = tags
        probabilities = marginals(self.crf, scores, mask).cpu().numpy()
        return best, np.take_along_axis(probabilities, best[..., None], axis=-1)[..., 0]


def to_words(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gather the positions with a label other than -100, aligned to the left.

    Returns:
        Their emissions [B', W, C], tags int64 [B', W] and mask bool [B', W], for the B' sentences with such a position.
    """
    mask = labels != -100
    counts = mask.sum(dim=1)
    positions = (~mask).long().argsort(dim=1, stable=True)[:, : int(counts.max())]
    words = torch.arange(positions.shape[1], device=labels.device) < counts[:, None]
    tags = labels.gather(1, positions).where(words, 0)
    emissions = logits.gather(1, positions[..., None].expand(-1, -1, logits.shape[-1]))
    non_empty = counts > 0
    return emissions[non_empty], tags[non_empty], words[non_empty]


def marginals(crf: CRF, emissions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the marginal probability of every tag of every word, float [B, W, C], by the forward-backward algorithm.

    Args:
        emissions: float [B, W, C].
        words: bool [B, W], the mask of words, padded on the right; every sentence has at least one word.
    """
    count = emissions.shape[1]
    forward = [crf.start_transitions + emissions[:, 0]]
    for word in range(1, count):
        forward_scores = torch.logsumexp(forward[-1][:, :, None] + crf.transitions, dim=1) + emissions[:, word]
        forward.append(torch.where(words[:, word, None], forward_scores, forward[-1]))
    backward = [crf.end_transitions.expand_as(forward[0])]
    for word in range(count - 1, 0, -1):
        backward_scores = torch.logsumexp(crf.transitions + (emissions[:, word] + backward[-1])[:, None, :], dim=2)
        backward.append(torch.where(words[:, word, None], backward_scores, backward[-1]))
    return (torch.stack(forward, dim=1) + torch.stack(backward[::-1], dim=1)).softmax(dim=-1)
