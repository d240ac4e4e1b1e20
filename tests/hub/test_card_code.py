"""Run every code block of every kind of card, with a folder of that kind in place of the repo id."""

import copy

import pytest
from transformers import AutoConfig, set_seed

from hf_tlm.hub.cards import pretrained_card, tlm_card
from hf_tlm.models import (
    GeneratorDiscriminator,
    LoraArguments,
    TlmModel,
    add_lora,
    export_adapter,
    export_stock,
    generator_config,
)
from hf_tlm.retrieval import retrieve
from support.card_records import COCO_LM, PRETRAINED, RUN
from support.toys import TINY_CONFIGS, code_blocks

CLASSES = {0: "down", 1: "none", 2: "up"}


def config(model_type):
    return AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type])


def composite(model_type, **options):
    size = (0.5, None) if model_type in ("electra", "albert") else (1, 1)
    return GeneratorDiscriminator.from_config(
        config(model_type), generator_config(config(model_type), *size), 0.8, **options
    )


OBJECTIVES = {
    "mlm": ({"objective": "mlm"}, lambda: TlmModel.from_config(config("bert"))),
    "mlm, own code": ({"objective": "mlm"}, lambda: TlmModel.from_config(config("cocolm"))),
    "electra": ({"objective": "electra", "rtd_weight": 50.0}, lambda: composite("electra")),
    "ale": ({"objective": "ale", "rtd_weight": 50.0}, lambda: composite("albert")),
    "cocolm": ({**COCO_LM, "rtd_weight": 50.0}, lambda: composite("cocolm", heads="clm", apart=True)),
    "cocolm rtd": ({**COCO_LM, "rtd_weight": 50.0, "clm": "rtd"}, lambda: composite("cocolm", apart=True)),
}


def model_type_of(objective):
    return "cocolm" if "cocolm" in objective or "own" in objective else "other"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_code_of_a_tlm_card_runs(objective, tokenizer, tmp_path, monkeypatch):
    set_seed(0)
    arguments, make = OBJECTIVES[objective]
    run = copy.deepcopy(RUN)
    run["arguments"] |= arguments
    for entry in run["seeds"]:
        entry["model_type"] = model_type_of(objective)
    monkeypatch.setattr(tokenizer, "model_max_length", 32)  # As a run saves it.
    folder = export_stock(make(), tokenizer, tmp_path / "model")
    card = tlm_card(run, 1)
    assert code_blocks(card, folder) == 2
    # A user's text may be longer than the positions of the model.
    assert code_blocks(card.replace("A text of the task.", "the gene " * 1000), folder) == 2


def test_code_of_a_lora_card_runs(tokenizer, tmp_path):
    set_seed(0)
    base = export_stock(TlmModel.from_config(config("bert")), tokenizer, tmp_path / "base")
    model = add_lora(TlmModel.from_checkpoint(str(base), id2label=CLASSES), LoraArguments(use_peft=True), base)
    export_adapter(model, tokenizer, tmp_path / "adapter")
    run = {**RUN, "model": {**RUN["model"], "use_peft": True}}
    assert code_blocks(tlm_card(run, 1), tmp_path / "adapter") == 1


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_code_of_a_pretrained_card_runs(objective, tokenizer, tmp_path):
    set_seed(0)
    arguments, make = OBJECTIVES[objective]
    run = copy.deepcopy(PRETRAINED)
    run["arguments"] |= arguments
    run["model_type"] = model_type_of(objective)
    folder = export_stock(make(), tokenizer, tmp_path / "model", classifier=False)
    assert code_blocks(pretrained_card(run), folder) == 2


@pytest.mark.parametrize("retriever", [{"top_k": 5}, {"retriever": "random", "num_passages": 7}])
def test_code_of_a_subset_card_runs(retriever, task, corpus, tmp_path, capsys):
    subset = retrieve(task, corpus, **retriever)
    subset.save(tmp_path / "subset")
    card = (tmp_path / "subset" / "README.md").read_text(encoding="utf-8")
    assert code_blocks(card, tmp_path / "subset") == 1
    assert subset.dataset[0]["text"] in capsys.readouterr().out
