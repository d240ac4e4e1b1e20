"""The figures of embeddings (ISS, Figure 4; COCO-LM, Figures 1, 5 and 6): choose texts and pairs, and draw them.

What similar pairs are depends on the task:

- A classification task: two texts of one class.
- A task of text pairs with scores (STS-B): the pairs with high scores. Their texts are embedded one by one.
- A classification task of text pairs with a class that means similar (MRPC): the pairs of this class, likewise.

Random pairs are pairs of these texts or, as in COCO-LM, of texts of a corpus.

Shapes: N texts, P pairs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, EmbeddingsArguments, Findings
from hf_tlm.analysis.encoders import (
    LEAST_TEXTS,
    alignment,
    cosine_similarities,
    embed_texts,
    load_encoder,
    project,
    random_pairs,
    same_class_pairs,
    sample_corpus,
    silhouette,
    uniformity,
)
from hf_tlm.analysis.figures import (
    HEIGHT,
    MARKERS,
    PALETTE,
    add_legend,
    check_installed,
    new_panels,
    save_figure,
    save_files,
    shortened,
    style,
)
from hf_tlm.errors import AnalysisError
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.utils.shown import counted, markdown_table

# The default of similar_from, as a share of the largest score.
SIMILAR_SHARE = 0.8
BINS = 50
GREY, EDGE = "#b0b0b0", "#404040"
# Most similar pairs that are marked, limited by the number of colours and markers.
MARKED = 6
NAME_WIDTH = 26
HEADINGS = {"mean_cosine_random": "mean cosine, random", "mean_cosine_similar": "mean cosine, similar"}


@dataclass(frozen=True)
class DrawnTexts:
    """Texts to embed, and pairs of them to compare.

    Attributes:
        texts: N texts: different ones, or the first texts of N pairs if there are `text_pairs`.
        similar: int64 [P, 2], rows of `texts`.
        random: int64 [R, 2], rows of `random_texts` if there are any, else of `texts`.
        similar_are, random_are: descriptions of the pairs for readers.
        labels: int64 [N], indices of `label_names`; None if texts have no class.
    """

    texts: list[str]
    similar: np.ndarray
    random: np.ndarray
    similar_are: str
    random_are: str
    text_pairs: list[str] | None = None
    random_texts: list[str] | None = None
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] = ()


def draw_texts(
    task: Task, options: EmbeddingsArguments, *, max_texts: int = 2000, random_from: str | None = None, seed: int = 0
) -> DrawnTexts:
    """Draw texts of a task's split, and similar and random pairs of them.

    Args:
        max_texts: most texts that are drawn; if pairs are drawn, similar ones come first.
        random_from: a corpus for the random pairs, by file, folder or Hub id.

    Raises:
        AnalysisError: there are too few texts, only one class, or no similar pair, or an option does not suit the task.
    """
    check_task(task, "--what embeddings", "classification", "regression")
    split = options.embedding_split or ("test" if "test" in task.splits else "validation")
    if split not in task.splits:
        raise AnalysisError(f"{task.name} has no {split} split with labels; choose from {', '.join(task.splits)}.")
    rows = task.splits[split]
    order = np.random.default_rng(seed).permutation(len(rows))
    if options.similar_from is not None and task.kind != "regression":
        raise AnalysisError(
            f"--similar_from needs a task with scores; the texts of {task.name} have classes. Use --similar_label."
        )
    if task.kind == "regression" or options.similar_label is not None:
        if "text_pair" not in rows.column_names:
            raise AnalysisError(
                f"{task.name} has one text per row: similar pairs need a task with pairs of texts. For classes, remove "
                "--similar_label; scores of single texts cannot be analysed."
            )
        is_similar, description = _find_similar_pairs(task, rows["label"][:], options)
        order = order[np.argsort(~is_similar[order], kind="stable")][: max(max_texts // 2, 1)]
        rows = rows.select(order)
        text_index: dict[str, int] = {}
        both = zip(rows["text"][:], rows["text_pair"][:], strict=True)
        pairs = [[text_index.setdefault(text, len(text_index)) for text in row] for row in both]
        texts, parts = (
            list(text_index),
            {"similar": np.asarray(pairs, np.int64)[is_similar[order]], "similar_are": description},
        )
    else:
        rows = rows.select(order[:max_texts])
        labels = np.asarray(rows["label"][:], np.int64)
        if len(present := np.unique(labels)) < 2:
            class_names = ", ".join(task.label_names[label] for label in present)
            raise AnalysisError(
                f"Two classes are needed; the {len(labels)} {split} texts of {task.name} are all {class_names}."
            )
        texts, parts = rows["text"][:], {"labels": labels, "label_names": tuple(task.label_names)}
        parts["text_pairs"] = rows["text_pair"][:] if "text_pair" in rows.column_names else None
        parts |= {"similar": same_class_pairs(labels, options.max_pairs, seed=seed), "similar_are": "of one class"}
    if len(texts) < LEAST_TEXTS:
        raise AnalysisError(
            f"At least {LEAST_TEXTS} texts are needed; {len(texts)} were drawn from {task.name}'s {split} split."
        )
    if not len(parts["similar"]):
        raise AnalysisError(
            f"None of the texts drawn from {task.name}'s {split} split form a similar pair ({parts['similar_are']})."
        )
    if random_from is None:
        others, count, description = None, len(texts), f"{task.name}'s {split} split"
    else:
        others = sample_corpus(random_from, max_texts, seed=seed, least=2)
        count, description = len(others), Path(random_from).name
    return DrawnTexts(
        texts,
        **parts,
        random=random_pairs(count, options.max_pairs, seed=seed),
        random_are=f"of {description}",
        random_texts=others,
    )


def _find_similar_pairs(task: Task, labels: Sequence[float], options: EmbeddingsArguments) -> tuple[np.ndarray, str]:
    """Return (bool [rows], which pairs are similar; a description of similar pairs)."""
    values = np.asarray(labels)
    if task.kind == "regression":
        if options.similar_label is not None:
            raise AnalysisError(
                f"--similar_label needs a task with classes; the pairs of {task.name} have scores. Use --similar_from."
            )
        least = options.similar_from
        if least is None:
            least = SIMILAR_SHARE * max(max(rows["label"]) for rows in task.splits.values())
        return values >= least, f"with a score of {least:g} or more"
    if options.similar_label not in task.label_names:
        raise AnalysisError(
            f"--similar_label must be a class of {task.name}: {', '.join(task.label_names)}; received "
            f"{options.similar_label!r}."
        )
    return values == task.label2id[options.similar_label], f"of the class {options.similar_label}"


@style()
def draw_classes(
    projections: Mapping[str, np.ndarray], labels: np.ndarray, names: Sequence[str], directory: str | os.PathLike
) -> list[Path]:
    """Draw Figure 4 of the ISS paper: a panel for each model, a colour for each class.

    If there are more than seven classes, the six with the most texts have colours, and the others are grey. Writes
    embeddings_tsne.png, .svg and .csv.

    Args:
        projections: name of a model -> [N, 2].
        labels: int64 [N], indices of `names`.
    """
    counts = np.bincount(labels, minlength=len(names))
    present = [label for label in np.argsort(-counts, kind="stable") if counts[label]]
    shown = present if len(present) <= len(PALETTE) else present[: len(PALETTE) - 1]
    columns = 3 if len(projections) == 1 else 5
    figure, panels = _create_panels(projections, legend_rows=math.ceil((len(shown) + 1) / columns))
    for axes, points in zip(panels, projections.values(), strict=True):
        rest = ~np.isin(labels, shown)
        if rest.any():
            axes.scatter(
                *points[rest].T, s=5, c=GREY, marker=".", linewidths=0, label=counted(len(present) - len(shown), "other")
            )
        # The largest class first: it would hide small ones.
        for index, label in enumerate(shown):
            point_style = {
                "s": _point_size(len(labels)),
                "c": PALETTE[index],
                "marker": MARKERS[index],
                "linewidths": 0,
                "alpha": 0.8,
            }
            axes.scatter(*points[labels == label].T, label=shortened(names[label], NAME_WIDTH), **point_style)
    _add_legend(figure, panels[0], columns)
    rows = [
        {"model": name, "text": row, "class": names[label], "x": float(x), "y": float(y)}
        for name, points in projections.items()
        for row, (label, (x, y)) in enumerate(zip(labels, points, strict=True))
    ]
    return save_figure(figure, directory, "embeddings_tsne", rows)


@style()
def draw_pairs(
    projections: Mapping[str, np.ndarray], pairs: np.ndarray, directory: str | os.PathLike, *, seed: int = 0
) -> list[Path]:
    """Draw Figure 6 of the COCO-LM paper: the texts of similar pairs, with some pairs marked.

    The two texts of a marked pair have the same marker and are joined by a line. Writes embeddings_tsne.png, .svg and .csv.

    Args:
        projections: name of a model -> [N, 2].
        pairs: int64 [P, 2], rows of the projections.
    """
    marked = np.random.default_rng(seed).permutation(np.flatnonzero(pairs[:, 0] != pairs[:, 1]))[:MARKED]
    figure, panels = _create_panels(projections, legend_rows=0)
    for axes, points in zip(panels, projections.values(), strict=True):
        axes.scatter(*points.T, s=_point_size(len(points)), c=GREY, marker="o", linewidths=0)
        for index, pair in enumerate(marked):
            point_style = {
                "color": PALETTE[index],
                "marker": MARKERS[index],
                "markeredgecolor": EDGE,
                "markeredgewidth": 0.4,
            }
            axes.plot(*points[pairs[pair]].T, linewidth=0.8, markersize=5, **point_style)
    corners = ("first_x", "first_y", "second_x", "second_y")
    rows = [
        {"model": name, "pair": index, "marked": index in marked} | dict(zip(corners, corner_values, strict=True))
        for name, points in projections.items()
        for index, corner_values in enumerate(points[pairs].astype(float).reshape(-1, 4).tolist())
    ]
    return save_figure(figure, directory, "embeddings_tsne", rows)


@style()
def draw_cosines(cosines: Mapping[str, Mapping[str, np.ndarray]], vector: str, directory: str | os.PathLike) -> list[Path]:
    """Draw Figures 1 and 5 of the COCO-LM paper: histograms of the cosine similarities of random and of similar pairs.

    There is a panel for each model, with kernel density estimates and means. Writes embeddings_cosine.png, .svg and .csv.

    Args:
        cosines: name of a model -> kind of pairs, such as "random" -> [P].
        vector: name of the compared vectors, for the axis.
    """
    least = min(values.min() for kinds in cosines.values() for values in kinds.values())
    edges = np.linspace(min(math.floor(least * 10) / 10, 0.9), 1, BINS + 1)
    figure, panels = _create_panels(cosines, legend_rows=1, labels=(f"cosine similarity of {vector}", "share of pairs (%)"))
    rows: list[dict[str, Any]] = []
    for axes, (name, kinds) in zip(panels, cosines.items(), strict=True):
        means = ", ".join(f"{kind} {values.mean():.2f}" for kind, values in kinds.items())
        axes.set_title(f"{shortened(name, NAME_WIDTH)}\nmean: {means}")
        # One more bin beyond 1, as models with degenerate embeddings have all of their pairs at the edge.
        axes.set_xlim(edges[0], 2 - edges[-2])
        for index, (kind, values) in enumerate(kinds.items()):
            shares = 100 * np.histogram(values, edges)[0] / len(values)
            # One filled, one hollow, so that they are distinguishable without colour.
            bar_style = (
                {"color": PALETTE[index], "alpha": 0.35}
                if index == 0
                else {"facecolor": "none", "edgecolor": PALETTE[index]}
            )
            axes.stairs(shares, edges, fill=index == 0, linewidth=0.8, label=kind, **bar_style)
            axes.plot(*_estimate_density(values, edges), color=PALETTE[index], linewidth=1.1)
            axes.axvline(values.mean(), color=PALETTE[index], linewidth=0.9, linestyle=("--", ":")[index % 2])
            rows += [
                {"model": name, "pairs": kind, "cosine_from": low, "cosine_to": high, "share_percent": share}
                for low, high, share in zip(*(x.tolist() for x in (edges[:-1], edges[1:], shares)), strict=True)
            ]
        axes.set_ylim(bottom=0)
    _add_legend(figure, panels[0], 2)
    return save_figure(figure, directory, "embeddings_cosine", rows)


def _estimate_density(cosines: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (positions, kernel density estimate in percent per bin); empty if the values spread less than a bin."""
    from scipy.stats import gaussian_kde

    width = edges[1] - edges[0]
    if cosines.std() < width:
        return np.zeros(0), np.zeros(0)
    positions, estimate = np.linspace(edges[0], edges[-1], 4 * BINS + 1), gaussian_kde(cosines)
    # Reflect the density beyond 1 and -1, where no cosine is, back into the range.
    return positions, 100 * width * sum(estimate(x) for x in (positions, 2 - positions, -2 - positions))


