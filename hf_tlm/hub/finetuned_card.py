"""The card of a fine-tuned model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_tlm.hub.rendering import displayed_name, hub_name, license_sentence, render

METRIC_NAMES = {
    "micro_f1": "Micro-F1",
    "macro_f1": "Macro-F1",
    "accuracy": "Accuracy",
    "f1": "F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "squad_f1": "F1 (SQuAD)",
    "exact_match": "Exact match",
    "tag_accuracy": "Tag accuracy",
    "span_f1": "Span F1",
}
# What the Hub calls a metric, where that is not F1.
METRIC_TYPES = {
    "accuracy": "accuracy",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact_match": "exact_match",
    "tag_accuracy": "accuracy",
}
TEXT, PAIR = '"A text of the task."', '{"text": "A text of the task.", "text_pair": "Its second text."}'
# Kind of task -> what the Hub calls it, the Auto class, what a model of it is, and how transformers' pipeline, where it has
# one, is used.
KINDS = {
    "classification": (
        "text-classification",
        "AutoModelForSequenceClassification",
        "A text classifier",
        ("classify", TEXT),
    ),
    "regression": (
        "text-classification",
        "AutoModelForSequenceClassification",
        "A model that gives texts a number",
        ("rate", TEXT),
    ),
    "question_answering": (
        "question-answering",
        "AutoModelForQuestionAnswering",
        "A model that finds the answers to questions in a text",
        None,
    ),
    "multiple_choice": (
        "multiple-choice",
        "AutoModelForMultipleChoice",
        "A model that chooses among answers to a question",
        None,
    ),
    "tagging": (
        "token-classification",
        "AutoModelForTokenClassification",
        "A tagger of words",
        ("tag", '"The paper was read in Vienna."'),
    ),
}


def finetuned_card(run: Mapping[str, Any], seed: int) -> str:
    """The README.md of a fine-tuned model.

    Args:
        run: `results.json` of `hf_tlm.runs.finetune`.
        seed: which of its seeds the folder's weights are.
    """
    from huggingface_hub import EvalResult, ModelCardData

    record = next(record for record in run["seeds"] if record["seed"] == seed)
    base, metric = run["model"]["model_name_or_path"], run["metric"]
    pipeline, auto_class, what, call = KINDS[run["kind"]]
    if run["pairs"] and call is not None:
        call = (call[0], PAIR)
    splits = [split for split in ("validation", "test") if split in record]
    shown = [metric, *(name for name in record[splits[0]] if name != metric and name in METRIC_NAMES)]
    results = [
        EvalResult(
            task_type=pipeline,
            dataset_type=run["task"],
            dataset_name=run["task"],
            dataset_split=split,
            metric_type=METRIC_TYPES.get(name, "f1"),
            metric_name=METRIC_NAMES[name],
            metric_value=round(record[split][name], 6),
        )
        for split in splits
        for name in shown
    ]
    peft = run["model"]["use_peft"]
    data = ModelCardData(
        language="en",
        library_name="peft" if peft else "transformers",
        pipeline_tag=pipeline,
        tags=["hf_tlm", "finetuned"],
        base_model=hub_name(base),
        metrics=sorted({result.metric_type for result in results}),
        model_name=f"{run['task']}-finetuned",
        eval_results=results,
    )
    return render(
        "finetuned_model.md",
        data,
        run=run,
        record=record,
        arguments=run["arguments"],
        kind=run["kind"],
        peft=peft,
        what=what,
        pipeline=pipeline,
        auto_class=auto_class,
        call=call,
        shown=shown,
        names=METRIC_NAMES,
        splits=splits,
        base_name=displayed_name(base),
        license_sentence=license_sentence(None),
    )
