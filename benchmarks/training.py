"""Compare the training engine with the plain Trainer: real tokens per second, loss curves, overhead, memory.

    python benchmarks/training.py --sections throughput curves ceiling overhead precision pipeline step memory corpus
    python benchmarks/training.py --sections gpu kernels --device cuda --bf16

Masked language modelling from scratch on the passages retrieved for ChemProt (HF_TLM_DATA, default ../shared/data): complete
ones (most are truncated at 128 tokens), and short texts, pairs of their sentences. BERT 4 x 256 and 12 x 768 with a
vocabulary of 30,522, 32 texts of at most 128 tokens per step, float32 by default, fused AdamW, clipping. The plain side is
`Trainer` with `BertForMaskedLM` and `DataCollatorForLanguageModeling`, padded to 128. Overhead is that over a bare loop. The
sides alternate, each run in a new process; figures are medians of `--repeats`. Writes benchmarks/results/training.json and
.md.

Texts are tokenised once in `--work_dir` and reused by later commands, also on a machine without the corpus.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from dataclasses import replace
from statistics import mean, median

import training_curves
import training_loops as loops
import training_measures as measures
from measuring import fresh
from results_file import run_sections
from training_gpu import FLASH, GpuSections

TITLES = {
    "throughput": "Real tokens per second",
    "curves": "Loss curves on the same texts and masks",
    "ceiling": "What there is to win",
    "overhead": "The Trainer over a bare loop on the same batches",
    "precision": "Half precision and compilation",
    "pipeline": "Making batches",
    "step": "Where a step goes",
    "memory": "Peak memory of training",
    "corpus": "Peak memory against the size of the corpus",
    "gpu": "On a GPU",
    "kernels": "Where a step goes on a GPU",
}
NOTES = {
    "throughput": "`fill` is the share of computed places that are not padding; `loss` the mean over the steps named, whose "
    "texts and masks are another random draw on each side. Time runs from the end of the second step "
    "(compiled, the fifth).",
    "curves": "Both sides on the same texts with the same masks, no dropout, from the same weights, by the same optimizer. "
    "Plain: `Trainer` and `BertForMaskedLM` on rows padded to 128. `largest difference` is that of two losses of a step.",
    "ceiling": "A bare loop of our model on short texts one after the other in rows without padding (`fill` 1), against the "
    "plain Trainer on as many texts: the ratio that no layout of them can exceed. Rows of 128 tokens attend to more than "
    "texts do; the other rows are as long as a text is on average.",
    "overhead": "The loop has its batches ready: forward, loss, backward, clipping, optimizer, schedule and nothing else. "
    "rho1 = 3: every fourth batch is of ChemProt's labelled texts, with the task's loss beside the masked-LM loss, on both "
    "sides; the Trainer logs every fourth step. Both take steps of one model by turns, each first in every other one. "
    "Twelve steps before are not timed: among the first ten of a process some take longer, with the Trainer by up to 2.6 s "
    "at 12x768 (`training_first_steps.json`: two steps before, ratios of 1.004 to 1.03 over the next twenty); why is not "
    "known. "
    "`ratio` is the median of the repeats' ratios of whole times, `lowest` and `highest` their range; `of single steps` and "
    "`ms more` are medians over the pairs of steps of all repeats.",
    "precision": "A bare loop on short texts, groups of similar length; all arms take steps on the same batches by turns. "
    "Medians of the steps after the fifth. `recompilations` are the graphs that were compiled in those. `float32` is as the "
    "Trainer computes: products of linear layers by oneDNN, where torch's own library does not use the processor's AVX-512.",
    "pipeline": "Batches of short texts from the Arrow file to padded and masked tensors, and no training beside it. The "
    "default is 0 workers: the process that trains makes them.",
    "step": "On the CPU in float32: a bare loop, short texts; dropout as torch draws it and as `hf_tlm.models.cpu_kernels` "
    "does, on the same batches by turns: the mean over batches of each one's fastest pass. Shares of the time that torch's "
    "profiler counts, in a pass of its own; `the rest` is everything from layer norms to the embedding's gradient.",
    "memory": "MB of a fresh process after five steps, and what it held before the model was made: its largest resident set "
    "on a CPU, what torch has allocated on a GPU.",
    "corpus": "On the CPU: random token ids in an Arrow file of that size, 4 x 256; three steps. `anonymous` is memory that "
    "no file backs, which is what a corpus must not grow.",
    "gpu": "Short texts; `ratio` is over the plain Trainer that is not compiled, in the same precision. `MFU` is (6 P T + "
    "12 L H x the sum of n^2) / seconds / 790e12: P the parameters of the body's L layers of width H (no embeddings, no "
    "heads), T the real tokens of the timed steps, n the length of each of their texts. That leaves out the masked-LM "
    "head's products, some 4% at 12 x 768, and counts the last layer as a whole, whose end ours, where it is not compiled, "
    "computes for masked tokens only, some 5%. Time runs from the end of the tenth step to that of the last, both "
    "synchronised; one run an arm. Memory is what torch allocated at the most (on a CPU the largest resident set), "
    "`recompilations` the graphs compiled in the timed steps, `failed` the error that ended an arm.",
    "kernels": "Ten steps of the fastest of our arms of `gpu`, by torch's profiler. What a step takes in `gpu` beyond the "
    "sum of these milliseconds is time in which no kernel ran.",
}
# Timed steps by body: the plain side needs minutes for a few of the large one.
STEPS = {"2x64": 4, "4x256": 20, "12x768": 3}
# Complete rounds of three corpus batches and a task batch.
OVERHEAD_STEPS, OVERHEAD_WARM = {"2x64": 8, "4x256": 40, "12x768": 12}, 12
CURVE_STEPS = {"2x64": 20, "4x256": 20, "12x768": 5}


class Benchmark(GpuSections):
    """The benchmark; one method per section, which returns its rows."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.cpu = measures.Setting(threads=options.threads)
        self.device = replace(self.cpu, device=options.device)
        self.setting = replace(
            self.device,
            bf16=options.bf16,
            compile=bool(options.compile),
            backend=options.compile_backend,
            attention=options.attn or "sdpa",
        )
        self._check()
        self.data = fresh(
            measures.prepare,
            data=os.environ.get("HF_TLM_DATA", "../shared/data"),
            work_dir=options.work_dir,
            passages=options.passages,
            vocab_size=options.vocab_size,
        )

    def _check(self) -> None:
        options = self.options
        if options.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                sys.exit("--device cuda needs a GPU, and torch sees none. Leave it out to measure on the CPU.")
        elif options.bodies is None and {"gpu", "kernels"} & set(options.sections):
            sys.exit(
                "The sections gpu and kernels are for --device cuda. Name the others with --sections, or rehearse these two "
                "with --bodies 2x64."
            )

    def _bodies(self, *default: str) -> list[str]:
        return self.options.bodies or list(default)

    def _packing(self) -> list[str]:
        return self.options.packing or ["none", "group", "pack"]

    def _repeats(self, default: int = 3) -> range:
        return range(self.options.repeats or default)

    def _short(self, function, **arguments):
        """Run a function in a new process on the short texts, and return its result."""
        return fresh(function, **arguments, **self.data["short"])

    def throughput(self) -> list[dict]:
        rows = []
        for texts, body in itertools.product(self.options.texts, self._bodies("4x256", "12x768")):
            steps = self.options.steps or STEPS[body]
            sides = ("plain", *(f"ours, {packing}" for packing in self._packing()))
            runs: dict[str, list[dict]] = {side: [] for side in sides}
            for repeat, side in itertools.product(self._repeats(), sides):
                runs[side].append(self._train(side, body, steps, repeat, texts))
            for side in sides:
                ratios = _ratios(runs[side], runs["plain"])
                rows.append(
                    {
                        "texts": texts,
                        "body": body,
                        "side": side,
                        "real tokens/s": median(run["tokens per second"] for run in runs[side]),
                        "ratio": median(ratios),
                        "fill": median(run["fill"] for run in runs[side]),
                        f"loss, last {measures.LAST} steps": median(run["loss"] for run in runs[side]),
                        "steps": steps,
                        "repeats": len(ratios),
                        "all": {"ratios": ratios, "losses": [run["losses"] for run in runs[side]]},
                    }
                )
                print(rows[-1])
        return rows

    def _train(self, side: str, body: str, steps: int, seed: int, texts: str) -> dict:
        return fresh(measures.train, side=side, body=body, steps=steps, seed=seed, setting=self.setting, **self.data[texts])

    def curves(self) -> list[dict]:
        rows = []
        for body, packing in itertools.product(self._bodies("4x256", "12x768"), self._packing()):
            steps = self.options.steps or CURVE_STEPS[body]
            arguments = {"body": body, "packing": packing, "steps": steps}
            run = self._short(training_curves.curves, seed=0, setting=self.device, **arguments)
            differences = [abs(a - b) for a, b in zip(run["ours"], run["plain"], strict=True)]
            rows.append(
                {
                    "body": body,
                    "layout": packing,
                    "largest difference": max(differences),
                    "first loss": run["plain"][0],
                    "last loss, plain": run["plain"][-1],
                    "last loss, ours": run["ours"][-1],
                    "steps": steps,
                    "all": run,
                }
            )
            print(rows[-1])
        return rows

    def ceiling(self) -> list[dict]:
        rows = []
        for body in self._bodies("4x256", "12x768"):
            steps = self.options.steps or STEPS[body]
            runs: dict[int | None, list[dict]] = {measures.MAX_LENGTH: [], None: []}
            plain = []
            for repeat in self._repeats():
                plain.append(self._train("plain", body, steps, repeat, "short"))
                for length, found in runs.items():
                    arguments = {"body": body, "steps": steps, "seed": repeat, "length": length}
                    found.append(self._short(loops.full_rows, setting=self.setting, **arguments))
            for found in runs.values():
                rows.append(
                    {
                        "body": body,
                        "tokens a row": round(median(run["length"] for run in found)),
                        "plain Trainer, real tokens/s": median(run["tokens per second"] for run in plain),
                        "full rows": median(run["tokens per second"] for run in found),
                        **_spread(_ratios(found, plain)),
                        "steps": steps,
                        "repeats": len(plain),
                    }
                )
                print(rows[-1])
        return rows

    def overhead(self) -> list[dict]:
        rows = []
        for body in self._bodies("4x256", "12x768"):
            steps = self.options.steps or OVERHEAD_STEPS[body]
            arguments = {"body": body, "steps": steps, "setting": self.setting, "warm": OVERHEAD_WARM}
            arguments |= self.data["labelled"]
            runs = [self._short(loops.overhead, seed=repeat, **arguments) for repeat in self._repeats(5)]
            pairs = [pair for run in runs for pair in zip(run["trainer"], run["loop"], strict=True)]
            rows.append(
                {
                    "body": body,
                    "Trainer, ms a step": 1000 * median(mean(run["trainer"]) for run in runs),
                    "bare loop": 1000 * median(mean(run["loop"]) for run in runs),
                    **_spread([sum(run["trainer"]) / sum(run["loop"]) for run in runs]) | {"all": runs},
                    "of single steps": median(trainer / loop for trainer, loop in pairs),
                    "ms more, single steps": 1000 * median(trainer - loop for trainer, loop in pairs),
                    "steps": steps,
                    "repeats": len(runs),
                }
            )
            print(rows[-1])
        return rows

    def precision(self) -> list[dict]:
        rows = []
        for body in self._bodies("4x256"):
            steps = self.options.steps or STEPS[body]
            setting = replace(self.device, backend=self.options.compile_backend)
            arms = self._short(loops.precision, body=body, steps=steps, seed=0, packing="group", setting=setting)
            exact = median(arms["float32"]["seconds"])
            for name, arm in arms.items():
                taken = median(arm["seconds"])
                rows.append(
                    {
                        "body": body,
                        "precision": name,
                        "ms a step": 1000 * taken,
                        "ratio to float32": taken / exact,
                        "recompilations": arm["recompilations"],
                        "steps": steps,
                        "all": arm["seconds"],
                    }
                )
                print(rows[-1])
        return rows

    def pipeline(self) -> list[dict]:
        rows = []
        for batch, packing, workers in itertools.product((32, 256), self._packing(), (0, 2)):
            setting, batches = replace(self.cpu, batch=batch), self.options.steps or 100
            arguments = {"packing": packing, "workers": workers, "batches": batches, "setting": setting}
            runs = [self._short(loops.pipeline, **arguments) for _ in self._repeats()]
            row = {"texts a batch": batch, "layout": packing, "workers": workers, "ms a batch": 1000 * median(runs)}
            rows.append(row | {"batches": batches, "repeats": len(runs)})
            print(rows[-1])
        return rows

    def step(self) -> list[dict]:
        rows = []
        for body, packing in itertools.product(self._bodies("4x256", "12x768"), self._packing()):
            steps, repeats = self.options.steps or STEPS[body], len(self._repeats())
            arguments = {"body": body, "packing": packing, "steps": steps, "repeats": repeats}
            run = self._short(loops.step, setting=self.cpu, **arguments)
            rows += [{"body": body, "layout": packing, **part, "steps": steps, "repeats": repeats} for part in run]
            print(rows[-2:])
        return rows

    def memory(self) -> list[dict]:
        rows = []
        for body, side in itertools.product(self._bodies("4x256", "12x768"), ("plain", "ours, auto")):
            run = self._train(side, body, 3, 0, "short")
            rows.append({"body": body, "side": side, "peak": run["peak"], "before": run["before"]})
            print(rows[-1])
        return rows

    def corpus(self) -> list[dict]:
        rows = []
        for megabytes in self.options.corpus_sizes:
            run = fresh(
                measures.train_on_size, megabytes=megabytes, threads=self.options.threads, work_dir=self.options.work_dir
            )
            rows.append({"corpus, MB": megabytes, **run})
            print(rows[-1])
        return rows


