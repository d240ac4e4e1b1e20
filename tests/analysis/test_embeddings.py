"""The analysis of embeddings: which texts and pairs are drawn, figures, tables, and the recipe."""

import csv
import io
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

from hf_tlm.analysis import AnalysisError, cosine_similarities, embed_texts, load_encoder, uniformity
from hf_tlm.analysis.arguments import EmbeddingsArguments
from hf_tlm.analysis.embeddings import draw_classes, draw_cosines, draw_pairs, draw_texts
from hf_tlm.analysis.encoders import sample_corpus
from hf_tlm.tasks import TaskError, TaskSpec, task_from_datasets
from support.launching import fails
from support.toys import TINY_CONFIGS, make_task, sentences

ROOT = Path(__file__).resolve().parents[2]
WORDS = "gene drug cell acid".split()
SCORES = [5.0, 4.0, 3.9, 0.0, 4.5, 1.0, 2.0, 3.0]


def task_of_pairs(scores=SCORES, kind="regression", labels=None):
    rows = [
        {"text": f"the {WORDS[i % 4]} binds {i % 3}", "text_pair": f"a {WORDS[i // 2]} meets", "label": label}
        for i, label in enumerate(labels or scores)
    ]
    spec = TaskSpec(name="toy", path="memory", kind=kind, text_columns=("text", "text_pair"))
    return task_from_datasets(spec, dict.fromkeys(("train", "validation"), Dataset.from_list(rows)))


@pytest.fixture(scope="module")
def models(tokenizer, tmp_path_factory):
    """`name=folder` of two tiny classifiers."""
    named_folders = []
    for name in ("bert", "electra"):
        folder = tmp_path_factory.mktemp("models") / name
        set_seed(0)
        config = AutoConfig.for_model(name, **{**TINY_CONFIGS[name], "vocab_size": len(tokenizer)})
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        named_folders.append(f"{name}={folder}")
    return named_folders


def read_csv(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_texts_of_a_classification_task_are_drawn():
    task = make_task()
    drawn = draw_texts(task, EmbeddingsArguments())
    assert sorted(drawn.texts) == sorted(task.test["text"][:]) and drawn.text_pairs is None
    labels = dict(zip(task.test["text"], task.test["label"], strict=True))
    assert [labels[text] for text in drawn.texts] == drawn.labels.tolist() and drawn.label_names == task.label_names
    assert (
        len(drawn.similar) == 3 * 8 * 7 // 2
        and (drawn.labels[drawn.similar[:, 0]] == drawn.labels[drawn.similar[:, 1]]).all()
    )
    assert len(drawn.random) == 24 * 23 // 2
    few = draw_texts(task, EmbeddingsArguments(max_pairs=11, embedding_split="train"), max_texts=9, seed=1)
    assert len(few.texts) == 9 and set(few.texts) <= set(task.train["text"]) and len(few.random) == 11
    assert (
        draw_texts(task, EmbeddingsArguments(), max_texts=9, seed=2).texts
        != draw_texts(task, EmbeddingsArguments(), max_texts=9).texts
    )


def similar_texts(drawn):
    return {tuple(drawn.texts[at] for at in pair) for pair in drawn.similar}


def test_similar_pairs_are_those_with_a_high_score():
    task = task_of_pairs()
    rows = list(zip(task.validation["text"], task.validation["text_pair"], SCORES, strict=True))
    for least, options in (
        (4.0, EmbeddingsArguments()),
        (5.0, EmbeddingsArguments(similar_from=5)),
        (0.0, EmbeddingsArguments(similar_from=0)),
    ):
        drawn = draw_texts(task, options)
        assert similar_texts(drawn) == {(first, second) for first, second, score in rows if score >= least}
        assert drawn.similar_are == f"with a score of {least:g} or more" and drawn.labels is None
        assert len(set(drawn.texts)) == len(drawn.texts) and set(drawn.texts) == {t for row in rows for t in row[:2]}
    few = draw_texts(task, EmbeddingsArguments(), max_texts=7)
    assert len(few.similar) == 3 and len(few.texts) <= 6


def test_similar_pairs_are_those_of_a_class():
    task = task_of_pairs(kind="classification", labels=["yes", "no", "no", "yes"])
    drawn = draw_texts(task, EmbeddingsArguments(similar_label="yes"))
    assert similar_texts(drawn) == {(task.train["text"][at], task.train["text_pair"][at]) for at in (0, 3)}
    assert drawn.similar_are == "of the class yes" and drawn.labels is None
    joint = draw_texts(task, EmbeddingsArguments())
    assert sorted(joint.text_pairs) == sorted(task.train["text_pair"][:]) and joint.similar_are == "of one class"


def test_random_pairs_are_drawn_from_a_corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    Dataset.from_list([{"text": f"passage {i}" if i % 5 else None} for i in range(50)]).to_json(path)
    drawn = draw_texts(task_of_pairs(), EmbeddingsArguments(max_pairs=30), max_texts=20, random_from=str(path))
    assert len(drawn.random_texts) == len(set(drawn.random_texts)) == 20 and len(drawn.random) == 30
    assert 10 < drawn.random.max() < 20 and drawn.random_are == "of corpus.jsonl"
    everything = [f"passage {i}" for i in range(50) if i % 5]
    assert sample_corpus(str(path), 100) == everything
    assert (some := sample_corpus(str(path), 5)) == sorted(some, key=everything.index)
    assert sample_corpus(str(path), 5, seed=1) != sample_corpus(str(path), 5, seed=2)
    path.write_text('{"text": "alone"}\n')
    with pytest.raises(AnalysisError, match="At least 2 texts that are not blank are needed; .* has 1"):
        draw_texts(task_of_pairs(), EmbeddingsArguments(), random_from=str(path))


def task_without_test_split():
    task = make_task()
    del task.splits["test"]
    return task


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (make_task, {"embedding_split": "dev"}, "embedding_split: expected one of train, validation, test; received 'dev'"),
        (task_without_test_split, {"embedding_split": "test"}, "no test split with labels; choose from train, validation"),
        (make_task, {"similar_label": "up"}, "toy has one text per row"),
        (
            lambda: task_of_pairs(labels=["a", "b"], kind="classification"),
            {"similar_label": "c"},
            "a class of toy: a, b; received 'c'",
        ),
        (lambda: task_of_pairs(labels=["a", "b"], kind="classification"), {}, "At least 3 texts are needed; 2 were drawn"),
        (lambda: task_of_pairs(labels=["a", "b", "c"], kind="classification"), {}, r"form a similar pair \(of one class\)"),
        (make_task, {"similar_from": 4.0}, "the texts of toy have classes. Use --similar_label"),
        (task_of_pairs, {"similar_label": "5"}, "pairs of toy have scores. Use --similar_from"),
        (task_of_pairs, {"similar_from": 6.0}, r"form a similar pair \(with a score of 6 or more\)"),
    ],
)
def test_split_or_class_that_does_not_exist_is_refused(make, options, message):
    with pytest.raises(AnalysisError, match=message):
        draw_texts(make(), EmbeddingsArguments(**options))


