"""Any encoder that transformers loads, as analyses read it, and some texts of a corpus of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from hf_tlm.corpora import load_corpus
from hf_tlm.data import load_tokenizer
from hf_tlm.errors import AnalysisError
from hf_tlm.hub.isolated_load import ADAPTED
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models.adapters import ADAPTER_FILE, load_merged, read_adapter
from hf_tlm.models.base import body_of
from hf_tlm.models.families import longest_input
from hf_tlm.models.loading import POOLER, hub_options, reading
from hf_tlm.runs.finetuning.models import set_token_types


def load_encoder(
    name_or_path: str,
    *,
    max_length: int = 128,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder and its tokenizer, on a GPU if there is one, in evaluation mode.

    Returns (body, tokenizer): of a checkpoint with whatever head, of an adapter with its base, the encoder alone of both
    encoder and decoder.

    Args:
        name_or_path: folder, or Hub id with `@revision` if wanted.
        max_length: tokens that it is to read.
        attn_implementation: "eager" where attention maps are wanted.

    Raises:
        AnalysisError: it lacks weights of its body, or has fewer positions.
        ModelError, HubError, TokenizerError: it cannot be loaded.
    """
    options = hub_options(None, trust_remote_code, attn_implementation) | {"dtype": torch.float32}
    folder = checkpoint_folder(name_or_path, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name_or_path, masking=False, trust_remote_code=trust_remote_code)
    shown = logging.get_verbosity()
    logging.set_verbosity_error()  # A head that is left out is no news here.
    try:
        with reading(f"an encoder from {name_or_path!r}"):
            if (Path(folder) / ADAPTER_FILE).is_file():
                model, missing = _adapted(folder, options), []
            else:
                model, info = AutoModel.from_pretrained(folder, output_loading_info=True, **options)
                missing = [key for key in info["missing_keys"] if POOLER not in key.split(".")]
    finally:
        logging.set_verbosity(shown)
    if missing:
        raise AnalysisError(
            f"{name_or_path} lacks weights of its body ({', '.join(sorted(missing)[:3])}): they would be random. Give a "
            "checkpoint of a trained encoder."
        )
    positions = longest_input(model.config)
    if positions is not None and max_length > positions:
        raise AnalysisError(
            f"{name_or_path} has {positions} positions, fewer than {max_length}. Give --max_length {positions} or less."
        )
    set_token_types(tokenizer, model.config)
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _adapted(folder: str, options: dict[str, Any]) -> PreTrainedModel:
    """The body of a base model with an adapter merged into it."""
    adapter = read_adapter(folder)
    bare = "AutoModelForMultipleChoice" if adapter.modules_to_save else "AutoModelForMaskedLM"
    model = load_merged(folder, ADAPTED.get(adapter.task_type or "", bare), **options)
    assert isinstance(model, PreTrainedModel)  # as all Auto classes make
    return body_of(model)


def sample_corpus(corpus: str, count: int, *, seed: int = 0, least: int = 1, text_column: str = "text") -> list[str]:
    """Draw `count` texts of a corpus, or all if it has fewer, each with the same probability, in the corpus's order.

    The corpus is read through once, and what is drawn is all that is kept. An AnalysisError where it has fewer than `least`.
    """
    rng, read = np.random.default_rng(seed), 0
    kept: list[tuple[float, int, str]] = []
    for _, batch in load_corpus(corpus, text_column=text_column).batches():
        texts = [text for text in batch["text"].to_pylist() if text and text.strip()]
        kept += zip(rng.random(len(texts)), range(read, read + len(texts)), texts, strict=True)
        kept, read = sorted(kept)[:count], read + len(texts)
    if len(kept) < least:
        raise AnalysisError(f"{corpus} has {len(kept)} texts that are not blank; {least} or more are needed.")
    return [text for _, _, text in sorted(kept, key=lambda drawn: drawn[1])]
