"""The released checkpoints' tokenizer.

Its ids were compared with those of the code published with them, on 5,000 lines and 20,000 random texts; what that code
does is written out here.
"""

import pickle

import pytest

pytest.importorskip("sentencepiece", reason="the extra [sentencepiece] is not installed")

from transformers import AutoTokenizer, BertTokenizer

from hf_tlm.models.coco_lm import CocoLmConfig, CocoLmTokenizer
from hf_tlm.models.coco_lm.tokenization_coco_lm import drop_spaces, read_dictionary, split_words
from support.released_layout import write_tokenizer

TEXT = "The enzyme's model, it'll see"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("released")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def released(folder):
    return CocoLmTokenizer(folder / "sp.model", folder / "dict.txt", model_max_length=40)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("  two \t words\n", "two words"),
        ("``a'' “b” ‘c’ d´e", '" a " " b " \' c \'d\'e'),
        ("a—b – c", "a-b - c"),
        ("(see [3], $5.)", "( see [ 3 ], $ 5 .)"),
        ("... ?! 'tis", "... ?! ' tis"),
        ("he 's we 'll they ' re I 'VE", "he 's we 'll they 're I 'VE"),
        ("'small 'Ll", "' small ' Ll"),
        ("'LL-x 'll-x", "'LL -x 'll-x"),
        ("«été» 漢字。", "« été » 漢字 。"),
        ("x=y <mask>", "x=y < mask >"),
        (" ", ""),
    ],
)
def test_split_words_equals_the_published_code(text, expected):
    """The expected output is that of the published code."""
    assert split_words(text) == expected


@pytest.mark.parametrize(
    "pieces,expected",
    [
        (["▁a", "▁", "."], ["▁a", "."]),
        (["▁a", "▁", "b", "▁"], ["▁a", "▁", "b"]),
        (["▁", "▁", "$x"], ["▁", "$x"]),
        (["▁"], []),
        ([], []),
    ],
)
def test_drop_spaces_drops_single_space_symbols(pieces, expected):
    assert drop_spaces(pieces) == expected


class TestDictionary:
    def test_ids_of_the_dictionary(self, tmp_path):
        """A repeated symbol keeps its first id; special tokens may have either name; counts may be missing, and symbols
        have spaces."""
        lines = "<unk> 4\n[CLS] 3\n▁the 7\na b 7\nalone\n▁the 6\n<pad> 1\n▁of 2\n"
        (tmp_path / "dict.txt").write_text(lines, encoding="utf-8")
        symbols = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "▁the", "a b", "alone", "▁of"]
        assert read_dictionary(tmp_path / "dict.txt") == [*symbols, "[MASK]"]
        (tmp_path / "dict.txt").write_text("<mask> 0\n" + lines, encoding="utf-8")
        assert read_dictionary(tmp_path / "dict.txt") == [*symbols[:4], "[MASK]", *symbols[4:]]

    def test_invalid_dictionary_is_refused(self, tmp_path):
        (tmp_path / "dict.txt").write_text("▁the 7\n▁of seven\n", encoding="utf-8")
        with pytest.raises(ValueError, match="Line 2 of .* a symbol, a space and a count; found '▁of seven'"):
            read_dictionary(tmp_path / "dict.txt")


class TestTokenizer:
    def test_token_ids_follow_the_dictionary(self, released):
        lines = open(released.dict_file, encoding="utf-8").read().splitlines()
        token_ids = {line.split(" ")[0]: number for number, line in enumerate(lines, start=4)}
        pieces = released.pieces.encode("The enzyme 's model , it 'll see", out_type=str)
        expected = [token_ids.get(piece, 3) for piece in drop_spaces(pieces)]
        assert released(TEXT)["input_ids"] == [0, *expected, 2]
        assert 3 not in expected[4:] and len(set(expected)) > 5
        assert len(released) == released.vocab_size == len(lines) + 5 and released.mask_token_id == len(lines) + 4

    def test_special_tokens(self, released):
        assert released.all_special_ids == [released.convert_tokens_to_ids(t) for t in released.all_special_tokens]
        for number, names in enumerate((("<s>", "[CLS]"), ("<pad>", "[PAD]"), ("</s>", "[SEP]"), ("<unk>", "[UNK]", "漢"))):
            assert released.convert_tokens_to_ids(list(names)) == [number] * len(names)
        assert released.convert_tokens_to_ids(["<mask>", "[MASK]"]) == [released.mask_token_id] * 2
        with_mask = released("the [MASK] see")["input_ids"]
        assert (
            with_mask
            == [0, *released.encode("the", add_special_tokens=False), released.mask_token_id]
            + (released("see")["input_ids"][1:])
        )
        assert released.mask_token_id not in released("the [MASK] see", split_special_tokens=True)["input_ids"]

    def test_pairs_and_truncation(self, released):
        first, second = (released.encode(text, add_special_tokens=False) for text in (TEXT, "the gene model"))
        assert released(TEXT, "the gene model")["input_ids"] == [0, *first, 2, 2, *second, 2]
        # The longer of the two loses its last token, or the second one where they are equally long.
        keep = len(second) - 1
        short = released(TEXT, "the gene model", truncation=True, max_length=2 * keep + 5)["input_ids"]
        assert len(first) > len(second) and short == [0, *first[: keep + 1], 2, 2, *second[:keep], 2]
        assert released(TEXT, truncation=True, max_length=6)["input_ids"] == [0, *first[:4], 2]
        padded = released([TEXT, "the"], padding=True)
        assert set(padded) == {"input_ids", "attention_mask"} and padded["input_ids"][1][-1] == 1

    def test_decode(self, released):
        ids = released("the enzyme , it's")["input_ids"]
        assert released.decode(ids, skip_special_tokens=True) == "the enzyme, it's"
        assert released.decode(ids).startswith("[CLS] the")

    def test_saved_and_pickled_tokenizers_are_equal(self, released, tmp_path):
        released.save_pretrained(tmp_path)
        for again in (CocoLmTokenizer.from_pretrained(tmp_path), pickle.loads(pickle.dumps(released))):
            assert again(TEXT, "see")["input_ids"] == released(TEXT, "see")["input_ids"]
            assert again.get_vocab() == released.get_vocab() and again.model_max_length == 40
        again = CocoLmTokenizer.from_pretrained(tmp_path)
        again.add_tokens("<extra>")
        again.save_pretrained(tmp_path)  # Overwrites its own files.
        again = CocoLmTokenizer.from_pretrained(tmp_path)
        assert again("<extra>")["input_ids"] == [0, len(released), 2] and len(again) == len(released) + 1

    def test_invalid_sentencepiece_model_is_refused(self, folder):
        with pytest.raises(ValueError, match="dict.txt is not a sentencepiece model"):
            CocoLmTokenizer(folder / "dict.txt", folder / "dict.txt")


def test_other_tokenizer_class_of_a_coco_lm_model_is_kept(tokenizer, tmp_path):
    CocoLmConfig().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is type(tokenizer) is BertTokenizer
