"""The cards: golden files (HF_TLM_WRITE_GOLDEN=1 writes them), valid metadata, true sentences for every kind of run."""

import copy
import math
import os
from pathlib import Path

import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard

from hf_tlm.hub.cards import (
    METRIC_NAMES,
    converted_card,
    dataset_sentence,
    oldest_transformers,
    pretrained_card,
    prompted_card,
    published_card,
    tlm_card,
)
from hf_tlm.hub.repo_id import displayed_name, hub_name
from hf_tlm.hub.subset_cards import size_category, subset_card
from hf_tlm.tasks.spec import KIND_METRICS
from hf_tlm.training.run_folder import recorded_teacher
from support.card_records import COCO_LM, COST, INFO, PRETRAINED, REPORT, RUN, SELECTION, SUBSET, record


def test_card_has_metadata_of_the_model_and_its_scores():
    data = ModelCard(tlm_card(RUN, 1)).data
    assert data.library_name == "transformers" and data.pipeline_tag == "text-classification"
    assert "trained-from-scratch" in data.tags and data.base_model is None
    scores = {(r.dataset_split, r.metric_name): r.metric_value for r in data.eval_results}
    assert scores[("test", "Micro-F1")] == 0.52 and len(scores) == 4


@pytest.mark.parametrize("metric", KIND_METRICS["classification"])
def test_every_metric_of_a_task_is_reported(metric):
    run = copy.deepcopy(RUN) | {"metric": metric}
    for scores in [seed[split] for seed in run["seeds"] for split in ("validation", "test")]:
        scores[metric] = scores["micro_f1"]
    for summary in run["summary"].values():
        summary[metric] = summary["micro_f1"]
    card = tlm_card(run, 1)
    assert f"| | {METRIC_NAMES[metric]} | accuracy |" in card
    assert METRIC_NAMES[metric] in {result.metric_name for result in ModelCard(card).data.eval_results}


def test_card_describes_the_run():
    card = tlm_card(RUN, 1)
    for text in (
        "trained from scratch",
        "| test, this seed | 52.00 | 52.00 |",
        "| test, mean ± std of 2 seeds | 51.00 ± 1.00 | 51.00 ± 1.00 |",
        "the best of 2 seeds on validation",
        "23,782 of 409,154 passages",
        "the top 50 for each training text",
        "Stage 1: 160 steps, 3 corpus batches for each task batch",
        "15% of tokens masked",
        "9e+12 FLOPs",
        "83 seconds on a CPU",
    ):
        assert text in card, text
    assert "spectral" not in card and "None" not in card and "{{" not in card and "{%" not in card


def test_lead_over_the_linear_model_is_reported():
    """The lead is the mean over seeds on the last split, over the linear model only; without a lead no sentence is
    written.
    """
    lead = {"difference": -0.0334, "low": -0.089, "high": 0.0174}
    scores = {"validation": {"micro_f1": 0.5, "accuracy": 0.5}, "test": {"micro_f1": 0.4, "accuracy": 0.4}}
    baselines = [
        {"name": name, "scores": scores, "lead": {"validation": {**lead, "difference": 0.5}, "test": lead}}
        for name in ("majority class", "linear")
    ]
    points = "differs from that of the linear model by -3.34 points (95% interval over resampled texts, paired bootstrap:"
    sentence = f"On test, the mean Micro-F1 of 2 seeds {points}"
    seed_records = [record for record in RUN["seeds"] if record["seed"] == 1]
    assert f"On test, the Micro-F1 {points} -8.90" in tlm_card(RUN | {"baselines": baselines, "seeds": seed_records}, 1)
    card = tlm_card(RUN | {"baselines": baselines}, 1)
    assert card.count(f"{sentence} -8.90 to +1.74).") == 1 and "+50.00" not in card
    assert "| test, linear model on TF-IDF | 40.00 | 40.00 |\n\nOn test," in card
    without = [{name: value for name, value in seed_records.items() if name != "lead"} for seed_records in baselines]
    assert "paired bootstrap" not in tlm_card(RUN | {"baselines": without}, 1)


