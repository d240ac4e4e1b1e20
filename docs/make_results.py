"""Generate the pages of docs/results from the records in benchmarks/results, and the README's table.

    python docs/make_results.py           # write them
    python docs/make_results.py --check   # list those that are out of date, and fail if there are any

A page gathers what benchmarks wrote beside their records: the tables, each with its command and machine, and the pictures.
The conclusions are written by hand in benchmarks/results/notes, one file per page, whose first sentence, in bold, answers
the page's question. A figure in a note has to be in a table of the page or in a file that the note links; else it is an
error. In findings.md and plateau/findings.md every paragraph and item links the records of its own figures. Figures that
are computed by hand are in italics.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from commands import ROOT
from generated import write_or_check

PAGES = ROOT / "docs" / "results"
RECORDS = ROOT / "benchmarks" / "results"
NOTES = RECORDS / "notes"
README = ROOT / "README.md"
# Texts written by hand for the beginning of a source.
FINDINGS = {"findings.md": RECORDS / "findings.md", "plateau.md": RECORDS / "plateau" / "findings.md"}
# Whole numbers up to this one count things that are in no table: seeds, tasks, columns.
SMALL = 12
# End of the name of an arm in `Scores`.
OR_WITH_LINEAR = " or with linear"


@dataclass(frozen=True)
class Scores:
    """A short table of test scores: one row per arm, one column per task.

    columns: title -> (task, tables of `reproduce` to search, such as coffee/main).
    arms: title -> names of the arm, of which the first that is in the column's tables is shown; `coffee#BM25` is searched
        only in tables whose names begin with coffee. `BM25 or with linear` are the arm's models, averaged with the linear
        model if that is ahead on validation. A row without a score is left out.
    """

    title: str
    columns: Mapping[str, Sequence[str]]
    arms: Mapping[str, Sequence[str]]

    def to_text(self) -> str:
        """Format the table as Markdown, without the title.

        Raises:
            ValueError: a column has scores of several metrics, or no scores.
        """
        found = {arm: [self._row(column, names) for column in self.columns.values()] for arm, names in self.arms.items()}
        heads = []
        for place, title in enumerate(self.columns):
            metrics = {row["metric"] for rows in found.values() if (row := rows[place])}
            if len(metrics) != 1:
                raise ValueError(f"{self.title}: {title} has scores of {sorted(metrics)}, and one metric is expected.")
            heads.append(f"{title} ({metrics.pop()})")
        lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        lines += [f"| {arm} | " + " | ".join(map(_cell, rows)) + " |" for arm, rows in found.items() if any(rows)]
        return "\n".join(lines)

    def _row(self, column: Sequence[str], names: Sequence[str]) -> dict[str, Any] | None:
        """Return the row of the first of the named arms with a test score; None if there is none."""
        task, *tables = column
        for name in names:
            place, _, arm = name.removesuffix(OR_WITH_LINEAR).rpartition("#")
            for row in (row for table in tables if table.startswith(place) for row in read_rows(table)):
                if (row["task"], row["arm"]) == (task, arm) and row["test"] is not None:
                    return with_linear_if_ahead(row) if name.endswith(OR_WITH_LINEAR) else row
        return None


def with_linear_if_ahead(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose test score is that with the linear model if its validation score is higher with it."""
    alone, together = row["validation"]["mean"], row["with_linear_validation"]["mean"]
    return {**row, "test": row["with_linear"] if together > alone else row["test"]}


def _cell(row: Mapping[str, Any] | None) -> str:
    """Format a test score, with the number of seeds if fewer than planned are finished."""
    from hf_tlm.runs.records import format_score

    if row is None:
        return ""
    count = len(row["finished"])
    left = "" if count == row["seeds"] else f" ({count} seed{'s' * (count > 1)})"
    return format_score(row["test"]) + left


