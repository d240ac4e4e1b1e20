"""Pretrain COCO-LM's tiny model with and without sequence contrastive learning (SCL): Figures 7 and 8 of its paper.

    python benchmarks/coco_lm.py --steps 600 --threads 1 --work_dir runs/coco_lm

Pretrains recipes/configs/pretrain/cocolm_tiny.yaml like recipes/pretrain.py, on passages of the corpus in HF_TLM_DATA
(default ../shared/data), once as it is and once with `--scl false`, and keeps checkpoints. All checkpoints of both runs are
evaluated in the same way, on the same held-out blocks with the same masks and crops, because a run without SCL has no crops
and logs no cosines. Writes benchmarks/results/coco_lm.json, .md and .png (extra [analysis]). A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
from pathlib import Path

from corpus_sample import corpus_sample
from results_file import run_sections

CONFIGS = ["recipes/configs/pretrain/tiny.yaml", "recipes/configs/pretrain/cocolm_tiny.yaml"]
SCL, NO_SCL = "with SCL", "without SCL"
ARMS = {SCL: [], NO_SCL: ["--scl", "false"]}
# Logged name -> column of the table.
COSINES = {"cosine_positive": "cosine, positive pairs", "cosine_negative": "cosine, negative pairs"}
COPY = {"copy_accuracy_replaced": "copy accuracy, replaced", "copy_accuracy_original": "copy accuracy, original"}
LM = {"lm_accuracy_replaced": "LM accuracy, replaced", "lm_accuracy_original": "LM accuracy, original"}
MEASURES = {**COSINES, **COPY, **LM, "replaced_fraction": "replaced", "copy_loss": "copy loss"}
PANELS = {"Cosine of pairs of texts": COSINES, "Copy accuracy": COPY, "LM accuracy at masked positions": LM}

TITLES = {"curves": "COCO-LM with and without sequence contrastive learning"}
NOTES = {
    "curves": "One seed. Of held-out blocks, without dropout. A positive pair is a block, corrupted, and 90% of it; a "
    "negative pair is two views of different blocks; the cosine is that of the first token's hidden states. Accuracies are "
    "shares of the tokens that the auxiliary model replaced, and of those that are as they were (of the LM, at masked "
    "positions). `copy loss, share alone` is the copy loss of who knows no more than the share of replaced tokens. The JSON "
    "has what training itself logged too (`logged`: means since the line before, with dropout)."
}


class Benchmark:
    """The benchmark; one method per section, which returns its rows."""

    def __init__(self, options: argparse.Namespace):
        import torch
        from transformers.utils import logging

        torch.set_num_threads(options.threads)
        logging.disable_progress_bar()
        self.options, self.folder = options, Path(options.work_dir)

    def curves(self) -> list[dict]:
        from hf_tlm.runs import run_pretraining

        for arm in ARMS:
            corpus_args, block_args, model_args, args = self._arguments(arm)
            print(run_pretraining(corpus_args.load(), args, model_args, block_args).to_text(), flush=True)
        rows = [row for arm in ARMS for row in self._measured(arm)]
        draw(rows, Path(self.options.results_dir) / f"{self.options.name}.png")
        return rows

    def _folder(self, arm: str) -> Path:
        return self.folder / arm.lower().replace(" ", "_")

    def _arguments(self, arm: str) -> tuple:
        """Parse the arguments as recipes/pretrain.py does."""
        from hf_tlm.config import parse
        from hf_tlm.corpora import CorpusArguments
        from hf_tlm.data import BlockArguments
        from hf_tlm.training import ModelArguments, PretrainArguments

        options = self.options
        values = {
            "corpus": corpus_sample(self.folder / "corpus.parquet", options.passages),
            "output_dir": self._folder(arm),
            "max_steps": options.steps,
            "total_batch_size": options.batch_size,
            "per_device_train_batch_size": options.batch_size,
            "per_device_eval_batch_size": options.batch_size,
            "max_validation_blocks": options.validation_blocks,
            "seed": options.seed,
            # Keep all checkpoints, for measuring only: none is resumed from.
            **{"save_strategy": "steps", "save_steps": options.every, "save_total_limit": options.steps},
            **{"save_only_model": "true", "logging_steps": options.every, "report_to": "none", "disable_tqdm": "true"},
        }
        arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        return parse(
            *(CorpusArguments, BlockArguments, ModelArguments, PretrainArguments),
            recipe="pretrain",
            description=__doc__,
            args=["--config", *CONFIGS, *arguments, *ARMS[arm]],
        )

    def _measured(self, arm: str) -> list[dict]:
        """Return a row for the model before the first step, and for every checkpoint."""
        from transformers import set_seed

        from hf_tlm.data import BlockShards, load_tokenizer
        from hf_tlm.runs.pretrain import ID2LABEL, TOKENIZER, TRAINING
        from hf_tlm.training import TlmTrainer, model_factory
        from hf_tlm.training.checkpoints import checkpoints_in

        # Measured with SCL in both cases; the two models have the same parameters.
        corpus_args, block_args, model_args, args = self._arguments(SCL)
        run = self._folder(arm)
        tokenizer = load_tokenizer(str(run / TOKENIZER))
        tokenizer.model_max_length = args.max_length
        shards = BlockShards(
            *(corpus_args.load(), tokenizer, args.max_length, block_args.blocks),
            shard_size=block_args.shard_size,
            validation_share=block_args.validation_share,
        )
        set_seed(args.seed)
        trainer = TlmTrainer(
            model_factory(args, model_args, tokenizer, id2label=ID2LABEL, max_length=args.max_length)(),
            args.for_trainer(self.folder / "measuring", args.seed),
            train_dataset=None,
            # Neighbouring blocks are from one document, unlike the texts of a training step.
            eval_dataset=shards.validation(block_args.max_validation_blocks, progress=False).shuffle(seed=0),
            processing_class=tokenizer,
        )
        log = json.loads((run / TRAINING / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
        logged = {entry["step"]: entry for entry in log if "loss" in entry}
        rows = []
        for step, checkpoint in [(0, None), *checkpoints_in(run / TRAINING)]:
            if checkpoint is not None:
                load(trainer.model, checkpoint)
            scores, entry = trainer.evaluate(), logged.get(step, {})
            row = {"objective": arm, "step": step, "tokens": entry.get("real_tokens", 0)}
            row |= {shown: scores.get(f"eval_{name}") for name, shown in MEASURES.items()}
            row["copy loss, share alone"] = entropy(row["replaced"])
            rows.append(row | {"logged": {name: entry[f"corpus/{name}"] for name in MEASURES if f"corpus/{name}" in entry}})
        return rows


def entropy(share: float) -> float:
    """Return the copy loss, in nats, of a model that knows the share of replaced tokens, but not which ones they are."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)


