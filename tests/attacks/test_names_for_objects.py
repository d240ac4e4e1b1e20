"""A name or data in place of a Task, Subset or Corpus object in Python: the message says what to pass."""

import importlib
import inspect
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoConfig

from hf_tlm import load_corpus
from hf_tlm.analysis import embed_texts, read_run
from hf_tlm.analysis.report.run_folder import RunFolder
from hf_tlm.corpora import CorpusError
from hf_tlm.data import TokenizerError, cached_wordpiece, load_tokenizer, train_wordpiece
from hf_tlm.errors import AnalysisError, HfTlmError
from hf_tlm.models import (
    GeneratorDiscriminator,
    TlmModel,
    build_config,
    convert_legacy,
    convert_released,
    convert_released_tlm,
    load_exported,
    load_released,
    load_released_tlm,
)
from hf_tlm.retrieval import Index, RetrievalError, Subset, retrieval_report, retrieve
from hf_tlm.runs import CheckpointArguments, aggregate, export_onnx, majority_class, predict
from hf_tlm.tasks import TaskError, TaskSpec, task_from_datasets, unlabelled
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, prepare
from support.toys import TINY_CONFIGS, make_task

PACKAGES = ("tasks", "corpora", "retrieval", "data", "models", "influence", "training", "runs", "analysis")
ROWS = [{"text": "a secret", "label": "a"}]


CORPUS = Dataset.from_list(ROWS)
CLASSES = {
    **dict.fromkeys(("TlmArguments", "ModelArguments", "PretrainArguments", "ScoreModelArguments"), "hf_tlm.training"),
    **dict.fromkeys(("CheckpointArguments", "FinetuneArguments", "FewShotArguments", "Grid"), "hf_tlm.runs"),
    "BlockArguments": "hf_tlm.data",
}


def options_classes(parameters):
    """Return argument name -> options class, for the arguments that take options."""
    return {
        name: str(parameter.annotation) for name, parameter in parameters.items() if str(parameter.annotation) in CLASSES
    }


def functions():
    """Return all public functions by name."""
    by_name = {}
    for name in PACKAGES:
        package = importlib.import_module(f"hf_tlm.{name}")
        for function in (getattr(package, exported) for exported in package.__all__):
            if inspect.isfunction(function):
                by_name[function.__name__] = function
    return by_name


def functions_taking(argument, class_name):
    return {
        name: function
        for name, function in functions().items()
        if argument in (parameters := inspect.signature(function).parameters)
        and str(parameters[argument].annotation).partition(" ")[0] == class_name
    }


def call_with(function, folder, **given):
    """Call a function with None for every other required argument, except those that name a folder."""
    run = object.__new__(RunFolder)
    vars(run).update(path=folder, missing=[], record={})
    others = {"args": SimpleNamespace(output_dir=str(folder), taught=[], folder=folder), "run": run}
    parameters = inspect.signature(function).parameters.values()
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return function(**{name: others.get(name) for name in needed} | given)


# `write_report` reads the run first; `report_page`, which it calls, checks the task.
TASKS = {name: function for name, function in functions_taking("task", "Task").items() if name != "write_report"}
SUBSETS = {
    name: function for name, function in functions_taking("subset", "Subset").items() if "task" in name or name in TASKS
}


@pytest.mark.parametrize("name", TASKS)
def test_name_in_place_of_a_task_is_refused(name, tmp_path):
    given = {"subset": object.__new__(Subset)} if name == "case_studies" else {}
    with pytest.raises(TaskError) as raised:
        call_with(TASKS[name], tmp_path, task="tickets.csv", **given)
    assert str(raised.value) == 'task: expected a Task; received "tickets.csv". Give load_task("tickets.csv").'


# Functions that take options, and the names of these arguments.
OPTIONS = [
    (name, argument)
    for name, function in functions().items()
    if name in ("run_tlm", "run_pretraining", "finetune", "run_few_shot", "run_grid", "score_models", "train_score_model")
    for argument in inspect.signature(function).parameters
    if argument in ("args", "model_args", "block_args", "checkpoint", "grid")
]


