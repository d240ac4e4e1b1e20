"""LoRA adapters (`peft`): small trained matrices beside the body's frozen weights, and their export for stock classes."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from peft.utils import WEIGHTS_NAME
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.errors import ModelError
from hf_tlm.hub.repo import ADAPTER_FILE, check_named, checkpoint_folder
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.models.arguments import LoraArguments
from hf_tlm.models.base import TrainedModel, body_of, save_tokenizer
from hf_tlm.models.export import export_stock
from hf_tlm.models.loading import POOLER, new_weights, reading_pickles, weight_problems, without_reports
from hf_tlm.models.tlm import TlmModel
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.json_files import Unfit, listed, maybe, one_of, read_fields, real, truth, whole, words

logger = logging.getLogger(__name__)

ADAPTER, ADAPTER_WEIGHTS = "default", "adapter_model.safetensors"
# The file may be a stranger's: it could name modules to import, or regular expressions that never end.
_NAME = words(200)
_NAMES = maybe(listed(_NAME, 1000))
_MODULES = re.compile(r"\w+\\\.\(\?!pooler\\b\)\(\.\*\\\.\)\?\([\w|\\]+\)|[\w.]+|all-linear")
_FIELDS = {
    **{"base_model_name_or_path": words(4096), "revision": maybe(_NAME), "task_type": maybe(_NAME), "r": whole(1, 4096)},
    **{"lora_alpha": real(0, 1e6), "bias": one_of("none", "all", "lora_only"), "modules_to_save": _NAMES},
    **{"use_rslora": truth, "use_dora": truth, "fan_in_fan_out": truth},
}
# Fields that need not have their default: they concern training, the initial weights or the library itself.
_TRAINING_FIELDS = ("lora_dropout", "inference_mode", "peft_version", "auto_mapping", "runtime_config", "init_lora_weights")


def add_lora(
    model: TlmModel | PreTrainedModel,
    lora: LoraArguments,
    base: str | os.PathLike,
    revision: str | None = None,
    *,
    classifier: bool = True,
) -> PeftModel:
    """Add a LoRA adapter to the body of `model`, in place; only the adapter and the head of the task are trained.

    The head includes the pooler of BERT and ALBERT, as only the classifier reads it and many checkpoints do not have it.
    Seed the adapter's initial weights with `transformers.set_seed`.

    Args:
        model: a `TlmModel`, or a stock model with a head for a task of any kind.
        base: Hub id or folder of the checkpoint that `model` was loaded from, to which the adapter belongs.
        revision: of that checkpoint.
        classifier: False for pretraining, in which the head learns nothing and is not part of the adapter.

    Raises:
        ModelError: a name in `lora.lora_target_modules` is not that of a linear layer of the body.
    """
    body = model.base_model_prefix
    targets = _find_targets(body_of(model), lora)
    head = [name for name, module in model.named_children() if name not in (body, "mlm_head") and list(module.parameters())]
    head += [POOLER] if getattr(model.base_model, POOLER, None) is not None else []
    config = LoraConfig(
        r=lora.lora_r,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # A factor, which may be fractional.
        lora_dropout=lora.lora_dropout,
        # One regular expression that fits the stock classifier too, whose head has layers of the same names.
        target_modules=rf"{body}\.(?!{POOLER}\b)(.*\.)?({'|'.join(map(re.escape, sorted(targets)))})",
        modules_to_save=head if classifier else None,
        revision=revision,
    )
    # peft matches modules by the ends of their names, so that ModernBERT's `head` would match `mlm_head` as well. The
    # masked-LM head stays frozen: the adapter is for the stock classifier, which has none.
    mlm_head = model.mlm_head.requires_grad_(False) if isinstance(model, TlmModel) else None
    if mlm_head is not None:
        del model.mlm_head
    with _without_peft_warning():
        adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    if mlm_head is not None:
        model.mlm_head = mlm_head
    base = Path(base).resolve() if Path(base).is_dir() else base
    adapted.peft_config[ADAPTER].base_model_name_or_path = str(base)
    trained, total = trained_parameters(adapted), model.num_parameters()
    logger.info("LoRA trains %s of %s parameters (%.2f%%).", f"{trained:,}", f"{total:,}", 100 * trained / total)
    return adapted


@contextmanager
def _without_peft_warning() -> Iterator[None]:
    """Silence, within the block, transformers' warning about an attribute that peft reads and transformers has renamed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def check_targets(lora: LoraArguments, config: PreTrainedConfig, trust_remote_code: bool = False) -> None:
    """Raise a ModelError if a body with this config lacks the layers to adapt; the check needs no weights."""
    if lora.lora_target_modules is not None:
        with torch.device("meta"):
            _find_targets(AutoModel.from_config(config, trust_remote_code=trust_remote_code), lora)