def _ratios(runs: list[dict], plain: list[dict]) -> list[float]:
    return [run["tokens per second"] / other["tokens per second"] for run, other in zip(runs, plain, strict=True)]


def _spread(ratios: list[float]) -> dict:
    return {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios), "all": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--bodies",
        nargs="+",
        choices=list(measures.BODIES),
        help="Default: 4x256 12x768; for precision 4x256, for gpu 12x768.",
    )
    add("--texts", nargs="+", choices=("short", "whole"), default=["short", "whole"], help="Texts of `throughput`.")
    add("--packing", nargs="+", choices=("none", "group", "pack"), help="Default: all; for gpu group and pack.")
    add("--steps", type=int, help="Timed steps of a run; default by body, for gpu 50, for pipeline 100.")
    add("--repeats", type=int, help="Default: 3; for overhead 5.")
    add("--threads", type=int, default=os.cpu_count())
    add("--device", choices=("cpu", "cuda"), default="cpu", help="Device; pipeline, step and corpus use the CPU.")
    add("--bf16", action="store_true", help="Autocast in throughput, ceiling, overhead, memory and gpu.")
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="torch.compile in throughput, ceiling, overhead and memory; gpu measures both ways unless one is given.",
    )
    add("--compile_backend", default="inductor", help="Backend of torch.compile; `eager` only traces, for a rehearsal.")
    add(
        "--attn",
        choices=("sdpa", FLASH),
        help="Attention of both sides; in gpu of ours only, by default all installed ones.",
    )
    add("--batch_size", type=int, default=256, help="Texts per step in gpu; 32 elsewhere.")
    add("--passages", type=int, default=150_000, help="Passages of the corpus to retrieve ChemProt's from.")
    add("--vocab_size", type=int, default=30_522)
    add("--corpus_sizes", nargs="+", type=int, default=[10, 1000, 10_000], help="MB of token ids.")
    add("--work_dir", default="runs/training_benchmark")
    run_sections(parser, Benchmark, "training", TITLES, NOTES, hidden=("all",))


if __name__ == "__main__":
    main()
