"""ZeRO-2 on two CPU processes computes what one process without it does, and resumes; what it cannot do is refused.

The first run of DeepSpeed on a machine without GPUs compiles its all-reduce in shared memory, which takes a minute or more.
"""

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from transformers import AutoConfig, AutoTokenizer, set_seed

from hf_tlm.errors import HfTlmError
from hf_tlm.models import CorruptAndPredict, TlmModel, auxiliary_config
from hf_tlm.training import ArgumentsError, TlmArguments
from hf_tlm.training.checkpoints import CheckpointError
from hf_tlm.training.deepspeed import ELEMENTWISE, check_deepspeed, check_settings
from hf_tlm.training.optimizers import parameter_groups
from hf_tlm.training.prepare import ModelArguments, check_model
from hf_tlm.training.sharded import skip_unused, trained_model
from hf_tlm.utils.signals import Terminated
from support.toys import TINY_CONFIGS
from support.training_runs import At, history, poison, run_processes, sigterm, tokenized, trainer

# Corpus batches leave the classifier alone, which Adam and weight decay must do too; gradients are clipped.
RUN = {
    **{"rho1": 2, "max_steps": 8, "learning_rate": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.5},
    **{"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
    **{"load_best_model_at_end": True, "metric_for_best_model": "macro_f1"},
}
ELECTRA = {"model_type": "electra", "objective": "electra"}
SETTINGS = {
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


def processes_with_deepspeed(folder, tokenizer_folder, corpus_rows):
    """One of two processes: several runs, one after the other, as starting processes takes longest."""
    os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    tokenizer, folder = AutoTokenizer.from_pretrained(tokenizer_folder), Path(folder)
    data, second = tokenized(tokenizer, corpus_rows), os.environ["RANK"] == "1"

    def train(name, action=None, **changes):
        options = {"use_cpu": False, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2} | changes
        run = trainer(folder / name, data, tokenizer, **RUN, **options, callbacks=[At(6, action)] if action else None)
        assert run.accelerator.distributed_type == DistributedType.DEEPSPEED and run.args.world_size == 2
        try:
            run.train(resume_from_checkpoint=True)
            end = "finished"
        except (HfTlmError, Terminated) as error:
            end = f"{type(error).__name__}: {error}"
        if not second:
            record = {"end": end, "log": history(run, "loss", "grad_norm"), "best": run.state.best_metric}
            (folder / f"{name}.json").write_text(json.dumps(record))
        if end == "finished":
            torch.save(trained_model(run).state_dict(), folder / f"{name}-{os.environ['RANK']}.pt")
        run.accelerator.wait_for_everyone()

    train("whole")
    # What a kill before the sixth step would have left.
    if not second:
        shutil.copytree(folder / "whole", folder / "cut", ignore=shutil.ignore_patterns("checkpoint-[68]"))
    torch.distributed.barrier()
    train("cut")
    train("sigterm", sigterm if second else None)
    shutil.copy(folder / "sigterm.json", folder / "stopped.json")
    train("sigterm")
    train("nan", poison if second else None)
    train("electra", **ELECTRA)


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install -e '.[deepspeed]'")
@pytest.mark.timeout(600)
def test_two_processes_with_zero2_equal_one_without(tmp_path, data, tokenizer, corpus_rows):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = (str(tmp_path), str(tmp_path / "tokenizer"), corpus_rows)
    assert run_processes(processes_with_deepspeed, *arguments, processes=2, patience=500) == [0, 0]
    names = ("whole", "cut", "sigterm", "stopped", "nan", "electra")
    runs = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    ends = {name: torch.load(tmp_path / f"{name}-0.pt") for name in ("whole", "electra")}
    assert list((tmp_path / "whole").glob("checkpoint-*/global_step*/*_optim_states.pt")), "DeepSpeed was not used"
    for name, changes in (("whole", {}), ("electra", ELECTRA)):
        one = trainer(tmp_path / "one" / name, data, tokenizer, **RUN, **changes, per_device_train_batch_size=8)
        one.train()
        assert runs[name]["end"] == "finished" and len(runs[name]["log"]) == RUN["max_steps"]
        for ours, expected in zip(runs[name]["log"], history(one, "loss", "grad_norm"), strict=True):
            assert ours == pytest.approx(expected, rel=1e-4)
        for key, weight in one.model.state_dict().items():
            assert torch.allclose(ends[name][key], weight, rtol=0, atol=1e-5), key
    for name in ("cut", "sigterm"):
        assert runs[name] == runs["whole"]
        for rank in range(2):
            again = torch.load(tmp_path / f"{name}-{rank}.pt")
            assert all(torch.equal(again[key], value) for key, value in ends["whole"].items()), name
    assert runs["stopped"]["end"].startswith("Terminated: Stopped by SIGTERM after step 6")
    assert runs["nan"]["end"].startswith("NonFiniteLossError: The loss of step 6 is not finite on process 1")
    assert (tmp_path / "nan/nonfinite-step-6/process-1.safetensors").is_file()
    with pytest.raises(CheckpointError, match="saved with DeepSpeed on 2 processes, and this run is one without DeepSpeed"):
        trainer(tmp_path / "whole", data, tokenizer, **RUN).train(resume_from_checkpoint=True)


def batch(tokenizer, *names):
    inputs = tokenizer(["the drug blocks the cell", "the gene meets the acid"], padding=True, return_tensors="pt")
    mlm_labels = torch.full_like(inputs["input_ids"], -100)
    mlm_labels[:, 2] = inputs["input_ids"][:, 2]
    labels = {"mlm_labels": mlm_labels, "labels": torch.tensor([0, 2])}
    return {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]} | {n: labels[n] for n in names}


@pytest.mark.parametrize("model_type", [*TINY_CONFIGS, "composite"])
def test_what_is_in_a_group_is_used_together(model_type, tokenizer):
    body = "electra" if model_type == "composite" else model_type
    config = AutoConfig.for_model(body, **TINY_CONFIGS[body] | {"vocab_size": len(tokenizer)})
    set_seed(0)
    if model_type == "composite":
        model = CorruptAndPredict.from_config(config, auxiliary_config(config, 0.5))
    else:
        model = TlmModel.from_config(config)
    decaying = {name for name, value in model.named_parameters() if value.dim() > 1}
    groups = parameter_groups(model, decaying, learning_rate=0.1, weight_decay=0.1, apart=True)
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in model.parameters()}
    mixed = set()
    for names in (["mlm_labels"], ["mlm_labels", "labels"], ["labels"]):
        model.zero_grad()
        output = model(**batch(tokenizer, *names))
        losses = [value.float().sum() for key, value in output.items() if value is not None and value.requires_grad]
        sum(losses).backward()
        used = [{p.grad is not None for p in group["params"]} for group in groups]
        assert all(len(whether) == 1 for whether in used)
        mixed |= set.union(*used)
    assert mixed == {True, False}


