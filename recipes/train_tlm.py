r"""Train a text classifier from scratch on a labelled task and a retrieved subset (TLM), and evaluate it.

    hf-tlm retrieve --config tlm/coffee --task path/to/scierc --corpus 'path/to/corpus/*.parquet' \
        --output_dir runs/scierc-bm25
    hf-tlm train --config tlm/coffee --task path/to/scierc --subset runs/scierc-bm25 --seeds 0 1 2 \
        --output_dir runs/scierc-tlm

The paper's settings are presets: `--config tlm/base tlm/scierc_small`; `hf-tlm presets tlm` lists them. On several devices:
`accelerate launch recipes/train_tlm.py ...`, or --num_processes. Run the same command again to continue an interrupted run.
"""

from __future__ import annotations

from hf_tlm import data, runs, training
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import parse, run
from hf_tlm.retrieval import SubsetArguments
from hf_tlm.runs import PredictArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.training import ModelArguments
from hf_tlm.utils.run_files import mention_if_finished


def main() -> None:
    # 1. Arguments: YAML files, then the command line; the model is checked before data are loaded.
    classes = (TaskArguments, SubsetArguments, ModelArguments, PredictArguments, ReportArguments)
    task_args, subset_args, model_args, predicting, report_args, args = parse(
        *classes, "hf_tlm.training.TlmArguments", recipe="train_tlm", description=__doc__
    )
    training.check_model(args, model_args)

    # 2. The labelled task, and the subset of the corpus that was retrieved for it. Data that could not be predicted on at
    # the end are refused before the training.
    with mention_if_finished(args.folder):
        task = task_args.load("TLM", "classification")
    reading = {"drop_bad_rows": task_args.drop_bad_rows, "separator": task_args.separator}
    runs.check_predictable(task, predicting, args.output_dir, **reading)
    if args.process_index == 0:
        print(task.to_text())
    with mention_if_finished(args.folder):
        subset = subset_args.open()
    if args.process_index == 0:
        print(data.unseen_words_line(task, None if subset is None else subset.dataset))

    # 3. Stage 1 (joint), stage 2 (task only) and evaluation, once per seed, and export of the best model.
    result = runs.run_tlm(task, subset, args, model_args)

    # 4. The summary, and with --report the page.
    if args.process_index == 0:
        print("\n" + result.to_text())
        if page := report_args.write(args.output_dir, task, subset):
            print(f"report       {page}")

    # 5. Predictions for unlabelled data.
    path = runs.predict_after(args, predicting, **reading)
    if path is not None and args.process_index == 0:
        print(f"predictions  {path}")


if __name__ == "__main__":
    run(main)
