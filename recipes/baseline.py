r"""What a task's score is without a network, in seconds: before a model is trained, to know what it has to beat.

    hf-tlm baseline --task path/to/scierc
    hf-tlm baseline --task path/to/scierc --baseline linear --output_dir runs/scierc-linear

Both are arms of `hf-tlm reproduce` too. With --output_dir the linear model is kept, and `hf-tlm predict` takes it, alone
or beside networks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hf_tlm import runs
from hf_tlm.config import parse, run
from hf_tlm.runs import BaselineArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.utils.locks import owned
from hf_tlm.utils.options import option


@dataclass
class OutputArguments:
    """Where the result goes."""

    output_dir: str | None = option(
        None, "Folder for scores, predictions and the linear model, one in it for each. Default: none are written."
    )


def main() -> None:
    # 1. Arguments.
    classes = (TaskArguments, BaselineArguments, OutputArguments)
    task_args, baseline_args, args = parse(*classes, recipe="baseline", description=__doc__)
    if int(os.environ.get("RANK", "0")) > 0:
        return  # One process has nothing to share with others that `accelerate launch` started.

    # 2. The task, and its scores without a network.
    task = task_args.load()
    made = runs.make_baselines(task, baseline_args.baseline)

    # 3. Say them, and save them with --output_dir.
    rows = []
    for one in made:
        scores = {f"{split} {task.metric}": f"{100 * score[task.metric]:.2f}" for split, score in one.scores.items()}
        chosen = ", ".join(f"{name} {value}" for name, value in one.settings.items())
        rows.append({"baseline": one.name, **scores, "seconds": f"{one.seconds:.1f}", "chosen": chosen})
        if args.output_dir is not None:
            folder = Path(args.output_dir) / one.name.replace(" ", "-")
            with owned(folder):
                one.save(folder, task)
    scored = " and ".join(f"{len(part):,} {split}" for split, part in task.splits.items() if split != "train")
    print(f"\n{task.name}: {len(task.train):,} training texts, scored on {scored} texts, {task.num_labels} classes\n")
    print(runs.format_table(rows, list(rows[0])))
    if args.output_dir is not None:
        print(f"\nSaved to {args.output_dir}.")


if __name__ == "__main__":
    run(main)
