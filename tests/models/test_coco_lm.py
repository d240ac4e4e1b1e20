"""COCO-LM's body and heads compared with plain transcriptions, under packing and padding, and as saved files."""

import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, pipeline, set_seed
from transformers.models.t5.modeling_t5 import T5Attention

from hf_tlm.models import GeneratorDiscriminator, ModelError, generator_config
from hf_tlm.models.coco_lm import (
    CocoLmConfig,
    CocoLmForMaskedLM,
    CocoLmForMultipleChoice,
    CocoLmForQuestionAnswering,
    CocoLmForSequenceClassification,
    CocoLmForTokenClassification,
    CocoLmModel,
    as_bert,
    export_bert,
    relative_position_buckets,
)
from hf_tlm.models.coco_lm.modeling_coco_lm import add_bias
from hf_tlm.models.coco_lm.relative_positions import RelativePositionBias

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DISTANCES = torch.arange(-600, 601)
PAPER = [(32, 128), (64, 128), (128, 256)]
modes = pytest.mark.parametrize("mode", ["t5", "signed", None])


def make_model(cls=CocoLmModel, seed=0, **changes):
    """Return a model in float64 and evaluation mode, with few buckets, so that all are used, and a bias that matters."""
    set_seed(seed)
    values = {"max_position_embeddings": 40, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    model = cls(CocoLmConfig(**{**SIZES, "num_labels": 3, **values, **changes})).eval().double()
    if model.base_model.relative_attention_bias is not None:
        torch.nn.init.normal_(model.base_model.relative_attention_bias.weight)
    return model


def inputs(lengths=(9, 5, 7), side="right", width=12):
    generator = torch.Generator().manual_seed(3)
    ids, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        span = slice(0, length) if side == "right" else slice(width - length, width)
        ids[row, span] = torch.randint(5, 60, (length,), generator=generator)
        mask[row, span] = 1
    return {"input_ids": ids, "attention_mask": mask}


class TestBuckets:
    @pytest.mark.parametrize("num_buckets,max_distance", PAPER)
    def test_t5_buckets(self, num_buckets, max_distance):
        expected = T5Attention._relative_position_bucket(DISTANCES, True, num_buckets, max_distance)
        assert torch.equal(relative_position_buckets(DISTANCES, "t5", num_buckets, max_distance), expected)

    @pytest.mark.parametrize("bins,max_distance", PAPER)
    def test_signed_buckets(self, bins, max_distance):
        def plain(n):
            half, size = bins // 2, abs(n)
            exact = half // 2
            if size >= exact:
                steps = math.log(size / exact) / math.log((max_distance - 1) / exact) * (half - 1 - exact)
                size = min(half - 1, exact + math.ceil(steps))
            return size * ((n > 0) - (n < 0))

        expected = torch.tensor([plain(n) for n in DISTANCES.tolist()])
        expected -= expected.min().clone()
        found = relative_position_buckets(DISTANCES, "signed", bins, max_distance)
        assert torch.equal(found, expected) and len(found.unique()) == bins - 1

    @pytest.mark.parametrize("mode", ["t5", "signed"])
    def test_table_covers_all_distances(self, mode):
        bias = RelativePositionBias(mode, 32, 128, 3)
        torch.nn.init.normal_(bias.weight)
        found = bias(torch.arange(601)[None])
        assert found.shape == (1, 3, 601, 601)
        rows = relative_position_buckets(DISTANCES, mode, 32, 128)
        # The first query sees distances 0 to 600, the last one -600 to 0.
        assert torch.equal(found[0, :, 0].T, bias.weight[rows[600:]])
        assert torch.equal(found[0, :, 600].T, bias.weight[rows[:601]])

    @pytest.mark.parametrize(
        "changes,message",
        [
            ({"relative_attention_mode": "T5"}, "one of .*'t5', 'signed'.*received 'T5'"),
            ({"relative_attention_num_buckets": 7}, "even and at least 4; received 7"),
            ({"relative_attention_max_distance": 4}, "more than half of the 8 buckets; received 4"),
        ],
    )
    def test_invalid_config_values_are_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            make_model(**changes)


def plain_forward(model, input_ids, attention_mask):
    """Return the hidden states of post-LayerNorm BERT with a bias on the scores, written out; float64, no dropout."""
    config, w = model.config, model.state_dict()
    heads, depth = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    length = input_ids.shape[1]

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + config.layer_norm_eps).sqrt()
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def split(x):
        return x.reshape(*x.shape[:2], heads, depth).transpose(1, 2)

    x = w["embeddings.word_embeddings.weight"][input_ids] + w["embeddings.position_embeddings.weight"][:length]
    x = norm("embeddings.LayerNorm", x) * attention_mask[:, :, None]
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    rows = relative_position_buckets(distance, config.relative_attention_mode, 8, 12)
    bias = w["relative_attention_bias.weight"][rows].permute(2, 0, 1)
    states = [x]
    for i in range(config.num_hidden_layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (split(linear(f"{layer}.attention.self.{name}", x)) for name in ("query", "key", "value"))
        scores = q @ k.transpose(2, 3) / math.sqrt(depth) + bias
        scores = scores.masked_fill(attention_mask[:, None, None] == 0, -math.inf)
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = norm(f"{layer}.attention.output.LayerNorm", linear(f"{layer}.attention.output.dense", context) + x)
        x = norm(
            f"{layer}.output.LayerNorm",
            linear(f"{layer}.output.dense", F.gelu(linear(f"{layer}.intermediate.dense", x))) + x,
        )
        states.append(x)
    return states


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("mode", ["t5", "signed"])
def test_hidden_states_equal_a_plain_transcription(mode, attention):
    model, batch = make_model(relative_attention_mode=mode, attn_implementation=attention), inputs()
    for found, expected in zip(
        model(**batch, output_hidden_states=True).hidden_states, plain_forward(model, **batch), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_attention_weights_are_returned_and_exclude_padding():
    model, batch = make_model(attn_implementation="eager"), inputs()
    attentions = model(**batch, output_attentions=True).attentions
    assert [a.shape for a in attentions] == [(3, 2, 12, 12)] * 2
    assert all((a[batch["attention_mask"][:, None, None].expand_as(a) == 0] == 0).all() for a in attentions)


@modes
@pytest.mark.parametrize("absolute", [True, False])
def test_padding_on_either_side_changes_nothing(mode, absolute):
    model = make_model(relative_attention_mode=mode, absolute_positions=absolute)
    right, left = inputs(), inputs(side="left")
    if absolute:
        left["position_ids"] = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
    padded = [model(**batch).last_hidden_state[batch["attention_mask"].bool()] for batch in (right, left)]
    alone = [model(ids[mask.bool()][None]).last_hidden_state[0] for ids, mask in zip(*right.values(), strict=True)]
    for found in padded:
        torch.testing.assert_close(found, torch.cat(alone), rtol=1e-10, atol=1e-12)
    # But the order of the tokens matters as soon as there are positions of any kind.
    swapped = model(right["input_ids"][:1, :9].flip(1)).last_hidden_state.flip(1)
    assert torch.allclose(swapped[0], alone[0], atol=1e-6) == (mode is None and not absolute)


@modes
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_texts_equal_single_texts(mode, attention):
    """Outputs and the gradient of the bias; the second row is padded."""
    model = make_model(relative_attention_mode=mode, attn_implementation=attention)
    batch = inputs(lengths=(7, 5, 9))
    rows = torch.zeros(2, 12, dtype=torch.long)
    texts, positions = torch.zeros_like(rows), torch.zeros_like(rows)
    for row, start, text, length in ((0, 0, 0, 7), (0, 7, 1, 5), (1, 0, 2, 9)):
        span = slice(start, start + length)
        rows[row, span], texts[row, span] = batch["input_ids"][text, :length], text + 1
        positions[row, span] = torch.arange(length)
    visible = texts[:, None, :, None] == texts[:, None, None, :]
    if attention == "eager":
        visible = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
    packed = model(rows, attention_mask=visible, position_ids=positions).last_hidden_state[texts > 0]
    padded = model(**batch).last_hidden_state[batch["attention_mask"].bool()]
    torch.testing.assert_close(packed, padded, rtol=1e-10, atol=1e-12)
    if mode is not None:
        weight = model.relative_attention_bias.weight
        found, expected = (torch.autograd.grad(hidden.pow(3).sum(), weight)[0] for hidden in (packed, padded))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        assert (expected.abs().sum(1) > 0).sum() == 7  # Both modes leave one of 8 buckets empty.


def test_gradient_checkpointing_gives_the_same_gradients():
    gradients = []
    for checkpointing in (False, True):
        model = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing == checkpointing
        model(**inputs()).last_hidden_state.pow(3).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert "relative_attention_bias.weight" in gradients[0]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_zero_padding_zeroes_the_embeddings_of_padding():
    batch = inputs()
    padding = batch["attention_mask"] == 0
    states = {
        zero: make_model(zero_padding=zero)(**batch, output_hidden_states=True).hidden_states for zero in (True, False)
    }
    assert states[True][0][padding].eq(0).all() and not states[False][0][padding].eq(0).any()
    torch.testing.assert_close(states[True][2][~padding], states[False][2][~padding])


def test_config_switches_remove_parameters():
    def names(**changes):
        return {name for name, _ in make_model(CocoLmForMaskedLM, **changes).named_parameters()}

    full = names(type_vocab_size=2)
    body = "cocolm.embeddings"
    assert full - names() == {f"{body}.token_type_embeddings.weight"}
    assert full - names(type_vocab_size=2, copy_bias=False) == {"copy_head.bias"}
    assert full - names(type_vocab_size=2, copy_head=False) == {"copy_head.weight", "copy_head.bias"}
    assert full - names(type_vocab_size=2, absolute_positions=False) == {f"{body}.position_embeddings.weight"}
    assert full - names(type_vocab_size=2, relative_attention_mode=None) == {"cocolm.relative_attention_bias.weight"}
    batch, types = inputs(), torch.ones(3, 12, dtype=torch.long)
    for count in (0, 2):
        model = make_model(type_vocab_size=count)
        typed = model(**batch, token_type_ids=types).last_hidden_state
        assert torch.equal(typed, model(**batch).last_hidden_state) == (count == 0)


def test_inputs_embeds_equal_input_ids():
    model, batch = make_model(), inputs()
    embedded = model.get_input_embeddings()(batch["input_ids"])
    expected = model(**batch).last_hidden_state
    assert torch.equal(model(inputs_embeds=embedded, attention_mask=batch["attention_mask"]).last_hidden_state, expected)
    for wrong in ({}, {**batch, "inputs_embeds": embedded}):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
            model(**wrong)


def test_empty_text_under_autocast_is_finite():
    """In a row of only padding the lowest number must not become -inf in half precision."""
    bias = torch.zeros(1, 2, 3, 3)
    masked = add_bias(torch.zeros(1, 1, 3, 3, dtype=torch.bool), bias)
    assert masked.to(torch.bfloat16).isfinite().all() and (masked.softmax(-1) == 1 / 3).all()
    model, batch = make_model().float(), inputs(lengths=(9, 0))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(**batch).last_hidden_state
    hidden.float().pow(3).sum().backward()
    assert hidden.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_main_and_auxiliary_share_embeddings_but_not_relative_positions():
    config = make_model().config
    composite = GeneratorDiscriminator.from_config(config, generator_config(config, 1, 1))
    main, auxiliary = composite.main.base_model, composite.auxiliary.base_model
    assert main.embeddings.position_embeddings.weight is auxiliary.embeddings.position_embeddings.weight
    assert main.relative_attention_bias.weight is not auxiliary.relative_attention_bias.weight


class TestHeads:
    def test_masked_lm_logits_and_loss(self):
        model, batch = make_model(CocoLmForMaskedLM), inputs()
        torch.nn.init.normal_(model.lm_head.bias)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        output = model(**batch, labels=labels)
        hidden = model.cocolm(**batch).last_hidden_state
        embedding = model.get_input_embeddings().weight
        assert model.lm_head.weight is embedding
        torch.testing.assert_close(output.logits, hidden @ embedding.T + model.lm_head.bias)
        torch.testing.assert_close(output.copy_logits, hidden @ model.copy_head.weight[0] + model.copy_head.bias)
        expected = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten()).float()
        torch.testing.assert_close(output.loss, expected)
        assert make_model(CocoLmForMaskedLM, copy_head=False)(**batch).copy_logits is None

    def test_sequence_classification_logits_and_loss(self):
        model, batch, labels = make_model(CocoLmForSequenceClassification), inputs(), torch.tensor([0, 2, 1])
        output = model(**batch, labels=labels)
        torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, labels))
        pooled = torch.tanh(model.cocolm.pooler.dense(model.cocolm(**batch).last_hidden_state[:, 0]))
        torch.testing.assert_close(output.logits, model.classifier(pooled))

    def test_token_classification_logits_and_loss(self):
        model, batch = make_model(CocoLmForTokenClassification), inputs()
        labels = torch.where(batch["attention_mask"] == 1, batch["input_ids"] % 3, -100)
        output = model(**batch, labels=labels)
        assert output.logits.shape == (3, 12, 3)
        torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.float().flatten(0, 1), labels.flatten()))

    def test_question_answering_logits_and_loss(self):
        model, batch = make_model(CocoLmForQuestionAnswering).train(), inputs()
        starts, ends = torch.tensor([1, 2, 99]), torch.tensor([3, 2, 99])  # The third text has no answer.
        model.eval()
        output = model(**batch, start_positions=starts, end_positions=ends)
        logits = model.qa_outputs(model.cocolm(**batch).last_hidden_state)
        torch.testing.assert_close(torch.stack([output.start_logits, output.end_logits], -1), logits)
        parts = [F.cross_entropy(each[:2], place[:2]) for each, place in zip(logits.unbind(-1), (starts, ends), strict=True)]
        torch.testing.assert_close(output.loss, sum(parts) / 2)
        assert model(**batch).loss is None

    def test_multiple_choice_logits_and_loss(self):
        model, batch, labels = make_model(CocoLmForMultipleChoice), inputs(lengths=(9, 5, 7, 3)), torch.tensor([1, 0])
        output = model(**{name: value.view(2, 2, 12) for name, value in batch.items()}, labels=labels)
        pooled = model.cocolm(**batch).pooler_output
        torch.testing.assert_close(output.logits, model.classifier(pooled).view(2, 2))
        torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, labels))


