"""The composite equals two stock models with tied embeddings and the same replacements, and exports as them."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AlbertModel,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    set_seed,
)
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

from hf_tlm.data import TlmCollator
from hf_tlm.models import FAMILIES, GeneratorDiscriminator, ModelError, export_stock, generator_config, load_exported
from hf_tlm.objectives import Mlm, ReplacedTokenDetection, TaskLoss, WeightedMean, WeightedSum
from support.tiny_models import families, loss_and_gradients, main_input
from support.token_texts import texts
from support.toys import TINY_CONFIGS

STOCK = [name for name in TINY_CONFIGS if name != "cocolm"]
LABELS = {0: "a", 1: "b", 2: "c"}
ELECTRA = WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection()))


def composite(model_type="electra", temperature=0.8, share_embedding_norm=False, **changes):
    set_seed(0)
    config = AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], **changes})
    narrow = (0.5, None) if model_type in ("electra", "albert") else (1, 1)
    options = {"share_embedding_norm": share_embedding_norm}
    return GeneratorDiscriminator.from_config(config, generator_config(config, *narrow), temperature, **options)


def batch(tokenizer, row_length=None, rows=None, probability=0.3):
    collate = TlmCollator(tokenizer, mlm_probability=probability, row_length=row_length, seed=1, replacing=True)
    return collate(texts(True, pairs=True) if rows is None else rows)


@pytest.mark.parametrize("row_length", [None, 36])
def test_missing_attention_mask_means_all_tokens(row_length, tokenizer):
    """In packed rows, all tokens except padding."""
    model, inputs = composite().eval(), batch(tokenizer, row_length)
    mask = torch.ones_like(inputs["input_ids"]) if row_length is None else inputs["attention_mask"]
    with torch.no_grad():
        expected = model(**inputs | {"attention_mask": mask})
        found = model(**{name: value for name, value in inputs.items() if name != "attention_mask"})
    assert {*found} == {*expected} >= {"mlm_loss", "rtd_logits"}
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "model_type,norm", [*((name, False) for name in STOCK), ("electra", True), ("albert", True), ("bert", True)]
)
@pytest.mark.usefixtures("modernbert_in_float64")
def test_loss_and_every_gradient_equal_stock_models(model_type, norm, tokenizer):
    """With a stock masked LM, and the head of stock `ElectraForPreTraining` on a stock body."""
    model, inputs = composite(model_type, share_embedding_norm=norm).eval().double(), batch(tokenizer)
    generator = AutoModelForMaskedLM.from_config(model.auxiliary.config).eval().double()
    body = AutoModel.from_config(model.main.config).eval().double()
    activation = getattr(body.config, "hidden_act", "gelu")
    head = ElectraDiscriminatorPredictions(ElectraConfig(hidden_size=16, hidden_act=activation)).double()
    with torch.no_grad():  # So that some samples equal the original.
        FAMILIES[model_type].decoder(model.auxiliary.mlm_head).bias[inputs["mlm_labels"].max()] = 5.0
    generator.load_state_dict({n.removeprefix("mlm_head."): t for n, t in model.auxiliary.state_dict().items()})
    # RoBERTa's classifier has no pooler.
    body.load_state_dict(model.main.base_model.state_dict(), strict=model_type != "roberta")
    head.load_state_dict(model.rtd_head.state_dict())
    for name, table in [*body.named_modules()]:
        if isinstance(table, torch.nn.Embedding) or (norm and name == "embeddings.LayerNorm"):
            generator.base_model.set_submodule(name, table)
    generator.get_output_embeddings().weight = body.get_input_embeddings().weight

    ids, output = main_input(model, inputs)
    masked = inputs["mlm_labels"] != -100
    original = torch.where(masked, inputs["mlm_labels"], inputs["input_ids"])
    typed = getattr(body.config, "type_vocab_size", 0) > 1
    plain = {name: inputs[name] for name in ("attention_mask", *(["token_type_ids"] if typed else []))}
    scores = generator(input_ids=inputs["input_ids"], **plain).logits
    mlm = F.cross_entropy(scores[masked], original[masked])
    replaced = (ids != original).double()
    real = inputs["attention_mask"].bool()
    logits = head(body(input_ids=ids, **plain).last_hidden_state)
    rtd = F.binary_cross_entropy_with_logits(logits[real], replaced[real])
    (mlm + 50 * rtd).backward()

    terms = ELECTRA(output, inputs)
    terms["loss"].backward()
    torch.testing.assert_close(terms["loss"], (mlm + 50 * rtd).detach(), rtol=1e-10, atol=0)
    assert 0 < replaced.sum() < masked.sum()  # A sample that equals the original counts as original.
    assert output.guesses == (scores[masked].argmax(-1) == original[masked]).sum()
    right = (logits > 0) == replaced.bool()
    for name, where in (("replaced", real & (replaced == 1)), ("original", real & (replaced == 0))):
        assert terms[f"rtd_accuracy_{name}"].tolist() == [right[where].sum(), where.sum()]
    assert terms["replaced_fraction"].tolist() == [replaced.sum(), real.sum()]
    ours = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    prefix, shared = generator.base_model_prefix, set(body.parameters())
    stock = {f"main.{n}": p.grad for n, p in body.named_parameters(prefix=prefix)}
    stock |= {f"rtd_head.{n}": p.grad for n, p in head.named_parameters()}
    for name, parameter in generator.named_parameters():
        if parameter not in shared:
            stock[f"auxiliary.{'' if name.startswith(f'{prefix}.') else 'mlm_head.'}{name}"] = parameter.grad
    assert set(ours) == {name for name, gradient in stock.items() if gradient is not None}
    assert not norm or not any("embeddings.LayerNorm" in name for name in ours if name.startswith("auxiliary."))
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, stock[name], rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@families
def test_detection_reaches_the_auxiliary_only_through_embeddings(model_type, tokenizer):
    model, inputs = composite(model_type), batch(tokenizer)
    ReplacedTokenDetection()(model(**inputs), inputs)["loss"].backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained and all(name.startswith(("main.", "rtd_head.")) for name in trained)
    table = model.get_input_embeddings().weight
    assert model.auxiliary.base_model.get_input_embeddings().weight is table
    head = model.auxiliary.mlm_head
    assert head.weight is table and table.grad.any()


@families
def test_every_parameter_gets_a_gradient(model_type, tokenizer):
    model, inputs = composite(model_type), batch(tokenizer)
    WeightedMean((2.0, ELECTRA), (1.0, TaskLoss()))(model(**inputs), inputs)["loss"].backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


@families
@pytest.mark.usefixtures("modernbert_in_float64")
def test_packed_equals_padded(model_type, tokenizer):
    objective = WeightedMean((20.0, ELECTRA), (1.0, TaskLoss()))
    packed, padded = (batch(tokenizer, length) for length in (36, None))
    assert len(packed["input_ids"]) < len(padded["input_ids"])
    ours, expected = (loss_and_gradients(composite(model_type).eval().double(), objective, b) for b in (packed, padded))
    torch.testing.assert_close(ours[0], expected[0], rtol=1e-8, atol=1e-11)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=1e-8, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_only_masked_positions_are_replaced(tokenizer):
    model, inputs = composite(), batch(tokenizer)
    ids, output = main_input(model, inputs)
    masked = inputs["mlm_labels"] != -100
    assert (inputs["input_ids"][masked] == tokenizer.mask_token_id).all()  # Without the 80/10/10 rule.
    assert ids[~masked].equal(inputs["input_ids"][~masked])
    special = torch.isin(
        torch.where(masked, inputs["mlm_labels"], inputs["input_ids"]), torch.tensor(tokenizer.all_special_ids)
    )
    assert special.any() and not (special & masked).any()
    assert output.replaced.sum() == (ids[masked] != inputs["mlm_labels"][masked]).sum()


def test_samples_do_not_depend_on_the_batch(tokenizer):
    """The sample of a token depends only on its text's visit."""
    model, rows = composite().eval(), texts(True, pairs=True)
    together, _ = main_input(model, batch(tokenizer, rows=rows))
    alone, _ = main_input(model, batch(tokenizer, rows=rows[3:4]))
    assert alone[0].equal(together[3, : alone.shape[1]])


