"""A non-finite loss ends the run before the optimizer's step, and a dump reproduces it."""

import json
import math
from importlib.metadata import version

import pytest
import torch
from safetensors.torch import load_file

from hf_tlm.training import ArgumentsError, TlmArguments
from hf_tlm.training.callbacks import NonFiniteLossError
from support.training_runs import At, poison, trainer


@pytest.mark.parametrize("step,stream,rows", [(3, "corpus", "corpus"), (4, "task", "train")])
def test_run_stops_and_dumps_the_batch(tmp_path, data, tokenizer, step, stream, rows):
    run = trainer(
        tmp_path,
        data,
        tokenizer,
        rho1=1,
        max_steps=6,
        config={},
        packing="none",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        callbacks=[At(step, poison)],
    )
    with pytest.raises(NonFiniteLossError, match=f"loss of step {step} is not finite") as caught:
        run.train()
    message = str(caught.value)
    assert f"Stream: {stream}; loss nan; mlm_loss nan" in message
    assert "learning rate 0.00" in message and str(tmp_path / f"nonfinite-step-{step}") in message

    # The step was not applied: one row is poisoned, and no other parameter.
    bad = {name for name, value in run.model.named_parameters() if not torch.isfinite(value).all()}
    assert bad == {name for name, value in run.model.named_parameters() if value is run.model.get_input_embeddings().weight}
    assert run.state.global_step == step - 1

    record = json.loads((tmp_path / f"nonfinite-step-{step}" / "process-0.json").read_text())
    assert (record["step"], record["stream"], record["processes"]) == (step, stream, 1)
    assert record["versions"]["torch"] == version("torch")  # torch.__version__ may also have a suffix such as +cu128.
    tensors = load_file(tmp_path / f"nonfinite-step-{step}" / "process-0.safetensors")
    assert len(record["micro_batches"]) == 2
    for number, micro_batch in enumerate(record["micro_batches"]):
        assert micro_batch["loss"] == "nan" and micro_batch["terms"]["mlm_loss"] == "nan"
        # The collator gives the same tensors for the recorded rows and seeds.
        texts = [
            {**data[rows][row], "draw": draw} for row, draw in zip(micro_batch["rows"], micro_batch["draws"], strict=True)
        ]
        batch = run.data_collator(texts)
        assert set(batch) == {name.split(".")[1] for name in tensors if name.startswith(f"{number}.")}
        for name, value in batch.items():
            assert torch.equal(value, tensors[f"{number}.{name}"]), name
    torch.Generator().set_state(tensors["rng.cpu"])  # Raises an error for anything but a state.


def test_infinite_loss_of_one_micro_batch_stops_the_run(tmp_path, data, tokenizer):
    """In the first of two micro-batches only."""
    run = trainer(tmp_path, data, tokenizer, rho1=0, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    original, calls = run.objectives["task"], []

    class Infinite:
        count = original.count

        def __call__(self, outputs, batch, counts):
            terms = original(outputs, batch, counts)
            calls.append(batch)
            return {**terms, "loss": terms["loss"] * (math.inf if len(calls) == 3 else 1.0)}

    run.objectives["task"] = Infinite()
    with pytest.raises(NonFiniteLossError, match="step 2 .*loss inf"):
        run.train()


def test_logging_nan_inf_filter_is_off_and_refused():
    assert TlmArguments(output_dir="unused", use_cpu=True).logging_nan_inf_filter is False
    with pytest.raises(ArgumentsError, match="would hide a loss that is not finite"):
        TlmArguments(output_dir="unused", use_cpu=True, logging_nan_inf_filter=True)


@pytest.mark.parametrize("model_type", ["electra", "albert"])
def test_nonfinite_logits_of_an_auxiliary_model_stop_the_run(tmp_path, data, tokenizer, model_type):
    objective = {"electra": "electra", "albert": "ale"}[model_type]
    run = trainer(tmp_path, data, tokenizer, model_type, objective=objective, rho1=1, callbacks=[At(2, poison)])
    with pytest.raises(NonFiniteLossError, match="loss of step 2 is not finite"):
        run.train()
