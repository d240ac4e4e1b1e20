"""One pass with two heads equals the two stock classes, in float32 outputs and in gradients, for every family."""

import logging
import shutil

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_tlm.models import GeneratorDiscriminator, ModelError, TlmModel, build_config, export_stock
from hf_tlm.objectives import Mlm, TaskLoss, WeightedSum
from support.tiny_models import families, tiny
from support.toys import TINY_CONFIGS


def batch(masked=5):
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(5, 120, (4, 12), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 7:] = 0
    input_ids[1, 7:] = 0
    mlm_labels = torch.full_like(input_ids, -100)
    for i in range(masked):
        mlm_labels[i % 4, i + 1] = 7 + i
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "mlm_labels": mlm_labels,
        "labels": torch.tensor([0, 2, 1, 1]),
    }


def stock_models(model, tokenizer, folder):
    export_stock(model, tokenizer, folder)
    return [
        auto.from_pretrained(path, output_loading_info=True)
        for auto, path in (
            (AutoModelForSequenceClassification, folder),
            (AutoModelForMaskedLM, folder / "mlm"),
        )
    ]


def mlm_loss(logits, inputs):
    chosen = inputs["mlm_labels"] != -100
    return F.cross_entropy(logits[chosen], inputs["mlm_labels"][chosen], reduction="sum")


@families
def test_export_loads_as_stock_classes_with_equal_outputs(model_type, tokenizer, tmp_path):
    model, inputs = tiny(model_type).eval(), batch()
    (classifier, _), (lm, _) = loaded = stock_models(model, tokenizer, tmp_path / "out")
    for stock, info in loaded:
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        # COCO-LM, which transformers does not have, travels with its code: see test_coco_lm.py.
        assert type(stock).__module__.startswith("hf_tlm.models.coco_lm." if model_type == "cocolm" else "transformers.")
        stock.eval()
    plain = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        ours = model(**inputs)
        torch.testing.assert_close(ours.logits, classifier(**plain).logits, rtol=0, atol=1e-6)
        torch.testing.assert_close(ours.mlm_loss, mlm_loss(lm(**plain).logits, inputs), rtol=1e-6, atol=0)


@families
@pytest.mark.usefixtures("modernbert_in_float64")
def test_loss_and_every_gradient_equal_the_stock_classes(model_type, tokenizer, tmp_path):
    """This also proves that projecting only the masked positions equals projecting all of them."""
    model, inputs = tiny(model_type).eval().double(), batch()
    (classifier, _), (lm, _) = stock_models(model, tokenizer, tmp_path / "out")
    classifier, lm = classifier.eval().double(), lm.eval().double()
    # The same body twice: sum the two losses' gradients by hand.
    stock_inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    full = lm(**stock_inputs).logits.flatten(0, 1)
    rho2 = 20.0
    mlm_loss = F.cross_entropy(full, inputs["mlm_labels"].flatten(), ignore_index=-100)
    task_loss = F.cross_entropy(classifier(**stock_inputs).logits, inputs["labels"])
    (rho2 * mlm_loss).backward()
    task_loss.backward()

    terms = WeightedSum((rho2, Mlm()), (1.0, TaskLoss()))(model(**inputs), inputs)
    torch.testing.assert_close(terms["loss"], rho2 * mlm_loss + task_loss)
    torch.testing.assert_close(terms["mlm_loss"], mlm_loss)
    torch.testing.assert_close(terms["task_loss"], task_loss)
    terms["loss"].backward()
    expected = {}
    for stock in (classifier, lm):
        for name, parameter in stock.named_parameters():
            in_body = name.startswith(stock.base_model_prefix)
            name = name if in_body or stock is classifier else f"mlm_head.{name}"
            if parameter.grad is not None:
                expected[name] = expected.get(name, 0) + parameter.grad
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert set(ours) == set(expected)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)


