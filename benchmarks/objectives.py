"""Pretrain BERT small, ELECTRA small and ALE small, scaled down, at equal measured FLOPs, then fine-tune them on GLUE.

    python benchmarks/objectives.py --sections pretrain finetune step --work_dir runs/objectives

This is the comparison of Table IV of the ALE paper at a budget of minutes. All three read the same blocks of the same corpus
(HF_TLM_DATA, default ../shared/data) with the same vocabulary; the number of a model's steps is the budget divided by the
FLOPs of one of its steps, as `torch.utils.flop_counter` counts them on a real batch. `step` compares the time of a step of
ELECTRA small and of COCO-LM small, full size, with the passes of plain models that it consists of. Writes
benchmarks/results/objectives.json and .md; finished work in --work_dir is not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from corpus_sample import corpus_sample, data_dir
from objectives_step import CONFIGS, measure_step
from results_file import run_sections

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
# `minutes` is the paper's 12 x 256 at half the width and a third of the depth: about five minutes a model on two cores, for
# a few million tokens. `paper` is its small size, for a GPU, with a budget for the available time.
SIZES = {
    "minutes": {
        "body": {
            **{"embedding_size": 64, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4},
            **{"intermediate_size": 512, "max_position_embeddings": 128, **DROPOUT},
        },
        **{"vocabulary": 8000, "passages": 60_000, "flops": 1.5e13, "batch": 16, "learning_rate": 1e-3},
    },
    "paper": {
        "body": {
            **{"embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4},
            **{"intermediate_size": 1024, "max_position_embeddings": 512, **DROPOUT},
        },
        **{"vocabulary": 30_522, "passages": 1_000_000, "flops": 1e16, "batch": 128, "learning_rate": 5e-4},
    },
}
# Objective and model config: embeddings of another size than the body's are supported by the electra body.
MODELS = {
    "BERT small": ("mlm", {"model_type": "electra"}),
    "ELECTRA small": ("electra", {"model_type": "electra"}),
    "ALE small": ("ale", {"model_type": "albert", "num_hidden_groups": 1}),
}
MAX_LENGTH, WARM_UP = 128, 0.1
# Fine-tuning: the metrics of the paper's Table II, and the number of training texts if not all are used.
TASKS = {
    "cola": {"metric": "matthews"},
    "sst2": {"metric": "accuracy", "rows": 8000},
    "mrpc": {"metric": "accuracy"},
    "stsb": {"metric": "spearman"},
    "qnli": {"metric": "accuracy", "rows": 26_000},
    "rte": {"metric": "accuracy"},
}
FINETUNE_STEPS, FINETUNE_BATCH, FINETUNE_RATE, FINETUNE_DECAY = 800, 32, 5e-4, 0.8

TITLES = {
    "pretrain": "Pretraining at equal FLOPs",
    "finetune": "Fine-tuned on GLUE",
    "step": "A step against the passes that it consists of",
}
NOTES = {
    "pretrain": "`FLOPs a step` are measured in a run of one step; `steps` are the budget over them. `parameters` are those "
    "of the main model without heads. `seconds` are the clock's, whatever else the machine did or however long a run was "
    "paused, and do not compare. Losses are of held-out blocks; those of different objectives do not compare.",
    "finetune": "Mean and standard deviation over the seeds of fine-tuning, percent, on the development sets, each the best "
    "of four evaluations, as GLUE's small models are compared (test labels are not public); CoLA is Matthews correlation, "
    "STS-B Spearman's, the rest accuracy; 800 steps of 32 are all that SST-2 and QNLI see of their training texts. One "
    "pretraining seed: differences between models of a deviation or two say nothing.",
    "step": "ELECTRA small of the paper (12 x 256, generator a quarter as wide) and COCO-LM small (12 x 256, auxiliary of 2 "
    "layers), vocabulary 30,522, on 16 x 128 tokens: forward, loss and backward in float32. Plain models: of ELECTRA "
    "its two stock ones, a pass each; of COCO-LM `CocoLmForMaskedLM`, of which the auxiliary one samples (forward only) "
    "and learns, and the main one reads corrupted and cropped texts. `ratio` is the composite over their sum: at most 1.1 "
    "is wanted of ELECTRA, 1.15 of COCO-LM. Bodies are the same without heads, of which those of masked LMs project every "
    "position to the vocabulary. Memory is the growth of the peak of a fresh process from the model's making to the end of "
    "two steps, MB.",
}


class Benchmark:
    """The benchmark; one method per section, which returns its rows."""

    def __init__(self, options: argparse.Namespace):
        import torch
        from transformers.utils import logging

        torch.set_num_threads(options.threads)
        self.options, self.size, self.folder = options, SIZES[options.size], Path(options.work_dir)
        self.flops = options.flops or self.size["flops"]
        self.quiet = {"report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": torch.cuda.is_available()}
        # Suppress warnings about missing and unexpected weights, which are expected between objectives.
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def _config(self, model: str) -> dict:
        return {**MODELS[model][1], **self.size["body"]}

    def _pretrained(self, model: str, steps: int, name: str) -> dict:
        """Return the record of a pretraining in the folder `name`; a finished one is not repeated."""
        from hf_tlm.corpora import load_corpus
        from hf_tlm.data import BlockArguments
        from hf_tlm.runs import run_pretraining
        from hf_tlm.training import ModelArguments, PretrainArguments
        from hf_tlm.utils.files import atomic_write

        args = PretrainArguments(
            output_dir=str(self.folder / name),
            objective=MODELS[model][0],
            max_length=MAX_LENGTH,
            max_steps=steps,
            per_device_train_batch_size=self.size["batch"],
            learning_rate=self.size["learning_rate"],
            warmup_steps=WARM_UP,
            save_strategy="no",
            bf16=self.options.bf16,
            use_cpu=self.options.use_cpu,
            **self.quiet,
        )
        config = self.folder / f"{slug(model)}.json"
        atomic_write(config, json.dumps(self._config(model), indent=2) + "\n")
        model_args = ModelArguments(model_config=str(config), vocab_size=self.size["vocabulary"])
        blocks = BlockArguments(validation_share=0.002, max_validation_blocks=300, vocab_texts=50_000)
        sample = corpus_sample(self.folder / "corpus.parquet", self.size["passages"])
        return run_pretraining(load_corpus(sample), args, model_args, blocks).record

    def pretrain(self) -> list[dict]:
        rows = []
        for model in self.options.models:
            one = self._pretrained(model, 1, f"{slug(model)}-one-step")["cost"]["measured_flops"]
            steps = max(1, round(self.flops / one))
            record = self._pretrained(model, steps, slug(model))
            rows.append(
                {
                    "model": model,
                    "parameters": trunk(self._config(model), record["vocabulary"]),
                    "FLOPs a step": f"{one:.3g}",
                    "steps": steps,
                    "FLOPs": f"{record['cost']['measured_flops']:.3g}",
                    "tokens": record["cost"]["real_tokens"],
                    "seconds": record["cost"]["seconds"],
                    **{name: record["validation"].get(name) for name in ("mlm_loss", "rtd_loss")},
                    "record": {name: record[name] for name in ("cost", "corpus", "training", "validation", "vocabulary")},
                }
            )
            print(rows[-1] | {"record": "..."}, flush=True)
        return rows

    def finetune(self) -> list[dict]:
        from hf_tlm.runs.records import aggregate, format_score

        rows = []
        for model in self.options.models:
            scores = {task: self._finetuned(model, task) for task in self.options.tasks}
            seeds = [{"average": sum(values) / len(values)} for values in zip(*scores.values(), strict=True)]
            summary = {task: aggregate([{task: value} for value in values])[task] for task, values in scores.items()}
            summary["average"] = aggregate(seeds)["average"]
            rows.append({"model": model} | {name: format_score(score) for name, score in summary.items()} | {"all": summary})
            print(rows[-1], flush=True)
        return rows

    def _finetuned(self, model: str, task: str) -> list[float]:
        """Fine-tune a model on a task, and return the score of every seed."""
        from hf_tlm.runs import finetune
        from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments
        from hf_tlm.tasks import load_task

        settings = TASKS[task]
        loaded = load_task(f"{data_dir()}/tasks/glue_{task}", metric=settings["metric"])
        splits = {"train": loaded.train.shuffle(seed=0), "validation": loaded.validation}
        splits["train"] = splits["train"].select(range(min(len(loaded.train), settings.get("rows", len(loaded.train)))))
        args = FinetuneArguments(
            output_dir=str(self.folder / f"{slug(model)}-{task}"),
            seeds=self.options.seeds,
            max_length=MAX_LENGTH,
            max_steps=self.options.finetune_steps,
            total_batch_size=FINETUNE_BATCH,
            learning_rate=self.options.finetune_rate,
            layerwise_lr_decay=FINETUNE_DECAY,
            eval_strategy="steps",
            eval_steps=0.25,
            bf16=self.options.bf16,
            use_cpu=self.options.use_cpu,
            **self.quiet,
        )
        checkpoint = CheckpointArguments(model_name_or_path=str(self.folder / slug(model)))
        run = finetune(dataclasses.replace(loaded, splits=splits), checkpoint, args)
        return run.summary["validation"][settings["metric"]]["values"]

    def step(self) -> list[dict]:
        return measure_step(self.options.composites, repeats=self.options.repeats, threads=self.options.threads)


def slug(model: str) -> str:
    return model.lower().replace(" ", "_")


def trunk(config: dict, vocab_size: int) -> int:
    """Return the number of a body's parameters, without its pooler."""
    import torch
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        body = AutoModel.from_config(AutoConfig.for_model(**config, vocab_size=vocab_size))
    return sum(value.numel() for name, value in body.named_parameters() if not name.startswith("pooler."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    add("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="Seeds of fine-tuning.")
    add("--size", choices=list(SIZES), default="minutes")
    add("--flops", type=float, help="Measured FLOPs of each model's pretraining; default by size.")
    add("--bf16", action="store_true")
    add("--use_cpu", action="store_true", help="Train on the CPU; required for bf16 on a CPU.")
    add("--finetune_steps", type=int, default=FINETUNE_STEPS)
    add("--finetune_rate", type=float, default=FINETUNE_RATE, help="Peak learning rate of fine-tuning.")
    add("--composites", nargs="+", choices=list(CONFIGS), default=list(CONFIGS), help="Models of `step`.")
    add("--repeats", type=int, default=5, help="Repeats of `step`.")
    add("--threads", type=int, default=os.cpu_count())
    add(
        "--work_dir",
        default="runs/objectives",
        help="Folder of the runs; use another one for another budget or number of steps.",
    )
    run_sections(parser, Benchmark, "objectives", TITLES, NOTES, hidden=("all", "record"))


if __name__ == "__main__":
    main()
