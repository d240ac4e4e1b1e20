"""PMI and frequencies of words, against a word-by-word transcription of the definitions."""

import csv
import math
import re
import runpy
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset

from hf_tlm.analysis import AnalysisError, InfluentialWord, label_pmi, to_markdown, word_frequencies
from hf_tlm.analysis import words as module
from hf_tlm.analysis.words import _total_share_sentence, draw_frequencies
from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.tasks import TaskSpec, task_from_datasets
from support.toys import sentences

WORD = re.compile(r"\w\w+")


def pmi_by_definition(task, min_count):
    """Return label -> word -> (PMI, count)."""
    pairs = []
    for row in task.train:
        for name in ("text", "text_pair"):
            pairs += [(word, row["label"]) for word in WORD.findall(row.get(name, "").lower())]
    words, labels, both = Counter(w for w, _ in pairs), Counter(y for _, y in pairs), Counter(pairs)
    scores = {name: {} for name in task.label_names}
    for (word, label), count in both.items():
        if words[word] >= min_count:
            pmi = math.log((count / len(pairs)) / (words[word] / len(pairs) * labels[label] / len(pairs)))
            scores[task.label_names[label]][word] = (pmi, words[word])
    return scores


def task_with_pairs(task):
    rows = task.train.map(lambda row: {"text_pair": f"{row['text'][::-1]} Ünlike GENE x"})
    return replace(task, splits={**task.splits, "train": rows})


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("min_count", [1, 4])
def test_pmi_follows_the_definition(task, monkeypatch, pairs, min_count):
    monkeypatch.setattr(module, "READ_ROWS", 7)
    task = task_with_pairs(task) if pairs else task
    expected = pmi_by_definition(task, min_count)
    influential = label_pmi(task, top=1000, min_count=min_count)
    assert [word.label for word in influential] == [name for name in task.label_names for _ in expected[name]]
    for label, words in expected.items():
        ours = [word for word in influential if word.label == label]
        assert {word.word: word.count for word in ours} == {word: count for word, (_, count) in words.items()}
        assert [word.pmi for word in ours] == pytest.approx([words[word.word][0] for word in ours], abs=1e-12)
        order = sorted(words, key=lambda word: (-round(words[word][0], 9), -words[word][1], word))
        assert [word.word for word in ours] == order
    assert len(label_pmi(task, top=2, min_count=min_count)) == 2 * len(expected)


def test_words_that_decide_a_label_come_first(task):
    best = {word.label: word.word for word in label_pmi(task, top=1, min_count=3)}
    assert best["up"] in ("activates", "raises", "induces") and best["down"] in ("inhibits", "blocks", "lowers")


def test_class_without_training_texts_has_no_words(task, recwarn):
    train = task.train.filter(lambda row: row["label"] != 1)
    words = label_pmi(replace(task, splits={**task.splits, "train": train}), 3, min_count=1)
    assert {word.label for word in words} == {task.id2label[0], task.id2label[2]}
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


