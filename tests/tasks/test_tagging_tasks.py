import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_tlm.tasks import TaskError, TaskSpec, load_task, task_from_datasets

SPEC = TaskSpec(name="t", path="memory", kind="tagging")
GOOD = Dataset.from_list([{"tokens": ["The", "cat"], "tags": ["DT", "NN"]}, {"tokens": ["Run"], "tags": ["VB"]}])


def validation(*rows, **options):
    return task_from_datasets(SPEC, {"train": GOOD, "validation": Dataset.from_list(list(rows))}, **options)


def test_tags_become_indices_into_their_sorted_names():
    task = validation({"id": "s", "tokens": ["the"], "tags": ["DT"]})
    assert task.label_names == ("DT", "NN", "VB")
    assert task.train[:] == {"id": ["train-0", "train-1"], "tokens": [["The", "cat"], ["Run"]], "tags": [[0, 1], [2]]}
    assert task.validation[0] == {"id": "s", "tokens": ["the"], "tags": [0]}


def test_class_labels_keep_their_order():
    features = Features({"tokens": List(Value("string")), "ner": List(ClassLabel(names=["O", "B-X"]))})
    rows = Dataset.from_dict({"tokens": [["a", "b"]], "ner": [[1, 0]]}, features=features)
    spec = TaskSpec(name="t", path="memory", kind="tagging", metric="span_f1", columns={"tags": "ner"})
    task = task_from_datasets(spec, {"train": rows, "validation": rows})
    assert task.label_names == ("O", "B-X") and task.train["tags"][:] == [[1, 0]]


def test_integers_keep_their_numbers():
    rows = Dataset.from_dict({"tokens": [["a", "b", "c"]], "tags": [[1, 0, 2]]})
    task = task_from_datasets(SPEC, {"train": rows, "validation": rows})
    assert task.label_names == ("0", "1", "2") and task.train["tags"][:] == [[1, 0, 2]]
    gap = Dataset.from_dict({"tokens": [["a", "b"]], "tags": [[1, 3]]})
    with pytest.raises(TaskError, match="without gaps in train; found \\[1, 3\\]"):
        task_from_datasets(SPEC, {"train": gap, "validation": gap})


def test_tags_that_train_lacks_count_as_errors_with_a_warning(caplog):
    task = validation({"tokens": ["a", "b"], "tags": ["DT", "FW"]})
    assert task.validation["tags"][:] == [[0, -1]]
    assert task.report["validation"]["words_with_unknown_tags"] == 1
    assert "1 of 2 words have a tag that is not in train" in caplog.text


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens": []}, "an empty sentence"),
        ({"tokens": None}, "an empty sentence"),
        ({"tokens": ["a", None]}, "a null word"),
        ({"tags": None}, "a null tag"),
        ({"tags": ["DT", None]}, "a null tag"),
        ({"tags": ["DT"]}, "different numbers of tokens and tags; .*2 tokens, 1 tags"),
        ({"id": "ok"}, "a repeated id"),
    ],
)
def test_bad_rows_are_named_and_can_be_dropped(bad, message):
    row = {"id": "s", "tokens": ["the", "cat"], "tags": ["DT", "NN"]}
    rows = [row | {"id": "ok"}, row | bad]
    with pytest.raises(TaskError, match=f"validation: 1 of 2 rows with {message}"):
        validation(*rows)
    assert validation(*rows, drop_bad_rows=True).validation["id"][:] == ["ok"]


def test_sentence_must_be_a_list_of_words():
    with pytest.raises(
        TaskError, match="1 of 1 rows with a sentence that is no list of words; .*tokens 'The cat'.*\\n.*A row is"
    ):
        validation({"tokens": "The cat", "tags": ["DT", "NN"]})


def test_single_tag_or_tags_without_spans_are_refused():
    single_tag = Dataset.from_dict({"tokens": [["a", "b"]], "tags": [["_", "_"]]})
    with pytest.raises(TaskError, match="at least two tags; the training split has .*'_'.*--columns tags=name"):
        task_from_datasets(SPEC, {"train": single_tag, "validation": single_tag})
    spans = TaskSpec(name="t", path="memory", kind="tagging", further_metrics=("span_f1",))
    with pytest.raises(TaskError, match="span_f1 needs IOB2 tags .*received 'DT'"):
        task_from_datasets(spans, {"train": GOOD, "validation": GOOD})


# Files with columns of words and tags.

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# a comment of two words or so
# # B-NP O
9\u00a0kg CD I-NP B-QTY


