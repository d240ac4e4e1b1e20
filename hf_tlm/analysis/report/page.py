"""From the folder of a run, alone or beside a second, to one HTML file that needs nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import os
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, Findings, ReportPageArguments
from hf_tlm.analysis.report import about, errors
from hf_tlm.analysis.report.blocks import Block, Code, Column, Facts, Row, Section, Text, make_table, printable, to_markdown
from hf_tlm.analysis.report.charts import curves
from hf_tlm.analysis.report.compare import against, labels, verdict
from hf_tlm.analysis.report.predictions import Predictions, read_predictions
from hf_tlm.analysis.report.recorded import recorded_subset, recorded_task
from hf_tlm.analysis.report.retrieved import MOST_BYTES, made_for, retrieved_table, size_chart, source_table, subset_command
from hf_tlm.analysis.report.rows import Rows, TrainingWords, rows_of
from hf_tlm.analysis.report.run_folder import TITLES, RunFolder, read_run
from hf_tlm.analysis.runs import SPLITS
from hf_tlm.errors import AnalysisError, HfTlmError
from hf_tlm.hub.repo import is_foreign
from hf_tlm.metrics import Lead
from hf_tlm.retrieval.subset import check_subsets
from hf_tlm.tasks.spec import check_task
from hf_tlm.training.teacher import described, doubts
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import listed, mapped, read_fields, read_json, real, record, truth, whole, words
from hf_tlm.utils.run_files import EXAMPLES_FILE, TEACHER_FILE, TRAIN_IDS_FILE
from hf_tlm.utils.shown import instead
from hf_tlm.version import __version__

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

# By split, what was predicted, and the rows it is of, where the task is at hand.
_Predicted = dict[str, tuple[Predictions, Rows | None]]
_COUNTS = mapped(whole(0, 2**40), 10_000)
_SHARE = real(0, 1)
_COST = {"seconds": real(0, 1e12), "flops": real(0, 1e30)}
_EXAMPLE = record({"text": words(1000), "probability": _SHARE, "taught": truth})
# A stranger may have written the file. What a line or a table says; the rest of a teacher is among the settings.
_REPORT = {
    **{"model": words(10_000), "held_out": words(100), "held_out_accuracy": _SHARE, "largest_class": _SHARE},
    **{"passages": whole(0, 2**40), "passages_by_class": _COUNTS, "subset_by_class": _COUNTS},
    **{"class_shares": mapped(_SHARE, 10_000), "marks_without_passages": listed(words(1000), 1000)},
    **{"marks": listed(words(1000), 1000), "marked_sentences": whole(0, 2**40)},
    **{"confidence_by_tenth": listed(whole(0, 2**40), 10), "examples": mapped(listed(_EXAMPLE, 100), 10_000)},
    **_COST,
    "training": record(_COST),
    "earlier": listed(record({"model": words(10_000)}), 1000),
}
FILE = "report.html"
NARROW_MATRIX = 4  # classes of which two matrices stand beside each other


def teacher(run: RunFolder) -> Section | None:
    """The section; None for a run without a teacher. A damaged `teacher.json` is an AnalysisError."""
    path = run.home / TEACHER_FILE
    if not isinstance(run.record.get("teacher"), Mapping) or not path.is_file():
        return None
    report: dict[str, Any] = read_fields(path, _REPORT, AnalysisError, optional=_REPORT.keys() - {"model"})
    blocks: list[Any] = [Text(described(report)), *map(Text, doubts(report))]
    if seconds := report.get("seconds"):
        flops = f" and {report['flops']:.3g} FLOPs (2 x tokens x parameters)" if report.get("flops") else ""
        trained = report.get("training")
        training = f", training it {trained['seconds']:,.0f} and {trained['flops']:.3g}" if trained else ""
        blocks.append(Text(f"Asking it took {seconds:,.0f} seconds{flops}{training}. The run's costs are without these."))
    if subset := report.get("subset_by_class"):
        total, taught = max(1, sum(subset.values())), report.get("passages_by_class") or {}
        shares = report.get("class_shares") or {}
        columns = (Column("class"), Column("of task", "share"), Column("of subset", "share"), Column("taught", "number"))
        by_class = [(name, shares.get(name), count / total, taught.get(name, 0)) for name, count in subset.items()]
        blocks.append(make_table("What it takes passages for", columns, by_class))
    if tenths := report.get("confidence_by_tenth"):
        sure = [(f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}", count) for tenth, count in enumerate(tenths) if count]
        of = (Column("probability of the likeliest class"), Column("passages", "number"))
        blocks.append(make_table("How sure it is", of, sure))
    if examples := report.get("examples"):
        about = (Column("class"), Column("probability", "share"), Column("taught"), Column("passage", wide=True))
        rows = [
            (name, one["probability"], "yes" if one["taught"] else "no", one["text"])
            for name, shown in examples.items()
            for one in shown
        ]
        caption = "The surest passages of every class, and the least sure one"
        blocks.append(make_table(caption, about, rows, searchable=True))
    return Section("The teacher", "teacher", blocks)


def write_report(
    run: str | os.PathLike | RunFolder,
    path: str | os.PathLike | None = None,
    *,
    second: str | os.PathLike | RunFolder | None = None,
    task: Task | None = None,
    subsets: Mapping[str, Subset] | None = None,
    options: ReportPageArguments | None = None,
) -> Path:
    """Write the page of `report_page` as one file, whole or not at all.

    Args:
        run: its folder, as a recipe left it.
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
    """The report of a run as HTML, under 5 MB however long the data are.

    Args:
        second: a run on the same task, which the first is compared with.
        task: the run's; its texts are shown beside predictions. None: the one that the recorded command names, if it is on
            this machine and still what the run was given. Nothing that a run of the Hub names is loaded.
        subsets: name -> subset whose passages are shown. None: the recorded command's, likewise.

    Raises:
        AnalysisError: the task is not that of the run, the two runs are of other rows, or a file is damaged.
    """
    for name, folder in (("run", run), ("second", second)):
        if not isinstance(folder, RunFolder) and (name == "run" or folder is not None):
            raise AnalysisError(f"{name}: expected a RunFolder; {instead(folder, 'read_run', data=False)}")
    check_subsets(subsets or {})
    return _page(run, second, task, subsets or {}, options or ReportPageArguments())[0]