@families
def test_parameters_are_shared_and_counted_once(model_type):
    model = tiny(model_type)
    embedding = model.get_input_embeddings().weight
    ties = [n for n, p in model.named_parameters(remove_duplicate=False) if p is embedding]
    assert len(ties) == 2, "input and output embedding are one parameter"
    assert model.num_parameters() == sum(p.numel() for p in set(model.parameters()))


@families
def test_only_the_needed_heads_run(model_type):
    model, inputs = tiny(model_type), batch()
    corpus = {name: value for name, value in inputs.items() if name != "labels"}
    task = {name: value for name, value in inputs.items() if name != "mlm_labels"}
    assert model(**corpus).logits is None and model(**corpus).mlm_loss.shape == ()
    assert model(**task).mlm_loss is None and model(**task).logits.shape == (4, 3)
    assert model(task["input_ids"], task["attention_mask"]).logits.shape == (4, 3)


@families
def test_missing_attention_mask_means_all_tokens(model_type):
    model, inputs = tiny(model_type).eval(), batch()
    for left_out in ((), ("mlm_labels",), ("labels",)):
        kept = {name: value for name, value in inputs.items() if name not in left_out}
        without = {name: value for name, value in kept.items() if name != "attention_mask"}
        with torch.no_grad():
            one, other = model(**without), model(**kept | {"attention_mask": torch.ones_like(inputs["input_ids"])})
        assert {*one} == {*other} and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("given", [("position_ids",), ("text_ids",), ("text_ids", "position_ids"), ("first_tokens",)])
def test_incomplete_packing_inputs_are_refused(given):
    """Positions alone had no effect, and without first tokens a row of several texts counted as one."""
    ids = batch()["input_ids"]
    with pytest.raises(ModelError, match="^position_ids, text_ids and first_tokens together describe"):
        tiny("bert")(ids, **dict.fromkeys(given, ids))


def test_export_of_other_objects_is_refused(tokenizer, tmp_path):
    with pytest.raises(ModelError, match="^model: expected a TlmModel or GeneratorDiscriminator; received a Linear."):
        export_stock(torch.nn.Linear(2, 2), tokenizer, tmp_path / "out")
    with pytest.raises(ModelError, match="^tokenizer: expected a PreTrainedTokenizerBase; received none."):
        export_stock(tiny("bert"), None, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


@families
def test_token_types_are_used_where_the_family_has_them(model_type):
    model, inputs = tiny(model_type).eval(), batch()
    types = torch.zeros_like(inputs["input_ids"])
    types[:, 6:] = 1
    typed, plain = model(**inputs, token_type_ids=types).logits, model(**inputs).logits
    # They change the logits of families with token type embeddings, and are ignored by the others.
    assert torch.equal(typed, plain) == (model_type in ("distilbert", "modernbert", "cocolm"))


@pytest.mark.parametrize("model_type", ["bert", "cocolm"])
def test_checkpoint_round_trip_and_classifier_reset(model_type, tokenizer, tmp_path):
    model, inputs = tiny(model_type).eval(), batch()
    export_stock(model, tokenizer, tmp_path / "m")
    names = {0: "a", 1: "b", 2: "c"}
    loaded = TlmModel.from_checkpoint(str(tmp_path / "m"), id2label=names).eval()
    for head in ("logits", "mlm_loss"):
        assert torch.equal(model(**inputs)[head], loaded(**inputs)[head])
    assert loaded.config.id2label == names
    loaded.reset_classifier()
    assert not torch.equal(model(**inputs).logits, loaded.eval()(**inputs).logits)
    assert torch.equal(model(**inputs).mlm_loss, loaded(**inputs).mlm_loss)
    more = TlmModel.from_checkpoint(str(tmp_path / "m"), id2label=dict(enumerate("abcde")))
    assert more(**{**inputs, "labels": inputs["labels"]}).logits.shape == (4, 5)


def test_kind_of_task_of_a_checkpoint_is_not_exported(tokenizer, tmp_path):
    """With it, pipelines and predictions would treat the new classes as several labels per text, or as values."""
    config = AutoConfig.for_model("bert", **TINY_CONFIGS["bert"], problem_type="multi_label_classification")
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "tags")
    loaded = TlmModel.from_checkpoint(str(tmp_path / "tags"), id2label=["a", "b"])
    built = build_config(str(tmp_path / "tags"), tokenizer, id2label=["a", "b"], max_length=16)
    for index, model in enumerate((loaded, TlmModel.from_config(built))):
        export_stock(model, tokenizer, tmp_path / f"out-{index}")
        assert AutoConfig.from_pretrained(tmp_path / f"out-{index}").problem_type is None


