"""Predict on texts that are given directly, in a shell or a notebook."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_tlm.runs.averaging import KINDS, model_names
from hf_tlm.runs.prediction import average_predictions, find_sources, open_predictors, restore_random_states
from hf_tlm.tasks.reading import unlabelled
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.shown import counted, kind_of, one_line

# Number of classes that are shown of a text.
MOST_CLASSES = 5


@restore_random_states()
def predict_texts(
    model_name_or_path: str | os.PathLike | Sequence[str | os.PathLike],
    texts: Sequence[str],
    *,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    backend: str = "torch",
    onnx_dtype: str = "fp32",
    num_threads: int | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Predict texts with a finished model of classification or regression, or with the average of several.

    A file is predicted by `hf_tlm.runs.predict`, in chunks and for every kind of task. With several processes all must call
    this.

        predict_texts("runs/tickets", ["it broke after a week"])

    Args:
        texts: the texts. For a model of pairs, both texts of the first pair, then those of the second, and so on.
        model_name_or_path, max_length, backend, onnx_dtype, num_threads, options: see `predict`.

    Returns:
        For each text or pair {"prediction": class, "probabilities": {class: probability}}, for regression
        {"prediction": value}.

    Raises:
        ArgumentsError: there are no texts, one of them is blank, or their number is odd for pairs; or the model is of
            another kind of task.
        ModelError: see `predict`.
    """
    check_texts(texts)
    names = model_names(model_name_or_path)
    sources = find_sources(names, backend, onnx_dtype, max_length=max_length, trust_remote_code=trust_remote_code)
    spec = sources[0].spec
    if spec.kind not in KINDS:
        raise ArgumentsError(f"texts are for {' and '.join(KINDS)}; {sources[0].folder} is for {spec.kind}. Pass a file.")
    columns = spec.text_columns
    if len(texts) % len(columns):
        raise ArgumentsError(
            f"texts: the model reads pairs, first and second text in turn; received {counted(len(texts), 'text')}. "
            "Pass the second text of each pair after its first."
        )
    machine: dict[str, Any] = {"backend": backend, "onnx_dtype": onnx_dtype, "num_threads": num_threads}
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_predictors(sources, **machine, trust_remote_code=trust_remote_code, **options) as predictors,
    ):
        file = Path(scratch) / "texts.jsonl"
        rows = (dict(zip(columns, pair, strict=True)) for pair in zip(*[iter(texts)] * len(columns), strict=True))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return [one for chunk in unlabelled(str(file), spec) for one in average_predictions(predictors, chunk)]


def check_texts(texts: Any) -> None:
    """Check that an argument is a list of texts, none of them blank, or raise an ArgumentsError."""
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        received = "a str. Give [text]" if isinstance(texts, str) else kind_of(texts) if texts else "none"
        raise ArgumentsError(f"texts: expected a list of texts; received {received}.")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            received = "a blank one" if isinstance(text, str) else kind_of(text)
            raise ArgumentsError(f"texts: expected texts; received {received} as number {index + 1}.")


def predictions_to_text(texts: Sequence[str], predictions: Sequence[Mapping[str, Any]]) -> str:
    """Format predictions of `predict_texts`: each text, and below it the most probable classes, or the value."""
    lines, width = [], len(texts) // len(predictions)
    for index, prediction in enumerate(predictions):
        lines += [one_line(text, 100) for text in texts[index * width : (index + 1) * width]]
        shares = sorted(prediction.get("probabilities", {}).items(), key=lambda pair: -pair[1])
        lines += [f"  {100 * share:5.1f}%  {one_line(name)}" for name, share in shares[:MOST_CLASSES]]
        lines += [] if shares else [f"  {prediction['prediction']:.4g}"]
    return "\n".join(lines)