def test_single_class_and_other_kinds_of_tasks_are_refused():
    task = make_task()
    task.splits["test"] = task.test.filter(lambda row: row["label"] == 1)
    with pytest.raises(AnalysisError, match="Two classes are needed; the 8 test texts of toy are all none"):
        draw_texts(task, EmbeddingsArguments())
    tokens = Dataset.from_list([{"tokens": ["a"], "tags": ["x"]}, {"tokens": ["b"], "tags": ["y"]}])
    tagging = TaskSpec(name="toy", path="memory", kind="tagging")
    with pytest.raises(TaskError, match="supports classification and regression tasks"):
        draw_texts(task_from_datasets(tagging, dict.fromkeys(("train", "validation"), tokens)), EmbeddingsArguments())
    for bad in ({"max_pairs": 0}, {"perplexity": 0.0}):
        with pytest.raises(AnalysisError, match="expected"):
            EmbeddingsArguments(**bad)


def test_figure_of_classes(tmp_path):
    """Classes beyond the palette are grey; names may be any text and cause no warning."""
    labels = np.repeat(np.arange(12), np.arange(12, 0, -1))
    names = ["$x_{$", "<b>", "一二", *(f"c{i}" for i in range(9))]
    points = {
        name: np.random.default_rng(i).normal(size=(len(labels), 2)) for i, name in enumerate(("m $1$", "n", "o", "p"))
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Older versions of matplotlib use names that pyparsing has deprecated, already when they are imported.
        warnings.simplefilter("default", DeprecationWarning)
        files = draw_classes(points, labels, names, tmp_path)
    svg = files[1].read_text()
    assert "6 others" in svg and "$x_{$" in svg and ">c2<" in svg and ">c3<" not in svg and "m $1$" in svg
    rows = read_csv(files[2])
    assert len(rows) == 4 * len(labels) and rows[0] | {"x": "", "y": ""} == {
        "model": "m $1$", "text": "0", "class": "$x_{$", "x": "", "y": "",
    }  # fmt: skip
    assert [float(rows[-1][key]) for key in "xy"] == points["p"][-1].tolist()
    assert "others" not in draw_classes({"m": points["n"][:24]}, labels[:24] * 2, names, tmp_path)[1].read_text()


def test_figure_of_pairs(tmp_path):
    pairs = np.array([[0, 1], [2, 2], [3, 0], *([i, i + 1] for i in range(4, 14))])
    files = draw_pairs({"m": np.random.default_rng(0).normal(size=(15, 2))}, pairs, tmp_path)
    rows = read_csv(files[2])
    assert len(rows) == 13 and sum(row["marked"] == "True" for row in rows) == 6 and rows[1]["marked"] == "False"


def test_figure_of_cosines(tmp_path):
    constructed = {
        "random": np.concatenate([np.full(30, -0.5), np.full(10, 0.31)]),
        "similar": np.array([1.0, 1.0, 0.99, 0.2]),
    }
    files = draw_cosines({"m": constructed, "squeezed": {"random": np.ones(5), "similar": np.ones(2)}}, "[CLS]", tmp_path)
    rows = read_csv(files[2])
    for (model, kind), cosines in {
        ("m", "random"): constructed["random"],
        ("m", "similar"): constructed["similar"],
        ("squeezed", "random"): np.ones(5),
    }.items():
        bins = [row for row in rows if (row["model"], row["pairs"]) == (model, kind)]
        assert len(bins) == 50 and float(bins[0]["cosine_from"]) == -0.5 and float(bins[-1]["cosine_to"]) == 1
        assert sum(float(row["share_percent"]) for row in bins) == pytest.approx(100)
        for row in bins:
            last = row is bins[-1]
            inside = (cosines >= float(row["cosine_from"])) & ((cosines < float(row["cosine_to"])) | last)
            assert float(row["share_percent"]) == pytest.approx(100 * inside.mean())
    assert "mean: random -0.30, similar 0.80" in files[1].read_text().replace("\u2212", "-")
    assert "cosine similarity of [CLS]" in files[1].read_text()


def run_recipe(monkeypatch, capsys, *arguments):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["analyze.py", "--what", "embeddings", *map(str, arguments)])
    runpy.run_path("recipes/analyze.py", run_name="__main__")
    return capsys.readouterr().out


