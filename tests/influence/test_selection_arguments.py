"""Arguments of a selection match the function's parameters and defaults; invalid ones are refused before data are read."""

import dataclasses
import inspect
import sys

import pytest

from hf_tlm.config import parse
from hf_tlm.errors import HfTlmError
from hf_tlm.influence import InfluenceError, SelectionArguments, select
from hf_tlm.influence.checks import METHODS
from hf_tlm.retrieval import RetrievalError, Sharding, Subset, retrieve
from support.fake_scorer import FakeScorer

RENAMED = {"seed": "selection_seed", "max_length": "score_max_length"}


def parse_arguments(*args):
    return parse(SelectionArguments, recipe="select_influence", description="", args=["--subset", "s", *args])[0]


def test_defaults_equal_those_of_select():
    ours = {name: p.default for name, p in inspect.signature(select).parameters.items() if p.kind is p.KEYWORD_ONLY}
    args = parse_arguments("--fraction", "0.2")
    theirs = {name: getattr(args, RENAMED.get(name, name)) for name in ours.keys() & _names(args) | RENAMED.keys()}
    assert theirs.pop("score_model") == ["scratch"] and theirs.pop("fraction") == 0.2
    assert theirs == {name: ours[name] for name in theirs} and len(theirs) == 11


def _names(args):
    return {field.name for field in dataclasses.fields(args)}


def test_command_line_options_reach_selection_and_scorer(monkeypatch):
    args = parse_arguments(
        *"--num_passages 7 --balance class --corpus_batch_size 2 --task_batch_size 3 --selection_seed 5".split(),
        *"--score_model a b --layer 1 --projection_dim 8 --score_mlm_probability 0.2 --score_max_length 64".split(),
        *["--parameters", "attention.*.weight,*bias", "--score_batch_size", "16", "--work_dir", "w"],
        *"--task_split train --group_loss tokens --mask_task_texts".split(),
    )
    calls = {}
    home = sys.modules["hf_tlm.influence.select"]  # As a module: the attribute of that name is the function.
    monkeypatch.setattr(home, "select", lambda *given, **options: calls.update(given=given, **options))
    args.select("task", "subset", "scorer", process_index=1, num_processes=2)
    assert calls == {
        "given": ("task", "subset"), "method": "iss", "fraction": None, "top_k": None, "num_passages": 7, "balance": "class",
        "corpus_batch_size": 2, "task_batch_size": 3, "task_split": "train", "group_loss": "tokens",
        "seed": 5, "scorer": "scorer", "scores": None, "max_length": 64,
        "score_model": ["a", "b"], "work_dir": "w", "sharding": None, "process_index": 1, "num_processes": 2,
    }  # fmt: skip
    executor_options = [
        "--executor",
        "local",
        "--workers",
        "4",
        "--executor_options",
        '{"start_method": "spawn"}',
        "--fraction",
        "0.5",
    ]
    parse_arguments(*executor_options).select("task", "subset", "scorer")
    assert calls["sharding"] == Sharding(2, "local", 4, options={"start_method": "spawn"})
    parse_arguments(*executor_options, "--num_shards", "9").select("task", "subset", "scorer")
    assert calls["sharding"].num_shards == 9
    args.select("task", "subset", score_model="trained here")
    assert calls["score_model"] == "trained here" and calls["scorer"] is None


@pytest.mark.parametrize(
    "args,message",
    [
        ([], "needs its size"),
        (["--fraction", "0.2", "--num_passages", "3"], "received fraction 0.2, num_passages 3"),
        (["--method", "dsir", "--top_k", "3"], "received method dsir"),
        (
            ["--fraction", "0.2", "--num_shards", "3", "--workers", "1"],
            "num_shards, workers have no effect without an executor",
        ),
        (["--fraction", "0.2", "--method", "dsir", "--executor", "ray"], "only iss does; received ray with dsir"),
    ],
)
def test_invalid_options_are_refused(args, message):
    with pytest.raises(InfluenceError, match=message):
        parse_arguments(*args)


@pytest.mark.parametrize(
    "args,message",
    [
        (["slurm", "--executor_options", '{"partition": "gpu"}'], "slurm executor needs time"),
        (["local", "--executor_options", "[1]"], "must be a JSON object"),
        (["local", "--work_dir", "s3://bucket/work"], "needs a folder as work_dir"),
        (["local", "--executor_options", '{"nonsense": 1}'], "no option nonsense"),
        (["local", "--executor_options", '{"workers": "2"}'], "workers: expected .*; received '2'"),
        (["local", "--executor_options", '{"workers": 0}'], "workers: expected .*; received 0"),
    ],
)
def test_invalid_executors_are_refused_before_training(args, message):
    pytest.importorskip("datatrove")
    with pytest.raises(HfTlmError, match=message):
        parse_arguments("--fraction", "0.2", "--executor", *args)


