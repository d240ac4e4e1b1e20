"""Score models of ISS: trained on the task, or any checkpoints, ready for an `InfluenceScorer`."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import config
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.evaluation.protocol import run_tlm
from hf_tlm.models import TlmModel
from hf_tlm.retrieval import Subset
from hf_tlm.tasks import Task
from hf_tlm.training import ArgumentsError, ModelArguments, ScoreModelArguments
from hf_tlm.training.claim import settings

SCRATCH = "scratch"


def score_models(
    task: Task, subset: Subset, names: Sequence[str], args: ScoreModelArguments, model_args: ModelArguments
) -> tuple[list[TlmModel], PreTrainedTokenizerBase, Any]:
    """The score models on this process's device, their tokenizer, and what a manifest says of them.

    Args:
        subset: with the task's training texts, what a tokenizer is trained on.
        names: "scratch", to train one (see `train_score_model`), or folders or Hub ids (with `@revision` if wanted) of
            checkpoints of one model.

    Raises:
        ArgumentsError: "scratch" among checkpoints, or arguments that a score model cannot honour.
        HubError, ModelError, TokenizerError, ProtocolError: see `TlmModel.from_checkpoint`, `load_tokenizer`, `run_tlm`.
        TaskError: the task is of another kind than classification.
    """
    task.check_kind("Selection by influence", "classification")
    if list(names) == [SCRATCH]:
        folder = train_score_model(task, subset, args, model_args)
        names, described = [str(folder)], _described(folder, args, model_args)
    elif SCRATCH in names:
        raise ArgumentsError(f"score_model is scratch, or checkpoints; received both: {', '.join(names)}.")
    else:
        # Enough to recognise them by, and nothing of the machine.
        described = ["/".join(Path(name).absolute().parts[-2:]) if Path(name).is_dir() else name for name in names]
    options = {
        "revision": model_args.model_revision,
        "trust_remote_code": model_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
    }
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    models = [
        TlmModel.from_checkpoint(name, id2label=task.id2label, **options).to(device=args.device, dtype=dtype)
        for name in names
    ]
    # The revision is the checkpoints': another repository has its own.
    revision = None if model_args.tokenizer_name else model_args.model_revision
    tokenizer = load_tokenizer(
        model_args.tokenizer_name or names[0], revision=revision, trust_remote_code=model_args.trust_remote_code
    )
    return models, tokenizer, described


def train_score_model(task: Task, subset: Subset, args: ScoreModelArguments, model_args: ModelArguments) -> Path:
    """The folder of a model trained on the task alone with L_mlm and L_task (ISS, section 3.2), in the cache of `datasets`.

    One that was trained with the same task, subset and settings is found again; an interrupted training continues.

    Raises:
        ArgumentsError: an objective other than mlm, adapters, or several seeds.
    """
    if args.objective != "mlm" or model_args.use_peft or len(args.run_seeds) > 1:
        raise ArgumentsError(
            "A score model is one whole model trained with masked language modelling; received objective "
            f"{args.objective}, use_peft {model_args.use_peft}, seeds {args.run_seeds}. For others train one with "
            "recipes/train_tlm.py and give its folder as --score_model."
        )
    details = {
        "task": task.fingerprint,
        "subset": subset.manifest,
        "arguments": settings(args),
        "seed": args.run_seeds,
        "model": model_args.settled("mlm").__dict__,
    }
    digest = hashlib.sha256(json.dumps(details, sort_keys=True, default=str).encode()).hexdigest()[:16]
    args = copy.copy(args)
    args.output_dir = str(Path(config.HF_DATASETS_CACHE) / "hf_tlm" / f"score_model-{digest}")
    args.push_to_hub = False  # The smaller subset is what is published.
    splits = {name: rows for name, rows in task.splits.items() if name != "test"}
    run_tlm(replace(task, splits=splits), subset, args, model_args)
    return Path(args.output_dir)


def _described(folder: Path, args: ScoreModelArguments, model_args: ModelArguments) -> dict[str, Any]:
    """What a reader of a manifest asks for first, and a digest of all settings."""
    names = ("rho2", "mlm_probability", "learning_rate", "num_train_epochs", "max_steps", "max_length", "seed")
    start = model_args.model_name_or_path or model_args.model_config
    start = {"model": start if isinstance(start, dict) else Path(start).name}
    return start | {name: getattr(args, name) for name in names} | {"digest": folder.name.rpartition("-")[2]}