@pytest.mark.parametrize(
    "given",
    [None, "runs/bert", SimpleNamespace(learning_rate=1)],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize(("name", "argument"), OPTIONS)
def test_options_of_another_class_are_refused(name, argument, given, tmp_path):
    """TrainingArguments, the name of a model, or options in the wrong order are refused before any work."""
    function, usual = (
        functions()[name],
        {"task": make_task(), "subset": object.__new__(Subset), "corpus": load_corpus(CORPUS)},
    )
    parameters = inspect.signature(function).parameters
    classes = {
        each: getattr(importlib.import_module(CLASSES[kind]), kind) for each, kind in options_classes(parameters).items()
    }
    usual |= {each: object.__new__(cls) for each, cls in classes.items()}
    usual = {each: value for each, value in usual.items() if each in parameters} | {argument: given}
    if "names" in parameters:
        usual["names"] = ["scratch"]
    if "args" in usual and argument != "args":
        usual["args"].output_dir = str(tmp_path)
    with pytest.raises(ArgumentsError) as raised:
        function(**usual)
    kind = options_classes(parameters)[argument]
    received = "none" if given is None else f"a {type(given).__name__}"
    assert str(raised.value) == f"{argument}: expected a {kind}; received {received}. Give {kind}(...)."


@pytest.mark.parametrize("name", SUBSETS)
def test_name_in_place_of_a_subset_is_refused(name, tmp_path):
    with pytest.raises(RetrievalError) as raised:
        call_with(SUBSETS[name], tmp_path, task=make_task(), subset="runs/sub")
    assert str(raised.value) == 'subset: expected a Subset; received "runs/sub". Give Subset.open("runs/sub").'


def test_known_functions_are_among_the_tested():
    assert {"retrieve", "select", "run_tlm", "finetune", "run_few_shot", "export_onnx", "linear_model"} <= set(TASKS)
    assert {"select", "run_tlm", "finetune", "score_models", "case_studies"} <= set(SUBSETS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Path("a/b.csv"), 'received a PosixPath. Give {}("a/b.csv").'),
        (pd.DataFrame(ROWS), "received a DataFrame. Give {}(frame)."),
        (ROWS[0], "received a dict. Give {}(Dataset.from_dict(columns))."),
        (iter(ROWS), "received a list_iterator. Give {}(Dataset.from_list(list(rows)))."),
        (ROWS, "received a list. Give {}(Dataset.from_list(rows))."),
        (DatasetDict(train=Dataset.from_list(ROWS)), "received a DatasetDict. Give {}(dataset)."),
        (None, "received none. Give {}(...)."),
    ],
)
def test_data_in_place_of_a_task_or_corpus_are_refused(data, words):
    """The message names the type and does not print the data."""
    with pytest.raises(TaskError) as raised:
        majority_class(data)
    assert str(raised.value) == f"task: expected a Task; {words.format('load_task')}"
    if not isinstance(data, (Path, pd.DataFrame)):
        words = words.replace("(dataset)", '(dataset["train"])').format("load_corpus")
        with pytest.raises(CorpusError) as raised:
            load_corpus(data)
        assert str(raised.value) == f"corpus: expected files, a Hub id, a datasets.Dataset or a pandas.DataFrame; {words}"