@pytest.fixture
def folder(task, tmp_path):
    (tmp_path / "toy").mkdir()
    for split, rows in task.splits.items():
        rows.cast_column("label", ClassLabel(names=list(task.label_names))).to_parquet(tmp_path / "toy" / f"{split}.parquet")
    return tmp_path / "toy"


def test_recipe_writes_figures_and_tables(models, folder, task, monkeypatch, capsys, tmp_path):
    out = tmp_path / "out"
    text = run_recipe(monkeypatch, capsys, "--task", folder, "--models", *models, "--max_length", 32, "--output_dir", out)
    names = [f"embeddings_{kind}.{suffix}" for kind in ("tsne", "cosine") for suffix in ("png", "svg", "csv")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "embeddings.md", "embeddings.csv"])
    assert all(f"  {path}\n" in text for path in out.iterdir()) and "Random pairs: 276 of toy's test split." in text
    assert (out / "embeddings.md").read_text() in text
    rows = read_csv(out / "embeddings.csv")
    assert [row["model"] for row in rows] == ["bert", "electra"]
    vectors = embed_texts(*load_encoder(models[1].split("=")[1], max_length=32), task.test["text"][:])
    every = cosine_similarities(vectors, np.stack(np.triu_indices(24, 1), axis=1))
    assert float(rows[1]["mean_cosine_random"]) == pytest.approx(every.mean(), abs=1e-4)
    assert float(rows[1]["uniformity"]) == pytest.approx(uniformity(every), abs=1e-4)
    assert f"| electra | {every.mean():.3f} |" in text and "silhouette" in text
    assert {row["class"] for row in read_csv(out / "embeddings_tsne.csv")} == {"up", "down", "none"}


def test_recipe_on_pairs_with_the_model_of_a_run(models, monkeypatch, capsys, tmp_path):
    for split, rows in task_of_pairs().splits.items():
        rows.to_parquet(tmp_path / f"{split}.parquet")
    (tmp_path / "corpus.txt").write_text("".join(f"{row['text']}\n" for row in sentences(12, seed=8)))
    options = ["--task", tmp_path, "--task_kind", "regression", "--text_column", "text", "--text_pair_column", "text_pair"]
    options += ["--run", models[0], "--texts", tmp_path / "corpus.txt", "--max_length", 32]
    out = tmp_path / "out"
    text = run_recipe(monkeypatch, capsys, *options, "--pooling", "mean", "--layer", 1, "--output_dir", out)
    assert "The mean over tokens, layer 1. Random pairs: 66 of" in text and "Similar pairs: 3 with a score of 4" in text
    assert "silhouette" not in text and len(read_csv(out / "embeddings_tsne.csv")) == 3
    fails("recipes/analyze.py", "--what", "embeddings", *options, "--layer", 9, message="layer must be from 0 to 2")
    fails("recipes/analyze.py", "--what", "embeddings", *options[:-6], message="needs --models, or --run")
