"""Options of the Trainer that it looks at late or never are refused before any work, each in one line."""

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from attacks.attack import assert_refused, attack
from hf_tlm.runs import FinetuneArguments
from hf_tlm.training import ArgumentsError

CASES = [
    (("--lr_scheduler_kwargs", '{"a": 1}'), "lr_scheduler_type linear with lr_scheduler_kwargs {'a': 1} cannot be made"),
    (("--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"num_cycles": "x"}'), "cannot be made"),
    (("--lr_scheduler_kwargs", "[1]"), "lr_scheduler_kwargs: expected a JSON object; received '[1]'"),
    (("--lr_scheduler_kwargs", "x"), "lr_scheduler_kwargs: expected a JSON object; received 'x'"),
    (("--lr_scheduler_type", "warmup_stable_decay"), "num_decay_steps"),
    (("--lr_scheduler_type", "bogus"), "--lr_scheduler_type: invalid choice"),
    (("--report_to", "bogus"), "report_to: expected none, all or some of", "received 'bogus'"),
    (("--report_to", "kubeflow", "bogus"), "report_to"),
    (("--optim_args", "a=1"), "optim_args: optim adamw_torch_fused takes no a. Leave it out."),
    (("--optim", "sgd", "--optim_args", "momentum=x"), "optim sgd with optim_args 'momentum=x' cannot be made"),
    (("--optim", "sgd", "--optim_args", "momentum=-1"), "cannot be made"),
    (("--optim", "sgd", "--optim_args", "momentum"), "optim_args: expected name=value,name=value; received 'momentum'"),
    (("--optim", "bogus"), "bogus"),
    (("--optim", "galore_adamw"), "optim galore_adamw needs the package galore_torch"),
    (("--optim_target_modules", "x"), "optim_target_modules has no effect"),
    (("--total_batch_tokens", 1009, "--per_device_train_batch_size", 8), "total_batch_tokens 1009", "Give 1024"),
    (("--accelerator_config", '{"a": 1}'), "unexpected keyword argument 'a'"),
    (("--accelerator_config", "nofile.json"), "nofile.json"),
    (("--gradient_checkpointing_kwargs", '{"a": 1}'), "gradient_checkpointing_kwargs: expected a JSON object"),
    (("--fsdp", "full_shard"), "fsdp shards a model over several processes, and this is one"),
    (("--fsdp", "bogus"), "bogus"),
    (("--torch_compile_backend", "bogus"), "torch_compile_backend: expected one of"),
    (("--torch_compile_mode", "bogus"), "torch_compile_mode: expected default"),
    (("--use_liger_kernel", "true"), "use_liger_kernel"),
    (("--parallelism_config", "x"), "--parallelism_config"),
    (("--ddp_backend", "bogus"), "--ddp_backend: invalid choice"),
    (("--metric_for_best_model", "bogus"), "The best checkpoint is chosen by the task's metric"),
    (("--include_for_metrics", "bogus"), "include_for_metrics is not supported"),
    (("--label_names", "a"), "label_names ['a'] has no effect"),
    (("--dataloader_prefetch_factor", 2), "dataloader_prefetch_factor"),
    (("--energy_country", "FRA"), "has no effect without track_energy"),
    (("--hub_strategy", "bogus"), "bogus"),
    (("--debug", "bogus"), "--debug"),
    (("--bf16", "true", "--fp16", "true"), "fp16 and bf16"),
    (("--deepspeed", "nofile.json"), "DeepSpeed's settings are accelerate's"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case[0])))
def test_they_are_refused(toys, case):
    arguments, *expected = case
    assert_refused(attack("train_tlm", *toys.commands["train_tlm"], *arguments), *expected)
    assert not toys.out.exists()


@pytest.mark.parametrize("recipe", ["pretrain", "finetune", "few_shot", "select_influence"])
@pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[8], CASES[16]], ids=lambda case: " ".join(map(str, case[0])))
def test_in_every_recipe_that_trains(toys, recipe, case):
    arguments, *expected = case
    expected = [text for text in expected if "adamw_torch_fused" not in text and "linear" not in text]
    assert_refused(attack(recipe, *toys.commands[recipe], *arguments), *expected)
    assert not toys.out.exists()


@pytest.mark.parametrize("arguments", [("--optim", "sgd", "--optim_args", "momentum=0.9"), ("--optim", "adafactor")])
def test_what_an_optimizer_takes_is_taken(toys, arguments):
    assert attack("finetune", *toys.commands["finetune"], *arguments).status == 0


@pytest.mark.parametrize("name", ["use_reentrant", "preserve_rng_state", "early_stop"])
def test_what_checkpointing_takes_is_taken(tmp_path, name):
    kwargs = {name: False}
    args = FinetuneArguments(output_dir=str(tmp_path), report_to="none", gradient_checkpointing_kwargs=kwargs)
    assert args.gradient_checkpointing_kwargs[name] is False


@pytest.mark.parametrize("name", ["flyte", "azure_ml"])
def test_a_tracker_that_transformers_does_not_list_is_taken_where_it_is_installed(tmp_path, monkeypatch, name):
    with pytest.raises(ArgumentsError, match=f"report_to {name}: its package is not installed"):
        FinetuneArguments(output_dir=str(tmp_path), report_to=name)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, TrainerCallback)
    assert FinetuneArguments(output_dir=str(tmp_path), report_to=name).report_to == [name]


def test_more_shards_than_one_machine_starts(toys, tmp_path):
    sharded = ("--retriever", "sharded", "--work_dir", tmp_path / "work", "--num_shards", 65536)
    assert_refused(attack("retrieve", *toys.commands["retrieve"], *sharded), "--num_shards: expected at most 1,024")
    assert not toys.out.exists() and not (tmp_path / "work").exists()
