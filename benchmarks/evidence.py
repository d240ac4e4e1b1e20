r"""Write RESULTS.md, one page with the tables of recipes/reproduce.py.

    python recipes/reproduce.py --config recipes/configs/{tlm/coffee,reproduce/cpu,reproduce/cpu_bf16,reproduce/main}.yaml \
        --tasks_dir ../shared/data/tasks --corpus '../shared/data/corpus/*.parquet' --pretrained runs/minilm \
        --output_dir runs/coffee --records_dir benchmarks/results/coffee
    python benchmarks/evidence.py --runs runs/coffee --scale coffee

Reads the records in benchmarks/results/coffee and, if they exist, in cpu, the preceding scale, and in gpu, and writes
benchmarks/results/RESULTS.md and the pictures of score against cost. It shows whatever is finished, and trains nothing.
Findings about these numbers can be written to benchmarks/results/findings.md, which the page then links. Paths should be
relative, as records and pages contain them. With --runs, the folder of the models and subsets, it also writes the
cards of the best model of each task and of the subsets of the main table to model_cards/.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from hf_tlm.analysis.cost import compare, cost_figure, to_markdown, to_rows
from hf_tlm.analysis.figures import label_decades, new_figure, save_figure, series_style, style
from hf_tlm.analysis.runs import find_results
from hf_tlm.errors import AnalysisError
from hf_tlm.experiments import PUBLISHED
from hf_tlm.experiments.arms import BASELINES
from hf_tlm.hub.cards import tlm_card
from hf_tlm.retrieval import Subset
from hf_tlm.runs.records import format_score, summarise
from hf_tlm.training.run_folder import RESULTS_FILE
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.shown import Markdown, markdown_table

RESULTS = Path(__file__).resolve().parent / "results"
SCALES = {
    "coffee": "One core, ModernBERT of 3 x 128 (recipes/configs/tlm/coffee.yaml)",
    "cpu": "Two CPU cores, BERT of 3 x 128: the scale before it (recipes/configs/reproduce/cpu.yaml at its commits)",
    "gpu": "One GPU, BERT-Base (recipes/configs/reproduce/gpu.yaml)",
}
TUNING = ("tuning", "tuning_seeds", "tuning_objectives")  # Arms are compared by validation scores only.
TABLES = {
    "main": "What retrieval, selection and pretraining buy (TLM, Table 2; ISS, Table 3)",
    "stages": "One stage or two (TLM, Table 7)",
    "rho1": "rho1, corpus batches per task batch (TLM, Table 5)",
    "rho2": "rho2, weight of the masked LM on task data (TLM, Table 6)",
    "top_k": "K, passages per training text (TLM, Table 4)",
    "objectives": "Language-modelling losses at equal FLOPs (COCO-LM, Table 1)",
    "fractions": "How much of the subset is kept, by influence and by rank (ISS, Table 5)",
    "layers": "The layer whose gradients choose (ISS, Figure 3, Table 7)",
    "score_model": "How long ISS's score model is trained",
    "budget": "The arms' order by the FLOPs of stage 1",
    "tuning": "Learning rates and batch sizes that were tried, by validation",
    "tuning_seeds": "Two of these learning rates over three seeds, by validation",
    "tuning_objectives": "Learning rates of the other language-modelling losses, by validation",
}
# The picture of score against cost averages over these tasks, which have three seeds and scores in the papers.
LOW_RESOURCE = ("chemprot", "acl_arc", "scierc", "hyperpartisan")
DIFFERS = """What differs from the papers, beside a corpus of 0.47 GB for their 16 and 160 GB, and models and budgets:

- K is 50 passages a training text for every task, rho1 3 and rho2 20, what the scale was given beforehand. TLM searched for
  them per task: K is 5,000 for the four small tasks, 500 for IMDB and 50 for AG News and RCT; rho1 1 to 999, rho2 20 or 100
  (its Table B.1, small scale).
- The corpus has the tasks' domains on purpose: a fifth is biomedical, a seventh on computer science and language, an
  eighteenth are unlabelled reviews of IMDB's own set. So a random subset is nearer to the tasks than one of the papers'.
- Token embeddings start from spectral ones of an arm's own texts (`embedding_init: spectral`), not at random: so arms differ
  in their start too, by what their texts are.
- *pretrained* is the MiniLM encoder, 6 layers x 384; the papers' are BERT and RoBERTa. Its pretraining is not counted.
- ISS chooses by gradients of the validation examples' losses, labels included (its Algorithm 1): validation scores of its
  arms do not compare with others'. Test labels have no part in anything.
