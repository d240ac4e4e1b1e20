import copy
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import (
    TokenizerError,
    in_first_order,
    load_tokenizer,
    longest_first,
    text_lengths,
    tokenization,
    tokenize,
    train_wordpiece,
)
from hf_tlm.data.word_pieces import WordPieceEncoder
from hf_tlm.errors import HfTlmError, HubError
from hf_tlm.runs.finetuning import kind_module
from hf_tlm.tasks import load_task
from support.kind_toys import arguments

PROGRAM = """
import hashlib, random
from hf_tlm.data import train_wordpiece
rng = random.Random(0)
texts = [" ".join("".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(20)) for _ in range(300)]
vocabulary = train_wordpiece(texts, 400).get_vocab()
print(len(vocabulary), hashlib.sha256(repr(sorted(vocabulary.items())).encode()).hexdigest())
"""


@pytest.mark.slow
def test_training_is_reproducible_across_processes():
    """The trainer's hash tables differ between processes; the vocabulary must not."""
    outputs = {subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True).stdout for _ in range(3)}
    assert len(outputs) == 1 and outputs.pop().startswith("400 ")


def test_trained_tokenizer_round_trips(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    text = "The GENE binds the cell"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text.lower()
    assert [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id] == [0, 1, 4]


def test_vocabulary_without_a_length_limit():
    assert train_wordpiece(["the gene binds"], 60, max_length=int(1e30)).model_max_length == int(1e30)


def test_cased_vocabulary_distinguishes_case():
    tokenizer = train_wordpiece(["Gene gene Gene gene"] * 5, 60, lowercase=False)
    assert tokenizer.tokenize("Gene") != tokenizer.tokenize("gene")


@pytest.mark.parametrize("text", ["हिन्दी में लिखी हुई किताब", "ภาษาไทยที่เขียนดี", "がっこうでデザインをまなぶ"])
def test_combining_marks_of_non_latin_scripts_are_kept(text, tmp_path):
    tokenizer = train_wordpiece([f"{text} Öl"] * 5, 300)
    assert "".join(tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True).split()) == text.replace(" ", "")
    assert tokenizer.tokenize("ÖL") == tokenizer.tokenize("öl")  # Lower case, and accents are kept.
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path))(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_accents_are_stripped_where_few_words_have_other_marks():
    tokenizer = train_wordpiece(["schöne große Straßen, " * 20 + "हिन्दी"] * 5, 100)
    assert tokenizer.tokenize("Schöne") == tokenizer.tokenize("schone")


def test_texts_of_many_characters_get_a_larger_alphabet(caplog):
    characters = [chr(0x4E00 + i) for i in range(3000)]
    texts = ["".join(characters[start : start + 100]) for start in range(0, 3000, 100)] * 2
    tokenizer = train_wordpiece(texts, 8000)
    assert sum(ids.count(tokenizer.unk_token_id) for ids in tokenizer(texts)["input_ids"]) <= 0.001 * 6000
    assert not caplog.records
    assert len(train_wordpiece(texts, 2405)) <= 2405
    (record,) = caplog.records
    assert "60% of the characters of the texts are not among the 1,200 of" in record.getMessage()


def test_rare_characters_beside_an_alphabet_are_left_out():
    rare = "".join(chr(0x4E00 + i) for i in range(1500))
    tokenizer = train_wordpiece(["plain words of plain text " * 20_000, rare], 8000)
    assert tokenizer.unk_token_id in tokenizer(rare)["input_ids"]


def test_invalid_vocabularies_and_missing_tokenizers_are_refused():
    with pytest.raises(TokenizerError, match="without texts"):
        train_wordpiece(["", "  "], 100)
    with pytest.raises(TokenizerError, match="vocab_size 12 is too small"):
        train_wordpiece(["several different characters"], 12)
    with pytest.raises(
        HubError,
        match="^There is no local path no/such-tokenizer, and HF_HUB_OFFLINE is set.* cannot be requested",
    ):
        load_tokenizer("no/such-tokenizer")
    with pytest.raises(
        TokenizerError, match="from 'no-such-tokenizer': There is no local path .* HF_HUB_OFFLINE is set, so"
    ):
        load_tokenizer("no-such-tokenizer")
    with pytest.raises(
        TokenizerError, match="from '../no/tokenizer': There is no local path of this name, and a repository"
    ):
        load_tokenizer("../no/tokenizer")


@pytest.mark.parametrize(
    "texts, message",
    [("words " * 9, r"received one text. Give \[text\]"), (iter(["words"]), r"which can be read once. Give list\(texts\)")],
)
def test_texts_that_can_be_read_only_once_are_refused(texts, message):
    """A long generator would lose its first texts, and the vocabulary would consist of single characters."""
    with pytest.raises(TokenizerError, match=f"^texts: expected a list of texts.*{message}"):
        train_wordpiece(texts, 100)


@pytest.mark.parametrize("format", ["torch", "numpy", "pandas", "arrow"])
def test_formatted_dataset_has_the_same_tokens(format, tokenizer):
    rows = Dataset.from_dict({"text": ["the gene", "the cell"], "label": [1, 0]})
    assert tokenize(rows.with_format(format), tokenizer, np.int64(16)).to_list() == tokenize(rows, tokenizer, 16).to_list()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"dataset": ["the gene"]}, r"received a list. Give Dataset.from_list\(rows\)"),
        ({"dataset": DatasetDict()}, r'received a DatasetDict. Give splits\["train"\]'),
        ({"dataset": Dataset.from_dict({"body": ["a"]})}, r"expected a column text; the columns are body. Rename one"),
        ({"tokenizer": "bert-base-uncased"}, "expected a tokenizer of transformers; received 'bert-base-uncased'"),
        ({"tokenizer": None}, "expected a tokenizer of transformers; received None"),
        ({"max_length": 2}, "--max_length: expected a whole number from 3"),
    ],
)
def test_invalid_arguments_of_tokenize_are_refused(given, message, tokenizer):
    usual = {"dataset": Dataset.from_dict({"text": ["the gene"]}), "tokenizer": tokenizer, "max_length": 16}
    with pytest.raises(TokenizerError, match=message):
        tokenize(**usual | given)


