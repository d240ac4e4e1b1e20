"""Loading of model configs, which are fitted to a tokenizer and a task, and of checkpoints, including pickles.

Errors say which config or checkpoint could not be read, and why.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.activations import ACT2FN
from transformers.utils import SAFE_WEIGHTS_NAME, logging

from hf_tlm.commands import did_you_mean, find_preset
from hf_tlm.errors import HfTlmError, ModelError
from hf_tlm.hub.errors import unfound_reason
from hf_tlm.hub.repo import split_revision
from hf_tlm.models.families import check_family, family_of, longest_input
from hf_tlm.utils.shown import few, suggestion

WEIGHTS, SAFE_WEIGHTS = "pytorch_model.bin", "model.safetensors"
TRAINER_STATE = "trainer_state.json"  # A file of the Trainer's checkpoint-* folders.
# Prefixes of head parameters in such folders -> in a stock class.
_HEAD_PREFIXES = {"mlm_head.": "", "clm_heads.": "", "rtd_head.": "discriminator_predictions."}
POOLER = "pooler"  # Only the classifier reads it, and many checkpoints do not have it.
# Trained models have weights of this dtype, whatever a checkpoint's is: updates are too small for half precision.
DTYPE = torch.float32
# What transformers, huggingface_hub and safetensors raise for a model that cannot be loaded.
LOADING_ERRORS = (OSError, RuntimeError, KeyError, ImportError, ValueError, SafetensorError)
# Keys of older configs that have no effect with these values.
_IGNORED_KEYS = {"position_embedding_type": "absolute", "gradient_checkpointing": False}
# Keys that configs of transformers read beside their fields.
_EXTRA_KEYS = (
    *("model_type", "num_labels", "torch_dtype", "attn_implementation", "auto_map"),
    *("rope_theta", "rope_scaling", "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"),
)


def read_config(model_config: str | os.PathLike | dict | PreTrainedConfig) -> PreTrainedConfig:
    """Read a model config as it is written, before `build_config` fits it to a tokenizer; a config object is copied.

    Raises:
        ModelError: the config cannot be read, or has no `model_type`, an unsupported one, an impossible value or, in a
            file, a key that this type of model does not have.
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
            raise ModelError(
                f"transformers cannot create a config from {_describe_config(model_config)}: {error}"
            ) from error
        if from_file:
            _check_names(values, config, _describe_config(model_config))
        _check_values(config, _describe_config(model_config))
    else:
        name, revision = split_revision(str(model_config))
        try:
            config = AutoConfig.from_pretrained(name, revision=revision)
        except (OSError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            raise ModelError(
                f"--model_config {model_config!r} is neither a JSON file, a preset, nor a model with a config."
                f"{did_you_mean(name)} {unfound_reason(error, name) or error}"
            ) from error
    family_of(config)
    return config


def build_config(
    model_config: str | os.PathLike | dict | PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    id2label: dict[int, str],
    max_length: int,
) -> PreTrainedConfig:
    """Build a config: architecture from `model_config`, vocabulary and special ids from the tokenizer, classes of the task.

    Args:
        model_config: a JSON file; a preset (`models/bert_tiny`); a mapping of config values with `model_type`; a config,
            which is not changed; or a Hub id, optionally with `@revision`, whose config is used (not its weights).
        max_length: longest sequence in tokens; the config must have that many positions, or gets them if they are
            rotary.

    Raises:
        ModelError: see `read_config`; there are too few positions; or `id2label` does not name the classes from 0 on.
    """
    id2label = parse_id2label(id2label)
    values = {
        "vocab_size": len(tokenizer),
        "id2label": id2label,
        "label2id": {label: index for index, label in id2label.items()},
        "pad_token_id": tokenizer.pad_token_id,
        # A checkpoint's config has those of its weights and of its task.
        "dtype": None,
        "problem_type": None,
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not a model config: expected a JSON object, received a {type(values).__name__}.")
    return values


def _describe_config(model_config: str | os.PathLike | dict) -> str:
    return f"{model_config!r:.200}" if isinstance(model_config, dict) else str(model_config)


def _check_names(values: Mapping[str, Any], config: PreTrainedConfig, path: str) -> None:
    """Raise a ModelError for a key of a file that the config's class does not read.

    transformers would keep such a key, and use the default. Configs read by name, such as those of the Hub, are not checked:
    they may hold keys of other versions.
    """
    known = {field.name for field in dataclasses.fields(config)} | {*config.attribute_map, *_EXTRA_KEYS}
    known |= set(type(config)().to_dict())
    for name, value in values.items():
        if name not in known and (name, value) not in _IGNORED_KEYS.items():
            hint = suggestion(name, known, 2)
            raise ModelError(f"{path}: a {config.model_type} config has no {name!r}.{hint} Correct or remove it.")


def _check_values(config: PreTrainedConfig, source: str) -> None:
    """Raise a ModelError unless sizes are positive, dropouts below 1, other numbers finite, and activations known."""
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
        raise ModelError(f"The model config {source} has {'; '.join(problems)}.")


def weights_file(folder: Path) -> Path:
    """Return the file of a checkpoint's weights: safetensors if somebody has converted them, else the pickle."""
    safe = folder / SAFE_WEIGHTS
    return safe if safe.is_file() else folder / WEIGHTS


@contextmanager
def reading_pickles(path: str | os.PathLike | None, refusal: type[HfTlmError]) -> Iterator[None]:
    """Raise a `refusal` in place of the error that torch raises, within the block, for a pickle that it refuses.

    torch reads only tensors and numbers from a pickle; no code of a refused one was run. Its own message is not shown, as
    it ends with how to run such code.

    Args:
        path: the file or folder that is read.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        match = re.search(r"(?:GLOBAL|global) (\w[\w.]*)", str(error))
        cause = f"it refers to {match[1]}" if match else "it cannot be read as tensors and numbers"
        raise refusal(
            f"{path} is damaged, or contains more than tensors: {cause}. None of its code was run. Do not use it, or "
            "download it from a source that you trust."
        ) from None


def read_weights(path: Path, advice: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a file by name, on the CPU. Pickled code is not run.

    Args:
        advice: end of the error message about a missing file.

    Raises:
        ModelError: the file is missing or damaged, or holds anything other than tensors by name.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with reading_pickles(path, ModelError):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}. {advice}") from error
    except (RuntimeError, EOFError, SafetensorError) as error:
        raise ModelError(f"{path} is damaged: {error}. Download it again.") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelError(f"{path} must contain tensors by name; found {type(state).__name__}. Is it a released checkpoint?")
    return state


def weight_problems(
    state: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], unexpected: Sequence[str]
) -> str:
    """Return why a file's weights do not fit a model, such as "missing: a, b, c and 2 more; unexpected: d"; "" if they do.

    Args:
        shapes: the expected shape of each weight, by name.
    """
    problems = {
        "missing": [name for name in shapes if name not in state],
        "unexpected": unexpected,
        "of another shape": [
            f"{name} {tuple(state[name].shape)} instead of {shape}"
            for name, shape in shapes.items()
            if name in state and state[name].shape != shape
        ],
    }
    return "; ".join(f"{what}: {few(names)}" for what, names in problems.items() if names)


@contextmanager
def reading(what: str, name: str | os.PathLike) -> Iterator[None]:
    """Raise a ModelError for errors within the block about a model that cannot be loaded.

    Args:
        what: what is loaded, such as "a config from", for the message.
        name: its path or Hub id.
    """
    what = f"{what} {os.fspath(name)!r}"
    try:
        with reading_pickles(what, ModelError):
            yield
    except HfTlmError:
        raise
    except (*LOADING_ERRORS, StrictDataclassError) as error:
        # The error about a config field of the wrong type has several lines.
        reason = unfound_reason(error, name) or " ".join(str(error).split())
        if isinstance(error, SafetensorError):
            reason = f"its weights are truncated or damaged ({reason:.200}). Download or create them again."
        raise ModelError(f"Cannot load {what}: {reason:.1000}") from error


def parse_id2label(id2label: Any) -> dict[int, str]:
    """Return class names by index, from a mapping or a list of names; indices may be strings, as in JSON.

    Raises:
        ModelError: `id2label` is something else, or its indices are not 0, 1, ... without a gap.
    """
    listed = isinstance(id2label, Iterable) and not isinstance(id2label, (str, Mapping))
    mapping = dict(enumerate(id2label)) if listed else id2label if isinstance(id2label, Mapping) else {}
    names = {int(index): name for index, name in mapping.items() if str(index).isdecimal() and isinstance(name, str)}
    if not names or sorted(names) != list(range(len(mapping))):
        raise ModelError(
            f"id2label: expected names of classes by index, from 0; received {id2label!r:.80}. Give {{0: 'no', 1: 'yes'}}, "
            "or a list of names in this order."
        )
    return dict(sorted(names.items()))


def class_names(config: PreTrainedConfig) -> list[str]:
    """Return the names of a classifier's classes, in the order of its outputs."""
    return [name for _, name in sorted((config.id2label or {}).items())]


def hub_options(revision: str | None, trust_remote_code: bool, attn_implementation: str | None) -> dict:
    """Return keyword arguments of `from_pretrained`, which accepts no None as the attention implementation."""
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    return options if attn_implementation is None else options | {"attn_implementation": attn_implementation}


@contextmanager
def without_reports() -> Iterator[None]:
    """Silence transformers' reports, within the block, about unused weights and weights initialised at random."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def load_classifier(folder: str, name: str, *, id2label: dict[int, str], **options) -> tuple[PreTrainedModel, bool]:
    """Load a checkpoint as a stock classifier in float32, and return it and whether some of its head is random.

    Weights of the head are random if the checkpoint lacks them or has other classes. Errors are those of `family_of`,
    `new_weights` and `reading`.

    Args:
        name: the name of the checkpoint in errors.
        options: see `hub_options`.
    """
    label2id = {label: index for index, label in id2label.items()}
    config = AutoConfig.from_pretrained(folder, id2label=id2label, label2id=label2id, **options)
    config.problem_type = None  # That of the checkpoint's own task, such as several labels per text.
    family_of(config)
    model, info = load_stock(AutoModelForSequenceClassification, folder, config, **options)
    return model, head_is_new(model, new_weights(model, info, name))


@without_reports()
def load_stock(auto_class: Any, folder: str, config: PreTrainedConfig, **options) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a checkpoint as a stock class in float32, and return it and the loading info of `from_pretrained`.

    Weights that it lacks, or has in other shapes, are initialised at random, without transformers' report. A folder
    `checkpoint-*` of an unfinished run loads like what the run would export: of a pair of models the main one; a classifier
    that learned no task is left out.

    Args:
        auto_class: such as `AutoModelForSequenceClassification`.
        config: of the model, with the labels of the task.
        options: of `from_pretrained`.
    """
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True, "dtype": DTYPE}
    saved = _trainer_weights(folder)
    if saved is None:
        return auto_class.from_pretrained(folder, config=config, **options)
    trust = {"trust_remote_code": options.pop("trust_remote_code", False)}
    with torch.device("meta"):
        stock = type(auto_class.from_config(config, **trust))
    body = f"{stock.base_model_prefix}."
    # Classes without names are those of a run without a task.
    labels = AutoConfig.from_pretrained(folder, **trust).id2label
    has_task = any(label != f"LABEL_{index}" for index, label in labels.items())
    state = {}
    for name, value in saved.items():
        head_prefix = next((prefix for prefix in _HEAD_PREFIXES if name.startswith(prefix)), None)
        in_body = name.startswith(body) and not name.startswith(f"{body}{POOLER}.")
        if head_prefix is None and (in_body or has_task):
            state[name] = value
        elif head_prefix is not None:
            state.setdefault(name.replace(head_prefix, _HEAD_PREFIXES[head_prefix], 1), value)
    options.pop("revision", None)
    return stock.from_pretrained(None, config=config, state_dict=state, **options)


def _trainer_weights(folder: str) -> dict[str, torch.Tensor] | None:
    """Return the weights of a `checkpoint-*` folder of this package's models, of a pair the main one's; else None."""
    file = Path(folder) / SAFE_WEIGHTS_NAME
    if not (file.is_file() and (Path(folder) / TRAINER_STATE).is_file()):
        return None
    state, main = load_file(file), "main."
    if any(name.startswith(main) for name in state):
        return {name.removeprefix(main): value for name, value in state.items() if not name.startswith("auxiliary.")}
    return state if any(name.startswith("mlm_head.") for name in state) else None


def new_weights(model: PreTrainedModel, info: Mapping[str, Any], name: str) -> set[str]:
    """Return the weights that the checkpoint `name` lacks or has in other shapes, so that they are initialised at random.

    Args:
        info: the loading info that `from_pretrained` returned with the model (`output_loading_info`).

    Raises:
        ModelError: some of them belong to the model's body, other than its pooler.
    """
    new = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    body = f"{model.base_model_prefix}."
    if lacking := sorted(key for key in new if key.startswith(body) and POOLER not in key.split(".")):
        raise ModelError(
            f"{name} lacks weights of its body ({', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}): they would "
            f"be random. Pass a checkpoint of the type {model.config.model_type}; finish an unfinished run first, which "
            "then exports one."
        )
    return new


def check_fit(
    config: PreTrainedConfig, name: str, *, max_length: int, tokenizer: PreTrainedTokenizerBase, tokenizer_name: str
) -> None:
    """Raise a ModelError if a checkpoint has fewer positions than `max_length`, or fewer tokens than the tokenizer."""
    check_positions(config, name, max_length)
    if len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"The tokenizer {tokenizer_name} has {len(tokenizer):,} tokens, and the vocabulary of {name} has "
            f"{config.vocab_size:,}. Pass the checkpoint's own tokenizer, or none."
        )


def check_positions(config: PreTrainedConfig, name: str, max_length: int) -> None:
    """Raise a ModelError if a checkpoint has fewer positions than `max_length`."""
    positions = longest_input(config)
    if positions is not None and max_length > positions:
        raise ModelError(
            f"max_length {max_length} is more than the {positions} positions of {name}. Set --max_length to {positions} or "
            "less, or choose another checkpoint."
        )


def head_is_new(model: PreTrainedModel, new: Iterable[str]) -> bool:
    """Return whether some of the parameters `new` are outside of the model's body."""
    return any(not name.startswith(f"{model.base_model_prefix}.") for name in new)