- 52 of ACL-ARC's 139 test texts and 43 of its 114 validation texts are in its training split too, as released; 93 of IMDB's
  25,000 test texts, four of ChemProt's 3,469, one of Hyperpartisan's 65. Nothing was taken out.
- AG News here has 15,667 training texts of 115,000; Hyperpartisan is split anew; `rct_ei` stands in for RCT. See the data's
  own notes.
- The coffee scale was chosen on the validation splits of SciERC and ChemProt, with BM25's subset (plateau.md); learning
  rates and budget of the one before it on SciERC's, with BM25's subset and with the task alone (the tables at the end). All
  arms from scratch have them. The rate of the pretrained encoder was chosen on ACL-ARC."""
# (arm, arm that is subtracted)
PAIRS = (("BM25", "task only"), ("BM25", "random"), ("BM25 + ISS 20%", "BM25"), ("pretrained", "BM25"))
TLM_SMALL = PUBLISHED["TLM Table 2: TLM (small-scale)"]
BUDGETS = (  # name, hours, cores (None: a GPU)
    ("one core, one hour", 1, 1),
    ("laptop night: 8 hours, 4 cores", 8, 4),
    ("workstation day: 24 hours, 16 cores", 24, 16),
    ("GPU-hour: H200, bf16", 1, None),
)
GPU_RATE, GPU_SHARE = 790e12, 0.4  # FLOP/s of dense bf16 products on it, and the assumed utilisation.
GPU_RUN = 1e17  # FLOPs of stage 1 of a run of gpu.yaml.
SUBSETS = ("bm25", "iss-20")  # Folders of the main table's subsets that have cards.
Row = Mapping[str, Any]


def read_tables(folder: Path) -> dict[str, dict[str, Any]]:
    files = {name: folder / f"{name}.json" for name in TABLES}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def score(row: Row | None, split: str) -> str:
    """Format mean and deviation in percent, with the number of finished runs if some are missing."""
    if row is None or row[split] is None:
        return ""
    left = "" if len(row["finished"]) == row["seeds"] else f" ({len(row['finished'])} of {row['seeds']})"
    return format_score(row[split]) + left


def published(row: Row | None, measure: str) -> str:
    """Return the papers' scores for this arm and task, without their sources, which the full table names."""
    names = [name for name in (row or {"published": {}})["published"] if PUBLISHED[name].measure == measure]
    shown = [row["published"][name] for name in names if row["published"][name]]
    return "; ".join(text.partition(" (")[0] for text in shown)


def by_task(rows: Sequence[Row], split: str) -> str:
    """Format a table with a column for each arm, and for each task a line of our scores and one of published ones."""
    arms, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("arm", "task"))
    cells = {(row["task"], row["arm"]): row for row in rows}
    metrics = {row["task"]: row["metric"] for row in rows if row["metric"]}
    lines = []
    for task in tasks:
        of = [cells.get((task, arm)) for arm in arms]
        lines.append([task, metrics.get(task, ""), "here", *(score(row, split) for row in of)])
        if any(beside := [published(row, split) for row in of]):
            lines.append([task, "", "published", *beside])
    return markdown_table(["task", "metric", "", *arms], lines, texts=3)


def by_arm(rows: Sequence[Row], splits: Sequence[str]) -> str:
    """Format a table with a line for each arm, and for each task columns of our and of published scores."""
    arms, tasks = (list(dict.fromkeys(row[key] for row in rows)) for key in ("arm", "task"))
    cells = {(row["task"], row["arm"]): row for row in rows}
    columns = {
        f"{task}, {what.format(split)}": [show(cells.get((task, arm)), split) for arm in arms]
        for task in tasks
        for show, what in ((score, "{}"), (published, "published {}"))
        for split in splits
    }
    columns = {name: values for name, values in columns.items() if any(values)}
    return markdown_table(["arm", *columns], zip(arms, *columns.values(), strict=True))


