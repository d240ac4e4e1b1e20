"""Measure the cost of predictions: size on disk, time on one core, and for an exported graph peak memory."""

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
from hf_tlm.models import coco_lm
from hf_tlm.models.adapters import ADAPTER_FILE
from hf_tlm.models.families import longest_input
from hf_tlm.models.onnx_session import OnnxModel
from hf_tlm.runs import onnx_process
from hf_tlm.runs.linear import LinearModel
from hf_tlm.tasks import Task
from hf_tlm.utils.run_files import ONNX_FILES
from hf_tlm.utils.shown import figures

logger = logging.getLogger(__name__)

LENGTHS = (32, 128)
BATCH = 32
# Minimal duration of a measurement, and minimal number of its passes: other processes may interrupt one for that long.
SECONDS, PASSES = 0.1, 3
# Batches that would take longer are not measured.
MOST_SECONDS = 2.0
# Models with more parameters are not timed: they are not used on one core.
MOST_PARAMETERS = 10**9
# Time limit of the process whose memory is measured.
MEMORY_SECONDS = 60.0
# The files of a folder that predictions need: weights, config and tokenizer.
_FILES = ("*.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.*", "merges.txt", "*.model")


def megabytes(folder: Path) -> float:
    """Return the size of weights, config and tokenizer in a folder, without its subfolders, in megabytes (10^6 bytes)."""
    files = {path for pattern in _FILES for path in folder.glob(pattern)}
    return round(sum(path.stat().st_size for path in files) / 1e6, 3)


