"""bf16, torch.compile and oneDNN's float32 products, with interleaved, length-grouped and packed batches."""

import math
import shutil

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import TrainerCallback

from hf_tlm.models import cpu_kernels
from hf_tlm.training import TlmArguments, TlmTrainer
from support.training_runs import NO_DROPOUT, OBJECTIVES, history, network, trainer


class _Graphs(TrainerCallback):
    """Count the compiled graphs after every step."""

    def __init__(self):
        self.counts = []

    def on_step_end(self, args, state, control, **kwargs):
        self.counts.append(counters["stats"]["unique_graphs"])


@pytest.mark.slow
@pytest.mark.parametrize("objective,packing", [("mlm", "group"), ("mlm", "pack"), ("electra", "pack"), ("cocolm", "pack")])
def test_compiled_equals_eager_and_does_not_recompile(tmp_path, data, tokenizer, objective, packing):
    """With two streams; the number of masked tokens and the lengths or numbers of rows vary between batches."""
    options = {**OBJECTIVES[objective], "packing": packing, "rho1": 1, "max_steps": 12, "per_device_train_batch_size": 20}
    options["config"] = {**NO_DROPOUT, "num_hidden_layers": 1}  # Layers are the same, and each is traced.
    eager = trainer(tmp_path / "eager", data, tokenizer, **options)
    eager.train()
    torch._dynamo.reset()
    counters.clear()
    graphs = _Graphs()
    compiled = trainer(
        tmp_path / "compiled",
        data,
        tokenizer,
        torch_compile=True,
        torch_compile_backend="eager",  # The test is about tracing, not about code generation.
        callbacks=[graphs],
        **options,
    )
    compiled.train()
    names = ("loss", "corpus/mlm_loss", "task/mlm_loss", "task/task_loss", "corpus/rtd_loss", "task/generator_accuracy")
    names += ("corpus/lm_loss", "corpus/scl_loss")
    # Not bit for bit: compiled, the tokens that no loss needs are computed as well (see `encode_masked_positions`).
    for ours, expected in zip(history(compiled, *names), history(eager, *names), strict=True):
        assert ours == pytest.approx(expected, rel=1e-5)
    bodies = 1 if objective == "mlm" else 2
    assert bodies <= graphs.counts[5] <= 6 * bodies and graphs.counts[5:] == [graphs.counts[5]] * 7, graphs.counts
    assert compiled.cost().measured_flops == eager.cost().measured_flops > 0


def test_trainers_of_one_process_are_independent(tmp_path, data, tokenizer):
    """Arguments of both precisions exist before either trains; others are created before the first is used again."""
    options = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "max_steps": 1, "disable_tqdm": True}
    made = {bf16: TlmArguments(output_dir=str(tmp_path), bf16=bf16, rho1=0, **options) for bf16 in (True, False)}
    runs = {}
    for bf16, args in made.items():
        datasets = {"train_dataset": data["train"], "eval_dataset": data["validation"], "processing_class": tokenizer}
        runs[bf16] = TlmTrainer(network(args, tokenizer, "bert", NO_DROPOUT), args, **datasets)
        assert runs[bf16].accelerator.mixed_precision == ("bf16" if bf16 else "no")
        runs[bf16].train()
    scores = [runs[False].evaluate()["eval_loss"]]
    TlmArguments(output_dir=str(tmp_path), rho1=0, **options)
    scores.append(runs[False].evaluate()["eval_loss"])
    assert scores[0] == scores[1] and runs[False].predict(data["validation"]).metrics["test_loss"] == scores[0]
    TlmArguments(output_dir=str(tmp_path), rho1=0, **options)
    assert runs[False].train().global_step == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")
@pytest.mark.parametrize("objective,recompute", [*((objective, False) for objective in OBJECTIVES), ("mlm", True)])
def test_onednn_products_give_the_same_losses(tmp_path, data, tokenizer, monkeypatch, objective, recompute):
    """In training, unless gradient checkpointing recomputes activations, and in evaluation; the FLOPs are counted
    equally."""
    options = {**OBJECTIVES[objective], "rho1": 1, "gradient_checkpointing": recompute}
    runs, product, made = [], cpu_kernels._product, []
    monkeypatch.setattr(cpu_kernels, "_product", lambda *tensors: (made.append(tensors), product(*tensors))[1])
    for used in (False, True):
        monkeypatch.setattr(cpu_kernels, "is_faster", lambda used=used: used)
        run = trainer(tmp_path / f"{used}", data, tokenizer, **options)
        run.train()
        trained = len(made)
        scores = run.evaluate()
        assert (trained > 0) is (used and not recompute) and (len(made) > trained) is used
        runs.append((run.cost().measured_flops, scores["eval_loss"], [loss for [loss] in history(run, "loss")]))
    (flops, score, losses), (own_flops, own_score, own_losses) = runs
    assert own_flops == flops > 0 and own_score == pytest.approx(score, rel=1e-4)
    assert own_losses == pytest.approx(losses, rel=1e-4)


@pytest.mark.slow
def test_inductor_equals_eager(tmp_path, data, tokenizer):
    """Texts have one length, so that there is one shape."""
    if shutil.which("g++") is None:
        pytest.skip("NO C++ COMPILER: torch.compile's code generator for CPUs needs g++. Install it to test what it makes.")
    corpus = data["corpus"].map(lambda row: {name: row[name][:8] for name in row})
    options = {"packing": "pack", "rho1": math.inf, "max_steps": 3, "per_device_train_batch_size": 16}
    options["config"] = {**NO_DROPOUT, "num_hidden_layers": 1}
    losses, graphs = [], _Graphs()
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        run = trainer(tmp_path, {**data, "corpus": corpus}, tokenizer, torch_compile=compiled, callbacks=[graphs], **options)
        run.train()
        losses.append([loss for [loss] in history(run, "loss")])
    # The first step of a stream is not compiled: its FLOPs are counted.
    assert graphs.counts[:4] == [0] * 4 and 0 < graphs.counts[4] == graphs.counts[5] and counters["inductor"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "electra", "cocolm"])
@pytest.mark.parametrize("rho1,packing", [(0, "group"), (1, "pack")])
def test_bfloat16_losses_are_close_to_float32(tmp_path, data, tokenizer, rho1, packing, objective):
    """Weights stay float32, and the output embedding stays tied."""
    runs = {}
    for bf16 in (False, True):
        options = {**OBJECTIVES[objective], "packing": packing, "rho1": rho1, "bf16": bf16, "max_steps": 8}
        options["learning_rate"] = 5e-3
        runs[bf16] = trainer(tmp_path / f"{bf16}", data, tokenizer, **options)
        runs[bf16].train()
    exact, half = (history(runs[bf16], "loss") for bf16 in (False, True))
    assert half != exact
    for ours, expected in zip(half, exact, strict=True):
        assert ours == pytest.approx(expected, rel=0.02)
    model = runs[True].model
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    head = model.mlm_head if objective == "mlm" else model.auxiliary.mlm_head
    assert head.weight is model.get_input_embeddings().weight