def differences(rows: Sequence[Row]) -> str:
    """Format the differences of arms; bold if larger than sqrt(s1^2 + s2^2) of their deviations over seeds."""
    cells = {(row["task"], row["arm"]): row for row in rows}
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        line = [task]
        for pair in PAIRS:
            first, second = ((cells.get((task, arm)) or {"test": None})["test"] for arm in pair)
            if first is None or second is None:
                line.append("")
            elif first["std"] is None or second["std"] is None:
                line.append(f"{100 * (first['mean'] - second['mean']):+.2f}")
            else:
                apart, deviation = first["mean"] - second["mean"], math.hypot(first["std"], second["std"])
                text = f"{100 * apart:+.2f} ± {100 * deviation:.2f}"
                line.append(Markdown(f"**{text}**") if abs(apart) > deviation else text)
        lines.append(line)
    return markdown_table(["task", *(f"{first} − {second}" for first, second in PAIRS)], lines)


def hours(rows: Sequence[Row]) -> str:
    """Format a table of the hours that selecting each arm's subset took, ours and published ones."""
    lines = [
        [row["arm"], f"{row['subset_seconds'] / 3600:.2g}", published(row, "subset hours")]
        for row in rows
        if row["subset_seconds"] is not None
    ]
    return "Hours of the choice:\n\n" + markdown_table(["arm", "here", "published"], lines)


def averages(rows: Sequence[Row]) -> str:
    """Format a table of the papers' averages over their tasks, which are not ours."""
    arms = {row["arm"]: row["published"] for row in rows}
    lines = [
        [arm, PUBLISHED[name].cells["average"], name]
        for arm, names in arms.items()
        for name in names
        if "average" in PUBLISHED[name].cells
    ]
    return "Published for these losses, on GLUE:\n\n" + markdown_table(["arm", "average", "in"], lines)


def costs(rows: Sequence[Row]) -> str:
    """Format a table of the cost of a run of each arm, and of its subset, once for all seeds, as means over tasks."""
    retrieval = {row["task"]: row["subset_seconds"] for row in rows if row["arm"] == "BM25"}
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        known = [row for row in rows if row["arm"] == arm and row["cost"]["flops"] is not None]
        if known:
            names = ("real_tokens", "flops", "seconds")
            tokens, flops, seconds = (fmean(row["cost"][name] for row in known) for name in names)
            subsets = [
                row["subset_seconds"] + (retrieval[row["task"]] if arm.startswith("BM25 +") else 0)
                for row in known
                if row["subset_seconds"] is not None
            ]
            subset = f"{fmean(subsets) / 60:.1f}" if subsets else ""
            lines.append([arm, f"{tokens:,.0f}", f"{flops:.3g}", f"{seconds / 60:.1f}", subset])
    return markdown_table(["arm", "real tokens", "FLOPs", "minutes", "minutes for its subset"], lines)


def budgets(runs: Sequence[Row]) -> str:
    """Format what given times on machines suffice for.

    More cores run more runs in parallel, which is measured; for other models it is extrapolated by FLOPs.
    """
    scratch = [run for run in runs if run["kind"] == "train_tlm" and not run["environment"].get("accelerator")]
    if not scratch:
        return ""
    taken = [run["cost"]["seconds"] * run["environment"]["torch_threads"] for run in scratch]  # of one core
    rate = median(run["cost"]["measured_flops"] / time for run, time in zip(scratch, taken, strict=True))
    formula = median(run["cost"]["flops"] / run["cost"]["measured_flops"] for run in scratch)
    hours = [time / 3600 for time in taken]
    lines = []
    for name, time, cores in BUDGETS:
        own = "" if cores is None else _three_digits(time * cores / median(hours))
        flops = 3600 * time * (GPU_SHARE * GPU_RATE if cores is None else rate * cores)
        how = "measured" if cores == 1 else "extrapolated"
        lines.append([name, how, own, f"{flops:.2g}", f"{flops / GPU_RUN:,.2g}", f"{flops / TLM_SMALL.flops:,.2g}"])
    larger = ("runs of gpu.yaml", "runs of TLM's small scale")
    head = ["time and machine", "", "runs of the first table", "counted FLOPs", *larger]
    about = (
        f"{len(scratch)} runs from scratch of the first table took {60 * min(hours):.0f} to {60 * max(hours):.0f} minutes "
        f"of a core, {60 * median(hours):.0f} in the median, one a core, at {rate:.2g} counted FLOP/s. Cores "
        "help in proportion to their number, as runs need nothing of each other. Counted FLOPs are those of the products "
        f"that are computed; 6 x tokens x parameters, which all other tables have, is {formula:.2g} times as many for these "
        "small models, whose embeddings are most of their parameters. The last two columns are extrapolated in all lines, "
        f"by the formula's FLOPs of one run: {GPU_RUN:.3g} in stage 1 of gpu.yaml, {TLM_SMALL.flops:.3g} at TLM's small "
        "scale, of models whose layers have most of the parameters. Larger products run faster than these, so those of a "
        f"CPU are too low rather than too high. No GPU was measured: its line assumes {GPU_SHARE:.0%} of "
        f"{GPU_RATE / 1e12:.0f} TFLOP/s, this project's goal there."
    )
    return f"{about}\n\n{markdown_table(head, lines, texts=2)}"


