"""COCO-LM's objectives on a ModernBERT: equal to stock classes and the equations; exported as stock models and a head
file."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    ModernBertForMaskedLM,
    ModernBertModel,
    set_seed,
)

from hf_tlm.data import TlmCollator
from hf_tlm.models import GeneratorDiscriminator, export_stock, generator_config, load_exported
from hf_tlm.objectives import CorrectiveLm, Mlm, SequenceContrastive, WeightedSum
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.training import ModelArguments, TlmArguments
from support.tiny_models import main_input
from support.token_texts import texts
from support.toys import FAST, TINY_CONFIGS

LABELS = {0: "a", 1: "b", 2: "c"}
CLM = CorrectiveLm()
COCO_LM = WeightedSum((1.0, Mlm()), (1.0, CLM), (1.0, SequenceContrastive()))
CONFIG = TINY_CONFIGS["modernbert"]


def composite():
    set_seed(0)
    config = AutoConfig.for_model("modernbert", **CONFIG)
    model = GeneratorDiscriminator.from_config(config, generator_config(config, 1, 1), 1.0, heads="clm", apart=True)
    model.lm_loss = CLM.lm_loss
    return model


def batch(tokenizer):
    options = {"mlm_probability": 0.3, "seed": 1, "replacing": True, "mask_special": True, "crop_fraction": 0.9}
    return TlmCollator(tokenizer, **options)(texts(True))


@pytest.mark.usefixtures("modernbert_in_float64")
def test_loss_and_every_gradient_equal_the_equations(tokenizer):
    """Meng et al. 2021, equations 1 to 4, from stock modules with the same weights."""
    model, inputs = composite().eval().double(), batch(tokenizer)
    ids, _ = main_input(model, {name: value for name, value in inputs.items() if not name.startswith("crop_")})
    main = ModernBertModel(model.main.config).eval().double()
    main.load_state_dict(model.main.model.state_dict())
    auxiliary = ModernBertForMaskedLM(model.auxiliary.config).eval().double()
    auxiliary.load_state_dict({n.removeprefix("mlm_head."): t for n, t in model.auxiliary.state_dict().items()})
    table = main.embeddings.tok_embeddings.weight
    auxiliary.model.embeddings.tok_embeddings.weight = auxiliary.decoder.weight = table
    bias = model.clm_heads.lm_head.bias.detach().clone().requires_grad_()
    copy_weight = model.clm_heads.copy_head.weight.detach().clone().requires_grad_()

    mask, masked = inputs["attention_mask"], inputs["mlm_labels"] != -100
    original = torch.where(masked, inputs["mlm_labels"], inputs["input_ids"])
    loss = F.cross_entropy(auxiliary(inputs["input_ids"], mask).logits[masked], original[masked])
    hidden = main(ids, mask).last_hidden_state
    z, same = (hidden @ copy_weight.T).squeeze(-1), ids == original
    loss = loss - 50.0 * torch.where(same, logsigmoid(z), logsigmoid(-z))[mask.bool()].mean()
    p_copy, p = z.sigmoid().detach(), (hidden @ table.T + bias).softmax(-1)
    p_lm = p_copy * same + (1 - p_copy) * p.gather(-1, original[..., None]).squeeze(-1)
    loss = loss - p_lm[masked].log().mean()
    views = [hidden[:, 0], main(inputs["crop_input_ids"], inputs["crop_attention_mask"]).last_hidden_state[:, 0]]
    everything = F.normalize(torch.cat(views), dim=-1)
    cosines, n = everything @ everything.T, len(hidden)
    for s in range(2 * n):
        others = [t for t in range(2 * n) if t != s]
        loss = loss - (cosines[s, (s + n) % (2 * n)] - torch.logsumexp(cosines[s, others], 0)) / (2 * n)
    loss.backward()

    ours = COCO_LM(model(**inputs), inputs)["loss"]
    torch.testing.assert_close(ours, loss.detach(), rtol=1e-10, atol=0)
    ours.backward()
    stock = {f"main.model.{n}": p.grad for n, p in main.named_parameters()}
    stock |= {"clm_heads.lm_head.bias": bias.grad, "clm_heads.copy_head.weight": copy_weight.grad}
    for name, parameter in auxiliary.named_parameters():
        if parameter is not table:
            stock[f"auxiliary.{'' if name.startswith('model.') else 'mlm_head.'}{name}"] = parameter.grad
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert set(found) == {name for name, gradient in stock.items() if gradient is not None}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, stock[name], rtol=1e-7, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_export_loads_as_stock_classes_and_again(tokenizer, tmp_path):
    model, inputs = composite().eval(), batch(tokenizer)
    export_stock(model, tokenizer, tmp_path)
    autos = {"": AutoModelForSequenceClassification, "discriminator": AutoModel, "generator": AutoModelForMaskedLM}
    for name, auto in autos.items():
        stock, info = auto.from_pretrained(tmp_path / name, output_loading_info=True)
        assert type(stock).__module__.startswith("transformers.models.modernbert")
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), name
    assert not (tmp_path / "mlm").exists()
    heads = load_file(tmp_path / "discriminator" / "clm_heads.safetensors")
    assert {name: tuple(value.shape) for name, value in heads.items()} == {
        "lm_head.weight": (120, 16),
        "lm_head.bias": (120,),
        "copy_head.weight": (1, 16),
    }
    again = load_exported(tmp_path, id2label=LABELS).eval()
    again.lm_loss = CLM.lm_loss
    for name in ("logits", "mlm_loss", "copy_logits", "lm_loss", "cropped_vectors"):
        torch.testing.assert_close(again(**inputs)[name], model(**inputs)[name], rtol=1e-6, atol=1e-6)


def test_heads_of_an_export_without_a_classifier_are_loaded(tokenizer, tmp_path):
    """They are beside the body, which is in the folder itself."""
    model, inputs = composite().eval(), batch(tokenizer)
    del inputs["labels"]
    export_stock(model, tokenizer, tmp_path, classifier=False)
    assert (tmp_path / "clm_heads.safetensors").is_file()
    again = load_exported(tmp_path, id2label=LABELS).eval()
    again.lm_loss = CLM.lm_loss
    for name in ("copy_logits", "lm_loss"):
        torch.testing.assert_close(again(**inputs)[name], model(**inputs)[name], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_run_with_a_modernbert_body_exports_stock(tmp_path, task, corpus):
    config = {"model_type": "modernbert", **{k: v for k, v in CONFIG.items() if k not in ("vocab_size", "num_labels")}}
    args = TlmArguments(output_dir=str(tmp_path), **FAST, objective="cocolm")
    run = run_tlm(task, retrieve(task, corpus, top_k=5), args, ModelArguments(model_config=config, vocab_size=120))
    assert run.seeds[0]["model_type"] == "modernbert"
    assert "trust_remote_code" not in (tmp_path / "README.md").read_text()
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(stock).__name__ == "ModernBertForSequenceClassification"