def test_held_out_splits_are_reported():
    card = tlm_card(RUN | {"held_out": {"validation": 0.1, "test": 0.05}}, 1)
    assert (
        "The task's data had no validation and test split: 10% and 5% of the texts of each class were held out for them"
        in card
    )
    assert "no test split: 10% of the texts of each class were held out for it, with identical" in tlm_card(
        RUN | {"held_out": {"test": 0.1}}, 1
    )


def test_sampled_splits_are_reported():
    card = tlm_card(RUN | {"train_sampled": {"examples": 1000, "of": 26006}}, 1)
    assert " It was trained on 1,000 of the 26,006 examples of the training split, a sample stratified by class." in card
    assert "It was validated on" not in card
    both = {"train_sampled": {"examples": 1000, "of": 26006}, "validation_sampled": {"examples": 100, "of": 3343}}
    sentence = (
        "by class. It was validated on 100 of the 3,343 examples of the validation split, a sample stratified by class."
    )
    assert sentence in tlm_card(RUN | both, 1) and sentence.removeprefix("by class.") in tlm_card(
        RUN | {"validation_sampled": both["validation_sampled"]}, 1
    )


@pytest.mark.parametrize(
    "change,present,absent",
    [
        ({"subset": None}, "training split of `chemprot` only", "passages"),
        (
            {"model": {"model_name_or_path": "bert", "embedding_init": "random"}},
            "trained further from `bert`",
            "without a large pretrained",
        ),
        ({"model": {**RUN["model"], "embedding_init": "spectral"}}, "spectral warm start, norm 1.0", "Nothing"),
        (
            {"model": {**RUN["model"], "classifier_init": "linear"}},
            "a classifier that is a linear model of the task's tokens",
            "Nothing",
        ),
        ({"subset": {**RUN["subset"], "retriever": "random", "top_k": None}}, "random passages of a general", "resemble"),
        ({"arguments": {**RUN["arguments"], "rho1": 0.0}}, "task batches only; 20 x masked-LM loss", "corpus batches"),
        ({"arguments": {**RUN["arguments"], "rho1": math.inf}}, "corpus batches only; masked-LM loss; 15%", "task batches"),
        ({"arguments": {**RUN["arguments"], "rho1": 3.0, "rho2": 0.5}}, "steps, 3 corpus batches", "3.0 corpus"),
        ({"model": {**RUN["model"], "use_peft": True}}, "20,000 of them trained: this is a LoRA", "subfolder"),
        ({"seeds": [record(1, 0.5)], "summary": {}}, "| test, this seed | 50.00 |", "mean ± std"),
    ],
)
def test_card_of_other_settings(change, present, absent):
    card = tlm_card({**copy.deepcopy(RUN), **change}, 1)
    assert present in card and absent not in card


def test_card_of_a_model_with_own_code_says_trust_remote_code():
    run = copy.deepcopy(RUN)
    assert "trust_remote_code" not in tlm_card(run, 1)
    for entry in run["seeds"]:
        entry["model_type"] = "cocolm"
    card = tlm_card(run, 1)
    assert 'model="path/or/repo-id", trust_remote_code=True)' in card
    assert card.count("trust_remote_code=True") == card.count("path/or/repo-id")


@pytest.mark.parametrize(
    "objective,clm,present,absent",
    [
        ("electra", None, "The body alone is in the subfolder `discriminator`", "PreTraining"),
        (
            "cocolm",
            "full",
            "heads for corrective language modelling in `clm_heads.safetensors` of the same subfolder",
            "`mlm`",
        ),
        (
            "cocolm",
            "rtd",
            "in the subfolder `discriminator`, its head for replaced tokens in `rtd_head.safetensors`",
            "`mlm`",
        ),
    ],
)
def test_card_of_a_composite_without_stock_heads(objective, clm, present, absent):
    """Heads that the stock classes do not have are saved beside the body."""
    run = with_objective(objective)
    for entry in run["seeds"]:
        entry["model_type"] = "modernbert"
    if clm is not None:
        run["arguments"]["clm"] = clm
    card = tlm_card(run, 1)
    assert present in card and absent not in card