def _three_digits(number: float) -> str:
    """Format a number with three significant digits: 2,390, 199, 6.21."""
    return f"{float(f'{number:.3g}'):,.15g}"


@style()
def budget_picture(folder: Path, rows: Sequence[Row]) -> str:
    """Write budget.png, .svg and .csv, a curve of the test score by FLOPs for each subset; return a link to it."""
    points: dict[str, list[tuple[float, float, float | None]]] = {}
    for row in rows:
        if row["test"] is not None and row["arm"] not in BASELINES:  # Their FLOPs are not counted.
            mean, deviation = row["test"]["mean"], row["test"]["std"]
            point = (row["cost"]["flops"], 100 * mean, None if deviation is None else 100 * deviation)
            points.setdefault(row["arm"].partition(",")[0], []).append(point)
    figure, axes = new_figure()
    for number, (arm, of_arm) in enumerate(points.items()):
        flops, scores, deviations = zip(*sorted(of_arm), strict=True)
        bars = None if None in deviations else deviations
        axes.errorbar(flops, scores, yerr=bars, label=arm, elinewidth=0.8, **series_style(number))
    axes.set_xscale("log")
    axes.set_xlabel("training FLOPs")
    label_decades(axes.xaxis)
    axes.set_ylabel(f"{rows[0]['task']}, test score (%)")
    axes.legend()
    head = ("arm", "flops", "score", "deviation")
    save_figure(figure, folder, "budget", [dict(zip(head, (arm, *p), strict=True)) for arm in points for p in points[arm]])
    return f"![Test score by training FLOPs]({folder.name}/budget.png)"


def picture(folder: Path, rows: Sequence[Row]) -> str:
    """Write cost.png, .svg and .csv of the main table's arms, averaged over low-resource tasks that all of them have.

    Returns a link to it, and its table.
    """
    arms = {row["arm"] for row in rows} - set(BASELINES)
    scored = {(row["task"], row["arm"]) for row in rows if row["test"] is not None}
    tasks = [task for task in LOW_RESOURCE if all((task, arm) in scored for _, arm in scored)] if scored else []
    results = [result for result in find_results({folder.name: folder}) if result.arm in arms]
    try:
        found = compare(results, tasks=tasks or None)
    except AnalysisError as error:  # Too few runs are finished.
        return str(error)
    save_figure(cost_figure(found), folder, "cost", to_rows(found))
    return f"![Average test score against training FLOPs]({folder.name}/cost.png)\n\n{to_markdown(found)}"


def scale(folder: Path) -> list[str]:
    """Return the sections of one scale."""
    tables = read_tables(folder)
    parts = [f"# {SCALES[folder.name]}"]
    if missing := [name for name in TABLES if name not in tables]:
        parts.append(f"Not begun: {', '.join(missing)}.")
    for name, table in tables.items():
        rows = table["rows"]
        finished, total = sum(len(row["finished"]) for row in rows), sum(row["seeds"] for row in rows)
        link = f"[{name}.md]({folder.name}/{name}.md)"
        parts.append(f"## {TABLES[name]}")
        parts.append(f"{finished} of {total} runs; costs, commits and sources of what is published are in {link}.")
        if table["failures"]:
            parts.append("Failed:\n\n" + "\n".join(f"- {text}" for text in table["failures"]))
        if table["left_out"]:
            parts.append("Left out:\n\n" + "\n".join(f"- {text}" for text in table["left_out"]))
        if not finished:
            continue
        if name == "main":
            parts += ["Test:", by_task(rows, "test"), "Validation:", by_task(rows, "validation")]
            parts += [
                "Differences of test scores; ± is sqrt(s1² + s2²) of the two deviations over seeds, and what is larger than "
                "it is bold. That is no test: of two equal arms with three seeds about one in six differs by as much, each "
                "subset was drawn once, and Hyperpartisan has 65 test texts, ACL-ARC 139.",
                differences(rows),
                "A run costs, on average over tasks (of the pretrained encoder without its pretraining), and a subset, "
                "which all seeds share, once more; minutes are the clock's, of machines with other work beside it:",
                costs(rows),
                "## Score against cost",
                picture(folder, rows),
                DIFFERS,
            ]
        else:
            parts.append(by_arm(rows, ("validation",) if name in TUNING else ("validation", "test")))
        if name == "budget":
            parts.append(budget_picture(folder, rows))
        if name == "layers":
            parts.append(hours(rows))
        if name == "objectives":
            parts.append(averages(rows))
    if bought := budgets([run for run in tables.get("main", {"runs": []})["runs"] if run["status"] == "finished"]):
        parts += ["## What time buys", bought]
    return parts


