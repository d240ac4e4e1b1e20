import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_tlm.tasks import TaskError, TaskSpec, task_from_datasets

SPEC = TaskSpec(name="t", path="memory", kind="multiple_choice")


def row(answer="B", options=("red", "blue", "green"), **more):
    return {"article": "The sky is blue.", "question": "The sky is _ .", "options": list(options), "answer": answer, **more}


def task(*validation, train=None, **options):
    splits = {"train": Dataset.from_list(train or [row(), row("C")]), "validation": Dataset.from_list(list(validation))}
    return task_from_datasets(SPEC, splits, **options)


def test_letters_and_numbers_are_labels():
    letters = task(row("A"), row("C"))
    assert letters.label_names == ("A", "B", "C")
    assert letters.validation[1] == {
        "id": "validation-1",
        "context": "The sky is blue.",
        "question": "The sky is _ .",
        "options": ["red", "blue", "green"],
        "label": 2,
    }
    assert task(row(0), row(2)).validation["label"][:] == [0, 2]
    assert letters.report["validation"]["labels"] == {"A": 1, "C": 1}


def test_class_labels_are_labels():
    features = {"context": Value("string"), "question": Value("string"), "options": List(Value("string"))}
    rows = {"context": ["c"], "question": ["q"], "options": [["x", "y"]], "label": [1]}
    data = Dataset.from_dict(rows, features=Features(features | {"label": ClassLabel(names=["A", "B"])}))
    assert task_from_datasets(SPEC, {"train": data, "validation": data}).train["label"][:] == [1]


def test_options_that_are_numbers_become_texts():
    assert task(row(options=(1, 2, 3))).validation["options"][0] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"article": None}, "null context"),
        ({"question": " "}, "blank question"),
        ({"options": ["a", "b", None]}, "null option"),
        ({"options": ["a", "", "c"]}, "blank option"),
        ({"options": None}, "null option"),
        ({"options": []}, "null option"),
        ({"options": ["a", "b"]}, "another number of options than 3; the first is row 1 .*2 options"),
        ({"answer": "D"}, "a label that is no option; .*label 'D', options A, B, C"),
        ({"answer": "1"}, "a label that is no option; .*label '1'"),
        ({"answer": None}, "no label"),
    ],
)
def test_bad_rows_are_named_and_can_be_dropped(bad, message):
    rows = [row(), row() | bad]
    with pytest.raises(TaskError, match=f"validation: 1 of 2 rows with {message}"):
        task(*rows)
    assert len(task(*rows, drop_bad_rows=True).validation) == 1


@pytest.mark.parametrize("label", [3, -2])
def test_label_out_of_range_is_refused(label):
    message = f"1 of 2 rows with a label that is no option; .*label {label}, options A, B, C or 0 to 2"
    with pytest.raises(TaskError, match=message):
        task(row(0), row(label))


def test_number_of_options_is_that_of_most_training_rows():
    with pytest.raises(TaskError, match="train: 1 of 3 rows with another number of options than 3"):
        task(row(), train=[row(options="ab"), row(), row()])
    with pytest.raises(TaskError, match="2 to 26 options"):
        task(row(), train=[row(options="a")])
    with pytest.raises(TaskError, match="as a list of strings; most training rows have 0"):
        task(row(), train=[row() | {"options": "red, blue"}])


def test_questions_of_a_passage_share_its_id_and_get_numbers():
    """In RACE, ids are those of the passages' files."""
    other = {"article": "Another.", "id": "high1.txt"}
    rows = task(row(id="middle1.txt"), row(**other), row(id="middle1.txt")).validation
    assert rows["id"][:] == ["middle1.txt:0", "high1.txt", "middle1.txt:1"]
    with pytest.raises(TaskError, match="1 of 2 rows with a repeated id; the first is row 1 .counted from 0; id 'x'"):
        task(row(id="x"), row(**other | {"id": "x"}))


def test_unlabelled_test_split_is_left_out():
    rows = Dataset.from_list([row(), row("C")])
    unlabelled = Dataset.from_list([row(None), row(None)])
    assert task_from_datasets(SPEC, {"train": rows, "validation": rows, "test": unlabelled}).test is None
