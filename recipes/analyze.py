r"""Make figures and tables of runs, models and subsets, and a report of a run that opens in any browser.

    hf-tlm analyze --what report --run runs/scierc
    hf-tlm analyze --what heads --models tlm=runs/scierc bert=path/or/repo-id --texts texts.jsonl
    hf-tlm analyze --what words subsets --task path/to/scierc --subsets BM25=runs/bm25 ISS=runs/iss

Every figure is written as PNG and SVG, with its numbers in a CSV file beside it.
"""

from __future__ import annotations

from hf_tlm import analysis
from hf_tlm.analysis import AnalysisError, AnalyzeArguments, AnalyzedTask
from hf_tlm.config import parse, run
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.process import is_first_process


def main() -> None:
    # 1. Arguments: what all analyses share, the task, and the options of each analysis.
    args, task, *options = parse(
        AnalyzeArguments, AnalyzedTask, *analysis.ARGUMENTS.values(), recipe="analyze", description=__doc__
    )
    if not is_first_process():
        return  # The work is for one process; others that `accelerate launch` started have nothing to do.
    options = dict(zip(analysis.ARGUMENTS, options, strict=True))

    # 2. One analysis after another; one that fails does not stop the others.
    failed = []
    for what in dict.fromkeys(args.what):
        try:
            print(f"\n{analysis.analyze(what, args, task, options[what]).to_text()}", flush=True)
        except HfTlmError as error:
            failed.append(f"{what}: {error}")
    if failed:
        raise AnalysisError("\n".join(failed))


if __name__ == "__main__":
    run(main)