def _create_panels(
    names: Collection[str], legend_rows: int, labels: tuple[str, str] = ("t-SNE 1", "t-SNE 2")
) -> tuple[Any, list[Any]]:
    """Create a figure with titled panels and room for a legend below; t-SNE panels have no ticks, as they have no unit."""
    figure, panels, columns = new_panels(
        len(names), lambda rows, columns: rows * (HEIGHT if columns < 3 else 2.1) + 0.17 * legend_rows
    )
    for index, (axes, name) in enumerate(zip(panels, names, strict=True)):
        axes.set_title(shortened(name, NAME_WIDTH))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1] if index % columns == 0 else "")
        if labels[0].startswith("t-SNE"):
            axes.set(xticks=[], yticks=[])
    return figure, panels


def _add_legend(figure: Any, axes: Any, columns: int) -> None:
    entries = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1].endswith(" others"))
    spacing = {"markerscale": 1.8, "handletextpad": 0.4, "columnspacing": 1.2}
    add_legend(figure, *zip(*entries, strict=True), ncols=min(columns, len(entries)), **spacing)


def _point_size(count: int) -> float:
    """Return the size of a point in square points: smaller if there are many points."""
    return float(np.clip(4000 / max(count, 1), 4, 14))


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: EmbeddingsArguments) -> Findings:
    """Write embeddings_tsne and embeddings_cosine as .png, .svg and .csv, and the table: embeddings.md and embeddings.csv.

    Raises:
        AnalysisError: there is no model, or see `draw_texts`, `load_encoder`, `embed_texts`, `project`.
    """
    if not args.encoders:
        raise AnalysisError("--what embeddings needs --models, or --run with trained models.")
    check_installed()
    loaded = task.load("--what embeddings")
    drawn = draw_texts(loaded, options, max_texts=args.max_texts, random_from=args.texts, seed=args.seed)
    rows, projections, cosines = [], {}, {}
    for name, name_or_path in args.encoders.items():
        vectors, random_vectors = _embed(name, name_or_path, drawn, args, options)
        similar = cosine_similarities(vectors, drawn.similar)
        random = cosine_similarities(random_vectors, drawn.random)
        cosines[name] = {"random": random, "similar": similar}
        rows.append({"model": name} | measure(random, similar, vectors, drawn.labels, args.seed))
        projected = vectors if drawn.labels is not None else vectors[np.unique(drawn.similar)]
        projections[name] = project(projected, perplexity=options.perplexity, seed=args.seed)
    if drawn.labels is not None:
        files = draw_classes(projections, drawn.labels, drawn.label_names, args.folder)
    else:
        pair_rows = np.searchsorted(np.unique(drawn.similar), drawn.similar)
        files = draw_pairs(projections, pair_rows, args.folder, seed=args.seed)
    files += draw_cosines(cosines, "[CLS]" if options.pooling == "cls" else "mean vectors", args.folder)
    text = f"{to_markdown(rows)}\n{_explain_vectors(drawn, options)}\n"
    files += save_files(args.folder, {"embeddings.md": text, "embeddings.csv": rows})
    return Findings(f"Embeddings of {loaded.name}", text, files)


