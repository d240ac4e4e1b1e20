"""Initialization in a run: written into every trained model, trained like other weights, exported as stock, recorded."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, set_seed

from hf_tlm.models import GeneratorDiscriminator, ModelError
from hf_tlm.models.initialization import attention_weights, layers_of, position_embeddings
from hf_tlm.models.linear_start import LinearStart
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, TlmTrainer, prepare
from hf_tlm.training.prepare import check_tlm
from hf_tlm.training.run_arguments import check_together
from hf_tlm.training.stages import with_initialization
from support.toys import FAST, TINY_CONFIGS
from support.training_runs import QUIET

ALL = {"embedding_init": "spectral", "weight_init": "width", "attention_init": "neighbors", "lm_head_init": "frequencies"}
# Every family, with the objective that needs it.
BODIES = {name: "mlm" for name in TINY_CONFIGS if name != "cocolm"} | {
    "electra": "electra",
    "albert": "ale",
    "cocolm": "cocolm",
}


def config(model_type):
    own = ("vocab_size", "num_labels")
    return {"model_type": model_type, **{k: v for k, v in TINY_CONFIGS[model_type].items() if k not in own}}


def setup_of(task, corpus, model_type, **changes):
    options = {name: value for name, value in QUIET.items() if name != "logging_steps"}
    args = TlmArguments(output_dir="unused", **options, objective=BODIES[model_type], max_length=32, rho1=1, max_steps=12)
    size = {} if BODIES[model_type] in ("mlm", "cocolm") else {"auxiliary_size": 0.5}
    model_args = ModelArguments(model_config=config(model_type), vocab_size=120, **{**ALL, **size, **changes})
    return prepare(task, retrieve(task, corpus, top_k=5).dataset, args, model_args)


def bodies(model):
    return (
        [model.main.base_model, model.auxiliary.base_model]
        if isinstance(model, GeneratorDiscriminator)
        else [model.base_model]
    )


@pytest.mark.slow
@pytest.mark.parametrize("model_type", BODIES)
def test_initial_weights_are_written_and_trained(task, corpus, model_type):
    """They are in every body that an objective trains, equal under equal seeds, and every parameter is updated."""
    setup = setup_of(task, corpus, model_type)
    set_seed(3)
    model = setup.make_model()
    table = setup.initialization.spectral.vectors
    known = torch.from_numpy(table.any(axis=1))
    assert torch.equal(model.get_input_embeddings().weight[known], torch.from_numpy(table)[known])
    for body in bodies(model):
        layers = layers_of(body)
        last = attention_weights(layers[-1], body.config.num_attention_heads)
        if len(layers) > 1:  # The heads of the first layer are initialized at neighbours.
            identity = torch.eye(len(last.value))
            torch.testing.assert_close(last.output @ last.value, identity, atol=1e-5, rtol=0)
        if (positions := position_embeddings(body)) is not None:
            free = positions.weight.any(dim=0)
            assert free.any() and not model.get_input_embeddings().weight[:, free].any()
        assert body.config.initializer_range == pytest.approx(0.02 * (768 / body.config.hidden_size) ** 0.5)
    biases = [value for name, value in model.named_parameters() if value.shape == (len(setup.tokenizer),)]
    rare, common = setup.tokenizer.cls_token_id, setup.initialization.counts[5:].argmax() + 5
    assert biases and all(bias[common] > bias.mean() for bias in biases)
    assert all((bias[rare] == bias.min()) == (model_type != "cocolm") for bias in biases)
    set_seed(3)
    again = setup.make_model()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())

    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    args = setup.args.for_stage(1, "unused", 0, "macro_f1")
    args.learning_rate = 5e-3
    trainer = TlmTrainer(
        model, args, train_dataset=setup.data[1].train, corpus_dataset=setup.data[1].corpus, processing_class=setup.tokenizer
    )
    trainer.train()
    assert not [name for name, value in model.named_parameters() if torch.equal(value, before[name])]


def test_each_option_changes_only_its_weights(task, corpus, tokenizer):
    states = {}
    for option, value in {"none": None, **ALL}.items():
        options = {} if value is None else {option: value}
        plain = dict.fromkeys(ALL, "random") | {"weight_init": "config"}
        setup = setup_of(task, corpus, "bert", **{**plain, **options})
        set_seed(0)
        states[option] = setup.make_model().state_dict()
        assert (setup.initialization is None) == (option in ("none", "weight_init"))
    changed = {
        option: {name for name, value in states["none"].items() if not torch.equal(value, state[name])}
        for option, state in states.items()
    }
    word = "bert.embeddings.word_embeddings.weight"
    assert changed["embedding_init"] == {word, "mlm_head.cls.predictions.decoder.weight"}
    assert all("bias" not in name and "norm" not in name.lower() for name in changed["weight_init"])
    assert changed["lm_head_init"] == {
        "mlm_head.cls.predictions.bias",
        "mlm_head.cls.predictions.decoder.bias",
        "mlm_head.cls.predictions.transform.dense.weight",
    } & set(states["none"])
    assert {name.split(".")[2] for name in changed["attention_init"] if name.startswith("bert.encoder")} == {"layer"}
    assert "bert.embeddings.position_embeddings.weight" in changed["attention_init"]


def test_masked_lm_with_the_body_of_coco_lm_is_initialized(task, corpus):
    """Its head has a copy probability beside the output embedding, which is not a transform."""
    options = {name: value for name, value in QUIET.items() if name != "logging_steps"}
    args = TlmArguments(output_dir="unused", **options, max_length=32, rho1=1, max_steps=12)
    model_args = ModelArguments(model_config={**config("cocolm"), "copy_head": True}, vocab_size=120, **ALL)
    setup = prepare(task, retrieve(task, corpus, top_k=5).dataset, args, model_args)
    head = setup.make_model().mlm_head
    assert head["lm_head"].bias[setup.tokenizer.cls_token_id] == head["lm_head"].bias.min()
    assert head["copy_head"].out_features == 1


def test_frozen_auxiliary_model_is_unchanged(task, corpus, tmp_path):
    """It is already trained."""
    setup = setup_of(task, corpus, "electra")
    set_seed(0)
    model = setup.make_model()
    model.auxiliary.frozen = True
    before = {name: value.clone() for name, value in model.auxiliary.state_dict().items() if "embeddings." not in name}
    setup.initialization.write_to(model)
    after = model.auxiliary.state_dict()
    assert before and all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["bert", "modernbert", "electra"])
def test_run_exports_stock_models_and_records_the_initialization(tmp_path, task, corpus, model_type):
    subset = retrieve(task, corpus, top_k=5)
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, objective=BODIES[model_type])
    size = {"auxiliary_size": 0.5} if model_type == "electra" else {}
    run = run_tlm(task, subset, args, ModelArguments(model_config=config(model_type), vocab_size=120, **ALL, **size))
    initialization = run.details["initialization"]
    assert (
        initialization["spectral"]["tokens_covered"] > 20
        and initialization["neighbors"][0] == [-1]
        and initialization["token_counts"] > 300
    )
    card = (tmp_path / "run" / "README.md").read_text()
    for text in (
        "spectral warm start",
        "sqrt(768 / width)",
        "neighbouring tokens",
        "These initialisations are additions of hf_tlm",
    ):
        assert text in card
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert type(stock).__module__.startswith("transformers.models.")
    lm = tmp_path / "run" / ("generator" if model_type == "electra" else "mlm")
    assert type(AutoModelForMaskedLM.from_pretrained(lm)).__module__.startswith("transformers.models.")


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "electra"])
def test_stage_2_starts_from_a_linear_classifier(tmp_path, monkeypatch, task, corpus, objective):
    """The classifier gives the linear model's scores at the start of stage 2; the export is stock and describes it."""
    options = {"model_config": {**config("modernbert"), "classifier_pooling": "mean"}, "vocab_size": 120}
    options |= {
        "classifier_init": "linear",
        **({"auxiliary_size": 1, "auxiliary_layers": 1} if objective == "electra" else {}),
    }
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, objective=objective)
    setup = prepare(task, retrieve(task, corpus, top_k=5).dataset, args, ModelArguments(**options))
    linear = setup.initialization.linear
    assert linear.evidence.shape == (len(setup.tokenizer), 2)
    set_seed(0)
    built = setup.make_model()
    classifier = built.main if objective == "electra" else built
    assert (classifier.classifier.weight[:, :2] != -classifier.classifier.weight[:, 2:4]).all()
    linear.write_to(classifier)
    assert torch.equal(classifier.classifier.weight[:, :2], -classifier.classifier.weight[:, 2:4])
    assert not classifier.classifier.weight[:, 4:].any()
    table = classifier.get_input_embeddings().weight
    torch.testing.assert_close(table.norm(dim=1), table.norm(dim=1).median().expand(len(table)), rtol=0.02, atol=0)

    at_start = {}
    write_to = LinearStart.write_to

    def spy(start, model):
        write_to(start, model)
        at_start["stage 1 is done"] = (tmp_path / "run/seed-0/stage1/model").is_dir()
        at_start["weights"] = model.classifier.weight.clone()

    monkeypatch.setattr(LinearStart, "write_to", spy)
    run = run_tlm(task, retrieve(task, corpus, top_k=5), args, ModelArguments(**options))
    assert at_start["stage 1 is done"] and torch.equal(at_start["weights"][:, :2], -at_start["weights"][:, 2:4])
    assert run.details["initialization"]["linear"] == linear.report and linear.report["dimensions"] == 2
    assert "a classifier that is a linear model" in (tmp_path / "run" / "README.md").read_text()
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert type(stock).__module__.startswith("transformers.models.")
    assert stock.classifier.weight[:, 4:].any()


