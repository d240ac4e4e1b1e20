"""Score models of ISS for an `InfluenceScorer`: trained on the task, or loaded from checkpoints."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.data.text_checks import check_known, spread_texts
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.influence import SelectionArguments
from hf_tlm.influence.checkpoint import choose_parameters
from hf_tlm.influence.checks import BY_TEACHER
from hf_tlm.models import TlmModel
from hf_tlm.models.loading import hub_options
from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset import check_subset
from hf_tlm.runs.teachers.ask import digest_teacher, open_teacher, teacher_scores
from hf_tlm.runs.tlm import run_tlm
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.training import ArgumentsError, ModelArguments, ScoreModelArguments
from hf_tlm.training.prepare import source_config
from hf_tlm.training.run_arguments import training_options
from hf_tlm.training.run_folder import RESULTS_FILE, local_files, settings
from hf_tlm.utils.arrow_files import cache_folder
from hf_tlm.utils.json_files import read_object
from hf_tlm.utils.locks import awaited
from hf_tlm.utils.options import check_given

SCRATCH = "scratch"
# Minimal accuracy beyond the majority class, as a share of the validation examples of all other classes.
_MIN_GAIN = 0.1

logger = logging.getLogger(__name__)


def score_models(
    task: Task,
    subset: Subset,
    names: Sequence[str],
    args: ScoreModelArguments,
    model_args: ModelArguments,
    *,
    max_length: int | None = None,
    layer: int = -1,
    parameters: str | None = None,
    projection_dim: int | None = None,
) -> tuple[list[TlmModel], PreTrainedTokenizerBase, Any]:
    """Train or load the score models.

    Args:
        subset: a tokenizer is trained on its texts and the task's training texts.
        names: "scratch", to train one (see `train_score_model`), or folders or Hub ids (with `@revision` if wanted) of
            checkpoints of one model.
        max_length: maximal number of tokens of a text to score; None: as in the training of the model.
        layer, parameters, projection_dim: what gradients will be used, see `InfluenceScorer`; checked before a training.

    Returns:
        The models on this process's device, their tokenizer, and their description for a manifest.

    Raises:
        ArgumentsError: "scratch" among checkpoints, arguments that do not apply to a score model, a `max_length` above that
            of its training, or a checkpoint that lacks one of the two heads, or has a classifier for other labels or another
            tokenizer than the first.
        InfluenceError: the model to be trained does not have the layer or the parameters.
        HubError, ModelError, TokenizerError, ProtocolError: see `TlmModel.from_checkpoint`, `load_tokenizer`, `run_tlm`.
        TaskError: the task is of another kind than classification.
    """
    check_task(task, "Selection by influence", "classification")
    check_subset(subset)
    check_given(ArgumentsError, args=(args, ScoreModelArguments), model_args=(model_args, ModelArguments))
    description: Any
    if list(names) == [SCRATCH]:
        longest = max(args.max_length, args.corpus_max_length or 0)
        if max_length is not None and max_length > longest:
            raise ArgumentsError(
                f"A score model that is trained on texts of up to {longest} tokens does not know later positions; received "
                f"score_max_length {max_length}. Pass --score_max_length {longest} or less, or another --max_length."
            )
        with torch.device("meta"):  # Only the names of its parameters are needed.
            choose_parameters(TlmModel.from_config(source_config(model_args)), layer, parameters, projection_dim)
        folder = train_score_model(task, subset, args, model_args)
        names, description = [str(folder)], _describe_score_model(folder, args, model_args)
        if args.process_index == 0:
            _warn_if_useless(description["validation"]["accuracy"], task)
    elif SCRATCH in names:
        raise ArgumentsError(f"score_model: expected scratch or checkpoints; received both: {', '.join(names)}.")
    else:
        ineffective = [*training_options(args), *([f"teacher {' '.join(args.teacher)}"] if args.taught else [])]
        if args.process_index == 0 and ineffective:
            logger.warning("No score model is trained, so these options have no effect: %s.", ", ".join(ineffective))
        # The last two parts of a path identify a checkpoint without naming folders of this machine.
        description = ["/".join(Path(name).absolute().parts[-2:]) if Path(name).is_dir() else name for name in names]
    options = hub_options(model_args.model_revision, model_args.trust_remote_code, model_args.attn_implementation)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    models = [_load_complete_model(name, task, options) for name in names]
    for model in models:
        nn.Module.to(model, device=args.device, dtype=dtype)
    return models, _load_common_tokenizer(names, task, model_args), description


def select_part(
    task: Task,
    subset: Subset,
    selection: SelectionArguments,
    args: ScoreModelArguments,
    model_args: ModelArguments,
) -> Subset:
    """Return the part of a subset that `selection` keeps, by a score model's influence, a teacher's scores, or neither."""
    scorer = description = scores = None
    if selection.method == "iss":
        models, tokenizer, description = score_models(
            task,
            subset,
            selection.score_model,
            args,
            model_args,
            max_length=selection.score_max_length,
            layer=selection.layer,
            parameters=selection.parameters,
            projection_dim=selection.projection_dim,
        )
        scorer = selection.scorer(models, tokenizer)
    elif selection.method in BY_TEACHER:
        scores = teacher_scores(task, subset, selection.method, args)
    processes = {"process_index": args.process_index, "num_processes": args.world_size}
    return selection.select(task, subset, scorer, scores=scores, score_model=description, **processes)


def _load_common_tokenizer(names: Sequence[str], task: Task, model_args: ModelArguments) -> PreTrainedTokenizerBase:
    """Load the tokenizer given in `model_args`, else the checkpoints' common tokenizer, or raise an ArgumentsError."""
    tokenizer_name, trust = model_args.tokenizer_name, model_args.trust_remote_code
    # The revision is of the checkpoints' repository; a tokenizer from another repository has its own.
    revision = None if tokenizer_name else model_args.model_revision
    first, *others = [tokenizer_name] if tokenizer_name else names
    tokenizer = load_tokenizer(first, revision=revision, trust_remote_code=trust)
    check_known(tokenizer, spread_texts(task.train), first)
    for name in others:
        if load_tokenizer(name, revision=revision, trust_remote_code=trust).get_vocab() != tokenizer.get_vocab():
            raise ArgumentsError(
                f"The tokenizers of {first} and {name} have different tokens. Scores are averaged over checkpoints of one "
                "run: pass those, or --tokenizer_name if all of them use one tokenizer."
            )
    return tokenizer


