"""Pretrain a model on a corpus: vocabulary, blocks, training, scores on held-out blocks, export of a stock model."""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash
from datasets import Dataset
from peft import PeftModel
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase, set_seed

from hf_tlm.corpora import Corpus, CorpusError
from hf_tlm.data import (
    BlockArguments,
    BlockShards,
    Preparation,
    StreamedBlocks,
    cached_wordpiece,
    kept_tokenizer,
    load_tokenizer,
)
from hf_tlm.data.blocks import is_held_out
from hf_tlm.data.text_checks import check_known
from hf_tlm.hub.cards import pretrained_card
from hf_tlm.hub.push import Push
from hf_tlm.models import TrainedModel, export_adapter, export_stock, trained_parameters
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.runs.records import cost_lines, logged_scores, provenance_entries, published_lines
from hf_tlm.training import (
    ArgumentsError,
    ModelArguments,
    PretrainArguments,
    TlmTrainer,
    check_model,
    check_sources,
    final_scores,
    model_factory,
)
from hf_tlm.training.base_trainer import trained_model
from hf_tlm.training.objectives import language_objective, term_names
from hf_tlm.training.prepare import tell_of_no_saving
from hf_tlm.training.publishing import CheckpointPushes, check_hub, claim_run, publish_run
from hf_tlm.training.run_folder import MODEL, RESULTS_FILE, copy_best_model, finished, settings
from hf_tlm.training.stages import with_initialization
from hf_tlm.utils.locks import owns_output_dir
from hf_tlm.utils.options import check_given
from hf_tlm.utils.seals import write_seal
from hf_tlm.utils.shown import describe_received

# transformers' default class names, for the config of a model without classes; heads that need them are not exported.
ID2LABEL = {0: "LABEL_0", 1: "LABEL_1"}
TOKENIZER, TRAINING, EXPORT, ADAPTER = "tokenizer", "training", "export", "adapter"


@dataclass
class PretrainingRun:
    """The result of `run_pretraining`.

    record: the content of `results.json`: the settings, the corpus's blocks, the cost, losses of the last logged steps
        (`training`) and scores on held-out blocks (`validation`).
    push: with `push_to_hub`, on the first process: what was published.
    """

    record: dict[str, Any]
    output_dir: Path
    push: Push | None = None

    def to_text(self) -> str:
        """Return the text that is printed at the end of the run."""
        record, lines = self.record, []
        scores = {name: value for name, value in record["validation"].items() if name != "loss"}
        if scores:
            score_list = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in scores.items())
            if not OBJECTIVES[record["arguments"]["objective"]].corrupts:
                score_list += f" (perplexity {math.exp(min(scores['mlm_loss'], 700.0)):.4g})"
            lines.append(f"validation   {score_list}")
        if record["corpus"]["blocks"] is not None:
            lines.append(f"corpus       {record['corpus']['blocks']:,} blocks, {record['corpus']['tokens']:,} tokens")
        lines += cost_lines(record["cost"])
        trained, parameters = record["trained_parameters"], record["parameters"]
        trained_note = f", {trained:,} trained" if trained < parameters else ""
        lines.append(f"model        {self.output_dir} ({parameters:,} parameters{trained_note})")
        return "\n".join([*lines, *published_lines(self.push)])


@owns_output_dir
def run_pretraining(
    corpus: Corpus, args: PretrainArguments, model_args: ModelArguments, block_args: BlockArguments
) -> PretrainingRun:
    """Pretrain one model on a corpus in `args.output_dir`.

    The folder then holds the stock model (see `hf_tlm.models.export_stock`: the masked LM, or the discriminator with the
    masked LM in `generator`), its card, `results.json`, and `training/` with the log and the checkpoints. With `use_peft`
    the adapter is merged into the model, and saved separately in `adapter`. The same settings in the same folder resume an
    interrupted run; a finished one is loaded.

    Raises:
        ProtocolError: the folder holds a run with other settings, or other files.
        LockError: another process is writing to the folder.
        ArgumentsError: arguments that have no effect on pretraining or exclude each other.
        BlocksError, CorpusError, TokenizerError, ModelError: see `BlockShards`, `cached_wordpiece`, `model_factory`.
    """
    if not isinstance(corpus, Corpus):
        received = describe_received(corpus, "load_corpus", splits='dataset["train"]')
        if hasattr(corpus, "as_corpus"):
            received = "received a Subset. Give subset.as_corpus()."
        raise CorpusError(f"corpus: expected a Corpus; {received}")
    check_given(ArgumentsError, args=(args, PretrainArguments), model_args=(model_args, ModelArguments))
    check_given(ArgumentsError, block_args=(block_args, BlockArguments))
    _check_arguments(args, model_args, block_args)
    output_dir = args.folder
    details = {
        "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint},
        "corpus_fingerprint": corpus.fingerprint,
        "arguments": {**settings(args), "seed": args.seed},
        "model": asdict(model_args.with_objective_defaults(args.objective)),
        "blocks": {name: value for name, value in asdict(block_args).items() if name != "shards_ahead"},
    }
    export = output_dir / EXPORT
    with args.main_process_first(desc="checking the output folder"):
        if not any((folder / RESULTS_FILE).is_file() for folder in (output_dir, export)):
            check_sources(model_args, args.max_length, whole_word_mask=args.whole_word_mask)
        check_hub(args, adapter=model_args.use_peft, base=model_args.model_name_or_path)
        claimed = claim_run(args, details, ("corpus_fingerprint",), (args, model_args, block_args))
    tell_of_no_saving(args)
    with claimed, CheckpointPushes(output_dir, args) as pushes:
        record = finished(export, args, fields=MODEL) or finished(output_dir, args, fields=MODEL)
        if record is None:
            record = _train(corpus, args, model_args, block_args, details, output_dir, pushes)
    with args.main_process_first(local=False, desc="publishing the model"):
        if args.process_index == 0 and export.is_dir():
            # Without its record it is the rest of an export that was published before the process was killed.
            if (export / RESULTS_FILE).is_file():
                copy_best_model(export, output_dir)
                (export / RESULTS_FILE).unlink()
            shutil.rmtree(export, ignore_errors=True)
    run = PretrainingRun(record, output_dir, publish_run(output_dir, args))
    pushes.check()
    return run