def test_linear_start_without_mean_pooling_is_refused(tmp_path, task, corpus):
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST)
    model_args = ModelArguments(model_config=config("bert"), vocab_size=120, classifier_init="linear")
    with pytest.raises(ModelError, match="reads the mean over tokens.*received the type 'bert'"):
        run_tlm(task, retrieve(task, corpus, top_k=5), args, model_args)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ArgumentsError, match="classifier_init linear"):
        ModelArguments(model_name_or_path="some/checkpoint", classifier_init="linear")


@pytest.mark.parametrize("stage", ["2", "both"])
@pytest.mark.parametrize("option", [{"stage2_reset_classifier": True}, {"stage2_classifier_pooling": "cls"}])
def test_linear_start_that_stage_2_discards_is_refused(tmp_path, stage, option):
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, stage=stage, **option)
    body = {**config("modernbert"), "classifier_pooling": "mean"}
    with pytest.raises(
        ArgumentsError, match=f"{next(iter(option))} .* discards the initialisation of classifier_init linear"
    ):
        check_tlm(True, args, ModelArguments(model_config=body, vocab_size=120, classifier_init="linear"))


def test_linear_start_with_an_adapter_is_refused(tmp_path):
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST)
    body = {**config("modernbert"), "classifier_pooling": "mean"}
    with pytest.raises(ArgumentsError, match="classifier_init linear does not work with use_peft"):
        check_tlm(True, args, ModelArguments(model_config=body, vocab_size=120, classifier_init="linear", use_peft=True))


