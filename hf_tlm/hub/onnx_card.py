"""The card of a model that was exported to ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_tlm.hub.finetuned_card import KINDS, METRIC_NAMES
from hf_tlm.hub.rendering import license_sentence, render

# The bodies trained here that transformers.js knows, its kinds of pipeline, and what it calls types, the first ones first.
BODIES = ("bert", "roberta", "electra", "albert", "distilbert", "modernbert")
_PIPELINES = ("classification", "tagging", "fill_mask", "question_answering")
_DTYPES = {"int8": "q8", "fp32": "fp32", "fp16": "fp16"}
_METRICS = {**METRIC_NAMES, "masked_accuracy": "Masked tokens predicted", "agreement": "Predictions as of torch"}


def onnx_card(record: Mapping[str, Any]) -> str:
    """The README.md of an export.

    Args:
        record: its `export.json`.
    """
    from huggingface_hub import ModelCardData

    pipeline = "fill-mask" if record["kind"] == "fill_mask" else KINDS[record["kind"]][0]
    dtypes = [file["dtype"] for file in record["files"].values()]
    in_browser = record["kind"] in _PIPELINES and record["model_type"] in BODIES
    data = ModelCardData(
        language="en",
        library_name="transformers.js" if in_browser else None,
        pipeline_tag=pipeline,
        tags=["hf_tlm", "onnx"],
        base_model=record["repo_id"],
    )
    metric = record["checked_on"].get("metric")
    return render(
        "onnx_model.md",
        data,
        record=record,
        pipeline=pipeline,
        browser_dtype=next(_DTYPES[name] for name in _DTYPES if name in dtypes) if in_browser else None,
        onnx_dtype=None if "fp32" in dtypes else dtypes[0],
        metric_name=_METRICS.get(metric, metric),
        license_sentence=license_sentence(None),
    )
