r"""Export a finished model to ONNX, in float32 and in 8 bits, for onnxruntime and the browser.

    hf-tlm export --model_name_or_path runs/reviews --output_dir exports/reviews
    hf-tlm export --model_name_or_path runs/reviews/mlm --data texts.txt --output_dir exports/reviews-mlm
    hf-tlm export --model_name_or_path owner/name --dtypes fp32
    hf-tlm export --model_name_or_path owner/name --task reviews.csv --page pages/reviews

Every exported file is checked: the logits of float32 must equal torch's within 1e-4 on the task's validation texts, on the
texts of --data, or without either on random tokens. The score of int8 is measured; an export that loses more than --max_drop
is refused. The task is that of the run if its data have not changed since; otherwise give --task with the options that it
had in training. The model's folder is not changed. Needs the extra [onnx].
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from hf_tlm import analysis, runs
from hf_tlm.config import parse, run
from hf_tlm.errors import HfTlmError
from hf_tlm.runs import ExportArguments
from hf_tlm.runs.arguments import check_exportable, check_models, missing_texts_error
from hf_tlm.tasks import TaskArguments
from hf_tlm.tasks.arguments import text_columns
from hf_tlm.utils.options import option
from hf_tlm.utils.process import is_first_process
from hf_tlm.utils.shown import suggested_path


@dataclass
class CheckArguments(TaskArguments):
    """Settings of the labelled task on whose validation texts the files are checked."""

    task: str | None = option(
        None,
        "A table of texts and labels, a folder, a Hub dataset id or a registered task, as in training. Default: the "
        "task of the run, if its data are here. Without a task give --data, or --dtypes fp32.",
    )


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    args, task_args = parse(ExportArguments, CheckArguments, recipe="export", description=__doc__)
    if not is_first_process():
        return  # The work is for one process; others that `accelerate launch` started have nothing to do.
    check_models(args.model_name_or_path)
    for name in args.model_name_or_path:
        check_exportable(Path(name))
    columns, separator, has_data = None, None, args.data is not None
    if has_data:
        columns, separator = text_columns(task_args.text_column, task_args.text_pair_column), task_args.separator
    given = [name for name, value in vars(task_args).items() if value != getattr(CheckArguments(), name)]
    for name in given if task_args.task is None else ():
        is_of_data = name in ("text_column", "text_pair_column", "separator")
        if not (has_data and is_of_data):
            raise HfTlmError(f"--{name} has no effect without --task{' or --data' if is_of_data else ''}. Remove it.")

    # 2. The task: the one given, or that of the run.
    task = None if task_args.task is None else task_args.load()
    if task is None and args.without_texts:
        first = args.model_name_or_path[0]
        if not os.path.exists(first):
            why = f"There is no local folder {first}, and a model on the Hub names no task.{suggested_path(first)} "
            raise missing_texts_error(args.without_texts, why)
        try:
            task, place = analysis.task_of_run(first)
        except HfTlmError as error:
            raise missing_texts_error(args.without_texts, f"{error} ") from None
        print(f"task        {place}, which the run was trained on")

    # 3. Export, and check.
    exported = runs.export_onnx(
        *(args.model_name_or_path, args.output_dir), task=task, text_columns=columns, separator=separator, **args.options()
    )

    # 4. The results.
    checked = exported.record["checked_on"]
    print(exported.to_text())
    print(f"checked on  {checked['what']}" + (f" ({checked['texts']:,} texts)" if checked["texts"] else ""))
    print(f"export      {exported.folder}")
    if args.page is not None:
        print(f"page        {args.page} (python -m http.server --directory {shlex.quote(args.page)})")


if __name__ == "__main__":
    run(main)