def _check_arguments(args: PretrainArguments, model_args: ModelArguments, block_args: BlockArguments) -> None:
    if model_args.use_peft and model_args.model_name_or_path is None:
        raise ArgumentsError(
            "use_peft does not train the body's weights, which would stay random from scratch. Pass --model_name_or_path "
            "with a checkpoint to pretrain further, or remove use_peft."
        )
    check_model(args, model_args)
    if model_args.classifier_init != "random":
        raise ArgumentsError(
            f"classifier_init {model_args.classifier_init} needs labelled texts, and pretraining has none. Remove it: it "
            "is for `hf-tlm train`."
        )
    if args.eval_strategy != "no" and block_args.validation_share == 0:
        raise ArgumentsError(
            f"eval_strategy {args.eval_strategy} needs held-out blocks, but validation_share is 0. Raise validation_share, "
            "or remove eval_strategy."
        )
    names, metric = ["loss", *term_names(language_objective(args))], args.metric_for_best_model
    if metric is not None and metric.removeprefix("eval_") not in names:
        raise ArgumentsError(
            f"metric_for_best_model: expected a score of held-out blocks, {', '.join(names)} (objective {args.objective}); "
            f"received {metric!r:.60}."
        )
    if block_args.streaming_blocks:
        _check_streaming(args, model_args, block_args)


def _check_streaming(args: PretrainArguments, model_args: ModelArguments, block_args: BlockArguments) -> None:
    problem = None
    if block_args.blocks != "contiguous":
        problem = f"blocks of one length: --blocks contiguous, not {block_args.blocks}"
    elif args.max_steps < 1 and not args.has_budget:
        problem = "max_steps, max_flops, max_tokens or max_hours: the length of an epoch is known only at its end"
    elif args.total_batch_tokens is not None:
        problem = "batches measured in texts: total_batch_size, not total_batch_tokens"
    elif model_args.needs_texts:
        problem = "embedding_init random and lm_head_init random: other values count all blocks before the first step"
    if problem is not None:
        raise ArgumentsError(f"streaming_blocks needs {problem}.")