def _page(
    run: RunFolder, second: RunFolder | None, task: Task | None, subsets: Mapping[str, Subset], options: ReportPageArguments
) -> tuple[str, Section | None]:
    """The page, and the section of it in which two runs are compared; None where no split of both has predictions."""
    missing = list(run.missing)
    if is_foreign(run.path):
        missing.append(
            "The run came from the Hub, so nothing that it names was loaded: all of this is in its own files, or was given."
        )
    task = _task_of(run, task)
    predicted = _predictions(run, task, options, missing)
    rows = {split: of_split for split, (_, of_split) in predicted.items() if of_split is not None}
    sections = [about.what_was_run(run, rows), about.on_what(run), about.cost(run), about.scores(run)]
    sections += _error_sections(run, predicted, options)
    compared, lead = (None, None) if second is None else _against(run, second, predicted, options, missing)
    sections.append(compared)
    if charts := curves(run):
        sections.append(Section("Curves", "curves", [Row(charts)]))
    sections.append(teacher(run))
    sections.append(_retrieved(run, task, subsets, options, missing))
    template = _environment().get_template("page.html.jinja")
    page = template.render(
        title=f"{run.record['task'] if isinstance(run.record.get('task'), str) else run.name}: {TITLES[run.kind]}",
        subtitle=run.name if second is None else f"{run.name} against {second.name}",
        verdict=None if second is None else verdict((run, second), lead),
        highlights=about.highlights(run) if second is None else _of_both((run, second)),
        missing=missing[:20],
        sections=[section for section in sections if section is not None],
        version=__version__,
    )
    return page, compared


def _of_both(runs: tuple[RunFolder, RunFolder]) -> list[tuple[str, str, str]]:
    """The tiles of two runs, of each kind beside each other, by their names."""
    found = [
        (name, kind, (f"{kind}: {name}", figure, of))
        for name, run in zip(labels(runs), runs, strict=True)
        for kind, figure, of in about.highlights(run)
        if kind != "to beat" or run is runs[0]
    ]
    kinds = list(dict.fromkeys(kind for _, kind, _ in found))
    tiles = [tile for _, _, tile in sorted(found, key=lambda one: kinds.index(one[1]))]
    return [("to beat", *tile[1:]) if tile[0].startswith("to beat") else tile for tile in tiles]


