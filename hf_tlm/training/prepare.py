"""Preparation of a run before its first step: checks, tokenizer, tokenised data, and the initial model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from hf_tlm.data import cached_wordpiece, load_tokenizer, tokenize
from hf_tlm.data.masking import word_continuations
from hf_tlm.data.text_checks import check_known, spread_texts, warn_of_cut
from hf_tlm.errors import ArgumentsError
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models import (
    GeneratorDiscriminator,
    TlmModel,
    TrainedModel,
    add_lora,
    build_config,
    generator_config,
    read_config,
)
from hf_tlm.models.adapters import check_targets
from hf_tlm.models.families import longest_input
from hf_tlm.models.initialization import scale_to_width
from hf_tlm.models.linear_start import LabelledTexts, check_linear_start
from hf_tlm.models.loading import check_fit, hub_options, reading
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task, columns_of_texts
from hf_tlm.training.arguments import TlmArguments
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.model_arguments import ModelArguments
from hf_tlm.training.optimizers import check_adapted
from hf_tlm.training.run_arguments import RunArguments, check_applicable, check_together, other_stage_options
from hf_tlm.training.stages import Initialization, StageData, check_stage_2, with_initialization, with_task_defaults
from hf_tlm.training.teacher import Teacher
from hf_tlm.utils.options import check_given
from hf_tlm.utils.process import uses_fsdp

logger = logging.getLogger(__name__)
# Texts that can be evaluated in the time of training on one: there is no backward pass.
EVALUATED_PER_TRAINED = 3
FEW_EVALUATED = 50_000  # Evaluated texts that take too little time to be worth a warning.


@dataclass
class Setup:
    """A run that is ready to start.

    args: the run's arguments, with the values that depend on the task filled in (`with_task_defaults`).
    data: data of the stages to run, by stage, which may have different maximum lengths. With a teacher the training texts
        are those with its answers (`Teacher.answered`).
    test: the test split, with the maximum length of the last stage; None without one.
    make_model: returns a new model under the current random seed.
    """

    args: TlmArguments
    tokenizer: PreTrainedTokenizerBase
    data: dict[int, StageData]
    test: Dataset | None
    make_model: Callable[[], TrainedModel | PeftModel]
    initialization: Initialization | None = None


def prepare(
    task: Task,
    corpus: Dataset | None,
    args: TlmArguments,
    model_args: ModelArguments,
    teacher: Teacher | None = None,
) -> Setup:
    """Load or train the tokenizer, tokenise all data once, and define how models are created.

    Args:
        corpus: passages, column `text`; None for task data only.
        teacher: the answers of the teacher of `args` on the task and the passages.

    Raises:
        ArgumentsError: arguments or passages have the wrong class; or see `check_tlm`.
        TokenizerError, ModelError: see `load_tokenizer`, `cached_wordpiece`, `build_config`.
    """
    check_task(task)
    check_given(ArgumentsError, args=(args, TlmArguments), model_args=(model_args, ModelArguments))
    corpus_texts = _select_texts(corpus)
    check_tlm(corpus is not None, args, model_args)
    texts = task.train.select_columns(columns_of_texts(task.train))
    corpus_length = args.corpus_max_length or args.max_length
    with args.main_process_first(desc="making the tokenizer"):
        tokenizer = _load_or_train_tokenizer(model_args, texts, corpus_texts, max(args.max_length, corpus_length))
    config = source_config(model_args)
    check_stage_2(args, config, model_args)
    with args.main_process_first(desc="measuring the task"):
        num_texts = len(task.train)
        if teacher is not None:
            num_texts = teacher.count_texts(num_texts, args.teacher_share, with_passages=args.stage2_teacher_passages)
        args = with_task_defaults(args, task.train, tokenizer, longest_input(config), num_texts=num_texts)
    lengths = {stage: args.for_stage(stage, args.folder, args.seed, "").max_length for stage in args.stages}
    longest = max(lengths.values())
    tokenizer.model_max_length = lengths[args.stages[-1]]
    if args.process_index == 0:
        or_stage_2 = ", or --stage2_max_length (0: the length of the task's texts)" if 2 in args.stages else ""
        advice = f"Increase --max_length{or_stage_2}."
        warn_of_cut("the task's training texts", spread_texts(texts), tokenizer, longest, advice)
    make_model = model_factory(args, model_args, tokenizer, id2label=task.id2label, max_length=max(corpus_length, longest))
    with args.main_process_first(desc="tokenising"):
        splits = {
            (split, length): tokenize(rows, tokenizer, length, description=f"Tokenising {split}")
            for split, rows in task.splits.items()
            for length in set(lengths.values())
        }
        passages = None
        if corpus_texts is not None:
            passages = tokenize(corpus_texts, tokenizer, corpus_length, description="Tokenising the subset")
            if args.process_index == 0 and 1 in args.stages and args.rho1 > 0:
                advice = (
                    "Retrieve passages of that length (--passage_words {words} of `hf-tlm retrieve`), or increase "
                    "--corpus_max_length."
                )
                warn_of_cut("the subset's passages", spread_texts(corpus_texts), tokenizer, corpus_length, advice)
    initialization = None
    if model_args.needs_initialization:
        rows = splits["train", lengths[args.stages[0]]].select_columns(["input_ids"])
        linear = model_args.classifier_init == "linear"
        make_model, initialization = with_initialization(
            make_model,
            (rows if passages is None else concatenate_datasets([rows, passages]))["input_ids"],
            tokenizer,
            model_args,
            objective=args.objective,
            task_texts=[LabelledTexts.of(splits[split, longest]) for split in ("train", "validation")] if linear else None,
        )
    data = {}
    for stage, length in lengths.items():
        train = splits["train", length]
        if teacher is not None:
            teacher_rows = None
            if corpus_texts is not None and (stage == 1 or args.stage2_teacher_passages):
                teacher_rows = tokenize(teacher.texts(corpus_texts), tokenizer, length)
            train = teacher.answered(train, teacher_rows, args.teacher_share)
        data[stage] = StageData(train, splits["validation", length], passages if stage == 1 else None)
    return Setup(args, tokenizer, data, splits.get(("test", tokenizer.model_max_length)), make_model, initialization)


def _select_texts(corpus: Dataset | None) -> Dataset | None:
    """Return the passages with their column `text` alone, or raise an ArgumentsError if they have none."""
    if corpus is None:
        return None
    if "text" not in (getattr(corpus, "column_names", None) or ()):
        advice = (
            "subset.dataset" if hasattr(corpus, "manifest") else "Dataset.from_list(rows), of rows such as {'text': ...}"
        )
        raise ArgumentsError(
            f"corpus: expected a datasets.Dataset with the column text; received a {type(corpus).__name__}. Give {advice}."
        )
    return corpus.select_columns(["text"])


def _load_or_train_tokenizer(
    model_args: ModelArguments, texts: Dataset, passages: Dataset | None, max_length: int
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `model_args`, after checking that it knows the texts, or one that is trained on them."""
    source, sets = model_args.tokenizer_source, [texts] if passages is None else [texts, passages]
    if source is None:
        columns = _Chain([rows[column] for rows in sets for column in rows.column_names])
        return cached_wordpiece(columns, model_args.vocab_size, lowercase=model_args.lowercase, max_length=max_length)
    tokenizer = load_tokenizer(**source)
    for rows in sets:
        check_known(tokenizer, spread_texts(rows), source["name_or_path"])
    return tokenizer