@dataclass(frozen=True)
class Topic:
    """A page: the question it answers, and the files of benchmarks/results that it is generated from.

    sources: Markdown that benchmarks wrote; `file.md#Heading` is the part of a file under the first-level heading that
        begins with Heading.
    pictures: (file, what it shows).
    scores: short tables of the most important scores.
    """

    page: str
    title: str
    question: str
    sources: Sequence[str]
    pictures: Sequence[tuple[str, str]] = ()
    scores: Sequence[Scores] = ()


def columns(tasks: str, *tables: str) -> dict[str, tuple[str, ...]]:
    """Return columns of `Scores` for tasks whose scores are in the same tables."""
    return {TASKS[task]: (task, *tables) for task in tasks.split()}


TASKS = {
    **{"chemprot": "ChemProt", "scierc": "SciERC", "acl_arc": "ACL-ARC", "hyperpartisan": "Hyperpartisan"},
    **{"imdb": "IMDB", "agnews": "AG News", "rct_ei": "RCT's stand-in"},
}
SMALL_TASKS, LARGE_TASKS = "chemprot scierc acl_arc hyperpartisan", "imdb agnews rct_ei"
ABLATIONS = ("stages", "rho1", "rho2", "top_k", "fractions", "layers", "objectives")
ARMS = {name: (name,) for name in ("majority class", "linear", "task only", "random", "BM25")}
FEW = {
    "taught by the linear model": ("BM25 and linear teacher", "own texts and linear teacher"),
    "self-taught, `--teacher self`": tuple(
        f"{place}#taught by that average" for place in ("own_texts", "hundred_validation", "thousand_own")
    ),
    "taught by MiniLM": ("BM25 and encoder teacher", "own texts and encoder teacher"),
    "taught by MiniLM, `--teacher_share 0.9`": ("share 0.9",),
    "taught by three MiniLMs": ("own texts and encoders averaged",),
    "MiniLM fine-tuned": ("pretrained",),
}
# What the README's commands train: passages of the training length, and a vocabulary of task and passages.
OWN_DATA_TABLES = ("additions/additions", "coffee/vocabulary")
OWN_DATA_ARMS = {
    "majority class": ("additions#majority class",),
    "linear": ("additions#linear",),
    "task only": ("coffee#task only, own vocabulary",),
    "random": ("additions#random",),
    "BM25": ("additions#BM25",),
    "averaged, or `both`": (f"additions#BM25, averaged{OR_WITH_LINEAR}",),
}
TOPICS = (
    Topic(
        "real_tasks",
        "Real tasks, from scratch",
        "How much do retrieval and selection gain on labelled tasks, compared with a linear model and a pretrained encoder?",
        ["findings.md", "coffee/retrieved.md", "additions/long_texts.md", "night.md"],
        scores=(
            Scores(
                "A coffee break of one core (`tlm/coffee`), by the README's commands",
                columns(SMALL_TASKS, *OWN_DATA_TABLES),
                OWN_DATA_ARMS,
            ),
            Scores(
                "The same scale, documents retrieved whole, one vocabulary for all arms of a task",
                columns(f"{SMALL_TASKS} {LARGE_TASKS}", "coffee/large_tasks", "coffee/main"),
                ARMS,
            ),
            Scores(
                "Documents retrieved whole, each arm with a vocabulary of task and passages",
                columns("chemprot scierc acl_arc", "coffee/retrieved", "coffee/vocabulary"),
                {
                    "linear": ("linear",),
                    "task only": ("task only, own vocabulary",),
                    "random": ("random, own vocabulary",),
                    "BM25": ("BM25, own vocabulary",),
                },
            ),
            Scores(
                "The scale before `tlm/coffee`, with four times the FLOPs in stage 1",
                columns(f"{SMALL_TASKS} {LARGE_TASKS}", "cpu/main"),
                {**ARMS, "BM25 + ISS 20%": ("BM25 + ISS 20%",), "MiniLM fine-tuned": ("pretrained",)},
            ),
        ),
    ),
    Topic(
        "coffee",
        "The scale tlm/coffee",
        "What does a model reach in a coffee break of one core, and how far is that from the papers?",
        ["RESULTS.md#One core", "coffee/large_tasks.md", "additions/larger_body.md"],
    ),
    Topic(
        "ablations",
        "Ablations",
        "Which of the papers' choices matter: stages, rho1, rho2, K, objectives, how much ISS keeps, by which gradients?",
        ["RESULTS.md#Two CPU cores"],
        scores=(
            Scores(
                "One choice changed at a time",
                {
                    "SciERC": ("scierc", *(f"cpu/{table}" for table in ABLATIONS)),
                    "ChemProt": ("chemprot", *(f"cpu/{table}" for table in ABLATIONS)),
                },
                {
                    "linear": ("linear",),
                    "two stages, rho1 = 3, rho2 = 20, K = 50": ("two stages",),
                    "stage 1 alone, with the FLOPs of both": ("stage 1 only, FLOPs of both",),
                    "stage 2 alone, with the FLOPs of both": ("stage 2 only, FLOPs of both",),
                    **{arm: (arm,) for arm in ("rho1 = 1", "rho1 = 99", "rho1 = 999", "corpus only")},
                    **{arm: (arm,) for arm in ("rho2 = 0", "rho2 = 100", "rho2 = 1000", "K = 500", "K = 5000")},
                    **{arm: (arm,) for share in (10, 20, 40, 60, 80) for arm in (f"ISS {share}%", f"BM25 {share}%")},
                    **{f"ISS 20% by {layer}": (layer,) for layer in ("embeddings", "layer 1", "layer 2", "last layer")},
                    **{arm: (arm,) for arm in ("ELECTRA", "COCO-LM")},
                },
            ),
        ),
    ),
    Topic(
        "quickstart",
        "The quickstart",
        "What does the quickstart print, and what can a run of minutes show?",
        ["quickstart.md", "teacher.md"],
    ),
    Topic(
        "teacher",
        "Teachers",
        "When does a small network gain from a linear model, or from a large network, as its teacher?",
        [
            "teacher.md",
            "coffee/teacher.md",
            "coffee/encoder_teacher.md",
            "all_labels/rct_ei.md",
            "all_labels/rct_ei_64.md",
            "all_labels/rct_ei_96.md",
            "all_labels/agnews.md",
            "all_labels/hyperpartisan.md",
            "all_labels/chemprot.md",
            "all_labels/chemprot_vocabulary.md",
            "all_labels/scierc.md",
            "coffee/linear_start.md",
            "additions/additions.md",
            "additions/large_teacher.md",
            "self_taught/self_taught.md",
            "encoder_teacher/encoder_teacher.md",
        ],
        scores=(
            Scores(
                "With all labels, minutes of a GPU: MiniLM or a linear model as the teacher",
                columns(f"{LARGE_TASKS} acl_arc hyperpartisan", "encoder_teacher/encoder_teacher"),
                {
                    **ARMS,
                    "taught by the linear model": ("BM25 and linear teacher",),
                    "taught by MiniLM": ("BM25 and encoder teacher",),
                    "taught by MiniLM, random passages": ("random and encoder teacher",),
                    "taught by MiniLM, the task's texts alone": ("task only and encoder teacher",),
                    "MiniLM fine-tuned": ("pretrained",),
                },
            ),
        ),
    ),
    Topic(
        "few_labels",
        "Few labels",
        "How much do retrieved text, a teacher and a pretrained encoder gain with a hundred labels, and with a thousand?",
        [
            "hundred_labels/hundred_labels.md",
            "own_texts/agnews.md",
            "own_texts/rct_ei.md",
            "hundred_validation/agnews.md",
            "hundred_validation/rct_ei.md",
            "both_texts/agnews.md",
            "both_texts/rct_ei.md",
            "thousand_labels/thousand_labels.md",
            "thousand_labels/more_teachers.md",
            "thousand_own/agnews.md",
            "thousand_own/rct_ei.md",
        ],
        scores=(
            Scores(
                "A hundred labels",
                {
                    "AG News": ("agnews", "hundred_labels/hundred_labels"),
                    "AG News, own texts": ("agnews", "own_texts/agnews", "own_texts/agnews_share"),
                    "AG News, own texts, 100 validation labels": (
                        "agnews",
                        "hundred_validation/agnews",
                        "hundred_validation/agnews_averaged",
                    ),
                    "RCT's stand-in": ("rct_ei", "hundred_labels/hundred_labels"),
                    "RCT's stand-in, own texts": ("rct_ei", "own_texts/rct_ei", "own_texts/rct_ei_share"),
                    "RCT's stand-in, own texts, 100 validation labels": (
                        *("rct_ei", "hundred_validation/rct_ei", "hundred_validation/rct_ei_averaged"),
                    ),
                },
                {**ARMS, "BM25": ("BM25", "own texts"), **FEW},
            ),
            Scores(
                "A thousand labels",
                {
                    "AG News": ("agnews", "thousand_labels/thousand_labels"),
                    "AG News, own texts": ("agnews", "thousand_own/agnews"),
                    "RCT's stand-in": ("rct_ei", "thousand_labels/thousand_labels"),
                    "RCT's stand-in, own texts": ("rct_ei", "thousand_own/rct_ei"),
                    "IMDB": ("imdb", "thousand_labels/thousand_labels"),
                },
                {**ARMS, "BM25": ("BM25", "own texts"), **FEW},
            ),
        ),
    ),
    Topic(
        "plateau",
        "Leaving the plateau",
        "When does stage 1 learn more than word frequencies, with which settings, and is a lower loss a better model?",
        ["plateau.md"],
    ),
    Topic(
        "first_weights",
        "First weights",
        "How much do spectral token embeddings gain?",
        ["spectral.md", "tlm_tiny_spectral.md"],
    ),
    Topic(
        "tiny_scale",
        "The tiny scale",
        "What can be concluded after half a million tokens?",
        ["tlm_tiny.md"],
    ),
    Topic(
        "retrieval",
        "Retrieval",
        "How fast is retrieval compared with other engines, and what does it find?",
        ["retrieval.md", "coverage.md"],
    ),
    Topic(
        "influence",
        "Influential subset selection",
        "What does ISS select, how fast is it, and does it help?",
        ["iss_tiny.md", "iss_fractions.md", "iss_layers.md", "influence.md", "influence_peer.md", "analysis/words.md"],
    ),
    Topic(
        "training",
        "Speed and memory of training",
        "How fast is a step compared with the plain Trainer, and how long do optimizers and start-up take?",
        ["training.md", "modernbert.md", "evaluation.md", "optimizers.md", "seeds.md", "startup.md"],
    ),
    Topic(
        "gpu",
        "On a GPU",
        "What does a model reach in minutes of a GPU, and how fast is a step there?",
        [
            *("gpu_minutes/main.md", "gpu_minutes/large_tasks.md", "hour.md", "gpu_coffee/main.md"),
            *("training_gpu.md", "training_gpu_before.md", "attention_gpu.md", "optimizers_gpu.md"),
        ],
        scores=(
            Scores(
                "Minutes of a GPU (`tlm/gpu_minutes`), three seeds",
                columns(SMALL_TASKS, "gpu_minutes/main", "cpu/main"),
                {
                    **{name: (f"gpu_minutes#{name}",) for name in ARMS},
                    "BM25, averaged": ("BM25, averaged",),
                    "MiniLM fine-tuned": ("pretrained",),
                },
            ),
        ),
    ),
    Topic(
        "deploy",
        "The price of a prediction",
        "How large and how fast is a finished model compared with MiniLM and TF-IDF, and what do 8 bits lose?",
        ["deploy.md", "additions/small_body.md", "page.md"],
        [("deploy.svg", "Score against megabytes, and against texts a second")],
    ),
    Topic(
        "objectives",
        "ELECTRA, ALE and BERT",
        "Which objective is best at equal FLOPs, and how long does a step take?",
        ["objectives.md", "objectives_short.md", "objectives_short_bf16.md"],
    ),
    Topic(
        "coco_lm",
        "COCO-LM",
        "What does sequence contrastive learning do, and when does copying begin?",
        ["coco_lm.md", "coco_lm_long.md"],
        [
            ("coco_lm.png", "Cosines, copy accuracy and LM accuracy against steps"),
            ("coco_lm_long.png", "The same, of the longer run"),
        ],
    ),
    Topic(
        "fine_tuning",
        "Fine-tuning an encoder",
        "What does a small pretrained encoder reach, and does further pretraining help it?",
        ["finetune.md", "further_pretraining.md"],
    ),
    Topic(
        "analysis",
        "What models look like inside",
        "What do attention heads, embeddings and copying look like in models trained here?",
        ["analysis/heads.md", "analysis/embeddings.md"],
        [
            ("analysis/heads_maps.png", "Attention maps of four models"),
            ("analysis/embeddings_tsne.png", "t-SNE of ChemProt's test texts in four models"),
            ("analysis/curves.png", "Copy accuracy and cosines of COCO-LM against tokens"),
            ("analysis/cost.png", "Average score against FLOPs"),
        ],
    ),
)
# Headings for sources without one.
HEADINGS = {
    "coffee/large_tasks.md": "The three large tasks at `tlm/coffee`",
    "coffee/retrieved.md": "Retrieved and random passages, each with a vocabulary of its own",
    "coffee/teacher.md": "A linear teacher at `tlm/coffee`",
    "coffee/encoder_teacher.md": "MiniLM as the teacher at `tlm/coffee`",
    "all_labels/rct_ei.md": "MiniLM as the teacher of far more passages: RCT's stand-in",
    "all_labels/rct_ei_64.md": "The same for a body of two layers of 64",
    "all_labels/rct_ei_96.md": "A body of two layers of 96, and a longer stage 2",
    "all_labels/agnews.md": "MiniLM as the teacher of far more passages: AG News",
    "all_labels/hyperpartisan.md": "MiniLM as the teacher of far more passages: Hyperpartisan",
    "all_labels/chemprot.md": "Three seeds as the teacher of far more marked sentences: ChemProt",
    "all_labels/chemprot_vocabulary.md": "The same with a vocabulary of the task's texts alone",
    "all_labels/scierc.md": "The same for SciERC, with a vocabulary of task and subset",
    "coffee/linear_start.md": "A start as a linear model at `tlm/coffee`",
    "additions/additions.md": "With a vocabulary of task and subset: teachers, linear starts and averages",
    "additions/larger_body.md": "A larger body with four times the FLOPs",
    "additions/small_body.md": "A body of two layers of 64",
    "additions/long_texts.md": "Articles read to 2,048 tokens",
    "additions/large_teacher.md": "A large model as the teacher",
    "self_taught/self_taught.md": "Self-taught: three seeds teach a new network, all labels",
    "encoder_teacher/encoder_teacher.md": "MiniLM and a linear model as the teacher, minutes of a GPU",
    "hundred_labels/hundred_labels.md": "A hundred labels, a general corpus",
    "own_texts/agnews.md": "A hundred labels, own texts: AG News",
    "own_texts/rct_ei.md": "A hundred labels, own texts: RCT's stand-in",
    "hundred_validation/agnews.md": "A hundred validation labels too: AG News",
    "hundred_validation/rct_ei.md": "A hundred validation labels too: RCT's stand-in",
    "both_texts/agnews.md": "Own texts and a general corpus together: AG News",
    "both_texts/rct_ei.md": "Own texts and a general corpus together: RCT's stand-in",
    "thousand_labels/thousand_labels.md": "A thousand labels, a general corpus",
    "thousand_labels/more_teachers.md": "A thousand labels, passages cut to lengths of the task's texts",
    "thousand_own/agnews.md": "A thousand labels, own texts: AG News",
    "thousand_own/rct_ei.md": "A thousand labels, own texts: RCT's stand-in",
    "gpu_minutes/main.md": "Small tasks, minutes of a GPU",
    "gpu_minutes/large_tasks.md": "Large tasks, minutes of a GPU",
    "gpu_coffee/main.md": "The scale `tlm/coffee` on a GPU",
    "spectral.md": "Spectral and random embeddings, Reuters R8",
    "tlm_tiny_spectral.md": "The tiny scale with spectral embeddings",
    "tlm_tiny.md": "Equal steps on half a million tokens",
    "iss_tiny.md": "A fifth of the subset: ISS, ranks and chance",
    "iss_fractions.md": "How much of the subset ISS keeps",
    "iss_layers.md": "The layer whose gradients choose",
    "analysis/words.md": "Words of each class in what was kept",
    "analysis/heads.md": "Attention heads by kind",
    "analysis/embeddings.md": "Geometry of embeddings",
}
# The long line below a table is folded.
MADE_BY = re.compile(r"^Made by `.*$", re.M)
FOLDED = r"<details><summary>How it was made, and what its columns are</summary>\n\n\g<0>\n\n</details>"
HEADING = re.compile(r"^(#+) (.*)$", re.M)
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


