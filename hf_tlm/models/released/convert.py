"""Checkpoints that the papers released, converted: of which kind one is, and what its classes are called."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hf_tlm.errors import ModelError
from hf_tlm.hub.cards import converted_card
from hf_tlm.hub.repo import TOKENIZER_FILES, local_folder
from hf_tlm.models.coco_lm.modeling_coco_lm import CocoLmForMaskedLM
from hf_tlm.models.loading import SAFE_WEIGHTS, WEIGHTS
from hf_tlm.models.released.coco_lm import CONFIG, Released, convert_released
from hf_tlm.models.released.tlm import ReleasedTlm, convert_released_tlm
from hf_tlm.tasks.registry import registered_task, released_length
from hf_tlm.tasks.spec import TaskSpec
from hf_tlm.utils.files import atomic_write

FILES = [*TOKENIZER_FILES, WEIGHTS, SAFE_WEIGHTS]
RELEASED_NAME = re.compile(r"tlm-(.+)-(?:small|medium|large)-scale")


def convert_legacy(
    checkpoint: str,
    output_dir: str | os.PathLike,
    *,
    task: str | None = None,
    label_names: Sequence[str] | None = None,
    tokenizer_name: str | None = None,
) -> Released | ReleasedTlm:
    """Convert a checkpoint of the TLM paper (`convert_released_tlm`) or of COCO-LM (`convert_released`), by its config.json.

    Args:
        checkpoint: its folder, or its Hub id with `@revision` if wanted; its weights are pickled, and read as tensors only.
        task: of a TLM checkpoint, the registered task whose classes it tells apart, by our name or that of the release.
            None: the one in a name such as `tlm-sciie-small-scale`, if there is one.
        label_names: its classes in the order of their indices, instead of the task's.

    The release numbers the classes and does not name them: the registry's names are taken in alphabetical order.

    Raises:
        HubError: the repository cannot be had.
        ModelError: the task is not registered, options of TLM for a COCO-LM checkpoint, or see the two functions.
    """
    folder = local_folder(checkpoint, "model", allow_patterns=FILES, allow_pickle=True)
    if not _is_bert(folder):
        options = {"task": task, "label_names": label_names, "tokenizer_name": tokenizer_name}
        if given := [name for name, value in options.items() if value is not None]:
            raise ModelError(
                f"{', '.join(given)}: for checkpoints of TLM, whose {CONFIG} says model_type bert. {checkpoint} is read as "
                "COCO-LM's, which has a tokenizer and no classes. Leave them out."
            )
        return _with_card(convert_released(folder, output_dir), checkpoint, output_dir, None)
    spec = _task(checkpoint, task)
    if label_names is None:
        if task is not None and spec is None:
            raise ModelError(f"No registered task {task!r}, whose classes the checkpoint could have. Give --label_names.")
        label_names = spec.classes if spec else None
    released = convert_released_tlm(folder, output_dir, label_names=label_names, tokenizer_name=tokenizer_name)
    classes = released.model.config.id2label or {}
    return _with_card(released, checkpoint, output_dir, list(classes.values()))


def legacy_length(checkpoint: str, task: str | None = None) -> int | None:
    """Tokens after which the texts of a TLM checkpoint's task were cut; None where its task is not known.

    Args:
        checkpoint, task: as of `convert_legacy`.
    """
    spec = _task(checkpoint, task)
    return None if spec is None else released_length(spec.name)


def _with_card(
    released: Released | ReleasedTlm, checkpoint: str, output_dir: str | os.PathLike, classes: list[str] | None
) -> Released | ReleasedTlm:
    model = released.model
    fills_masks = isinstance(model, CocoLmForMaskedLM)
    card = converted_card(checkpoint, model.num_parameters(), released.left_out, classes=classes, fills_masks=fills_masks)
    atomic_write(Path(output_dir) / "README.md", card)
    return released


def _is_bert(folder: Path) -> bool:
    try:
        return json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type") == "bert"
    except (OSError, ValueError, AttributeError):
        return False  # The reader of COCO-LM's says what is wrong with the file.


def _task(checkpoint: str, task: str | None) -> TaskSpec | None:
    if task is not None:
        return registered_task(task)
    named = RELEASED_NAME.fullmatch(Path(checkpoint.partition("@")[0]).name)
    return registered_task(named[1]) if named else None