def tell_of_other_stage(args: TlmArguments) -> None:
    """Warn of options of a stage that is not run, or of task batches that stage 1 lacks."""
    if args.process_index == 0 and 1 in args.stages and args.rho1 == math.inf and args.rho2 != type(args).rho2:
        logger.warning("rho2 %g has no effect with rho1 inf: stage 1 has no task batches.", args.rho2)
    if args.process_index == 0 and (options := other_stage_options(args)):
        logger.warning(
            "Only stage %s is run, so these options of the other stage have no effect: %s.", args.stage, ", ".join(options)
        )


def tell_of_no_saving(args: RunArguments) -> None:
    """Warn of options for checkpoints that have no effect because of save_strategy no, which small presets have."""
    # Stage 2 of a TLM run saves whenever it evaluates.
    saves_checkpoints = args.save_strategy != "no" or (isinstance(args, TlmArguments) and args.stage == "2")
    if saves_checkpoints or args.process_index != 0:
        return
    part = "stage 1" if isinstance(args, TlmArguments) else "the run"
    if args.save_steps != type(args).__dataclass_fields__["save_steps"].default:
        logger.warning(
            "save_steps %g has no effect with save_strategy no: after an interruption %s begins again. Give --save_strategy "
            "steps for checkpoints.",
            *(args.save_steps, part),
        )
    elif args.pushes_checkpoints:
        logger.warning(
            "hub_strategy checkpoint pushes nothing before %s ends with save_strategy no. Give --save_strategy steps for "
            "checkpoints.",
            part,
        )


