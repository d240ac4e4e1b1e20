"""LoRA adapters (`peft`): small trained matrices beside the body's frozen weights, and their export for stock classes."""

from __future__ import annotations

import json
import logging
import os
import re
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.errors import ModelError
from hf_tlm.hub.repo import ADAPTER_FILE, check_named, checkpoint_folder
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.models.arguments import LoraArguments
from hf_tlm.models.base import TrainedModel, body_of, save_tokenizer
from hf_tlm.models.export import export_stock
from hf_tlm.models.loading import POOLER, reading_pickles
from hf_tlm.models.tlm import TlmModel
from hf_tlm.utils.files import atomic_directory
from hf_tlm.utils.json_files import Unfit, listed, maybe, one_of, read_fields, real, truth, whole, words

logger = logging.getLogger(__name__)

ADAPTER, ADAPTER_WEIGHTS = "default", "adapter_model.safetensors"
# A stranger may have written the file, which can name modules to import and expressions that never end.
_NAME = words(200)
_NAMES = maybe(listed(_NAME, 1000))
_MODULES = re.compile(r"\w+\\\.\(\?!pooler\\b\)\(\.\*\\\.\)\?\([\w|\\]+\)|[\w.]+|all-linear")
_READ = {
    **{"base_model_name_or_path": words(4096), "revision": maybe(_NAME), "task_type": maybe(_NAME), "r": whole(1, 4096)},
    **{"lora_alpha": real(0, 1e6), "bias": one_of("none", "all", "lora_only"), "modules_to_save": _NAMES},
    **{"use_rslora": truth, "use_dora": truth, "fan_in_fan_out": truth},
}
# Of the Trainer, of the first weights, or of the library.
_OF_TRAINING = ("lora_dropout", "inference_mode", "peft_version", "auto_mapping", "runtime_config", "init_lora_weights")


def add_lora(
    model: TlmModel | PreTrainedModel,
    lora: LoraArguments,
    base: str | os.PathLike,
    revision: str | None = None,
    *,
    classifier: bool = True,
) -> PeftModel:
    """`model` with a LoRA adapter in its body, in place: the adapter and the head of the task are all that is trained.

    The head includes the pooler of BERT and ALBERT: it feeds the classifier alone, and many checkpoints do not have it.
    Seed it with `transformers.set_seed`.

    Args:
        model: a `TlmModel`, or a stock model with a head for a task of any kind.
        base: Hub id or folder of the checkpoint that `model` was loaded from, to which the adapter belongs.
        revision: of that checkpoint.
        classifier: False for pretraining, in which the head learns nothing: it is no part of the adapter.

    Raises:
        ModelError: the body has no linear layer of a name in `lora.lora_target_modules`.
    """
    body = model.base_model_prefix
    wanted = _targets(body_of(model), lora)
    head = [name for name, module in model.named_children() if name not in (body, "mlm_head") and list(module.parameters())]
    head += [POOLER] if getattr(model.base_model, POOLER, None) is not None else []
    config = LoraConfig(
        r=lora.lora_r,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # A factor, which need not be whole.
        lora_dropout=lora.lora_dropout,
        # One expression that holds for the stock classifier too, where the head has layers of the same names.
        target_modules=rf"{body}\.(?!{POOLER}\b)(.*\.)?({'|'.join(map(re.escape, sorted(wanted)))})",
        modules_to_save=head if classifier else None,
        revision=revision,
    )
    # peft takes modules by the ends of their names, and ModernBERT's `head` would be `mlm_head` as well. That head stays
    # as it is: the adapter is for the stock classifier, which has no place for another one.
    mlm_head = model.mlm_head.requires_grad_(False) if isinstance(model, TlmModel) else None
    if mlm_head is not None:
        del model.mlm_head
    adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    if mlm_head is not None:
        model.mlm_head = mlm_head
    base = Path(base).resolve() if Path(base).is_dir() else base
    adapted.peft_config[ADAPTER].base_model_name_or_path = str(base)
    trained, total = trained_parameters(adapted), model.num_parameters()
    logger.info("LoRA trains %s of %s parameters (%.2f%%).", f"{trained:,}", f"{total:,}", 100 * trained / total)
    return adapted


def check_targets(lora: LoraArguments, config: PreTrainedConfig, trust_remote_code: bool = False) -> None:
    """Raise a ModelError if a body with this config lacks the layers that are to be adapted, told without its weights."""
    if lora.lora_target_modules is not None:
        with torch.device("meta"):
            _targets(AutoModel.from_config(config, trust_remote_code=trust_remote_code), lora)


def _targets(body: PreTrainedModel, lora: LoraArguments) -> set[str]:
    """The last names of the linear layers that get an adapter."""
    linear = {
        name.rpartition(".")[2]
        for name, module in body.named_modules()
        if isinstance(module, nn.Linear) and POOLER not in name.split(".")
    }
    wanted = set(lora.lora_target_modules or linear)
    if unknown := wanted - linear:
        raise ModelError(
            f"lora_target_modules: a {body.config.model_type} body has no linear layer "
            f"{', '.join(f'{name:.60}' for name in sorted(unknown)[:5])}. Choose from {', '.join(sorted(linear))}."
        )
    return wanted