def source_text(source: str) -> str:
    """Return a source as Markdown for a page, with headings from the second level on and links relative to the page."""
    name, _, heading = source.partition("#")
    text = (RECORDS / name).read_text(encoding="utf-8").strip()
    if heading:
        text = part(text, heading)
    return with_links(shifted(MADE_BY.sub(FOLDED, text)), name)


def part(text: str, heading: str) -> str:
    """Return the text under the first-level heading that begins with `heading`, without the heading itself.

    Raises:
        ValueError: there is no such heading.
    """
    parts = re.split(r"^# (.*)$", text, flags=re.M)
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        if name.startswith(heading):
            return content.strip()
    raise ValueError(f"There is no heading {heading!r}; there are {parts[1::2]}.")


def shifted(text: str) -> str:
    """Shift the headings so that the highest are of the second level."""
    levels = [len(marks) for marks, _ in HEADING.findall(text)]
    more = 2 - min(levels, default=2)
    return HEADING.sub(lambda match: "#" * (len(match[1]) + more) + " " + match[2], text)


def with_links(text: str, source: str) -> str:
    """Rewrite a source's links for a page: to the page that has the linked source, else to the file."""
    homes = {name.partition("#")[0]: topic.page for topic in reversed(TOPICS) for name in topic.sources}
    homes |= {f"{topic.page}.md": topic.page for topic in TOPICS}

    def moved(link: re.Match) -> str:
        if "://" in link[2] or link[2].startswith("#"):
            return link[0]
        name, hash_, part = link[2].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        place = f"{homes[target]}.md" if target in homes else posixpath.relpath(RECORDS / target, PAGES)
        return f"{link[1]}{place}{hash_}{part}{link[3]}"

    return LINK.sub(moved, text)


