"""The card: valid metadata, true sentences for every kind of run, code blocks that run (see also test_protocol)."""

import copy

import pytest
from huggingface_hub import ModelCard

from hf_tlm.hub.cards import pretrained_card, tlm_card

COST = {
    "steps": 460,
    "tokens": 1_000_000,
    "real_tokens": 600_000,
    "flops": 9e12,
    "seconds": 83.4,
    "flops_ratio": 9e12 / 4.36e21,
}


def record(seed, score):
    scores = {"micro_f1": score, "accuracy": score}
    stage = {"cost": {**COST, "steps": 160}, "validation": scores}
    return {
        "seed": seed,
        "parameters": 1_500_000,
        "trained_parameters": 20_000,
        "cost": COST,
        "stages": {"1": stage, "2": stage},
        "validation": scores,
        "test": scores,
    }


RUN = {
    "task": "chemprot",
    "metric": "micro_f1",
    "subset": {
        "corpus": {"name": "wiki", "fingerprint": "0123"},
        "counts": {"union": 23782, "passages": 409154},
        "retriever": "bm25s",
        "top_k": 50,
    },
    "arguments": {"stage": "both", "rho1": 3, "rho2": 20, "loss_normalization": "mean", "mlm_probability": 0.15},
    "model": {"model_name_or_path": None, "embedding_init": "random", "spectral_scale": 1.0},
    "environment": {"hf_tlm": "0.1.0", "transformers": "5.23.0", "torch": "2.13.0", "processor": "a CPU"},
    "summary": {
        split: {name: {"mean": 0.51, "std": 0.01, "n": 2, "values": [0.5, 0.52]} for name in ("micro_f1", "accuracy")}
        for split in ("validation", "test")
    },
    "seeds": [record(0, 0.50), record(1, 0.52)],
}


def test_metadata():
    data = ModelCard(tlm_card(RUN, 1)).data
    assert data.library_name == "transformers" and data.pipeline_tag == "text-classification"
    assert "trained-from-scratch" in data.tags and data.base_model is None
    scores = {(r.dataset_split, r.metric_name): r.metric_value for r in data.eval_results}
    assert scores[("test", "Micro-F1")] == 0.52 and len(scores) == 4


def test_sentences():
    card = tlm_card(RUN, 1)
    for text in (
        "trained from scratch",
        "| test, this seed | 52.00 | 52.00 |",
        "| test, mean ± std of 2 seeds | 51.00 ± 1.00 | 51.00 ± 1.00 |",
        "the best of 2 on validation",
        "23,782 of 409,154 passages",
        "the top 50 of each training text",
        "Stage 1: 160 steps, 3 corpus batches for each task batch",
        "15% of tokens masked",
        "9e+12 FLOPs",
        "83 seconds on a CPU",
    ):
        assert text in card, text
    assert "spectral" not in card and "None" not in card and "{" not in card.split("---", 2)[2]


@pytest.mark.parametrize(
    "change,present,absent",
    [
        ({"subset": None}, "training split of `chemprot` only", "passages, chosen"),
        ({"model": {"model_name_or_path": "bert", "embedding_init": "random"}}, "trained further from `bert`", "scratch by"),
        ({"model": {**RUN["model"], "embedding_init": "spectral"}}, "spectral warm start, norm 1.0", "Nothing"),
        ({"subset": {**RUN["subset"], "retriever": "random", "top_k": None}}, "random passages of a general", "resemble"),
        ({"arguments": {**RUN["arguments"], "rho1": 0}}, "task batches only", "0 corpus batches"),
        ({"model": {**RUN["model"], "use_peft": True}}, "20,000 of them trained: this is a LoRA", "subfolder"),
        ({"seeds": [record(1, 0.5)], "summary": {}}, "| test, this seed | 50.00 |", "mean ± std"),
    ],
)
def test_other_runs(change, present, absent):
    card = tlm_card({**copy.deepcopy(RUN), **change}, 1)
    assert present in card and absent not in card


def test_a_model_whose_code_travels_with_it():
    run = copy.deepcopy(RUN)
    assert "trust_remote_code" not in tlm_card(run, 1)
    for entry in run["seeds"]:
        entry["model_type"] = "cocolm"
    card = tlm_card(run, 1)
    assert 'model="path/or/repo-id", trust_remote_code=True)' in card
    assert card.count("trust_remote_code=True") == card.count("path/or/repo-id")


@pytest.mark.parametrize("stage,absent", [("1", "Stage 2"), ("2", "Stage 1")])
def test_single_stages(stage, absent):
    run = copy.deepcopy(RUN)
    run["arguments"]["stage"] = stage
    for entry in run["seeds"]:
        entry["stages"] = {stage: entry["stages"][stage]}
    assert absent not in tlm_card(run, 1)


