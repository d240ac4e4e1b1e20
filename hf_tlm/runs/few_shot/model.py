"""A masked LM as a classifier: the logits of the label words where the mask is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

from hf_tlm.hub.checkpoint import checkpoint_folder
from hf_tlm.models import MLM_SUBFOLDER, ModelError
from hf_tlm.models.loading import hub_options, load_stock, reading


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