def test_groups_without_a_gradient_are_left_alone():
    """ZeRO's part: zeros for gradients that are not there, groups stepped one at a time."""
    set_seed(0)
    used, unused = (torch.nn.Linear(3, 3) for _ in range(2))
    optimizer = torch.optim.AdamW(
        [{"params": list(layer.parameters())} for layer in (used, unused)], lr=0.1, weight_decay=0.1
    )
    skip_unused(optimizer)

    def step(*layers):
        optimizer.zero_grad()
        sum(layer(torch.ones(2, 3)).square().sum() for layer in layers).backward()
        for parameter in (p for layer in (used, unused) for p in layer.parameters()):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        groups = optimizer.param_groups
        for group in groups:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = groups

    step(used, unused)
    before = [layer.weight.clone() for layer in (used, unused)]
    step(used)
    assert torch.equal(unused.weight, before[1]) and not torch.equal(used.weight, before[0])
    optimizer.load_state_dict(optimizer.state_dict())
    step(used, unused)
    assert not torch.equal(unused.weight, before[1])


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"deepspeed": "zero.json"}, "DeepSpeed's settings are accelerate's; received deepspeed 'zero.json'"),
        ({"use_cpu": True}, "With use_cpu accelerate would train with DDP"),
        ({"optim": "lamb"}, "with which optim lamb would not compute"),
        ({"optim": "adafactor"}, "with which optim adafactor would not compute"),
    ],
)
def test_options_that_do_not_go_with_deepspeed(tmp_path, monkeypatch, changes, message):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ArgumentsError, match=message):
        TlmArguments(output_dir=str(tmp_path), **changes)
    for optim in ELEMENTWISE:
        check_deepspeed(SimpleNamespace(deepspeed=None, use_cpu=False, optim=optim))


def test_lora_does_not_go_with_deepspeed(tmp_path, monkeypatch):
    args = TlmArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ArgumentsError, match="use_peft does not work with DeepSpeed.*Use DDP"):
        check_model(args, ModelArguments(use_peft=True, model_name_or_path="x"))


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"zero_optimization": {"stage": 3}}, "zero_stage 1 or 2, not 3.*use fsdp.yaml"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "offload_optimizer_device none, not cpu",
        ),
        ({"optimizer": {"type": "Adam"}}, "no section optimizer"),
        ({"scheduler": {"type": "WarmupLR"}}, "no section scheduler"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps auto, not 4"),
        ({"gradient_clipping": 1.0}, "gradient_clipping auto, not 1.0"),
    ],
)
def test_settings_that_a_run_cannot_have(changes, message):
    check_settings(SETTINGS)
    with pytest.raises(ArgumentsError, match=message):
        check_settings(SETTINGS | changes)
