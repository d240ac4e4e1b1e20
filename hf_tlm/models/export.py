"""From a `TlmModel` to stock checkpoints that load where hf_tlm is not installed."""

from __future__ import annotations

import os
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from hf_tlm.files import atomic_directory
from hf_tlm.models.tlm import MLM_SUBFOLDER, TlmModel


def export_stock(
    model: TlmModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    files: dict[str, str] | None = None,
) -> Path:
    """Write `output_dir` (a stock sequence classifier) and `output_dir/mlm` (a stock masked LM of the same body).

    Both hold config, safetensors weights and tokenizer, and load with `AutoModelForSequenceClassification` /
    `AutoModelForMaskedLM` without missing or unexpected keys. The whole folder appears at once.

    Args:
        files: further text files to put in the folder, name -> content (the card, the results).

    Raises:
        HfTlmError: the disk cannot be written; an earlier folder there is intact.
    """
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    head = "mlm_head."
    lm_state = {name.removeprefix(head): tensor for name, tensor in state.items()}
    output_dir = Path(output_dir)
    with atomic_directory(output_dir) as folder:
        for auto_class, names, path in (
            (AutoModelForSequenceClassification, state, folder),
            (AutoModelForMaskedLM, lm_state, folder / MLM_SUBFOLDER),
        ):
            stock = auto_class.from_config(model.config)
            # Each class takes its own entries (a masked LM has no pooler); strict, so that none can be missing.
            stock.load_state_dict({name: names[name] for name in stock.state_dict()}, strict=True)
            stock.to(model.dtype).save_pretrained(path)
            tokenizer.save_pretrained(path)
        for name, content in (files or {}).items():
            (folder / name).write_text(content, encoding="utf-8")
    return output_dir