CLASSES = [
    CocoLmModel,
    CocoLmForMaskedLM,
    CocoLmForSequenceClassification,
    CocoLmForTokenClassification,
    CocoLmForQuestionAnswering,
    CocoLmForMultipleChoice,
]


def outputs(model, multiple_choice):
    """Return the first output; token-level outputs without padding."""
    batch = inputs(lengths=(9, 5))
    shaped = {name: value[None] for name, value in batch.items()} if multiple_choice else batch
    with torch.no_grad():
        found = model(**shaped)[0]
    return found[batch["attention_mask"].bool()] if found.shape[:2] == (2, 12) else found


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_auto_classes_load_a_saved_model(cls, tmp_path):
    import transformers

    model = make_model(cls)
    model.save_pretrained(tmp_path)
    auto = getattr(transformers, cls._auto_class)
    loaded, info = auto.from_pretrained(tmp_path, dtype=torch.float64, output_loading_info=True)
    assert type(loaded) is cls and not info["missing_keys"] and not info["unexpected_keys"]
    choices = cls is CocoLmForMultipleChoice
    assert torch.equal(outputs(loaded, choices), outputs(model, choices))


@pytest.mark.slow
def test_saved_folder_loads_without_hf_tlm(tokenizer, tmp_path):
    """With trust_remote_code and every class, in a process that cannot import hf_tlm; and saved again from there."""
    model = make_model(CocoLmForMaskedLM, relative_attention_mode="signed")
    model.save_pretrained(tmp_path / "m")
    batch = inputs()
    torch.save((batch, model(**batch).logits, model.base_model(**batch).last_hidden_state), tmp_path / "expected.pt")
    program = (
        "import sys, torch, transformers\n"
        "sys.modules['hf_tlm'] = None\n"
        f"batch, logits, hidden = torch.load('{tmp_path}/expected.pt')\n"
        f"for folder in ('{tmp_path}/m', '{tmp_path}/again'):\n"
        "    options = {'trust_remote_code': True, 'dtype': torch.float64}\n"
        "    lm = transformers.AutoModelForMaskedLM.from_pretrained(folder, **options).eval()\n"
        "    body = transformers.AutoModel.from_pretrained(folder, **options).eval()\n"
        "    for name in ('SequenceClassification', 'TokenClassification', 'QuestionAnswering', 'MultipleChoice'):\n"
        "        auto = getattr(transformers, 'AutoModelFor' + name)\n"
        "        assert type(auto.from_pretrained(folder, **options)).__name__ == 'CocoLmFor' + name\n"
        "    assert torch.equal(lm(**batch).logits, logits)\n"
        "    assert torch.equal(body(**batch).last_hidden_state, hidden)\n"
        f"    lm.save_pretrained('{tmp_path}/again')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HF_HOME": str(tmp_path / "home")
    }
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


