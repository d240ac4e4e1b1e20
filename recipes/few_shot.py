r"""Learn a task from k labelled examples per class with a prompt (LM-BFF), and test it: mean and deviation over splits.

    hf-tlm few-shot --config few_shot/lm_bff --task sst2 --model_name_or_path path/to/masked_lm --k 16 --splits 5 \
        --output_dir runs/sst2-prompt
    hf-tlm few-shot --task path/to/reviews --template '{text} All in all, it was {mask}.' \
        --label_words neg=bad pos=good --model_name_or_path path/to/masked_lm --output_dir runs/reviews-prompt

The model is any masked LM, or the folder of a run that has one in `mlm/` (TLM, masked LM pretraining, COCO-LM). --method
finetune is the baseline with a classification head, --method zero_shot the prompt without training. On several devices:
`accelerate launch recipes/few_shot.py ...`, or --num_processes. Run the same command again to continue an interrupted run,
or several times at once to share its trainings.
"""

from __future__ import annotations

from hf_tlm import runs
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import parse, run
from hf_tlm.runs.finetuning import CheckpointArguments
from hf_tlm.tasks import TaskArguments


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    classes = (TaskArguments, CheckpointArguments, ReportArguments, "hf_tlm.runs.FewShotArguments")
    task_args, checkpoint, report_args, args = parse(*classes, recipe="few_shot", description=__doc__)
    task = task_args.load("Few-shot learning", "classification")
    if args.process_index == 0:
        print(task.to_text())

    # 2. For every split: draw its examples, run the grid, and test the model that is best on its validation examples.
    result = runs.run_few_shot(task, checkpoint, args)

    # 3. The table, and with --report the page.
    if args.process_index == 0:
        print(f"\n{result.to_text()}\n\nresults      {args.output_dir}")
        if page := report_args.write(args.output_dir, task):
            print(f"report       {page}")


if __name__ == "__main__":
    run(main)
