"""Options that the Trainer checks late or never are refused before any work, each in one line."""

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from attacks.attack import assert_refused, attack
from attacks.bad_input.trainer_options import CASES
from hf_tlm.runs import FinetuneArguments
from hf_tlm.training import ArgumentsError


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case[0])))
def test_invalid_trainer_option_is_refused(toys, case):
    arguments, *expected = case
    assert_refused(attack("train_tlm", *toys.commands["train_tlm"], *arguments), *expected)
    assert not toys.out.exists()


@pytest.mark.parametrize("recipe", ["pretrain", "finetune", "few_shot", "select_influence"])
@pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[8], CASES[16]], ids=lambda case: " ".join(map(str, case[0])))
def test_invalid_trainer_option_is_refused_by_every_training_recipe(toys, recipe, case):
    arguments, *expected = case
    expected = [text for text in expected if "adamw_torch_fused" not in text and "linear" not in text]
    assert_refused(attack(recipe, *toys.commands[recipe], *arguments), *expected)
    assert not toys.out.exists()


@pytest.mark.parametrize("arguments", [("--optim", "sgd", "--optim_args", "momentum=0.9"), ("--optim", "adafactor")])
def test_valid_optimizer_arguments_are_accepted(toys, arguments):
    assert attack("finetune", *toys.commands["finetune"], *arguments).status == 0


@pytest.mark.parametrize("name", ["use_reentrant", "preserve_rng_state", "early_stop"])
def test_valid_gradient_checkpointing_arguments_are_accepted(tmp_path, name):
    kwargs = {name: False}
    args = FinetuneArguments(output_dir=str(tmp_path), report_to="none", gradient_checkpointing_kwargs=kwargs)
    assert args.gradient_checkpointing_kwargs[name] is False


@pytest.mark.parametrize("name", ["flyte", "azure_ml"])
def test_unlisted_tracker_is_accepted_if_installed(tmp_path, monkeypatch, name):
    with pytest.raises(ArgumentsError, match=f"report_to {name}: its package is not installed"):
        FinetuneArguments(output_dir=str(tmp_path), report_to=name)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, TrainerCallback)
    assert FinetuneArguments(output_dir=str(tmp_path), report_to=name).report_to == [name]


def test_too_many_shards_for_one_machine_are_refused(toys, tmp_path):
    sharded = ("--retriever", "sharded", "--work_dir", tmp_path / "work", "--num_shards", 65536)
    assert_refused(attack("retrieve", *toys.commands["retrieve"], *sharded), "--num_shards: expected at most 1,024")
    assert not toys.out.exists() and not (tmp_path / "work").exists()
