"""bf16 and torch.compile with interleaved, packed batches."""

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import TrainerCallback

from runs import history, trainer


class _Graphs(TrainerCallback):
    """How many graphs had been compiled after every step."""

    def __init__(self):
        self.counts = []

    def on_step_end(self, args, state, control, **kwargs):
        self.counts.append(counters["stats"]["unique_graphs"])


OBJECTIVES = pytest.mark.parametrize(
    "objective",
    [
        {},
        {"model_type": "electra", "objective": "electra"},
        {"model_type": "cocolm", "objective": "cocolm"},
    ],
    ids=["mlm", "rtd", "cocolm"],
)


@OBJECTIVES
def test_compiled_equals_eager_and_does_not_recompile(tmp_path, data, tokenizer, objective):
    """Two streams, other numbers of rows, of texts' lengths and of masked tokens in every batch."""
    options = {**objective, "rho1": 1, "max_steps": 12, "per_device_train_batch_size": 20}
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
        torch_compile_backend="eager",  # Tracing is what is tested, not a code generator.
        callbacks=[graphs],
        **options,
    )
    compiled.train()
    names = ("loss", "corpus/mlm_loss", "task/mlm_loss", "task/task_loss", "corpus/rtd_loss", "task/generator_accuracy")
    names += ("corpus/lm_loss", "corpus/scl_loss")
    # Not to the last bit: compiled, the tokens that no loss reads are computed as well (see `encode_chosen`).
    for ours, expected in zip(history(compiled, *names), history(eager, *names), strict=True):
        assert ours == pytest.approx(expected, rel=1e-5)
    bodies = 2 if objective else 1
    assert bodies <= graphs.counts[5] <= 6 * bodies and graphs.counts[5:] == [graphs.counts[5]] * 7, graphs.counts
    assert compiled.cost().measured_flops == 0.0  # The counter does not see into compiled code.


@OBJECTIVES
@pytest.mark.parametrize("rho1", [0, 1])
def test_bfloat16(tmp_path, data, tokenizer, rho1, objective):
    """Losses as in float32 up to half precision; weights stay float32, and the output embedding tied."""
    runs = {}
    for bf16 in (False, True):
        options = {**objective, "rho1": rho1, "bf16": bf16, "max_steps": 8, "learning_rate": 5e-3}
        runs[bf16] = trainer(tmp_path / f"{bf16}", data, tokenizer, **options)
        runs[bf16].train()
    exact, half = (history(runs[bf16], "loss") for bf16 in (False, True))
    assert half != exact
    for ours, expected in zip(half, exact, strict=True):
        assert ours == pytest.approx(expected, rel=0.02)
    model = runs[True].model
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    head = model.auxiliary.mlm_head if objective else model.mlm_head
    assert head.weight is model.get_input_embeddings().weight
