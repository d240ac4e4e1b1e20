"""COCO-LM on the composite equals its parts assembled by hand; each switch of Table 3; export and loading."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, ElectraConfig, set_seed

from hf_tlm.data import TlmCollator
from hf_tlm.models import (
    CocoLmForMaskedLM,
    GeneratorDiscriminator,
    ModelError,
    export_stock,
    generator_config,
    load_exported,
)
from hf_tlm.objectives import (
    CorrectiveLm,
    Mlm,
    ReplacedTokenDetection,
    SequenceContrastive,
    TaskLoss,
    WeightedMean,
    WeightedSum,
)
from hf_tlm.training import PretrainArguments
from hf_tlm.training.objectives import corrective_lm, language_objective
from support.tiny_models import loss_and_gradients, main_input
from support.token_texts import texts
from support.toys import TINY_CONFIGS

LABELS = {0: "a", 1: "b", 2: "c"}
CLM = CorrectiveLm()
COCO_LM = WeightedSum((1.0, Mlm()), (1.0, CLM), (1.0, SequenceContrastive()))


def composite(size=1, layers=1, clm=CLM, heads="clm", apart=True, temperature=1.0, config=None, **options):
    set_seed(0)
    config = AutoConfig.for_model("cocolm", **{**TINY_CONFIGS["cocolm"], **(config or {})})
    auxiliary = generator_config(config, size, layers)
    model = GeneratorDiscriminator.from_config(config, auxiliary, temperature, heads=heads, apart=apart, **options)
    if heads == "clm":
        model.lm_loss = clm.lm_loss
    return model


def batch(tokenizer, row_length=None, probability=0.3, crop=0.9, rows=None, seed=1):
    options = {"mlm_probability": probability, "row_length": row_length, "seed": seed, "replacing": True}
    rows = texts(True) if rows is None else rows
    return TlmCollator(tokenizer, **options, mask_special=True, crop_fraction=crop)(rows)


def corrupt(model, inputs):
    """Return the ids that the main model reads as its first view, and the output without the second view."""
    return main_input(model, {name: value for name, value in inputs.items() if not name.startswith("crop_")})


def by_hand(model, inputs, ids, lambda_copy=50.0):
    """Compute the paper's loss, equations 1 to 4, from stock models with the weights of `model` as their own
    parameters."""
    main = CocoLmForMaskedLM(model.main.config).eval().double()
    auxiliary = CocoLmForMaskedLM(model.auxiliary.config).eval().double()
    state = {n: t for n, t in model.main.state_dict().items() if n in main.state_dict()}
    main.load_state_dict(state | model.clm_heads.state_dict())
    auxiliary.load_state_dict({n.removeprefix("mlm_head."): t for n, t in model.auxiliary.state_dict().items()})
    for name in ("word_embeddings", "position_embeddings"):
        setattr(auxiliary.cocolm.embeddings, name, getattr(main.cocolm.embeddings, name))
    auxiliary.lm_head.weight = main.lm_head.weight = main.cocolm.embeddings.word_embeddings.weight

    mask = inputs["attention_mask"]
    masked, real = inputs["mlm_labels"] != -100, mask.bool()
    original = torch.where(masked, inputs["mlm_labels"], inputs["input_ids"])
    scores = auxiliary(inputs["input_ids"], mask).logits
    mlm = F.cross_entropy(scores[masked], original[masked])
    found = main(ids, mask)
    z = found.copy_logits
    same = ids == original
    copy = -torch.where(same, logsigmoid(z), logsigmoid(-z))[real].mean()
    p_copy = z.sigmoid().detach()
    p_lm = p_copy * same + (1 - p_copy) * found.logits.softmax(-1).gather(-1, original[..., None]).squeeze(-1)
    lm = -p_lm[masked].log().mean()
    views = [main.cocolm(x, m).last_hidden_state[:, 0] for x, m in ((ids, mask), _crops(inputs))]
    everything = F.normalize(torch.cat(views), dim=-1)
    cosines, n = everything @ everything.T, len(views[0])
    scl = 0
    for s in range(2 * n):
        others = [t for t in range(2 * n) if t != s]
        scl = scl - (cosines[s, (s + n) % (2 * n)] - torch.logsumexp(cosines[s, others], 0)) / (2 * n)
    return main, auxiliary, {"mlm": mlm, "copy": copy, "lm": lm, "scl": scl, "loss": mlm + lambda_copy * copy + lm + scl}


def _crops(inputs):
    return inputs["crop_input_ids"], inputs["crop_attention_mask"]


def test_loss_and_every_gradient_equal_the_equations(tokenizer):
    model, inputs = composite().eval().double(), batch(tokenizer)
    with torch.no_grad():  # So that some samples equal the original.
        model.auxiliary.mlm_head["lm_head"].bias[inputs["mlm_labels"].max()] = 4.0
    ids, output = corrupt(model, inputs)
    assert 0 < output.replaced.sum() < (inputs["mlm_labels"] != -100).sum()
    main, auxiliary, expected = by_hand(model, inputs, ids)
    expected["loss"].backward()
    terms = COCO_LM(model(**inputs), inputs)
    for name, value in expected.items():
        ours = terms["loss" if name == "loss" else f"{name}_loss"]
        torch.testing.assert_close(ours, value.detach(), rtol=1e-10, atol=0, msg=lambda m, n=name: f"{n}: {m}")
    terms["loss"].backward()
    ours = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    stock = {f"main.{n}": p.grad for n, p in main.named_parameters() if n.startswith("cocolm.")}
    stock |= {f"clm_heads.{n}": p.grad for n, p in main.named_parameters() if "_head." in n}
    for name, parameter in auxiliary.named_parameters():
        if "word_embeddings" not in name and "position_embeddings" not in name:
            stock[f"auxiliary.{'' if name.startswith('cocolm.') else 'mlm_head.'}{name}"] = parameter.grad
    stock = {n: g for n, g in stock.items() if g is not None}
    assert set(ours) == set(stock) and any("relative_attention_bias" in n for n in ours if n.startswith("auxiliary."))
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, stock[name], rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("clm", ["full", "no_copy", "all_token", "rtd"])
def test_packed_equals_padded(tokenizer, clm):
    language = language_objective(PretrainArguments(output_dir="unused", use_cpu=True, objective="cocolm", clm=clm))
    objective = WeightedMean((20.0, language), (1.0, TaskLoss()))
    options = {"clm": corrective_lm({"corpus": language}), "heads": "rtd" if clm == "rtd" else "clm"}
    packed, padded = (batch(tokenizer, length) for length in (36, None))
    assert len(packed["input_ids"]) < len(padded["input_ids"])
    assert len(packed["crop_input_ids"]) < len(padded["crop_input_ids"])
    ours, expected = (loss_and_gradients(composite(**options).eval().double(), objective, b) for b in (packed, padded))
    torch.testing.assert_close(ours[0], expected[0], rtol=1e-8, atol=1e-11)
    assert set(ours[1]) == set(expected[1])
    for name, gradient in expected[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=1e-8, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_every_parameter_gets_a_gradient(tokenizer):
    model, inputs = composite(), batch(tokenizer)
    WeightedMean((2.0, COCO_LM), (1.0, TaskLoss()))(model(**inputs), inputs)["loss"].backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert model.clm_heads.lm_head.weight is model.get_input_embeddings().weight is model.auxiliary.mlm_head.weight


def test_samples_ignore_dropout_but_the_auxiliary_loss_has_it(tokenizer):
    """Two training passes and an evaluation give equal samples but different losses."""
    dropout = {"hidden_dropout_prob": 0.5, "initializer_range": 1.0}  # Large enough that samples would depend on dropout.
    inputs = batch(tokenizer)
    model = composite(config=dropout)
    (first, one), (second, two), (quiet, out) = (
        *(corrupt(model, inputs) for _ in range(2)),
        corrupt(model.eval(), inputs),
    )
    assert first.equal(second) and first.equal(quiet)
    assert one.mlm_loss != two.mlm_loss and one.mlm_loss != out.mlm_loss and one.guesses == out.guesses
    model = composite(config=dropout, apart=False)
    assert not corrupt(model, inputs)[0].equal(corrupt(model, inputs)[0])  # ELECTRA has one pass, with dropout.


def test_special_tokens_are_masked_and_corrected(tokenizer):
    model, inputs = composite().eval(), batch(tokenizer, probability=0.5)
    firsts = inputs["mlm_labels"][:, 0]
    assert (firsts == tokenizer.cls_token_id).any() and (
        inputs["input_ids"][firsts != -100, 0] == tokenizer.mask_token_id
    ).all()
    assert COCO_LM(model(**inputs), inputs)["loss"].isfinite()


@pytest.mark.parametrize("row_length", [None, 24])
@pytest.mark.parametrize("probability", [1e-9, 0.9])
def test_nothing_to_predict_gives_a_finite_loss(tokenizer, probability, row_length):
    model = composite()
    inputs = batch(tokenizer, row_length, probability, rows=[{"input_ids": [2, 9, 3], "draw": 0}])
    terms = COCO_LM(model(**inputs), inputs)
    terms["loss"].backward()
    assert terms["loss"].isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def run_objective(tokenizer, *objectives, crop=0.9, **options):
    """Return the terms and gradients of a loss, the ids that the main model read, and the model."""
    objective = WeightedSum((1.0, Mlm()), *objectives)
    clm = next((part for _, part in objectives if isinstance(part, CorrectiveLm)), None)
    model, inputs = composite(clm=clm, heads="rtd" if clm is None else "clm", **options).eval(), batch(tokenizer, crop=crop)
    ids, _ = corrupt(model, inputs)
    terms = objective(model(**inputs), inputs)
    terms["loss"].backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {name: value.tolist() for name, value in terms.items()}, gradients, ids, model


def changed_terms(one, other):
    return {name for name in one.keys() | other.keys() if name not in one or name not in other or one[name] != other[name]}


SCL = (1.0, SequenceContrastive())
SCL_TERMS = {"loss", "scl_loss", "cosine_positive", "cosine_negative"}
CLM_TERMS = {f"{name}_{which}" for name in ("copy_accuracy", "lm_accuracy") for which in ("replaced", "original")}


class TestSwitches:
    """The rows of Table 3: each changes its own terms and no others."""

    @pytest.fixture
    def full(self, tokenizer):
        return run_objective(tokenizer, (1.0, CLM), SCL)

    def test_clm_only_removes_the_contrastive_loss(self, tokenizer, full):
        terms, _, ids, _ = run_objective(tokenizer, (1.0, CLM), crop=None)
        assert ids.equal(full[2]) and changed_terms(terms, full[0]) == SCL_TERMS
        assert full[0]["loss"] == pytest.approx(terms["loss"] + full[0]["scl_loss"])

    def test_rtd_replaces_the_clm_terms(self, tokenizer, full):
        detection = (50.0, ReplacedTokenDetection())
        terms, _, ids, model = run_objective(tokenizer, detection, SCL)
        accuracies = {"rtd_accuracy_replaced", "rtd_accuracy_original"}
        expected = {"loss", "copy_loss", "lm_loss", "rtd_loss"} | CLM_TERMS | accuracies
        assert ids.equal(full[2]) and changed_terms(terms, full[0]) == expected and model.clm_heads is None
        assert changed_terms(run_objective(tokenizer, detection, crop=None)[0], terms) == SCL_TERMS

    @pytest.mark.parametrize(
        "clm,expected",
        [
            (CorrectiveLm(copy=False), {"loss", "lm_loss"}),
            (CorrectiveLm(0.0, stop_gradient=False, all_tokens=True), {"loss", "lm_loss"}),
            (CorrectiveLm(stop_gradient=False), set()),
        ],
        ids=["no copy", "all tokens", "no stop-gradient"],
    )
    def test_clm_setups_change_only_the_lm_loss(self, tokenizer, full, clm, expected):
        terms, gradients, ids, _ = run_objective(tokenizer, (1.0, clm), SCL)
        assert (
            ids.equal(full[2])
            and changed_terms(terms, full[0]) - {"lm_accuracy_original", "lm_accuracy_replaced"} == expected
        )
        if not expected:
            assert terms["loss"] == pytest.approx(full[0]["loss"])
        if not clm.stop_gradient:
            assert not torch.equal(gradients["clm_heads.copy_head.weight"], full[1]["clm_heads.copy_head.weight"])

    def test_disabling_relative_positions_removes_only_their_tables(self, tokenizer, full):
        *_, model = run_objective(tokenizer, (1.0, CLM), SCL, config={"relative_attention_mode": None})
        missing = {n for n, _ in full[3].named_parameters()} - {n for n, _ in model.named_parameters()}
        assert missing == {f"{part}.cocolm.relative_attention_bias.weight" for part in ("main", "auxiliary")}

    @pytest.mark.parametrize("size", [0.5, 1])
    def test_electras_auxiliary_has_the_depth_of_the_main_model(self, tokenizer, size):
        """A narrow one is an ELECTRA generator on the wide embeddings; the main model is unchanged."""
        terms, gradients, _, model = run_objective(tokenizer, (1.0, CLM), SCL, size=size, layers=None)
        assert isinstance(model.auxiliary.config, ElectraConfig) == (size < 1)
        assert model.auxiliary.config.hidden_size == size * model.config.hidden_size
        assert model.auxiliary.config.num_hidden_layers == model.config.num_hidden_layers
        assert model.auxiliary.base_model.get_input_embeddings().weight is model.get_input_embeddings().weight
        shapes = {n: p.shape for n, p in model.named_parameters() if not n.startswith("auxiliary.")}
        other = composite(size=1).named_parameters()
        assert shapes == {n: p.shape for n, p in other if not n.startswith("auxiliary.")}
        assert all(gradient.isfinite().all() for gradient in gradients.values())

    def test_random_replacements_are_uniform(self, tokenizer, full):
        """Over the vocabulary; the auxiliary model is trained as before."""
        terms, gradients, ids, model = run_objective(tokenizer, (1.0, CLM), SCL, replacements="random")
        assert not ids.equal(full[2]) and {"mlm_loss", "generator_accuracy"}.isdisjoint(changed_terms(terms, full[0]))
        auxiliary_names = [n for n in gradients if n.startswith("auxiliary.")]
        assert auxiliary_names and all(torch.equal(gradients[n], full[1][n]) for n in auxiliary_names)
        inputs = batch(tokenizer, rows=[{"input_ids": [2, *[9] * 37, 3], "draw": draw} for draw in range(300)], crop=None)
        ids, _ = corrupt(model, inputs)
        drawn = ids[inputs["mlm_labels"] != -100]
        assert len(drawn.unique()) == 120 and abs(drawn.double().mean() - 59.5) < 2

    def test_frozen_auxiliary_is_not_trained(self, tokenizer, full, tmp_path):
        """Its samples never change: it has no gradient, no dropout, and its own embeddings."""
        export_stock(full[3], tokenizer, tmp_path / "before")
        set_seed(5)
        config = AutoConfig.for_model("cocolm", **TINY_CONFIGS["cocolm"], hidden_dropout_prob=0.5)
        generator = str(tmp_path / "before" / "generator")
        model = GeneratorDiscriminator.from_config(config, generator, 1.0, heads="clm", apart=True, frozen=True)
        model.lm_loss = CLM.lm_loss
        inputs = batch(tokenizer)
        model.train()
        terms = COCO_LM(model(**inputs), inputs)
        terms["loss"].backward()
        trained = {n for n, p in model.named_parameters() if p.grad is not None}
        assert trained and not any(n.startswith("auxiliary.") for n in trained)
        assert {n for n, p in model.named_parameters() if not p.requires_grad} == {
            n for n, _ in model.named_parameters() if n.startswith("auxiliary.")
        }
        with torch.no_grad():
            for parameter in model.main.parameters():
                parameter.add_(1.0)
        ids, output = corrupt(model, inputs)
        assert ids.equal(full[2]) and output.mlm_loss / (inputs["mlm_labels"] != -100).sum() == pytest.approx(
            full[0]["mlm_loss"]
        )

    def test_crop_fraction_changes_only_the_contrastive_loss(self, tokenizer, full):
        terms, _, ids, _ = run_objective(tokenizer, (1.0, CLM), SCL, crop=0.5)
        assert ids.equal(full[2]) and changed_terms(terms, full[0]) == SCL_TERMS

    def test_temperature_changes_only_the_contrastive_loss(self, tokenizer, full):
        terms, _, ids, _ = run_objective(tokenizer, (1.0, CLM), (1.0, SequenceContrastive(0.5)))
        assert ids.equal(full[2]) and changed_terms(terms, full[0]) == {"loss", "scl_loss"}

    def test_projection_changes_only_the_contrastive_loss(self, tokenizer, full):
        """Both vectors of a text pass through a trained head of their own."""
        terms, gradients, ids, model = run_objective(tokenizer, (1.0, CLM), SCL, scl_projection="mlp")
        assert ids.equal(full[2]) and changed_terms(terms, full[0]) == SCL_TERMS
        head_names = {f"scl_head.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")}
        assert gradients.keys() - full[1].keys() == head_names and all(gradients[name].any() for name in head_names)
        inputs = batch(tokenizer)
        with torch.no_grad():
            for parameter in model.scl_head.parameters():
                parameter.normal_()
            vectors, plain = (each(**inputs) for each in (model, full[3]))
        head = dict(model.scl_head.named_parameters())
        for name in ("corrupted_vectors", "cropped_vectors"):
            found = F.gelu(plain[name] @ head["dense.weight"].T + head["dense.bias"])
            found = F.layer_norm(found, found.shape[-1:], head["LayerNorm.weight"], head["LayerNorm.bias"])
            torch.testing.assert_close(vectors[name], found)
        with pytest.raises(ModelError, match="scl_projection must be none or mlp; received 'linear'"):
            composite(scl_projection="linear")


def test_export_loads_as_stock_classes_and_again(tokenizer, tmp_path):
    model, inputs = composite().eval(), batch(tokenizer)
    export_stock(model, tokenizer, tmp_path / "out")
    ids, output = corrupt(model, inputs)
    stock = {}
    for name, auto in (
        ("", AutoModelForSequenceClassification),
        ("mlm", AutoModelForMaskedLM),
        ("generator", AutoModelForMaskedLM),
    ):
        stock[name], info = auto.from_pretrained(tmp_path / "out" / name, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), name
        stock[name].eval()
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.is_dir()) == ["generator", "mlm"]
    mask, masked = inputs["attention_mask"], inputs["mlm_labels"] != -100
    with torch.no_grad():
        found = stock["mlm"](ids, mask)
        torch.testing.assert_close(found.copy_logits[mask.bool()], output.copy_logits, rtol=0, atol=1e-6)
        torch.testing.assert_close(stock[""](ids, mask).logits, output.logits, rtol=0, atol=1e-6)
        scores = stock["generator"](inputs["input_ids"], mask).logits
        mlm = F.cross_entropy(scores[masked], inputs["mlm_labels"][masked], reduction="sum")
        torch.testing.assert_close(mlm, output.mlm_loss, rtol=1e-5, atol=0)
        plain = CorrectiveLm(copy=False)
        model.lm_loss = plain.lm_loss
        expected = F.cross_entropy(found.logits[masked], inputs["mlm_labels"][masked], reduction="sum")
        torch.testing.assert_close(model(**inputs).lm_loss, expected, rtol=1e-5, atol=0)
    model.lm_loss = CLM.lm_loss
    again = load_exported(tmp_path / "out", id2label=LABELS).eval()
    again.lm_loss = CLM.lm_loss
    again = again(**inputs)
    for name in ("logits", "mlm_loss", "copy_logits", "lm_loss", "cropped_vectors"):
        torch.testing.assert_close(again[name], model(**inputs)[name], rtol=1e-6, atol=1e-6)


def test_electra_with_corrective_lm_round_trips(tokenizer, tmp_path):
    """ELECTRA has a stock class only for replaced tokens: its body is exported to `discriminator`, with the heads
    beside it."""
    set_seed(0)
    config = AutoConfig.for_model("electra", **{**TINY_CONFIGS["electra"], "embedding_size": 16})
    model = GeneratorDiscriminator.from_config(config, generator_config(config, 1, 1), 1.0, heads="clm").eval()
    export_stock(model, tokenizer, tmp_path / "out")
    again = load_exported(tmp_path / "out", id2label=LABELS).eval()
    model.lm_loss = again.lm_loss = CLM.lm_loss
    inputs = batch(tokenizer)
    for name in ("logits", "mlm_loss", "copy_logits", "lm_loss", "cropped_vectors"):
        torch.testing.assert_close(again(**inputs)[name], model(**inputs)[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"heads": "rtd", "temperature": 0.25, "apart": False, "replacements": "random"},
        {"heads": "clm", "temperature": 2.0, "apart": True, "scl_projection": "mlp"},
    ],
    ids=lambda options: options["heads"],
)
def test_options_are_saved_and_loaded(tokenizer, tmp_path, options):
    export_stock(composite(**options), tokenizer, tmp_path / "out")
    again = load_exported(tmp_path / "out", id2label=LABELS)
    found = {"heads": "rtd" if again.clm_heads is None else "clm"}
    found |= {name: getattr(again, name) for name in ("temperature", "apart", "replacements", "scl_projection")}
    assert found == {"replacements": "sampled", "scl_projection": "none", **options} and not again.auxiliary.frozen
    for file in (tmp_path / "out").rglob("model.safetensors"):
        assert not [name for name in load_file(file) if "scl_head" in name]
    (tmp_path / "out" / "corruption.json").unlink()
    with pytest.raises(ModelError, match="corruption.json, which says how texts are corrupted: No such file"):
        load_exported(tmp_path / "out", id2label=LABELS)


def test_frozen_auxiliary_may_have_another_width(tokenizer, tmp_path):
    """It shares only the vocabulary."""
    for size, message in ((120, None), (90, "predicts 90 tokens, and the main model has 120")):
        auxiliary_config = AutoConfig.for_model("bert", **TINY_CONFIGS["bert"] | {"hidden_size": 12, "vocab_size": size})
        AutoModelForMaskedLM.from_config(auxiliary_config).save_pretrained(tmp_path / str(size))
        config = AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])
        assert config.embedding_size != 12 and config.vocab_size == 120
        if message is None:
            model = GeneratorDiscriminator.from_config(config, str(tmp_path / str(size)), frozen=True)
            assert torch.isfinite(model(**batch(tokenizer)).mlm_loss)
            with pytest.raises(ModelError, match="shares the main model's token embeddings, and theirs differ"):
                GeneratorDiscriminator.from_config(config, str(tmp_path / str(size)))
        else:
            with pytest.raises(ModelError, match=message):
                GeneratorDiscriminator.from_config(config, str(tmp_path / str(size)), frozen=True)


def test_frozen_auxiliary_is_loaded_frozen(tokenizer, tmp_path):
    """It keeps its own embeddings."""
    model, inputs = composite(frozen=True).eval(), batch(tokenizer)
    export_stock(model, tokenizer, tmp_path / "out")
    again = load_exported(tmp_path / "out", id2label=LABELS).eval()
    again.lm_loss = CLM.lm_loss
    assert again.auxiliary.frozen and not any(p.requires_grad for p in again.auxiliary.parameters())
    assert not torch.equal(again.auxiliary.mlm_head.weight, again.get_input_embeddings().weight)
    torch.testing.assert_close(again(**inputs).mlm_loss, model(**inputs).mlm_loss)


def test_export_without_a_classifier_is_the_masked_lm(tokenizer, tmp_path, caplog):
    model, inputs = composite().eval(), batch(tokenizer)
    export_stock(model, tokenizer, tmp_path / "out", classifier=False)
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path / "out"), CocoLmForMaskedLM)
    again = GeneratorDiscriminator.from_checkpoint(
        str(tmp_path / "out"), id2label=LABELS, temperature=1.0, heads="clm"
    ).eval()
    again.lm_loss = CLM.lm_loss
    assert "is initialised at random" not in caplog.text
    torch.testing.assert_close(again(**inputs).lm_loss, model(**inputs).lm_loss)
    GeneratorDiscriminator.from_checkpoint(
        str(tmp_path / "out" / "generator"), str(tmp_path / "out" / "generator"), id2label=LABELS, heads="clm"
    )
    assert "has no heads for corrective language modelling" in caplog.text


def test_invalid_composites_are_refused(tokenizer):
    electra = AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])
    with pytest.raises(ModelError, match="those of this electra body have 16 and 8 dimensions"):
        GeneratorDiscriminator.from_config(electra, electra, heads="clm")
    with pytest.raises(ModelError, match="replacements must be sampled or random; received 'none'"):
        composite(replacements="none")
    model = composite()
    model.lm_loss = None
    with pytest.raises(ModelError, match="its lm_loss, the loss of its LM head, is not set"):
        model(**batch(tokenizer))