def test_frequencies_follow_the_definition(task, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_ROWS", 7)
    subset = retrieve(task, corpus, top_k=3, cache_dir=str(tmp_path / "cache"))
    other = Dataset.from_list([{"text": row["text"].upper() + " gene"} for row in sentences(20, seed=3)])
    words = ["gene", "inhibits", "absent", "the"]
    half = Subset(subset.dataset.select([0]), subset.manifest)
    frequencies = word_frequencies(words, {"BM25": subset, "other": other, "half": half})
    assert list(frequencies) == ["BM25", "other", "half"]
    for name, texts in (("BM25", subset.dataset["text"]), ("other", other["text"])):
        counts = Counter(WORD.findall(" ".join(texts).lower()))
        assert frequencies[name] == pytest.approx([counts[word] / counts.total() for word in words])
    assert frequencies["BM25"][0] != frequencies["other"][0] > 0 and frequencies["other"][2] == 0


def test_pmi_of_a_hand_computed_example():
    """13 word tokens, 8 of class a and 5 of b: cat 3 times in a and once in b, sea 5 times in a, dog 4 times in b."""
    rows = [("Cat cat sea sea", "a"), ("cat, x sea sea sea!", "a"), ("dog dog", "b"), ("dog cat dog", "b")]
    rows = Dataset.from_list([{"text": text, "label": label} for text, label in rows])
    task = task_from_datasets(TaskSpec(name="pets", path="memory"), {"train": rows, "validation": rows})
    scores = {(word.word, word.label): (word.pmi, word.count) for word in label_pmi(task, min_count=1)}
    assert scores == {
        ("sea", "a"): (pytest.approx(math.log((5 / 13) / (5 / 13 * 8 / 13))), 5),
        ("cat", "a"): (pytest.approx(math.log((3 / 13) / (4 / 13 * 8 / 13))), 4),
        ("dog", "b"): (pytest.approx(math.log((4 / 13) / (4 / 13 * 5 / 13))), 4),
        ("cat", "b"): (pytest.approx(math.log((1 / 13) / (4 / 13 * 5 / 13))), 4),
    }
    assert word_frequencies(["cat", "eel"], {"pets": rows}) == {"pets": [4 / 13, 0.0]}


@pytest.mark.parametrize(
    "good,bad,word,word_of_all",
    [("这家店的菜好吃", "这家店的菜难吃", "难吃", "家店"), ("यह किताब अच्छी", "यह किताब महँगी", "महँगी", "किताब")],
)
def test_words_of_other_scripts_are_counted(good, bad, word, word_of_all):
    rows = Dataset.from_list([{"text": f"{text} {i}", "label": text} for i in range(4) for text in (good, bad)])
    task = task_from_datasets(TaskSpec(name="shops", path="memory"), {"train": rows, "validation": rows})
    counts = {
        (influential.word, influential.label): influential.count for influential in label_pmi(task, top=20, min_count=1)
    }
    assert counts[word, bad] == 4 and (word, good) not in counts and counts[word_of_all, good] == 8
    assert word_frequencies([word], {"rows": rows})["rows"][0] > 0


def test_figure_has_the_first_words_of_every_label(tmp_path):
    """Words that a subset lacks have a position of their own; two subsets get a ratio."""
    words = [InfluentialWord(f"w{label}{at}", f"label $_{{{label}", 2.0 - at, 20) for label in range(4) for at in range(9)]
    two = {"ISS": [0.0, *[0.02] * 35], "BM25": [0.01] * 35 + [0.0]}
    png, svg, table = draw_frequencies(words, two, tmp_path)
    shown = svg.read_text(encoding="utf-8")
    assert png.read_bytes().startswith(b"\x89PNG") and "×: ISS / BM25" in shown and ">none<" in shown
    assert ">1<" in shown and ">0.5<" not in shown
    assert all((f">w{label}{at}<" in shown) == (at < 7) for label in range(4) for at in range(9))
    assert shown.count("×2.00") == 27 and shown.count("×0.00") == 1 and "label $_{3" in shown
    with open(table, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["ratio"] for row in rows] == ["0.0", *["2.0"] * 34, ""]
    assert rows[1] == {
        "word": "w01", "label": "label $_{0", "pmi": "1.0", "count": "20", "ISS": "0.02", "BM25": "0.01", "ratio": "2.0",
    }  # fmt: skip
    _, svg, table = draw_frequencies(words[:3], {"ISS": [0.1, 0.2, 0.3]}, tmp_path)
    assert "ratio" not in table.read_text() and "×:" not in svg.read_text() and ">none<" not in svg.read_text()


def test_subset_with_the_name_of_another_column_is_refused(tmp_path):
    words = [InfluentialWord("cell", "biology", 1.0, 20)]
    with pytest.raises(AnalysisError, match="called count, like a column of words.csv"):
        draw_frequencies(words, {"count": [0.1]}, tmp_path)


def test_recipe_writes_table_and_figure(task, corpus, tmp_path, monkeypatch, capsys):
    retrieve(task, corpus, top_k=3, cache_dir=str(tmp_path / "cache")).save(tmp_path / "bm25")
    (tmp_path / "toy").mkdir()
    for split, rows in task.splits.items():
        rows.cast_column("label", ClassLabel(names=list(task.label_names))).to_parquet(tmp_path / "toy" / f"{split}.parquet")
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    command = ["analyze.py", "--what", "words", "--task", str(tmp_path / "toy"), "--top_words", "2", "--min_count", "1"]
    for name, more in (("with", ["--subsets", f"BM25={tmp_path / 'bm25'}"]), ("without", [])):
        monkeypatch.setattr(sys, "argv", [*command, *more, "--output_dir", str(tmp_path / name)])
        runpy.run_path("recipes/analyze.py", run_name="__main__")
        text, files = capsys.readouterr().out, sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == ["words.csv", "words.md", *(["words.png", "words.svg"] if more else [])]
        assert all(f"  {tmp_path / name / file}\n" in text for file in files)
        assert (tmp_path / name / "words.csv").read_text().count("\n") == 7
        assert ("these 6 together make up" in text) == bool(more)


def test_words_of_two_labels_count_once():
    words = [InfluentialWord(word, label, 1.0, 20) for word, label in (("a1", "x"), ("b1", "x"), ("a1", "y"))]
    assert "these 2 together make up 30.000% (ISS), 10.000% (BM25)" in _total_share_sentence(
        words, {"ISS": [0.1, 0.2, 0.1], "BM25": [0.1, 0.0, 0.1]}
    )


def test_table_in_markdown():
    words = [InfluentialWord("policy", "World", 1.18749, 20), InfluentialWord("medals", "Sports", 1.4, 3)]
    assert to_markdown(words, {"ISS": [0.000493, 0.000139], "TLM": [0.000401, 0.0]}) == (
        "| word | label | PMI | ISS /% | TLM /% |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| policy | World | 1.187 | 0.0493 | 0.0401 |\n"
        "| medals | Sports | 1.400 | 0.0139 | 0.0000 |\n"
    )


def test_invalid_numbers_or_words_are_refused(task):
    with pytest.raises(AnalysisError, match="top must be at least 1; received 0"):
        label_pmi(task, top=0)
    with pytest.raises(AnalysisError, match="min_count must be at least 1; received 0"):
        label_pmi(task, min_count=0)
    with pytest.raises(AnalysisError, match="No word occurs at least 100000 times"):
        label_pmi(task, min_count=100_000)
    for word in ("Gene", "two words", "x"):
        with pytest.raises(AnalysisError, match=f"received '{word}'"):
            word_frequencies([word], {})
    with pytest.raises(AnalysisError, match="The texts of 'empty' contain no words"):
        word_frequencies(["gene"], {"empty": Dataset.from_dict({"text": ["", "."]})})