def test_model_from_the_config_of_a_half_precision_checkpoint_is_in_float32(tokenizer, tmp_path):
    config = AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])
    AutoModelForMaskedLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    built = build_config(str(tmp_path), tokenizer, id2label=["a", "b"], max_length=16)
    assert TlmModel.from_config(built).dtype == torch.float32


def test_only_missing_heads_are_warned_about(tokenizer, tmp_path, monkeypatch, caplog):
    """For a masked LM transformers reported its head as UNEXPECTED, although it is used."""
    for logger in ("transformers", "hf_tlm"):
        monkeypatch.setattr(logging.getLogger(logger), "propagate", True)
    export_stock(tiny("bert"), tokenizer, tmp_path / "m")
    mlm, names = tmp_path / "m" / "mlm", {0: "a", 1: "b", 2: "c"}
    assert TlmModel.from_checkpoint(str(mlm), id2label=names).classifier_is_new and not caplog.messages
    shutil.rmtree(mlm)
    assert TlmModel.from_checkpoint(str(tmp_path / "m"), id2label=names).mlm_head_is_new
    assert caplog.messages == [f"{tmp_path / 'm'} has no masked-LM head: a new one is initialised at random."]
    AutoModelForMaskedLM.from_pretrained(tmp_path / "m")
    assert "UNEXPECTED" in caplog.text


