r"""How soon stage 1 leaves the plateau of word frequencies, with today's recipe and with each lever, and what it is worth.

    python benchmarks/plateau.py --task scierc --output_dir runs/plateau
    python benchmarks/plateau.py --task scierc --levers bert modernbert --output_dir runs/plateau

Every lever of benchmarks/plateau.yaml is some options of recipes/train_tlm.py. It is trained on BM25's subset of the task
(K = 50) until its FLOPs are spent; meanwhile the masked-LM loss is measured on passages that were taken out of the corpus
before retrieval, always the same with the same masks. Tokens (padding not counted), FLOPs and seconds of one core are those
of training alone. Then stage 2 is run, and scored on validation; on test only with `--test`. One JSON file a run is kept in
benchmarks/results/plateau, a finished run is not repeated, and the page is made of all of them. `--share 0/2` and `1/2` run
every second lever each, for two processes side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import TrainerCallback, set_seed
from transformers import logging as transformers_logging

sys.path.insert(0, str(Path(__file__).resolve().parent))
from corpus_sample import ROOT, data_dir
from results_file import machine

from hf_tlm import load_corpus, load_task, retrieve
from hf_tlm.data import TlmCollator, load_tokenizer, tokenize, train_wordpiece
from hf_tlm.evaluation.metrics import compute_metrics_for
from hf_tlm.evaluation.seeds import format_table
from hf_tlm.files import atomic_write
from hf_tlm.parser import parse
from hf_tlm.retrieval import Subset
from hf_tlm.training import ModelArguments, TlmOptions, TlmTrainer, prepare, run_stage
from hf_tlm.training.cost import nominal_tokens, training_flops

LEVERS = ROOT / "benchmarks" / "plateau.yaml"
RESULTS = ROOT / "benchmarks" / "results" / "plateau"
# The part of the corpus that held-out passages are of: the task's own domain.
DOMAINS = {"scierc": "cs_nlp", "acl_arc": "cs_nlp", "chemprot": "biomedical", "rct_ei": "biomedical"}
HELD_OUT = 384
LOSSES = (6.0, 5.5, 5.0, 4.5, 4.0)


def read_levers() -> dict[str, dict[str, Any]]:
    """Name -> options of train_tlm, those of the lever that it is `on` first, and of the section `common` before all."""
    content = yaml.safe_load(LEVERS.read_text(encoding="utf-8"))
    levers: dict[str, dict[str, Any]] = {}
    for name, options in content["levers"].items():
        options = dict(options or {})
        levers[name] = levers.get(options.pop("on", None), content["common"]) | options
    return levers


class Texts:
    """What all levers of a task share: held-out passages, the subset, the tokenizer. Made once, in `folder`."""

    def __init__(self, task_name: str, folder: Path, vocab_size: int, max_words: int | None):
        self.task = load_task(str(data_dir() / "tasks" / task_name))
        self.folder = folder / task_name
        self.held_out = self._held_out(DOMAINS[task_name])
        name = "bm25" if max_words is None else f"bm25-{max_words}-words"
        subset = self.folder / name
        if not (subset / "manifest.json").is_file():
            corpus = load_corpus(f"{self.folder}/corpus/*.parquet", max_words=max_words)
            retrieve(self.task, corpus, top_k=50).save(subset)
        self.subset = Subset.load(subset)
        self.tokenizer_folder = self.folder / f"tokenizer-{vocab_size}"
        if not self.tokenizer_folder.is_dir():
            # Of the uncut subset, whatever is trained on: losses over another vocabulary could not be compared.
            texts = [*self.task.train["text"], *Subset.load(self.folder / "bm25").dataset["text"]]
            train_wordpiece(texts, vocab_size, lowercase=True, max_length=128).save_pretrained(self.tokenizer_folder)

    def _held_out(self, domain: str) -> list[str]:
        """Passages of one part of the corpus, and the corpus without them as files."""
        file = self.folder / "held_out.json"
        if not file.is_file():
            rows = load_corpus(f"{data_dir()}/corpus/{domain}.parquet").to_dataset()
            chosen = np.random.default_rng(0).choice(len(rows), HELD_OUT, replace=False)
            (self.folder / "corpus").mkdir(parents=True, exist_ok=True)
            for source in sorted((data_dir() / "corpus").glob("*.parquet")):
                target = self.folder / "corpus" / source.name
                if source.stem == domain:
                    rows.select(np.setdiff1d(np.arange(len(rows)), chosen)).to_parquet(str(target))
                else:
                    shutil.copyfile(source, target)
            atomic_write(file, json.dumps(rows.select(np.sort(chosen))["text"][:]))
        return json.loads(file.read_text(encoding="utf-8"))


class HeldOutLoss(TrainerCallback):
    """The masked-LM loss of the model as it is, at some tens of points of a run, and what training had cost until then.

    batches: collated and masked once.
    """

    def __init__(self, texts: list[str], tokenizer, *, mlm_probability: float = 0.15):
        from datasets import Dataset

        rows = tokenize(Dataset.from_dict({"text": texts}), tokenizer, 128, description="Tokenising held-out passages")
        rows = sorted(({"input_ids": row["input_ids"], "draw": index} for index, row in enumerate(rows)), key=_length)
        collate = TlmCollator(tokenizer, mlm_probability=mlm_probability, seed=12345)
        self.batches = [collate(rows[start : start + 32]) for start in range(0, len(rows), 32)]
        self.points: list[dict[str, float]] = []
        self.trainer: TlmTrainer | None = None
        self._seconds = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self._started, self._next = time.process_time(), 0.0

    def on_step_end(self, args, state, control, **kwargs):
        tokens = self.trainer._real_tokens(state.global_step)
        last = state.global_step >= state.max_steps
        if tokens < self._next and not last:
            return
        self._seconds += time.process_time() - self._started
        nominal = nominal_tokens(self.trainer.batch_sampler, self.trainer.args, state.global_step)
        self.points.append(
            {
                "step": state.global_step,
                "tokens": tokens,
                "flops": training_flops(nominal, self.trainer.model._parameter_count),
                "seconds": round(self._seconds, 2),
                "loss": round(self._loss(), 4),
            }
        )
        # Close together where losses fall fast, and 2% apart later.
        self._next = tokens + max(60_000, 0.02 * tokens)
        self._started = time.process_time()

    @torch.inference_mode()
    def _loss(self) -> float:
        model, device = self.trainer.model.eval(), self.trainer.args.device
        total = count = 0.0
        with self.trainer.compute_loss_context_manager():
            for batch in self.batches:
                output = model(**{name: value.to(device) for name, value in batch.items()})
                total += float(output.mlm_loss)
                count += int((batch["mlm_labels"] != -100).sum())
        model.train()
        return total / count


def _length(row: dict) -> int:
    return len(row["input_ids"])


def run_lever(name: str, options: dict[str, Any], task_name: str, folder: Path, *, seed: int, test: bool) -> dict[str, Any]:
    """Both stages of a lever, and what is recorded of them."""
    options = dict(options)
    max_words = options.pop("max_words", None)
    texts = Texts(task_name, folder, options.get("vocab_size", 8000), max_words)
    output_dir = texts.folder / f"{name}-seed-{seed}"
    shutil.rmtree(output_dir, ignore_errors=True)
    values = options | {"tokenizer_name": str(texts.tokenizer_folder), "output_dir": str(output_dir), "seed": seed}
    values |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    model_args, args = parse(ModelArguments, TlmOptions, recipe="train_tlm", description="", args=[], values=values)
    task = texts.task
    setup = prepare(task, texts.subset.dataset, args, model_args)
    held_out = HeldOutLoss(texts.held_out, load_tokenizer(str(texts.tokenizer_folder)))
    metrics = compute_metrics_for(task.metric)
    shared = {"compute_metrics": metrics, "processing_class": setup.tokenizer}
    record: dict[str, Any] = {"lever": name, "task": task_name, "seed": seed, "options": options, "metric": task.metric}
    stage_args, data = args.for_stage(1, output_dir / "stage1", seed, task.metric), setup.data
    set_seed(seed)
    trainer = TlmTrainer(
        setup.make_model(),
        stage_args,
        train_dataset=data.train,
        corpus_dataset=data.corpus,
        eval_dataset=data.validation,
        callbacks=[held_out],
        **shared,
    )
    held_out.trainer, begun = trainer, time.process_time()
    trainer.train()
    scores = {name.removeprefix("eval_"): value for name, value in trainer.evaluate().items()}
    record["stage1"] = {"cost": trainer.cost().to_dict(), "validation": {task.metric: scores[task.metric]}}
    model = trainer.model
    if args.stage == "both":
        begun = time.process_time()
        stage_args = args.for_stage(2, output_dir / "stage2", seed, task.metric)
        model, cost, scores = run_stage(
            2, lambda: trainer.model, stage_args, data, setup.tokenizer, compute_metrics=metrics, id2label=task.id2label
        )
        record["stage2"] = {"cost": cost.to_dict(), "validation": scores}
        record["stage2"]["cpu_seconds"] = round(time.process_time() - begun, 1)
    if test and setup.test is not None:
        scored = TlmTrainer(model, stage_args, train_dataset=data.train, **shared).predict(setup.test)
        record["test"] = {task.metric: scored.metrics[f"test_{task.metric}"]}
    record["points"] = held_out.points
    record["parameters"] = model.num_parameters()
    record["machine"] = machine()
    record["command"] = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    shutil.rmtree(output_dir, ignore_errors=True)
    return record


def until(points: list[dict[str, float]], loss: float) -> dict[str, float] | None:
    """The first point from which on the loss is not above this one again at the next; None where it is never reached."""
    for point, after in zip(points, [*points[1:], points[-1]], strict=True):
        if point["loss"] <= loss and after["loss"] <= loss:
            return point
    return None


def page(records: list[dict[str, Any]]) -> str:
    """The results as Markdown, one table a task."""
    parts = [__doc__.split("\n\n")[0].removeprefix("r") + "\n"]
    parts.append(
        "Made by `python benchmarks/plateau.py` from the records beside this page; benchmarks/plateau.yaml says what each lever "
        "is. To a held-out masked-LM loss: million tokens, and seconds of one core in brackets. Scores are in percent, of the "
        "checkpoint best on validation.\n"
    )
    for task in sorted({record["task"] for record in records}):
        rows = []
        for record in [record for record in records if record["task"] == task]:
            row = {"lever": record["lever"], "seed": str(record["seed"])}
            for loss in LOSSES:
                point = until(record["points"], loss)
                row[f"to {loss}"] = f"{point['tokens'] / 1e6:.2f} ({point['seconds']:.0f})" if point else "-"
            last = record["points"][-1] if record["points"] else None
            row["at the end"] = f"{last['loss']:.2f}" if last else ""
            row["tokens"] = f"{last['tokens'] / 1e6:.1f} M" if last else ""
            row["FLOPs"] = f"{last['flops']:.1e}" if last else ""
            row["seconds"] = f"{last['seconds']:.0f}" if last else ""
            stage = record.get("stage2", record.get("stage1"))
            row["validation"] = f"{100 * stage['validation'][record['metric']]:.1f}"
            row["test"] = f"{100 * record['test'][record['metric']]:.1f}" if "test" in record else ""
            rows.append(row)
        parts.append(f"## {task}\n\n{format_table(rows, list(rows[0]))}\n")
    return "\n".join(parts)


def records_in(folder: Path) -> list[dict[str, Any]]:
    """All records, in the order of the levers' file."""
    order = list(read_levers())
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda r: (order.index(r["lever"]) if r["lever"] in order else len(order), r["seed"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="scierc", choices=sorted(DOMAINS))
    parser.add_argument("--levers", nargs="+", help="Default: all.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--test", action="store_true", help="Score the test split too: for what is chosen already.")
    parser.add_argument("--share", default="0/1", help="i/n: every nth lever, from the ith on.")
    parser.add_argument("--output_dir", default="runs/plateau")
    parser.add_argument("--results_dir", default=str(RESULTS))
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers_logging.disable_progress_bar()
    levers, results = read_levers(), Path(options.results_dir)
    if unknown := set(options.levers or ()) - set(levers):
        raise SystemExit(f"No lever {', '.join(sorted(unknown))} in {LEVERS.name}: it has {', '.join(levers)}.")
    first, step = map(int, options.share.split("/"))
    runs = [(seed, name) for seed in options.seeds for name in options.levers or levers][first::step]
    for seed, name in runs:
        file = results / f"{options.task}.{name}.seed-{seed}.json"
        if file.is_file():
            continue
        record = run_lever(name, levers[name], options.task, Path(options.output_dir), seed=seed, test=options.test)
        atomic_write(file, json.dumps(record, indent=1) + "\n")
        print(page([record]), flush=True)
    atomic_write(results.with_suffix(".md"), page(records_in(results)))


if __name__ == "__main__":
    main()
