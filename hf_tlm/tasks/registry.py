"""The eight tasks of the TLM paper (section 4.1), after Gururangan et al. 2020, Table 2.

The data are those the authors released: `yxchar/<task>-tlm` on the Hub, with `train.csv`, `dev.csv` and `test.csv`.
Their labels there are integers whose names the release does not give; data with label names keep the names.
"""

from __future__ import annotations

from hf_tlm.tasks.spec import TaskSpec


def _released(
    name: str, hub_name: str, sizes: tuple[int, int, int], classes: tuple[str, ...], metric: str = "macro_f1"
) -> TaskSpec:
    return TaskSpec(
        name=name,
        path=f"yxchar/{hub_name}-tlm",
        data_files={"train": "train.csv", "validation": "dev.csv", "test": "test.csv"},
        metric=metric,
        classes=classes,
        split_sizes=sizes,
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
    )
}


def registered_task(name: str) -> TaskSpec | None:
    """The spec of a registered task by our name or that of its release (scierc, sciie, yxchar/sciie-tlm); else None."""
    by_release = {spec.path: spec for spec in TASKS.values()}
    return TASKS.get(name) or by_release.get(name) or by_release.get(f"yxchar/{name}-tlm")
