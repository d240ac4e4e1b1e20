"""A model config that fits a tokenizer, a task and a sequence length."""

from __future__ import annotations

import json
import os
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from hf_tlm.hub.checkpoint import split_revision
from hf_tlm.models.errors import ModelError
from hf_tlm.models.families import family_of


def read_config(model_config: str | os.PathLike | dict) -> PreTrainedConfig:
    """The config that `build_config` fits to a tokenizer, as it is written.

    Raises:
        ModelError: not readable, no `model_type`, or an unsupported one.
    """
    if isinstance(model_config, dict) or Path(model_config).is_file():
        if not isinstance(model_config, dict):
            try:
                model_config = json.loads(Path(model_config).read_text(encoding="utf-8"))
            except json.JSONDecodeError as error:
                raise ModelError(f"{model_config} is not JSON: {error}") from error
        if "model_type" not in model_config:
            raise ModelError(f"A model config needs a `model_type` (bert, roberta, ...); found {sorted(model_config)}.")
        try:
            config = AutoConfig.for_model(**model_config)
        except ValueError as error:
            raise ModelError(
                f"transformers makes no config of the model_type {model_config['model_type']!r}: {error}"
            ) from error
    else:
        name, revision = split_revision(str(model_config))
        try:
            config = AutoConfig.from_pretrained(name, revision=revision)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"--model_config {model_config!r} is neither a JSON file nor a model with a config: {error}"
            ) from error
    family_of(config)
    return config


def build_config(
    model_config: str | os.PathLike | dict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    id2label: dict[int, str],
    max_length: int,
) -> PreTrainedConfig:
    """Architecture from `model_config`; vocabulary and special ids from the tokenizer; classes from the task.

    Args:
        model_config: a JSON file or a mapping of config values with `model_type`, or a Hub id,
            with `@revision` if wanted, whose config is taken (its weights are not).
        max_length: longest sequence in tokens; the config must have that many positions.

    Raises:
        ModelError: see `read_config`; or there are too few positions.
    """
    values = {
        "vocab_size": len(tokenizer),
        "id2label": id2label,
        "label2id": {label: index for index, label in id2label.items()},
        "pad_token_id": tokenizer.pad_token_id,
    }
    specials = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
    config = read_config(model_config)
    family = family_of(config)
    # Only the ids this architecture's config has: BERT's has no cls_token_id, ModernBERT's has all of them.
    config.update(values | {name: value for name, value in specials.items() if name in config.to_dict()})
    reserved = family.first_position(config)
    if max_length + reserved > config.max_position_embeddings:
        raise ModelError(
            f"max_length {max_length} needs {max_length + reserved} positions, but the {config.model_type} config has "
            f"max_position_embeddings {config.max_position_embeddings}. Lower max_length or raise it in the config."
        )
    return config