def load(model, checkpoint: Path) -> None:
    """Load a checkpoint's weights into a model of the same architecture."""
    from safetensors.torch import load_file

    missing, unexpected = model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=False)
    # The file has tied parameters only once.
    if unexpected or not set(missing) <= set(model.all_tied_weights_keys):
        raise ValueError(f"{checkpoint} is not of this model: missing {missing}, unexpected {unexpected}.")


def draw(rows: list[dict], path: Path) -> None:
    """Draw one panel for each of PANELS: colours stand for measures, solid lines for the arm with SCL."""
    from matplotlib.figure import Figure

    from hf_tlm.utils.files import atomic_write

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    for panel, (title, measures) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for arm, style in zip(ARMS, ("-", "--"), strict=True):
            points = [row for row in rows if row["objective"] == arm]
            if not points:
                continue
            for colour, name in zip(("C0", "C1"), measures.values(), strict=True):
                label = f"{name.rpartition(', ')[2]}, {arm}"
                panel.plot([p["step"] for p in points], [p[name] for p in points], style, color=colour, label=label)
        panel.set(title=title, xlabel="steps")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    atomic_write(path, image.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=600)
    add("--every", type=int, default=50, help="Steps between checkpoints.")
    add("--batch_size", type=int, default=64, help="Blocks per step.")
    add("--passages", type=int, default=30_000, help="Passages drawn at random from the corpus.")
    add("--validation_blocks", type=int, default=512)
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=os.cpu_count())
    add("--work_dir", default="runs/coco_lm", help="Folder of the runs; use another one for other --steps.")
    run_sections(parser, Benchmark, "coco_lm", TITLES, NOTES, hidden=("logged",))


if __name__ == "__main__":
    main()
