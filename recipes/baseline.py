r"""Score a task without a network, in seconds: the scores that a model has to beat, known before it is trained.

    hf-tlm baseline --task path/to/scierc
    hf-tlm baseline --task path/to/scierc --baseline linear --output_dir runs/scierc-linear

The baselines are arms of `hf-tlm reproduce` too. With --output_dir the linear model is saved, and `hf-tlm predict` accepts
it, alone or together with networks.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hf_tlm import runs
from hf_tlm.config import parse, run
from hf_tlm.runs import BaselineArguments
from hf_tlm.runs.arguments import baseline_names
from hf_tlm.tasks import TaskArguments
from hf_tlm.utils.files import check_writable
from hf_tlm.utils.locks import owned
from hf_tlm.utils.options import option
from hf_tlm.utils.process import is_first_process


@dataclass
class OutputArguments:
    """Settings of the output."""

    output_dir: str | None = option(
        None, "Folder with a folder for each baseline: scores, predictions, and the linear model. Default: none are written."
    )

    def folder(self, name: str) -> Path:
        """Return the folder of a baseline; needs an output_dir."""
        assert self.output_dir is not None
        return Path(self.output_dir) / name.replace(" ", "-")


def main() -> None:
    # 1. Arguments.
    classes = (TaskArguments, BaselineArguments, OutputArguments)
    task_args, baseline_args, args = parse(*classes, recipe="baseline", description=__doc__)
    if not is_first_process():
        return  # The work is for one process; others that `accelerate launch` started have nothing to do.

    with contextlib.ExitStack() as stack:
        # 2. The output folders. They are checked and locked before anything is fitted.
        if args.output_dir is not None:
            for folder in map(args.folder, baseline_names(baseline_args.baseline)):
                check_writable(folder)
                stack.enter_context(owned(folder))

        # 3. The task, and its scores without a network, which are saved with --output_dir.
        task = task_args.load("A baseline", "classification")
        made = runs.make_baselines(task, baseline_args.baseline)
        if args.output_dir is not None:
            for one in made:
                one.save(args.folder(one.name), task)

    # 4. The results.
    rows = []
    for one in made:
        scores = {f"{split} {task.metric}": f"{100 * score[task.metric]:.2f}" for split, score in one.scores.items()}
        chosen = ", ".join(f"{name} {value}" for name, value in one.settings.items())
        rows.append({"baseline": one.name, **scores, "seconds": f"{one.seconds:.1f}", "chosen": chosen})
    scored = " and ".join(f"{len(part):,} {split}" for split, part in task.splits.items() if split != "train")
    print(f"\n{task.name}: {len(task.train):,} training texts, scored on {scored} texts, {task.num_labels} classes\n")
    print(runs.format_table(rows, list(rows[0])))
    if args.output_dir is not None:
        print(f"\nSaved to {args.output_dir}.")


if __name__ == "__main__":
    run(main)
