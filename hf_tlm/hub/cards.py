"""Model cards: filled from jinja2 templates and the records of a run, and completed when they are published."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from huggingface_hub import constants

from hf_tlm.hub.repo_id import HUB_NAME, displayed_name, hub_dataset, hub_name
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.utils.run_files import seed_figure
from hf_tlm.utils.shown import as_code, as_literal, counted, escape, figures, flat, for_terminal
from hf_tlm.version import __version__

if TYPE_CHECKING:
    import jinja2
    from huggingface_hub import CardData, EvalResult, ModelCardData


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
# Metric -> its type on the Hub, if that is not F1.
METRIC_TYPES = {
    "accuracy": "accuracy",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact_match": "exact_match",
    "tag_accuracy": "accuracy",
}
# Arguments of `classify`. Without truncation, a text longer than the model's positions is an error in torch.
TEXT = '"A text of the task.", truncation=True'
PAIR = '{"text": "A text of the task.", "text_pair": "Its second text."}, truncation=True'
# Kind of task -> its name on the Hub, the Auto class, a description of its models, and the variable and arguments of an
# example with transformers' pipeline, if there is one.
_TEXTS = ("text-classification", "AutoModelForSequenceClassification")
_QUESTIONS = ("question-answering", "AutoModelForQuestionAnswering")
_CHOICES = ("multiple-choice", "AutoModelForMultipleChoice")
_WORDS = ("token-classification", "AutoModelForTokenClassification")
KINDS = {
    "classification": (*_TEXTS, "A text classifier", ("classify", TEXT)),
    "regression": (*_TEXTS, "A model that predicts a number for a text", ("rate", TEXT)),
    "question_answering": (*_QUESTIONS, "A model that finds the answer to a question in a text", None),
    "multiple_choice": (*_CHOICES, "A model that chooses one of several answers to a question", None),
    "tagging": (*_WORDS, "A model that tags the words of a text", ("tag", '"The paper was read in Vienna."')),
}
# For transformers.js: the model types trained here that it supports, the kinds of task that it has a pipeline for, and its
# names for dtypes, in order of preference.
BODIES = ("bert", "roberta", "electra", "albert", "distilbert", "modernbert")
_PIPELINES = ("classification", "tagging", "fill_mask", "question_answering")
_DTYPES = {"int8": "q8", "fp32": "fp32", "fp16": "fp16"}
_EXPORT_METRIC_NAMES = {**METRIC_NAMES, "masked_accuracy": "Accuracy on masked tokens", "agreement": "Agreement with torch"}
# Stands for the repo id in the code blocks of a card until it is published.
PLACEHOLDER = "path/or/repo-id"
_HUB_DATASET = re.compile(rf"{HUB_NAME.pattern}(@[\w./-]+)?")
# The oldest releases of transformers with which a published folder was loaded and gave the same logits: 4.57.6 among those
# before 5, and among 5.x the first that can read COCO-LM's configuration (5.4.0; 5.3.0 cannot).
_OLDEST_TRANSFORMERS = {"cocolm": "5.4"}


def finetuned_card(run: Mapping[str, Any], seed: int) -> str:
    """Return the README.md of one seed's fine-tuned model.

    Args:
        run: `results.json` of `hf_tlm.runs.finetune`.
    """
    record = next(record for record in run["seeds"] if record["seed"] == seed)
    pipeline, library = KINDS[run["kind"]][0], "peft" if run["model"]["use_peft"] else "transformers"
    scores = {split: record[split] for split in ("validation", "test") if split in record}
    shown = _displayed_metrics(run["metric"], next(iter(scores.values())))
    results, base = _eval_results(pipeline, run["task"], scores, shown), hub_name(run["model"]["model_name_or_path"])
    data = _build_metadata(pipeline, ["finetuned"], base, results, f"{run['task']}-finetuned", library=library)
    return render("finetuned_model.md", data, run=run, record=record, shown=shown, splits=list(scores))


def prompted_card(run: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return the README.md of a masked LM that classifies by a prompt.

    Args:
        run: `results.json` of `hf_tlm.runs.run_few_shot`, without its splits and their summary.
        record: the record of one split.
    """
    base, shown = run["model"]["model_name_or_path"], _displayed_metrics(run["metric"], record["test"])
    results = _eval_results(_TEXTS[0], run["task"], {run["scored_split"]: record["test"]}, shown)
    # Without the prompt, the weights are a masked LM.
    tags = ["few-shot", "text-classification"]
    data = _build_metadata("fill-mask", tags, hub_name(base), results, f"{run['task']}-prompted")
    return render("prompted_model.md", data, run=run, record=record, shown=shown)


