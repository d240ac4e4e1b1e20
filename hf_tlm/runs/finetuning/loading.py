"""A pretrained checkpoint with a head for a task, and a fine-tuned folder again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.data.text_checks import check_known, spread_texts
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models import FAMILIES, ModelError, add_lora
from hf_tlm.models.adapters import ADAPTER_FILE, check_targets, load_merged
from hf_tlm.models.cpu_attention import use_cpu_kernels
from hf_tlm.models.loading import check_fit, hub_options, load_stock, new_weights, reading
from hf_tlm.runs.arguments import CheckpointArguments
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import kind_module
from hf_tlm.runs.finetuning.tagging import CrfTagger
from hf_tlm.tasks import Task

logger = logging.getLogger(__name__)


def load_pretrained(
    task: Task, checkpoint: CheckpointArguments, max_length: int
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """The config of a checkpoint, with the classes of a task, and its tokenizer.

    Raises:
        ModelError: it cannot be loaded, or has fewer positions than `max_length`, or fewer tokens than the tokenizer, or
            none of the layers that are to be adapted.
        HubError, TokenizerError: see `checkpoint_folder`, `load_tokenizer`, `check_known`.
    """
    name, source = checkpoint.model_name_or_path, checkpoint.tokenizer_source
    folder = _folder(checkpoint)
    with reading(f"a config from {name!r}"):
        config = AutoConfig.from_pretrained(folder, **_labels(task), **_options(checkpoint))
    tokenizer = load_tokenizer(**source, masking=False)
    check_fit(config, name, max_length=max_length, tokenizer=tokenizer, tokenizer_name=source["name_or_path"])
    check_known(tokenizer, spread_texts(task.train), source["name_or_path"])
    if checkpoint.use_peft:
        check_targets(checkpoint, config, checkpoint.trust_remote_code)
    set_token_types(tokenizer, config)
    tokenizer.model_max_length = max_length
    return config, tokenizer


def load_model(
    task: Task, checkpoint: CheckpointArguments, config: PreTrainedConfig, args: FinetuneArguments
) -> PreTrainedModel | nn.Module:
    """Load the stock model of the task's kind with the weights of a checkpoint.

    What its head lacks begins at random, under the current seed (`transformers.set_seed`). A head of other sizes is
    replaced. Its weights are float32. With `use_peft` it has an adapter.

    Raises:
        ModelError: it cannot be loaded, or lacks weights of its body.
    """
    kind = kind_module(task.spec.kind)
    name = checkpoint.model_name_or_path
    with reading(f"a model from {name!r}"):
        auto_class = getattr(transformers, kind.AUTO_CLASS)
        model, info = load_stock(auto_class, _folder(checkpoint), config, **_options(checkpoint))
    new = new_weights(model, info, name)
    logger.info("%s: these weights begin at random: %s.", name, ", ".join(sorted(new)) or "none")
    if config.model_type in FAMILIES:
        use_cpu_kernels(model)
    wrap = getattr(kind, "wrap", None)
    if wrap is not None:
        model = wrap(model, args)
    if checkpoint.use_peft:
        return add_lora(model, checkpoint, name, checkpoint.model_revision)
    return model


def load_finetuned(
    folder: Path, kind: str, args: FinetuneArguments, trust_remote_code: bool = False
) -> PreTrainedModel | CrfTagger:
    """The model that fine-tuning wrote to a folder, as of `load_finished`, with what its kind has around it."""
    module = kind_module(kind)
    model = load_finished(folder, module.AUTO_CLASS, trust_remote_code)
    restore = getattr(module, "restore", None)
    return model if restore is None else restore(model, folder, args)


def load_finished(folder: Path, auto_class: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """The stock model of a finished folder, by the name of its Auto class; an adapter is merged into its base.

    Raises:
        ModelError: it, or the base of an adapter, cannot be loaded, or lacks weights.
    """
    with reading(f"the model in {folder}"):
        if (folder / ADAPTER_FILE).is_file():
            return load_merged(folder, auto_class, trust_remote_code)
        model, info = getattr(transformers, auto_class).from_pretrained(
            folder, trust_remote_code=trust_remote_code, output_loading_info=True
        )
        if missing := sorted(info["missing_keys"]):
            raise ModelError(
                f"{folder} lacks weights ({', '.join(missing[:3])}), which would be random. Give a finished model."
            )
        return model


def set_token_types(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Make a tokenizer give token types where the body has embeddings of two or more, and none where it has not.

    That is for good: tokenizers do not know bodies. Those of ALBERT and XLNet leave the types out (in transformers 5), and a
    trained WordPiece has them for all.
    """
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    if config.model_type == "xlnet" or getattr(config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    elif config.model_type not in FAMILIES:
        return
    # The second is what `save_pretrained` writes.
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


def _folder(checkpoint: CheckpointArguments) -> str:
    trust = checkpoint.trust_remote_code
    return checkpoint_folder(checkpoint.model_name_or_path, checkpoint.model_revision, trust_remote_code=trust)


def _options(checkpoint: CheckpointArguments) -> dict[str, Any]:
    return hub_options(checkpoint.model_revision, checkpoint.trust_remote_code, checkpoint.attn_implementation)


def _labels(task: Task) -> dict[str, Any]:
    """What the config of a model for the task says of its classes."""
    if task.spec.kind == "regression":
        return {"num_labels": 1, "problem_type": "regression"}
    if task.spec.kind == "classification":
        return {"id2label": task.id2label, "label2id": task.label2id, "problem_type": "single_label_classification"}
    if task.spec.kind == "tagging":
        return {"id2label": task.id2label, "label2id": task.label2id}
    # A start and an end, and nothing of the classes of a checkpoint that was a classifier. Multiple choice reads no number.
    return {"id2label": {0: "LABEL_0", 1: "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "problem_type": None}