def test_fill_mask_pipeline_equals_the_model(tokenizer):
    model = make_model(CocoLmForMaskedLM, vocab_size=len(tokenizer)).float()
    text = f"the enzyme {tokenizer.mask_token} the protein"
    best = pipeline("fill-mask", model=model, tokenizer=tokenizer)(text, top_k=2)
    ids = tokenizer(text, return_tensors="pt")
    position = ids["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    assert [each["token"] for each in best] == model(**ids).logits[0, position].topk(2).indices.tolist()


class TestStockBert:
    @pytest.mark.parametrize("cls", [c for c in CLASSES if c is not CocoLmForMaskedLM], ids=lambda cls: cls.__name__)
    @pytest.mark.parametrize("changes", [{"type_vocab_size": 2}, {"absolute_positions": False, "zero_padding": False}])
    def test_stock_bert_has_equal_outputs(self, cls, changes):
        model = make_model(cls, relative_attention_mode=None, **changes)
        choices = cls is CocoLmForMultipleChoice
        stock = as_bert(model)
        assert type(stock).__module__.startswith("transformers.")
        torch.testing.assert_close(outputs(stock, choices), outputs(model, choices), rtol=1e-10, atol=1e-12)

    def test_export_is_stock_bert(self, tokenizer, tmp_path):
        model = make_model(CocoLmForSequenceClassification, relative_attention_mode=None, id2label={0: "a", 1: "b", 2: "c"})
        folder = export_bert(model, tokenizer, tmp_path / "bert")
        loaded = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
        assert loaded.config.model_type == "bert" and loaded.config.id2label == {0: "a", 1: "b", 2: "c"}
        assert not list(folder.glob("*.py")) and (folder / "tokenizer.json").is_file()
        torch.testing.assert_close(outputs(loaded, False), outputs(model, False), rtol=1e-10, atol=1e-12)

    def test_body_of_a_masked_lm_converts_without_a_pooler(self):
        body = make_model(CocoLmForMaskedLM, relative_attention_mode=None).base_model
        assert as_bert(body).pooler is None
        torch.testing.assert_close(outputs(as_bert(body), False), outputs(body, False), rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize(
        "cls,mode,message",
        [(CocoLmModel, "t5", "has no relative positions.*'t5'"), (CocoLmForMaskedLM, None, "Pass the body")],
    )
    def test_models_without_a_stock_bert_are_refused(self, cls, mode, message):
        with pytest.raises(ModelError, match=message):
            as_bert(make_model(cls, relative_attention_mode=mode))