def test_tokenize_truncates_and_keeps_labels(tokenizer):
    rows = Dataset.from_dict({"id": ["a", "b"], "text": ["the gene " * 30, "the cell"], "label": [1, 0]})
    out = tokenize(rows, tokenizer, 16)
    assert sorted(out.column_names) == ["input_ids", "label"]
    assert [len(ids) for ids in out["input_ids"]] == [16, 4]
    assert out[0]["input_ids"][-1] == tokenizer.sep_token_id
    assert out["label"][:] == [1, 0]
    assert not out.cache_files  # Chunks to predict on, for instance, are not cached on disk.


def test_labels_column_may_have_either_name(tokenizer):
    rows = Dataset.from_dict({"text": ["the gene", "the cell"], "labels": [1, 0]})
    assert tokenize(rows, tokenizer, 16)["labels"][:] == [1, 0]
    assert sorted(tokenize(rows.add_column("label", [0, 1]), tokenizer, 16).column_names) == ["input_ids", "label"]


def test_tokenize_pairs(tokenizer):
    rows = Dataset.from_dict({"text": ["the gene"], "text_pair": ["the cell"]})
    out = tokenize(rows, tokenizer, 16)
    assert out[0]["input_ids"] == tokenizer("the gene", "the cell")["input_ids"]
    assert set(out[0]["token_type_ids"]) == {0, 1}


