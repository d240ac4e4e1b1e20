"""recipes/pretrain.py as a user starts it, on one and two processes, and training from its checkpoint."""

import json

import pytest

from support.launching import PRETRAIN, TINY, fails, run_recipe
from support.toys import TINY_CONFIGS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_of_one(work):
    """With equal total batches they read the same blocks, and losses of masked LM and ELECTRA are equal up to rounding."""
    values = {k: v for k, v in TINY_CONFIGS["electra"].items() if k not in ("vocab_size", "num_labels")}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (work / "electra.json").write_text(json.dumps({"model_type": "electra", **values, **off}))
    options = ["--objective", "electra", "--auxiliary_size", "0.5", "--model_config", work / "electra.json"]
    # Equally many blocks for each process: otherwise accelerate repeats some.
    options += ["--max_validation_blocks", "8", "--per_device_eval_batch_size", "4"]
    records, losses = {}, {}
    for processes in (1, 2):
        out = work / f"pretrain-{processes}"
        text = run_recipe(
            "recipes/pretrain.py", "--corpus", work / "corpus.parquet", *PRETRAIN, *options, "--per_device_train_batch_size",
            4 // processes, "--output_dir", out, processes=processes,
        )  # fmt: skip
        assert text.count("rtd loss") == 1 and text.count("3 steps, 192 tokens") == 1
        records[processes] = json.loads((out / "results.json").read_text())
        log = json.loads((out / "training/trainer_state.json").read_text())["log_history"]
        losses[processes] = [entry["loss"] for entry in log if "loss" in entry]
        assert (out / "generator/model.safetensors").is_file()
    assert records[2]["environment"]["processes"] == 2 and len(losses[1]) == 3
    assert losses[2] == pytest.approx(losses[1], rel=1e-4)
    for name, value in records[1]["validation"].items():
        # Only `loss` is a mean of batch means.
        assert name == "loss" or records[2]["validation"][name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.slow
def test_pretraining_from_yaml_and_training_from_its_model(work):
    """A masked LM is pretrained, and a task is trained from it."""
    config = work / "pretrain.yaml"
    config.write_text(f"pretrain:\n  model_config: {work / 'model.json'}\n  blocks: sentences\ntrain_tlm:\n  rho1: 7\n")
    command = ["recipes/pretrain.py", "--corpus", work / "corpus.parquet", *PRETRAIN, config, "--output_dir", work / "mlm"]
    assert "perplexity" in run_recipe(*command)
    before = (work / "mlm/results.json").read_bytes()
    assert "perplexity" in run_recipe(*command) and (work / "mlm/results.json").read_bytes() == before
    run_recipe(
        "recipes/train_tlm.py", "--task", work / "task", *TINY, "--rho1", "0", "--max_length", "16", "--model_name_or_path",
        work / "mlm", "--output_dir", work / "further",
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--rho1", "3"], "unknown argument --rho1"),
        (["--corpus", "{corpus}", "--stage2_max_steps", "3"], "unknown argument --stage2_max_steps"),
        ([], "--corpus is missing"),
        (["--corpus", "{corpus}", "--max_length", "500", "--validation_share", "0.9"], "do not fill one block of 500"),
        (["--corpus", "{corpus}", "--max_length", "4000"], "max_length 4000 needs 4000 positions"),
        (["--corpus", "{corpus}", "--objective", "ale"], "objective ale is ELECTRA on an ALBERT body"),
        (["--corpus", "{corpus}", "--subset", "somewhere"], "Pass --corpus or --subset, not both"),
        (["--subset", "somewhere"], "received 'somewhere', which is neither"),
        (["--corpus", "{corpus}", "--replacements", "random"], "replacements random has no effect with objective mlm"),
    ],
)
def test_pretrain_errors_have_no_traceback(work, tmp_path, arguments, message):
    filled = [argument.format(corpus=work / "corpus.parquet") for argument in arguments]
    fails("recipes/pretrain.py", *PRETRAIN, *filled, "--output_dir", tmp_path / "out", message=message)
