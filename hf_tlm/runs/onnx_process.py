"""A program that classifies texts with an exported graph and prints its peak memory.

It needs only Python, onnxruntime and tokenizers. `hf_tlm.runs.price.onnx_memory` starts this file as a program, which
imports nothing of hf_tlm.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # As in hf_tlm.

# (texts, length to truncate and pad to) -> token ids, attention masks.
Encode = Callable[[list[str], int], tuple[list[list[int]], list[list[int]]]]


def peak_megabytes() -> float:
    """Return the peak resident memory of this process so far in 10^6 bytes, as Linux counts it."""
    # Not getrusage, whose peak includes that of the parent process.
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return 1.024 * int(line.split()[1]) / 1000
    raise OSError("/proc/self/status has no VmHWM")


def encoder(tokenizer_file: str) -> Encode:
    """Return a function that encodes texts: (texts, length to truncate or pad to) -> (token ids, attention masks)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_file)

    def encode(texts: list[str], length: int) -> tuple[list[list[int]], list[list[int]]]:
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
        encodings = tokenizer.encode_batch_fast(texts)
        return [encoding.ids for encoding in encodings], [encoding.attention_mask for encoding in encodings]

    return encode


def classifier(graph: str, encode: Encode) -> Callable[[list[str], int], Any]:
    """Return a function that classifies texts on one thread: (texts, length for `encode`) -> argmax of the first output."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def classify(texts: list[str], length: int) -> Any:
        ids, mask = (np.array(rows, dtype=np.int64) for rows in encode(texts, length))
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return session.run(None, {name: values[name] for name in names})[0].argmax(-1)

    return classify


def main(graph: str, tokenizer_file: str, length: str) -> None:
    """Classify the texts of a JSON list on standard input, and print the peak memory.

    The first text is classified alone, then all texts twice as one batch: onnxruntime plans its memory at the first batch of
    a shape, and allocates it at the second.
    """
    classify, texts = classifier(graph, encoder(tokenizer_file)), json.load(sys.stdin)
    for batch in (texts[:1], texts, texts):
        classify(batch, int(length))
    print(peak_megabytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