def test_samples_follow_the_generators_seed(tokenizer):
    model, inputs = composite().eval(), batch(tokenizer)
    del inputs["uniforms"]
    drawn = []
    for seed in (1, 1, 2):
        model.generator = torch.Generator().manual_seed(seed)
        drawn.append(main_input(model, inputs)[0])
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(drawn[2])


def test_temperature_zero_gives_the_most_likely_token(tokenizer):
    model, inputs = composite(temperature=0).eval(), batch(tokenizer)
    ids, output = main_input(model, inputs)
    masked = inputs["mlm_labels"] != -100
    assert (ids[masked] == inputs["mlm_labels"][masked]).sum() == output.guesses
    with pytest.raises(ModelError, match="temperature must be a number, 0 or more; received -1"):
        composite(temperature=-1)


@pytest.mark.parametrize("row_length", [None, 24])
@pytest.mark.parametrize("case", ["padding", "unmasked", "one token"])
def test_nothing_to_predict_gives_a_finite_loss(tokenizer, case, row_length):
    model = composite()
    rows = [{"input_ids": [2, 9, 8, 3], "draw": 0}, {"input_ids": [2, 7, 3], "draw": 1}]
    if case == "one token":
        rows = [{"input_ids": [9], "draw": 0}]
    inputs = batch(tokenizer, row_length, rows, probability=1e-9 if case == "unmasked" else 0.9)
    if case == "padding":
        for name, value in inputs.items():
            if name not in ("first_tokens", "uniforms"):
                row = torch.full_like(value[:1], -100 if name == "mlm_labels" else 0)
                inputs[name] = torch.cat([value, row])
        inputs["uniforms"] = torch.cat([inputs["uniforms"], inputs["uniforms"][:1]])
    output = model(**inputs)
    terms = ELECTRA(output, inputs)
    terms["loss"].backward()
    assert terms["loss"].isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if case == "unmasked":
        assert terms["mlm_loss"] == 0 and not output.replaced.any()


