"""Model cards, from a jinja2 template and the record of a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

METRIC_NAMES = {"micro_f1": "Micro-F1", "macro_f1": "Macro-F1", "accuracy": "Accuracy", "matthews": "Matthews correlation"}


def tlm_card(run: Mapping[str, Any], seed: int) -> str:
    """The README.md of a TLM model.

    Args:
        run: `results.json` of `hf_tlm.evaluation.run_tlm`.
        seed: which of its seeds the folder's weights are.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    record = next(record for record in run["seeds"] if record["seed"] == seed)
    metric = run["metric"]
    results = [
        EvalResult(
            task_type="text-classification",
            dataset_type=run["task"],
            dataset_name=run["task"],
            dataset_split=split,
            metric_type="accuracy" if name == "accuracy" else "f1",
            metric_name=METRIC_NAMES[name],
            metric_value=round(record[split][name], 6),
        )
        for split in ("validation", "test")
        if split in record
        for name in dict.fromkeys((metric, "accuracy"))
    ]
    data = ModelCardData(
        library_name="peft" if run["model"].get("use_peft") else "transformers",
        pipeline_tag="text-classification",
        tags=["hf_tlm", "tlm", "trained-from-scratch" if run["model"]["model_name_or_path"] is None else "finetuned"],
        base_model=run["model"]["model_name_or_path"],
        metrics=sorted({result.metric_type for result in results}),
        model_name=f"tlm-{run['task']}",
        eval_results=results,
    )
    template = files("hf_tlm.hub").joinpath("templates/tlm_model.md").read_text(encoding="utf-8")
    card = ModelCard.from_template(
        data,
        template_str=template,
        run=run,
        record=record,
        metric=metric,
        metric_name=METRIC_NAMES[metric],
        arguments=run["arguments"],
        coco_lm_losses=_coco_lm_losses(run["arguments"]),
    )
    return str(card)


def pretrained_card(run: Mapping[str, Any]) -> str:
    """The README.md of a pretrained model.

    Args:
        run: `results.json` of `hf_tlm.evaluation.run_pretraining`.
    """
    from huggingface_hub import ModelCard, ModelCardData

    objective, base = run["arguments"]["objective"], run["model"]["model_name_or_path"]
    fills_masks = objective == "mlm" or (objective == "cocolm" and run["arguments"]["clm"] != "rtd")
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="fill-mask" if fills_masks else "feature-extraction",
        tags=["hf_tlm", objective, "pretraining", "trained-from-scratch" if base is None else "finetuned"],
        base_model=base,
    )
    kinds = {"mlm": "Masked language model", "electra": "ELECTRA", "ale": "ALE", "cocolm": "COCO-LM"}
    template = files("hf_tlm.hub").joinpath("templates/pretrained_model.md").read_text(encoding="utf-8")
    title = f"{kinds[objective]} pretrained on {run['corpus']['name']}"
    values = {"run": run, "arguments": run["arguments"], "coco_lm_losses": _coco_lm_losses(run["arguments"]), "title": title}
    return str(ModelCard.from_template(data, template_str=template, **values))


def _coco_lm_losses(arguments: Mapping[str, Any]) -> str | None:
    """What a run of the objective cocolm adds up, in words."""
    if arguments.get("objective") != "cocolm":
        return None
    weight = f"{arguments['rtd_weight']:g}"
    words = {
        "full": f"{weight} x copy loss + language modelling loss"
        + ("" if arguments["stop_gradient"] else " (which trains the copy head too)"),
        "no_copy": f"{weight} x copy loss + language modelling loss (without the copy probability)",
        "all_token": "language modelling loss of all tokens",
        "rtd": f"{weight} x replaced token detection",
    }[arguments["clm"]]
    if arguments["scl"]:
        head = ", a projection head" if arguments["scl_projection"] == "mlp" else ""
        details = f"crops of {100 * arguments['crop_fraction']:g}%, temperature {arguments['scl_temperature']:g}{head}"
        words += f" + sequence contrastive loss ({details})"
    return f"masked-LM loss of the auxiliary model + {words}"