def _train(
    corpus: Corpus,
    args: PretrainArguments,
    model_args: ModelArguments,
    block_args: BlockArguments,
    details: dict[str, Any],
    output_dir: Path,
    pushes: CheckpointPushes,
) -> dict[str, Any]:
    """Train and write the finished model to the folder `export`; return the record."""
    with args.main_process_first(desc="creating the tokenizer"):
        tokenizer = _load_or_train_tokenizer(corpus, args, model_args, block_args, output_dir / TOKENIZER)
    make_model = model_factory(args, model_args, tokenizer, id2label=ID2LABEL, max_length=args.max_length, classifier=False)
    shards = BlockShards(
        corpus,
        tokenizer,
        args.max_length,
        block_args.blocks,
        shard_size=block_args.shard_size,
        validation_share=block_args.validation_share,
    )
    with args.main_process_first(desc="preparing held-out blocks"):
        held_out = shards.validation(block_args.max_validation_blocks) if block_args.validation_share else None
    initialization = None
    with _prepare_blocks(shards, args, block_args) as blocks:
        if model_args.needs_initialization:
            # Streamed blocks cannot be counted beforehand; `_check_streaming` allows them only where no texts are needed.
            rows = [] if isinstance(blocks, StreamedBlocks) else blocks["input_ids"]
            make_model, initialization = with_initialization(
                make_model, rows, tokenizer, model_args, objective=args.objective
            )
        set_seed(args.seed)
        trainer = TlmTrainer(
            make_model(),
            args.for_trainer(output_dir / TRAINING, args.seed),
            train_dataset=None,
            corpus_dataset=blocks,
            eval_dataset=held_out,
            processing_class=tokenizer,
            callbacks=[pushes],
        )
        trainer.train(resume_from_checkpoint=True)
    validation = {} if held_out is None else logged_scores(final_scores(trainer), "eval_")
    model = trained_model(trainer)
    assert isinstance(model, (TrainedModel, PeftModel))  # The class that `make_model` built.
    trainer.save_state()
    loss_entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    record = {
        **details,
        **provenance_entries(details),
        "corpus": {**details["corpus"], **(shards.totals or dict.fromkeys(("blocks", "tokens")))},
        "vocabulary": len(tokenizer),
        "model_type": model.config.model_type,
        "parameters": model.num_parameters(),
        "trained_parameters": trained_parameters(model),
        "cost": trainer.cost().to_dict(),
        "training": logged_scores(loss_entries[-1], "corpus/") if loss_entries else {},
        "validation": validation,
        "validation_blocks": 0 if held_out is None else len(held_out),
        "initialization": None if initialization is None else initialization.report,
    }
    if trainer.is_world_process_zero():
        files = {"README.md": pretrained_card(record), RESULTS_FILE: json.dumps(record, indent=2) + "\n"}
        if isinstance(model, PeftModel):
            export_adapter(model, tokenizer, output_dir / ADAPTER)
            model = model.merge_and_unload()
        export_stock(model, tokenizer, output_dir / EXPORT, files, classifier=False)
        write_seal(output_dir / EXPORT)
    trainer.accelerator.wait_for_everyone()
    return json.loads(json.dumps(record))


@contextlib.contextmanager
def _prepare_blocks(
    shards: BlockShards, args: PretrainArguments, block_args: BlockArguments
) -> Iterator[Dataset | StreamedBlocks]:
    """Yield the blocks of the corpus, which the first process of each machine prepares.

    With `streaming_blocks` they are read while that process prepares the next ones; otherwise all are prepared first.
    """
    if not block_args.streaming_blocks:
        if args.local_process_index > 0:
            shards.wait()
        yield shards.to_dataset()
    elif args.local_process_index == 0:
        with Preparation(shards, block_args.shards_ahead) as preparation:
            yield StreamedBlocks(shards, preparation)
    else:
        yield StreamedBlocks(shards)


def _load_or_train_tokenizer(
    corpus: Corpus, args: PretrainArguments, model_args: ModelArguments, block_args: BlockArguments, folder: Path
) -> PreTrainedTokenizerBase:
    """Load the given tokenizer; without one, train a WordPiece tokenizer on the corpus and keep it in `folder`."""
    source = model_args.tokenizer_source
    if source is not None:
        tokenizer = load_tokenizer(**source)
        check_known(tokenizer, (row["text"] for row in _iterate_rows(corpus)), source["name_or_path"])
    else:

        def make_tokenizer() -> PreTrainedTokenizerBase:
            max_passages = 10 * block_args.vocab_texts if block_args.streaming_blocks else None
            texts = _sample_texts(corpus, block_args.vocab_texts, block_args.validation_share, max_passages)
            return cached_wordpiece(texts, model_args.vocab_size, lowercase=model_args.lowercase, max_length=args.max_length)

        tokenizer = kept_tokenizer(folder, make_tokenizer, unsealed=True)
    tokenizer.model_max_length = args.max_length
    return tokenizer


def _sample_texts(corpus: Corpus, count: int, validation_share: float, max_passages: int | None = None) -> list[str]:
    """Choose at most `count` texts that are not held out: those whose ids have the smallest hashes.

    The choice does not depend on the order of the corpus's files, and only the chosen texts are held in memory.

    Args:
        max_passages: choose from that many first passages only.
    """
    # The hash has another seed than that of held-out passages, which are chosen by a bound on their hash.
    heap: list[tuple[int, str]] = []
    with tqdm(desc="Choosing texts for the vocabulary", unit=" passages") as bar:
        for row in islice(_iterate_rows(corpus, bar), max_passages):
            rank = -xxhash.xxh3_64_intdigest(row["id"].encode(), seed=1)
            if (len(heap) < count or rank > heap[0][0]) and not is_held_out(corpus, row["id"], validation_share):
                (heapq.heappush if len(heap) < count else heapq.heapreplace)(heap, (rank, row["text"]))
    return [text for _, text in sorted(heap, reverse=True)]


def _iterate_rows(corpus: Corpus, bar: tqdm | None = None) -> Iterator[dict[str, str]]:
    for _, batch in corpus.batches():
        if bar is not None:
            bar.update(len(batch))
        yield from batch.to_pylist()