def test_embeddings_of_different_sizes_are_refused(tokenizer):
    config = AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])
    other = AutoConfig.for_model("electra", **{**TINY_CONFIGS["electra"], "embedding_size": 4})
    with pytest.raises(ModelError, match=r"theirs differ: \(120, 4\) and \(120, 8\)"):
        GeneratorDiscriminator.from_config(config, other)


@pytest.mark.parametrize("model_type", ["electra", "albert", "bert"])
def test_export_loads_as_stock_classes_with_equal_outputs(model_type, tokenizer, tmp_path):
    model, inputs = composite(model_type).eval(), batch(tokenizer)
    export_stock(model, tokenizer, tmp_path / "out")
    ids, output = main_input(model, inputs)
    plain = {name: inputs[name] for name in ("attention_mask", "token_type_ids")}
    discriminator = AutoModelForPreTraining if model_type == "electra" else AutoModel
    stock = {}
    for name, auto in (
        ("", AutoModelForSequenceClassification),
        ("discriminator", discriminator),
        ("generator", AutoModelForMaskedLM),
    ):
        stock[name], info = auto.from_pretrained(tmp_path / "out" / name, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), name
        assert type(stock[name]).__module__.startswith("transformers.")
        stock[name].eval()
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        torch.testing.assert_close(stock[""](input_ids=ids, **plain).logits, output.logits, rtol=0, atol=1e-6)
        found = stock["discriminator"](input_ids=ids, **plain)
        if model_type == "electra":
            torch.testing.assert_close(found.logits[real], output.rtd_logits, rtol=0, atol=1e-6)
        else:
            torch.testing.assert_close(model.rtd_head(found[0][real]), output.rtd_logits, rtol=0, atol=1e-6)
        if model_type == "albert":
            assert isinstance(stock["discriminator"], AlbertModel)
        scores = stock["generator"](input_ids=inputs["input_ids"], **plain).logits
        masked = inputs["mlm_labels"] != -100
        loss = F.cross_entropy(scores[masked], inputs["mlm_labels"][masked], reduction="sum")
        torch.testing.assert_close(loss, output.mlm_loss, rtol=1e-5, atol=0)
        # Loaded again, including the heads.
        again = load_exported(tmp_path / "out", id2label=LABELS).eval()(**inputs)
    for name in ("logits", "mlm_loss", "rtd_logits"):
        torch.testing.assert_close(again[name], output[name], rtol=1e-6, atol=1e-6)