def test_trainer_checkpoint_loads_as_a_stock_classifier(tokenizer, tmp_path):
    model, inputs = tiny("bert").eval(), batch()
    model.save_pretrained(tmp_path)
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    logits = stock(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    assert torch.equal(logits, model(**inputs).logits)


def test_modernbert_mean_pooling_equals_the_stock_class(tokenizer, tmp_path):
    model, inputs = tiny("modernbert", classifier_pooling="mean").eval(), batch()
    (stock, _), _ = stock_models(model, tokenizer, tmp_path / "out")
    logits = stock.eval()(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    torch.testing.assert_close(model(**inputs).logits, logits)


def test_exported_tokenizer_omits_token_types_that_the_model_refuses(tokenizer, tmp_path):
    """transformers 4.57 passes everything that the tokenizer returns to DistilBERT."""
    for model_type in ("distilbert", "bert"):
        export_stock(tiny(model_type), tokenizer, tmp_path / model_type)
        encoded = AutoTokenizer.from_pretrained(tmp_path / model_type)("one", "two")
        assert ("token_type_ids" in encoded) == (model_type == "bert")
        assert encoded["input_ids"] == tokenizer("one", "two")["input_ids"]
    assert "token_type_ids" in tokenizer("one", "two")  # The given tokenizer is unchanged.


def test_failed_export_keeps_the_old_folder(tokenizer, tmp_path, monkeypatch):
    model = tiny("bert")
    export_stock(model, tokenizer, tmp_path / "m", {"README.md": "old"})
    monkeypatch.setattr("safetensors.torch.save_file", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space")))
    monkeypatch.setattr(
        "transformers.modeling_utils.safe_save_file",
        lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left")),
    )
    with pytest.raises(ValueError, match="is full.*unchanged"):
        export_stock(model, tokenizer, tmp_path / "m", {"README.md": "new"})
    assert (tmp_path / "m" / "README.md").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("names", [["no", "yes"], ("no", "yes"), {"0": "no", "1": "yes"}, {1: "yes", 0: "no"}])
def test_class_names_may_be_a_list_or_a_mapping_with_string_keys(names, tokenizer, tmp_path):
    """Indices that remained strings became classes that no prediction had."""
    model = TlmModel.from_config(build_config(TestBuildConfig.CONFIG, tokenizer, id2label=names, max_length=16))
    export_stock(model, tokenizer, tmp_path / "out")
    again = TlmModel.from_checkpoint(tmp_path / "out", id2label=names)
    for config in (model.config, again.config):
        assert list(config.id2label.items()) == [(0, "no"), (1, "yes")] and config.label2id == {"no": 0, "yes": 1}
    again.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "trainer_state.json").touch()
    assert TlmModel.from_checkpoint(tmp_path / "checkpoint", id2label=names).config.id2label == {0: "no", 1: "yes"}


@pytest.mark.parametrize(
    "names", [None, 2, "ab", {}, [], {"no": 0, "yes": 1}, {0: "no", 2: "yes"}, {0: "no", "0": "yes"}, [0, 1], {1: "yes"}]
)
def test_invalid_class_names_are_refused(names, tokenizer, tmp_path):
    for ask in (
        lambda: build_config(TestBuildConfig.CONFIG, tokenizer, id2label=names, max_length=16),
        lambda: TlmModel.from_checkpoint("a/b", id2label=names),
        lambda: GeneratorDiscriminator.from_checkpoint("a/b", id2label=names),
    ):
        with pytest.raises(ModelError, match="^id2label: expected names of classes by index, from 0"):
            ask()


class TestBuildConfig:
    CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k != "vocab_size"}}

    def build(self, tokenizer, config, max_length=32):
        return build_config(config, tokenizer, id2label={0: "no", 1: "yes"}, max_length=max_length)

    def test_config_is_built_from_a_mapping_or_a_file(self, tokenizer, tmp_path):
        config = self.build(tokenizer, self.CONFIG)
        assert (config.vocab_size, config.num_labels, config.pad_token_id) == (len(tokenizer), 2, 0)
        assert config.label2id == {"no": 0, "yes": 1}
        path = tmp_path / "c.json"
        path.write_text('{"model_type": "roberta", "hidden_size": 12, "max_position_embeddings": 40}')
        assert self.build(tokenizer, path).model_type == "roberta"

    @pytest.mark.parametrize(
        "config,message",
        [
            ({"hidden_size": 3}, "model_type"),
            ({"model_type": "nonsense"}, "nonsense"),
            ({"model_type": "gpt2"}, "model_type: expected one of bert.*; received 'gpt2'"),
            ({"model_type": "cocolm", "relative_attention_mode": "T5"}, "relative_attention_mode must be one of"),
            ("missing/config.json", "neither a JSON file"),
        ],
    )
    def test_invalid_configs_are_refused(self, tokenizer, config, message):
        with pytest.raises(ModelError, match=message):
            self.build(tokenizer, config)

    def test_too_few_positions_are_refused(self, tokenizer):
        with pytest.raises(ModelError, match="max_length 41 needs 41 positions"):
            self.build(tokenizer, self.CONFIG, max_length=41)
        with pytest.raises(ModelError, match="max_length 40 needs 41 positions"):
            self.build(tokenizer, {**self.CONFIG, "model_type": "roberta"}, max_length=40)

    def test_rotary_positions_follow_max_length(self, tokenizer):
        """They are not weights: the same model can read longer texts."""
        long = self.build(tokenizer, {**self.CONFIG, "model_type": "modernbert"}, max_length=90)
        short = self.build(tokenizer, {**self.CONFIG, "model_type": "modernbert"}, max_length=30)
        assert (long.max_position_embeddings, short.max_position_embeddings) == (90, 40)
        sizes = [sum(value.numel() for value in TlmModel.from_config(one).parameters()) for one in (long, short)]
        assert sizes[0] == sizes[1]
        rows = torch.randint(5, 100, (2, 90))
        assert TlmModel.from_config(long)(rows, torch.ones_like(rows)).logits.isfinite().all()


def test_unavailable_attention_implementation_is_refused():
    with pytest.raises(ModelError, match="cannot create a bert model from this config: .*FlashAttention2"):
        tiny("bert", attn_implementation="flash_attention_2")
