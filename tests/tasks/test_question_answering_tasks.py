import csv
import gzip
import json

import pytest
from datasets import Dataset

from hf_tlm.tasks import TaskError, TaskSpec, load_task, task_from_datasets

SPEC = TaskSpec(name="t", path="memory", kind="question_answering")
CONTEXT = "Zoë met 東京 in “Paris” 🎉 in May."


def question(answer="Paris", start=None, **more):
    start = CONTEXT.index(answer) if start is None and answer else start
    return {"id": "q", "context": CONTEXT, "question": "Where?", "answer_text": answer, "answer_start": start, **more}


GOOD = Dataset.from_list([question()])


def validation(*rows, **options):
    task = task_from_datasets(SPEC, {"train": GOOD, "validation": Dataset.from_list(list(rows))}, **options)
    return task.validation


def test_one_answer_may_be_in_two_columns():
    assert validation(question("東京"), question("May", id="r"), question(None, id="s"))[:] == {
        "id": ["q", "r", "s"],
        "context": [CONTEXT] * 3,
        "question": ["Where?"] * 3,
        "answers": [["東京"], ["May"], []],
        "starts": [[8], [CONTEXT.index("May")], []],
    }


@pytest.mark.parametrize(
    "answers",
    [
        {"text": ["Paris", "“Paris”"], "answer_start": [15, 14]},
        [{"text": "Paris", "answer_start": 15}, {"text": "“Paris”", "answer_start": 14}],
    ],
    ids=["lists", "dictionaries"],
)
def test_several_answers_may_be_in_one_column(answers):
    row = {"id": "q", "context": CONTEXT, "question": "Where?", "answers": answers}
    assert validation(row)[0] == {**row, "answers": ["Paris", "“Paris”"], "starts": [15, 14]}


def test_single_answer_needs_no_list():
    row = {"context": CONTEXT, "question": "Where?", "answers": {"text": "Paris", "answer_start": 15}}
    assert validation(row)["answers"][:] == [["Paris"]] and validation(row)["starts"][:] == [[15]]
    with pytest.raises(TaskError, match="an answer without an offset; .*offset '15'"):
        validation(question() | {"answer_start": "15"})


@pytest.mark.parametrize("column", ["answer_start", "begin"])
def test_offsets_of_a_csv_become_numbers(tmp_path, column):
    """All fields of a csv are read as texts; if some offsets are null, the others are written as floats."""
    for split, offsets in (("train", ["15", "30"]), ("dev", ["15.0", ""])):
        rows = [("context", "question", "answer_text", column)]
        rows += [(CONTEXT, f"{split} {n}?", CONTEXT[int(float(at)) :][:3] if at else "", at) for n, at in enumerate(offsets)]
        with open(tmp_path / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    columns = None if column == "answer_start" else {"starts": column}
    task = load_task(str(tmp_path), kind="question_answering", columns=columns)
    assert task.train["starts"][:] == [[15], [30]] and task.validation["starts"][:] == [[15], []]


def test_empty_list_means_unanswerable_and_null_is_refused():
    rows = [
        {"id": n, "context": CONTEXT, "question": "Where?", "answers": a}
        for n, a in enumerate([{"text": [], "answer_start": []}, None])
    ]
    with pytest.raises(TaskError, match="1 of 2 rows with no answers; the first is row 1"):
        validation(*rows)
    assert validation(rows[0])["answers"][:] == [[]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"context": None}, "null context"),
        ({"context": " \n"}, "blank context"),
        ({"question": None}, "null question"),
        ({"question": ""}, "blank question"),
        ({"answer_start": None}, "an answer without an offset; .*answer 'Paris', offset None"),
        (
            {"answer_start": 14},
            "an answer that is not at its offset; .*'Paris', but from character 14 on .* has '“Pari'",
        ),
        ({"answer_start": -19}, "an answer that is not at its offset.*from character -19 on the context has ''"),
        ({"answer_start": 100}, "an answer that is not at its offset.*has ''"),
        ({"id": "ok"}, "a repeated id"),
        ({"id": None}, "no id"),
    ],
)
def test_bad_rows_are_named_and_can_be_dropped(bad, message):
    rows = [question("May", id="ok"), question() | bad]
    with pytest.raises(TaskError, match=f"validation: 1 of 2 rows with {message}"):
        validation(*rows)
    assert validation(*rows, drop_bad_rows=True)["id"][:] == ["ok"]


