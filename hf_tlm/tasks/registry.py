"""Tasks by name: the eight of the TLM paper, GLUE, SQuAD, RACE, and parts of speech."""

from __future__ import annotations

from typing import Any

from hf_tlm.tasks.spec import TaskSpec


def _released(
    name: str, hub_name: str, sizes: tuple[int, int, int], classes: tuple[str, ...], metric: str = "macro_f1"
) -> TaskSpec:
    """A task of the TLM paper (section 4.1), after Gururangan et al. 2020, Table 2.

    The data are those the authors released: `yxchar/<task>-tlm` on the Hub, with `train.csv`, `dev.csv` and `test.csv`.
    Their labels there are integers whose names the release does not give; data with label names keep the names.
    """
    return TaskSpec(
        name=name,
        path=f"yxchar/{hub_name}-tlm",
        data_files={"train": "train.csv", "validation": "dev.csv", "test": "test.csv"},
        metric=metric,
        classes=classes,
        split_sizes=sizes,
    )


def _glue(name: str, sizes: tuple[int, int, int], classes: tuple[str, ...], columns: tuple[str, ...], **more) -> TaskSpec:
    """A task of GLUE (Wang et al. 2019, Table 1): metrics and the order of classes are the benchmark's.

    Copies of the data that call the texts sentence1 and sentence2, or text and text_pair, will do too.
    """
    others = [("sentence1", "sentence2")[: len(columns)], ("text", "text_pair")[: len(columns)]]
    return TaskSpec(
        name=name,
        path="nyu-mll/glue",
        text_columns=columns,
        other_text_columns=tuple(other for other in others if other != columns),
        classes=classes,
        split_sizes=sizes,
        **{"config_name": name, "metric": "accuracy", **more},
    )


def _mnli(name: str, part: str, sizes: tuple[int, int, int]) -> TaskSpec:
    return _glue(
        name,
        sizes,
        ("entailment", "neutral", "contradiction"),
        ("premise", "hypothesis"),
        config_name="mnli",
        split_names={"validation": f"validation_{part}", "test": f"test_{part}"},
    )


_CHEMPROT = (
    "ACTIVATOR",
    "AGONIST",
    "AGONIST-ACTIVATOR",
    "AGONIST-INHIBITOR",
    "ANTAGONIST",
    "DOWNREGULATOR",
    "INDIRECT-DOWNREGULATOR",
    "INDIRECT-UPREGULATOR",
    "INHIBITOR",
    "PRODUCT-OF",
    "SUBSTRATE",
    "SUBSTRATE_PRODUCT-OF",
    "UPREGULATOR",
)
_ACL_ARC = ("Background", "CompareOrContrast", "Extends", "Future", "Motivation", "Uses")
_SCIERC = ("COMPARE", "CONJUNCTION", "EVALUATE-FOR", "FEATURE-OF", "HYPONYM-OF", "PART-OF", "USED-FOR")
_RCT = ("BACKGROUND", "CONCLUSIONS", "METHODS", "OBJECTIVE", "RESULTS")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_ENTAILMENT = ("entailment", "not_entailment")
_F1: dict[str, Any] = {"metric": "f1", "further_metrics": ("accuracy",)}
_SCORE: dict[str, Any] = {"kind": "regression", "metric": "pearson", "further_metrics": ("spearman",)}
_RACE: dict[str, Any] = {"path": "ehovy/race", "kind": "multiple_choice"}

TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        _released("chemprot", "chemprot", (4169, 2427, 3469), _CHEMPROT, "micro_f1"),
        _released("rct", "rct-20k", (180040, 30212, 30135), _RCT, "micro_f1"),
        _released("acl_arc", "citation_intent", (1688, 114, 139), _ACL_ARC),
        _released("scierc", "sciie", (3219, 455, 974), _SCIERC),
        _released("hyperpartisan", "hyp", (515, 65, 65), ("false", "true")),
        _released("agnews", "ag", (115000, 5000, 7600), ("Business", "Sci/Tech", "Sports", "World")),
        _released("helpfulness", "amazon", (115251, 5000, 25000), ("helpful", "unhelpful")),
        _released("imdb", "imdb", (20000, 5000, 25000), ("neg", "pos")),
        _glue("cola", (8551, 1043, 1063), ("unacceptable", "acceptable"), ("sentence",), metric="matthews"),
        _glue("sst2", (67349, 872, 1821), ("negative", "positive"), ("sentence",)),
        _glue("mrpc", (3668, 408, 1725), ("not_equivalent", "equivalent"), _PAIR, **_F1),
        _glue("qqp", (363846, 40430, 390965), ("not_duplicate", "duplicate"), _QUESTIONS, **_F1),
        _glue("stsb", (5749, 1500, 1379), (), _PAIR, **_SCORE),
        _mnli("mnli", "matched", (392702, 9815, 9796)),
        _mnli("mnli_mm", "mismatched", (392702, 9832, 9847)),
        _glue("qnli", (104743, 5463, 5463), _ENTAILMENT, ("question", "sentence")),
        _glue("rte", (2490, 277, 3000), _ENTAILMENT, _PAIR),
        TaskSpec(name="squad", path="rajpurkar/squad", kind="question_answering", split_sizes=(87599, 10570, 0)),
        TaskSpec(name="squad_v2", path="rajpurkar/squad_v2", kind="question_answering", split_sizes=(130319, 11873, 0)),
        TaskSpec(name="race_middle", config_name="middle", split_sizes=(25421, 1436, 1436), **_RACE),
        TaskSpec(name="race_high", config_name="high", split_sizes=(62445, 3451, 3498), **_RACE),
        # Universal Dependencies' English Web Treebank, and the Wall Street Journal part of the Penn Treebank.
        TaskSpec(name="pos_ewt", path="", kind="tagging", split_sizes=(12544, 2001, 2077)),
        TaskSpec(name="pos_ptb", path="", kind="tagging"),
    )
}


# Tokens after which TLM's scripts cut a text (evaluate.sh), where not after 128.
LONG_TEXTS = {"imdb": 512}


def released_length(name: str) -> int:
    """Tokens of the longest text that TLM's released models of a task were trained on, by a name of the task."""
    known = registered_task(name)
    return LONG_TEXTS.get(known.name if known else name, 128)


def registered_task(name: str, config_name: str | None = None) -> TaskSpec | None:
    """The spec of a registered task, else None.

    Args:
        name: ours, or that of its release (scierc, sciie, yxchar/sciie-tlm), or its Hub id (nyu-mll/glue).
        config_name: of several tasks with one Hub id, whose configuration it is.
    """
    if name in TASKS:
        return TASKS[name]
    releases = ((name, config_name), (f"yxchar/{name}-tlm", None))
    return next((spec for spec in TASKS.values() if spec.path and (spec.path, spec.config_name) in releases), None)