def test_corpus_is_loaded_from_paths(tmp_path):
    (tmp_path / "a, b.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    files = [tmp_path / "a, b.txt", tmp_path / "b.txt"]
    assert load_corpus(files[0]).fingerprint == load_corpus([str(files[0])]).fingerprint
    assert load_corpus(files).fingerprint == load_corpus([*map(str, files)]).fingerprint
    with pytest.raises(CorpusError, match=r"^No corpus '.*nix.csv': no file matches"):
        load_corpus(tmp_path / "nix.csv")


@pytest.mark.parametrize("given", ["corpus/*.parquet", CORPUS, None], ids=lambda one: type(one).__name__)
def test_pretraining_refuses_anything_but_a_corpus(given, tmp_path):
    with pytest.raises(CorpusError, match=r"^corpus: expected a Corpus; received .* Give load_corpus\("):
        call_with(functions()["run_pretraining"], tmp_path, corpus=given)
    with pytest.raises(CorpusError, match=r"received a Subset. Give subset.as_corpus\(\)\.$"):
        call_with(functions()["run_pretraining"], tmp_path, corpus=object.__new__(Subset))


@pytest.mark.parametrize(
    ("cls", "option"),
    [
        *((ModelArguments, option) for option in ("tokenizer_name", "model_name_or_path", "auxiliary_name_or_path")),
        *((CheckpointArguments, option) for option in ("tokenizer_name", "model_name_or_path")),
    ],
)
def test_object_in_place_of_a_folder_or_hub_id_is_refused(cls, option, tmp_path):
    usual = {"model_name_or_path": "a/b"}
    with pytest.raises(ArgumentsError, match=rf"^{option}: expected a folder or a Hub id; received a SimpleNamespace. Save"):
        cls(**usual | {option: SimpleNamespace()})
    assert getattr(cls(**usual | {option: tmp_path}), option) == str(tmp_path)


def test_config_object_equals_a_dict_of_its_values():
    """A config of transformers is accepted, stays unchanged, and is recorded as JSON."""
    tokenizer = train_wordpiece(["some words of a text"] * 9, 100)
    config = AutoConfig.for_model("bert", **TINY_CONFIGS["bert"], id2label={0: "x", 1: "y", 2: "z"})
    before = config.to_dict()
    names, values = {0: "a", 1: "b"}, {"model_type": "bert", **TINY_CONFIGS["bert"]}
    from_config, from_values = (
        build_config(source, tokenizer, id2label=names, max_length=16) for source in (config, values)
    )
    assert from_config.to_dict() == from_values.to_dict() and from_config.id2label == names and config.to_dict() == before
    given = ModelArguments(model_config=config).model_config
    again = build_config(json.loads(json.dumps(given)), tokenizer, id2label=names, max_length=16)
    assert again.to_dict() == from_values.to_dict()


@pytest.mark.parametrize(
    ("function", "argument"), [(predict, "data"), (partial(export_onnx, dtypes=["fp32"]), "output_dir")]
)
def test_model_object_in_place_of_its_name_is_refused(function, argument):
    for given in (SimpleNamespace(), ["runs/a", SimpleNamespace()]):
        with pytest.raises(
            ArgumentsError, match="^model_name_or_path: expected a folder or a Hub id; received a SimpleNames"
        ):
            function(given, **{argument: "a"})


@pytest.mark.parametrize("data", [CORPUS, pd.DataFrame(ROWS), ["a text"], None], ids=lambda one: type(one).__name__)
def test_data_in_place_of_a_file_to_predict_on_are_refused(data):
    kind = "none" if data is None else f"a {type(data).__name__}"
    for ask in (lambda: predict("runs/a", data), lambda: next(unlabelled(data, TaskSpec(name="a", path="b")))):
        with pytest.raises(TaskError, match=rf"^data: expected a file, or a Hub id \(owner/name\); received {kind}\."):
            ask()


@pytest.mark.parametrize("given", [None, SimpleNamespace()], ids=["none", "a SimpleNamespace"])
@pytest.mark.parametrize(
    "load",
    [
        partial(TlmModel.from_checkpoint, id2label=["a"]),
        partial(GeneratorDiscriminator.from_checkpoint, id2label=["a"]),
        partial(load_exported, id2label=["a"]),
        *(load_tokenizer, load_released, load_released_tlm),
        *(partial(convert, output_dir="runs/nix") for convert in (convert_released, convert_released_tlm, convert_legacy)),
    ],
)
def test_object_in_place_of_a_name_to_load_is_refused(load, given, request):
    with pytest.raises(HfTlmError, match=r"xpected a .*; received (none|a SimpleNamespace)\."):
        load(given)


def test_tokenizer_object_in_place_of_its_name_is_refused():
    tokenizer = train_wordpiece(["some words of a text"] * 9, 100)
    with pytest.raises(
        TokenizerError, match=r"received a BertTokenizer. Use the tokenizer itself, without load_tokenizer.$"
    ):
        load_tokenizer(tokenizer)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (None, "received none. Give a list."),
        ([None, "a"], "received none, after 0 texts. Pass texts only."),
        (["a"] * 5000 + [7], "received a int, after 5,000 texts. Pass texts only."),
        (ROWS, "received a dict, after 0 texts. Pass texts only."),
    ],
)
def test_vocabulary_is_trained_on_texts_only(texts, said):
    for train in (train_wordpiece, cached_wordpiece):
        with pytest.raises(TokenizerError) as raised:
            train(texts, 90)
        assert str(raised.value).endswith(said)
    with pytest.raises(TokenizerError, match="^--vocab_size: expected a whole number from 6 to 1,048,576; received '90'"):
        train_wordpiece(["a"], "90")