@pytest.mark.parametrize(
    "options,said",
    [
        ({}, "steps on the task loss alone, keeping the"),
        ({"stage2_rho2": 0.5}, "steps on the task loss and 0.5 x masked-LM loss, keeping the"),
        ({"stage2_rdrop": 1.0, "stage2_label_smoothing": 0.1}, "alone (R-Drop with weight 1, label smoothing 0.1), keeping"),
        ({"stage2_class_balance": 1.0}, "alone (classes weighted by their frequency to the power of -1), keeping"),
        ({"stage2_ema_decay": 0.99}, "The weights are an exponential average over the steps of stage 2 (decay 0.99)."),
    ],
)
def test_losses_of_stage_2_are_reported(options, said):
    run = copy.deepcopy(RUN)
    run["arguments"] |= options
    assert said in tlm_card(run, 1)


@pytest.mark.parametrize("stage,absent", [("1", "Stage 2"), ("2", "Stage 1")])
def test_stage_that_was_not_run_is_left_out(stage, absent):
    run = copy.deepcopy(RUN)
    run["arguments"]["stage"] = stage
    for entry in run["seeds"]:
        entry["stages"] = {stage: entry["stages"][stage]}
    assert absent not in tlm_card(run, 1)


def test_code_for_pairs_of_texts_passes_a_pair():
    assert '"text_pair"' in tlm_card(RUN | {"pairs": True}, 1)
    assert '"text_pair"' not in tlm_card(RUN, 1)


def test_texts_shared_with_training_and_precision_are_reported():
    run = copy.deepcopy(RUN)
    assert "also in the training split" not in tlm_card(run, 1) and "precision" not in tlm_card(run, 1)
    run["texts_also_in_train"] = {"validation": 0, "test": 1052}
    run["arguments"]["bf16"] = True
    card = tlm_card(run, 1)
    assert "lower scores. 1,052 texts of the test split are also in the training split.\n" in card
    assert "83 seconds on a CPU, in mixed precision (bf16)." in card


def test_energy_and_co2_are_reported():
    run = copy.deepcopy(RUN)
    run["arguments"]["energy_country"] = "FRA"
    cost = run["seeds"][1]["cost"] = {**COST, "energy_kwh": 0.25, "estimated_kwh": 0.05}
    assert "0.25 kWh of electricity according to codecarbon (20% of it estimated)." in tlm_card(run, 1)
    cost["co2_kg"] = 0.014
    assert "estimated), which is 0.014 kg of CO2 with the energy mix of FRA." in tlm_card(run, 1)