def onnx_card(record: Mapping[str, Any]) -> str:
    """Return the README.md of an export.

    Args:
        record: its `export.json`.
    """
    pipeline = "fill-mask" if record["kind"] == "fill_mask" else KINDS[record["kind"]][0]
    files = record["files"].values()
    dtypes = [file["dtype"] for file in files]
    # A pipeline picks the most likely tag of each word, but a CRF needs the most likely sequence of tags.
    in_browser = record["kind"] in _PIPELINES and record["model_type"] in BODIES and not record.get("crf")
    data = _build_metadata(pipeline, ["onnx"], record["repo_id"], library="transformers.js" if in_browser else None)
    metric = record["checked_on"].get("metric")
    return render(
        "onnx_model.md",
        data,
        record=record,
        pipeline=pipeline,
        browser_dtype=next(_DTYPES[name] for name in _DTYPES if name in dtypes) if in_browser else None,
        onnx_dtype=None if "fp32" in dtypes else dtypes[0],
        metric_name=_EXPORT_METRIC_NAMES.get(metric, metric),
        timed=[*dict.fromkeys(length for file in files for length in file.get("milliseconds", {}))],
        memory=any("memory_megabytes" in file for file in files),
    )


def oldest_transformers(model_type: str | None) -> str:
    """Return the oldest release of transformers that loads a published model of this type."""
    return _OLDEST_TRANSFORMERS.get(model_type or "", "4.57")


def tlm_card(run: Mapping[str, Any], seed: int) -> str:
    """Return the README.md of one seed's TLM model.

    Args:
        run: `results.json` of `hf_tlm.runs.run_tlm`.
    """
    record = next(record for record in run["seeds"] if record["seed"] == seed)
    metric, arguments, base = run["metric"], run["arguments"], run["model"]["model_name_or_path"]
    scores = {split: record[split] for split in ("validation", "test") if split in record}
    objective = arguments.get("objective", "mlm")
    method = ((run["subset"] or {}).get("selection") or {}).get("method")
    dataset = _subset_repo_id(run["subset"])
    tags = ["tlm", *([] if objective == "mlm" else [objective]), *([method] if method else [])]
    data = _build_metadata(
        _TEXTS[0],
        [*tags, "trained-from-scratch" if base is None else "finetuned"],
        hub_name(base),
        _eval_results(_TEXTS[0], run["task"], scores, dict.fromkeys((metric, "accuracy")), "Text classification"),
        f"tlm-{run['task']}",
        dataset,
        library="peft" if run["model"].get("use_peft") else "transformers",
    )
    return render(
        "tlm_model.md",
        data,
        run=run,
        record=record,
        arguments={"objective": "mlm", **arguments},
        corrupts=OBJECTIVES[objective].corrupts,
        text=PAIR if run.get("pairs") else TEXT,
        coco_lm_losses=_coco_lm_losses(arguments),
        dataset_sentence=dataset_sentence(dataset),
        citations=["tlm", *({method} & {"iss", "dsir"}), *OBJECTIVES[objective].citations],
    )


def pretrained_card(run: Mapping[str, Any]) -> str:
    """Return the README.md of a pretrained model.

    Args:
        run: `results.json` of `hf_tlm.runs.run_pretraining`.
    """
    arguments, base, corpus = run["arguments"], run["model"]["model_name_or_path"], run["corpus"]["name"]
    objective = arguments["objective"]
    corrupts = OBJECTIVES[objective].corrupts
    fills_masks = not corrupts or (run.get("model_type") == "cocolm" and arguments["clm"] != "rtd")
    pipeline = "fill-mask" if fills_masks else "feature-extraction"
    dataset = hub_dataset(corpus)
    tags = [objective, "pretraining", "trained-from-scratch" if base is None else "finetuned"]
    results = _held_out_results(run, pipeline)
    data = _build_metadata(pipeline, tags, hub_name(base), results, f"{objective}-pretrained", dataset)
    return render(
        "pretrained_model.md",
        data,
        run=run,
        title=f"{OBJECTIVES[objective].model_title} pretrained on {corpus}",
        corrupts=corrupts,
        coco_lm_losses=_coco_lm_losses(arguments),
        dataset_sentence=dataset_sentence(dataset),
        citations=OBJECTIVES[objective].citations or ["bert"],
    )


