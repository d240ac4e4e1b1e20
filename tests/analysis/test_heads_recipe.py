"""recipes/analyze.py --what heads: its files, figures of any texts, and errors."""

import csv
import json
import runpy
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from hf_tlm import analysis
from hf_tlm.analysis import AnalysisError, AttentionHead, TextMaps, draw_attention_maps, draw_head_shares, layer_shares
from hf_tlm.analysis import heads as figures
from hf_tlm.analysis.arguments import HeadsArguments
from hf_tlm.analysis.figures import to_svg
from hf_tlm.analysis.heads import read_texts
from support.launching import ROOT, fails
from support.toys import TINY_CONFIGS

RECIPE = str(ROOT / "recipes" / "analyze.py")
# Formulas, markup, letters that no installed font has, and a text that is too long.
TEXTS = ["the gene " * 30 + "binds.", "costs $5 and $x_{ <b>&amp; of the gene 遺伝子.", "the cell binds the gene."]


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Draw at a low resolution: drawing takes most of the time."""
    monkeypatch.setattr("hf_tlm.analysis.figures.DPI", 40)


def save(folder, name, tokenizer, head=False):
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **TINY_CONFIGS[name])
    (AutoModelForSequenceClassification if head else AutoModel).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def head(layer, number, kind):
    counts = {"positional": (10, 0, 10, 0), "vertical": (0, 0, 0, 10), "other": (0, 0, 0, 0)}[kind]
    return AttentionHead(layer, number, 10, *counts)


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", [RECIPE, "--what", "heads", *map(str, options)])
    runpy.run_path(RECIPE, run_name="__main__")


@pytest.mark.filterwarnings("error:Glyph")
def test_recipe_writes_shares_counts_and_maps(tmp_path, tokenizer, monkeypatch, capfd):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    folders = {
        "tlm $a$": save(tmp_path / "tlm", "bert", tokenizer, head=True),
        "b": save(tmp_path / "b", "cocolm", tokenizer),
    }
    named = [f"{name}={folder}" for name, folder in folders.items()]
    common = ["--texts", texts, "--max_length", 32, "--heads_tokens", 30, "--output_dir", tmp_path / "out"]
    run(monkeypatch, "--models", *named, *common)
    out, err = capfd.readouterr()
    assert "3 texts" in out and r"| tlm \$a\$ | all | 4 |" in out and "UNEXPECTED" not in out + err
    names = ["heads", "heads_tlm_a__maps", "heads_b_maps", "heads_maps"]
    files = {f"{name}.{kind}" for name in names for kind in ("png", "svg", "csv")} | {"heads.md", "heads_counts.csv"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert all(str(tmp_path / "out" / name) in out for name in files)
    shares = rows_of(tmp_path / "out" / "heads.csv")
    assert [(row["model"], row["layer"]) for row in shares] == [(name, layer) for name in folders for layer in "12"]
    assert all(float(row["positional"]) + float(row["vertical"]) + float(row["other"]) == 100 for row in shares)
    heads = rows_of(tmp_path / "out" / "heads_counts.csv")
    ids = tokenizer(TEXTS, truncation=True, max_length=32)["input_ids"]
    assert len(heads) == 8 and {int(row["rows"]) for row in heads} == {sum(map(len, ids))}
    # The second text is the first that is short enough.
    size = len(ids[1])
    assert len(rows_of(tmp_path / "out" / "heads_b_maps.csv")) == 4 * size**2
    weights = rows_of(tmp_path / "out" / "heads_maps.csv")
    assert len(weights) == 8 * size**2 and weights[1]["column_token"] == tokenizer.convert_ids_to_tokens(ids[1])[1]
    assert sum(float(row["weight"]) for row in weights) == pytest.approx(8 * size, abs=0.2)
    svg = (tmp_path / "out" / "heads_maps.svg").read_text(encoding="utf-8")
    assert "costs $5 and $x_{ &lt;b&gt;&amp;amp;" in svg and "遺伝子" in svg and "tlm $a$" in svg and len(svg) < 100_000


def test_texts_are_drawn_from_the_test_split_of_a_task(tmp_path, task, tokenizer, monkeypatch):
    """Also with a maximum number of texts, and a text for the maps that is given."""
    (tmp_path / "toy").mkdir()
    for split, rows in task.splits.items():
        rows.to_json(tmp_path / "toy" / f"{split}.jsonl")
    run_folder = save(tmp_path / "run", "bert", tokenizer)
    args = analysis.AnalyzeArguments(what=["heads"], run=[str(run_folder)], max_texts=5, max_length=40)
    chosen = analysis.AnalyzedTask(task=str(tmp_path / "toy"))
    findings = analysis.analyze("heads", args, chosen, HeadsArguments(heads_text="the gene binds " * 9, heads_tokens=6))
    assert "5 texts (toy, test)" in findings.text and {path.parent for path in findings.files} == {run_folder / "analysis"}
    svg = (run_folder / "analysis" / "heads_run_maps.svg").read_text(encoding="utf-8")
    assert "First 6 tokens of: the gene binds" in svg and not (run_folder / "analysis" / "heads_maps.svg").exists()
    _, drawn = read_texts(args, chosen)
    assert len(drawn) == 5 and set(drawn) <= set(task.test["text"][:]) and drawn == read_texts(args, chosen)[1]
    args.seed = 1
    assert read_texts(args, chosen)[1] != drawn


def test_drawn_text_beyond_the_positions_is_refused_before_heads_are_measured(tmp_path, task, tokenizer, monkeypatch):
    (tmp_path / "texts.txt").write_text("the gene binds.\n")
    args = analysis.AnalyzeArguments(
        what=["heads"],
        run=[str(save(tmp_path / "run", "bert", tokenizer))],
        texts=str(tmp_path / "texts.txt"),
        max_length=40,
    )
    monkeypatch.setattr("hf_tlm.analysis.attention.measure_heads", lambda *args, **options: pytest.fail("too late"))
    with pytest.raises(AnalysisError, match="has 41 tokens, but the model has 40 positions.*drawn, --heads_tokens"):
        options = HeadsArguments(heads_text="the gene binds " * 20, heads_tokens=41)
        analysis.analyze("heads", args, analysis.AnalyzedTask(), options)


def test_maps_have_frames_for_positional_and_grey_for_vertical_heads():
    heads = [head(1, 1, "positional"), head(1, 2, "vertical"), head(2, 1, "other"), head(2, 2, "positional")]
    even = np.full((2, 10, 10), 0.1, np.float32)
    maps = TextMaps([f"t{place}" for place in range(10)], [even, even])
    figure = draw_attention_maps({"a": (heads, maps)}, "a text")
    panel = figure.axes[0]
    frames = [patch for patch in panel.patches if patch.get_edgecolor()[:3] == (0xD5 / 255, 0x5E / 255, 0)]
    corners = [(np.array(frame.get_xy()) - (figures.LEFT, figures.ABOVE)) / figures.LARGEST for frame in frames]
    assert [tuple(map(int, corner)) for corner in corners] == [(0, 0), (1, 1)]
    image = np.asarray(panel.images[0].get_array())
    assert image.shape == (24, 24, 3)
    grey = (np.ptp(image, axis=-1) < 0.01) & (image[..., 0] < 0.95)
    assert grey[1:11, 13:23].all() and not grey[1:11, 1:11].any() and not grey[12:].any()
    assert b"data:image/png;base64" in to_svg(figure)


def test_figure_of_shares_has_a_line_per_model():
    heads = [head(1, 1, "positional"), head(1, 2, "other"), head(2, 1, "vertical"), head(2, 2, "vertical")]
    figure = draw_head_shares({"a": layer_shares(heads), "b": layer_shares(heads[:2])})
    lines = [[line.get_xydata().tolist() for line in panel.lines] for panel in figure.axes]
    assert lines == [[[[1, 50], [2, 0]], [[1, 50]]], [[[1, 0], [2, 100]], [[1, 0]]]]
    assert [panel.get_ylabel() for panel in figure.axes] == ["positional heads (%)", "vertical heads (%)"]


def test_panels_of_models_are_arranged_within_the_width():
    maps = {n: TextMaps(["a"], [np.ones((n, 1, 1), np.float32)] * 2) for n in (12, 2)}
    models = {"a": ([], maps[12]), "b": ([], maps[12]), "c": ([], maps[12]), "d": ([], maps[2])}
    positions, side, right, bottom = figures._arrange_panels(models, 6)
    assert (
        positions["a"][1] == positions["b"][1] < positions["c"][1] == positions["d"][1]
        and positions["a"][0] == positions["c"][0]
    )
    assert positions["b"][0] >= positions["a"][0] + 12 * side and right <= 6 and positions["c"][1] + 2 * side < bottom
    assert figures._arrange_panels({"d": models["d"]}, 6)[1] == figures.LARGEST
    # Names may be wider than maps.
    narrow = {f"a-rather-long-name-{n}": ([], maps[2]) for n in range(6)}
    positions, side, right, _ = figures._arrange_panels(narrow, 6)
    assert right <= 6 and len({y for _, y in positions.values()}) == 2 and 0.4 < side <= figures.LARGEST
    assert figures._title("x" * 40 + "end") == "x" * 14 + "..." + "x" * 11 + "end"


def test_missing_models_texts_or_weights_are_refused(tmp_path, tokenizer):
    run_folder = save(tmp_path / "run", "bert", tokenizer)
    texts = tmp_path / "texts.txt"
    texts.write_text("the gene binds.\n")
    given = ["--what", "heads", "--texts", texts, "--output_dir", tmp_path / "out"]
    fails(RECIPE, *given, message="--what heads needs models: pass --models or --run")
    fails(
        RECIPE,
        "--what",
        "heads",
        "--models",
        run_folder,
        message="--what heads needs texts: pass --texts (a file), or --task",
    )
    fails(RECIPE, *given, "--models", f"a b={run_folder}", f"a_b={run_folder}", message="'a_b' is too similar to another")
    fails(RECIPE, *given, "--models", tmp_path / "none", message="Cannot load a tokenizer from")
    fails(
        RECIPE,
        *given,
        "--models",
        run_folder,
        "--heads_tokens",
        2,
        message="--heads_tokens: expected a whole number from 3 to 4,096; received 2",
    )
    weights = load_file(run_folder / "model.safetensors")
    del weights["encoder.layer.0.attention.self.query.weight"]
    save_file(weights, run_folder / "model.safetensors", {"format": "pt"})
    fails(
        RECIPE,
        *given,
        "--models",
        run_folder,
        message="lacks weights of its body (encoder.layer.0.attention.self.query.weight)",
    )
    (run_folder / "model.safetensors").write_bytes(b"cut")
    fails(RECIPE, *given, "--models", run_folder, message="Cannot load an encoder from")
    assert not (tmp_path / "out").exists()
    with pytest.raises(AnalysisError, match="--heads_text is blank"):
        HeadsArguments(heads_text=" ")
