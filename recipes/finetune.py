r"""Fine-tune a pretrained encoder on a labelled task of any kind, and evaluate it: mean and deviation over seeds.

    hf-tlm finetune --task path/to/glue_mrpc --model_name_or_path path/or/repo-id --seeds 0 1 2 3 4 --output_dir runs/mrpc
    hf-tlm finetune --task path/to/glue_mrpc --model_name_or_path path/or/repo-id --seeds 0 1 2 3 4 --output_dir runs/mrpc \
        --predict path/to/unlabelled.jsonl

A pattern fine-tunes every checkpoint of a pretraining; `hf-tlm analyze --what curves` plots their scores against its steps:

    hf-tlm finetune --task path/to/glue_mnli --model_name_or_path 'runs/cocolm/training/checkpoint-*' --output_dir runs/mnli

With --grid every combination of its values is run, and the best on validation is published; the papers' grids are presets
(`hf-tlm presets finetune`). On several devices: `accelerate launch recipes/finetune.py ...`, or --num_processes. Run the
same command again to continue an interrupted run; a finished run only predicts.
"""

from __future__ import annotations

from hf_tlm import data, runs
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import parse, run
from hf_tlm.errors import ArgumentsError
from hf_tlm.retrieval import SubsetArguments
from hf_tlm.runs import CheckpointArguments, GridArguments, PredictArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.utils.run_files import mention_if_finished


def main() -> None:
    # 1. Arguments: YAML files, then the command line; checked as far as possible before data are loaded.
    task_args, checkpoint, grid_args, subset_args, predicting, report_args, args = parse(
        *(TaskArguments, CheckpointArguments, GridArguments, SubsetArguments, PredictArguments, ReportArguments),
        "hf_tlm.runs.FinetuneArguments",
        recipe="finetune",
        description=__doc__,
    )
    grid = grid_args.read(args.seeds, checkpoint.model_name_or_path)
    if grid is not None and subset_args.subset:
        raise ArgumentsError("--subset is for a teacher to label, but a grid has no teacher. Remove --subset.")
    if grid is None:
        runs.check_finetuning(checkpoint, args)

    # 2. The labelled task. Data that could not be predicted on at the end are refused before the training.
    with mention_if_finished(args.folder):
        task = task_args.load()
    reading = {"drop_bad_rows": task_args.drop_bad_rows, "separator": task_args.separator}
    runs.check_predictable(task, predicting, args.output_dir, **reading)
    if args.process_index == 0:
        print(task.to_text())
    with mention_if_finished(args.folder):
        subset = subset_args.open()
    if args.process_index == 0:
        print(data.unseen_words_line(task, None if subset is None else subset.dataset))

    # 3. Training and evaluation, once per seed, and export of the best model (of a grid: of its best point).
    if grid is None:
        result = runs.finetune(task, checkpoint, args, subset=subset)
    else:
        result = runs.run_grid(task, checkpoint, args, grid, trials=grid_args.optuna_trials)

    # 4. The summary, and with --report the page.
    if args.process_index == 0:
        print("\n" + result.to_text())
        if page := report_args.write(args.output_dir, task):
            print(f"report       {page}")

    # 5. Predictions for unlabelled data.
    path = runs.predict_after(args, predicting, trust_remote_code=checkpoint.trust_remote_code, **reading)
    if path is not None and args.process_index == 0:
        print(f"predictions  {path}")


if __name__ == "__main__":
    run(main)
