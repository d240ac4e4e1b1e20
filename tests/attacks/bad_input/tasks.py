"""Tasks that lack something, as rows, and the recipes that take a task."""

ROWS = [{"text": f"the gene raises the cell {number}", "label": ("up", "down")[number % 2]} for number in range(8)]
HELD_OUT = [{**row, "text": f"{row['text']} again"} for row in ROWS]


def with_column(name, value, rows=ROWS):
    return [{**row, name: value} for row in rows]


def without(name, rows=ROWS):
    return [{key: value for key, value in row.items() if key != name} for row in rows]


# Rows of train and rows of validation.
TASKS = {
    "no texts": (without("text"), without("text", HELD_OUT)),
    "no labels": (without("label"), without("label", HELD_OUT)),
    "null texts": (with_column("text", None), HELD_OUT),
    "a null text": ([*ROWS, {"text": None, "label": "up"}], HELD_OUT),
    "empty texts": (with_column("text", ""), HELD_OUT),
    "a null label": ([*ROWS, {"text": "a", "label": None}], HELD_OUT),
    "an unknown label in validation": (ROWS, [*HELD_OUT, {"text": "a", "label": "sideways"}]),
    "a list as a text": ([*ROWS, {"text": ["a"], "label": "up"}], HELD_OUT),
    "a mapping as a label": (with_column("label", {"a": 1}), with_column("label", {"a": 1}, HELD_OUT)),
    "no rows": ([], HELD_OUT),
    "no validation rows": (ROWS, []),
    "half a character": ([*ROWS, {"text": "\ud800", "label": "up"}], HELD_OUT),
}
OF_TASKS = ["retrieve", "baseline", "train_tlm", "finetune", "few_shot", "select_influence", "quickstart", "analyze words"]
