"""Building blocks from texts, compared with a transcription of each rule; no token is lost."""

import re

import pytest
from transformers import PreTrainedTokenizerFast, RobertaTokenizer

from hf_tlm.data import BlockMaker, BlocksError, TokenizerError
from support.kind_toys import TOKENIZERS

TEXTS = [
    "The gene binds. The cell meets the drug! The acid raises the tumor and the protein and the receptor.",
    "One enzyme.",
    "   ",
    "The gene. The drug. " * 9 + "The end",
    "the receptor and the acid and " * 12,
    "Is it (a cell)? No.",
]


def make_blocks(tokenizer, max_length, mode, texts=TEXTS):
    maker = BlockMaker(tokenizer, max_length, mode)
    for _ in maker.add(texts):
        pass
    maker.finish()
    return [block.tolist() for block in maker.blocks], maker


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def contiguous_blocks(tokenizer, max_length):
    stream = []
    for text in TEXTS:
        if ids := ids_of(tokenizer, text):
            stream += ([tokenizer.sep_token_id] if stream else []) + ids
    size = max_length - 2
    return [[tokenizer.cls_token_id, *stream[at : at + size], tokenizer.sep_token_id] for at in range(0, len(stream), size)]


def sentence_blocks(tokenizer, max_length):
    size, blocks, block = max_length - 2, [], []
    for text in TEXTS:
        first = True
        for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
            if not (ids := ids_of(tokenizer, sentence)):
                continue
            between = [tokenizer.sep_token_id] if first and block else []
            if len(block) + len(between) + len(ids) > size and block:
                blocks, block, between = [*blocks, block], [], []
            block, first = block + between + ids, False
            while len(block) > size:
                blocks, block = [*blocks, block[:size]], block[size:]
    return [[tokenizer.cls_token_id, *b, tokenizer.sep_token_id] for b in [*blocks, block]]


@pytest.mark.parametrize("max_length", [3, 7, 12, 31, 1000])
@pytest.mark.parametrize("mode,rule", [("contiguous", contiguous_blocks), ("sentences", sentence_blocks)])
def test_blocks_equal_the_transcription(tokenizer, max_length, mode, rule):
    blocks, maker = make_blocks(tokenizer, max_length, mode)
    assert blocks == rule(tokenizer, max_length)
    assert all(len(block) <= max_length for block in blocks)
    inside = [token for block in blocks for token in block[1:-1] if token != tokenizer.sep_token_id]
    assert inside == [token for text in TEXTS for token in ids_of(tokenizer, text)] and len(inside) == maker.tokens


@pytest.mark.parametrize("mode", ["contiguous", "sentences"])
def test_blocks_do_not_depend_on_how_texts_are_added(tokenizer, mode, monkeypatch):
    from hf_tlm.data import blocks

    expected = make_blocks(tokenizer, 9, mode)[0]
    monkeypatch.setattr(blocks, "_CHUNK_CHARACTERS", 40)
    assert make_blocks(tokenizer, 9, mode)[0] == expected
    maker, found = BlockMaker(tokenizer, 9, mode), []
    for text in TEXTS:
        # Each text has its own maker, which restores the state of the previous one.
        after = BlockMaker(tokenizer, 9, mode)
        after.restore(maker.state())
        maker = after
        list(maker.add([text]))
        found += [block.tolist() for block in maker.blocks[:2]]
        del maker.blocks[:2]
    maker.finish()
    assert found + [block.tolist() for block in maker.blocks] == expected


@pytest.fixture
def byte_level():
    """A tokenizer like RoBERTa's, whose words include the preceding space."""
    characters = sorted({chr(c) for c in range(33, 127)} | {"Ġ", "Ċ"})
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    return RobertaTokenizer(vocab={piece: i for i, piece in enumerate([*special, *characters, "Ġt"])}, merges=[("Ġ", "t")])


@pytest.mark.parametrize("mode", ["contiguous", "sentences"])
def test_byte_level_blocks_keep_preceding_spaces(byte_level, mode):
    """With its own special tokens, and the tokens of the complete text instead of those of single sentences."""
    text = "A cell. the gene! the end."
    blocks, _ = make_blocks(byte_level, 12, mode, [text])
    assert [token for block in blocks for token in block[1:-1]] == ids_of(byte_level, text)
    assert {(block[0], block[-1]) for block in blocks} == {(0, 2)}
    if mode == "sentences":
        assert [byte_level.decode(block[1:-1]) for block in blocks] == ["A cell.", " the gene!", " the end."]


def test_sentences_begin_with_their_first_word():
    """Tokenizers like ModernBERT's count the space before a word among its characters."""
    tokenizer = TOKENIZERS["modernbert"]()
    sentences = ["the enzyme is in the cell.", "Where is it?", "The receptor meets it.", "the gene"]
    blocks, _ = make_blocks(tokenizer, 40, "sentences", [" ".join(sentences)])
    assert len(blocks) > 1
    text = " ".join(sentences)
    decoded = [tokenizer.decode(block[1:-1]) for block in blocks]
    assert "".join(decoded) == text
    assert all(block[-1] in ".?" for block in decoded[:-1]), decoded


def test_invalid_arguments_are_refused(tokenizer):
    with pytest.raises(BlocksError, match="max_length must be at least 3: .*; received 2"):
        BlockMaker(tokenizer, 2)
    with pytest.raises(BlocksError, match="must be contiguous or sentences; received 'words'"):
        BlockMaker(tokenizer, 8, "words")
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]", mask_token="[MASK]")
    with pytest.raises(TokenizerError, match="puts a cls_token before a text"):
        BlockMaker(bare, 8)