def test_shared_layer_norm_round_trips(tokenizer, tmp_path):
    """Each exported model has a copy, and loaded they are one module again."""
    model = composite(share_embedding_norm=True)
    with torch.no_grad():
        model.main.electra.embeddings.LayerNorm.weight.add_(torch.rand(()))
    export_stock(model, tokenizer, tmp_path / "out")
    name = "embeddings.LayerNorm.weight"
    folders = (tmp_path / "out" / part for part in ("discriminator", "generator"))
    parts = [AutoModel.from_pretrained(folder).get_parameter(name) for folder in folders]
    assert torch.equal(*parts) and torch.equal(parts[0], model.main.electra.get_parameter(name))
    again = load_exported(tmp_path / "out", id2label=LABELS)
    assert again.main.electra.get_parameter(name) is again.auxiliary.electra.get_parameter(name)
    assert torch.equal(again.main.electra.get_parameter(name), parts[0])
    again.save_pretrained(tmp_path / "checkpoint")
    assert composite().auxiliary.electra.get_parameter(name) is not composite().main.electra.get_parameter(name)
    with pytest.raises(ModelError, match="share_embedding_norm is for two models"):
        GeneratorDiscriminator.from_config(model.config, model.auxiliary.config, frozen=True, share_embedding_norm=True)


def test_export_without_a_classifier_is_the_discriminator(tokenizer, tmp_path):
    model, inputs = composite().eval(), batch(tokenizer)
    export_stock(model, tokenizer, tmp_path / "out", classifier=False)
    assert isinstance(AutoModelForPreTraining.from_pretrained(tmp_path / "out"), ElectraForPreTraining)
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.is_dir()) == ["generator"]
    del inputs["labels"]
    again = load_exported(tmp_path / "out", id2label=LABELS).eval()
    torch.testing.assert_close(again(**inputs).rtd_logits, model(**inputs).rtd_logits)


@pytest.mark.parametrize("classifier", [True, False])
def test_single_layer_head_of_an_electra_body_round_trips(tokenizer, tmp_path, classifier):
    """Stock ElectraForPreTraining has a head of two layers, so this one is saved beside the body."""
    set_seed(0)
    config = AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])
    model = GeneratorDiscriminator.from_config(config, generator_config(config, 0.5), heads="rtd_linear").eval()
    export_stock(model, tokenizer, tmp_path / "out", classifier=classifier)
    inputs = batch(tokenizer)
    del inputs["labels"]
    again = load_exported(tmp_path / "out", id2label=LABELS).eval()
    torch.testing.assert_close(again(**inputs).rtd_logits, model(**inputs).rtd_logits)


def test_composite_is_loaded_from_stock_folders(tokenizer, tmp_path, caplog):
    """With discriminator and generator in separate folders, like google/electra-*."""
    config = AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])
    set_seed(3)
    discriminator, generator = ElectraForPreTraining(config), ElectraForMaskedLM(generator_config(config, 0.5))
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    discriminator.save_pretrained(tmp_path / "discriminator-folder")
    generator.save_pretrained(tmp_path / "generator-folder")
    folders = [str(tmp_path / name) for name in ("discriminator-folder", "generator-folder")]
    model = GeneratorDiscriminator.from_checkpoint(*folders, id2label=LABELS, temperature=0.5).eval()
    assert model.temperature == 0.5
    inputs = batch(tokenizer)
    ids, output = main_input(model, inputs)
    plain = {name: inputs[name] for name in ("attention_mask", "token_type_ids")}
    with torch.no_grad():
        logits = discriminator.eval()(input_ids=ids, **plain).logits[inputs["attention_mask"].bool()]
        scores = generator.eval()(input_ids=inputs["input_ids"], **plain).logits
    torch.testing.assert_close(output.rtd_logits, logits, rtol=0, atol=1e-6)
    loss = F.cross_entropy(scores.flatten(0, 1), inputs["mlm_labels"].flatten(), reduction="sum")
    torch.testing.assert_close(output.mlm_loss, loss, rtol=1e-5, atol=0)
    assert "is initialised at random" not in caplog.text
    with pytest.raises(ModelError, match="discriminator-folder has no folder generator, .* Pass the generator"):
        GeneratorDiscriminator.from_checkpoint(folders[0], id2label=LABELS)
    GeneratorDiscriminator.from_checkpoint(folders[0], folders[0], id2label=LABELS)
    assert "discriminator-folder has no masked-LM head" in caplog.text
    GeneratorDiscriminator.from_checkpoint(folders[1], folders[1], id2label=LABELS)
    assert "generator-folder has no head for replaced tokens" in caplog.text