def _task_of(run: RunFolder, task: Task | None) -> Task | None:
    """The task that is given, or an AnalysisError where it is another than the run's; without one, what the run recorded."""
    if task is None:
        return recorded_task(run)
    check_task(task)
    if (of_run := run.record.get("task_fingerprint")) not in (None, task.fingerprint):
        raise AnalysisError(
            f"--task {task.name} is not the task of {run.name}: its data have fingerprint {task.fingerprint}, those of the "
            f"run {of_run}. Give the run's own, or leave it out for a report without texts."
        )
    return task


def _predictions(run: RunFolder, task: Task | None, options: ReportPageArguments, missing: list[str]) -> _Predicted:
    """What was predicted; adds to `missing`."""
    predicted: _Predicted = {}
    file, drawn = _examples(run)
    training = None if task is None else TrainingWords(task, drawn)
    scored = [split for split in SPLITS if any(split in record for record in run.seeds)]
    if run.kind == "few_shot":
        scored = ["test"]  # Every split has validation examples of its own.
    for split in scored if run.kind not in ("pretrain", "subset") else ():
        found, absent = read_predictions(run, split)
        missing += absent
        if found is not None:
            of = run.record.get("scored_split", split)
            rows = None if training is None else rows_of(training, of, found.ids, options.rare_below)
            predicted[split] = found, rows
    if predicted and task is None:
        missing.append(
            "The task's texts: predictions are shown by their ids, and the error analysis knows neither lengths nor rare "
            "words. Give --task, the run's own."
        )
    if predicted and task is not None and file is not None and drawn is None:
        missing.append(
            f"Which texts {run.part} {run.best_seed} learned from: {file} in its folder is not there or damaged, so words "
            "are called rare by the task's whole training split."
        )
    return predicted


def _examples(run: RunFolder) -> tuple[str | None, frozenset[str] | None]:
    """The file that names the texts that the best seed learned from (None: all), and their ids (None: it cannot be read)."""
    arguments = run.record.get("arguments")
    some = isinstance(arguments, dict) and arguments.get("train_fraction", 1) != 1
    if run.best_seed is None or not (some or run.kind == "few_shot"):
        return None, None
    file, drawn = EXAMPLES_FILE if run.kind == "few_shot" else TRAIN_IDS_FILE, None
    with contextlib.suppress(OSError, HfTlmError):
        drawn = read_json(run.seed_folder(run.best_seed) / file, HfTlmError)
    if run.kind == "few_shot":
        drawn = drawn.get("train") if isinstance(drawn, dict) else None
    return file, frozenset(map(str, drawn)) if isinstance(drawn, list) else None


def _error_sections(run: RunFolder, predicted: _Predicted, options: ReportPageArguments) -> list[Section]:
    """Confusions, errors and their analysis, on every split."""
    parts: dict[str, list[Any]] = {"confusion": [], "errors": [], "analysis": []}
    for found, rows in predicted.values():
        parts["confusion"] += [*errors.confusions(found), *errors.tag_tables(found, run.seeds)]
        parts["errors"] += [] if parts["errors"] else errors.about_errors(found)
        parts["errors"].append(errors.error_table(found, rows, run.best_seed, options))
        parts["analysis"] += errors.group_tables(found, errors.groups_of(found, rows))
    titles = {"confusion": "Confusions", "errors": "Errors", "analysis": "Error analysis"}
    if parts["confusion"] and not any(len(getattr(block, "names", ())) > NARROW_MATRIX for block in parts["confusion"]):
        parts["confusion"] = [Row(parts["confusion"])]
    if parts["analysis"]:
        parts["analysis"] = [Row(parts["analysis"])]
    return [Section(titles[name], name, blocks) for name, blocks in parts.items() if blocks]


