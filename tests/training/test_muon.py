"""Muon: its step equals the equation, it is applied only to the layers' matrices, and runs resume exactly."""

import math

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from hf_tlm.models import GeneratorDiscriminator, TlmModel, export_stock, generator_config
from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments, finetune
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, check_model
from hf_tlm.training.optimizers import Muon, distances_from_top, layer_matrices, parameter_groups
from support.toys import TINY_CONFIGS, make_task
from support.training_runs import QUIET, StopAfter, history, trainer, two_are_one, weights

RATE, DECAY = 0.01, 0.1
OPTIONS = {"optim": "muon", "rho1": 1, "max_steps": 6, "per_device_train_batch_size": 12, "muon_learning_rate": 2e-2}


def tiny(model_type, **changes):
    return AutoConfig.for_model(model_type, **TINY_CONFIGS[model_type] | changes)


def orthogonalize(g, dtype=torch.bfloat16):
    """Apply five Newton-Schulz steps X <- a X + (b X X' + c (X X')^2) X on the wide side (Jordan et al. 2024)."""
    x = g.to(dtype)
    if g.shape[0] > g.shape[1]:
        x = x.T
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon_steps(w, gradients):
    b = torch.zeros_like(w)
    for g in gradients:
        b = 0.95 * b + 0.05 * g
        o = orthogonalize(0.05 * g + 0.95 * b, torch.float64)
        w = w - RATE * DECAY * w - RATE * 0.2 * math.sqrt(max(w.shape)) * o
    return w


@pytest.mark.parametrize("shape", [(48, 24), (24, 48), (32, 32)])
def test_step_equals_the_equation(shape):
    """Computed in float64 where torch uses bfloat16, so they differ by its rounding."""
    torch.manual_seed(0)
    w, gradients = 0.1 * torch.randn(shape), torch.randn(3, *shape)
    parameter = nn.Parameter(w.clone())
    optimizer = Muon([{"params": [parameter], "muon": True, "weight_decay": DECAY}], lr=RATE)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    expected = muon_steps(w.double(), gradients.double()).float()
    distance = (expected - w).norm()
    assert (parameter.detach() - expected).norm() < 0.02 * distance
    # As large as a step of AdamW.
    size = (parameter.detach() - w).square().mean().sqrt().item() / (3 * RATE)
    assert 0.1 < size < 0.3


def test_other_parameters_are_updated_by_adamw():
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.arange(5.0)) for _ in range(2))
    matrix = nn.Parameter(torch.randn(4, 4))
    values = {"lr": RATE, "betas": (0.8, 0.98), "eps": 1e-5}
    optimizer = Muon(
        [{"params": [ours], "weight_decay": 0.2}, {"params": [matrix], "muon": True, "weight_decay": 0.0}], **values
    )
    reference = torch.optim.AdamW([theirs], weight_decay=0.2, fused=True, **values)
    still = matrix.detach().clone()
    for _ in range(3):
        gradient = torch.randn(5)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
        assert torch.equal(ours, theirs)
    assert torch.equal(matrix, still), "without a gradient it stays"


