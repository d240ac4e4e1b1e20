r"""Select the passages of a subset that influence the task most (ISS), as a smaller subset.

    hf-tlm select-influence --task path/to/scierc --subset runs/scierc-bm25 --fraction 0.2 \
        --model_config models/bert_tiny --output_dir runs/scierc-iss
    hf-tlm select-influence --task path/to/scierc --subset runs/scierc-bm25 --method random --fraction 0.2 \
        --output_dir runs/scierc-random-20
    hf-tlm select-influence --task path/to/scierc --subset runs/scierc-bm25 --method confidence --teacher linear \
        --balance class --fraction 0.2 --output_dir runs/scierc-confident-20
    hf-tlm select-influence --task path/to/scierc --subset runs/scierc-bm25 --fraction 0.2 \
        --score_model runs/score-model --work_dir /shared/scierc-scores --executor slurm --num_shards 16 \
        --executor_options '{"partition": "gpu", "time": "2:00:00"}' --output_dir runs/scierc-iss

A score model is trained on the task (--score_model scratch; the training options apply to it), or given. Every process
(`accelerate launch recipes/select_influence.py ...`, or --num_processes), or every task of an executor, scores its share of
the passages. Run the same command again to continue an interrupted run.
"""

from __future__ import annotations

from hf_tlm import retrieval
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import parse, run
from hf_tlm.hub import SubsetHubArguments
from hf_tlm.influence import SelectionArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.training import ArgumentsError, ModelArguments
from hf_tlm.utils.locks import owned


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    task_args, selection, model_args, report_args, args = parse(
        *(TaskArguments, SelectionArguments, ModelArguments, ReportArguments, "hf_tlm.training.ScoreModelArguments"),
        recipe="select_influence",
        description=__doc__,
    )
    if not args.output_dir:
        raise ArgumentsError("--output_dir is missing: pass a folder for the smaller subset.")

    hub_args = SubsetHubArguments(
        args.push_to_hub, args.hub_dataset_id, args.hub_private_repo, args.hub_revision, args.hub_token
    )
    if args.process_index == 0:
        hub_args.check()

    with owned(args.output_dir):
        # 2. The labelled task, on whose validation split influence is measured, and the subset to select from.
        task, subset = task_args.load("Selection by influence", "classification"), retrieval.Subset.open(selection.subset)
        from hf_tlm.runs.score_model import select_part  # Imports torch and the Trainer, which --help does not need.
        from hf_tlm.training.run_arguments import training_options

        teacher = args.teacher if args.taught else None
        selection.check(task, subset, args.output_dir, teacher, training_options(args))

        # 3. The score model and every passage's influence, or a teacher's scores. The control methods need neither.
        smaller = select_part(task, subset, selection, args, model_args)

        # 4. Save the smaller subset, print what was kept, and publish it with --push_to_hub.
        if args.process_index == 0:
            smaller.save(
                args.output_dir, report=retrieval.retrieval_report(smaller, task if selection.quote_task_texts else None)
            )
            print(f"\n{smaller.summary()}\nSaved to {args.output_dir}.")
            if page := report_args.write(args.output_dir, task, smaller):
                print(f"Report: {page}.")
            if push := hub_args.publish(args.output_dir):
                print(push.to_text())


if __name__ == "__main__":
    run(main)