def converted_card(
    checkpoint: str, parameters: int, left_out: Sequence[str], *, classes: Sequence[str] | None, fills_masks: bool = True
) -> str:
    """Return the README.md of a converted checkpoint that a paper released.

    Args:
        checkpoint: its Hub id, or its folder, of which the card shows the end of the path.
        left_out: names of weights that were not converted.
        classes: class names of a TLM checkpoint; None for a COCO-LM checkpoint.
        fills_masks: whether a COCO-LM checkpoint has its LM head.
    """
    name = "coco_lm" if classes is None else "tlm"
    pipeline = _TEXTS[0] if classes is not None else "fill-mask" if fills_masks else "feature-extraction"
    data = _build_metadata(pipeline, [name, "converted"], hub_name(checkpoint))
    values = {"checkpoint": displayed_name(checkpoint), "parameters": parameters, "left_out": left_out, "classes": classes}
    return render("converted_model.md", data, **values, version=__version__, citations=[name])


def _subset_repo_id(subset: Mapping[str, Any] | None) -> str | None:
    """Return the repo id, with `@revision` if known, that a subset's manifest says it was loaded from; otherwise None."""
    hub = (subset or {}).get("hub")
    if hub is None or hub_name(hub["repo_id"]) is None:
        return None
    return "@".join(filter(None, (hub["repo_id"], hub.get("revision"))))


def _build_metadata(
    pipeline: str,
    tags: Sequence[str],
    base: str | list[str] | None,
    results: Sequence[EvalResult] = (),
    name: str | None = None,
    dataset: str | None = None,
    library: str | None = "transformers",
) -> ModelCardData:
    """Return the metadata of a card; the model's name is included only if there are results."""
    from huggingface_hub import ModelCardData

    return ModelCardData(
        library_name=library,
        pipeline_tag=pipeline,
        tags=["hf_tlm", *tags],
        base_model=base,
        datasets=None if dataset is None else [dataset.partition("@")[0]],
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name if results else None,
        eval_results=list(results) or None,
    )


def _displayed_metrics(metric: str, scores: Mapping[str, float]) -> list[str]:
    """Return the metrics that a card shows, the task's own metric first."""
    return [metric, *(name for name in scores if name != metric and name in METRIC_NAMES)]


def _eval_results(
    task_type: str, dataset: str, scores: Mapping[str, Mapping[str, float]], names: Iterable[str], task: str | None = None
) -> list[EvalResult]:
    """Return the results for a card's metadata: the given metrics on every split."""
    return [
        _eval_result(task_type, dataset, split, METRIC_TYPES.get(name, "f1"), METRIC_NAMES[name], split_scores[name], task)
        for split, split_scores in scores.items()
        for name in names
    ]


def _eval_result(
    task_type: str, dataset: str, split: str, metric_type: str, metric: str, value: float, task: str | None = None
) -> EvalResult:
    from huggingface_hub import EvalResult

    return EvalResult(task_type, dataset, dataset, metric_type, round(value, 6), task, None, split, metric_name=metric)


def _held_out_results(run: Mapping[str, Any], task_type: str) -> list[EvalResult]:
    """Return the results on held-out blocks: accuracies over tokens, and for a masked LM the perplexity."""
    metrics = {
        ("accuracy", name.replace("_", " ")): value for name, value in run["validation"].items() if "accuracy" in name
    }
    if not OBJECTIVES[run["arguments"]["objective"]].corrupts and "mlm_loss" in run["validation"]:
        metrics["perplexity", "perplexity of masked tokens"] = math.exp(min(run["validation"]["mlm_loss"], 700.0))
    return [
        _eval_result(task_type, run["corpus"]["name"], "held-out blocks", metric_type, name, value)
        for (metric_type, name), value in metrics.items()
    ]


