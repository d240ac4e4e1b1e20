"""The loss of a prompt equals a plain transcription, for every model family; models without an LM head are refused."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoModelForSequenceClassification, set_seed

from hf_tlm.models import ModelError
from hf_tlm.runs.few_shot import label_word_logits, load_masked_lm
from support.prompts import masked_lm
from support.toys import TINY_CONFIGS

IDS = torch.tensor([[2, 17, 40, 4, 9, 3], [2, 40, 4, 9, 3, 0], [2, 4, 3, 0, 0, 0]])
MASKS = torch.tensor([3, 2, 1])
LABELS = torch.tensor([1, 0, 1])
WORD_IDS = [11, 30]
OTHER = {"deberta-v2": {"vocab_size": 120, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}}
OTHER["deberta-v2"] |= {"intermediate_size": 32, "pad_token_id": 0}
OTHER["mpnet"] = OTHER["deberta-v2"]


def gradients(model):
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.parametrize("model_type", [*TINY_CONFIGS, *OTHER])
def test_loss_and_gradients_equal_a_plain_transcription(model_type):
    if model_type in OTHER:
        set_seed(5)
        from transformers import AutoModelForMaskedLM

        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **OTHER[model_type])).eval()
    else:
        model = masked_lm(model_type, **({"copy_head": True} if model_type == "cocolm" else {}))
    mask = (IDS > 0).long()
    loss = cross_entropy(label_word_logits(model, WORD_IDS, IDS, mask, MASKS), LABELS)
    loss.backward()
    ours = gradients(model)

    logits = model(input_ids=IDS, attention_mask=mask).logits
    assert logits.shape[:2] == IDS.shape, "the model is as it was"
    at_mask = torch.stack([logits[row, position] for row, position in enumerate(MASKS.tolist())])
    of_words = torch.stack([at_mask[:, word] for word in WORD_IDS], dim=1)
    plain = -torch.stack([of_words[i, y] - torch.logsumexp(of_words[i], 0) for i, y in enumerate(LABELS.tolist())]).mean()
    plain.backward()
    theirs = gradients(model)

    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    assert any(grad is not None and grad.abs().sum() > 0 for grad in theirs.values())
    for name, expected in theirs.items():
        assert (ours[name] is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-7, msg=name)


def test_only_mask_positions_reach_the_head():
    model, seen = masked_lm(), []
    model.cls.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    label_word_logits(model, WORD_IDS, IDS, (IDS > 0).long(), MASKS)
    assert seen == [(3, 1, 120)]


def test_masked_lm_of_a_run_is_loaded(tmp_path):
    """Exports have it in mlm/ beside the classifier; for COCO-LM it is the corrective LM."""
    model = masked_lm("cocolm", copy_head=True)
    values = {**TINY_CONFIGS["cocolm"], "copy_head": True}
    AutoModelForSequenceClassification.from_config(AutoConfig.for_model("cocolm", **values)).save_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "mlm")
    loaded = load_masked_lm(str(tmp_path))
    arguments = (WORD_IDS, IDS, (IDS > 0).long(), MASKS)
    with torch.no_grad():
        torch.testing.assert_close(label_word_logits(loaded.eval(), *arguments), label_word_logits(model, *arguments))


@pytest.mark.parametrize(
    "model_type,auto_class,missing",
    [
        ("bert", AutoModel, "cls.predictions"),
        ("bert", AutoModelForSequenceClassification, "cls.predictions"),
        ("electra", AutoModelForPreTraining, "generator_"),
        ("roberta", AutoModel, "lm_head"),
    ],
)
def test_checkpoint_without_an_lm_head_is_refused(tmp_path, model_type, auto_class, missing):
    auto_class.from_config(AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"no trained LM head .*{missing}.*--method finetune"):
        load_masked_lm(str(tmp_path))


def test_missing_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match="Cannot load a masked language model"):
        load_masked_lm(str(tmp_path / "nowhere"))
