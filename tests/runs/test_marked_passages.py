"""Texts of a relation task created from passages: their sentences, with phrases marked as in the task."""

import itertools
import json
import random
import re

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.errors import ArgumentsError
from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.runs.teachers.answers import most_certain
from hf_tlm.runs.teachers.ask import ask_teacher, check_passage_options
from hf_tlm.runs.teachers.marks import MarkedPhrases, marks_without_passages, read_marks
from hf_tlm.runs.teachers.models import _fit_linear_model
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.teacher import described, doubts
from support.toys import FAST, TINY_CONFIGS
from support.training_runs import QUIET

MARKS = ["<<", ">>", "[[", "]]"]
DRUGS, GENES = ["aspirin", "valproic acid", "zinc", "acid"], ["cox 2", "p53", "ras"]
VERBS = {"inhibits": "down", "activates": "up", "does not touch": "none"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def relations(count, seed):
    """Return texts that mark a drug and a gene, labelled with the relation between them."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        verb = draw.choice(list(VERBS))
        text = f"In trial {number} the << {draw.choice(DRUGS)} >> {verb} [[ {draw.choice(GENES)} ]] of it."
        rows.append({"text": text, "label": VERBS[verb]})
    return rows


def relation_task():
    splits = {name: Dataset.from_list(relations(size, size)) for name, size in (("train", 60), ("validation", 24))}
    return task_from_datasets(TaskSpec(name="relations", path="memory", metric="macro_f1"), splits)


def passages(count=40):
    draw = random.Random(5)
    found = []
    for number in range(count):
        first, second = draw.choice(DRUGS).title(), draw.choice(GENES)
        verb = draw.choice(list(VERBS))
        found.append(
            f"We see in {number} cells that {first} {verb} {second} there! It is so. Nothing in this one, with its "
            f"{draw.choice(DRUGS)}, is of any use. No {second} without {first}, as {number} of them say"
        )
    return found


def test_marks_that_passages_lack_are_found():
    texts = [f"<< aspirin >> inhibits [[ cox {i} ]] -- it seems" for i in range(10)]
    assert marks_without_passages(texts, ["a passage -- without marks"] * 200) == ["<<", ">>", "[[", "]]"]
    assert marks_without_passages(texts, ["<< so >> [[ these ]] -- have"] * 5) == []
    assert marks_without_passages(["plain text, this [1]."] * 3, ["other [1]"]) == []
    tagged = ["the <e1>tumor</e1> and [E2] the cell [/E2] bind @GENE$"] * 3
    assert marks_without_passages(tagged, ["other [E2]"] * 9) == ["</e1>", "<e1>", "@GENE$", "[/E2]"]


def test_sentences_are_marked_like_the_task_texts():
    texts = [
        "The << aspirin >> in it inhibits [[ cox 2 ]] .",
        "So << it >> is, that [[ ras ]] is it .",
        "It is [[ zinc ]] , << ras >>.",
    ]
    phrases = MarkedPhrases(texts, read_marks(MARKS))
    # "it" is marked in one of the three sentences that contain it, so it is ignored.
    assert phrases.kinds == {("aspirin",): {0}, ("cox", "2"): {1}, ("ras",): {0, 1}, ("zinc",): {1}}
    made = phrases.texts_of(["Long before that. Aspirin acts on Cox 2 well. Here ASPIRIN is it", "It is zinc and so on."])
    assert made == ["<< Aspirin >> acts on [[ Cox 2 ]] well."]
    assert set(phrases.texts_of(["Now ras is in aspirin."])) == {"Now [[ ras ]] is in << aspirin >>."}
    # A phrase is not in relation to itself, and sentences outside the lengths of the task's texts are skipped.
    assert phrases.texts_of(["With ras and Ras here."]) == []
    assert phrases.texts_of(["Aspirin, ras", "aspirin " + "and much else " * 9 + "with ras"]) == []


def plain_search(texts, passages_):
    """Return all (sentence, first phrase, second phrase) in passages by plain search, in lower case."""

    def words(text):
        return " ".join(re.findall(r"\w+|[^\w\s]", text.lower()))

    unmarked = {text: words(re.sub(r"<<|>>|\[\[|\]\]", " ", text)) for text in texts}
    marked = {(0, words(phrase), unmarked[text]) for text in texts for phrase in re.findall("<<(.*?)>>", text)}
    marked |= {(1, words(phrase), unmarked[text]) for text in texts for phrase in re.findall(r"\[\[(.*?)\]\]", text)}

    def has(sentence, phrase):
        return f" {phrase} " in f" {sentence} "

    def good(phrase):
        containing = {sentence for sentence in unmarked.values() if has(sentence, phrase)}
        return 2 * len({sentence for _, other, sentence in marked if other == phrase}) >= len(containing)

    kinds = [{phrase for of, phrase, _ in marked if of == kind and good(phrase)} for kind in (0, 1)]
    lengths = [len(re.sub(r"<<|>>|\[\[|\]\]", "", text)) for text in texts]
    low, high = np.quantile(lengths, [0.02, 0.98])
    found = set()
    for passage in passages_:
        for sentence in re.split(r"(?<=[.!?])\s+(?![a-z])", passage):
            if low <= len(sentence) <= high:
                pairs = itertools.product(*([p for p in kind if has(words(sentence), p)] for kind in kinds))
                found |= {(words(sentence), first, second) for first, second in pairs if first != second}
    return found


def test_found_sentences_equal_those_of_a_plain_search():
    """In texts whose phrases do not overlap."""
    texts = [row["text"].replace("acid", "salt") for row in relations(80, 3)]
    texts_to_mark = [passage.replace("Acid", "Salt").replace("acid", "salt") for passage in passages(300)]
    texts_to_mark = [
        passage.replace("Valproic Salt", "Valproate").replace("valproic salt", "valproate") for passage in texts_to_mark
    ]
    made = MarkedPhrases(texts, read_marks(MARKS)).texts_of(texts_to_mark)
    possible = plain_search(texts, texts_to_mark)
    found = set()
    for text in made:
        (first,), (second,) = re.findall("<< (.*?) >>", text), re.findall(r"\[\[ (.*?) \]\]", text)
        sentence = " ".join(re.findall(r"\w+|[^\w\s]", re.sub(r"<< | >>|\[\[ | \]\]", "", text).lower()))
        found.add((sentence, first.lower(), second.lower()))
    assert found <= possible and len(made) == len(found) > 100
    assert {sentence for sentence, *_ in found} == {sentence for sentence, *_ in possible}


def test_two_markings_per_sentence_regardless_of_other_passages():
    texts = [f"<< {name} >> of [[ {other} ]]" for name, other in itertools.permutations(["ab", "cd", "ef", "gh"], 2)]
    texts.append("<< xx >> and of and of and of and of and of [[ yy ]]")
    phrases = MarkedPhrases(texts, read_marks(MARKS))
    crowd = ["ab cd ef gh, of all.", "gh, ef or ab."]
    made = phrases.texts_of(crowd)
    assert len(made) == 4 and made == [text for one in crowd for text in phrases.texts_of([one])]
    assert sorted(phrases.texts_of([*reversed(crowd), *crowd])) == sorted(made)


def test_longest_phrase_is_marked_and_tags_need_no_spaces():
    texts = ["the <e1>valproic acid</e1> hits <e2>ras</e2> now", "an <e1>acid</e1> hits <e2>p53</e2> now"]
    phrases = MarkedPhrases(texts, read_marks(["<e1>", "</e1>", "<e2>", "</e2>"]))
    assert phrases.texts_of(["So valproic acid hits ras"]) == ["So <e1>valproic acid</e1> hits <e2>ras</e2>"]
    one = MarkedPhrases(texts, read_marks(["<e1>", "</e1>"]))
    assert one.texts_of(["And this acid, so it hits ras now"]) == ["And this <e1>acid</e1>, so it hits ras now"]


@pytest.mark.parametrize(
    ("marks", "text", "sentence", "expected"),
    [
        ("< > << >>", "the <zinc> hits <<ras>> now", "So zinc hits ras now", "So <zinc> hits <<ras>> now"),
        ("<< >> < >", "the <zinc> hits <<ras>> now", "So zinc hits ras now", "So <zinc> hits <<ras>> now"),
        ("$ $ # #", "the $ zinc $ hits # ras # now", "So far zinc hits ras now", "So far $ zinc $ hits # ras # now"),
        ("(* *) ^ |", "the (*zinc*) hits ^ras| now", "So zinc hits ras now", "So (*zinc*) hits ^ras| now"),
        ("< > [ ]", "<阿司匹林>抑制[环氧酶]的活性", "阿司匹林抑制环氧酶活性", "<阿司匹林>抑制[环氧酶]活性"),
        ("< > [ ]", "<아스피린>은 [효소]를 억제한다", "아스피린은 효소를 억제해", "<아스피린>은 [효소]를 억제해"),
    ],
)
def test_marks_of_all_forms_and_scripts(marks, text, sentence, expected):
    """Marks that contain others, equal marks at both ends, regex characters, and words without spaces between them."""
    phrases = MarkedPhrases([text], read_marks(marks.split()))
    phrases.min_length = 0
    assert phrases.texts_of([sentence]) == [expected] and len(phrases.kinds) == 2


def test_phrases_nested_in_another_are_found():
    phrases = MarkedPhrases(["the <<big [[ras]]>> is now", "the <<zinc>> hits [[p53]] now"], read_marks(MARKS))
    assert phrases.kinds == {("big", "ras"): {0}, ("ras",): {1}, ("zinc",): {0}, ("p53",): {1}}


@pytest.mark.parametrize("space", [" ", "  ", "\n", "\r\n"])
def test_abbreviation_does_not_end_a_sentence(space):
    phrases = MarkedPhrases(["<< zinc >> in it", "<< zinc >> in it, as all of these say"], read_marks(MARKS[:2]))
    assert phrases.texts_of([f"See zinc vs.{space}ras there. It is."]) == [f"See << zinc >> vs.{space}ras there."]


@pytest.mark.parametrize("words", [["<<"], ["<<", ">>", "[["], ["<<", ">>", ">>", "<<"], ["$", "$", "$", "#"], ["<<", " "]])
def test_marks_that_are_no_pairs_are_refused(words):
    with pytest.raises(ArgumentsError, match="teacher_marks: expected pairs of a mark before a phrase and a mark after it"):
        read_marks(words)


def ask_passages(task, texts, marks=MARKS, count=12, teacher="linear", **options):
    args = TlmArguments(
        output_dir="unused", **QUIET, teacher=teacher, teacher_passages=count, teacher_marks=marks, **options
    )
    return ask_teacher(task, Dataset.from_dict({"text": texts}), args)


def test_teacher_is_asked_about_marked_sentences():
    task, texts = relation_task(), passages()
    made = ask_passages(task, texts)
    sentences = MarkedPhrases(task.train["text"][:], read_marks(MARKS)).texts_of(texts)
    model = _fit_linear_model(
        made.report["n_grams"], made.report["C"], task.train["text"][:], np.array(task.train["label"]), 3
    )
    probabilities = model(sentences)
    shares = np.bincount(task.train["label"][:]) / len(task.train)
    rows = most_certain(probabilities, shares, 12)
    assert made.rows.tolist() == rows.tolist() and made.marked == [sentences[row] for row in rows]
    np.testing.assert_allclose(made.passages, probabilities[rows], atol=1e-5)
    assert made.texts(Dataset.from_dict({"text": texts}))["text"][:] == made.marked
    assert made.report["marks"] == MARKS and made.report["marked_sentences"] == len(sentences) > 12
    assert made.report["marks_without_passages"] == [] and "12 marked sentences of passages: " in described(made.report)
    assert doubts({**made.report, "subset_by_class": {}}) == []
    first = MarkedPhrases(task.train["text"][:], read_marks(MARKS)).texts_of(texts[:15])
    assert set(ask_passages(task, texts, teacher_candidates=15).marked) <= set(first)
    without = ask_passages(task, texts, None)
    assert without.marked is None and "--teacher_marks marks sentences of passages" in " ".join(doubts(without.report))


def test_marks_that_cannot_be_used_are_refused(tmp_path):
    task, texts = relation_task(), passages()
    with pytest.raises(ArgumentsError, match="no training text has a phrase between {{ and }}"):
        ask_passages(task, texts, ["<<", ">>", "{{", "}}"])
    with pytest.raises(
        ArgumentsError, match="no sentence of the 1 passages contains a phrase of every kind that the task's texts mark"
    ):
        ask_passages(task, ["Nothing of that kind is here, is it."])
    with pytest.raises(ArgumentsError, match="teacher_marks uses sentences as long as the task's texts instead"):
        ask_passages(task, texts, teacher_passage_length="task")
    with pytest.raises(ArgumentsError, match="expected pairs of a mark before a phrase and a mark after it"):
        ask_passages(task, texts, ["<<"])
    answers = tmp_path / "answers.csv"
    answers.write_text("text,down,none,up\na,1,0,0\n")
    with pytest.raises(
        ArgumentsError, match="teacher_marks asks about marked sentences, but a file has answers for unchanged"
    ):
        ask_passages(task, texts, teacher=str(answers))
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, teacher="linear", teacher_marks=MARKS, teacher_output="x")
    with pytest.raises(ArgumentsError, match="teacher_output saves answers for passages"):
        check_passage_options(task, True, args)
    for options in ({}, {"teacher": "linear", "teacher_passages": 0}):
        with pytest.raises(ArgumentsError, match="teacher_marks .* has no effect with"):
            TlmArguments(output_dir=str(tmp_path), **QUIET, teacher_marks=MARKS, **options)


@pytest.mark.parametrize(("marks", "message"), [(["{{", "}}"], "no training text has"), (MARKS, "no sentence of the")])
def test_self_taught_run_refuses_marks_before_its_first_round(tmp_path, corpus, marks, message):
    task = relation_task()
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, teacher="self", teacher_marks=marks)
    (tmp_path / "model.json").write_text(json.dumps({"model_type": "bert", **tiny()}))
    with pytest.raises(ArgumentsError, match=f"teacher_marks: {message}"):
        run_tlm(task, retrieve(task, corpus, top_k=4), args, ModelArguments(model_config=str(tmp_path / "model.json")))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_marked_sentences_are_recorded_in_results_and_card(tmp_path, corpus):
    """Record, card and examples show that these are sentences, and how they are marked."""
    task = relation_task()
    subset = retrieve(task, corpus, top_k=4)
    rows = subset.dataset.remove_columns("text").add_column("text", passages(len(subset)))
    subset = Subset(rows, subset.manifest)
    (tmp_path / "model.json").write_text(json.dumps({"model_type": "bert", **tiny()}))
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, teacher="linear", teacher_passages=20, teacher_marks=MARKS)
    run = run_tlm(task, subset, args, ModelArguments(model_config=str(tmp_path / "model.json"), vocab_size=120))
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert record["teacher"]["marks"] == MARKS and 10 < record["teacher"]["passages"] <= 21
    assert "marked sentences of passages" in run.to_text()
    card = (tmp_path / "run" / "README.md").read_text()
    assert (
        f"{record['teacher']['passages']} sentences of passages were added to the training texts" in card
        and "marked by `<<` `>>` `[[` `]]`." in card
    )
    assert all("<<" in one["text"] for shown in run_examples(tmp_path) for one in shown)


def run_examples(folder):
    return json.loads((folder / "run" / "teacher.json").read_text())["examples"].values()


def tiny():
    return {name: value for name, value in TINY_CONFIGS["bert"].items() if name not in ("vocab_size", "num_labels")}
