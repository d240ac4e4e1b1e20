"""A scorer in a folder, for processes and machines that have neither its models nor the task."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from hf_tlm.data import load_tokenizer
from hf_tlm.errors import InfluenceError
from hf_tlm.influence.score_files import GRADIENTS_FOLDER
from hf_tlm.influence.scorer import InfluenceScorer
from hf_tlm.models import TlmModel, export_stock
from hf_tlm.utils.files import atomic_directory, sha256

SCORER_FILE = "scorer.json"


def save_scorer(scorer: InfluenceScorer, folder: str | os.PathLike, *, gradients: bool = True) -> None:
    """Write models, tokenizer and settings, for `load_scorer`.

    Args:
        gradients: those of the task too, which the scorer then has to have; False leaves them to be fitted or loaded.

    Raises:
        InfluenceError: there are no task gradients.
        HfTlmError: the folder cannot be written.
    """
    with atomic_directory(folder) as work:
        for number, model in enumerate(scorer.models):
            export_stock(model, scorer.tokenizer, work / f"model-{number}")
        task = None
        if gradients:
            scorer.save(work / GRADIENTS_FOLDER)
            task = [sha256(path) for path in sorted((work / GRADIENTS_FOLDER).glob("*.safetensors"))]
        model = scorer.models[0]
        details = {
            "models": len(scorer.models),
            "id2label": model.config.id2label,
            "attn_implementation": model.config._attn_implementation,
            "dtype": str(model.dtype).removeprefix("torch."),
            "batch_size": scorer.batch_size,
            "settings": scorer.settings,
            "fingerprint": scorer.fingerprint,
            "task": task,
        }
        (work / SCORER_FILE).write_text(json.dumps(details, indent=2) + "\n", encoding="utf-8")


def load_scorer(folder: str | os.PathLike, device: str | torch.device = "cpu") -> InfluenceScorer:
    """The scorer that `save_scorer` wrote, whose scores are the same.

    Raises:
        InfluenceError: there is none, or its models are not those that were saved.
        ModelError, TokenizerError: see `TlmModel.from_checkpoint` and `load_tokenizer`.
    """
    folder, details = Path(folder), describe_scorer(folder)
    id2label = {int(label): name for label, name in details["id2label"].items()}
    models = [
        # The wrapper that transformers has around torch's method hides that it is one.
        TlmModel.from_checkpoint(  # type: ignore[call-arg]
            str(folder / f"model-{number}"), id2label=id2label, attn_implementation=details["attn_implementation"]
        ).to(device=device, dtype=getattr(torch, details["dtype"]))
        for number in range(details["models"])
    ]
    settings = dict(details["settings"])
    parameters = ",".join(settings.pop("parameters"))
    tokenizer = load_tokenizer(str(folder / "model-0"))
    scorer = InfluenceScorer(models, tokenizer, parameters=parameters, batch_size=details["batch_size"], **settings)
    if scorer.fingerprint != details["fingerprint"]:
        raise InfluenceError(
            f"The scorer in {folder} is not the one that was saved there: its files are damaged, or this version of "
            "transformers reads them otherwise. Save it again, with the versions that load it."
        )
    if details["task"] is not None:
        scorer.load(folder / GRADIENTS_FOLDER)
    return scorer


def describe_scorer(folder: Path) -> dict:
    """What `save_scorer` wrote beside models and gradients; an InfluenceError where there is nothing."""
    try:
        return json.loads((folder / SCORER_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise InfluenceError(f"{folder} holds no scorer: {error}. Write one with save_scorer.") from error