def trained_parameters(model: nn.Module) -> int:
    """How many numbers the optimizer changes."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def export_adapter(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    files: dict[str, str] | None = None,
    *,
    task_type: str | None = "SEQ_CLS",
) -> Path:
    """Write the adapter, and the head of the task it has, as a folder for stock classes; the folder appears at once.

    It holds `adapter_config.json`, `adapter_model.safetensors`, `config.json` (the classes) and the tokenizer, and
    `PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, config=config), output_dir)`
    gives the logits of `model`, of other tasks with their own Auto class. One without a head goes on the base as a masked
    LM instead.

    Args:
        files: further text files to put in the folder, name -> content (the card, the results).
        task_type: what peft calls the head's task; None where it has no name for it.

    Raises:
        HfTlmError: the disk cannot be written; an earlier folder there is intact.
    """
    output_dir = Path(output_dir)
    with atomic_directory(output_dir) as folder:
        # The embeddings are the base's; left to itself peft would ask the Hub whether they are.
        model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        config = deepcopy(model.peft_config[ADAPTER])
        assert isinstance(config, LoraConfig)  # as `add_lora` makes it
        # While it is trained, `TlmModel.forward` must get its own arguments; the stock classifier has the usual ones.
        config.task_type, config.inference_mode = task_type if config.modules_to_save else None, True
        config.save_pretrained(str(folder))
        model.config.save_pretrained(folder)
        save_tokenizer(tokenizer, folder, model.config.model_type)
        for name, content in (files or {}).items():
            (folder / name).write_text(content, encoding="utf-8")
    return output_dir


def read_adapter(folder: str | os.PathLike) -> LoraConfig:
    """What a LoRA adapter is, and on what it goes, of the file that `export_adapter` or peft wrote.

    Raises:
        ModelError: there is none, or it is of another kind, or has options that recipes leave as they are.
    """
    path = Path(folder) / ADAPTER_FILE
    plain = LoraConfig()
    usual = json.loads(json.dumps({entry.name: getattr(plain, entry.name) for entry in fields(plain)}, default=str))
    others = {name: one_of(value, None) for name, value in usual.items() if name not in (*_READ, *_OF_TRAINING)}
    others |= {"peft_type": one_of("LORA"), "target_modules": _modules, "init_lora_weights": one_of(True, False, "gaussian")}
    try:
        found = read_fields(path, {**others, **_READ}, ModelError, optional={*others, *_READ} - {"base_model_name_or_path"})
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}. Give the folder of an adapter.") from error
    read: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return LoraConfig(**{name: value for name, value in read.items() if name in _READ or name == "target_modules"})


def _modules(value: Any) -> Any:
    if isinstance(value, str) and not _MODULES.fullmatch(value):
        raise Unfit("names of layers")
    return _NAME(value) if isinstance(value, str) else _NAMES(value)


def base_folder(folder: str | os.PathLike, adapter: LoraConfig, *, trust_remote_code: bool = False) -> str:
    """The folder of the model that the adapter in `folder`, of `read_adapter`, goes on.

    Raises:
        ModelError: it is not there.
        HubError: see `check_named`, `checkpoint_folder`.
    """
    base = str(adapter.base_model_name_or_path)
    check_named(base, folder)
    # A name alone, such as bert-base-uncased, is one of the Hub's older models.
    if find_repo(base, "model") is None and Path(base).name != base and not os.path.isdir(base):
        raise ModelError(
            f"The adapter in {folder} goes on the model {base}, which is not there. Put it back, or name its place in "
            f"{ADAPTER_FILE} as base_model_name_or_path."
        )
    return checkpoint_folder(base, adapter.revision, trust_remote_code=trust_remote_code)


def load_merged(
    folder: str | os.PathLike, auto_class: str, trust_remote_code: bool = False, **options: Any
) -> PreTrainedModel:
    """The stock model of an adapter's base, by the name of its Auto class, with the adapter merged into it.

    Args:
        options: for `from_pretrained` of the base.

    Raises:
        ModelError, HubError: see `read_adapter`, `base_folder`.
    """
    adapter = read_adapter(folder)
    model = getattr(transformers, auto_class).from_pretrained(
        base_folder(folder, adapter, trust_remote_code=trust_remote_code),
        config=AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code),
        ignore_mismatched_sizes=True,
        trust_remote_code=trust_remote_code,
        **options,
    )
    merged = PeftModel.from_pretrained(model, folder, config=adapter).merge_and_unload()
    assert isinstance(merged, PreTrainedModel)  # The base.
    return merged


def load_adapter(model: PeftModel, folder: str | os.PathLike) -> PeftModel:
    """`model`, made by `add_lora` on the same base, with the weights that `export_adapter` wrote to `folder`."""
    with reading_pickles(folder, ModelError):
        weights = load_peft_weights(str(folder), device="cpu")
    set_peft_model_state_dict(model, weights, adapter_name=ADAPTER)
    return model


def export_model(
    model: TrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    files: dict[str, str] | None = None,
) -> Path:
    """`export_adapter` of a model with an adapter, `export_stock` of one without."""
    if isinstance(model, PeftModel):
        return export_adapter(model, tokenizer, output_dir, files)
    return export_stock(model, tokenizer, output_dir, files)