def test_energy():
    run = copy.deepcopy(RUN)
    run["arguments"]["energy_country"] = "FRA"
    cost = run["seeds"][1]["cost"] = {**COST, "energy_kwh": 0.25, "estimated_kwh": 0.05}
    assert "0.25 kWh of electricity by codecarbon (20% of it estimated)." in tlm_card(run, 1)
    cost["co2_kg"] = 0.014
    assert "estimated), 0.014 kg of CO2 by the energy mix of FRA." in tlm_card(run, 1)


COCO_LM = {"objective": "cocolm", "clm": "full", "stop_gradient": True, "scl": True, "crop_fraction": 0.9}
COCO_LM |= {"scl_temperature": 1.0, "scl_projection": "none"}
PRETRAINED = {
    "corpus": {"name": "wiki", "fingerprint": "0123", "blocks": 5000, "tokens": 630_000, "bad_files": {}},
    "arguments": {
        **{"objective": "mlm", "max_length": 128, "mlm_probability": 0.15, "rtd_weight": 50.0, "learning_rate": 5e-4},
        **{"lr_scheduler_type": "linear", "optim": "lamb", "seed": 3, "texts_per_step": 1024},
    },
    "model": {
        "model_name_or_path": None,
        "temperature": 0.8,
        "replacements": "sampled",
        "freeze_auxiliary": False,
        "spectral_scale": 1.0,
    },
    "blocks": {"blocks": "contiguous", "validation_share": 0.005},
    "environment": RUN["environment"],
    "vocabulary": 30_522,
    "parameters": 13_500_000,
    "trained_parameters": 13_500_000,
    "cost": COST,
    "validation": {"loss": 2.5, "mlm_loss": 2.5, "rtd_accuracy_original": 0.97},
    "validation_blocks": 1000,
    "spectral": None,
}


@pytest.mark.parametrize(
    "change,present,absent",
    [
        ({}, "A masked language model, pretrained from scratch on the corpus `wiki`", "generator"),
        ({}, "On 1,000 blocks of documents that were kept from training (0.5% of the corpus", "| loss |"),
        ({}, "460 steps of 1024 blocks; the texts one after the other, cut every 128 tokens. 15% of the tokens", "None"),
        ({"arguments": {"objective": "electra"}}, "at temperature 0.8; its loss plus 50 times", "ALE"),
        (
            {"arguments": COCO_LM},
            "loss of the auxiliary model + 50 x copy loss + language modelling loss + sequence",
            "ELECTRA",
        ),
        ({"arguments": COCO_LM}, "corrects the tokens of a text that were replaced by a shallower masked", "not learn"),
        (
            {"arguments": {**COCO_LM, "clm": "rtd", "scl": False}},
            "+ 50 x replaced token detection is learned",
            "contrastive",
        ),
        ({"arguments": {**COCO_LM, "clm": "all_token"}}, "model + language modelling loss of all tokens + seq", "50 x"),
        ({"arguments": {**COCO_LM, "stop_gradient": False}}, "(which trains the copy head too) + seq", "without the copy"),
        ({"arguments": COCO_LM}, "+ sequence contrastive loss (crops of 90%, temperature 1) is learned", "projection"),
        ({"arguments": {**COCO_LM, "scl_projection": "mlp"}}, "temperature 1, a projection head)", "None"),
        ({"arguments": COCO_LM, "model": {"replacements": "random"}}, "and replaced by random tokens", "at temperature"),
        ({"arguments": {"objective": "ale"}}, "on an ALBERT body, called ALE", "fill-mask"),
        ({"model": {"model_name_or_path": "bert"}}, "trained further from `bert`", "from scratch on"),
        ({"blocks": {"blocks": "sentences"}}, "whole sentences, as many as fit into 128 tokens", "cut every"),
        ({"corpus": {"blocks": None}}, "(fingerprint `0123`).", "5,000"),
        ({"corpus": {"bad_files": {"a.parquet": "broken"}}}, "1 files could not be read", "None"),
        ({"validation": {}}, "Nothing was kept from training", "documents that were"),
        ({"spectral": {"tokens_covered": 3}}, "spectral warm start, norm 1.0", "None"),
        ({}, "13,500,000 parameters in training;", "LoRA"),
        (
            {"model": {**PRETRAINED["model"], "use_peft": True, "lora_r": 8}, "trained_parameters": 20_000},
            "by a LoRA adapter (rank 8), which these weights have merged in and the subfolder `adapter` holds by itself. "
            "13,500,000 parameters in training, 20,000 of them trained",
            "None",
        ),
        ({"cost": {**COST, "energy_kwh": 0.5, "estimated_kwh": 0.1}}, "0.5 kWh of electricity", "CO2"),
    ],
)
def test_pretrained(change, present, absent):
    run = copy.deepcopy(PRETRAINED)
    for name, values in change.items():
        run[name] = {**run[name], **values} if values and isinstance(run[name], dict) else values
    card = pretrained_card(run)
    assert present in card and absent not in card and "{{" not in card
    assert ModelCard(card).data.library_name == "transformers"