def write_cards(records: Path, runs: Path, cards: Path) -> None:
    """Write the card of each task's model from scratch that is best on validation, and the cards of the subsets.

    Arms with ISS are left out, because their subsets were selected with the validation examples. A model's card has the mean
    over its arm's seeds beside its own scores, which are the best of several. A model or subset that is on another machine
    keeps its existing card. Cards of subsets show no passages.
    """
    table = read_tables(records).get("main")
    if table is None:
        print(f"No cards: there is no main.json in {records}.")
        return
    arms: dict[str, dict[str, list[Row]]] = {}
    for run in table["runs"]:
        if run["status"] == "finished" and run["kind"] == "train_tlm" and "ISS" not in run["arm"]:
            arms.setdefault(run["task"], {}).setdefault(run["arm"], []).append(run)
    for task, candidates in arms.items():
        best = max((run for arm in candidates.values() for run in arm), key=lambda run: run["validation"][run["metric"]])
        seeds = candidates[best["arm"]]
        files = {run["seed"]: runs / run.get("same_run_as", run["name"]) / RESULTS_FILE for run in seeds}
        if missing := [str(file.parent) for file in files.values() if not file.is_file()]:
            print(f"No card of the best model of {task}: not here are {', '.join(missing)}.")
            continue
        found = {seed: json.loads(file.read_text(encoding="utf-8")) for seed, file in files.items()}
        of_seeds = [run["seeds"][0] for run in found.values()]
        card = tlm_card({**found[best["seed"]], "seeds": of_seeds, "summary": summarise(of_seeds)}, best["seed"])
        for other in cards.glob(f"tlm-{task}-*.md"):
            other.unlink()
        atomic_write(cards / f"tlm-{task}-{best['name'].split('/')[1]}.md", card)
    for folder in sorted(runs.glob("*/subsets/*/manifest.json")):
        task, name = folder.parts[-4], folder.parts[-2]
        if task in arms and name in SUBSETS:
            with tempfile.TemporaryDirectory() as work:
                Subset.load(folder.parent).save(Path(work) / name)
                shutil.copy(Path(work) / name / "README.md", cards / f"subset-{task}-{name}.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results_dir", default=str(RESULTS))
    parser.add_argument("--runs", help="Folder of the runs, the tables' --output_dir; writes the cards.")
    parser.add_argument("--scale", default="cpu", choices=list(SCALES), help="Scale of --runs.")
    parser.add_argument("--cards_dir", default=str(RESULTS.parents[1] / "model_cards"))
    options = parser.parse_args()
    results = Path(options.results_dir)
    about = (
        "Made by `python benchmarks/evidence.py` from the records in the folders beside this page, one JSON file a run, "
        "which recipes/reproduce.py writes. Scores are in percent, mean ± standard deviation over seeds (n - 1), of the "
        "checkpoint best on validation (of stage 1 alone, the last); each run scores its test split once, at its end. All "
        "models of a table that are trained from scratch have one architecture, tokenizer, batch size, learning rate and "
        "number of steps, unless an arm's name says otherwise (ELECTRA and COCO-LM have bodies and learning rates of "
        "their own; arms with other bodies, stages or FLOPs have other numbers of steps). *Published* are the papers' own "
        "figures, of models, corpora and budgets that are orders of magnitude larger: the full tables say by how much."
    )
    found = "What is found in these numbers is in [findings.md](findings.md)."
    parts = [about, found] if (results / "findings.md").is_file() else [about]
    parts += [part for name in SCALES if (results / name).is_dir() for part in scale(results / name)]
    (results / "RESULTS.md").write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    print(f"Saved {results / 'RESULTS.md'}.")
    if options.runs is not None:
        write_cards(results / options.scale, Path(options.runs), Path(options.cards_dir))


if __name__ == "__main__":
    main()