@pytest.fixture
def subset(tmp_path):
    texts = Dataset.from_list([{"text": f"the gene activates the cell {number}"} for number in range(8)])
    return retrieve(make_task(), load_corpus(texts), top_k=2, cache_dir=str(tmp_path))


@pytest.mark.parametrize("given", [None, object.__new__(Subset)], ids=["none", "a Subset"])
def test_subset_object_in_place_of_its_folder_is_refused(given, subset):
    for read in (Subset.load, Subset.open, partial(Subset.save, subset)):
        with pytest.raises(RetrievalError, match=r"^(directory|name): expected a folder.*; received (none|a Subset)\."):
            read(given)


def test_prepare_needs_a_dataset_with_texts(subset):
    usual = (object.__new__(TlmArguments), object.__new__(ModelArguments))
    for corpus in (subset, load_corpus(CORPUS), [{"text": "a"}], Dataset.from_dict({"body": ["a"]})):
        with pytest.raises(ArgumentsError, match=r"^corpus: expected a datasets.Dataset with the column text; received a "):
            prepare(make_task(), corpus, *usual)
    with pytest.raises(ArgumentsError, match=r"^args: expected a TlmArguments; received a ModelArguments"):
        prepare(make_task(), CORPUS, *reversed(usual))


@pytest.mark.parametrize(
    ("spec", "splits", "said"),
    [
        ("a", {}, r"^spec: expected a TaskSpec; received a str. Give TaskSpec\(...\)."),
        (TaskSpec(name="a", path="b"), CORPUS, r"received a Dataset. Use load_task\(dataset\), which holds out texts."),
        (TaskSpec(name="a", path="b"), {"train": ROWS}, "received a list. Create a dataset with Dataset.from_list"),
        (
            TaskSpec(name="a", path="b"),
            {"train": CORPUS.with_transform(len)},
            "train has a transform .*, which is not supported",
        ),
    ],
)
def test_task_from_datasets_needs_a_spec_and_splits(spec, splits, said):
    """Wrong arguments raise an error instead of being ignored."""
    with pytest.raises(TaskError, match=said):
        task_from_datasets(spec, splits)


