"""Sections of benchmarks/training.py for a GPU: speed, MFU and memory of every arm, and the kernels of the best one."""

from __future__ import annotations

import itertools
import sys
import traceback
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec

import training_measures as measures
from training_measures import Setting

FLASH = "flash_attention_2"
# Steps: untimed, long enough for compiled arms to see several lengths; timed; profiled.
WARM, STEPS, PROFILED_STEPS = 10, 50, 10
# Rows of the table of kernels, and characters of a kernel's name: C++ templates have hundreds.
MOST, WIDTH = 10, 70


class GpuSections:
    """Section methods of `Benchmark`."""

    def gpu(self) -> list[dict]:
        return self._arms

    def kernels(self) -> list[dict]:
        rows = []
        for body in self._bodies("12x768"):
            arms = [arm for arm in self._arms if arm["body"] == body and arm["side"] != "plain" and not arm["failed"]]
            if not arms:
                sys.exit(f"No arm of ours of {body} ran: there is none whose kernels could be timed. The errors are above.")
            best = max(arms, key=lambda arm: arm["real tokens/s"])
            setting = self._arm(best["attention"], best["compiled"] == "yes")
            arguments = {"side": best["side"], "body": body, "steps": PROFILED_STEPS, "warm": WARM}
            found = self._short(longest_kernels, setting=setting, **arguments)
            arm = {name: best[name] for name in ("body", "side", "attention", "compiled")}
            rows += [{**arm, **row} for row in found]
            print(rows)
        return rows

    def _arm(self, attention: str, compiled: bool) -> Setting:
        return replace(self.setting, attention=attention, compile=compiled, batch=self.options.batch_size)

    @cached_property
    def _arms(self) -> list[dict]:
        """The rows of section gpu; each is printed as soon as it is measured, as time on a GPU may be limited."""
        options, rows = self.options, []
        attentions = [options.attn] if options.attn else ["sdpa", *([FLASH] if find_spec("flash_attn") else [])]
        ways = (False, True) if options.compile is None else (options.compile,)
        ours = [f"ours, {packing}" for packing in options.packing or ("group", "pack")]
        for body in self._bodies("12x768"):
            base = None
            arms = [("plain", "sdpa", compiled) for compiled in dict.fromkeys((False, *ways))]
            arms += itertools.product(ours, attentions, ways)
            # Compiled arms take longest and come last.
            for side, attention, compiled in sorted(arms, key=lambda arm: arm[2]):
                row = self._measured(body, side, attention, compiled)
                if side == "plain" and not compiled:
                    base = row["real tokens/s"]
                if base and not row["failed"]:
                    row["ratio"] = row["real tokens/s"] / base
                rows.append(row)
                print(row, flush=True)
        return rows

    def _measured(self, body: str, side: str, attention: str, compiled: bool) -> dict:
        steps, run, failed = self.options.steps or STEPS, {}, None
        try:
            arguments = {"side": side, "body": body, "steps": steps, "warm": WARM}
            run = self._short(measures.train, seed=0, setting=self._arm(attention, compiled), **arguments)
        except Exception as error:
            # If this GPU or torch cannot run one arm, the others' figures must not be lost.
            failed = type(error).__name__
            traceback.print_exc()
        return {
            "body": body,
            "side": side,
            "attention": attention,
            "compiled": "yes" if compiled else "no",
            "precision": "bf16" if self.options.bf16 else "float32",
            "real tokens/s": run.get("tokens per second"),
            "ratio": None,
            "MFU": run.get("mfu"),
            "ms a step": run.get("ms a step"),
            "peak, MB": run.get("peak"),
            "fill": run.get("fill"),
            "recompilations": run.get("recompilations"),
            "device": run.get("device"),
            "texts a step": self.options.batch_size,
            "steps": steps,
            "failed": failed,
            "all": run.get("losses"),
        }


def longest_kernels(
    *, side: str, body: str, steps: int, warm: int, setting: Setting, rows: str, tokenizer: str
) -> list[dict]:
    """Profile `steps` steps after `warm` ones; return the kernels (on a CPU: operators) that take the most time.

    Each row has how often a kernel runs per step, its milliseconds per step, and its share of all kernels' time; the last
    row sums all other kernels.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    from transformers import TrainerCallback

    rows, tokenizer = measures.load(rows, tokenizer, setting.threads)
    trainer = measures.side_of(side)(rows, tokenizer, body, warm + steps, 0, setting=setting)
    on_gpu = setting.device == "cuda"
    profiler = profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU])

    class Window(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (warm, warm + steps):
                setting.now()
                (profiler.start if state.global_step == warm else profiler.stop)()

    trainer.add_callback(Window())
    trainer.train()
    device = DeviceType.CUDA if on_gpu else DeviceType.CPU
    entries = [e for e in profiler.key_averages() if e.device_type == device and not e.is_user_annotation]
    times = [(e.self_device_time_total if on_gpu else e.self_cpu_time_total) / 1000 / steps for e in entries]
    found = sorted(zip(times, entries, strict=True), key=lambda pair: -pair[0])
    rows = [(entry.key[:WIDTH].replace("|", " "), entry.count, taken) for taken, entry in found[:MOST]]
    others = found[MOST:]
    rows.append((f"{len(others)} others", sum(entry.count for _, entry in others), sum(taken for taken, _ in others)))
    return [{"kernel": k, "times a step": n / steps, "ms a step": ms, "share": ms / sum(times)} for k, n, ms in rows]