"""


@pytest.mark.parametrize("suffix", [".conll", ".iob", ".txt"])
@pytest.mark.parametrize("tab", [False, True])
def test_column_files_of_words_and_tags_are_read(tmp_path, suffix, tab):
    for split in ("train", "dev"):
        (tmp_path / f"{split}{suffix}").write_text(CONLL.replace(" ", "\t") if tab else CONLL, encoding="utf-8")
    task = load_task(str(tmp_path), metric="span_f1")
    assert task.train["tokens"][:] == [["EU", "rejects"], ["#", "9\u00a0kg"]]
    assert task.label_names == ("B-ORG", "B-QTY", "O")
    assert task.train["tags"][:] == [[0, 2], [2, 1]]
    assert task.train["id"][:] == ["train-0", "train-1"]
    chunks = load_task(str(tmp_path), columns={"tokens": "0", "tags": "2"})
    assert chunks.label_names == ("B-NP", "B-VP", "I-NP")
    assert load_task(str(tmp_path), columns={"tags": "-3"}).label_names == ("#", "CD", "NNP", "VBZ")


CONLLU = """# sent_id = weblog-1
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\tPRP\t_\t_\t_\t_\t_
3\tvice versa\tvv\tADV\tRB\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize("suffix", [".conllu", ".CONLLU"])
def test_universal_dependencies_are_read(tmp_path, suffix):
    for split in ("train", "dev"):
        (tmp_path / f"en_ewt-ud-{split}{suffix}").write_text(CONLLU)
    task = load_task(str(tmp_path))
    assert task.train[:] == {"id": ["weblog-1"], "tokens": [["Do", "n't", "vice versa"]], "tags": [[1, 0, 0]]}
    assert task.label_names == ("RB", "VBP")
    assert load_task(str(tmp_path), columns={"tags": "upos"}).label_names == ("ADV", "AUX", "PART")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a B c\nd O\n", {}, "line 2 has 2 columns; the previous lines have 3"),
        ("a B\n", {"tags": "2"}, r"line 1 has 2 columns, but no column 2 for the tags\. .*correct --columns tags=2\."),
        ("a B\n", {"tags": "upos"}, "a column is a number from 0 .*received 'upos'"),
        ("a B\n\udce9 O\n", {}, "train.conll is not UTF-8"),
    ],
)
def test_malformed_column_file_is_refused(tmp_path, text, columns, message):
    (tmp_path / "train.conll").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TaskError, match=message):
        load_task(str(tmp_path), columns=columns)


WORDS = "EU\tB-ORG\nrejects\tO\n\nGerman\tB-MISC\ncalls\tO\n"


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
@pytest.mark.parametrize(
    ("head", "kind"),
    [("", None), ("", "tagging"), ("token\tner\n", None), ("word\tpos\n", "tagging"), ("text\ttag\n", None)],
)
def test_table_with_one_word_per_line_is_refused(tmp_path, suffix, head, kind):
    """With and without a header: a row of a table must be a sentence."""
    for split in ("train", "dev"):
        text = (head + WORDS).replace("\t", "," if suffix == "csv" else "\t")
        (tmp_path / f"{split}.{suffix}").write_text(text)
    with pytest.raises(
        TaskError, match=rf"no column .* dev.{suffix} seems to have one word and its tag per line.*suffix .conll"
    ):
        load_task(str(tmp_path), kind=kind)


def test_row_per_word_is_refused_with_the_expected_layout(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("tokens\ttags\n" + WORDS)
    with pytest.raises(
        TaskError,
        match="expected lists of tags, .* received 'B-ORG', of type str. A row is a sentence, .* suffix .conll",
    ):
        load_task(str(tmp_path))


@pytest.mark.parametrize("head", ["token\ttag\n", "Word\tPOS\n\n", "form\tchunk\tner\n"])
def test_header_in_a_column_file_is_refused(tmp_path, head):
    lines = WORDS.replace("\t", "\tO\t") if head.count("\t") == 2 else WORDS
    (tmp_path / "train.conll").write_text(head + lines)
    with pytest.raises(TaskError, match="train.conll, line 1 names columns .*: expected a word and its tag on every line"):
        load_task(str(tmp_path))
    (tmp_path / "dev.conll").write_text(lines)
    (tmp_path / "train.conll").write_text(lines)
    assert load_task(str(tmp_path)).label_names == ("B-MISC", "B-ORG", "O")


def test_table_wins_over_a_text_file_of_the_same_split(tmp_path):
    for split in ("train", "validation"):
        GOOD.to_json(tmp_path / f"{split}.jsonl")
        (tmp_path / f"{split}.txt").write_text("notes of mine\n")
    assert load_task(str(tmp_path)).label_names == ("DT", "NN", "VB")