def test_schedule_and_state_dict_cover_both_kinds_of_groups():
    torch.manual_seed(0)
    start = [torch.randn(6, 4), torch.randn(4)]

    def make_optimizer():
        parameters = [nn.Parameter(value.clone()) for value in start]
        groups = [{"params": parameters[1:]}, {"params": parameters[:1], "muon": True, "lr": 0.1}]
        optimizer = Muon(groups, lr=RATE)
        return parameters, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def go(parameters, optimizer, schedule, steps):
        for step in steps:
            torch.manual_seed(step)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            schedule.step()

    whole, cut = make_optimizer(), make_optimizer()
    go(*whole, range(6))
    assert [group["lr"] for group in whole[1].param_groups] == [RATE / 64, 0.1 / 64]
    go(*cut, range(3))
    resumed = make_optimizer()
    with torch.no_grad():
        for mine, theirs in zip(resumed[0], cut[0], strict=True):
            mine.copy_(theirs)
    resumed[1].load_state_dict(cut[1].state_dict())
    resumed[2].load_state_dict(cut[2].state_dict())
    go(*resumed, range(3, 6))
    for mine, theirs in zip(resumed[0], whole[0], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_only_matrices_of_the_layers_use_muon(model_type):
    model = TlmModel.from_config(tiny(model_type))
    matrices = layer_matrices(model)
    for name, value in model.named_parameters():
        inside = any(part in name for part in ("layer.", "layers.", "layer_groups."))
        assert (name in matrices) == (inside and value.dim() == 2), name
    assert not any(word in name for name in matrices for word in ("embedding", "bias", "norm", "head", "classifier"))
    groups = parameter_groups(
        model, matrices, learning_rate=1.0, weight_decay=0.3, layerwise_lr_decay=0.5, muon_learning_rate=8.0
    )
    names, distances = {id(p): name for name, p in model.named_parameters()}, distances_from_top(model)
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(names)
    assert groups[0]["lr"] == 1.0, "the one that is logged"
    for group in groups:
        for name in (names[id(p)] for p in group["params"]):
            assert group.get("muon", False) == (name in matrices)
            assert group["lr"] == (8.0 if name in matrices else 1.0) * 0.5 ** distances[name]


@pytest.mark.parametrize(
    "body,what",
    [
        (
            AutoConfig.for_model("xlnet", vocab_size=20, d_model=8, n_layer=1, n_head=2, d_inner=8),
            r"layer\.0\.rel_attn\.q has more dimensions",
        ),
        (None, "no layers were found"),
    ],
)
def test_layers_without_matrices_are_refused(body, what):
    """XLNet's projections have three dimensions, and its biases two."""
    model = nn.ModuleDict({"head": nn.Linear(2, 2)} if body is None else {"body": AutoModel.from_config(body)})
    with pytest.raises(ArgumentsError, match=what):
        layer_matrices(model)


def test_both_bodies_of_a_generator_discriminator_use_muon():
    config = tiny("electra")
    matrices = layer_matrices(GeneratorDiscriminator.from_config(config, generator_config(config, layers=1)))
    assert {name.split(".")[0] for name in matrices} == {"main", "auxiliary"}


def test_trainer_with_muon_updates_all_parameters_and_resumes(tmp_path, data, tokenizer):
    """Every parameter changes, with the learning rate of its group."""
    saving = {**OPTIONS, "config": {}, "save_strategy": "steps", "save_steps": 3, "layerwise_lr_decay": 0.5}
    run = trainer(tmp_path / "whole", data, tokenizer, **saving)
    before = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    run.train()
    assert not [name for name, value in run.model.named_parameters() if torch.equal(value, before[name])]
    optimizer = run.optimizer.optimizer
    assert isinstance(optimizer, Muon)
    starts = {(group["muon"], group["initial_lr"]) for group in optimizer.param_groups}
    assert starts == {(False, 1e-2 * 0.5**n) for n in range(4)} | {(True, 2e-2 * 0.5**n) for n in (1, 2)}
    trainer(tmp_path / "cut", data, tokenizer, **saving, callbacks=[StopAfter(3)]).train()
    resumed = trainer(tmp_path / "cut", data, tokenizer, **saving)
    resumed.train(resume_from_checkpoint=True)
    names = ("step", "loss", "grad_norm", "learning_rate")
    assert len(history(run, *names)) == 6 and history(resumed, *names) == history(run, *names)
    for name, value in weights(resumed).items():
        assert torch.equal(value, run.model.state_dict()[name]), name


def test_accumulation_gives_the_same_losses(tmp_path, data, tokenizer):
    """Gradients differ by rounding, which the iterations in bfloat16 amplify."""
    logs = []
    for size, accumulation in ((8, 1), (2, 4)):
        options = {**OPTIONS, "per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        run = trainer(tmp_path, data, tokenizer, **options)
        run.train()
        logs.append(history(run, "loss", "grad_norm"))
    for ours, expected in zip(*logs, strict=True):
        assert ours == pytest.approx(expected, rel=5e-3)


def test_two_processes_equal_one(tmp_path, tokenizer, corpus_rows):
    two_are_one(tmp_path, tokenizer, corpus_rows, {"optim": "muon", "muon_learning_rate": 1e-2}, "grad_norm")


def test_stages_have_their_own_muon_learning_rates():
    args = TlmArguments(**QUIET, output_dir="unused", optim="muon", muon_learning_rate=0.02, stage2_muon_learning_rate=0.001)
    assert [args.for_stage(stage, "out", 0, "f1").muon_learning_rate for stage in (1, 2)] == [0.02, 0.001]
    assert args.optim == "muon"


def test_finetuning_with_muon(tmp_path, data, tokenizer):
    """An exported model is fine-tuned."""
    model = TlmModel.from_config(tiny("bert", vocab_size=len(tokenizer)))
    export_stock(model, tokenizer, tmp_path / "model")
    quiet = {name: value for name, value in QUIET.items() if name not in ("save_strategy", "logging_steps")}
    quiet |= {"learning_rate": 1e-3, "max_steps": 4, "select_by": "last", "max_length": 16}
    args = FinetuneArguments(**quiet, output_dir=str(tmp_path / "out"), optim="muon")
    run = finetune(make_task(), CheckpointArguments(model_name_or_path=str(tmp_path / "model")), args)
    assert run.seeds[0]["cost"]["steps"] == 4


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"muon_learning_rate": 0.1}, "muon_learning_rate 0.1 has no effect with optim adamw_torch_fused: it is for muon"),
        ({"optim": "muon", "muon_learning_rate": 0.0}, "expected a number above 0 and at most 100; received 0.0"),
        (
            {"optim": "muon", "stage2_muon_learning_rate": math.inf},
            "a number above 0 and at most 100; received inf",
        ),
        ({"optim": "muon", "optim_args": "momentum=0.9"}, "no optim_args; received 'momentum=0.9'"),
    ],
)
def test_invalid_values_are_refused(changes, message):
    with pytest.raises(ArgumentsError, match=message):
        TlmArguments(**QUIET, output_dir="unused", **changes)


def test_muon_with_adapters_or_fsdp_is_refused(tmp_path, monkeypatch):
    args = TlmArguments(**QUIET, output_dir="unused", optim="muon")
    with pytest.raises(ArgumentsError, match="use_peft trains low-rank factors"):
        check_model(args, ModelArguments(use_peft=True, model_name_or_path="x"))
    tuning = FinetuneArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", optim="muon")
    with pytest.raises(ArgumentsError, match="use_peft trains low-rank factors"):
        finetune(make_task(), CheckpointArguments(model_name_or_path="x", use_peft=True), tuning)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ArgumentsError, match="with FSDP each process holds only parts"):
        TlmArguments(**QUIET, output_dir="unused", optim="muon")
