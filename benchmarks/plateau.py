r"""How soon stage 1 leaves the plateau of word frequencies, with today's recipe and with each lever, and what it is worth.

    python benchmarks/plateau.py --task scierc --output_dir runs/plateau
    python benchmarks/plateau.py --task scierc --levers bert modernbert --output_dir runs/plateau

Every lever of benchmarks/plateau.yaml is a set of options of recipes/train_tlm.py. It is trained on the task's BM25 subset
(K = 50) until its FLOPs are spent; meanwhile the masked-LM loss is measured on passages that were removed from the corpus
before retrieval, always the same with the same masks. Tokens (padding not counted), FLOPs and seconds of one core are those
of training alone. Then stage 2 runs, and is scored on validation, on test only with `--test`. Each run writes a JSON file
to benchmarks/results/plateau, which git keeps as a line of plateau.jsonl beside it (records.py); a finished run is not
repeated, and the page is computed from all runs, with findings.md at its top.
With `--share 0/2` and `1/2`, two parallel processes run every second lever each.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from corpus_sample import ROOT, data_dir
from records import pack, unpack
from results_file import machine
from transformers import AutoTokenizer, TrainerCallback, set_seed
from transformers import logging as transformers_logging

from hf_tlm import load_corpus, load_task, retrieve
from hf_tlm.config import parse
from hf_tlm.data import TlmCollator, tokenize, train_wordpiece
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.models import TlmModel, export_model, load_exported
from hf_tlm.retrieval import Subset
from hf_tlm.runs.records import format_table
from hf_tlm.runs.teachers.ask import ask_teacher
from hf_tlm.training import ModelArguments, TlmArguments, TlmTrainer, prepare
from hf_tlm.training.cost import nominal_tokens, training_flops
from hf_tlm.training.stages import begin_stage
from hf_tlm.utils.files import atomic_write

LEVERS = ROOT / "benchmarks" / "plateau.yaml"
RESULTS = ROOT / "benchmarks" / "results" / "plateau"
FINDINGS = "findings.md"  # In RESULTS: written by hand, for the top of the page.
# The part of the corpus that held-out passages are from: the task's own domain.
DOMAINS = {"scierc": "cs_nlp", "acl_arc": "cs_nlp", "chemprot": "biomedical", "rct_ei": "biomedical"}
HELD_OUT = 384
LOSSES = (6.0, 5.5, 5.0, 4.5, 4.0)
TEACHERS = (0, 1, 2)  # Seeds of a lever that together teach another lever.


def read_levers() -> dict[str, dict[str, Any]]:
    """Return name -> options of train_tlm: those of the section `common`, then of its `base`, then its own."""
    content = yaml.safe_load(LEVERS.read_text(encoding="utf-8"))
    levers: dict[str, dict[str, Any]] = {}
    for name, options in content["levers"].items():
        options = dict(options or {})
        levers[name] = levers.get(options.pop("base", None), content["common"]) | options
    return levers


class Texts:
    """Data that all levers of a task share: held-out passages, subset and tokenizer, built once in `folder`."""

    def __init__(self, task_name: str, folder: Path, vocab_size: int, added_tokens: Sequence[str]):
        self.task = load_task(str(data_dir() / "tasks" / task_name))
        self.folder = folder / task_name
        self.held_out = self._held_out(DOMAINS[task_name])
        subset = self.folder / "bm25"
        if not (subset / "manifest.json").is_file():
            retrieve(self.task, load_corpus(f"{self.folder}/corpus/*.parquet"), top_k=50).save(subset)
        self.subset = Subset.load(subset)
        self.tokenizer_folder = self.folder / f"tokenizer-{vocab_size}"
        if not self.tokenizer_folder.is_dir():
            texts = [*self.task.train["text"], *self.subset.dataset["text"]]
            train_wordpiece(texts, vocab_size, lowercase=True, max_length=128).save_pretrained(self.tokenizer_folder)
        if added_tokens:
            tokenizer = AutoTokenizer.from_pretrained(self.tokenizer_folder)
            tokenizer.add_tokens(list(added_tokens))
            self.tokenizer_folder = self.folder / f"tokenizer-{vocab_size}-and-{len(added_tokens)}"
            tokenizer.save_pretrained(self.tokenizer_folder)

    def _held_out(self, domain: str) -> list[str]:
        """Return held-out passages of one part of the corpus, after writing the corpus without them."""
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
    """Measures the masked-LM loss of the model, and the cost of training so far, at some tens of steps of a run.

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
        # Frequent while the loss falls fast, later every 2% more tokens.
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