def _coco_lm_losses(arguments: Mapping[str, Any]) -> str | None:
    """Describe the sum of losses of a run with the objective cocolm in words; None for other objectives."""
    spec = OBJECTIVES.get(arguments.get("objective", ""))
    if spec is None or not spec.corrects:
        return None
    weight = f"{arguments['rtd_weight']:g}"
    description = {
        "full": f"{weight} x copy loss + language modelling loss"
        + ("" if arguments["stop_gradient"] else " (which trains the copy head too)"),
        "no_copy": f"{weight} x copy loss + language modelling loss (without the copy probability)",
        "all_token": "language modelling loss of all tokens",
        "rtd": f"{weight} x replaced token detection",
    }[arguments["clm"]]
    if arguments["scl"]:
        head = ", a projection head" if arguments["scl_projection"] == "mlp" else ""
        details = f"crops of {100 * arguments['crop_fraction']:g}%, temperature {arguments['scl_temperature']:g}{head}"
        description += f" + sequence contrastive loss ({details})"
    return f"masked-LM loss of the auxiliary model + {description}"


def render(template: str, data: CardData, **values: Any) -> str:
    """Render a card from a template: metadata as YAML between two lines of dashes, then the text.

    Args:
        template: file name in `hf_tlm/hub/templates`.
        values: variables of the template. Strings are escaped, so that they are shown as they are; a template marks code
            with `| code` or `| literal`, and markdown with `| safe`.
    """
    text = _environment().get_template(template).render(card_data=for_terminal(data.to_yaml()), **values)
    return str(text).rstrip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    """Return the jinja2 environment, which compiles each template once."""
    import jinja2
    from markupsafe import Markup

    def shown(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(flat(str(value))))

    environment = jinja2.Environment(loader=jinja2.PackageLoader("hf_tlm.hub"), autoescape=True, finalize=shown)
    environment.globals |= {"names": METRIC_NAMES, "kinds": KINDS, "pair": PAIR, "seed_figure": seed_figure}
    environment.globals |= {"displayed_name": displayed_name, "oldest_transformers": oldest_transformers}
    environment.globals["license_sentence"] = license_sentence(None)  # until one is chosen
    environment.filters["code"] = lambda value: Markup(as_code(str(value)))
    environment.filters["literal"] = lambda value: Markup(as_literal(str(value)))
    environment.filters |= {"figures": figures, "counted": counted}
    return environment


def license_sentence(license: str | None) -> str:
    """Return the sentence of a card about the licence, which the publisher chooses."""
    if license is None:
        return "No licence was chosen for this repository: ask its author before you use it."
    return f"This repository has the licence `{license}`."


def dataset_sentence(dataset: str | None) -> str:
    """Return the sentence of a card about where the data are on the Hub.

    Args:
        dataset: repo id, with `@revision` if known; None if it is not known whether they are on the Hub.
    """
    if dataset is None or not _HUB_DATASET.fullmatch(dataset):
        return "Whether these texts are on the Hub was not recorded."
    name, _, revision = dataset.partition("@")
    link = f"{constants.ENDPOINT}/datasets/{name}" + (f"/tree/{revision}" if revision else "")
    return f"The texts are the dataset [{name}]({link})" + (f" at revision `{revision}`." if revision else ".")


def published_card(
    text: str,
    repo_id: str,
    *,
    license: str | None = None,
    language: str | None = None,
    dataset: str | None = None,
    widget_texts: Sequence[str] | None = None,
) -> str:
    """Fill in a card for publishing: the repo id in its code blocks, and the chosen metadata. Everything else stays.

    Args:
        text: a README.md, written by this package or by hand.
        license, language: for the metadata; None keeps the present value.
        dataset: see `dataset_sentence`; also added to the metadata of a model.
        widget_texts: examples that the model's page on the Hub offers to try; they replace the present ones.

    Raises:
        ValueError: the metadata of the card cannot be read.
    """
    import yaml
    from huggingface_hub import RepoCard

    text = text.replace(PLACEHOLDER, repo_id)
    if license is not None:
        text = text.replace(license_sentence(None), license_sentence(license))
    if dataset is not None:
        text = text.replace(dataset_sentence(None), dataset_sentence(dataset))
    if license is language is dataset is widget_texts is None:
        return text
    try:
        card = RepoCard(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    for name, value in (("license", license), ("language", language)):
        if value is not None:
            card.data[name] = value
    if dataset is not None:
        existing = card.data.get("datasets", [])
        existing = [existing] if isinstance(existing, str) else existing
        card.data["datasets"] = list(dict.fromkeys([*existing, dataset.partition("@")[0]]))
    if widget_texts is not None:
        card.data["widget"] = [{"text": text} for text in widget_texts]
    return str(card)