def test_select_with_arguments(task, tokenizer, tmp_path, corpus):
    from hf_tlm.retrieval import retrieve

    subset = retrieve(task, corpus, top_k=8, cache_dir=str(tmp_path / "cache"))
    args = parse_arguments("--fraction", "0.5", "--work_dir", str(tmp_path / "work"), "--score_max_length", "32")
    found = args.select(task, subset, FakeScorer(tokenizer))
    assert len(found) == round(0.5 * len(subset)) and found.manifest["selection"]["score_model"] == ["scratch"]


@pytest.mark.parametrize("seed", [-1, 2.5])
def test_seed_that_is_no_whole_number_is_refused(task, corpus, seed):
    subset = retrieve(task, corpus, retriever="random", num_passages=10)
    with pytest.raises(InfluenceError, match=f"seed: expected a whole number .*; received {seed}"):
        select(task, subset, method="random", fraction=0.5, seed=seed)


class TestCheck:
    """Checks with task and subset, before a score model exists."""

    @pytest.fixture
    def task_and_subset(self, tmp_path, task, corpus):
        subset = retrieve(task, corpus, retriever="random", num_passages=10)
        subset.save(tmp_path / "subset")
        return task, subset, tmp_path

    def go(self, task_and_subset, *args, out="out", **options):
        task, subset, folder = task_and_subset
        args = parse(
            SelectionArguments, recipe="select_influence", description="", args=["--subset", str(folder / "subset"), *args]
        )[0]
        args.check(task, subset, str(folder / out), **options)

    def test_valid_options_are_accepted(self, task_and_subset):
        self.go(task_and_subset, "--fraction", "0.2", "--layer", "1")
        self.go(task_and_subset, "--fraction", "0.2", "--method", "random", "--selection_seed", "3")

    def test_output_over_the_own_subset_is_refused(self, task_and_subset):
        with pytest.raises(InfluenceError, match="would replace the subset that it is chosen from"):
            self.go(task_and_subset, "--fraction", "0.2", out="subset")
        assert len(Subset.load(task_and_subset[2] / "subset")) == 10

    def test_output_over_other_files_is_refused(self, task_and_subset):
        (task_and_subset[2] / "out").mkdir()
        (task_and_subset[2] / "out/thesis.tex").touch()
        with pytest.raises(RetrievalError, match="contains something other than a saved subset .thesis.tex"):
            self.go(task_and_subset, "--fraction", "0.2")

    @pytest.mark.parametrize(
        "args,message",
        [
            ("--num_passages 11", "num_passages 11 is more than the 10 passages"),
        ],
    )
    def test_too_many_passages_are_refused(self, task_and_subset, args, message):
        with pytest.raises(InfluenceError, match=message):
            self.go(task_and_subset, *args.split())

    @pytest.mark.parametrize(
        "args,idle",
        [
            ("--method random --layer 1 --corpus_batch_size 4", "method random: layer 1."),
            ("--method dsir --score_model a b --selection_seed 1", "method dsir: score_model ['a', 'b']."),
            ("--method bm25-rank --selection_seed 1", "method bm25-rank: selection_seed 1."),
            ("--method confidence --layer 1 --selection_seed 1", "method confidence: layer 1, selection_seed 1."),
            ("--layer 1 --score_max_length 9 --selection_seed 1", None),
        ],
    )
    def test_options_without_effect_are_warned_about(self, task_and_subset, args, idle, caplog):
        """A config file may have them for several selections."""
        self.go(task_and_subset, "--fraction", "0.2", *args.split())
        assert caplog.text.strip().endswith(f"These options have no effect with {idle}") if idle else not caplog.text

    @pytest.mark.parametrize("method", METHODS)
    def test_teacher_without_effect_is_warned_about(self, task_and_subset, method, caplog):
        self.go(task_and_subset, "--fraction", "0.2", "--method", method, teacher=["runs/a", "runs/b"])
        warning = f"These options have no effect with method {method}: teacher runs/a runs/b."
        assert (warning in caplog.text) == (method in ("random", "dsir", "bm25-rank"))

    def test_selecting_from_a_selection_is_refused(self, task_and_subset):
        task, subset, folder = task_and_subset
        smaller = select(task, subset, method="random", fraction=0.5)
        with pytest.raises(InfluenceError, match="is a selection already"):
            self.go((task, smaller, folder), "--fraction", "0.2")
