"""A loss that is not finite ends the run before it reaches the weights, and leaves what is needed to find out why."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import save
from transformers import TrainerCallback

from hf_tlm.data.interleave import CORPUS, TASK, InterleavedBatchSampler
from hf_tlm.errors import HfTlmError
from hf_tlm.training.interruptions import SigtermCallback
from hf_tlm.utils.files import atomic_write
from hf_tlm.version import __version__


class NonFiniteLossError(HfTlmError):
    """The loss of a step is infinite or not a number."""


class NonFiniteLossCallback(TrainerCallback):
    """Looks at the losses of a step before the optimizer does, on all processes together.

    It gathers two integers a process, whether a loss is not finite and whether SIGTERM came, and waits once for the
    device: that is the cost of a step. Only losses count: gradients that overflow in float16 are the gradient scaler's to
    skip.

    Args:
        sampler: gives what the batches come from, if it is one that knows their texts.
    """

    def __init__(
        self, accelerator: Accelerator, sampler: Callable[[], InterleavedBatchSampler | None], interruption: SigtermCallback
    ):
        self.accelerator, self.sampler, self.interruption = accelerator, sampler, interruption
        self.stream = ""
        self.batches: list[Mapping[str, torch.Tensor]] = []
        self.losses: list[torch.Tensor] = []
        self.terms: list[dict[str, torch.Tensor]] = []
        self.rng: dict[str, torch.Tensor] = {}

    def begin(self, stream: str, batches: list[Mapping[str, torch.Tensor]]) -> None:
        """A step of these micro-batches."""
        self.stream, self.batches, self.losses, self.terms = stream, batches, [], []

    def add(self, loss: torch.Tensor, terms: Mapping[str, torch.Tensor]) -> None:
        """The loss of the next micro-batch, and its named terms."""
        self.losses.append(loss.detach())
        self.terms.append(dict(terms))

    def on_step_begin(self, args, state, control, **kwargs):
        # Dropout's generators, from which the step can be repeated.
        self.rng = {"cpu": torch.get_rng_state()}
        if args.device.type == "cuda":
            self.rng["cuda"] = torch.cuda.get_rng_state(args.device)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        """Look at the losses of the step on all processes, and stop the run if one is not finite.

        Raises:
            NonFiniteLossError: a loss of the step is not finite on one of the processes.
        """
        finite = torch.isfinite(torch.stack(self.losses)).all()
        flags = torch.stack([~finite, torch.tensor(self.interruption.requested, device=finite.device)])
        flags = self.accelerator.gather(flags.to(torch.int64)[None]).tolist()
        self.interruption.agreed = any(requested for _, requested in flags)
        bad = [process for process, (nonfinite, _) in enumerate(flags) if nonfinite]
        if bad:
            self._stop(args, state.global_step, bad, optimizer.param_groups[0]["lr"])

    def _stop(self, args, step: int, bad: list[int], learning_rate: float) -> None:
        folder = Path(args.output_dir) / f"nonfinite-step-{step + 1}"
        where = f"The micro-batches and generators are in {folder}"
        if args.process_index in bad:
            try:
                self._dump(folder, args, step, learning_rate)
            except HfTlmError as error:
                where = f"The micro-batches could not be written: {error}"
        processes = f" on process {', '.join(map(str, bad))}" if args.world_size > 1 else ""
        sums = {"loss": sum(map(float, self.losses))}
        sums |= {name: sum(float(part[name]) for part in self.terms) for name in self.terms[0]}
        values = "; ".join(f"{name} {value:g}" for name, value in sums.items())
        raise NonFiniteLossError(
            f"The loss of step {step + 1} is not finite{processes}. Stream: {self.stream}; {values}; learning rate "
            f"{learning_rate:g}. The optimizer step was not taken. {where}. The same command would come to the same step: "
            "start in another output folder with a lower learning rate, more warm-up, or bf16 in place of fp16."
        )

    def _dump(self, folder: Path, args, step: int, learning_rate: float) -> None:
        """`process-<n>.safetensors`: `<micro-batch>.<tensor>` and `rng.<device>`; `process-<n>.json`: all the rest."""
        process = args.process_index
        tensors = {f"{i}.{name}": t for i, batch in enumerate(self.batches) for name, t in batch.items()}
        tensors |= {f"rng.{device}": state for device, state in self.rng.items()}
        record = {
            "step": step + 1,
            "stream": self.stream,
            "process": process,
            "processes": args.world_size,
            "learning_rate": learning_rate,
            "seed": args.seed,
            "micro_batches": [
                {
                    "loss": _number(loss),
                    "terms": {name: _number(value) for name, value in terms.items()},
                    **texts,
                }
                for loss, terms, texts in zip(self.losses, self.terms, self._texts(args, step), strict=True)
            ],
            "versions": {
                "python": platform.python_version(),
                "hf_tlm": __version__,
                **{name: version(name) for name in ("torch", "transformers", "accelerate")},
            },
        }
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        atomic_write(folder / f"process-{process}.safetensors", content)
        atomic_write(folder / f"process-{process}.json", json.dumps(record, indent=2) + "\n")

    def _texts(self, args, step: int) -> list[dict[str, list[int]]]:
        """Return which texts are in every micro-batch of this process, where a sampler knows it.

        Of each there are the texts' `rows` in the tokenised task or corpus data, and their `draws`, which their masks were
        derived from.
        """
        sampler = self.sampler()
        if sampler is None:
            return [{} for _ in self.losses]
        sizes = {name: stream.size for name, stream in sampler.streams.items()}
        first, size = 0 if self.stream == TASK else sizes[TASK], sizes[TASK] + sizes[CORPUS]
        # accelerate deals a step's micro-batches out to the processes in turn.
        dealt = list(sampler.batches_of(step))[args.process_index :: args.world_size]
        return [{"draws": draws, "rows": [draw % size - first for draw in draws]} for draws in dealt]


def _number(value: Any) -> float | str:
    """A number for JSON, which has no nan and no inf."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
