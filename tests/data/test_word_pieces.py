"""The memory of words gives exactly what the tokenizer gives, or declines."""

import json
import subprocess
import sys

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from hf_tlm.data import tokenize, train_wordpiece, word_pieces
from hf_tlm.data.word_pieces import find_encoder, word_piece_encoder

WORDS = "the The gene-binds p<0.05 [MASK] [mask] [SEP] naïve STRASSE Σίσυφος İ 中文字 がっこう 👍🏽 _".split()
ODD = ["\t", "\r\n", *"\x00\x7f\x85\xa0\u0301\u200d\u2028\u3000\ufffd", "x" * 120, "  "]
TEXTS = st.lists(st.sampled_from([*WORDS, *ODD, " ", " ", " "]) | st.text(max_size=8), max_size=12).map("".join)


def variant(**changes):
    """Return a trained tokenizer with other settings of its normalizer."""
    tokenizer = train_wordpiece([" ".join(WORDS), "a gene binds the cells of naive mice"] * 5, 160, lowercase=False)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["normalizer"] = backend["normalizer"] | changes if changes else None
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(backend)), pad_token="[PAD]")


TOKENIZERS = {
    "lower case": train_wordpiece([" ".join(WORDS), "a gene binds the cells of naive mice"] * 5, 160),
    "accents kept": variant(lowercase=True, strip_accents=False),
    "accents stripped": variant(lowercase=False, strip_accents=True),
    "not cleaned": variant(clean_text=False, handle_chinese_chars=False),
    "not normalized": variant(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), max_length=st.integers(4, 24))
def test_ids_and_types_are_those_of_the_tokenizer(name, texts, max_length):
    tokenizer = TOKENIZERS[name]
    encoder = word_piece_encoder(tokenizer.backend_tokenizer.to_str())
    first, second = map(list, zip(*texts, strict=True))
    for pairs in (None, second):
        for _ in range(2):  # The second time all words are known.
            expected = tokenizer(first, pairs, truncation=True, max_length=max_length, return_token_type_ids=True)
            found = encoder.encode(first, pairs, max_length=max_length, type_ids=True)
            assert found == {name: expected[name] for name in ("input_ids", "token_type_ids")}
    plain = tokenizer(first, add_special_tokens=False, verbose=False)["input_ids"]
    assert [encoder.word_ids(text) for text in first] == plain


@pytest.mark.parametrize("pairs", [False, True])
def test_datasets_are_tokenised_through_the_memory(pairs, monkeypatch):
    tokenizer = TOKENIZERS["lower case"]
    rows = {"text": ["The gene binds [MASK] cells", "", "naïve mice " * 20], "label": [0, 1, 2]}
    rows |= {"text_pair": ["cells", "of the mice " * 30, "a\tgene"]} if pairs else {}
    columns = [rows["text"], rows["text_pair"]] if pairs else [rows["text"]]
    expected = tokenizer(*columns, truncation=True, max_length=12, return_token_type_ids=True)
    monkeypatch.setattr(type(tokenizer), "__call__", lambda *args, **options: pytest.fail("the tokenizer was called"))
    tokens = tokenize(Dataset.from_dict(rows), tokenizer, 12, all_types=True)
    assert [list(ids) for ids in tokens["input_ids"]] == expected["input_ids"]
    assert [list(types) for types in tokens["token_type_ids"]] == expected["token_type_ids"]


def test_tokenizers_whose_words_depend_on_their_neighbours_are_declined():
    settings_of = TOKENIZERS["lower case"].backend_tokenizer.to_str
    assert word_piece_encoder(settings_of()) is not None
    for changes in (
        {"normalizer": normalizers.NFC()},
        {"normalizer": normalizers.Sequence([normalizers.BertNormalizer(), normalizers.Replace("a", " ")])},
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"pre_tokenizer": pre_tokenizers.WhitespaceSplit()},
    ):
        backend = Tokenizer.from_str(settings_of())
        for name, value in changes.items():
            setattr(backend, name, value)
        assert word_piece_encoder(backend.to_str()) is None
    for token in (
        AddedToken("[CITE]", single_word=True, normalized=False),
        AddedToken("[CITE]", normalized=True),
        AddedToken("new york", normalized=False),
        AddedToken("\t", normalized=False),  # Another added token may strip it.
    ):
        backend = Tokenizer.from_str(settings_of())
        backend.add_tokens([token])
        assert word_piece_encoder(backend.to_str()) is None


