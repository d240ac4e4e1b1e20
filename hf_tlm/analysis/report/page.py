"""Write the report of a run, alone or compared with a second, as one HTML page built from the other modules' sections."""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, Findings, ReportPageArguments
from hf_tlm.analysis.report import about
from hf_tlm.analysis.report.blocks import Row, Section, printable, to_markdown
from hf_tlm.analysis.report.compare import compare_runs, highlights_of_both, verdict
from hf_tlm.analysis.report.errors import error_sections, predictions_of
from hf_tlm.analysis.report.run_folder import TITLES, RunFolder, read_run, recorded_task
from hf_tlm.analysis.report.teacher_and_subset import retrieved, teacher
from hf_tlm.errors import AnalysisError
from hf_tlm.hub.repo import is_foreign
from hf_tlm.retrieval.subset import check_subsets
from hf_tlm.tasks.spec import check_task
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.shown import describe_received, for_markdown
from hf_tlm.version import __version__

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

FILE = "report.html"


def write_report(
    run: str | os.PathLike | RunFolder,
    path: str | os.PathLike | None = None,
    *,
    second: str | os.PathLike | RunFolder | None = None,
    task: Task | None = None,
    subsets: Mapping[str, Subset] | None = None,
    options: ReportPageArguments | None = None,
) -> Path:
    """Write the page of `report_page` to a file, atomically.

    Args:
        run: folder of a run that a recipe has written.
        path: the file. None: `analysis/report.html` in the folder of the run.

    Raises:
        AnalysisError: see `read_run` and `report_page`.
    """
    run = run if isinstance(run, RunFolder) else read_run(run)
    second = second if second is None or isinstance(second, RunFolder) else read_run(second)
    path = Path(path) if path is not None else run.path / "analysis" / FILE
    atomic_write(path, report_page(run, second=second, task=task, subsets=subsets, options=options))
    return path


def report_page(
    run: RunFolder,
    *,
    second: RunFolder | None = None,
    task: Task | None = None,
    subsets: Mapping[str, Subset] | None = None,
    options: ReportPageArguments | None = None,
) -> str:
    """Render the report of a run as HTML, under 5 MB however long the data are.

    Args:
        second: a run on the same task to compare with.
        task: the run's task; its texts are shown beside predictions. None: the task in the recorded command, if it is on
            this machine and its data are unchanged. For a run from the Hub, nothing that it names is loaded.
        subsets: name -> subset whose passages are shown. None: that of the recorded command, on the same conditions.

    Raises:
        AnalysisError: the task is not the run's, the two runs predicted different rows, or a file is damaged.
    """
    for name, folder in (("run", run), ("second", second)):
        if not isinstance(folder, RunFolder) and (name == "run" or folder is not None):
            raise AnalysisError(f"{name}: expected a RunFolder; {describe_received(folder, 'read_run', data=False)}")
    check_subsets(subsets or {})
    return _render_page(run, second, task, subsets or {}, options or ReportPageArguments())[0]


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: ReportPageArguments) -> Findings:
    """Write report.html of a run, or of two runs, which it compares; report.md has the tables of the comparison too.

    Without --output_dir a comparison has a folder of its own, beside the report of the first run.
    """
    runs = [read_run(path, name) for name, path in args.runs.items()]
    if not 1 <= len(runs) <= 2:
        raise AnalysisError(f"--what report needs one --run, or two to compare; received {len(runs)}.")
    second = runs[1] if len(runs) == 2 else None
    loaded = task.load() if task.task is not None else None
    page, compared = _render_page(runs[0], second, loaded, args.opened_subsets, options)
    own_folder = f"against-{runs[1].name.replace('/', '-')}" if second is not None and args.output_dir is None else ""
    path = args.folder / own_folder / FILE
    atomic_write(path, page)
    names = " against ".join(run.name for run in runs)
    title, text = f"Report of {names}", f"One page for any browser, {path.stat().st_size / 1e6:.2f} MB."
    if compared is None:
        return Findings(title, text, [path])
    tables = to_markdown(compared.blocks)
    atomic_write(path.with_suffix(".md"), f"# {for_markdown(names)}\n\n{tables}")
    return Findings(title, f"{text}\n\n{tables}", [path, path.with_suffix(".md")])


def _render_page(
    run: RunFolder, second: RunFolder | None, task: Task | None, subsets: Mapping[str, Subset], options: ReportPageArguments
) -> tuple[str, Section | None]:
    """Return the page, and its section that compares two runs; None if no split has predictions of both."""
    missing = list(run.missing)
    if is_foreign(run.path):
        missing.append(
            "The run is from the Hub: the data that it names were not loaded, only its own files and what you passed."
        )
    task = _resolve_task(run, task)
    predicted = predictions_of(run, task, options, missing)
    rows = {split: of_split for split, (_, of_split) in predicted.items() if of_split is not None}
    sections = [about.what_was_run(run, rows), about.on_what(run), about.cost(run), about.scores(run)]
    sections += error_sections(run, predicted, options)
    compared, lead = (None, None) if second is None else compare_runs(run, second, predicted, options, missing)
    sections.append(compared)
    if charts := about.curves(run):
        sections.append(Section("Curves", "curves", [Row(charts)]))
    sections.append(teacher(run))
    sections.append(retrieved(run, task, subsets, options, missing))
    template = _environment().get_template("page.html.jinja")
    page = template.render(
        title=f"{run.record['task'] if isinstance(run.record.get('task'), str) else run.name}: {TITLES[run.kind]}",
        subtitle=run.name if second is None else f"{run.name} against {second.name}",
        verdict=None if second is None else verdict((run, second), lead),
        highlights=about.highlights(run) if second is None else highlights_of_both((run, second)),
        missing=missing[:20],
        sections=[section for section in sections if section is not None],
        version=__version__,
    )
    return page, compared


def _resolve_task(run: RunFolder, task: Task | None) -> Task | None:
    """Return the given task, checked to be the run's, or the run's recorded task if none is given.

    Raises:
        AnalysisError: the given task has other data than the run's.
    """
    if task is None:
        return recorded_task(run)
    check_task(task)
    if (fingerprint := run.record.get("task_fingerprint")) not in (None, task.fingerprint):
        raise AnalysisError(
            f"--task {task.name} is not the task of {run.name}: its data have fingerprint {task.fingerprint}, those of the "
            f"run {fingerprint}. Pass the run's own task, or remove --task for a report without texts."
        )
    return task


@cache
def _environment():
    """Return the Jinja environment of this package, which makes all inserted values printable and escapes them."""
    import jinja2
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_tlm.analysis.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The page's own style and script contain no data; their hashes let a browser reject any others. Shares are CSS classes,
    # because a style attribute of an element would be rejected.
    folder = files("hf_tlm.analysis.report").joinpath("templates")
    texts = {name: folder.joinpath(f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    texts["css"] += "".join(f".s{share}{{--share:{share / 100:g}}}" for share in range(101)) + "\n"
    for name, text in texts.items():
        digest = b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        environment.globals |= {name: Markup(text), f"{name}_hash": Markup(digest)}
    return environment