def test_different_numbers_of_answers_and_offsets_are_refused():
    with pytest.raises(TaskError, match="different numbers of answers and offsets.*2 answers, 1 offsets"):
        validation({**question(), "answer_text": ["Paris", "May"], "answer_start": [15]})
    blank = {"id": "q", "context": CONTEXT, "question": "?", "answers": {"text": [" "], "answer_start": [3]}}
    with pytest.raises(TaskError, match="1 of 1 rows with blank answer"):
        validation(blank)


def test_answers_that_are_numbers_become_texts():
    row = {"context": "In 1976 and 0.", "question": "When?", "answer_text": 1976, "answer_start": 3}
    assert validation(row, {**row, "answer_text": 0, "answer_start": 12})["answers"][:] == [["1976"], ["0"]]


def test_test_split_without_answers_is_left_out(caplog):
    splits = {"train": GOOD, "validation": GOOD, "test": Dataset.from_list([question(None), question(None, id="r")])}
    task = task_from_datasets(SPEC, splits)
    assert task.test is None and "test split has no labels" in caplog.text


def squad_file(version, *questions):
    paragraphs = [{"context": CONTEXT, "qas": list(questions)}]
    return json.dumps({**version, "data": [{"title": "A", "paragraphs": paragraphs}]})


PARIS = {"id": "1", "question": "Where?", "answers": [{"text": "Paris", "answer_start": 15}]}
NOWHERE = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": PARIS["answers"]}


def test_squad_files_of_both_versions_are_read(tmp_path):
    (tmp_path / "train-v2.0.json").write_text(squad_file({"version": "v2.0"}, PARIS | {"is_impossible": False}, NOWHERE))
    (tmp_path / "dev-v1.1.json").write_text(squad_file({}, PARIS | {"answers": PARIS["answers"] * 3}))
    task = load_task(str(tmp_path))
    assert (task.kind, task.metric) == ("question_answering", "squad_f1")
    assert task.train["answers"][:] == [["Paris"], []] and task.train["starts"][:] == [[15], []]
    assert task.report["train"]["unanswerable"] == 1
    assert task.validation[0] == {
        "id": "1",
        "context": CONTEXT,
        "question": "Where?",
        "answers": ["Paris"] * 3,
        "starts": [15] * 3,
    }


def test_squad_articles_without_header_or_with_byte_order_mark_are_read(tmp_path):
    whole = json.loads(squad_file({"version": 1.1}, PARIS, NOWHERE))
    (tmp_path / "train.json").write_text(json.dumps(whole["data"]))
    (tmp_path / "dev.json").write_text(json.dumps(whole), encoding="utf-8-sig")
    (tmp_path / "test.json").write_text(json.dumps([{"paragraphs": whole["data"][0]["paragraphs"], "title": "A"}]))
    task = load_task(str(tmp_path))
    assert task.kind == "question_answering"
    for rows in task.splits.values():
        assert rows["answers"][:] == [["Paris"], []] and rows["id"][:] == ["1", "2"]
    (tmp_path / "train.json").write_text('[{"title": "A", "paragraphs": [{"context": "a"}]}]')
    with pytest.raises(TaskError, match="train.json begins as a SQuAD file, but .* after 0 questions: 'qas'"):
        load_task(str(tmp_path))


def test_compressed_squad_files_are_read(tmp_path):
    for split, questions in (("train", [PARIS, NOWHERE]), ("dev", [PARIS])):
        (tmp_path / f"{split}.json.gz").write_bytes(gzip.compress(squad_file({}, *questions).encode()))
    task = load_task(str(tmp_path))
    assert task.kind == "question_answering" and task.train["answers"][:] == [["Paris"], []]


def test_incomplete_squad_file_is_refused(tmp_path):
    (tmp_path / "train.json").write_text(squad_file({}, PARIS, {"id": "2", "answers": []}))
    with pytest.raises(TaskError, match="train.json begins as a SQuAD file, but .* after 1 questions: 'question'"):
        load_task(str(tmp_path))


def test_hub_dataset_and_squad_file_give_the_same_task(tmp_path):
    (tmp_path / "train.json").write_text(squad_file({}, PARIS, NOWHERE))
    (tmp_path / "dev.json").write_text(squad_file({}, PARIS))
    answers = [{"text": ["Paris"], "answer_start": [15]}, {"text": [], "answer_start": []}]
    hub = Dataset.from_list(
        [
            {"id": str(n + 1), "title": "A", "context": CONTEXT, "question": q, "answers": a}
            for n, (q, a) in enumerate(zip(("Where?", "Why?"), answers, strict=True))
        ]
    )
    task = task_from_datasets(SPEC, {"train": hub, "validation": hub.select([0])})
    assert task.fingerprint == load_task(str(tmp_path)).fingerprint
