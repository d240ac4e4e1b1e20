"""Everything a run needs before its first step: tokenizer, tokenised data, and the model to start from."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import cached_wordpiece, load_tokenizer, tokenize
from hf_tlm.models import TlmModel, add_lora, build_config
from hf_tlm.models.spectral import SpectralEmbeddings, spectral_embeddings
from hf_tlm.tasks import Task
from hf_tlm.training.arguments import TlmArguments
from hf_tlm.training.options import ArgumentsError, ModelArguments
from hf_tlm.training.stages import StageData

logger = logging.getLogger(__name__)


@dataclass
class Setup:
    """A run ready to start. `make_model` gives a fresh model under the current random seed."""

    tokenizer: PreTrainedTokenizerBase
    data: StageData
    test: Dataset | None
    make_model: Callable[[], TlmModel | PeftModel]
    spectral: SpectralEmbeddings | None = None


def prepare(task: Task, corpus: Dataset | None, args: TlmArguments, model_args: ModelArguments) -> Setup:
    """Load or train the tokenizer, tokenise everything once, and fix how a model is made.

    Args:
        corpus: passages, column `text`; None for task data only.

    Raises:
        ArgumentsError: rho1 asks for corpus batches and there is no corpus; use_peft and there is nothing to adapt.
        TokenizerError, ModelError: see `load_tokenizer`, `cached_wordpiece`, `build_config`.
    """
    if args.stage != "2" and args.rho1 > 0 and corpus is None:
        raise ArgumentsError(
            f"rho1 is {args.rho1:g}, so stage 1 needs corpus passages: give --subset (recipes/retrieve.py makes one), "
            "or set --rho1 0 for task data only."
        )
    if model_args.use_peft and model_args.model_name_or_path is None and args.stage != "both":
        raise ArgumentsError(
            f"use_peft leaves the body's weights as they are, and stage {args.stage} from scratch would leave them random. "
            "Give --model_name_or_path a checkpoint to adapt, or run --stage both: stage 1 in full, an adapter in stage 2."
        )
    if model_args.use_peft and (args.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true"):
        raise ArgumentsError(
            "use_peft does not work with FSDP: what it trains is too small to be worth sharding. Use DDP, for instance "
            "recipes/configs/accelerate/ddp.yaml."
        )
    texts = task.train.select_columns([c for c in ("text", "text_pair") if c in task.train.column_names])
    name = model_args.tokenizer_name or model_args.model_name_or_path
    corpus_length = args.corpus_max_length or args.max_length
    longest = max(args.max_length, corpus_length)
    with args.main_process_first(desc="tokenising"):
        if name is not None:
            tokenizer = load_tokenizer(
                name, revision=model_args.model_revision, trust_remote_code=model_args.trust_remote_code
            )
        else:
            columns = [texts[column] for column in texts.column_names]
            columns += [corpus["text"]] if corpus is not None else []
            tokenizer = cached_wordpiece(
                _Chain(columns), model_args.vocab_size, lowercase=model_args.lowercase, max_length=longest
            )
        tokenizer.model_max_length = args.max_length
        splits = {
            split: None if rows is None else tokenize(rows, tokenizer, args.max_length, description=f"Tokenising {split}")
            for split, rows in (("train", task.train), ("validation", task.validation), ("test", task.test))
        }
        passages = None
        if corpus is not None:
            passages = tokenize(
                corpus.select_columns(["text"]), tokenizer, corpus_length, description="Tokenising the subset"
            )
    spectral = None
    if model_args.model_name_or_path is not None:

        def make_model() -> TlmModel | PeftModel:
            model = TlmModel.from_checkpoint(
                model_args.model_name_or_path,
                id2label=task.id2label,
                revision=model_args.model_revision,
                trust_remote_code=model_args.trust_remote_code,
            )
            if not model_args.use_peft:
                return model
            return add_lora(model, model_args, model_args.model_name_or_path, revision=model_args.model_revision)
    else:
        config = build_config(model_args.model_config, tokenizer, id2label=task.id2label, max_length=longest)
        if model_args.embedding_init == "spectral":
            rows = splits["train"].select_columns(["input_ids"])
            rows = rows if passages is None else concatenate_datasets([rows, passages])
            dim = TlmModel.from_config(config).get_input_embeddings().weight.shape[1]
            spectral = spectral_embeddings(
                rows["input_ids"],
                len(tokenizer),
                dim,
                scale=model_args.spectral_scale,
                ignore=tokenizer.all_special_ids,
            )
            logger.info("Spectral embeddings: %s", spectral.report)

        def make_model() -> TlmModel:
            model = TlmModel.from_config(config)
            if spectral is not None:
                spectral.write_to(model)
            return model

    data = StageData(train=splits["train"], validation=splits["validation"], corpus=passages)
    return Setup(tokenizer, data, splits["test"], make_model, spectral)


class _Chain:
    """Several sequences of texts as one that can be iterated again."""

    def __init__(self, parts):
        self.parts = parts

    def __iter__(self):
        for part in self.parts:
            yield from part
