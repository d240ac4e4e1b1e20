"""Options with which recipes choose and load a task."""

from __future__ import annotations

from dataclasses import dataclass

from hf_tlm.tasks.spec import KINDS, METRICS, TASKS, Task, TaskError, check_kind
from hf_tlm.utils.options import check_ranges, option


def text_columns(text_column: str | None, text_pair_column: str | None) -> tuple[str, ...] | None:
    """Return the text columns that two options give; None if neither is given."""
    if text_column is text_pair_column is None:
        return None
    return tuple(column for column in (text_column or "text", text_pair_column) if column is not None)


@dataclass
class TaskArguments:
    """Settings of the labelled task."""

    task: str = option(
        help="A table of texts and labels (csv, tsv, xlsx, jsonl, parquet), from which validation and test texts are held "
        "out; a folder with train, validation and test files (of these types, SQuAD's json, CoNLL, CoNLL-U); a Hub dataset "
        f"id (with @revision if wanted); or a registered task ({', '.join(TASKS)}).",
    )
    task_kind: str | None = option(
        None, f"One of {', '.join(KINDS)} (default: the registered task's, else inferred from the columns).", choices=KINDS
    )
    text_column: str | None = option(None, "Column of the texts (default: text).")
    text_pair_column: str | None = option(None, "Column of the second texts of pairs.")
    label_column: str | None = option(None, "Column of the labels (default: label).")
    label_names: list[str] | None = option(
        None, "Names for classes that are only numbers in the data, in the order of the numbers.", nargs="+"
    )
    columns: list[str] | None = option(
        None,
        "Columns of question answering (context question answers starts), multiple choice (context question "
        "options label) and tagging (tokens tags), as role=column pairs: context=article options=choices. In CoNLL "
        "files columns are numbers: tokens=0 tags=-1.",
    )
    id_column: str | None = option(None, "Column of ids (default: id, if there is one).")
    metric: str | None = option(
        None,
        f"One of {', '.join(METRICS)} (default: the registered task's, else the default of its kind). Or "
        "task=metric pairs for registered tasks: 'mrpc=accuracy stsb=spearman'.",
    )
    task_config: str | None = option(None, "Configuration of a Hub dataset.")
    task_revision: str | None = option(None, "Branch, tag or commit of a Hub dataset.")
    separator: str | None = option(
        None, "Field separator of csv and tsv files, such as ; or tab. Default: tab for tsv, detected for csv."
    )
    validation_share: float | None = option(
        None,
        "Share of the texts of each class to hold out for validation, from a table or a task without a validation split "
        "(default for a table: 0.1).",
    )
    test_share: float | None = option(None, "The same for test (default for a table: 0.1; 0: no test split).")
    max_train_samples: int | None = option(
        None,
        "Maximum number of training examples: a sample stratified by class, the same in every run (default: all). A larger "
        "sample contains every smaller one.",
    )
    max_eval_samples: int | None = option(
        None, "The same for the validation split, which chooses checkpoints and settings (default: all)."
    )
    drop_bad_rows: bool = option(
        False, "Leave out rows with null or blank texts, unknown labels, misplaced answers or repeated ids."
    )

    def __post_init__(self):
        check_ranges(self, TaskError)

    def load(self, user: str = "", *kinds: str) -> Task:
        """Load the task.

        Args:
            user: what the task is for, such as "TLM", for messages.
            kinds: the kinds of tasks that `user` supports; without any, all. They are checked here, before the data are
                read, only if `task_kind` or the name of a registered task gives the kind.

        Raises:
            TaskError: `columns` are no role=column pairs; the kind of the task is not supported; or see `load_task`.
        """
        kind = self.task_kind or (TASKS[self.task].kind if self.task in TASKS else None)
        if kinds and kind is not None:
            check_kind(self.task, kind, user, *kinds)
        from hf_tlm.tasks.loading import load_task

        pairs = [pair.partition("=") for pair in self.columns or []]
        if malformed := ["".join(pair) for pair in pairs if not all(pair)]:
            raise TaskError(
                f"--columns expects role=column pairs, such as context=article; received {', '.join(malformed)}."
            )
        return load_task(
            self.task,
            kind=self.task_kind,
            text_columns=text_columns(self.text_column, self.text_pair_column),
            label_column=self.label_column,
            label_names=self.label_names,
            columns={role: column for role, _, column in pairs} or None,
            id_column=self.id_column,
            metric=self._metric(),
            config_name=self.task_config,
            revision=self.task_revision,
            separator=self.separator,
            validation_share=self.validation_share,
            test_share=self.test_share,
            max_train_samples=self.max_train_samples,
            max_eval_samples=self.max_eval_samples,
            drop_bad_rows=self.drop_bad_rows,
        )

    def _metric(self) -> str | dict[str, str] | None:
        """Return the metric, or name of a task -> metric if the option contains pairs."""
        if self.metric is None or "=" not in self.metric:
            return self.metric
        pairs = [pair.partition("=") for pair in self.metric.split()]
        if malformed := ["".join(pair) for pair in pairs if not pair[0] or pair[2] not in METRICS]:
            raise TaskError(
                f"--metric expects a metric, or task=metric pairs such as 'mrpc=accuracy stsb=spearman'; received "
                f"{', '.join(malformed)}. The metrics are {', '.join(METRICS)}."
            )
        return {name: metric for name, _, metric in pairs}
