"""Options of the analysis of tables."""

from dataclasses import dataclass, field

SPLITS = ("validation", "test")


@dataclass
class Options:
    """Sensitivity tables (--what tables)."""

    table_rows: list[str] | None = field(
        default=None,
        metadata={"help": "Settings whose values are rows: rho1, rho2, top_k, fraction, subset, ... Default: what differs."},
    )
    table_columns: list[str] | None = field(
        default=None, metadata={"help": "Settings whose values are columns. Default: task, where there are several."}
    )
    table_split: str = field(
        default="validation",
        metadata={"help": f"Whose scores: {' or '.join(SPLITS)}. The papers' are on validation.", "choices": SPLITS},
    )
