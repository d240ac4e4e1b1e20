"""The curves of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hf_tlm.analysis.arguments import AXES, AnalyzeArguments, AnalyzedTask, CurvesArguments
from hf_tlm.analysis.curves.figures import curves_figure
from hf_tlm.analysis.curves.series import choose_quantities, point_rows
from hf_tlm.analysis.curves.states import RunLog, read_runs
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import save_figure
from hf_tlm.analysis.findings import Findings


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: CurvesArguments) -> Findings:
    """curves.png, curves.svg, and every point in curves.csv."""
    if not args.run:
        raise AnalysisError("--what curves needs --run: runs, or a folder of runs.")
    runs = read_runs(args.runs)
    lacking = [name for name, run in runs.items() if run.lacks(options.x)]
    if len(lacking) == len(runs):
        raise AnalysisError(
            f"{', '.join(lacking)}: the log does not tell {AXES[options.x]} (--x {options.x}). Steps always are in it; "
            "tokens, FLOPs and seconds only where a Trainer of this package wrote it."
        )
    drawn = {name: run for name, run in runs.items() if name not in lacking}
    quantities = choose_quantities(drawn.values(), options.quantities)
    figure = curves_figure(drawn, quantities, x=options.x, smoothing=options.smoothing, spread=options.spread)
    files = save_figure(figure, args.folder, "curves", point_rows(drawn, quantities, options.smoothing))
    return Findings("Training curves", _text(drawn, quantities, lacking, options), files)


def _text(runs: Mapping[str, RunLog], quantities: list[str], lacking: list[str], options: CurvesArguments) -> str:
    lines = [f"Drawn against {AXES[options.x]}: {', '.join(quantities)}."]
    for name, run in runs.items():
        seeds = f"{len(run.seeds)} seeds" if len(run.seeds) > 1 else "one seed"
        missing = [quantity for quantity in quantities if quantity not in run.quantities]
        lines.append(f"- {name}: {seeds}" + (f"; not logged: {', '.join(missing)}" if missing else ""))
        for seed in run.seeds:
            for quantity in quantities:
                bad = [x["steps"] for _, x, value in seed.points.get(quantity, ()) if not math.isfinite(value)]
                if bad:
                    where = f"at step {', '.join(f'{step:g}' for step in bad[:5])}" + (", ..." if len(bad) > 5 else "")
                    lines.append(
                        f"- {name}, seed {seed.seed or 0}: {quantity} is not finite {where}; the others' mean is drawn"
                    )
    lines += [f"- {name} is left out: its log does not tell {AXES[options.x]}" for name in lacking]
    others = sorted({name for run in runs.values() for name in run.quantities} - set(quantities))
    if others:
        lines.append(f"\nAlso logged (--quantities): {', '.join(others)}.")
    if options.spread == "band" and any(len(run.seeds) > 1 for run in runs.values()):
        lines.append("\nLines are means over seeds, bands their standard deviation (n - 1).")
    return "\n".join(lines)
