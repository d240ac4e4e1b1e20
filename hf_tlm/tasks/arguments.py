"""How recipes take a task."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_tlm.tasks.registry import TASKS
from hf_tlm.tasks.spec import METRICS, Task


@dataclass
class TaskArguments:
    """The labelled task."""

    task: str = field(
        metadata={
            "help": f"A registered task ({', '.join(TASKS)}), a Hub dataset id (@revision if wanted), or a folder "
            "with train, validation and test files (parquet, jsonl or csv)."
        }
    )
    text_column: str | None = field(default=None, metadata={"help": "Column of the texts (default: text)."})
    text_pair_column: str | None = field(default=None, metadata={"help": "Column of the second texts of pairs."})
    label_column: str | None = field(default=None, metadata={"help": "Column of the labels (default: label)."})
    id_column: str | None = field(default=None, metadata={"help": "Column of ids (default: id, if there is one)."})
    metric: str | None = field(
        default=None,
        metadata={"help": f"One of {', '.join(METRICS)} (default: the registered task's, else macro_f1)."},
    )
    task_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    task_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of a Hub dataset."})
    drop_bad_rows: bool = field(
        default=False, metadata={"help": "Leave out rows with null or blank texts, unknown labels or repeated ids."}
    )

    def load(self) -> Task:
        """Read the task.

        Raises:
            TaskError: see `load_task`.
        """
        from hf_tlm.tasks.loading import load_task

        columns = None
        if self.text_column is not None or self.text_pair_column is not None:
            columns = tuple(c for c in (self.text_column or "text", self.text_pair_column) if c is not None)
        return load_task(
            self.task,
            text_columns=columns,
            label_column=self.label_column,
            id_column=self.id_column,
            metric=self.metric,
            config_name=self.task_config,
            revision=self.task_revision,
            drop_bad_rows=self.drop_bad_rows,
        )