def price(folder: Path) -> dict[str, Any]:
    """Measure the cost of predictions by the stock model in a folder, in float32 with torch on one thread of this machine.

    Times are of forward passes over random token ids, without tokenisation: for one text (the fastest pass within a tenth of
    a second, of three or more), and texts per second in batches of 32. Random states are unchanged. A model that cannot be
    loaded or run this way, for whatever reason, raises no error: its times are missing.

    Returns:
        megabytes (see `megabytes`), and for a model of a class of transformers, or COCO-LM, whose inputs are texts or pairs:
        parameters, milliseconds and texts_per_second, the last two {"32": ..., "128": ...} by the length in tokens. Lengths
        beyond the model's limit are left out, and models of more than 10^9 parameters have no times. An adapter has only
        megabytes, without those of its base model, and adapter (True).
    """
    costs: dict[str, Any] = {"megabytes": megabytes(folder)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            costs |= _measure_model(folder)
    except Exception as error:  # Of any class: the model's code is not ours.
        logger.info("The cost of a prediction of %s is not measured: %s", folder.name, error)
    finally:
        torch.set_num_threads(threads)
    return costs


def _measure_model(folder: Path) -> dict[str, Any]:
    if (folder / ADAPTER_FILE).is_file():
        return {"adapter": True}
    if not (folder / "config.json").is_file():
        return {}
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    (architecture, *_) = config.architectures or [""]
    cls = getattr(transformers, architecture, None) or getattr(coco_lm, architecture, None)
    if cls is None or architecture.endswith("ForMultipleChoice"):
        return {}
    with torch.device("meta"):
        parameters = cls(config).num_parameters()
    if parameters > MOST_PARAMETERS:
        return {"parameters": parameters, "milliseconds": {}, "texts_per_second": {}}
    with torch.random.fork_rng(devices=[]):
        model = cls.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    return {"parameters": parameters, **_measure_times(partial(_create_pass, model), longest_input(config))}


def onnx_price(folder: Path, dtype: str, vocab_size: int, longest: int | None) -> dict[str, Any]:
    """Measure the time of an exported graph in onnxruntime like `price` does for torch: on one thread, without tokenisation.

    Args:
        folder, dtype: see `OnnxModel`; the inputs of the graph are int64 [batch, sequence].
        vocab_size: upper bound of the random token ids, exclusive.
        longest: maximal number of tokens of an input; None: no limit.

    Returns:
        milliseconds and texts_per_second, see `price`; batches have the size that `predict` uses (`OnnxModel.most_tokens`).
        The dict is empty for a graph that fails on random tokens.
    """
    model, rng = OnnxModel(folder, dtype, num_threads=1), np.random.default_rng(0)

    def create_pass(batch: int, length: int) -> Callable[[], Any]:
        ids = rng.integers(vocab_size, size=(batch, length))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return lambda: model(inputs)

    try:
        return _measure_times(create_pass, longest, model.most_tokens)
    except ModelError as error:
        logger.info("The cost of a prediction of %s is not measured: %s", dtype, error)
        return {}


def onnx_memory(folder: Path, dtype: str, longest: int | None) -> float | None:
    """Measure the peak memory of a process that classifies with an exported graph, as Linux counts it.

    The process is a new Python with only onnxruntime and tokenizers, see `hf_tlm.runs.onnx_process`. On one thread it
    classifies one text, and batches of 256 random tokens, in texts of 128 tokens or of the model's limit if that is lower.

    Args:
        folder, dtype: see `OnnxModel`; the inputs of the graph are int64 [batch, sequence], and `tokenizer.json` is in the
            folder.
        longest: see `onnx_price`.

    Returns:
        Megabytes (10^6 bytes) of resident memory; None where it cannot be measured: the process fails, takes longer than a
        minute, or runs on another system than Linux.
    """
    graph, tokenizer_file = (os.path.abspath(folder / name) for name in (ONNX_FILES[dtype], "tokenizer.json"))
    length = min(LENGTHS[-1], longest or LENGTHS[-1])
    command = [sys.executable, "-P", onnx_process.__file__, graph, tokenizer_file, str(length)]
    options: dict[str, Any] = {"env": {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}}
    options |= {"capture_output": True, "text": True, "timeout": MEMORY_SECONDS}
    try:
        tokenizer = Tokenizer.from_file(tokenizer_file)
        ids = np.random.default_rng(0).integers(
            tokenizer.get_vocab_size(), size=(max(1, OnnxModel.most_tokens // length), length)
        )
        process = subprocess.run(command, input=json.dumps(tokenizer.decode_batch(ids.tolist())), check=False, **options)
        if process.returncode == 0:
            return round(float(process.stdout), 1)
        reason = (process.stderr.splitlines() or [f"its process ended with status {process.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"its process took more than {MEMORY_SECONDS:g} seconds"
    except Exception as error:  # Of any class: the model's tokenizer is not ours.
        reason = str(error)
    logger.info("The memory of a prediction of %s is not measured: %s", dtype, reason)
    return None


def linear_price(model: LinearModel, task: Task) -> dict[str, Any]:
    """Measure the cost of predictions by a linear model, with scikit-learn on one thread, from the text to the class.

    Returns:
        megabytes of the model's files, milliseconds and texts_per_second (see `price`). Lengths are in words of the task's
        texts; the two texts of a pair have that length together.
    """
    words = itertools.cycle(" ".join(task.train["text"]).split() or ["empty"])
    columns = list(model.terms)

    def create_pass(batch: int, length: int) -> Callable[[], Any]:
        num_words = length // len(columns)
        texts = {name: [" ".join(itertools.islice(words, num_words)) for _ in range(batch)] for name in columns}
        return lambda: model.logits(texts)

    with tempfile.TemporaryDirectory() as scratch:
        model.save(Path(scratch))
        size = sum(file.stat().st_size for file in Path(scratch).iterdir())
    return {"megabytes": round(size / 1e6, 3), **_measure_times(create_pass, None)}


def _measure_times(
    create_pass: Callable[[int, int], Callable[[], Any]], longest: int | None, tokens: int | None = None
) -> dict[str, Any]:
    """Measure milliseconds and texts per second for each of `LENGTHS`.

    Args:
        create_pass: (number of texts, length in tokens) -> a function that runs one forward pass on such a batch.
        longest: longer texts are left out.
        tokens: number of tokens in a batch; None: a batch has `BATCH` texts.
    """
    times: dict[str, Any] = {"milliseconds": {}, "texts_per_second": {}}
    for length in LENGTHS:
        if longest is not None and length > longest:
            continue
        seconds_per_text = _measure_seconds(create_pass(1, length))
        times["milliseconds"][str(length)] = round(1000 * seconds_per_text, 3)
        batch = BATCH if tokens is None else max(1, tokens // length)
        if batch * seconds_per_text <= MOST_SECONDS:
            times["texts_per_second"][str(length)] = round(batch / _measure_seconds(create_pass(batch, length)), 1)
    return times


def price_line(costs: Mapping[str, Any], engine: str = "torch, float32") -> str:
    """Format the cost of predictions as one line; `engine` is what has computed them."""
    line = f"{figures(costs['megabytes'], 3)} MB{', beside the base model' if costs.get('adapter') else ''}"
    if times := costs.get("milliseconds"):
        each = [f"{figures(value)} ms for a text of {length} tokens" for length, value in times.items()]
        line += f"; {', '.join(each)}, on one core ({engine})"
        if rates := costs.get("texts_per_second"):
            each = [f"{figures(rate)} texts of {length} tokens" for length, rate in rates.items()]
            line += f"; in batches {', '.join(each)} per second"
    return line


def int8_line(costs: Mapping[str, Any], metric: str) -> str:
    """Format what predictions in 8 bits cost and lose, the result of `int8_price`, as one line."""
    line = price_line(costs, "onnxruntime, int8")
    if memory := costs.get("memory_megabytes"):
        line += f"; {figures(memory)} MB of memory"
    if "score" in costs:
        line += f"; {metric} {100 * costs['score']:.2f} ({0 - costs['drop']:+.2f}) on {costs['checked_on']}"
    return line


def _create_pass(model: PreTrainedModel, batch: int, length: int) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return lambda: model(**inputs)


def _measure_seconds(run: Callable[[], Any]) -> float:
    """Return the seconds of the fastest pass, after one pass of warm-up."""
    run()
    passes: list[float] = []
    measurement_start = time.perf_counter()
    while len(passes) < PASSES or time.perf_counter() - measurement_start < SECONDS:
        start = time.perf_counter()
        run()
        passes.append(time.perf_counter() - start)
    return min(passes)
