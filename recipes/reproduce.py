r"""Repeat the papers' comparisons at your own budget: arms x tasks x seeds in one table, with published figures beside it.

    hf-tlm reproduce --config tlm/coffee reproduce/cpu reproduce/main \
        --tasks_dir path/to/tasks --corpus 'path/to/corpus/*.parquet' --output_dir runs/main
    hf-tlm reproduce --config tlm/minute reproduce/cpu --tasks scierc chemprot \
        --arms 'task only' random BM25 'BM25 + ISS 20%' --objectives mlm electra --seeds 0 1 2 --max_flops 2e13 \
        --tasks_dir path/to/tasks --corpus 'path/to/corpus/*.parquet' --output_dir runs/objectives

The sections retrieve, select_influence, train_tlm and finetune of the YAML files are the options of those recipes, equal for
all arms: give a scale (`hf-tlm presets tlm`), options of the other recipes, and a table. The result is results.md and
results.json, or has the name that the table's file gives (main.md); the records of runs are runs/*.json. Start the same
command again to continue, or several times at once, for instance once for each GPU, to share the work.
Several tables, each with a --table_name, may share an --output_dir (and a --records_dir): a run that one of them has
finished is not repeated for another.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_tlm import experiments as reproduction
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import config_files, parse, run
from hf_tlm.corpora import CorpusArguments
from hf_tlm.utils.options import option
from hf_tlm.utils.process import is_first_process


@dataclass
class ReproduceArguments:
    """Settings of the run: where results are written, and which steps are run."""

    output_dir: str = option(help="Folder of the table, its subsets and its runs.")
    prepare_only: bool = option(
        False, "Stop after tokenizers, subsets and tokenisation: the work that needs no GPU, done beforehand."
    )
    keep_checkpoints: bool = option(False, "Keep checkpoints and the model of stage 1 of finished runs too.")
    export_int8: bool = option(
        False,
        "At the end, temporarily export every finished model to ONNX in 8 bits, for the table's columns MB int8, memory MB "
        "int8, ms a text int8 and int8 drop; also models of runs that finished without this option, if they still exist. "
        "Needs the extra [onnx].",
    )


def main() -> None:
    # 1. Arguments.
    classes = (reproduction.TableArguments, CorpusArguments, ReportArguments, ReproduceArguments)
    table_args, corpus_args, report_args, args = parse(*classes, recipe="reproduce", description=__doc__)

    # 2. The plan: tokenizers and subsets that arms share, then one training per seed, task and arm.
    files = config_files()
    table_args.check_budget(files)
    plan = table_args.plan(corpus_args, args.output_dir, files)
    first = is_first_process()
    if first:
        print(f"Tokenizers and subsets: {len(plan.preparations)}; trainings: {len(plan.trainings)}.")

    # 3. Run every step that is not finished.
    table = reproduction.reproduce(
        plan, prepare_only=args.prepare_only, keep_checkpoints=args.keep_checkpoints, export_int8=args.export_int8
    )

    # 4. The table, and with --report a page for each finished run.
    if first and args.prepare_only:
        print(f"Prepared in {plan.output_dir}. The same command without --prepare_only trains.")
    elif first:
        print(f"\n{table.to_summary()}\n")
        print(f"Costs, leads and how the table was made: {plan.records / plan.table_name}.md; all figures: .json, runs/.")
        for step in plan.trainings:
            if (plan.folder(step) / "results.json").is_file():
                report_args.write(plan.folder(step))
    if table.failures and not args.prepare_only:
        raise reproduction.ReproductionError(
            f"{len(table.failures)} of {table.total} runs failed; the table names them. The same command tries them again."
        )


if __name__ == "__main__":
    run(main)
