"""A linear-chain conditional random field over the tags of a sentence (Lafferty et al., ICML 2001), by pytorch-crf.

It sees words, not pieces: the emissions are the logits of every word's first piece.
Shapes: B sentences, S positions, W words, C tags.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from hf_tlm.errors import HfTlmError

if TYPE_CHECKING:
    from torchcrf import CRF

CRF_FILE = "crf.safetensors"


def new_crf(num_tags: int) -> CRF:
    """Make the CRF of torchcrf, with transitions drawn from U(-0.1, 0.1); an HfTlmError where it is not installed.

    These are `transitions` [C, C], from row to column; `start_transitions` and `end_transitions` [C].
    """
    try:
        from torchcrf import CRF
    except ImportError as error:
        raise HfTlmError(
            "A CRF needs pytorch-crf, which is not installed. Install the extra [crf] (pip install 'hf-tlm[crf]'), or leave "
            "--crf out."
        ) from error
    return CRF(num_tags, batch_first=True)


class CrfTagger(nn.Module):
    """A stock token classifier whose loss is a CRF's. What is not here is the classifier's (`config`, ...)."""

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

        `labels` are int64 [B, S] with -100 where there is no word's first piece. The loss is the mean over sentences of the
        negative log-likelihood of their tags. A sentence without a labelled word does not count.
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
        """The classifier's and the CRF's."""
        return self.tagger.num_parameters(*args, **kwargs) + sum(each.numel() for each in self.crf.parameters())

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs) -> None:
        """The stock classifier, which works alone (and then chooses each tag by itself), and `crf.safetensors`."""
        self.tagger.save_pretrained(save_directory, **kwargs)
        state = {name: values.detach().cpu().contiguous() for name, values in self.crf.state_dict().items()}
        save_file(state, Path(save_directory) / CRF_FILE)

    def load_crf(self, folder: str | os.PathLike) -> CrfTagger:
        """Take the transitions of a folder that `save_pretrained` wrote; an HfTlmError where they are not this model's."""
        try:
            self.crf.load_state_dict(load_file(Path(folder) / CRF_FILE))
        except (OSError, RuntimeError) as error:
            raise HfTlmError(
                f"Cannot load {CRF_FILE} of {folder} for {self.crf.num_tags} tags: {error}. Is it this model's own folder?"
            ) from error
        return self

    @torch.no_grad()
    def best_tags(self, emissions: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most probable sequence of tags of every sentence (Viterbi), and the marginal probability of each tag in it.

        Args:
            emissions: float [B, W, C].
            words: bool [B, W], true from the left; a sentence without words has arbitrary tags.

        Returns:
            int64 [B, W] and float [B, W]; what lies beyond a sentence's words means nothing.
        """
        device = self.crf.transitions.device
        scores = torch.from_numpy(emissions).to(device, torch.float32)
        mask = torch.from_numpy(words.copy()).to(device)
        mask[:, 0] = True  # torchcrf wants a word in every sentence.
        best = np.zeros(words.shape, dtype=np.int64)
        for row, tags in enumerate(self.crf.decode(scores, mask=mask)):
            best[row, : len(tags)] = tags
        probabilities = marginals(self.crf, scores, mask).cpu().numpy()
        return best, np.take_along_axis(probabilities, best[..., None], axis=-1)[..., 0]


def to_words(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Move the places with a label other than -100 to the left.

    Returns their emissions [B', W, C], tags int64 [B', W] and mask bool [B', W]; B' sentences have one.
    """
    mask = labels != -100
    counts = mask.sum(dim=1)
    places = (~mask).long().argsort(dim=1, stable=True)[:, : int(counts.max())]
    words = torch.arange(places.shape[1], device=labels.device) < counts[:, None]
    tags = labels.gather(1, places).where(words, 0)
    emissions = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1]))
    some = counts > 0
    return emissions[some], tags[some], words[some]


def marginals(crf: CRF, emissions: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """The probability of every tag of every word, float [B, W, C], by forward and backward sums.

    Args:
        emissions: float [B, W, C].
        words: bool [B, W], true from the left, the first one everywhere.
    """
    count = emissions.shape[1]
    forward = [crf.start_transitions + emissions[:, 0]]
    for word in range(1, count):
        reached = torch.logsumexp(forward[-1][:, :, None] + crf.transitions, dim=1) + emissions[:, word]
        forward.append(torch.where(words[:, word, None], reached, forward[-1]))
    backward = [crf.end_transitions.expand_as(forward[0])]
    for word in range(count - 1, 0, -1):
        left = torch.logsumexp(crf.transitions + (emissions[:, word] + backward[-1])[:, None, :], dim=2)
        backward.append(torch.where(words[:, word, None], left, backward[-1]))
    return (torch.stack(forward, dim=1) + torch.stack(backward[::-1], dim=1)).softmax(dim=-1)