PASSAGES = Dataset.from_dict({"id": ["a"], "text": ["some words"]})
INDEX = {"directory": "runs/nix", "dataset": PASSAGES, "corpus_name": "a", "fingerprint": "b"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset": ROWS}, r"dataset: .* id and text; received a list. Pass Dataset.from_list\(rows\)\.$"),
        ({"dataset": load_corpus(CORPUS)}, r"received a Corpus. Pass corpus.to_dataset\(\)\.$"),
        ({"dataset": CORPUS}, "expected the columns id and text; the columns are text, label. Rename one"),
        ({"dataset": Dataset.from_dict({"id": ["a"], "text": [7]})}, "expected texts in the column text; received int64"),
        ({"directory": None}, "^directory: expected the folder of an index; received none"),
        ({"corpus_name": None}, "^corpus_name: expected a text; received none. Pass corpus.name"),
        ({"fingerprint": 7}, "^fingerprint: expected a text; received a int. Pass corpus.fingerprint"),
        ({"analyzer": "porter"}, "^analyzer: expected a Analyzer; received a str"),
        ({"num_threads": "two"}, "num_threads: expected a whole number from 1 .*'two'"),
    ],
)
def test_index_needs_a_dataset_of_passages_with_ids(changes, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for build in (Index.build, Index.open_or_build):
        with pytest.raises(RetrievalError, match=said):
            build(**{**INDEX, **changes})
    assert not (tmp_path / "runs" / "nix").exists()
    with pytest.raises(RetrievalError, match="^directory: expected the folder of an index; received a Dataset"):
        Index.load(PASSAGES)


@pytest.mark.parametrize("given", ["runs/sub", None, PASSAGES, 7], ids=lambda one: type(one).__name__)
def test_report_needs_a_subset_and_a_number_of_examples(given, subset):
    with pytest.raises(RetrievalError, match=r"^subset: expected a Subset; received .* Give Subset.open\("):
        retrieval_report(given)
    with pytest.raises(RetrievalError, match="^num_examples: expected a whole number from 0 to .*; received 'ten'"):
        retrieval_report(subset, num_examples="ten")


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([], "received an empty list. Give "),
        (None, "received none. Give "),
        ({"f1": 0.5}, "received a dict. Give "),
        ("f1", "received a str. Give "),
        ([0.5, 0.7], "expected a mapping of names to numbers for a seed; received a float. Give "),
        ([{"validation": {"f1": 0.5}}], "expected numbers; received a dict as 'validation'. Give "),
        ([{"f1": "0.5"}], "expected numbers; received a str as 'f1'. Give "),
    ],
)
def test_aggregate_needs_scores_and_a_known_figure(scores, said):
    with pytest.raises(HfTlmError, match=f"^scores: .*{said}"):
        aggregate(scores)
    with pytest.raises(HfTlmError, match="^figure: expected one of mean, median, max; received 'best'"):
        aggregate([{"f1": np.float32(0.5)}], "best")


@pytest.mark.parametrize(
    "given", [None, 7, ["runs/a"], SimpleNamespace(output_dir="runs/a")], ids=lambda one: type(one).__name__
)
def test_object_in_place_of_the_folder_of_a_run_is_refused(given):
    hint = r" Pass run.output_dir\." if isinstance(given, SimpleNamespace) else ""
    with pytest.raises(AnalysisError, match=rf"^path: expected the folder of a run; received (none|a \w+)\.{hint}$"):
        read_run(given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": "runs/a"},
            r'^model: expected an encoder; received "runs/a". Pass the first value that load_encoder\("runs/a"\) returns',
        ),
        (
            {"model": None},
            r"^model: expected an encoder; received none. Pass the first value that load_encoder\(...\) returns",
        ),
        ({"tokenizer": "runs/a"}, "^tokenizer: expected a tokenizer of transformers; received a str"),
        ({"texts": "a text"}, r"^texts: expected a list of texts; received a str. Pass \[text\]"),
        ({"texts": iter("ab")}, r"^texts: expected a list of texts; received a str_.*iterator. Pass list\(texts\)"),
        ({"texts": None}, "^texts: expected a list of texts; received none"),
        ({"texts": CORPUS}, r"^texts: expected a list of texts; received a Dataset. Pass its column: rows\['text'\]"),
        ({"text_pairs": ["a", "b"]}, "^text_pairs: expected as many as texts, 1; received 2"),
        ({"batch_size": "8"}, "^--batch_size: expected a whole number .*'8'"),
        ({"layer": 1.5}, "^--layer: expected a whole number .*1.5"),
        ({"max_length": 0}, "^--max_length: expected a whole number .*0"),
    ],
)
def test_embed_texts_needs_an_encoder_a_tokenizer_and_texts(changes, said):
    tokenizer = train_wordpiece(["some words of a text"] * 9, 100)
    usual = {"model": torch.nn.Linear(1, 1), "tokenizer": tokenizer, "texts": ["a text"]}
    with pytest.raises(AnalysisError, match=said):
        embed_texts(**usual | changes)
