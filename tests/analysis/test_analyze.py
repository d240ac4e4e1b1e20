"""The dispatch of recipes/analyze.py, the arguments that analyses share, and how figures are written."""

import csv
import sys

import matplotlib
import pytest
from datasets import ClassLabel

from hf_tlm import analysis
from hf_tlm.analysis import AnalysisError, AnalyzeArguments, AnalyzedTask, figures
from hf_tlm.analysis.arguments import WHAT, named
from hf_tlm.config import parse
from hf_tlm.utils.shown import markdown_table
from support.launching import ROOT, fails

RECIPE = str(ROOT / "recipes" / "analyze.py")


def test_names_of_runs_are_given_or_taken_from_the_path(tmp_path, monkeypatch):
    assert named(["a=x/y", "runs/b"], "run") == {"a": "x/y", "b": "runs/b"} and named(None, "run") == {}
    monkeypatch.setenv("HOME", "/someone")
    assert named(["a=~/x"], "run") == {"a": "/someone/x"}
    (tmp_path / "lr=0.1").mkdir()
    assert named([f"{tmp_path}/lr=0.1", "b=c=d"], "run") == {"lr=0.1": f"{tmp_path}/lr=0.1", "b": "c=d"}


@pytest.mark.parametrize(
    ("values", "message"),
    [(["=x"], "received '=x'"), (["a="], "received 'a='"), (["x/a", "y/a"], "the name 'a' occurs twice")],
)
def test_empty_or_repeated_name_is_refused(values, message):
    with pytest.raises(AnalysisError, match=message):
        named(values, "run")


def test_output_folder_defaults_to_that_of_the_run(tmp_path):
    (tmp_path / "one").mkdir()
    assert AnalyzeArguments(what=["words"], run=[f"a={tmp_path / 'one'}"]).folder == tmp_path / "one/analysis"
    assert str(AnalyzeArguments(what=["words"]).folder) == "analysis"
    assert AnalyzeArguments().what == ["report"]
    assert str(AnalyzeArguments(what=["words"], run=["x"], output_dir="here").folder) == "here"
    with pytest.raises(AnalysisError, match="expected folders of runs; there is no folder .*two"):
        AnalyzeArguments(what=["words"], run=[str(tmp_path / "two")]).runs  # noqa: B018


def test_models_default_to_those_of_the_runs(tmp_path):
    assert AnalyzeArguments(what=["words"], run=[f"a={tmp_path}"]).encoders == {"a": str(tmp_path)}
    assert AnalyzeArguments(what=["words"], run=[f"a={tmp_path}"], models=["b=c"]).encoders == {"b": "c"}


def test_invalid_number_or_missing_task_is_refused():
    with pytest.raises(AnalysisError, match="--max_texts: expected .*; received 0"):
        AnalyzeArguments(what=["words"], max_texts=0)
    with pytest.raises(AnalysisError, match="--what words needs --task"):
        AnalyzedTask().load("--what words")


def test_options_of_analyses_have_distinct_names():
    args, task, *options = parse(
        AnalyzeArguments,
        AnalyzedTask,
        *analysis.ARGUMENTS.values(),
        recipe="analyze",
        description="",
        args=["--what", *WHAT],
    )
    assert args.what == list(WHAT) and len(options) == len(WHAT) and task.task is None
    fields = [name for cls in (AnalyzeArguments, AnalyzedTask, *analysis.ARGUMENTS.values()) for name in cls.__annotations__]
    assert len(fields) == len(set(fields))