def test_tokenized_file_is_cached_for_a_second_run(tokenizer, tmp_path):
    Dataset.from_dict({"text": ["the gene binds", "the cell"] * 5}).to_parquet(tmp_path / "rows.parquet")

    def run(max_length):
        rows = Dataset.from_parquet(str(tmp_path / "rows.parquet"))
        return [file["filename"] for file in tokenize(rows, tokenizer, max_length).cache_files]

    first = run(8)
    stamps = [os.stat(file).st_mtime_ns for file in first]
    tokenizer("another text", truncation=True, max_length=3)  # Changes the truncation of the tokenizer.
    assert run(8) == first and [os.stat(file).st_mtime_ns for file in first] == stamps
    assert set(run(4)).isdisjoint(first)


# Tasks.

TEXTS = ["the gene binds", "the cell", "the [MASK] acid"] * 4


def write_task(folder, texts=TEXTS, **columns):
    """Write a task's folder; every split has the same rows."""
    columns = columns or {"text": texts, "label": ["a", "b"] * (len(texts) // 2)}
    folder.mkdir(exist_ok=True)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Set an empty cache; return its folder hf_tlm."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_tlm"


@pytest.fixture
def calls(monkeypatch):
    """A list with one entry for each call of a tokenizer."""
    made, call, encode = [], PreTrainedTokenizerBase.__call__, WordPieceEncoder.encode
    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", lambda *a, **k: made.append(0) or call(*a, **k))
    monkeypatch.setattr(WordPieceEncoder, "encode", lambda *a, **k: made.append(0) or encode(*a, **k))
    return made


def test_task_texts_are_tokenized_once(tokenizer, cache, calls, tmp_path):
    folder = write_task(tmp_path / "films")

    def run(folder=folder, tokenizer=tokenizer, max_length=4, **options):
        """Return how often the tokenizer was called, and the result."""
        calls.clear()
        rows = tokenize(load_task(folder).train, tokenizer, max_length, **options)
        assert {Path(file["filename"]).parent for file in rows.cache_files} == {cache}  # Memory-mapped.
        return len(calls), rows[:]

    expected = {"input_ids": tokenizer(TEXTS, truncation=True, max_length=4)["input_ids"], "label": [0, 1] * 6}
    assert run() == (1, expected) and run() == (0, expected)
    assert run(write_task(tmp_path / "copy")) == (0, expected)
    for file in cache.glob("rows-*"):
        file.unlink()  # The cache key is the rows' content, not the time of their file.
    assert run() == (0, expected)

    cut_left, split_special = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    cut_left.truncation_side, split_special.split_special_tokens = "left", True
    others = {
        "length": {"max_length": 5},
        "vocabulary": {"tokenizer": train_wordpiece(TEXTS, 60)},
        "side": {"tokenizer": cut_left},
        "special tokens": {"tokenizer": split_special},
        "types": {"all_types": True},
        "text": {"folder": write_task(tmp_path / "texts", ["a gene binds", *TEXTS[1:]])},
        "labels": {"folder": write_task(tmp_path / "labels", text=TEXTS, label=["b", "a"] * 6)},
        "order": {"folder": write_task(tmp_path / "order", TEXTS[::-1])},
    }
    for name, other in others.items():
        (first, found), (again, same) = run(**other), run(**other)
        assert (name, first, again, found == same, found == expected) == (name, 1, 0, True, False)


KINDS = {
    "classification": {"text": ["the gene", "a cell"], "label": ["a", "b"]},
    "question_answering": {
        "context": ["the gene binds", "the cell"],
        "question": ["which gene ?", "where ?"],
        "answers": [{"text": ["gene"], "answer_start": [4]}, {"text": ["cell"], "answer_start": [4]}],
    },
    "multiple_choice": {
        "context": ["the gene binds", "the cell"],
        "question": ["what binds ?", "where is _ ?"],
        "options": [["the gene", "a cell"]] * 2,
        "label": [0, 1],
    },
    "tagging": {"tokens": [["the", "gene"], ["cell"]], "tags": [["d", "n"], ["n"]]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_finetuning_tokenizes_task_texts_once(kind, tokenizer, cache, calls, tmp_path):
    folder = write_task(tmp_path / "task", **KINDS[kind])

    def run(max_length):
        calls.clear()
        task = load_task(folder)
        assert task.kind == kind
        features = kind_module(kind).encode(task.train, tokenizer, arguments(max_length=max_length))
        assert {Path(file["filename"]).parent for file in features.cache_files} == {cache}
        return bool(calls), features[:]

    first, again = run(16), run(16)
    assert (first[0], again[0]) == (True, False) and first[1] == again[1]
    assert run(12)[0]


def test_windows_are_cached_per_cls_token(tokenizer, cache, tmp_path):
    task = load_task(write_task(tmp_path / "task", **KINDS["question_answering"]))
    other = copy.deepcopy(tokenizer)
    other.cls_token = "[UNK]"
    first, second = (kind_module(task.kind).encode(task.train, each, arguments()) for each in (tokenizer, other))
    assert first._fingerprint != second._fingerprint


def test_cache_is_safe_with_concurrent_and_killed_processes(tokenizer, cache, tmp_path):
    """A kill leaves no file that is read, and two processes that write the same file both get complete rows."""
    folder, fork = write_task(tmp_path / "films", TEXTS * 200), multiprocessing.get_context("fork")
    both, results = fork.Barrier(2), fork.SimpleQueue()
    encode, expected = WordPieceEncoder.encode, tokenizer(TEXTS * 200, truncation=True, max_length=4)["input_ids"]

    def run(in_between):
        def counted(*args, **kwargs):
            made.append(0)
            in_between(len(made))
            return encode(*args, **kwargs)

        made, WordPieceEncoder.encode = [], counted
        rows = tokenize(load_task(folder).train, tokenizer, 4)
        results.put((rows["input_ids"][:] == expected, len(made)))

    def killed(batch):
        if batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def finish(*jobs):
        processes = [fork.Process(target=run, args=(job,)) for job in jobs]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        return [process.exitcode for process in processes]

    assert finish(killed) == [-signal.SIGKILL]
    assert finish(*[lambda batch: both.wait(60)] * 2) == [0, 0]
    assert finish(lambda batch: None) == [0]
    assert [results.get() for _ in range(3)] == [(True, 3), (True, 3), (True, 0)]
    names = sorted(file.name.split("-")[0] for file in cache.glob("*.arrow"))
    assert names == ["cache", "rows", "rows"]


DAMAGES = {
    "cut": lambda data: data[:-100],
    "a type": lambda data: data.replace(b'"dtype": "string"', b'"dtype": "strhng"'),
    "a text": lambda data: data.replace(b"gene", b"genf", 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_cache_file_is_rebuilt(cache, tmp_path, damage, caplog):
    folder = write_task(tmp_path / "films", ["a gene binds", *TEXTS[1:]])
    expected = load_task(folder).train[:]
    for file in cache.glob("rows-*"):
        data = damage(file.read_bytes())
        file.unlink()
        file.write_bytes(data)
    assert load_task(folder).train[:] == expected
    assert re.search(r"is damaged (\(it contains other rows\) )?and will be created again", caplog.text)
    caplog.clear()
    assert load_task(folder).train[:] == expected and "damaged" not in caplog.text


def test_unwritable_cache_is_refused(cache, tmp_path):
    cache.parent.mkdir()
    cache.write_text("A file in its place.")
    with pytest.raises(HfTlmError, match=f"Cannot write {cache}/rows-"):
        load_task(write_task(tmp_path / "films"))


# Lengths, and vocabularies.


def test_text_lengths_are_numbers_of_tokens(tokenizer):
    rows = tokenize(Dataset.from_dict({"text": ["the gene", "a", "the cell and the gene"]}), tokenizer, 6)
    lengths = [len(ids) for ids in rows["input_ids"]]
    assert text_lengths(rows).tolist() == lengths and text_lengths(rows).dtype == np.int32
    assert text_lengths(rows.select([2, 0])).tolist() == [lengths[2], lengths[0]]
    assert text_lengths(None).tolist() == []


def test_many_lengths_are_memory_mapped(tokenizer, monkeypatch):
    rows = tokenize(Dataset.from_dict({"text": ["the gene", "a", "the cell and the gene"] * 50}), tokenizer, 6)
    expected = text_lengths(rows)
    monkeypatch.setattr(tokenization, "_IN_MEMORY", 100)
    monkeypatch.setattr(tokenization, "_ROWS", 7)
    mapped = text_lengths(rows)
    assert isinstance(mapped, np.memmap) and mapped.dtype == np.int32 and mapped.tolist() == expected.tolist()
    monkeypatch.delattr(tokenization, "_iterate_lengths")  # They are not counted again, unless the rows differ.
    assert text_lengths(rows).tolist() == expected.tolist()
    with pytest.raises(NameError):
        text_lengths(rows.select(range(10, 140)))


def test_trained_vocabulary_is_cached(monkeypatch):
    texts, made = ["the gene binds the cell", "the acid"] * 4, []
    train = tokenization.train_wordpiece
    monkeypatch.setattr(tokenization, "train_wordpiece", lambda *a, **k: made.append(k) or train(*a, **k))
    first, again = (tokenization.cached_wordpiece(texts, 90, max_length=20) for _ in range(2))
    assert len(made) == 1 and again.get_vocab() == train(texts, 90).get_vocab() == first.get_vocab()
    assert again.model_max_length == 20 and again("The gene")["input_ids"] == train(texts, 90)("The gene")["input_ids"]
    cased = tokenization.cached_wordpiece(texts, 90, lowercase=False)
    assert len(made) == 2 and "The" not in cased.tokenize("the") and cased.tokenize("T") == ["[UNK]"]
    tokenization.cached_wordpiece([*texts, "more"], 90, max_length=20)
    assert len(made) == 3


def test_longest_first_order_can_be_undone():
    rows = Dataset.from_dict({"input_ids": [[1], [2, 2, 2], [], [3, 3], [4, 4]]})
    ordered, order = longest_first(rows)
    assert ordered["input_ids"][:] == [[2, 2, 2], [3, 3], [4, 4], [1], []] and order.tolist() == [1, 3, 4, 0, 2]
    values = np.array([[len(row), sum(row)] for row in ordered["input_ids"]], np.float32)
    assert in_first_order(values, order).tolist() == [[1, 1], [3, 6], [0, 0], [2, 6], [2, 8]]
    assert longest_first(rows, np.arange(5))[1].tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("given", [["a", None], [1, 2], [None], [["a"], ["b"]]])
def test_column_without_texts_is_refused(given, tokenizer):
    for name in ("text", "text_pair"):
        rows = Dataset.from_dict({"text": ["a"] * len(given)} | {name: given})
        with pytest.raises(TokenizerError, match=f"^dataset: expected texts in the column {name}; received "):
            tokenize(rows, tokenizer, 8)
    # Rows without a text may be in the table from which the rows were selected.
    assert len(tokenize(Dataset.from_dict({"text": ["a", None]}).select([0]), tokenizer, 8)) == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_all_arrow_types_of_text_are_tokenized(kind, tokenizer):
    texts = pa.array(["a", "b"])
    column = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts.cast(kind)
    expected = tokenize(Dataset.from_dict({"text": ["a", "b"]}), tokenizer, 8)["input_ids"][:]
    assert tokenize(Dataset(pa.table({"text": column})), tokenizer, 8)["input_ids"][:] == expected


def test_transformed_and_empty_datasets_are_tokenized(tokenizer):
    made = Dataset.from_dict({"text": [1, 2]}).with_transform(lambda rows: {"text": ["a"] * len(rows["text"])})
    assert len(tokenize(made, tokenizer, 8)) == 2
    assert len(tokenize(Dataset.from_dict({"text": []}), tokenizer, 8)) == 0
