"""All views of the subsets that are given."""

from __future__ import annotations

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, SubsetsArguments
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.subsets import views
from hf_tlm.utils.files import atomic_write


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: SubsetsArguments) -> Findings:
    """Case study, size against K, sources, rank against influence, overlap: subsets.md, pictures and tables.

    A view that a subset has nothing for says why.
    """
    subsets = args.opened_subsets
    if not subsets:
        raise AnalysisError("--what subsets needs --subsets: folders that recipes have written, or datasets of the Hub.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: there is nothing to show.")
    labelled = task.load() if task.task is not None and options.case_studies else None
    made = [
        views.sizes(subsets, args.folder),
        views.sources(subsets, args.folder, options.top_sources),
        views.influence(subsets, args.folder, options.rank_bins),
        views.overlaps(subsets, args.folder),
    ]
    if options.case_studies:
        number, passages, seed = options.case_studies, options.case_passages, args.seed
        made.append(views.case_study(subsets, args.folder, labelled, number, passages, seed))
    text = "\n\n".join(f"### {view.title}\n\n{view.text}" for view in made if view is not None) + "\n"
    atomic_write(args.folder / "subsets.md", f"# Subsets\n\n{text}")
    return Findings("Subsets", text, [args.folder / "subsets.md", *(path for view in made if view for path in view.files)])