def _find_targets(body: PreTrainedModel, lora: LoraArguments) -> set[str]:
    """Return the names of the linear layers that get an adapter, without the paths of their parents."""
    linear = {
        name.rpartition(".")[2]
        for name, module in body.named_modules()
        if isinstance(module, nn.Linear) and POOLER not in name.split(".")
    }
    targets = set(lora.lora_target_modules or linear)
    if unknown := targets - linear:
        raise ModelError(
            f"lora_target_modules: a {body.config.model_type} body has no linear layer "
            f"{', '.join(f'{name:.60}' for name in sorted(unknown)[:5])}. Choose from {', '.join(sorted(linear))}."
        )
    return targets


def trained_parameters(model: nn.Module) -> int:
    """Return the number of parameters that the optimizer changes."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def export_adapter(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    files: dict[str, str] | None = None,
    *,
    task_type: str | None = "SEQ_CLS",
) -> Path:
    """Write the adapter, with its task head if it has one, to a folder for stock classes; the folder appears atomically.

    It holds `adapter_config.json`, `adapter_model.safetensors`, `config.json` (the classes) and the tokenizer, and
    `PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, config=config), output_dir)`
    gives the logits of `model`; other kinds of tasks need their own Auto class. An adapter without a head is loaded onto
    the base as a masked LM instead.

    Args:
        files: further text files to put in the folder, name -> content (the card, the results).
        task_type: peft's name for the head's task; None if peft has no name for it.

    Raises:
        HfTlmError: the disk cannot be written; an existing folder stays intact.
    """
    output_dir = Path(output_dir)
    with atomic_directory(output_dir) as folder:
        # The embeddings are the base's; by default peft would ask the Hub whether they are.
        model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        config = deepcopy(model.peft_config[ADAPTER])
        assert isinstance(config, LoraConfig)  # as `add_lora` creates it
        # Only now: in training `TlmModel.forward` must get its own arguments; the stock classifier has the usual ones.
        config.task_type, config.inference_mode = task_type if config.modules_to_save else None, True
        config.save_pretrained(str(folder))
        model.config.save_pretrained(folder)
        save_tokenizer(tokenizer, folder, model.config.model_type)
        for name, content in (files or {}).items():
            (folder / name).write_text(content, encoding="utf-8")
    return output_dir


def read_adapter(folder: str | os.PathLike) -> LoraConfig:
    """Read the config of a LoRA adapter, which names its base model, from the file that `export_adapter` or peft wrote.

    Raises:
        ModelError: the file cannot be read, is of another kind of adapter, or sets options that recipes leave at their
            defaults.
    """
    path = Path(folder) / ADAPTER_FILE
    config = LoraConfig()
    defaults = json.loads(json.dumps({entry.name: getattr(config, entry.name) for entry in fields(config)}, default=str))
    others = {name: one_of(value, None) for name, value in defaults.items() if name not in (*_FIELDS, *_TRAINING_FIELDS)}
    others |= {
        "peft_type": one_of("LORA"),
        "target_modules": _check_modules,
        "init_lora_weights": one_of(True, False, "gaussian"),
    }
    try:
        values = read_fields(
            path, {**others, **_FIELDS}, ModelError, optional={*others, *_FIELDS} - {"base_model_name_or_path"}
        )
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}. Pass the folder of an adapter.") from error
    arguments: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return LoraConfig(**{name: value for name, value in arguments.items() if name in _FIELDS or name == "target_modules"})


def _check_modules(value: Any) -> Any:
    if isinstance(value, str) and not _MODULES.fullmatch(value):
        raise Unfit("names of layers")
    return _NAME(value) if isinstance(value, str) else _NAMES(value)


def base_folder(folder: str | os.PathLike, adapter: LoraConfig, *, trust_remote_code: bool = False) -> str:
    """Return the folder of the base model of the adapter in `folder`, whose config `read_adapter` returned.

    Raises:
        ModelError: the base model is missing.
        HubError: see `check_named`, `checkpoint_folder`.
    """
    base = str(adapter.base_model_name_or_path)
    check_named(base, folder)
    # A name without an owner, such as bert-base-uncased, is one of the Hub's older models.
    if find_repo(base, "model") is None and Path(base).name != base and not os.path.isdir(base):
        raise ModelError(
            f"The adapter in {folder} needs the base model {base}, which does not exist. Restore it, or set "
            f"base_model_name_or_path in {ADAPTER_FILE} to its new path."
        )
    return checkpoint_folder(base, adapter.revision, trust_remote_code=trust_remote_code)


@without_reports()
def load_merged(
    folder: str | os.PathLike, auto_class: str, trust_remote_code: bool = False, **options: Any
) -> PreTrainedModel:
    """Load the base model of an adapter as a stock model and merge the adapter into it.

    Args:
        auto_class: name of an Auto class of transformers.
        options: for `from_pretrained` of the base.

    Raises:
        ModelError, HubError: see `read_adapter`, `base_folder`, `new_weights`, `load_adapter`.
    """
    adapter = read_adapter(folder)
    model, info = getattr(transformers, auto_class).from_pretrained(
        base_folder(folder, adapter, trust_remote_code=trust_remote_code),
        config=AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code),
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        trust_remote_code=trust_remote_code,
        **options,
    )
    new_weights(model, info, f"{adapter.base_model_name_or_path}, the base model of the adapter in {folder},")
    with _without_peft_warning():
        merged = load_adapter(get_peft_model(model, adapter), folder).merge_and_unload()
    assert isinstance(merged, PreTrainedModel)  # The base model.
    return merged


def load_adapter(model: PeftModel, folder: str | os.PathLike) -> PeftModel:
    """Load the weights that `export_adapter` or peft wrote to `folder` into `model`, a base model with a new adapter.

    Raises:
        ModelError: the weights are missing, or do not fit the model.
    """
    if not any((Path(folder) / name).is_file() for name in (ADAPTER_WEIGHTS, WEIGHTS_NAME)):
        raise ModelError(f"{folder} lacks {ADAPTER_WEIGHTS}, the weights of its adapter. Copy or create the folder again.")
    with reading_pickles(folder, ModelError):
        weights = load_peft_weights(str(folder), device="cpu")
    expected = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    shapes, unexpected = {name: tuple(value.shape) for name, value in expected.items()}, set(weights) - {*model.state_dict()}
    if problems := weight_problems(weights, shapes, sorted(unexpected - set(shapes))):
        raise ModelError(
            f"The weights of the adapter in {folder} do not fit its {ADAPTER_FILE} and its base model ({problems}). Copy "
            "the folder again, or restore the base model."
        )
    set_peft_model_state_dict(model, weights, adapter_name=ADAPTER)
    return model


def export_model(
    model: TrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    files: dict[str, str] | None = None,
) -> Path:
    """Export a model to a folder: by `export_adapter` if it has an adapter, else by `export_stock`."""
    if isinstance(model, PeftModel):
        return export_adapter(model, tokenizer, output_dir, files)
    return export_stock(model, tokenizer, output_dir, files)