class LeverRun:
    """One lever with one seed: both stages and their record.

    The model at the end of stage 1 is kept: levers of stage 2 alone (`stage1: another lever`) start from it. So is the model
    at the end of stage 2, which teaches the levers with `teachers: another lever`, together with two more seeds.
    """

    def __init__(self, name: str, options: dict[str, Any], task_name: str, folder: Path, seed: int):
        options = dict(options)
        self.source, self.seed = options.pop("stage1", None), seed
        added = options.pop("added_tokens", ())
        self.texts = Texts(task_name, folder, options["vocab_size"], added)
        self.name, self.task = name, self.texts.task
        tokenizer, output_dir = str(self.texts.tokenizer_folder), str(self.texts.folder / "work" / f"{name}-seed-{seed}")
        values = options | {"tokenizer_name": tokenizer, "output_dir": output_dir, "seed": seed}
        if teachers := values.pop("teachers", None):
            values["teacher"] = [str(self._final(teachers, one)) for one in TEACHERS]
            if missing := [folder for folder in values["teacher"] if not Path(folder).is_dir()]:
                raise SystemExit(f"{name} is taught by {teachers}, and {missing[0]} is not there: run that first.")
        values |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
        model_args, self.args = parse(
            ModelArguments, TlmArguments, recipe="train_tlm", description="", args=[], values=values
        )
        passages = self.texts.subset.dataset
        self.setup = prepare(self.task, passages, self.args, model_args, ask_teacher(self.task, passages, self.args))
        self.args = self.setup.args
        self.record: dict[str, Any] = {"lever": name, "task": task_name, "seed": seed, "metric": self.task.metric}
        self.record |= {
            "options": options,
            "stage1_of": self.source,
            "added_tokens": added,
            "points": [],
        }

    def run(self, test: bool) -> dict[str, Any]:
        """Train, and return the record; test: whether to score the test split too."""
        kept = self.texts.folder / "stage1" / f"{self.source or self.name}-seed-{self.seed}"
        stage_args = self._stage_args(1)
        if self.source is None:
            model = self._stage1(stage_args)
            export_model(model, self.setup.tokenizer, kept, {})
        elif not kept.is_dir():
            raise SystemExit(f"{self.name} starts from stage 1 of {self.source} with seed {self.seed}: run that first.")
        else:
            model = load_exported(kept, id2label=self.task.id2label)
        if 2 in self.args.stages:
            stage_args = self._stage_args(2)
            begin_stage(model, 2, self.args, self.seed, self.setup.initialization)
            model = self._stage2(model, stage_args)
            export_model(model, self.setup.tokenizer, self._final(self.name, self.seed), {})
        if test:
            scored = TlmTrainer(model, stage_args, **self._shared(self.args.stages[-1])).predict(self.setup.test)
            self.record["test"] = {self.task.metric: scored.metrics[f"test_{self.task.metric}"]}
        self.record |= {"parameters": model.num_parameters(), "machine": machine()}
        self.record["command"] = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        shutil.rmtree(self.args.output_dir, ignore_errors=True)
        return self.record

    def _final(self, lever: str, seed: int) -> Path:
        """Return the folder of a lever's final model, for the levers that it teaches."""
        return self.texts.folder / "final" / f"{lever}-seed-{seed}"

    def _stage_args(self, stage: int):
        return self.args.for_stage(stage, f"{self.args.output_dir}/stage{stage}", self.seed, self.task.metric)

    def _shared(self, stage: int) -> dict[str, Any]:
        """Return the arguments that trainers of a stage share."""
        return {
            "compute_metrics": compute_metrics_for(self.task.metric),
            "processing_class": self.setup.tokenizer,
            "train_dataset": self.setup.data[stage].train,
            "eval_dataset": self.setup.data[stage].validation,
        }

    def _stage1(self, stage_args) -> TlmModel:
        held_out = HeldOutLoss(self.texts.held_out, self.setup.tokenizer)
        set_seed(self.seed)
        model = self.setup.make_model()
        begin_stage(model, 1, self.args, self.seed, self.setup.initialization)
        trainer = TlmTrainer(
            model,
            stage_args,
            corpus_dataset=self.setup.data[1].corpus if self.args.rho1 > 0 else None,
            callbacks=[held_out],
            **self._shared(1),
        )
        held_out.trainer = trainer
        trainer.train()
        score = trainer.evaluate()[f"eval_{self.task.metric}"]
        self.record |= {"points": held_out.points, "stage1": {"cost": trainer.cost().to_dict(), "validation": score}}
        return trainer.model

    def _stage2(self, model: TlmModel, stage_args) -> TlmModel:
        shutil.rmtree(self.args.output_dir, ignore_errors=True)
        set_seed(self.seed)
        begun = time.process_time()
        trainer = TlmTrainer(model, stage_args, **self._shared(2))
        trainer.train()
        metric = f"eval_{self.task.metric}"
        scores = [round(entry[metric], 4) for entry in trainer.state.log_history if metric in entry]
        self.record["stage2"] = {"cost": trainer.cost().to_dict(), "cpu_seconds": round(time.process_time() - begun, 1)}
        self.record["stage2"] |= {"validation": max(scores), "validations": scores, "max_length": stage_args.max_length}
        return trainer.model