def test_figure_is_three_reproducible_files(tmp_path):
    def draw(folder):
        figure, axes = analysis.new_figure()
        axes.plot([1, 2], [3, 4.5], label="a <b>", **analysis.series_style(8))
        axes.set(xlabel="steps", ylabel="loss (nats)")
        return analysis.save_figure(figure, folder, "loss", [{"steps": 1, "loss": 3}, {"steps": 2, "loss": 4.5}])

    first, again = draw(tmp_path / "one"), draw(tmp_path / "two")
    assert [path.name for path in first] == ["loss.png", "loss.svg", "loss.csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert first[0].read_bytes().startswith(b"\x89PNG") and "loss (nats)" in first[1].read_text()
    with open(first[2], newline="") as file:
        assert list(csv.DictReader(file)) == [{"steps": "1", "loss": "3"}, {"steps": "2", "loss": "4.5"}]
    figure, _ = analysis.new_figure()
    assert tuple(figure.get_size_inches()) == (figures.WIDTH, figures.HEIGHT)


def test_series_differ_without_colour():
    styles = [(s["marker"], str(s["linestyle"])) for s in map(analysis.series_style, range(len(figures.PALETTE)))]
    assert len(set(styles)) == len(set(figures.PALETTE)) == 7


def test_long_names_are_shortened():
    assert figures.shortened("a  name\nof two", 13) == "a name of two" and figures.shortened("abcdefgh", 5) == "abcd…"


def test_missing_matplotlib_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnalysisError, match=r"Figures need matplotlib: pip install 'hf-tlm\[analysis\]'"):
        analysis.new_figure()


def test_style_applies_only_while_drawing():
    """It also applies to lines, texts and legends created after the axes; names are not parsed as formulas."""

    @analysis.style()
    def draw():
        figure, axes = analysis.new_figure()
        (line,) = axes.plot([1, 2], [3, 4], label="a $_{")
        axes.set_yticks([3, 4], ["$a", "b$"])
        return line, figures.add_legend(figure, title="$x$"), axes

    line, legend, axes = draw()
    assert (line.get_linewidth(), line.get_markersize()) == (1.3, 4) and not legend.get_frame_on()
    texts = [*legend.get_texts(), legend.get_title(), axes.title, axes.xaxis.label, *axes.get_yticklabels()]
    assert not any(text.get_parse_math() for text in texts)
    assert [text.get_fontsize() for text in (legend.get_texts()[0], legend.get_title())] == [7, 7]
    assert matplotlib.rcParams["text.parse_math"] and matplotlib.rcParams["lines.linewidth"] == 1.5


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ((2e-3, 0.5), ["0.01", "0.1"]),
        ((0.015, 0.09), ["0.02", "0.05"]),
        ((1e-7, 1), ["10⁻⁷", "10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰"]),
    ],
)
def test_logarithmic_axis_is_labelled(limits, labels):
    figure, axes = analysis.new_figure(width=6)
    axes.set(xscale="log", xlim=limits)
    figures.label_decades(axes.xaxis)
    figure.canvas.draw()
    shown = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    assert [text.get_text() for at, text in shown if limits[0] <= at <= limits[1]] == labels
    assert not any(text.get_text() for text in axes.get_xticklabels(minor=True))


def test_table_cells_are_escaped():
    expected = "| a | b |\n| --- | ---: |\n| x\\|y z | 1 |\n"
    assert markdown_table(["a", "b"], [["x|y\nz", "1"]]) == expected


def test_one_failing_analysis_does_not_stop_the_others(tmp_path, task, monkeypatch, capsys):
    for split, rows in task.splits.items():
        rows.cast_column("label", ClassLabel(names=list(task.label_names))).to_parquet(tmp_path / f"{split}.parquet")
    (tmp_path / "a.yaml").write_text("what: [subsets, words, subsets, cost]\nmin_count: 1\n")
    given = ["--config", tmp_path / "a.yaml", "--task", tmp_path, "--output_dir", tmp_path / "out"]
    fails(RECIPE, *given, message="subsets: --what subsets needs --subsets")
    assert (tmp_path / "out/words.md").is_file() and capsys.readouterr().out.count("## ") == 1
    (tmp_path / "a.yaml").write_text("what: words\nmin_count: 100000\n")  # Not a list.
    fails(RECIPE, *given, message="words: No word occurs at least 100000 times")


def test_output_folder_that_cannot_be_written_is_refused_first(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/out"):
        given = ["--what", "words", "--task", tmp_path / "nowhere", "--output_dir", folder]
        fails(RECIPE, *given, message=f"words: --output_dir {folder}: {tmp_path / 'file'} is not a writable folder")


def test_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "texts.txt").write_text("the gene binds.\n")
    (tmp_path / "subset").mkdir()
    (tmp_path / "subset/manifest.json").write_text("{}")
    given = ["--what", "heads", "--texts", tmp_path / "texts.txt", "--output_dir", tmp_path / "out"]
    fails(RECIPE, *given, "--models", tmp_path / "subset", message="subset contains neither a model nor a tokenizer")
