"""The card of a model that was exported to ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_tlm.hub.finetuned_card import KINDS, METRIC_NAMES
from hf_tlm.hub.rendering import license_sentence, render

_METRICS = {**METRIC_NAMES, "masked_accuracy": "Masked tokens predicted", "agreement": "Predictions as of torch"}


def onnx_card(record: Mapping[str, Any]) -> str:
    """The README.md of an export.

    Args:
        record: its `export.json`.
    """
    from huggingface_hub import ModelCardData

    pipeline = "fill-mask" if record["kind"] == "fill_mask" else KINDS[record["kind"]][0]
    data = ModelCardData(
        language="en",
        library_name="transformers.js",
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
        metric_name=_METRICS.get(metric, metric),
        license_sentence=license_sentence(None),
    )
