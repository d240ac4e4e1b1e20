"""Where the parts of a `GeneratorDiscriminator` are in an exported folder or a checkpoint, and how they are read."""

from __future__ import annotations

import logging

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining, PreTrainedModel
from transformers.utils import cached_file

from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models.loading import DTYPE, head_is_new, new_weights, reading
from hf_tlm.models.tlm import MLM_SUBFOLDER

logger = logging.getLogger(__name__)

# Folders inside an exported model (see `hf_tlm.models.export`), the files of heads that no stock class has, and that which
# says how texts are corrupted.
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
RTD_HEAD_FILE, CLM_HEADS_FILE = "rtd_head.safetensors", "clm_heads.safetensors"
CORRUPTION_FILE = "corruption.json"


def load_auxiliary(name_or_path: str | None, main: str | None = None, **options) -> PreTrainedModel:
    """A masked LM in float32 from a checkpoint; name_or_path None: the folder `generator` of the checkpoint `main`.

    Args:
        options: of `from_pretrained`; `revision` is that of `main`.

    Raises:
        HubError: see `checkpoint_folder`.
        ModelError: it cannot be loaded, or lacks weights of its body.
    """
    trusted, revision = options.get("trust_remote_code", False), options.pop("revision", None)
    name, place, advice = name_or_path, {}, ""
    if name is None:
        assert main is not None  # the checkpoint that it is in
        name, place = f"the folder {GENERATOR!r} of {main}", {"subfolder": GENERATOR, "revision": revision}
        advice = " Give auxiliary_name_or_path, the generator it was trained with."
        folder = checkpoint_folder(main, revision, trust_remote_code=trusted)
    else:
        folder = checkpoint_folder(name, trust_remote_code=trusted)
    with reading(f"an auxiliary model from {name}", advice):
        options |= {"output_loading_info": True, "dtype": DTYPE}
        model, info = AutoModelForMaskedLM.from_pretrained(folder, **place, **options)
    if head_is_new(model, new_weights(model, info, name)):
        logger.warning("%s has no masked-LM head: a new one begins at random.", name)
    return model


def rtd_head_state(name_or_path: str, options: dict) -> dict[str, torch.Tensor] | None:
    """The weights of a checkpoint's head for replaced tokens, in its folder `discriminator` or at its top; or None."""
    for folder in (DISCRIMINATOR, ""):
        if not _there(name_or_path, folder, options):
            continue
        if AutoConfig.from_pretrained(name_or_path, subfolder=folder, **options).model_type == "electra":
            stock, found = AutoModelForPreTraining.from_pretrained(
                name_or_path, subfolder=folder, output_loading_info=True, **options
            )
            if not any(name.startswith("discriminator_predictions.") for name in found["missing_keys"]):
                return stock.discriminator_predictions.state_dict()
        elif file := _there(name_or_path, folder, options, RTD_HEAD_FILE):
            return load_file(file)
    return None


def clm_heads_state(name_or_path: str, options: dict) -> dict[str, torch.Tensor] | None:
    """The weights of a checkpoint's heads for corrective language modelling; or None.

    Those of a COCO-LM body are in its folder `mlm` or at its top, those of others beside the body in `discriminator`.
    """
    if file := _there(name_or_path, DISCRIMINATOR, options, CLM_HEADS_FILE):
        return load_file(file)
    for folder in (MLM_SUBFOLDER, ""):
        if not _there(name_or_path, folder, options):
            continue
        config = AutoConfig.from_pretrained(name_or_path, subfolder=folder, **options)
        if config.model_type != "cocolm" or not config.copy_head or config.lm_transform:
            continue
        stock, found = AutoModelForMaskedLM.from_pretrained(
            name_or_path, subfolder=folder, output_loading_info=True, **options
        )
        if not any(name.startswith(("lm_head.", "copy_head.")) for name in found["missing_keys"]):
            return {name: value for name, value in stock.state_dict().items() if not name.startswith("cocolm.")}
    return None


def _there(name_or_path: str, folder: str, options: dict, file: str = "config.json") -> str | None:
    """The path of a checkpoint's file, if it has it."""
    missing_is_fine = {"_raise_exceptions_for_missing_entries": False, "revision": options["revision"]}
    return cached_file(name_or_path, file, subfolder=folder, **missing_is_fine)
