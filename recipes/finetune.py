r"""Fine-tune a pretrained encoder on a labelled task of any kind, and evaluate it: mean and deviation over seeds.

    accelerate launch recipes/finetune.py --task path/to/glue_mrpc --model_name_or_path path/or/repo-id \
        --seeds 0 1 2 3 4 --output_dir runs/mrpc

Run the same command again to continue an interrupted run.
"""

from __future__ import annotations

from hf_tlm import evaluation
from hf_tlm.evaluation.finetuning.options import CheckpointArguments, FinetuneOptions
from hf_tlm.parser import parse, run
from hf_tlm.tasks import TaskArguments


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    classes = (TaskArguments, CheckpointArguments, FinetuneOptions)
    task_args, checkpoint, args = parse(*classes, recipe="finetune", description=__doc__)

    # 2. The labelled task.
    task = task_args.load()

    # 3. Training and evaluation, once per seed, and the best model exported.
    result = evaluation.finetune(task, checkpoint, args)

    # 4. The summary.
    if args.process_index == 0:
        print("\n" + result.to_text())


if __name__ == "__main__":
    run(main)