def _warn_if_useless(accuracy: float, task: Task) -> None:
    """Log a warning if the model has hardly learned the task: its gradients then carry little information on the labels."""
    largest = max(Counter(task.validation["label"][:]).values()) / len(task.validation)
    if accuracy - largest < _MIN_GAIN * (1 - largest):
        logger.warning(
            "The score model classifies %.1f%% of the validation examples correctly, not or hardly more than the %.1f%% "
            "of their largest class: its gradients say little about the labels. Train it longer (--max_steps or "
            "--num_train_epochs) or with another --learning_rate, or pass a trained model as --score_model.",
            100 * accuracy,
            100 * largest,
        )


def _load_complete_model(name: str, task: Task, options: Mapping[str, Any]) -> TlmModel:
    """Load a checkpoint that has both heads, or raise an ArgumentsError: gradients from random heads would be noise."""
    model = TlmModel.from_checkpoint(name, id2label=task.id2label, **options)
    folder = checkpoint_folder(name, options["revision"], trust_remote_code=options["trust_remote_code"])
    labels = AutoConfig.from_pretrained(folder, trust_remote_code=options["trust_remote_code"]).id2label
    unnamed = all(label == f"LABEL_{index}" for index, label in labels.items())
    lacks_classifier = model.classifier_is_new or (labels != task.id2label and not unnamed)
    heads = (
        (f"a classifier for {', '.join(task.id2label.values())}", lacks_classifier),
        ("a masked-LM head", model.mlm_head_is_new),
    )
    if lacking := [head for head, is_lacking in heads if is_lacking]:
        raise ArgumentsError(
            f"The score model {name} lacks {' and '.join(lacking)}. Influence needs the gradients of both losses: pass a "
            f"model that `hf-tlm train` trained on this task, or --score_model scratch --model_name_or_path {name}, which "
            "trains the heads."
        )
    return model


def train_score_model(task: Task, subset: Subset, args: ScoreModelArguments, model_args: ModelArguments) -> Path:
    """Train a score model on the task data alone with L_mlm and L_task (ISS, section 3.2), and return its folder.

    The folder is in the cache of `datasets`. A model that was trained with the same task, subset, settings and local files
    is reused; an interrupted training resumes.

    Raises:
        ArgumentsError: an objective other than mlm, adapters, or several seeds.
    """
    check_task(task)
    check_subset(subset)
    check_given(ArgumentsError, args=(args, ScoreModelArguments), model_args=(model_args, ModelArguments))
    if args.objective != "mlm" or model_args.use_peft or len(args.run_seeds) > 1:
        raise ArgumentsError(
            "A score model is one complete model trained with masked language modelling; received objective "
            f"{args.objective}, use_peft {model_args.use_peft}, seeds {args.run_seeds}. For other settings, train a model "
            "with `hf-tlm train` and pass its folder as --score_model."
        )
    details: dict[str, Any] = {
        "task": task.fingerprint,
        "subset": subset.manifest,
        "arguments": settings(args),
        "seed": args.run_seeds,
        "model": model_args.with_objective_defaults("mlm").__dict__,
    }
    details["files"] = local_files(details["model"])
    if (content := digest_teacher(open_teacher(task, args))) is not None:
        details["teacher_content"] = content
    digest = hashlib.sha256(json.dumps(details, sort_keys=True, default=str).encode()).hexdigest()[:16]
    args, folder = copy.copy(args), cache_folder() / f"score_model-{digest}"
    args.output_dir = str(folder)
    args.push_to_hub = False  # The selected subset is published instead.
    splits = {name: rows for name, rows in task.splits.items() if name != "test"}
    # Concurrent selections, such as of two fractions, need the same model: one trains it, the others wait and load it.
    with awaited(folder) if args.process_index == 0 else nullcontext():
        run_tlm(replace(task, splits=splits), subset, args, model_args)
    return folder


def _describe_score_model(folder: Path, args: ScoreModelArguments, model_args: ModelArguments) -> dict[str, Any]:
    """Return a score model's description for a manifest: main settings, validation scores, and a digest of all settings."""
    names = ("rho2", "mlm_probability", "learning_rate", "warmup_steps", "num_train_epochs", "max_steps", "max_length")
    source = model_args.model_name_or_path or model_args.model_config
    description = {"model": source if isinstance(source, dict) else Path(source).name}
    description |= {name: getattr(args, name) for name in names}
    description |= {name: value for name in ("mlm_probability_end", "whole_word_mask") if (value := getattr(args, name))}
    validation = read_object(folder / RESULTS_FILE)["seeds"][0]["validation"]
    return description | {"seed": args.run_seeds[0], "validation": validation, "digest": folder.name.rpartition("-")[2]}
