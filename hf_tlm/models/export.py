"""Export of trained models as stock checkpoints, which load without hf_tlm, and loading of these exports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from hf_tlm.errors import ModelError
from hf_tlm.models.base import TrainedModel, body_of, save_tokenizer
from hf_tlm.models.generator_discriminator import GeneratorDiscriminator
from hf_tlm.models.generator_discriminator_parts import (
    CLM_HEADS_FILE,
    CORRUPTION_FILE,
    DISCRIMINATOR,
    GENERATOR,
    RTD_HEAD_FILE,
)
from hf_tlm.models.tlm import MLM_SUBFOLDER, TlmModel
from hf_tlm.utils.files import atomic_directory, check_writable
from hf_tlm.utils.json_files import one_of, read_fields, real, truth
from hf_tlm.utils.options import check_given, named

# The fields of corruption.json: arguments of `GeneratorDiscriminator`.
_CORRUPTION_FIELDS = {
    **{"heads": one_of("rtd", "rtd_linear", "clm"), "temperature": real(0, 1e6), "apart": truth, "frozen": truth},
    "share_embedding_norm": truth,
    **{"replacements": one_of("sampled", "random"), "scl_projection": one_of("none", "mlp")},
}


def export_stock(
    model: TrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    files: dict[str, str] | None = None,
    *,
    classifier: bool = True,
) -> Path:
    """Write stock checkpoints of a model: config, safetensors weights and tokenizer; the folder appears atomically.

    For a `TlmModel`, `output_dir` holds the sequence classifier and `output_dir/mlm` the masked LM of the same body. For a
    `GeneratorDiscriminator`, it holds the main model as a classifier, `discriminator` the main model as stock
    `ElectraForPreTraining` (for bodies other than ELECTRA the body alone, with the head in `rtd_head.safetensors`), and
    `generator` the auxiliary model as a masked LM. A COCO-LM body that corrects tokens is in `mlm` instead, as
    `CocoLmForMaskedLM`; for other bodies the correcting heads are in `clm_heads.safetensors`. All checkpoints load with the
    Auto classes without missing or unexpected keys. `corruption.json` tells `load_exported` how texts are corrupted.

    Args:
        files: further text files to put in the folder, name -> content (the card, the results).
        classifier: False for a model that has learned no task: `output_dir` itself then holds what else would be in `mlm` or
            `discriminator`.

    Raises:
        HfTlmError: the disk cannot be written, and an existing folder stays intact; or an argument has the wrong type.
    """
    if not isinstance(model, TrainedModel):
        raise ModelError(
            f"model: expected a TlmModel or GeneratorDiscriminator; received a {type(model).__name__}. Save a stock model "
            "with its save_pretrained, and one with an adapter with export_model."
        )
    check_given(ModelError, tokenizer=(tokenizer, PreTrainedTokenizerBase))
    output_dir = Path(output_dir)
    composite = model if isinstance(model, GeneratorDiscriminator) else None
    exports = _build_tlm_exports(model, classifier) if composite is None else _build_composite_exports(composite, classifier)
    with atomic_directory(output_dir) as folder:
        for index, (name, stock) in enumerate(exports):
            path = folder / name if index else folder
            stock.save_pretrained(path)
            save_tokenizer(tokenizer, path, stock.config.model_type)
            if composite is not None and name == DISCRIMINATOR and not hasattr(stock, "discriminator_predictions"):
                heads, file = _get_heads(composite)
                # Tied weights are views of one tensor: each gets a copy.
                save_file({key: value.clone() for key, value in _cpu_state(heads).items()}, path / file)
        if composite is not None:
            (folder / CORRUPTION_FILE).write_text(
                json.dumps(_corruption_arguments(composite), indent=2) + "\n", encoding="utf-8"
            )
        for name, content in (files or {}).items():
            (folder / name).write_text(content, encoding="utf-8")
    return output_dir


def check_replaceable(output_dir: str | os.PathLike, released: str | os.PathLike) -> None:
    """Check that a folder may be replaced by a converted model: it is missing, is empty, or holds a model.

    Raises:
        ModelError: the folder is that of the released model, or holds anything other than a model (with its masked LM in
            `mlm`), which would be deleted.
        ArgumentsError: the folder cannot be written, see `check_writable`.
    """
    output_dir = Path(output_dir)
    if Path(released).resolve() == output_dir.resolve():
        raise ModelError(f"The converted model would replace the released one in {released}. Choose another output folder.")
    check_writable(output_dir, f"Cannot write a model to {output_dir}", replaced=True)
    if not output_dir.exists():
        return
    files = {path.name: path for path in output_dir.iterdir()}
    other_folders = sorted(name for name, path in files.items() if path.is_dir() and name != MLM_SUBFOLDER)
    if other_folders or (files and "config.json" not in files):
        raise ModelError(
            f"{output_dir} is not empty and contains other files than a converted model "
            f"({', '.join((other_folders or sorted(files))[:3])}). Choose another folder, or empty this one."
        )


def load_exported(
    folder: str | os.PathLike, *, id2label: dict[int, str], attn_implementation: str | None = None
) -> TrainedModel:
    """Load a model that `export_stock` wrote to a local folder, for further training; it corrupts texts as before.

    Only the head of `scl_projection`, which is not exported, is initialised at random.

    Raises:
        ModelError: the folder has an auxiliary model, but no readable `corruption.json`; see also `from_checkpoint` of both
            classes.
    """
    folder = Path(named("folder", folder, ModelError, needed=True, what="a folder"))
    if not (folder / GENERATOR / "config.json").is_file():
        return TlmModel.from_checkpoint(str(folder), id2label=id2label, attn_implementation=attn_implementation)
    try:
        corruption = read_fields(folder / CORRUPTION_FILE, _CORRUPTION_FIELDS, ModelError, optional=_CORRUPTION_FIELDS)
    except OSError as error:
        raise ModelError(
            f"Cannot read {folder / CORRUPTION_FILE}, which says how texts are corrupted: {error.strerror}. Load a folder "
            "without this file with GeneratorDiscriminator.from_checkpoint, which has options for the corruption."
        ) from error
    return GeneratorDiscriminator.from_checkpoint(
        str(folder), id2label=id2label, attn_implementation=attn_implementation, **corruption
    )


def _corruption_arguments(model: GeneratorDiscriminator) -> dict[str, Any]:
    """Return the arguments of `GeneratorDiscriminator` that `model` was built with, for corruption.json."""
    return {
        "heads": "clm" if model.rtd_head is None else "rtd" if model.rtd_head.dense is not None else "rtd_linear",
        "temperature": model.temperature,
        "apart": model.apart,
        "replacements": model.replacements,
        "frozen": model.auxiliary.frozen,
        "scl_projection": model.scl_projection,
        "share_embedding_norm": model.share_embedding_norm,
    }


def _cpu_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}


def _get_heads(model: GeneratorDiscriminator) -> tuple[torch.nn.Module, str]:
    """Return the heads of the main model that no stock class has, and the name of their file."""
    if model.rtd_head is not None:
        return model.rtd_head, RTD_HEAD_FILE
    assert model.clm_heads is not None
    return model.clm_heads, CLM_HEADS_FILE


def _build_stock(
    auto_class: type[_BaseAutoModelClass], config: PreTrainedConfig, state: dict[str, torch.Tensor], dtype: torch.dtype
) -> PreTrainedModel:
    stock = auto_class.from_config(config)
    # Each class loads its own entries only (a masked LM has no pooler); strict, so that none can be missing.
    stock.load_state_dict({name: state[name] for name in stock.state_dict()}, strict=True)
    return stock.to(dtype)


def _build_tlm_exports(model: TrainedModel, classifier: bool) -> Iterator[tuple[str, PreTrainedModel]]:
    state = _cpu_state(model)
    if classifier:
        yield "classifier", _build_stock(AutoModelForSequenceClassification, model.config, state, model.dtype)
    lm_state = {name.removeprefix("mlm_head."): tensor for name, tensor in state.items()}
    yield MLM_SUBFOLDER, _build_stock(AutoModelForMaskedLM, model.config, lm_state, model.dtype)


def _build_composite_exports(model: GeneratorDiscriminator, classifier: bool) -> Iterator[tuple[str, PreTrainedModel]]:
    config, state = model.main.config, _cpu_state(model.main)
    if classifier:
        yield "classifier", _build_stock(AutoModelForSequenceClassification, config, state, model.dtype)
    if model.clm_heads is not None and config.model_type == "cocolm":
        yield MLM_SUBFOLDER, _build_stock(AutoModelForMaskedLM, config, state | _cpu_state(model.clm_heads), model.dtype)
    elif model.rtd_head is not None and model.rtd_head.dense is not None and config.model_type == "electra":
        state |= {f"discriminator_predictions.{name}": tensor for name, tensor in _cpu_state(model.rtd_head).items()}
        yield DISCRIMINATOR, _build_stock(AutoModelForPreTraining, config, state, model.dtype)
    else:
        yield DISCRIMINATOR, body_of(model.main)
    auxiliary = {name.removeprefix("mlm_head."): tensor for name, tensor in _cpu_state(model.auxiliary).items()}
    yield GENERATOR, _build_stock(AutoModelForMaskedLM, model.auxiliary.config, auxiliary, model.dtype)