@pytest.mark.parametrize(
    "change,present,absent",
    [
        ({}, "A masked language model, pretrained from scratch on the corpus `wiki`", "generator"),
        ({}, "Measured on 1,000 blocks of documents that were held out from training (0.5% of the corpus", "| loss |"),
        ({"arguments": {"total_batch_tokens": 4096}}, "460 steps of 4,096 tokens in blocks; the texts", "1024"),
        ({}, "460 steps of 1024 blocks; the texts were concatenated and cut every 128 tokens. 15% of the tokens", "None"),
        (
            {"arguments": {"objective": "electra"}},
            "at temperature 0.8. Loss: masked-LM loss of the auxiliary model + 50 x replaced",
            "ALE",
        ),
        (
            {"arguments": COCO_LM},
            "loss of the auxiliary model + 50 x copy loss + language modelling loss + sequence",
            "ELECTRA",
        ),
        (
            {"arguments": COCO_LM},
            "trained to correct the tokens of a text that were replaced by a shallower masked",
            "not learn",
        ),
        (
            {"arguments": {**COCO_LM, "clm": "rtd", "scl": False}},
            "+ 50 x replaced token detection. Peak",
            "contrastive",
        ),
        ({"arguments": {**COCO_LM, "clm": "all_token"}}, "model + language modelling loss of all tokens + seq", "50 x"),
        ({"arguments": {**COCO_LM, "stop_gradient": False}}, "(which trains the copy head too) + seq", "without the copy"),
        ({"arguments": COCO_LM}, "+ sequence contrastive loss (crops of 90%, temperature 1). Peak", "projection"),
        ({"arguments": {**COCO_LM, "scl_projection": "mlp"}}, "temperature 1, a projection head)", "None"),
        ({"arguments": COCO_LM, "model": {"replacements": "random"}}, "and replaced by random tokens", "at temperature"),
        ({"arguments": {"objective": "ale"}}, "on an ALBERT body, called ALE", "fill-mask"),
        ({"model": {"model_name_or_path": "bert"}}, "trained further from `bert`", "from scratch on"),
        ({"blocks": {"blocks": "sentences"}}, "a block has as many complete sentences as fit into 128 tokens", "cut every"),
        ({"corpus": {"blocks": None}}, "(fingerprint `0123`).", "5,000"),
        ({"corpus": {"bad_files": {"a.parquet": "broken"}}}, "; 1 file could not be read and was left out. Whether", "None"),
        ({"validation": {}}, "no documents were held out from training", "Measured on"),
        ({"model": {**PRETRAINED["model"], "embedding_init": "spectral"}}, "spectral warm start, norm 1.0", "None"),
        (
            {"model": {**PRETRAINED["model"], "weight_init": "width", "lm_head_init": "frequencies"}},
            "sqrt(768 / width). The output bias was initialised with the log frequencies of the tokens in the blocks",
            "spectral",
        ),
        (
            {"model": {**PRETRAINED["model"], "attention_init": "neighbors"}},
            "heads to attend to neighbouring tokens. This initialisation is an addition of hf_tlm",
            "None",
        ),
        ({}, "13,500,000 parameters in training;", "LoRA"),
        (
            {"model": {**PRETRAINED["model"], "use_peft": True, "lora_r": 8}, "trained_parameters": 20_000},
            "with a LoRA adapter (rank 8) that is merged into these weights and also saved in the subfolder `adapter`. "
            "13,500,000 parameters in training, 20,000 of them trained",
            "None",
        ),
        ({"cost": {**COST, "energy_kwh": 0.5, "estimated_kwh": 0.1}}, "0.5 kWh of electricity", "CO2"),
    ],
)
def test_card_of_a_pretrained_model(change, present, absent):
    run = copy.deepcopy(PRETRAINED)
    for name, values in change.items():
        run[name] = {**run[name], **values} if values and isinstance(run[name], dict) else values
    card = pretrained_card(run)
    assert present in card and absent not in card and "{{" not in card
    assert ModelCard(card).data.library_name == "transformers"


def with_objective(objective, **changes):
    run = copy.deepcopy(RUN)
    run["arguments"] |= {"rtd_weight": 50.0, **(COCO_LM if objective == "cocolm" else {"objective": objective})}
    for entry in run["seeds"]:
        entry["model_type"] = {"mlm": "bert", "ale": "albert"}.get(objective, objective)
    return {**run, **changes}


def pretrained(objective):
    run = copy.deepcopy(PRETRAINED)
    run["arguments"] |= COCO_LM if objective == "cocolm" else {"objective": objective}
    run["model_type"] = "cocolm" if objective == "cocolm" else "bert"
    return run