def tell_of_long_evaluations(args: BaseArguments, task: Task, num_texts: int, batch_size: int) -> None:
    """Warn if choosing a checkpoint on a large validation split takes longer than the training.

    Args:
        args: those of the Trainer.
        num_texts: texts of an epoch; with a teacher these are not the task's training texts alone.
        batch_size: texts of an optimizer step.
    """
    if args.eval_strategy == "no" or args.process_index != 0:
        return
    epoch = math.ceil(num_texts / batch_size)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    interval = epoch if args.eval_strategy == "epoch" else args.eval_steps or args.logging_steps
    evaluations = max(1, round(steps / (interval if interval >= 1 else interval * steps)))
    trained, evaluated = steps * batch_size, evaluations * len(task.validation)
    if evaluated > max(EVALUATED_PER_TRAINED * trained, FEW_EVALUATED):
        enough = max(1000, trained // evaluations // 100 * 100)
        logger.warning(
            "Evaluation (%d times %s validation texts) will probably take longer than training (%s steps of %d texts). %s",
            *(evaluations, f"{len(task.validation):,}", f"{steps:,}", batch_size),
            f"A sample is enough to choose a checkpoint: --max_eval_samples {enough}."
            if enough < len(task.validation)
            else "Evaluate less often.",
        )


def check_tlm(has_corpus: bool, args: TlmArguments, model_args: ModelArguments) -> None:
    """Check the arguments of a run of TLM, as far as that is possible without a tokenizer and data.

    Args:
        has_corpus: whether there are passages.

    Raises:
        ArgumentsError: rho1 needs corpus batches and there is no corpus; use_peft has nothing to adapt, or is combined with
            FSDP or stage2_classifier_pooling; a batch of stage 2 cannot be split over the processes;
            metric_for_best_model is set to anything but loss; classifier_init linear does not fit the model or other
            options; or see `check_stage_2` and `check_model`.
        ModelError: see `check_model`.
    """
    if args.stage != "2" and args.rho1 > 0 and not has_corpus:
        raise ArgumentsError(
            f"rho1 is {args.rho1:g}, so stage 1 needs corpus passages: pass --subset (`hf-tlm retrieve` creates one), or "
            "set --rho1 0 for task data only."
        )
    if model_args.use_peft and model_args.model_name_or_path is None and args.stage != "both":
        raise ArgumentsError(
            f"use_peft does not train the body's weights, which would stay random in a stage {args.stage} from scratch. "
            "Pass a checkpoint to adapt as --model_name_or_path, or run --stage both: all weights in stage 1, an adapter in "
            "stage 2."
        )
    if model_args.use_peft and uses_fsdp(args):
        raise ArgumentsError(
            "use_peft does not work with FSDP: what it trains is too small to be worth sharding. Use DDP: the preset "
            "accelerate/ddp."
        )
    if args.stage != "1":
        args.for_stage(2, args.folder, args.seed, "")  # Checks the batch of stage 2 before stage 1 is trained.
    if args.metric_for_best_model not in (None, "loss"):
        raise ArgumentsError(
            "The best checkpoint is chosen by the task's metric: remove metric_for_best_model "
            f"{args.metric_for_best_model}, and choose another --metric of the task if needed."
        )
    if args.stage2_classifier_pooling is not None and model_args.use_peft:
        raise ArgumentsError(
            "stage2_classifier_pooling does not work with use_peft: an adapter is loaded on its base, whose config says how "
            "the classifier pools. Remove stage2_classifier_pooling."
        )
    check_model(args, model_args)
    if model_args.model_name_or_path is None:
        config = read_config(model_args.model_config)
        check_stage_2(args, config, model_args)
        if model_args.classifier_init == "linear":
            check_linear_start(config)
            _check_linear_start(args, model_args)


def _check_linear_start(args: TlmArguments, model_args: ModelArguments) -> None:
    pooling = args.stage2_classifier_pooling
    if 2 in args.stages and (args.stage2_reset_classifier or pooling not in (None, "mean")):
        option = "stage2_reset_classifier true" if args.stage2_reset_classifier else f"stage2_classifier_pooling {pooling}"
        raise ArgumentsError(f"{option} discards the initialisation of classifier_init linear. Remove one of the two.")
    if model_args.use_peft:
        raise ArgumentsError(
            "classifier_init linear does not work with use_peft: an adapter is loaded on the model of stage 1, whose "
            "embeddings lack the linear model's weights. Remove one of the two."
        )


def source_config(model_args: ModelArguments) -> PreTrainedConfig:
    """Return the config of the checkpoint that a run starts from, or the one its model is created from."""
    name = model_args.model_name_or_path
    if name is None:
        return read_config(model_args.model_config)
    return _load_config(name, model_args.model_revision, model_args.trust_remote_code)


def _load_config(name: str, revision: str | None, trust: bool) -> PreTrainedConfig:
    with reading("a config from", name):
        folder = checkpoint_folder(name, revision, trust_remote_code=trust)
        return AutoConfig.from_pretrained(folder, revision=revision, trust_remote_code=trust)


def check_sources(model_args: ModelArguments, max_length: int, *, mlm: bool = True, whole_word_mask: bool = False) -> None:
    """Check that the named checkpoints, tokenizer and target layers exist and fit, before the run claims its directory.

    Args:
        max_length: longest sequence in tokens.
        mlm: whether there is a masked-LM loss, for which the base of an adapter needs a masked-LM head.
        whole_word_mask: whether the tokenizer's tokens must mark where words begin.

    Raises:
        HubError: see `checkpoint_folder`.
        ModelError: a checkpoint cannot be read, lacks the target layers, or has too few positions or embeddings.
        TokenizerError: the tokenizer cannot be read, or its tokens do not mark where words begin.
        ArgumentsError: an adapter is to be trained, and its base lacks the head.
    """
    if model_args.use_peft:
        check_targets(model_args, source_config(model_args), model_args.trust_remote_code)  # Before weights are read.
        if mlm and model_args.model_name_or_path is not None:
            model = TlmModel.from_checkpoint(
                model_args.model_name_or_path,
                id2label={0: "0", 1: "1"},
                revision=model_args.model_revision,
                trust_remote_code=model_args.trust_remote_code,
            )
            _check_head(model_args, model)
    if model_args.tokenizer_source is not None:
        tokenizer = load_tokenizer(**model_args.tokenizer_source)
        _check_checkpoints(model_args, tokenizer, max_length)
        if whole_word_mask:
            word_continuations(tokenizer)


def _check_head(model_args: ModelArguments, model: TlmModel) -> None:
    if model.mlm_head_is_new:
        raise ArgumentsError(
            f"{model_args.model_name_or_path} has no masked-LM head, and use_peft would not train a randomly initialised "
            "one. Pretrain without use_peft first, or start from a checkpoint with the head."
        )


def model_factory(
    args: RunArguments,
    model_args: ModelArguments,
    tokenizer: PreTrainedTokenizerBase,
    *,
    id2label: dict[int, str],
    max_length: int,
    classifier: bool = True,
) -> Callable[[], TrainedModel | PeftModel]:
    """Return a function that creates a model for `args.objective`, from scratch under the current seed or from checkpoints.

    Args:
        max_length: longest sequence in tokens.
        classifier: False without a task: an adapter then covers the body alone.

    Raises:
        HubError: see `checkpoint_folder`.
        ModelError: see `build_config`, `generator_config` and, for checkpoints, `check_fit`.
        ArgumentsError: objective ale without an ALBERT body, cocolm without its own body, or (when a model is created) an
            adapter for a checkpoint without a masked-LM head.
    """
    spec, model_args = OBJECTIVES[args.objective], model_args.with_objective_defaults(args.objective)
    settings: dict[str, Any] = {
        "temperature": model_args.temperature,
        "heads": "clm" if spec.corrects and args.clm != "rtd" else args.detecting_head,
        "apart": spec.separate_sampling,
        "replacements": model_args.replacements,
        "frozen": model_args.freeze_auxiliary,
        "share_embedding_norm": model_args.share_embedding_norm,
        "scl_projection": args.scl_projection,
    }
    _check_checkpoints(model_args, tokenizer, max_length)
    if (base := model_args.model_name_or_path) is not None:
        hub = hub_options(model_args.model_revision, model_args.trust_remote_code, model_args.attn_implementation)
        options: dict[str, Any] = {"id2label": id2label, **hub}

        def from_checkpoint() -> TrainedModel | PeftModel:
            if spec.corrupts:
                auxiliary = model_args.auxiliary_name_or_path
                pair = GeneratorDiscriminator.from_checkpoint(base, auxiliary, **settings, **options)
                _check_body(args, pair.config.model_type)
                return pair
            model = TlmModel.from_checkpoint(base, **options)
            if not model_args.use_peft:
                return model
            if not isinstance(args, TlmArguments) or args.stage != "2" or args.stage2_rho2:
                _check_head(model_args, model)
            return add_lora(model, model_args, base, model_args.model_revision, classifier=classifier)

        return from_checkpoint
    config = build_config(model_args.model_config, tokenizer, id2label=id2label, max_length=max_length)
    config._attn_implementation = model_args.attn_implementation
    if model_args.weight_init == "width":
        scale_to_width(config)
    if not spec.corrupts:
        return partial(TlmModel.from_config, config)
    _check_body(args, config.model_type)
    auxiliary = _choose_auxiliary(args, model_args, config)
    if model_args.weight_init == "width" and not isinstance(auxiliary, str):
        scale_to_width(auxiliary)
    return partial(GeneratorDiscriminator.from_config, config, auxiliary, **settings)


def _check_checkpoints(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    source = model_args.tokenizer_source
    checkpoints = ((model_args.model_name_or_path, model_args.model_revision), (model_args.auxiliary_name_or_path, None))
    for name, revision in checkpoints:
        if name is not None:
            assert source is not None  # By default the tokenizer is the checkpoint's.
            config = _load_config(name, revision, model_args.trust_remote_code)
            check_fit(config, name, max_length=max_length, tokenizer=tokenizer, tokenizer_name=source["name_or_path"])


def check_model(args: RunArguments, model_args: ModelArguments) -> None:
    """Check the arguments of a model, as far as that is possible without a tokenizer and data.

    Raises:
        ArgumentsError: the objective does not support the body, use_peft, FSDP or an option; an option has no effect beside
            another one, or with an auxiliary model from a checkpoint; use_peft with Muon; or FSDP with one process.
        ModelError: see `read_config` and `generator_config`.
    """
    if args.fsdp and args.parallel_mode.value != "distributed":
        raise ArgumentsError(
            "fsdp shards a model over several processes, and only one is running. Start several with --num_processes and "
            "--config_file accelerate/fsdp, or remove fsdp."
        )
    check_applicable(model_args, args.objective)
    check_together(args, model_args)
    check_adapted(args, model_args.use_peft)
    read_from = model_args.auxiliary_name_or_path or model_args.model_name_or_path
    for name in ("auxiliary_size", "auxiliary_layers"):
        if read_from is not None and getattr(model_args, name) is not None:
            raise ArgumentsError(
                f"{name} {getattr(model_args, name)} applies to an auxiliary model from scratch; this run's is loaded from "
                f"{read_from!r} unchanged. Remove {name}."
            )
    spec, model_args = OBJECTIVES[args.objective], model_args.with_objective_defaults(args.objective)
    if spec.corrupts and (model_args.use_peft or uses_fsdp(args)):
        raise ArgumentsError(
            f"objective {args.objective} works neither with use_peft nor with FSDP: all weights of both its models are "
            "trained, and the main one is small. Use DDP; adapt the exported model afterwards with --stage 2 --use_peft."
        )
    if model_args.model_name_or_path is None:
        config = read_config(model_args.model_config)
        if spec.corrupts:
            _check_body(args, config.model_type)
            _choose_auxiliary(args, model_args, config)


def _choose_auxiliary(args: RunArguments, model_args: ModelArguments, config: PreTrainedConfig) -> PreTrainedConfig | str:
    """Return the config of an auxiliary model from scratch, or the name of the frozen checkpoint to use."""
    if model_args.freeze_auxiliary and model_args.auxiliary_name_or_path is not None:
        return model_args.auxiliary_name_or_path
    layers = model_args.auxiliary_layers
    depth = OBJECTIVES[args.objective].auxiliary_depth
    if layers is None and depth is not None:
        layers = max(1, config.num_hidden_layers // depth)
    size = model_args.auxiliary_size
    assert size is not None  # `with_objective_defaults` gives it one.
    return generator_config(config, size, layers)


def _check_body(args: RunArguments, model_type: str) -> None:
    spec = OBJECTIVES[args.objective]
    if spec.encoders and model_type not in spec.encoders:
        description, config_file = spec.encoder_advice
        raise ArgumentsError(
            f"objective {args.objective} is {description} (--model_config models/{config_file}); received the type "
            f"{model_type!r}. For other bodies use --objective electra."
        )


class _Chain:
    """An iterable over several sequences of texts, one after the other, that can be iterated repeatedly."""

    def __init__(self, parts):
        self.parts = parts

    def __iter__(self):
        for part in self.parts:
            yield from part
