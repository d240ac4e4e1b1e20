"""Loading and conversion of the released COCO-LM checkpoints (microsoft/cocolm-base and -large).

Their names and layout are those of the code published with them (github.com/microsoft/COCO-LM, folder `huggingface`).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_tlm.errors import ModelError
from hf_tlm.models.coco_lm.configuration_coco_lm import CocoLmConfig
from hf_tlm.models.coco_lm.modeling_coco_lm import CocoLmForMaskedLM, CocoLmModel, CocoLmPreTrainedModel
from hf_tlm.models.coco_lm.relative_positions import relative_position_buckets
from hf_tlm.models.coco_lm.tokenization_coco_lm import CocoLmTokenizer
from hf_tlm.models.loading import read_weights, weight_problems, weights_file
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.options import named

CONFIG = "config.json"
BODY = "cocolm."
# The values of keys that are missing in their config.json.
PUBLISHED_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "rel_pos_bins": 0,
    "max_rel_pos": 0,
}
# Parts of names: ours, theirs. Query, key and value are one matrix there, in this order.
RENAMED = {
    "attention.self.query": "attention.self_attn.in_proj",
    "attention.self.key": "attention.self_attn.in_proj",
    "attention.self.value": "attention.self_attn.in_proj",
    "attention.output.dense": "attention.self_attn.out_proj",
    "attention.output.LayerNorm": "attention.LayerNorm",
    "copy_head": "binary_head.out_proj",
}
LM_BIAS, COPY_WEIGHT, COPY_BIAS = "lm_head.bias", "binary_head.out_proj.weight", "binary_head.out_proj.bias"
POSITIONS = f"{BODY}embeddings.position_embeddings.weight"
BUCKETS = f"{BODY}relative_attention_bias.weight"
CONTRASTIVE_HEAD = f"{BODY}scl_head."


class Released(NamedTuple):
    """A released COCO-LM checkpoint as our model.

    Attributes:
        model: in float32 and evaluation mode; `CocoLmForMaskedLM` if the file has the bias of the LM head, with the copy
            head if it has that too, else `CocoLmModel` without a pooler.
        tokenizer: the tokenizer of the checkpoint.
        left_out: names of weights that our classes do not have, such as the head of sequence contrastive learning.
    """

    model: CocoLmPreTrainedModel
    tokenizer: CocoLmTokenizer
    left_out: list[str]


def load_released(folder: str | os.PathLike) -> Released:
    """Load model and tokenizer from a folder with `pytorch_model.bin`, `config.json`, `sp.model` and `dict.txt`.

    The hidden states equal those of the published code, to rounding, at every token; the buckets of relative positions are
    `signed`. Pickled code in the weights is not run. The tokenizer needs the extra [sentencepiece].

    Raises:
        ModelError: a file is missing or damaged; weights are missing, unexpected or of another shape than config.json
            says; or the dictionary has more symbols than the embedding.
        ImportError: sentencepiece is not installed.
    """
    folder = Path(named("folder", folder, ModelError, needed=True, what="a folder"))
    values = _read_config(folder / CONFIG)
    file = weights_file(folder)
    state = read_weights(file, "Pass the folder of a released COCO-LM model.")
    tokenizer = _read_tokenizer(folder)
    try:
        config = _build_config(values, tokenizer, state)
        model = CocoLmForMaskedLM(config) if LM_BIAS in state else CocoLmModel(config, add_pooling_layer=False)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be used: {error}") from error
    tokenizer.model_max_length = config.max_position_embeddings
    if POSITIONS in state:
        # More positions than the config has are not used.
        state[POSITIONS] = state[POSITIONS][: config.max_position_embeddings]
    if config.relative_attention_mode is not None and BUCKETS in state:
        # If no distance reaches the outermost bucket, their first row is a later one of ours; the rows that wrap around are
        # those of distances that no text has.
        state[BUCKETS] = state[BUCKETS].roll(_first_bucket(config), dims=0)
    return Released(model.eval(), tokenizer, _load_weights(model, state, file))


def convert_released(folder: str | os.PathLike, output_dir: str | os.PathLike) -> Released:
    """Convert a released checkpoint to a folder of safetensors, tokenizer and their code, which appears atomically.

    The folder loads with the Auto classes of transformers: with `trust_remote_code=True`, or after
    `import hf_tlm.models.coco_lm`.

    Raises:
        HfTlmError: see `load_released`; `output_dir` is `folder`, or holds anything other than a model; or the disk cannot
            be written, and an existing folder stays intact.
    """
    from hf_tlm.models.export import check_replaceable  # Imports all families, including this one.

    folder = named("folder", folder, ModelError, needed=True, what="a folder")
    check_replaceable(output_dir, folder)
    released = load_released(folder)
    with atomic_directory(output_dir) as work:
        released.model.save_pretrained(work)
        released.tokenizer.save_pretrained(work)
    return released


def released_name(name: str) -> str:
    """Return the name of the released weight that is our parameter `name`, or has it as one of its three parts."""
    for ours, theirs in RENAMED.items():
        name = name.replace(ours, theirs)
    return name


def _read_config(path: Path) -> dict[str, Any]:
    """Read the values of a released config.json under their own names, with defaults for missing keys."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}. Pass the folder of a released COCO-LM model.") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}. Download it again.") from error
    if not isinstance(values, dict) or values.get("model_type", "cocolm") != "cocolm":
        raise ModelError(f"{path} must describe a model of type 'cocolm'; found {values!r:.200}.")
    return PUBLISHED_DEFAULTS | {name: values[name] for name in PUBLISHED_DEFAULTS if name in values}