RECORD = record(1, 0.52)
CHOSEN = {**RUN["subset"], "selection": SELECTION, "counts": {**RUN["subset"]["counts"], "union": 4756}}
FEWER = {**SUBSET, "selection": SELECTION, "counts": {**SUBSET["counts"], "union": 4756}}
CARDS = {
    "tlm_mlm": lambda: tlm_card(with_objective("mlm"), 1),
    "tlm_iss": lambda: tlm_card(with_objective("mlm", subset=CHOSEN), 1),
    "tlm_electra": lambda: tlm_card(with_objective("electra"), 1),
    "tlm_ale": lambda: tlm_card(with_objective("ale"), 1),
    "tlm_cocolm": lambda: tlm_card(with_objective("cocolm"), 1),
    "tlm_lora": lambda: tlm_card(with_objective("mlm", model={**RUN["model"], "use_peft": True}), 1),
    "pretrained_mlm": lambda: pretrained_card(pretrained("mlm")),
    "pretrained_electra": lambda: pretrained_card(pretrained("electra")),
    "pretrained_ale": lambda: pretrained_card(pretrained("ale")),
    "pretrained_cocolm": lambda: pretrained_card(pretrained("cocolm")),
    "converted_tlm": lambda: converted_card("them/tlm-sciie", 110_000_000, [], classes=["COMPARE", "USED-FOR"]),
    "converted_cocolm": lambda: converted_card("them/cocolm", 110_000_000, ["head.bias"], classes=None),
    "subset_bm25": lambda: subset_card(SUBSET, REPORT, INFO, engine="bm25, lucene"),
    "subset_iss": lambda: subset_card(FEWER, REPORT, INFO, engine="bm25", selection="in words"),
    "subset_random": lambda: subset_card({**SUBSET, "retriever": "random", "seed": 3}, REPORT, INFO),
}


def card_of_a_prompted_model(template="{text} It was {mask}.", **arguments):
    prompt = {"template": template, "label_words": {"neg": "bad", "p|s": "good"}}
    known = {name: RUN[name] for name in ("task", "metric", "environment")}
    details = {**known, "k": 16, "scored_split": "validation", "prompt": prompt, "model": {"model_name_or_path": "them/lm"}}
    baselines = [{"name": "linear", "scores": {"test": {"micro_f1": 0.4, "accuracy": 0.4}}}]
    details |= {"arguments": {"max_steps": 1000, "max_length": 128, **arguments}, "baselines": baselines}
    chosen = {"seed": 13, "learning_rate": 1e-5, "batch_size": 4, "best_step": 300, "points": [{}, {}]}
    return prompted_card(details, {**chosen, **{split: RECORD[split] for split in ("validation", "test")}})


def test_card_of_a_prompted_model():
    card = card_of_a_prompted_model(demonstrations=True)
    data = ModelCard(card).data.to_dict()
    assert data["base_model"] == "them/lm" and data["pipeline_tag"] == "fill-mask" and "hf_tlm" in data["tags"]
    (result,) = data["model-index"][0]["results"]
    assert result["dataset"]["split"] == "validation" and [metric["value"] for metric in result["metrics"]] == [0.52, 0.52]
    assert (
        "- `good` for the class `p|s`" in card and "`{text} It was {mask}.`" in card and "| test | 52.00 | 52.00 |" in card
    )
    assert "**and the 16 training examples of each class**" in card and "| test, linear model on TF-IDF | 40.00 |" in card
    assert (
        "the test scores are on the task's validation split" in card
        and "of 2 trainings" in card
        and "step 300 of 1000" in card
    )
    pairs = card_of_a_prompted_model("{text:bare}? {mask}, {text_pair:lower}", demonstrations=False)
    assert '"text_pair": ["Its second text."]' in pairs and "training examples of each class**" not in pairs