@pytest.mark.parametrize(
    "processor",
    [
        None,
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.TemplateProcessing(single="$A:3", pair="$B:1 $A:2", special_tokens=[]),
        processors.TemplateProcessing(
            single="[CLS]:2 [CLS] $A", pair="[CLS] $A $B:1 [SEP]:1 $A:4", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        ),
    ],
)
def test_special_tokens_and_texts_are_in_the_order_of_the_template(processor):
    # "a" cannot be tokenised.
    backend = Tokenizer(models.WordPiece({"[PAD]": 0, "[CLS]": 2, "[SEP]": 3, "gene": 5, "cells": 6}))
    backend.pre_tokenizer, backend.post_processor = pre_tokenizers.BertPreTokenizer(), processor
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
    encoder = find_encoder(tokenizer)
    texts, pairs = ["gene cells", "gene " * 9, ""], ["cells", "gene " * 8, "gene"]
    for columns in ([texts], [texts, pairs]):
        expected = tokenizer(*columns, truncation=True, max_length=9, return_token_type_ids=True)
        found = encoder.encode(*columns, max_length=9, type_ids=True)
        assert found == {name: expected[name] for name in found}


def test_added_tokens_are_found_before_a_text_is_split():
    tokenizer = train_wordpiece(["a gene binds the cells"] * 5, 60)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[CITE]", "@@"]})
    encoder = find_encoder(tokenizer)
    text = "a gene [CITE]binds@@@ the[CITE] [cite] @ cells"
    assert encoder.encode([text], max_length=64)["input_ids"] == [tokenizer(text)["input_ids"]]


@pytest.mark.parametrize("changes", [{"truncation_side": "left"}, {"split_special_tokens": True}])
def test_settings_of_transformers_are_kept(changes):
    tokenizer = train_wordpiece(["a gene binds the cells"] * 5, 60)
    rows = Dataset.from_dict({"text": ["the gene binds the [MASK] cells"]})
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    assert find_encoder(tokenizer) is None
    expected = tokenizer(rows["text"][0], truncation=True, max_length=7)["input_ids"]
    assert list(tokenize(rows, tokenizer, 7)["input_ids"][0]) == expected


def test_tokenizers_with_code_of_their_own_are_called():
    class Shouting(BertTokenizer):
        def __call__(self, texts, *args, **options):
            return super().__call__([text.upper() for text in texts], *args, **options)

    trained = train_wordpiece(["GENE gene"] * 5, 60, lowercase=False)
    tokenizer = Shouting(tokenizer_object=trained.backend_tokenizer, vocab=trained.get_vocab(), do_lower_case=False)
    tokens = tokenize(Dataset.from_dict({"text": ["gene"]}), tokenizer, 8)
    assert list(tokens["input_ids"][0]) == trained("GENE")["input_ids"]


def test_a_full_memory_begins_again(monkeypatch):
    monkeypatch.setattr(word_pieces, "MOST_WORDS", 3)
    monkeypatch.setattr(word_pieces, "LONGEST_WORD", 6)
    tokenizer = TOKENIZERS["lower case"]
    word_piece_encoder.cache_clear()
    encoder = word_piece_encoder(tokenizer.backend_tokenizer.to_str())
    for text in ["a gene binds the cells of naïve mice", "long words: " + "gene" * 10] * 2:
        assert encoder.encode([text], max_length=64)["input_ids"] == [tokenizer(text)["input_ids"]]
        assert len(encoder._known) <= 3 and all(len(word) <= 6 for word in encoder._known)
    word_piece_encoder.cache_clear()


def test_no_room_for_tokens_is_left_to_the_tokenizer():
    encoder = find_encoder(TOKENIZERS["lower case"])
    assert encoder.encode(["a"], max_length=2) is None and encoder.encode(["a"], ["a"], max_length=3) is None


def test_the_module_imports_only_tokenizers(tmp_path):
    """A program without torch may use it (docs/how_to/onnxruntime_without_torch.md)."""
    tokenizer = TOKENIZERS["lower case"]
    tokenizer.save_pretrained(tmp_path)
    program = f"""
import sys
from pathlib import Path

from hf_tlm.data.word_pieces import word_piece_encoder

encoder = word_piece_encoder(Path({str(tmp_path / "tokenizer.json")!r}).read_text(encoding="utf-8"))
print(encoder.encode(["a gene binds"], max_length=128)["input_ids"])
print({{"torch", "transformers", "datasets", "numpy"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str([tokenizer("a gene binds")["input_ids"]]), "set()"]
