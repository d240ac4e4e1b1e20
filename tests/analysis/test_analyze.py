"""The recipe's dispatch, the arguments that analyses share, and how figures are written."""

import csv
import sys

import pytest

from hf_tlm import analysis
from hf_tlm.analysis import AnalysisError, AnalyzeArguments, AnalyzedTask, figures
from hf_tlm.analysis.arguments import WHAT, named
from hf_tlm.parser import parse


def test_names_of_places():
    assert named(["a=x/y", "runs/b"], "run") == {"a": "x/y", "b": "runs/b"} and named(None, "run") == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [(["=x"], "received '=x'"), (["a="], "received 'a='"), (["x/a", "y/a"], "'a' comes twice")],
)
def test_bad_names(values, message):
    with pytest.raises(AnalysisError, match=message):
        named(values, "run")


def test_folder(tmp_path):
    (tmp_path / "one").mkdir()
    assert AnalyzeArguments(what=["words"], run=[f"a={tmp_path / 'one'}"]).folder == tmp_path / "one/analysis"
    assert str(AnalyzeArguments(what=["words"]).folder) == "analysis"
    assert str(AnalyzeArguments(what=["words"], run=["x"], output_dir="here").folder) == "here"
    with pytest.raises(AnalysisError, match="there is no .*two"):
        AnalyzeArguments(what=["words"], run=[str(tmp_path / "two")]).runs  # noqa: B018


def test_models_are_the_runs_own(tmp_path):
    assert AnalyzeArguments(what=["words"], run=[f"a={tmp_path}"]).encoders == {"a": str(tmp_path)}
    assert AnalyzeArguments(what=["words"], run=[f"a={tmp_path}"], models=["b=c"]).encoders == {"b": "c"}


def test_bad_numbers_and_no_task():
    with pytest.raises(AnalysisError, match="--max_texts must be at least 1; received 0"):
        AnalyzeArguments(what=["words"], max_texts=0)
    with pytest.raises(AnalysisError, match="--what words needs --task"):
        AnalyzedTask().load("--what words")


def test_every_analysis_has_options_of_its_own_names():
    args, task, *options = parse(
        AnalyzeArguments, AnalyzedTask, *analysis.OPTIONS.values(), recipe="analyze", description="", args=["--what", *WHAT]
    )
    assert args.what == list(WHAT) and len(options) == len(WHAT) and task.task is None
    fields = [name for cls in (AnalyzeArguments, AnalyzedTask, *analysis.OPTIONS.values()) for name in cls.__annotations__]
    assert len(fields) == len(set(fields))


def test_a_figure_is_three_files_and_the_same_each_time(tmp_path):
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


def test_long_names():
    assert figures.shortened("a  name\nof two", 13) == "a name of two" and figures.shortened("abcdefgh", 5) == "abcd…"


def test_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnalysisError, match=r"hf-tlm\[analysis\]"):
        analysis.new_figure()