def test_loading_the_tokenizer_also_trusts_remote_code():
    """The tokenizer loads the config: without the option users were asked whether to run its code."""
    adapter = with_objective("cocolm", model={**RUN["model"], "use_peft": True})
    for card in (CARDS["pretrained_cocolm"](), CARDS["tlm_cocolm"](), tlm_card(adapter, 1)):
        loads = [line for line in card.splitlines() if "AutoTokenizer.from_pretrained(" in line]
        assert all("trust_remote_code=True" in line for line in loads), loads


@pytest.mark.parametrize("name", CARDS)
def test_card_equals_its_golden_file(name):
    card, golden = CARDS[name](), Path(__file__).parent / "golden" / f"{name}.md"
    if os.environ.get("HF_TLM_WRITE_GOLDEN"):
        golden.write_text(card, encoding="utf-8")
    assert card == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CARDS)
def test_every_card_has_its_metadata_and_sections(name):
    card = CARDS[name]()
    parsed = (DatasetCard if name.startswith("subset") else ModelCard)(card)
    data = parsed.data.to_dict()
    assert not {"language", "license"} & set(data) and "hf_tlm" in data["tags"]  # Neither was given.
    sections = [line.removeprefix("## ") for line in card.splitlines() if line.startswith("## ")]
    limits = "Training data, procedure and limits" if name.startswith("converted") else "Limits"
    assert {limits, "Licence", "Citation"} <= set(sections) and card.count("```") % 2 == 0
    assert "```bibtex\n@" in card and "No licence was chosen" in card and card.endswith("```\n")
    if name.startswith("subset"):
        assert data["task_categories"] == ["fill-mask"] and data["source_datasets"] == ["extended|other"]
        assert data["configs"][0]["config_name"] == data["dataset_info"]["config_name"] == "default"
    elif name.startswith("converted"):
        assert data["base_model"].startswith("them/") and {"library_name", "pipeline_tag"} <= set(data)
    else:
        assert {"library_name", "pipeline_tag", "model-index", "metrics"} <= set(data)
        assert {"Results", "Training data", "Procedure", "Cost", "Environment"} <= set(sections)
        assert "of RoBERTa-Large's training" in card


def test_steps_of_the_procedure_are_paragraphs_of_their_own():
    """Markdown joins lines without a blank line between them to one paragraph."""
    model = {**RUN["model"], "embedding_init": "spectral"}
    arguments = {**RUN["arguments"], "teacher_weight": 1.0}
    taught = {"teacher": {"model": "linear"}, "arguments": arguments}
    first_round = {"rounds": [{}, {}], "round": 1}
    published = sorted((Path(__file__).parents[2] / "model_cards").glob("tlm-*.md"))
    cards = [tlm_card(RUN | {"model": model} | change, 1) for change in ({}, taught, first_round)]
    cards += [path.read_text(encoding="utf-8") for path in published]
    counts = []
    for card in cards:
        procedure, _, rest = card.partition("## Procedure\n\n")[2].partition("\n\n## Cost\n\n")
        paragraphs = procedure.split("\n\n")
        assert rest and all(paragraphs) and not any("\n" in paragraph for paragraph in paragraphs), procedure
        assert [paragraph.partition(":")[0] for paragraph in paragraphs[:2]] == ["Stage 1", "Stage 2"]
        counts.append(len(paragraphs))
    assert counts[:3] == [3, 4, 4] and published


@pytest.mark.parametrize(
    "method, said",
    [("confidence", "how certain a teacher is of them"), ("disagreement", "how much teachers differ on them")],
)
def test_selection_by_a_teacher_is_reported(method, said):
    """The selection depends on labels; the teacher's name and licence are on the subset's card."""
    teacher = {"model": "x`y", "teachers": [{"name": "me/<b>", "revision": "0f", "license": "mit"}]}
    selection = {**SELECTION, "method": method, "teacher": teacher}
    card = tlm_card(with_objective("mlm", subset={**CHOSEN, "selection": selection}), 1)
    assert (
        f"selected from the 23,782 passages found by {said}. This selection depends on the labels that the teacher `x'y`"
        in card
    )
    card = subset_card({**FEWER, "selection": selection}, REPORT, INFO, engine="bm25", selection="in words")
    assert "`teacher_score`" in card and "`x'y`" in card and "`me/<b>` at revision `0f`: licence `mit`." in card
    assert "This selection depends on the labels that the teacher was trained with." in card


