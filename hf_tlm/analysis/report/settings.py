"""The settings of a run, those that differ from the defaults first."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from hf_tlm.analysis.report.run_folder import RunFolder

# What every run sets or works out by itself: it tells nothing of what was asked for.
_SETTLED = frozenset(
    "accelerator_config activation_checkpointing ddp_find_unused_parameters debug do_eval gradient_checkpointing "
    "hub_strategy label_names remove_unused_columns texts_per_step".split()
)


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    value: str
    default: str | None
    differs: bool


def settings_of(run: RunFolder) -> list[Setting]:
    """All settings that a run recorded, in their order."""
    defaults = _defaults(run)
    found = []
    for section in ("arguments", "model", "blocks"):
        values = run.record.get(section)
        for name, value in (values if isinstance(values, Mapping) else {}).items():
            known = name in defaults
            differs = name not in _SETTLED and (not known or defaults[name] != value)
            found.append(Setting(name, _written(value), _written(defaults[name]) if known else None, differs))
    return found


def _defaults(run: RunFolder) -> dict[str, Any]:
    """Of the classes that the recipe of a kind of run takes, as JSON values; fields without a default are left out."""
    from hf_tlm.data import BlockArguments
    from hf_tlm.runs import CheckpointArguments, FewShotArguments, FinetuneArguments
    from hf_tlm.training import ModelArguments, PretrainArguments, TlmArguments

    classes = {
        "tlm": (TlmArguments, ModelArguments),
        "pretrain": (PretrainArguments, ModelArguments, BlockArguments),
        "finetune": (FinetuneArguments, CheckpointArguments),
        "grid": (FinetuneArguments, CheckpointArguments),
        "few_shot": (FewShotArguments, CheckpointArguments),
    }.get(run.kind, ())
    values = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            if field.default_factory is not dataclasses.MISSING:
                values[field.name] = field.default_factory()
            elif field.default is not dataclasses.MISSING:
                values[field.name] = field.default
    if ModelArguments in classes:
        # Some are decided by the objective.
        values |= (
            ModelArguments().with_objective_defaults((run.record.get("arguments") or {}).get("objective", "mlm")).__dict__
        )
    # As the record holds them: an enumeration is its value.
    return json.loads(json.dumps(values, default=str))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