@cache
def read_rows(table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of `reproduce`, such as coffee/main."""
    return json.loads((RECORDS / f"{table}.json").read_text(encoding="utf-8"))["rows"]


def note(topic: Topic) -> str:
    """Return the note about a page, which is written by hand."""
    return with_links((NOTES / f"{topic.page}.md").read_text(encoding="utf-8").strip(), "notes.md")


def answer(topic: Topic) -> str:
    """Return the first sentence of a page's note, which is in bold.

    Raises:
        ValueError: the note does not begin with a bold sentence.
    """
    found = re.match(r"\*\*(.+?)\*\*", note(topic))
    if found is None:
        raise ValueError(f"notes/{topic.page}.md does not begin with the page's answer, a sentence in bold.")
    return found[1]


def unfounded(text: str, evidence: str) -> list[str]:
    """Return the figures of a text that equal no figure of the evidence, nor one rounded to the same digits.

    Code, links, small whole numbers, and text in italics between underscores are ignored.
    """
    there = {one.replace(",", "") for one in NUMBER.findall(evidence)}
    values = [float(one) for one in there]
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+|(\d+ x )?10\^\d+|\d+ x \d+|(?<!\w)_[^_]+_(?!\w)", "", text)
    missing = []
    for figure in NUMBER.findall(plain):
        bare = figure.replace(",", "")
        decimals = len(bare.partition(".")[2])
        small = decimals == 0 and float(bare) <= SMALL
        half = 0.5001 * 10**-decimals  # A table's 63.55 may appear as 63.6 or 63.5.
        if not small and bare not in there and not any(abs(value - float(bare)) <= half for value in values):
            missing.append(figure)
    return missing


def scores_under(file: Path, key: str) -> str:
    """Return the numbers below a key at any depth of a JSON or JSON lines file; fractions as percent."""
    found: list[float] = []

    def walk(value: Any, inside: bool) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                walk(part, inside or name == key)
        elif isinstance(value, list):
            for part in value:
                walk(part, inside)
        elif inside and isinstance(value, (int, float)):
            found.append(100 * value if isinstance(value, float) and abs(value) <= 1 else value)

    text = file.read_text(encoding="utf-8")
    for record in [json.loads(text)] if file.suffix == ".json" else map(json.loads, text.splitlines()):
        walk(record, False)
    return " ".join(f"{number:.6f}" for number in found)


def linked(text: str, folder: Path = RECORDS) -> list[str]:
    """Return the contents of the records that a text links.

    A link to `file.json#key` means what is below that key, one to `file.md#part` what is under that heading.
    """
    evidence = []
    for _, target, _ in LINK.findall(text):
        name, _, key = target.partition("#")
        record = folder / name
        if not record.is_file():
            continue
        if record.suffix == ".md" and key:
            found = re.search(rf"^#+ {re.escape(key)}$(.*?)(?=^#|\Z)", record.read_text(encoding="utf-8"), re.M | re.S)
            evidence.append(found[1] if found else "")
        elif record.suffix in (".md", ".csv"):
            evidence.append(record.read_text(encoding="utf-8"))
        elif key:
            evidence.append(scores_under(record, key))
    return evidence


def unfounded_blocks(file: Path, folder: Path = RECORDS) -> list[str]:
    """Return the figures of a text that are in none of the records linked in their paragraph or item.

    Links are relative to `benchmarks/results`; see `linked`.
    """
    missing = []
    for block in re.split(r"\n\n(?=\S)|\n(?=- )", file.read_text(encoding="utf-8")):
        evidence = linked(block, folder)
        missing += unfounded(block, "\n".join(evidence))
    return missing


def page_text(topic: Topic) -> str:
    """Generate a page.

    Raises:
        ValueError: its note has figures that its tables do not have.
    """
    about = "Test scores, percent, mean ± standard deviation over seeds."
    tables = [f"## {scores.title}\n\n{about}\n\n{scores.to_text()}" for scores in topic.scores]
    sources = [source_text(source) for source in topic.sources]
    said = (NOTES / f"{topic.page}.md").read_text(encoding="utf-8").strip()
    if missing := unfounded(said, "\n".join([*tables, *sources, *linked(said)])):
        raise ValueError(f"notes/{topic.page}.md has figures that no table has: {', '.join(missing)}.")
    for file in (FINDINGS[name] for name in topic.sources if name in FINDINGS):
        if missing := unfounded_blocks(file):
            what = "has figures that no record has which their paragraph links"
            raise ValueError(f"{file.parent.name}/{file.name} {what}: {', '.join(missing)}.")
    pictures = [f"![{what}]({posixpath.relpath(RECORDS / name, PAGES)})" for name, what in topic.pictures]
    names = dict.fromkeys(source.partition("#")[0] for source in topic.sources)
    files = ", ".join(f"[{name}]({posixpath.relpath(RECORDS / name, PAGES)})" for name in names)
    answered, _, rest = note(topic).partition("\n\n")
    parts = [
        "<!-- Made by docs/make_results.py from benchmarks/results. -->",
        f"# {topic.title}",
        topic.question,
        answered,
        *tables,
        *pictures,
        rest and f"## What is found\n\n{rest}",
        *map(with_heading, sources, topic.sources),
        f"## Records\n\nMade from {files} of `benchmarks/results`; the JSON files beside them have every figure.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_heading(text: str, source: str) -> str:
    """Return a source's text, under its heading in `HEADINGS` if it has none of its own.

    Raises:
        ValueError: `HEADINGS` has none for it.
    """
    if HEADING.search(text):
        return text
    if source not in HEADINGS:
        raise ValueError(f"{source} has no heading. Give it one in HEADINGS.")
    return f"## {HEADINGS[source]}\n\n{text}"


def index_text() -> str:
    """Generate the page that lists the others."""
    lines = [f"| [{topic.title}]({topic.page}.md) | {topic.question} | {answer(topic)} |" for topic in TOPICS]
    return "\n".join(
        [
            "<!-- Made by docs/make_results.py from benchmarks/results. -->\n",
            "# Results\n",
            "One page per topic, generated from the records in `benchmarks/results`. Measured figures are only on these "
            "pages. Each table names its command and its machine, a CPU unless it says otherwise.\n",
            "| page | question | answer |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


README_TABLE = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)


def readme_tables() -> dict[str, str]:
    """Return the README's tables by name: of the small tasks, and of few labels."""
    scales = (*OWN_DATA_TABLES, "gpu_minutes/main", "cpu/main")
    arms = {**OWN_DATA_ARMS, "GPU minutes": ("gpu_minutes#BM25",), "MiniLM fine-tuned": ("pretrained",)}
    few = {
        f"{TASKS[task]}, {labels}": (task, *tables)
        for task in ("agnews", "rct_ei")
        for labels, *tables in (
            ("100", "hundred_labels/hundred_labels", f"own_texts/{task}_share", f"own_texts/{task}"),
            ("1,000", "thousand_labels/thousand_labels", f"thousand_own/{task}"),
        )
    }
    pupils = {
        "taught by the linear model": ("BM25 and linear teacher",),
        "MiniLM fine-tuned": ("pretrained",),
        "own texts": ("own texts",),
        "self-taught, `--teacher self`": ("own_texts#taught by that average", "thousand_own#taught by that average"),
        "taught by MiniLM": ("share 0.9",),
    }
    few_arms = {arm: names for arm, names in ARMS.items() if arm != "random"} | pupils
    return {
        "results": Scores("README", columns(SMALL_TASKS, *scales), arms).to_text(),
        "labels": Scores("README", few, few_arms).to_text(),
    }


def readme_text() -> str:
    """Return the README with its tables of results regenerated."""
    tables, text = readme_tables(), README.read_text(encoding="utf-8")
    return README_TABLE.sub(lambda match: f"{match[1]}\n{tables[match[2]]}\n\n{match[4]}", text)


def make_pages() -> dict[Path, str]:
    """Generate all pages."""
    pages = {PAGES / f"{topic.page}.md": page_text(topic) for topic in TOPICS}
    return {PAGES / "index.md": index_text(), **pages, README: readme_text()}


def outdated(pages: dict[Path, str]) -> list[str]:
    """Return the names of pages that differ from what would be generated now, or are not generated any more."""
    stale = [path.name for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return sorted([*stale, *(path.name for path in PAGES.glob("*.md") if path not in pages)])


if __name__ == "__main__":
    write_or_check(__doc__, make_pages, outdated)