def test_oldest_transformers_depends_on_the_model_type():
    assert [oldest_transformers(name) for name in ("bert", "distilbert", "cocolm", None)] == ["4.57", "4.57", "5.4", "4.57"]
    assert "loads with transformers 4.57 or later." in CARDS["tlm_mlm"]() and "5.4 or later" in CARDS["converted_cocolm"]()
    assert "or later" not in CARDS["tlm_lora"]().partition("## Environment")[2].partition("## ")[0]


def test_selection_by_influence_is_reported_with_its_use_of_labels():
    card = tlm_card(with_objective("mlm", subset=CHOSEN), 1)
    assert "selected from the 23,782 passages found by their influence" in card and "@inproceedings{wang2023" in card
    assert "Labels were not used" not in card and "labels of the validation examples" in card
    assert "iss" in ModelCard(card).data.tags
    assert "This selection used the labels of the validation examples." in CARDS["subset_iss"]()
    assert "labels of the validation" not in CARDS["subset_bm25"]()


SHA = "0123456789" * 4


def test_datasets_from_the_hub_are_linked(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://huggingface.co")
    run = with_objective("mlm", subset={**RUN["subset"], "hub": {"repo_id": "me/passages", "revision": "abc"}})
    card = tlm_card(run, 1)
    assert "[me/passages](https://huggingface.co/datasets/me/passages/tree/abc) at revision `abc`." in card
    assert ModelCard(card).data.datasets == ["me/passages"]
    run = copy.deepcopy(PRETRAINED)
    run["corpus"]["name"] = f"them/web@{SHA}"
    card = pretrained_card(run)
    assert f"[them/web](https://huggingface.co/datasets/them/web/tree/{SHA})" in card
    assert ModelCard(card).data.datasets == ["them/web"]
    card = subset_card({**SUBSET, "corpus": {"name": f"them/web@{SHA}", "fingerprint": "0"}}, REPORT, INFO)
    assert DatasetCard(card).data.source_datasets == ["them/web"]


def test_local_file_is_not_named_as_a_dataset_of_the_hub():
    run = copy.deepcopy(PRETRAINED)
    run["corpus"]["name"] = "folder/corpus.parquet"
    card = pretrained_card(run)
    assert ModelCard(card).data.datasets is None and "huggingface.co/datasets" not in card
    card = subset_card({**SUBSET, "corpus": {"name": "folder/corpus.parquet", "fingerprint": "0"}}, REPORT, INFO)
    assert DatasetCard(card).data.source_datasets == ["extended|other"]


def test_base_model_is_named_without_its_local_folders(tmp_path):
    (tmp_path / "runs" / "base").mkdir(parents=True)
    local_model = str(tmp_path / "runs" / "base")
    assert (
        hub_name(local_model) is None
        and displayed_name(local_model) == "runs/base"
        and displayed_name(local_model + "/") == "runs/base"
    )
    assert hub_name("me/base@v1") == "me/base" and displayed_name("me/base@v1") == "me/base@v1"
    assert hub_name("bert-base-uncased") == "bert-base-uncased" and hub_name(None) is displayed_name(None) is None
    for inside in ("training/checkpoint-50", "seed-0/stage1/checkpoint-50", "round-1/seed-3/training/checkpoint-7"):
        checkpoint = tmp_path / "runs" / "base" / inside
        checkpoint.mkdir(parents=True)
        assert displayed_name(str(checkpoint)) == f"base/{inside}" == displayed_name(f"base/{inside}/")
        card = tlm_card({**RUN, "model": {**RUN["model"], "model_name_or_path": str(checkpoint)}}, 1)
        assert f"trained further from `base/{inside}`" in card and str(tmp_path) not in card
        assert recorded_teacher([str(checkpoint)]) == "/".join(inside.split("/")[-2:])  # A run is recognized by this.
    for bare in ("/training/checkpoint-50", "training/checkpoint-50"):
        assert displayed_name(bare) == "training/checkpoint-50"
    assert displayed_name("/checkpoint-50") == "checkpoint-50"
    assert hub_name("a/b/c") is None and hub_name("./base") is None
    card = tlm_card({**RUN, "model": {**RUN["model"], "model_name_or_path": local_model}}, 1)
    assert "trained further from `runs/base`" in card and str(tmp_path) not in card and "base_model" not in card
    card = tlm_card({**RUN, "model": {**RUN["model"], "model_name_or_path": "me/base@v1"}}, 1)
    assert ModelCard(card).data.base_model == "me/base"


def test_subset_card_with_several_configurations():
    card = subset_card(SUBSET, REPORT, INFO, engine="bm25", config="small", data_files="small/train-*.parquet")
    data = DatasetCard(card).data.to_dict()
    assert 'load_dataset("path/or/repo-id", "small", split="train")' in card
    assert data["configs"] == [{"config_name": "small", "data_files": [{"split": "train", "path": "small/train-*.parquet"}]}]


@pytest.mark.parametrize("rows,name", [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (5e8, "100M<n<1B"), (1e9, "n>1B")])
def test_size_category_of_a_number_of_rows(rows, name):
    assert size_category(rows) == name


def test_masking_is_reported():
    run = with_objective("mlm")
    run["arguments"] |= {"mlm_probability": 0.3, "mlm_probability_end": 0.15, "whole_word_mask": True}
    assert "; 30% (15% at the end) of tokens masked (all tokens of a word together)." in tlm_card(run, 1)


def test_published_card_has_repo_license_language_and_dataset(name="tlm_mlm"):
    card = CARDS[name]()
    assert published_card(card, "me/model") == card.replace("path/or/repo-id", "me/model") != card
    chosen = published_card(card, "me/model", license="mit", language="de", dataset="me/passages@abc")
    data = ModelCard(chosen).data
    assert (data.license, data.language, data.datasets) == ("mit", "de", ["me/passages"])
    assert (
        "This repository has the licence `mit`. The licences of the data also apply." in chosen
        and "No licence was chosen" not in chosen
    )
    assert "datasets/me/passages/tree/abc) at revision `abc`." in chosen and "not recorded" not in chosen
    before, after = (yaml.safe_load(text.split("---")[1]) for text in (card, chosen))
    assert {name: after[name] for name in before} == before and after["language"] == "de"
    assert published_card(chosen, "me/model", license="mit", language="de", dataset="me/passages@abc") == chosen


def test_widget_texts_are_in_the_metadata():
    texts = ["We propose a parser: it parses.", "- [MASK] # no"]
    card = published_card(CARDS["tlm_mlm"](), "me/model", widget_texts=texts)
    assert ModelCard(card).data.widget == [{"text": text} for text in texts]
    assert ModelCard(published_card(card, "a/b", widget_texts=["One."])).data.widget == [{"text": "One."}]
    assert "widget" not in ModelCard(published_card(CARDS["tlm_mlm"](), "me/model", license="mit")).data.to_dict()


def test_card_written_by_hand_is_published_unchanged():
    text = "# Mine\n\nTry `path/or/repo-id`.\n"
    assert published_card(text, "me/model") == "# Mine\n\nTry `me/model`.\n"
    assert published_card(text, "me/model", license="mit") == "---\nlicense: mit\n---\n# Mine\n\nTry `me/model`.\n"


def test_links_point_to_the_hub_endpoint(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example.org")
    assert "[me/passages](https://hub.example.org/datasets/me/passages/tree/abc)" in dataset_sentence("me/passages@abc")