def _read_tokenizer(folder: Path) -> CocoLmTokenizer:
    files = [folder / name for name in CocoLmTokenizer.vocab_files_names.values()]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file} is missing. A released COCO-LM model has {' and '.join(f.name for f in files)}.")
    try:
        return CocoLmTokenizer(*map(str, files))
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot read {' and '.join(map(str, files))}: {error}") from error


def _build_config(values: dict[str, Any], tokenizer: CocoLmTokenizer, state: dict[str, torch.Tensor]) -> CocoLmConfig:
    """Convert the values of a released config to our config, with the heads that have weights.

    Raises:
        TypeError, ValueError: the values make no valid config, or the dictionary has more symbols than the embedding.
    """
    values = dict(values)
    bins, max_distance = values.pop("rel_pos_bins"), values.pop("max_rel_pos")
    if bins > 0:
        values |= {"relative_attention_num_buckets": bins, "relative_attention_max_distance": max_distance}
    config = CocoLmConfig(
        **values,
        relative_attention_mode="signed" if bins > 0 else None,
        pad_token_id=tokenizer.pad_token_id,
        copy_head=COPY_WEIGHT in state,
        copy_bias=COPY_BIAS in state or COPY_WEIGHT not in state,
    )
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the dictionary has {len(tokenizer)} symbols, special tokens included, and the model's vocabulary has "
            f"{config.vocab_size}. Both must belong to the same model."
        )
    return config


def _first_bucket(config: CocoLmConfig) -> int:
    """Return our bucket of the smallest distance in a text of full length, from which theirs are counted."""
    bins, distance = config.relative_attention_num_buckets, config.relative_attention_max_distance
    return int(relative_position_buckets(torch.tensor(1 - config.max_position_embeddings), "signed", bins, distance))


@torch.no_grad()
def _load_weights(model: CocoLmPreTrainedModel, state: dict[str, torch.Tensor], file: Path) -> list[str]:
    """Copy the weights into the model, and return the names of those that it does not have."""
    prefix = "" if hasattr(model, BODY.removesuffix(".")) else BODY
    holders = defaultdict(list)
    for name, parameter in model.named_parameters():
        holders[released_name(prefix + name)].append(parameter)
    shapes = {name: (sum(map(len, parts)), *parts[0].shape[1:]) for name, parts in holders.items()}
    left_out = [name for name in state if name not in holders]
    unexpected = [name for name in left_out if name.startswith(BODY) and not name.startswith(CONTRASTIVE_HEAD)]
    if problems := weight_problems(state, shapes, unexpected):
        raise ModelError(
            f"The weights in {file} do not fit the model in {CONFIG}. {problems}. Do both belong to the same released "
            "COCO-LM model, with post-LayerNorm?"
        )
    for name, parts in holders.items():
        for part, value in zip(parts, state[name].chunk(len(parts)), strict=True):
            part.copy_(value)
    return left_out
