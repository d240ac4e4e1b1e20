"""Attention maps of real model classes: separator tokens, batches, padding, and models without maps."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from hf_tlm.analysis import AnalysisError, AttentionHead, attention, count_maxima, measure_heads, separator_ids, text_maps
from support.toys import COMMON, SIZES, TINY_CONFIGS, sentences

CONFIGS = TINY_CONFIGS | {
    "deberta-v2": {**COMMON, **SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "xlnet": {"vocab_size": 120, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
    "t5": {"vocab_size": 120, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    "gpt2": {"vocab_size": 120, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "bos_token_id": 2},
}
TEXTS = [f"{row['text']}." for row in sentences(11, seed=5)]


def model_of(name, **options):
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(name, **CONFIGS[name]), **options)
    for parameter in model.parameters():  # Far from uniform attention: the maximum does not depend on rounding.
        if parameter.dim() == 2:
            parameter.data *= 8
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_do_not_depend_on_batches(name, tokenizer):
    model = model_of(name)
    one, eight = (measure_heads(model, tokenizer, TEXTS, batch_size=size) for size in (1, 8))
    assert one == eight == measure_heads(model, tokenizer, TEXTS[::-1], batch_size=3)
    assert [(head.layer, head.head) for head in one] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert {head.rows for head in one} == {sum(len(ids) for ids in tokenizer(TEXTS)["input_ids"])}
    assert any(head.adjacent or head.separators for head in one)
    if name == "gpt2":
        assert not any(head.next for head in one)


def test_counts_equal_those_of_the_maps(tokenizer):
    model = model_of("electra")
    expected = torch.zeros(2, 2, 4, dtype=torch.int64)
    for text in TEXTS:
        text_result = text_maps(model, tokenizer, text, 40)
        ids = torch.tensor([tokenizer.convert_tokens_to_ids(text_result.tokens)])
        special = torch.tensor([[token in ("[CLS]", "[SEP]", ".") for token in text_result.tokens]])
        assert text_result.tokens[0] == "[CLS]" and text_result.tokens[-2:] == [".", "[SEP]"]
        for layer, maps in enumerate(text_result.maps):
            assert np.allclose(maps.sum(-1), 1, atol=1e-5) and maps.dtype == np.float32
            expected[layer] += count_maxima(torch.from_numpy(maps)[None], torch.ones_like(ids), special)
    rows = sum(len(ids) for ids in tokenizer(TEXTS)["input_ids"])
    wanted = [
        AttentionHead(n // 2 + 1, n % 2 + 1, rows, *counts) for n, counts in enumerate(expected.flatten(0, 1).tolist())
    ]
    assert measure_heads(model, tokenizer, TEXTS) == wanted


def test_measuring_does_not_change_the_model(tokenizer):
    """Also a model in training mode, with faster attention, and with a head."""
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **CONFIGS["bert"])).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert measure_heads(model, tokenizer, TEXTS) == measure_heads(model, tokenizer, TEXTS)  # Without dropout.
    assert model.training and model.config._attn_implementation == "sdpa" and not model.config.output_attentions
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model(torch.ones(1, 4, dtype=torch.int64)).attentions is None


def test_pairs_are_one_input_and_long_texts_truncated(tokenizer):
    model = model_of("bert")
    (pair,) = {head.rows for head in measure_heads(model, tokenizer, [("the gene", "the cell")])}
    assert pair == len(tokenizer("the gene", "the cell")["input_ids"])
    assert measure_heads(model, tokenizer, [TEXTS[0] * 9], max_length=10)[0].rows == 10
    assert len(text_maps(model, tokenizer, TEXTS[0] * 9, 7).tokens) == 7


def test_memory_of_the_maps_of_a_batch_is_bounded(tokenizer, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        attention,
        "DataCollatorWithPadding",
        lambda _: lambda rows: sizes.append(rows) or tokenizer.pad(rows, return_tensors="pt"),
    )
    expected = measure_heads(model_of("bert"), tokenizer, TEXTS)
    assert [len(rows) for rows in sizes] == [11]
    sizes.clear()
    longest = max(len(ids) for ids in tokenizer(TEXTS)["input_ids"])
    monkeypatch.setattr(attention, "WEIGHTS", 4 * 2 * longest**2)  # 2 layers of 2 heads: two texts.
    assert measure_heads(model_of("bert"), tokenizer, TEXTS) == expected
    lengths = [[len(row["input_ids"]) for row in rows] for rows in sizes]
    assert len(lengths[0]) == 2 and sum(lengths, []) == sorted(sum(lengths, []), reverse=True)
    assert all(4 * len(batch_lengths) * batch_lengths[0] ** 2 <= attention.WEIGHTS for batch_lengths in lengths)
    monkeypatch.setattr(attention, "WEIGHTS", 1)
    assert measure_heads(model_of("bert"), tokenizer, TEXTS) == expected


def tokenizer_of(tokens, **special):
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", **special)


@pytest.mark.parametrize(
    ("tokens", "special", "expected"),
    [
        ("<unk> [PAD] [CLS] [SEP] a . ##. ... a.", {"cls_token": "[CLS]", "sep_token": "[SEP]"}, "[CLS] [SEP] . ##."),
        ("<unk> <s> </s> . Ġ. Ġa. #. .Ġ", {"cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>"}, "<s> </s> . Ġ."),
        ("<unk> <pad> </s> ▁. ▁a . ▁.. 。", {"eos_token": "</s>"}, "</s> ▁. ."),
        ("<unk> .</w> . a</w>", {}, ".</w> ."),
    ],
    ids=["bert", "roberta", "t5", "bpe"],
)
def test_separators_of_different_tokenizers(tokens, special, expected):
    tokenizer = tokenizer_of(tokens.split(), **special)
    assert separator_ids(tokenizer) == sorted(tokenizer.convert_tokens_to_ids(expected.split()))


def test_texts_without_tokens_are_skipped(tokenizer):
    bare = tokenizer_of(["<unk>", "<pad>", "a", "."], pad_token="<pad>")
    assert {head.rows for head in measure_heads(model_of("bert"), bare, ["a .", "", "a"])} == {3}
    with pytest.raises(AnalysisError, match="the 2 texts have no token"):
        measure_heads(model_of("bert"), bare, ["", " "])
    with pytest.raises(AnalysisError, match="the 0 texts"):
        measure_heads(model_of("bert"), tokenizer, [])


def test_unusable_texts_tokenizer_or_model_are_refused(tokenizer):
    model = model_of("bert")
    for texts, message in (
        (["a", None], "number 1 is None"),
        ([("a", None)], r"number 0 is \('a', None\)"),
        (["a", ("b", "c")], "Some texts are pairs"),
        ([TEXTS[0] * 20], "has 60 tokens, but the model has 40 positions"),
    ):
        with pytest.raises(AnalysisError, match=message):
            measure_heads(model, tokenizer, texts, max_length=60)
    with pytest.raises(AnalysisError, match="this tokenizer has none. Set one"):
        measure_heads(model, tokenizer_of(["<unk>", "a"]), ["a"])
    small = AutoModel.from_config(AutoConfig.for_model("bert", **{**CONFIGS["bert"], "vocab_size": 3}))
    with pytest.raises(AnalysisError, match="but the model embeds 3 tokens"):
        measure_heads(small, tokenizer, TEXTS)
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[:] = torch.nan
    with pytest.raises(AnalysisError, match="diverged"):
        measure_heads(model, tokenizer, TEXTS)


@pytest.mark.parametrize("name", ["fnet", "longformer"])
def test_model_without_full_attention_maps_is_refused(name, tokenizer):
    sizes = {key: value for key, value in SIZES.items() if key != "num_attention_heads"} if name == "fnet" else SIZES
    window = {"attention_window": [4, 4]} if name == "longformer" else {}
    model = AutoModel.from_config(AutoConfig.for_model(name, **{**COMMON, **sizes, **window, "max_position_embeddings": 80}))
    with pytest.raises(AnalysisError, match="returns no attention maps of all tokens to all tokens"):
        measure_heads(model, tokenizer, TEXTS)
