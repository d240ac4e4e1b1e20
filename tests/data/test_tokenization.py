import os
import subprocess
import sys

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.data import TokenizerError, load_tokenizer, text_lengths, tokenization, tokenize, train_wordpiece
from hf_tlm.hub import HubError

PROGRAM = """
import hashlib, random
from hf_tlm.data import train_wordpiece
rng = random.Random(0)
texts = [" ".join("".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(20)) for _ in range(300)]
vocabulary = train_wordpiece(texts, 400).get_vocab()
print(len(vocabulary), hashlib.sha256(repr(sorted(vocabulary.items())).encode()).hexdigest())
"""


def test_training_is_reproducible_across_processes():
    """The trainer's hash tables differ per process; the vocabulary must not."""
    outputs = {subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True).stdout for _ in range(3)}
    assert len(outputs) == 1 and outputs.pop().startswith("400 ")


def test_trained_tokenizer_round_trips(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    text = "The GENE binds the cell"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text.lower()
    assert [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id] == [0, 1, 4]


def test_cased_vocabulary():
    tokenizer = train_wordpiece(["Gene gene Gene gene"] * 5, 60, lowercase=False)
    assert tokenizer.tokenize("Gene") != tokenizer.tokenize("gene")


def test_errors():
    with pytest.raises(TokenizerError, match="no text"):
        train_wordpiece(["", "  "], 100)
    with pytest.raises(TokenizerError, match="vocab_size 12 is too small"):
        train_wordpiece(["several different characters"], 12)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set.*no/such-tokenizer cannot be asked for"):
        load_tokenizer("no/such-tokenizer")
    with pytest.raises(TokenizerError, match="Cannot load a tokenizer"):
        load_tokenizer("no-such-tokenizer")


def test_tokenize(tokenizer):
    rows = Dataset.from_dict({"id": ["a", "b"], "text": ["the gene " * 30, "the cell"], "label": [1, 0]})
    out = tokenize(rows, tokenizer, 16)
    assert sorted(out.column_names) == ["input_ids", "label"]
    assert [len(ids) for ids in out["input_ids"]] == [16, 4]
    assert out[0]["input_ids"][-1] == tokenizer.sep_token_id
    assert out["label"][:] == [1, 0]


def test_tokenize_pairs(tokenizer):
    rows = Dataset.from_dict({"text": ["the gene"], "text_pair": ["the cell"]})
    out = tokenize(rows, tokenizer, 16)
    assert out[0]["input_ids"] == tokenizer("the gene", "the cell")["input_ids"]
    assert set(out[0]["token_type_ids"]) == {0, 1}


def test_a_second_run_finds_what_the_first_one_tokenised(tokenizer, tmp_path):
    Dataset.from_dict({"text": ["the gene binds", "the cell"] * 5}).to_parquet(tmp_path / "rows.parquet")

    def run(max_length):
        rows = Dataset.from_parquet(str(tmp_path / "rows.parquet"))
        return [file["filename"] for file in tokenize(rows, tokenizer, max_length).cache_files]

    first = run(8)
    stamps = [os.stat(file).st_mtime_ns for file in first]
    tokenizer("another text", truncation=True, max_length=3)  # Leaves its truncation in the tokenizer.
    assert run(8) == first and [os.stat(file).st_mtime_ns for file in first] == stamps
    assert set(run(4)).isdisjoint(first)


def test_lengths(tokenizer):
    rows = tokenize(Dataset.from_dict({"text": ["the gene", "a", "the cell and the gene"]}), tokenizer, 6)
    lengths = [len(ids) for ids in rows["input_ids"]]
    assert text_lengths(rows).tolist() == lengths and text_lengths(rows).dtype == np.int32
    assert text_lengths(rows.select([2, 0])).tolist() == [lengths[2], lengths[0]]
    assert text_lengths(None).tolist() == []


def test_many_lengths_are_mapped_from_a_file(tokenizer, monkeypatch):
    rows = tokenize(Dataset.from_dict({"text": ["the gene", "a", "the cell and the gene"] * 50}), tokenizer, 6)
    expected = text_lengths(rows)
    monkeypatch.setattr(tokenization, "_IN_MEMORY", 100)
    monkeypatch.setattr(tokenization, "_ROWS", 7)
    mapped = text_lengths(rows)
    assert isinstance(mapped, np.memmap) and mapped.dtype == np.int32 and mapped.tolist() == expected.tolist()
    monkeypatch.delattr(tokenization, "_lengths")  # They are not counted again, but where the rows are others.
    assert text_lengths(rows).tolist() == expected.tolist()
    with pytest.raises(NameError):
        text_lengths(rows.select(range(10, 140)))


def test_a_trained_vocabulary_is_kept(monkeypatch):
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