def until(points: list[dict[str, float]], loss: float) -> dict[str, float] | None:
    """Return the first point at which the loss is at most `loss` and stays so at the next point; None if there is none."""
    for point, after in zip(points, [*points[1:], *points[-1:]], strict=True):
        if point["loss"] <= loss and after["loss"] <= loss:
            return point
    return None


def page(records: list[dict[str, Any]], findings: str = "") -> str:
    """Format the results as Markdown: the findings, and one table per task."""
    parts = [__doc__.split("\n\n")[0] + "\n", *([findings] if findings else [])]
    parts.append(
        "Made by `python benchmarks/plateau.py` from the records in plateau.jsonl; benchmarks/plateau.yaml says what a "
        "lever is. *to 5.0*: million tokens until the held-out masked-LM loss is that low, in brackets seconds of one core. "
        "Scores are in percent: *validation* of the best checkpoint of stage 2, *last three* the mean of its last three.\n"
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
            stage2 = record.get("stage2")
            row["validation"] = f"{100 * stage2['validation']:.1f}" if stage2 else ""
            row["last three"] = f"{100 * np.mean(stage2['validations'][-3:]):.1f}" if stage2 else ""
            row["test"] = f"{100 * record['test'][record['metric']]:.1f}" if "test" in record else ""
            rows.append(row)
        parts.append(f"## {task}\n\n{format_table(rows, list(rows[0]))}\n")
    return "\n".join(parts)


def records_in(folder: Path) -> list[dict[str, Any]]:
    """Return all records, in the order of the levers' file."""
    order = list(read_levers())
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda r: (order.index(r["lever"]) if r["lever"] in order else len(order), r["seed"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="scierc", choices=sorted(DOMAINS))
    parser.add_argument("--levers", nargs="+", help="Levers to run. Default: all.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--test",
        action="store_true",
        help="Score the test split too, once levers are chosen; repeats runs without a test score.",
    )
    parser.add_argument("--share", default="0/1", help="i/n: run every n-th lever, starting with number i (from 0).")
    parser.add_argument("--output_dir", default="runs/plateau")
    parser.add_argument("--results_dir", default=str(RESULTS))
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transformers_logging.disable_progress_bar()
    levers, results = read_levers(), Path(options.results_dir)
    if unknown := set(options.levers or ()) - set(levers):
        raise SystemExit(f"No lever {', '.join(sorted(unknown))} in {LEVERS.name}: it has {', '.join(levers)}.")
    if options.results_dir == str(RESULTS):
        unpack(RESULTS)
    first, step = map(int, options.share.split("/"))
    runs = [(seed, name) for seed in options.seeds for name in options.levers or levers][first::step]
    for seed, name in runs:
        file = results / f"{options.task}.{name}.seed-{seed}.json"
        if file.is_file() and (not options.test or "test" in json.loads(file.read_text(encoding="utf-8"))):
            continue
        record = LeverRun(name, levers[name], options.task, Path(options.output_dir), seed).run(options.test)
        atomic_write(file, json.dumps(record, indent=1) + "\n")
        print(page([record]), flush=True)
    findings = results / FINDINGS
    text = findings.read_text(encoding="utf-8") if findings.is_file() else ""
    atomic_write(results.with_suffix(".md"), page(records_in(results), text))
    if options.results_dir == str(RESULTS):
        pack(RESULTS)


if __name__ == "__main__":
    main()
