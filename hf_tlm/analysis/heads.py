"""The figures of attention heads (TLM, Figures 3, C.1 and C.2)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_tlm.analysis import attention
from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, Findings, HeadsArguments
from hf_tlm.analysis.encoders import load_encoder, sample_corpus
from hf_tlm.analysis.figures import (
    PALETTE,
    WIDTH,
    add_legend,
    check_installed,
    new_figure,
    save_figure,
    save_files,
    series_style,
    style,
)
from hf_tlm.data import load_tokenizer
from hf_tlm.errors import AnalysisError
from hf_tlm.utils.shown import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = tuple[Sequence[attention.AttentionHead], attention.TextMaps]  # All heads of a model, and its maps of one text.
FRAME, GREY = PALETTE[1], "#b8b8b8"
MARGIN = 0.08  # Share of a map's side that is left for its frame.
ACROSS = 34  # Most heads side by side, of one model or several.
# Inches: the largest side of a map; margins left of, above and below a panel; width of a letter of a title and of the text.
LARGEST, LEFT, ABOVE, BELOW, TITLE, LETTER = 0.8, 0.4, 0.2, 0.32, 0.065, 0.05
# First the split that was used neither for training nor for model selection.
SPLITS = ("test", "validation", "train")
COLUMNS = ("text", "text_pair", "question", "context")


@style()
def draw_head_shares(by_model: Mapping[str, Sequence[attention.LayerShares]]) -> Figure:
    """Draw the percentage of positional and of vertical heads by layer, a line for each model."""
    columns = 2 if max(map(len, by_model)) <= 20 else 1
    figure, axes = new_figure(2, 1, height=3.2 + 0.13 * -(-len(by_model) // columns), sharex=True)
    values = [
        value
        for shares in by_model.values()
        for layer_shares in shares
        for value in (layer_shares.positional, layer_shares.vertical)
    ]
    top = next(end for end in (10, 25, 50, 100) if max(values) <= end)
    for panel, kind in zip(axes, (attention.POSITIONAL, attention.VERTICAL), strict=True):
        for index, (name, shares) in enumerate(by_model.items()):
            layers = [layer_shares for layer_shares in shares if layer_shares.layer is not None]
            line_style = series_style(index) | {"markerfacecolor": "none", "clip_on": False, "label": _title(name)}
            panel.plot(
                [layer_shares.layer for layer_shares in layers],
                [getattr(layer_shares, kind) for layer_shares in layers],
                **line_style,
            )
        panel.set(ylabel=f"{kind} heads (%)", ylim=(0, 1.05 * top))
    last = max(layer_shares.layer or 0 for shares in by_model.values() for layer_shares in shares)
    axes[-1].set(xlabel="layer", xlim=(0.5, last + 0.5))
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    add_legend(figure, *axes[0].get_legend_handles_labels(), ncols=columns)
    return figure


@style()
def draw_attention_maps(models: Mapping[str, Drawn], text: str) -> Figure:
    """Draw all attention maps of one text, layers by heads, for each model.

    Positional heads are framed, vertical ones on grey.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Patch

    width = WIDTH if sum(_most_heads(maps) for _, maps in models.values()) <= 6 else 2 * WIDTH
    panels, side, right, bottom = _arrange_panels(models, width - 0.75)
    lines = textwrap.wrap(text, round(width / LETTER), max_lines=3, placeholder=" ...")
    figure, canvas = new_figure(width=width, height=bottom + 0.4 + 0.13 * len(lines))
    canvas.set(xlim=(0, right), ylim=(bottom, 0), aspect="equal")
    canvas.axis("off")
    for name, (x, y) in panels.items():
        _draw_panel(canvas, name, *models[name], x, y, side)
    figure.suptitle("\n".join(lines), fontsize=7)
    colours = ScalarMappable(_color_scale(), "Blues")
    bar = figure.colorbar(colours, ax=canvas, ticks=(0, 0.1, 0.5, 1), fraction=0.03, aspect=16, shrink=min(1, 1.4 / bottom))
    bar.set_label("attention weight", fontsize=7)
    bar.ax.tick_params(labelsize=6)
    framed = Patch(facecolor="none", edgecolor=FRAME, linewidth=1.4, label="positional head")
    add_legend(figure, handles=[framed, Patch(facecolor=GREY, label="vertical head")], ncols=2)
    return figure


def map_rows(models: Mapping[str, Drawn]) -> list[dict[str, Any]]:
    """Return what `draw_attention_maps` draws as CSV rows, one for each weight."""
    return [
        {
            "model": name,
            "layer": head.layer,
            "head": head.head,
            "kind": head.kind,
            "row": row,
            "column": column,
            "row_token": maps.tokens[row],
            "column_token": maps.tokens[column],
            "weight": round(float(weight), 4),
        }
        for name, (heads, maps) in models.items()
        for head in heads
        for (row, column), weight in np.ndenumerate(maps.maps[head.layer - 1][head.head - 1])
    ]


def _title(name: str) -> str:
    """Shorten a name to 31 characters by cutting its middle: long names often differ at their end."""
    return name if len(name) <= 31 else f"{name[:14]}...{name[-14:]}"


