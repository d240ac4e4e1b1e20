"""A model config that fits a tokenizer, a task and a sequence length."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.activations import ACT2FN

from hf_tlm.commands import did_you_mean, find_preset
from hf_tlm.errors import ModelError
from hf_tlm.hub.repo import split_revision
from hf_tlm.models.families import check_family, family_of
from hf_tlm.models.loading import classes_of
from hf_tlm.utils.shown import suggestion

# Of older configs, without an effect where they have these values.
_LEFT = {"position_embedding_type": "absolute", "gradient_checkpointing": False}
# What configs of transformers read beside their fields.
_ALSO_READ = (
    *("model_type", "num_labels", "torch_dtype", "attn_implementation", "auto_map"),
    *("rope_theta", "rope_scaling", "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"),
)


def read_config(model_config: str | os.PathLike | dict | PreTrainedConfig) -> PreTrainedConfig:
    """The config that `build_config` fits to a tokenizer, as it is written; of a config a copy.

    Raises:
        ModelError: not readable, no `model_type`, or an unsupported one; an impossible value, or in a file a key that
            this type of model has not.
    """
    values: dict[str, Any] | None
    if isinstance(model_config, PreTrainedConfig):
        model_config = {**model_config.to_diff_dict(), "model_type": model_config.model_type}
    if from_file := not isinstance(model_config, dict):
        file = find_preset(model_config)
        values = _read_json(file) if file.is_file() else None
    else:
        values = model_config
    if values is not None:
        if "model_type" not in values:
            raise ModelError(f"A model config needs a `model_type` (bert, roberta, ...); found {sorted(values)}.")
        check_family(values["model_type"])
        try:
            config = AutoConfig.for_model(**values)
        except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            raise ModelError(f"transformers makes no config of {_shown(model_config)}: {error}") from error
        if from_file:
            _check_names(values, config, _shown(model_config))
        _check_values(config, _shown(model_config))
    else:
        name, revision = split_revision(str(model_config))
        try:
            config = AutoConfig.from_pretrained(name, revision=revision)
        except (OSError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            raise ModelError(
                f"--model_config {model_config!r} is neither a JSON file, a preset, nor a model with a config."
                f"{did_you_mean(name)} {error}"
            ) from error
    family_of(config)
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} is no model config: expected a JSON object, received a {type(values).__name__}.")
    return values


def _shown(model_config: str | os.PathLike | dict) -> str:
    return f"{model_config!r:.200}" if isinstance(model_config, dict) else str(model_config)


def _check_names(values: Mapping[str, Any], config: PreTrainedConfig, path: str) -> None:
    """Every key of a file must be one that the config's class reads: transformers keeps others, and uses the default.

    Configs that are read by name, as those of the Hub, may hold keys of other versions.
    """
    known = {field.name for field in dataclasses.fields(config)} | {*config.attribute_map, *_ALSO_READ}
    known |= set(type(config)().to_dict())
    for name, value in values.items():
        if name not in known and (name, value) not in _LEFT.items():
            hint = suggestion(name, known, 2)
            raise ModelError(f"{path}: a {config.model_type} config has no {name!r}.{hint} Correct or remove it.")


def _check_values(config: PreTrainedConfig, shown: str) -> None:
    """Sizes are positive, probabilities below 1, other numbers finite, and the activations known."""
    problems = []
    for name, value in config.to_dict().items():
        if name.endswith(("activation", "hidden_act")) and isinstance(value, str) and value not in ACT2FN:
            problems.append(f"{name} {value!r} (expected one of {', '.join(sorted(ACT2FN))})")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if "drop" in name and not 0 <= value < 1:
            problems.append(f"{name} {value} (expected 0 or more, and less than 1)")
        elif name != "type_vocab_size" and name.endswith(("_size", "_layers", "_heads", "_embeddings", "dim")) and value < 1:
            problems.append(f"{name} {value} (expected 1 or more)")
        elif not math.isfinite(value):
            problems.append(f"{name} {value} (expected a finite number)")
    if not problems and config.hidden_size % config.num_attention_heads:
        problems.append(
            f"hidden_size {config.hidden_size} (expected a multiple of the {config.num_attention_heads} attention heads)"
        )
    if problems:
        raise ModelError(f"The model config {shown} has {'; '.join(problems)}.")


def build_config(
    model_config: str | os.PathLike | dict | PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    id2label: dict[int, str],
    max_length: int,
) -> PreTrainedConfig:
    """Architecture from `model_config`; vocabulary and special ids from the tokenizer; classes from the task.

    Args:
        model_config: a JSON file, a preset (`models/bert_tiny`) or a mapping of config values with `model_type`, a
            config, which stays as it is, or a Hub id, with `@revision` if wanted, whose config is taken (its weights are
            not).
        max_length: longest sequence in tokens; the config must have that many positions, or gets them where they are
            rotary.

    Raises:
        ModelError: see `read_config`; there are too few positions; or `id2label` names no classes from 0 on.
    """
    id2label = classes_of(id2label)
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
    if family.rotary:
        config.max_position_embeddings = max(config.max_position_embeddings, max_length)
    elif max_length + reserved > config.max_position_embeddings:
        raise ModelError(
            f"max_length {max_length} needs {max_length + reserved} positions, but the {config.model_type} config has "
            f"max_position_embeddings {config.max_position_embeddings}. Lower max_length or raise it in the config."
        )
    return config
