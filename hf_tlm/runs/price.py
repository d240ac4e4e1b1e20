"""What a prediction of a finished model costs: megabytes on disk, time on one core, and of a graph megabytes of memory."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoConfig, PreTrainedModel

from hf_tlm.errors import ModelError
from hf_tlm.models.adapters import ADAPTER_FILE
from hf_tlm.models.families import longest_input
from hf_tlm.models.onnx_session import TOKENS_A_CORE, OnnxModel
from hf_tlm.runs import onnx_process
from hf_tlm.runs.linear import LinearModel
from hf_tlm.tasks import Task
from hf_tlm.utils.run_files import ONNX_FILES
from hf_tlm.utils.shown import figures

logger = logging.getLogger(__name__)

LENGTHS = (32, 128)
BATCH = 32
# A measurement goes on for so long, and has one pass at least.
SECONDS = 0.1
# Batches that would take longer are left out.
MOST_SECONDS = 2.0
# Of more parameters the time is not taken: it is not what runs on one core.
MOST_PARAMETERS = 10**9
# A process whose memory is measured has so long.
MEMORY_SECONDS = 60.0
# What a folder needs beside the weights to answer for a text.
_FILES = ("*.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.*", "merges.txt", "*.model")


def megabytes(folder: Path) -> float:
    """Megabytes (10^6 bytes) of the weights, the configuration and the tokenizer in a folder, without its subfolders."""
    files = {path for pattern in _FILES for path in folder.glob(pattern)}
    return round(sum(path.stat().st_size for path in files) / 1e6, 3)


def price(folder: Path) -> dict[str, Any]:
    """What a prediction of the stock model in a folder costs, in float32 by torch, on one thread of this machine.

    The time is that of passes over random token ids, without tokenising: of one text (the fastest of a tenth of a second),
    and texts a second in batches of 32. Random states are left as they are. A model that cannot be loaded or run so, for
    whatever reason, costs a run nothing: it has no times.

    Returns:
        megabytes (see `megabytes`), and where the folder has a model of a class of transformers whose inputs are texts or
        pairs: parameters, milliseconds and texts_per_second, each {"32": ..., "128": ...} by the length in tokens.
        Lengths that the model does not take are left out. An adapter has its megabytes alone.
    """
    found: dict[str, Any] = {"megabytes": megabytes(folder)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            found |= _timed(folder)
    except Exception as error:  # Of any class: code of a model that is not ours.
        logger.info("What a prediction of %s takes is not measured: %s", folder.name, error)
    finally:
        torch.set_num_threads(threads)
    return found


def _timed(folder: Path) -> dict[str, Any]:
    if (folder / ADAPTER_FILE).is_file() or not (folder / "config.json").is_file():
        return {}
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    (architecture, *_) = config.architectures or [""]
    cls = getattr(transformers, architecture, None)
    if cls is None or architecture.endswith("ForMultipleChoice"):
        return {}
    with torch.device("meta"):
        parameters = cls(config).num_parameters()
    if parameters > MOST_PARAMETERS:
        return {"parameters": parameters, "milliseconds": {}, "texts_per_second": {}}
    with torch.random.fork_rng(devices=[]):
        model = cls.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    return {"parameters": parameters, **_times(partial(_pass, model), longest_input(config))}


def onnx_price(folder: Path, dtype: str, vocab_size: int, longest: int | None) -> dict[str, Any]:
    """The time of an exported graph in onnxruntime, as `price` measures that of torch: on one thread, without tokenising.

    Args:
        folder, dtype: see `OnnxModel`; the graph takes int64 [batch, sequence].
        vocab_size: of the random token ids.
        longest: tokens that the model takes at most; None: no limit.

    Returns:
        milliseconds and texts_per_second, see `price`; batches are as `predict` makes them (`OnnxModel.most_tokens`). A
        graph that does not take random tokens has none.
    """
    model, rng = OnnxModel(folder, dtype, num_threads=1), np.random.default_rng(0)

    def passing(batch: int, length: int) -> Callable[[], Any]:
        ids = rng.integers(vocab_size, size=(batch, length))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return lambda: model(inputs)

    try:
        return _times(passing, longest, model.most_tokens)
    except ModelError as error:
        logger.info("What a prediction of %s takes is not measured: %s", dtype, error)
        return {}


def onnx_memory(folder: Path, dtype: str, longest: int | None) -> float | None:
    """The most memory that a process takes which classifies with an exported graph, as Linux counts it.

    The process is a new Python with onnxruntime and tokenizers alone, see `hf_tlm.runs.onnx_process`. On one thread it
    classifies a text, and batches of 256 random tokens, in texts of 128 or of as many as the model takes.

    Args:
        folder, dtype: see `OnnxModel`; the graph takes int64 [batch, sequence], and `tokenizer.json` is in the folder.
        longest: see `onnx_price`.

    Returns:
        Megabytes (10^6 bytes) of resident memory; None where it is not measured: the process fails, takes longer than a
        minute, or runs on another system than Linux.
    """
    graph, words = (os.path.abspath(folder / name) for name in (ONNX_FILES[dtype], "tokenizer.json"))
    length = min(LENGTHS[-1], longest or LENGTHS[-1])
    command = [sys.executable, "-P", onnx_process.__file__, graph, words, str(length)]
    options: dict[str, Any] = {"env": {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}}
    options |= {"capture_output": True, "text": True, "timeout": MEMORY_SECONDS}
    try:
        tokenizer = Tokenizer.from_file(words)
        ids = np.random.default_rng(0).integers(tokenizer.get_vocab_size(), size=(max(1, TOKENS_A_CORE // length), length))
        done = subprocess.run(command, input=json.dumps(tokenizer.decode_batch(ids.tolist())), check=False, **options)
        if done.returncode == 0:
            return round(float(done.stdout), 1)
        reason = (done.stderr.splitlines() or [f"its process ended with status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"its process took more than {MEMORY_SECONDS:g} seconds"
    except Exception as error:  # Of any class: the tokenizer of a model that is not ours.
        reason = str(error)
    logger.info("The memory of a prediction of %s is not measured: %s", dtype, reason)
    return None


def linear_price(model: LinearModel, task: Task) -> dict[str, Any]:
    """What a prediction of a linear model costs, by scikit-learn on one thread, from the text to the class.

    Returns:
        megabytes of the files that keep it, milliseconds and texts_per_second (see `price`) of texts of so many words of
        the task, those of a pair together.
    """
    words = itertools.cycle(" ".join(task.train["text"]).split() or ["empty"])
    columns = list(model.terms)

    def passing(batch: int, length: int) -> Callable[[], Any]:
        share = length // len(columns)
        texts = {name: [" ".join(itertools.islice(words, share)) for _ in range(batch)] for name in columns}
        return lambda: model.logits(texts)

    with tempfile.TemporaryDirectory() as scratch:
        model.save(Path(scratch))
        size = sum(file.stat().st_size for file in Path(scratch).iterdir())
    return {"megabytes": round(size / 1e6, 3), **_times(passing, None)}


def _times(
    passing: Callable[[int, int], Callable[[], Any]], longest: int | None, tokens: int | None = None
) -> dict[str, Any]:
    """Milliseconds and texts a second by length.

    Args:
        passing: gives the pass of so many texts of so many tokens.
        tokens: of a batch; None: it has `BATCH` texts.
    """
    found: dict[str, Any] = {"milliseconds": {}, "texts_per_second": {}}
    for length in LENGTHS:
        if longest is not None and length > longest:
            continue
        one = _seconds(passing(1, length))
        found["milliseconds"][str(length)] = round(1000 * one, 3)
        batch = BATCH if tokens is None else max(1, tokens // length)
        if batch * one <= MOST_SECONDS:
            found["texts_per_second"][str(length)] = round(batch / _seconds(passing(batch, length)), 1)
    return found


def price_line(found: Mapping[str, Any]) -> str:
    """What a prediction costs, in a line."""
    line = f"{figures(found['megabytes'], 3)} MB"
    if times := found.get("milliseconds"):
        line += "; a text of " + ", of ".join(f"{length} tokens {figures(value)} ms" for length, value in times.items())
        line += " on one core (torch, float32)"
        if rates := found.get("texts_per_second"):
            line += "; in batches " + ", ".join(f"{figures(rate)} of {length} tokens" for length, rate in rates.items())
            line += " a second"
    return line


def _pass(model: PreTrainedModel, batch: int, length: int) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return lambda: model(**inputs)


def _seconds(run: Callable[[], Any]) -> float:
    """The least time of a pass, after one that is not counted."""
    run()
    begun, best = time.perf_counter(), float("inf")
    while True:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begun >= SECONDS:
            return best