def _most_heads(maps: attention.TextMaps) -> int:
    """Return the number of heads of the layer with the most."""
    return max(len(layer) for layer in maps.maps)


def _color_scale():
    """Return the colour scale, a square root, as most weights are small."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, 0, 1)


def _arrange_panels(models: Mapping[str, Drawn], width: float) -> tuple[dict[str, tuple[float, float]], float, float, float]:
    """Arrange the models' panels: side by side while their heads and names fit, then in a new row.

    Returns (top left corner of each model's maps, side of a map, total width, total height), in inches.
    """
    heads = {name: _most_heads(maps) for name, (_, maps) in models.items()}
    titles = {name: TITLE * len(_title(name)) for name in models}
    rows: list[list[str]] = [[]]
    for name in models:
        row = [*rows[-1], name]
        if len(row) > 1 and (sum(heads[n] for n in row) > ACROSS or sum(LEFT + titles[n] for n in row) > width):
            rows.append([])
        rows[-1].append(name)
    side, corners, y, right = min(LARGEST, *(_map_side(row, heads, titles, width) for row in rows)), {}, 0.0, 0.0
    for row in rows:
        x = 0.0
        for name in row:
            corners[name] = (x + LEFT, y + ABOVE)
            x += LEFT + max(side * heads[name], titles[name])
        right = max(right, x)
        y += ABOVE + side * max(len(models[name][1].maps) for name in row) + BELOW
    return corners, side, right, y


def _map_side(row: Sequence[str], heads: Mapping[str, int], titles: Mapping[str, float], width: float) -> float:
    """Return the largest side of a map with which the models of a row fit the width, given the width of their names."""
    widened: list[str] = []
    while len(widened) < len(row):
        side = (width - LEFT * len(row) - sum(titles[n] for n in widened)) / sum(heads[n] for n in row if n not in widened)
        narrow = [name for name in row if name not in widened and side * heads[name] < titles[name]]
        if not narrow:
            return side
        widened += narrow
    return min(titles[name] / heads[name] for name in row)


def _draw_panel(
    canvas, name: str, heads: Sequence[attention.AttentionHead], maps: attention.TextMaps, x: float, y: float, side: float
) -> None:
    """Draw the maps of a model with its top left corner at (x, y)."""
    from matplotlib.patches import Rectangle

    layers, most = len(maps.maps), _most_heads(maps)
    # The viewer resamples: an SVG then has one pixel for each weight and stays small.
    extent = (x, x + most * side, y + layers * side, y)
    canvas.imshow(_mosaic(heads, maps), extent=extent, interpolation="none", aspect="equal", clip_on=False)
    edge = 0.5 * MARGIN * side
    for head in heads:
        if head.kind == attention.POSITIONAL:
            corner = (x + (head.head - 1) * side + edge, y + (head.layer - 1) * side + edge)
            square = (side - 2 * edge, side - 2 * edge)
            canvas.add_patch(Rectangle(corner, *square, fill=False, edgecolor=FRAME, linewidth=min(1.6, 5 * side)))
    canvas.text(x, y - 0.04, _title(name), va="bottom")
    step = 1 if side > 0.14 else 2
    for number in range(1, layers + 1, step):
        canvas.text(x - 0.03, y + (number - 0.5) * side, str(number), fontsize=6, ha="right", va="center")
    for number in range(1, most + 1, step):
        canvas.text(x + (number - 0.5) * side, y + layers * side + 0.03, str(number), fontsize=6, ha="center", va="top")
    canvas.text(x - 0.2, y + layers * side / 2, "layer", fontsize=7, rotation=90, ha="center", va="center")
    canvas.text(x + most * side / 2, y + layers * side + 0.13, "head", fontsize=7, ha="center", va="top")


def _mosaic(heads: Sequence[attention.AttentionHead], maps: attention.TextMaps) -> np.ndarray:
    """Return the maps as one image, float [layers x cell, heads x cell, 3]: a pixel per weight, vertical heads on grey."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    size = len(maps.tokens)
    edge = max(1, round(MARGIN * size))
    cell = size + 2 * edge
    image, grey = np.ones((len(maps.maps) * cell, _most_heads(maps) * cell, 3)), np.array(to_rgb(GREY))
    for head in heads:
        weights = _color_scale()(maps.maps[head.layer - 1][head.head - 1]).data
        square = image[(head.layer - 1) * cell : head.layer * cell, (head.head - 1) * cell : head.head * cell]
        inner = square[edge:-edge, edge:-edge]
        if head.kind == attention.VERTICAL:
            square[edge // 2 : cell - edge // 2, edge // 2 : cell - edge // 2] = grey
            inner[:] = 0.5 * colormaps["Greys"](weights)[..., :3] + 0.5 * grey
        else:
            inner[:] = colormaps["Blues"](weights)[..., :3]
    return image


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: HeadsArguments) -> Findings:
    """Classify the attention heads of models, and draw their maps of one text.

    Writes heads.md, heads_counts.csv, and the figures heads (shares by layer), heads_<model>_maps and, for several models,
    heads_maps.
    """
    if not args.encoders:
        raise AnalysisError("--what heads needs models: pass --models or --run.")
    check_installed()  # Fail before minutes of work.
    trust = args.trust_remote_code
    files = _file_names(args.encoders)
    source, texts = read_texts(args, task)
    tokenizers = {
        name: load_tokenizer(name_or_path, trust_remote_code=trust, masking=False)
        for name, name_or_path in args.encoders.items()
    }
    text, caption = _choose_text(texts, list(tokenizers.values()), options)
    by_model, limits = {}, {"batch_size": args.batch_size, "max_length": args.max_length}
    for name, name_or_path in args.encoders.items():
        model, tokenizer = load_encoder(
            name_or_path, max_length=args.max_length, trust_remote_code=trust, attn_implementation="eager"
        )
        maps = attention.text_maps(model, tokenizer, text, options.heads_tokens)  # First, as it is refused if too long.
        by_model[name] = (attention.measure_heads(model, tokenizer, texts, name=name, **limits), maps)
    shares = {name: attention.layer_shares(heads) for name, (heads, _) in by_model.items()}
    table = shares_table(shares)
    counts = [{"model": name, "kind": head.kind} | asdict(head) for name, (heads, _) in by_model.items() for head in heads]
    saved = save_files(args.folder, {"heads.md": table, "heads_counts.csv": counts})
    by_layer = [
        {"model": name} | asdict(value) for name, layers in shares.items() for value in layers if value.layer is not None
    ]
    saved += save_figure(draw_head_shares(shares), args.folder, "heads", by_layer)
    drawings = {files[name]: {name: value} for name, value in by_model.items()} | (
        {"heads_maps": by_model} if len(by_model) > 1 else {}
    )
    for file, models in drawings.items():
        saved += save_figure(draw_attention_maps(models, caption), args.folder, file, map_rows(models))
    words = (
        f"{len(texts):,} texts ({source}). A head is positional if at least 90% of its rows have their largest weight on "
        "the previous or next token, vertical if at least 90% have it on [CLS], [SEP] or a full stop."
    )
    return Findings("Attention heads", f"{words}\n\n{table}", saved)


def read_texts(args: AnalyzeArguments, task: AnalyzedTask) -> tuple[str, Sequence[attention.Text]]:
    """Read the texts of `--texts`, else of the task's test, validation or training split.

    Returns (description of the texts, the texts): at most `max_texts`, drawn with the seed and in their order.

    Raises:
        AnalysisError: neither texts nor a task are given.
    """
    if args.texts is not None:
        column = task.text_column or "text"
        return args.texts, sample_corpus(args.texts, args.max_texts, seed=args.seed, text_column=column)
    if task.task is None:
        raise AnalysisError("--what heads needs texts: pass --texts (a file), or --task to read the texts of a task.")
    loaded = task.load()
    split = next(name for name in SPLITS if name in loaded.splits)
    rows, source = loaded.splits[split], f"{loaded.name}, {split}"
    if len(rows) > args.max_texts:
        drawn = np.random.default_rng(args.seed).choice(len(rows), args.max_texts, replace=False)
        rows = rows.select(np.sort(drawn))
    if "tokens" in rows.column_names:
        return source, [" ".join(words) for words in rows["tokens"][:]]
    columns = [rows[name][:] for name in COLUMNS if name in rows.column_names]
    return source, columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def shares_table(shares: Mapping[str, Sequence[attention.LayerShares]]) -> str:
    """Return a Markdown table: the percentage of heads of each kind, for each layer and for the complete model."""
    rows = []
    for name, layers in shares.items():
        for layer_shares in layers:
            values = [f"{value:.1f}" for value in (layer_shares.positional, layer_shares.vertical, layer_shares.other)]
            rows.append(
                [name, "all" if layer_shares.layer is None else str(layer_shares.layer), str(layer_shares.heads), *values]
            )
    return markdown_table(["model", "layer", "heads", "positional /%", "vertical /%", "other /%"], rows)


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the file name of each model's figure, with unsafe characters replaced; an AnalysisError if two match."""
    files: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w.-]+", "_", name)
        file = f"heads_{plain}_maps"
        if file in files.values():
            raise AnalysisError(f"Names of models must differ in letters or digits; {name!r} is too similar to another.")
        files[name] = file
    return files


def _choose_text(
    texts: Sequence[attention.Text], tokenizers: Sequence[PreTrainedTokenizerBase], options: HeadsArguments
) -> tuple[attention.Text, str]:
    """Choose the text whose maps are drawn, and return (text, caption).

    It is the given text, else the first one that no tokenizer truncates, else the first one.
    """
    candidates = [options.heads_text] if options.heads_text is not None else texts
    lengths = attention.most_tokens(candidates, tokenizers, options.heads_tokens + 1)  # One more, to detect longer texts.
    text = candidates[int(np.argmax(lengths <= options.heads_tokens))]
    words = " / ".join(text) if isinstance(text, tuple) else text
    return text, words if lengths.min() <= options.heads_tokens else f"First {options.heads_tokens} tokens of: {words}"