@pytest.mark.slow
def test_exports_load_without_hf_tlm(tokenizer, tmp_path):
    export_stock(composite(), tokenizer, tmp_path / "electra")
    export_stock(composite("albert"), tokenizer, tmp_path / "ale")
    program = (
        "import sys\n"
        "sys.modules['hf_tlm'] = None\n"
        "from transformers import AutoTokenizer, ElectraForPreTraining, ElectraForMaskedLM, "
        "ElectraForSequenceClassification, AlbertModel, AlbertForSequenceClassification\n"
        "for cls, folder in ((ElectraForSequenceClassification, 'electra'),\n"
        "    (ElectraForPreTraining, 'electra/discriminator'), (ElectraForMaskedLM, 'electra/generator'),\n"
        "    (AlbertForSequenceClassification, 'ale'),\n"
        "    (AlbertModel, 'ale/discriminator')):\n"
        "    model, info = cls.from_pretrained(folder, output_loading_info=True)\n"
        "    assert not info['missing_keys'] and not info['unexpected_keys'], (folder, info)\n"
        "    model(**AutoTokenizer.from_pretrained(folder)('the gene', return_tensors='pt'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoint_is_loaded_in_float32(tokenizer, tmp_path, dtype):
    config = AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])
    discriminator, generator = ElectraForPreTraining(config), ElectraForMaskedLM(generator_config(config, 0.5))
    folders = [str(tmp_path / name) for name in ("discriminator-folder", "generator-folder")]
    for stock, folder in zip((discriminator, generator), folders, strict=True):
        stock.to(dtype).save_pretrained(folder)
    model = GeneratorDiscriminator.from_checkpoint(*folders, id2label=LABELS)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert model(**batch(tokenizer)).rtd_logits.isfinite().all()
    assert model.main.electra.embeddings.word_embeddings.weight.equal(
        discriminator.electra.embeddings.word_embeddings.weight.float()
    )


def test_checkpoint_without_the_body_is_refused(tokenizer, tmp_path):
    """A checkpoint of a run with two models has other names for their weights."""
    model, folders = composite(), [str(tmp_path / name) for name in ("run", "generator")]
    model.save_pretrained(folders[0])
    AutoModelForMaskedLM.from_config(model.auxiliary.config).save_pretrained(folders[1])
    with pytest.raises(ModelError, match="run lacks weights of its body .* finish an unfinished run first"):
        GeneratorDiscriminator.from_checkpoint(*folders, id2label=LABELS)
    with pytest.raises(ModelError, match="run lacks weights of its body"):
        GeneratorDiscriminator.from_checkpoint(folders[1], folders[0], id2label=LABELS)


@pytest.mark.parametrize("model_type,other", [("modernbert", "bert"), ("bert", "modernbert")])
def test_token_embeddings_are_shared_across_families(model_type, other):
    configs = [AutoConfig.for_model(name, **TINY_CONFIGS[name]) for name in (model_type, other)]
    model = GeneratorDiscriminator.from_config(*configs)
    tables = [body.get_input_embeddings().weight for body in (model.main.base_model, model.auxiliary.base_model)]
    assert tables[0] is tables[1] is model.auxiliary.mlm_head.weight


@pytest.mark.parametrize("number", [1, 2])
def test_configs_instead_of_models_are_refused(number):
    configs = [AutoConfig.for_model("electra", **TINY_CONFIGS["electra"])] * number
    with pytest.raises(ModelError, match="two stock models, .* received an? ElectraConfig .*from_config"):
        GeneratorDiscriminator(*configs)
