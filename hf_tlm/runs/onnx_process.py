"""A process that classifies with an exported graph, of Python, onnxruntime and tokenizers alone, and says what it takes.

`hf_tlm.runs.price.onnx_memory` starts this file as a program, which imports nothing of hf_tlm.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # As in hf_tlm.


def peak_megabytes() -> float:
    """The greatest resident memory of this process so far, in 10^6 bytes, as Linux counts it."""
    # Not getrusage, whose figure begins with that of the process that started this one.
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return 1.024 * int(line.split()[1]) / 1000
    raise OSError("/proc/self/status has no VmHWM")


def encoder(tokenizer_file: str) -> Callable[[list[str], int], tuple[list[list[int]], list[list[int]]]]:
    """Return a function: texts, and a length to which they are cut or padded -> token ids and attention masks."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_file)

    def encode(texts: list[str], length: int) -> tuple[list[list[int]], list[list[int]]]:
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
        found = tokenizer.encode_batch_fast(texts)
        return [one.ids for one in found], [one.attention_mask for one in found]

    return encode


def classifier(graph: str, tokenizer_file: str) -> Callable[[list[str], int], Any]:
    """Return a function: texts, and a length as of `encoder` -> the first output's largest place, on one thread."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    encode, names = encoder(tokenizer_file), [entry.name for entry in session.get_inputs()]

    def answer(texts: list[str], length: int) -> Any:
        ids, mask = (np.array(part, dtype=np.int64) for part in encode(texts, length))
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return session.run(None, {name: values[name] for name in names})[0].argmax(-1)

    return answer


def main(graph: str, tokenizer_file: str, length: str) -> None:
    """Classify the texts that standard input has as a JSON list, the first one and then all at once, and print the memory.

    onnxruntime plans its memory at the first batch of a shape, and takes it at the second.
    """
    answer, texts = classifier(graph, tokenizer_file), json.load(sys.stdin)
    for batch in (texts[:1], texts, texts):
        answer(batch, int(length))
    print(peak_megabytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