def measure(
    random: np.ndarray, similar: np.ndarray, vectors: np.ndarray, labels: np.ndarray | None = None, seed: int = 0
) -> dict[str, float]:
    """Return the measures of one model by name.

    Args:
        random, similar: [P], cosines of pairs.
        vectors: [N, H].
        labels: int64 [N], for the silhouette; None leaves it out.
    """
    measures = {
        "mean_cosine_random": float(random.mean()),
        "mean_cosine_similar": float(similar.mean()),
        "alignment": alignment(similar),
        "uniformity": uniformity(random),
    }
    return measures if labels is None else measures | {"silhouette": silhouette(vectors, labels, seed=seed)}


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the measures as a Markdown table, a row for each model."""
    keys = list(rows[0])
    cells = [[row["model"], *(f"{row[key]:.3f}" for key in keys[1:])] for row in rows]
    return markdown_table([HEADINGS.get(key, key) for key in keys], cells)


def _embed(
    name: str, name_or_path: str, drawn: DrawnTexts, args: AnalyzeArguments, options: EmbeddingsArguments
) -> tuple[np.ndarray, np.ndarray]:
    """Return a model's vectors of the texts, and of the texts of random pairs."""
    length = args.max_length
    model, tokenizer = load_encoder(name_or_path, max_length=length, trust_remote_code=args.trust_remote_code)
    embed = partial(
        embed_texts,
        model,
        tokenizer,
        pooling=options.pooling,
        layer=options.layer,
        max_length=length,
        batch_size=args.batch_size,
        description=f"Embedding with {name}",
    )
    vectors = embed(drawn.texts, drawn.text_pairs)
    return vectors, vectors if drawn.random_texts is None else embed(drawn.random_texts)


def _explain_vectors(drawn: DrawnTexts, options: EmbeddingsArguments) -> str:
    vector = "The vector of [CLS]" if options.pooling == "cls" else "The mean over tokens"
    layer = "last layer" if options.layer == -1 else f"layer {options.layer}"
    return (
        f"{vector}, {layer}. Random pairs: {len(drawn.random):,} {drawn.random_are}. Similar pairs: {len(drawn.similar):,} "
        f"{drawn.similar_are}. Alignment (similar pairs) and uniformity (random pairs) are Wang and Isola's: smaller is "
        f"better." + (" Silhouette (classes, by cosine): larger is better." if drawn.labels is not None else "")
    )