@pytest.mark.parametrize("stage", ["1", "2"])
def test_single_stage_starts_from_a_linear_classifier(tmp_path, monkeypatch, caplog, task, corpus, stage):
    written = []
    monkeypatch.setattr(LinearStart, "write_to", lambda start, model: written.append(model))
    body = {**config("modernbert"), "classifier_pooling": "mean"}
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, stage=stage)
    model_args = ModelArguments(model_config=body, vocab_size=120, classifier_init="linear")
    run_tlm(task, retrieve(task, corpus, top_k=5) if stage == "1" else None, args, model_args)
    assert len(written) == 1
    assert caplog.text.count(f"Only stage {stage} is run") == 1


def test_token_counts_are_those_of_the_training_texts(task, corpus):
    setup = setup_of(task, corpus, "bert")
    rows = [*setup.data[1].train["input_ids"], *setup.data[1].corpus["input_ids"]]
    expected = torch.bincount(torch.tensor([token for row in rows for token in row]), minlength=len(setup.tokenizer))
    assert setup.initialization.counts.tolist() == expected.tolist()
    assert setup.initialization.report["token_counts"] == expected.sum()
    _, alone = with_initialization(setup.make_model, rows, setup.tokenizer, ModelArguments(attention_init="neighbors"))
    assert alone.spectral is None and alone.counts is None and alone.report["token_counts"] is None


def test_position_codes_are_as_large_as_random_token_embeddings(task, corpus):
    """With `neighbors` alone both parts of the first layer's input have the same variance."""
    model = setup_of(task, corpus, "bert", embedding_init="random", weight_init="config").make_model()
    tokens, positions = model.get_input_embeddings().weight, position_embeddings(model.base_model).weight
    free = positions.any(dim=0)
    token_scale = tokens[5:, ~free].square().mean().sqrt()
    assert positions[:, free].square().mean().sqrt().item() == pytest.approx(token_scale.item(), rel=0.15)


@pytest.mark.parametrize(
    "changes,refused",
    [({}, True), ({"objective": "cocolm", "clm": "rtd"}, True), ({"objective": "cocolm"}, False)],
)
def test_lm_head_init_with_a_frozen_auxiliary_model_is_refused(changes, refused):
    args = TlmArguments(output_dir="unused", **{"objective": "electra", **QUIET, **changes})
    model_args = ModelArguments(lm_head_init="frequencies", freeze_auxiliary=True, auxiliary_name_or_path="a/b")
    if refused:
        with pytest.raises(ArgumentsError, match="lm_head_init frequencies has no effect with freeze_auxiliary"):
            check_together(args, model_args)
    else:
        check_together(args, model_args)