def _against(
    run: RunFolder, second: RunFolder, predicted: _Predicted, options: ReportPageArguments, missing: list[str]
) -> tuple[Section | None, Lead | None]:
    """On test where both have it, else on validation."""
    of_run, other = run.record.get("task_fingerprint"), second.record.get("task_fingerprint")
    if of_run != other:
        raise AnalysisError(
            f"Two runs are compared on the same task; {run.name} is of {run.record.get('task')} (fingerprint {of_run}), "
            f"{second.name} of {second.record.get('task')} ({other})."
        )
    for split in ("test", "validation"):
        found, absent = read_predictions(second, split) if split in predicted else (None, [])
        if found is not None:
            missing += [f"{second.name}: {sentence}" for sentence in [*second.missing, *absent]]
            judged, rows = predicted[split]
            return against((run, second), (judged, found), rows, options)
    missing.append(f"Nothing to compare: {run.name} and {second.name} have predictions of no split in common.")
    return None, None


def _retrieved(
    run: RunFolder, task: Task | None, subsets: Mapping[str, Subset], options: ReportPageArguments, missing: list[str]
) -> Section | None:
    if not subsets and run.kind == "subset":
        from hf_tlm.retrieval import Subset

        subsets = {run.name: Subset.load(run.path)}
    if not subsets and run.kind == "tlm" and run.record.get("subset"):
        found = recorded_subset(run)
        subsets = {} if found is None else {"the run's subset": found}
        if found is None:
            missing.append(
                "Retrieved passages: the run's subset is not at hand, or has changed. Give --subsets, its folder."
            )
    if not subsets:
        return None
    blocks: list[Block] = []
    for name, subset in subsets.items():
        queries = any(query is not None for query in subset.dataset[:1]["best_query"])
        if queries and (task is None or not made_for(subset, task)):
            missing.append(
                f"The task texts that found the passages of {name}: shown by their ids. Give --task, the one that they were "
                "retrieved for."
            )
        if run.kind == "subset":
            command, chart = subset_command(subset.manifest), size_chart(subset)
            chosen = subset.manifest.get("selection") or {}
            trained = "; of the score model that was trained for it, the options that the manifest has"
            again = f"What makes it again{trained if isinstance(chosen.get('score_model'), dict) else ''}:"
            blocks += [Text(again), Code(command)] if command else []
            blocks.append(Row([source_table(subset), *([chart] if chart else [])]))
        else:
            blocks += [Text(f"From {name}:"), Facts(about.subset_facts(subset.manifest))]
        blocks.append(retrieved_table(subset, task, options.report_characters, MOST_BYTES // len(subsets)))
    return Section("Retrieved passages", "retrieved", blocks)


@cache
def _environment():
    """The templates of this package; whatever they are filled with is escaped, and made printable before."""
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
    # The page's own style and script, which no data reach; a browser takes no others, by their hashes. Shares are classes,
    # as a style of an element's own would be another.
    folder = files("hf_tlm.analysis.report").joinpath("templates")
    texts = {name: folder.joinpath(f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    texts["css"] += "".join(f".s{share}{{--share:{share / 100:g}}}" for share in range(101)) + "\n"
    for name, text in texts.items():
        digest = b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        environment.globals |= {name: Markup(text), f"{name}_hash": Markup(digest)}
    return environment


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: ReportPageArguments) -> Findings:
    """report.html of the first of --run; a second is what it is compared with, the tables of that in report.md too."""
    runs = [read_run(path, name) for name, path in args.runs.items()]
    if not 1 <= len(runs) <= 2:
        raise AnalysisError(f"--what report takes one --run, or two to compare; received {len(runs)}.")
    second = runs[1] if len(runs) == 2 else None
    loaded = task.load() if task.task is not None else None
    page, compared = _page(runs[0], second, loaded, args.opened_subsets, options)
    path = args.folder / FILE
    atomic_write(path, page)
    names = " against ".join(run.name for run in runs)
    title, text = f"Report of {names}", f"One page for any browser, {path.stat().st_size / 1e6:.2f} MB."
    if compared is None:
        return Findings(title, text, [path])
    tables = to_markdown(compared.blocks)
    atomic_write(path.with_suffix(".md"), f"# {names}\n\n{tables}")
    return Findings(title, f"{text}\n\n{tables}", [path, path.with_suffix(".md")])
