"""The cost of a prediction: which files and times are counted, and how they are displayed."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForMultipleChoice, BertForSequenceClassification

from hf_tlm.models import ModelError
from hf_tlm.models.coco_lm import CocoLmConfig, CocoLmForSequenceClassification
from hf_tlm.runs import price as module
from hf_tlm.runs.price import megabytes, price, price_line

SIZES = {"vocab_size": 120, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture
def folder(tmp_path, tokenizer):
    BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=127)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "mlm").mkdir()
    (tmp_path / "mlm/model.safetensors").write_bytes(bytes(10**6))
    return tmp_path


def test_megabytes_count_only_files_needed_to_predict(folder):
    names = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert megabytes(folder) == round(sum((folder / name).stat().st_size for name in names) / 1e6, 3)
    (folder / "training_args.bin").write_bytes(bytes(10**6))
    assert megabytes(folder) == price(folder)["megabytes"] < 1


def test_supported_lengths_are_timed_without_side_effects(folder, monkeypatch):
    passes = []

    def record_pass(model, batch, length):
        def run():
            assert torch.get_num_threads() == 1 and torch.is_inference_mode_enabled() and not model.training
            passes.append((batch, length))

        return run

    monkeypatch.setattr(module, "_create_pass", record_pass)
    torch.set_num_threads(2)
    state = torch.random.get_rng_state()
    measured = price(folder)
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == 2
    assert set(passes) == {(1, 32), (32, 32)} and passes.count((1, 32)) >= 2
    assert list(measured["milliseconds"]) == list(measured["texts_per_second"]) == ["32"]
    assert measured["parameters"] == AutoModelForSequenceClassification.from_pretrained(folder).num_parameters()


def test_times_are_of_one_text_and_of_a_batch(folder, monkeypatch):
    seconds = {1: 0.0012, module.BATCH: 0.016}
    monkeypatch.setattr(module, "_create_pass", lambda model, batch, length: batch)
    monkeypatch.setattr(module, "_measure_seconds", seconds.get)
    found = price(folder)
    assert (found["milliseconds"], found["texts_per_second"]) == ({"32": 1.2}, {"32": 2000.0})


def test_coco_lm_is_timed(folder):
    config = CocoLmConfig(**SIZES, max_position_embeddings=64)
    CocoLmForSequenceClassification(config).save_pretrained(folder)
    found = price(folder)
    assert found["parameters"] == CocoLmForSequenceClassification(config).num_parameters()
    assert found["milliseconds"]["32"] > 0


def test_unsupported_models_are_not_timed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_PARAMETERS", 10)
    assert price(folder)["milliseconds"] == {}
    BertForMultipleChoice(BertConfig(**SIZES)).save_pretrained(folder)
    assert set(price(folder)) == {"megabytes"}
    (folder / "config.json").unlink()
    assert set(price(folder)) == {"megabytes"}


def test_price_line():
    times = {"32": 0.344, "128": 1.26}
    assert price_line({"megabytes": 6.123, "milliseconds": times}) == (
        "6.12 MB; 0.34 ms for a text of 32 tokens, 1.3 ms for a text of 128 tokens, on one core (torch, float32)"
    )
    assert price_line({"megabytes": 0.5}) == "0.5 MB"
    rates = {"megabytes": 6.123, "milliseconds": times, "texts_per_second": {"32": 2904.2, "128": 771.6}}
    assert price_line(rates).endswith(
        "(torch, float32); in batches 2,904 texts of 32 tokens, 772 texts of 128 tokens per second"
    )
    large = price_line({"megabytes": 1421.3, "milliseconds": {"128": 250.4}})
    assert large == "1,421 MB; 250 ms for a text of 128 tokens, on one core (torch, float32)"


def test_models_that_cannot_be_timed_do_not_fail_the_run(folder, monkeypatch):
    """Models with custom code, for which nobody is asked, and models that refuse random tokens."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}})
    )
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("asked"))
    assert set(price(folder)) == {"megabytes"}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(module, "_create_pass", lambda *args: (_ for _ in ()).throw(ValueError("no <eos>")))
    assert set(price(folder)) == {"megabytes"} and torch.get_num_threads() == 1


def test_length_equal_to_all_positions_is_timed(tmp_path):
    BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=128)).save_pretrained(tmp_path)
    assert list(price(tmp_path)["milliseconds"]) == ["32", "128"]


def test_slow_batches_are_not_timed(folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_SECONDS", 0.0)
    found = price(folder)
    assert found["milliseconds"]["32"] > 0 and found["texts_per_second"] == {}


def test_one_interrupted_pass_does_not_count(monkeypatch):
    """On a busy machine the only pass of a measurement was stopped for a tenth of a second, and a text cost 121 ms."""
    clock, lengths = [0.0], iter([0.001, 0.12, 0.001, 0.002])
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    assert module._measure_seconds(lambda: clock.__setitem__(0, clock[0] + next(lengths))) == pytest.approx(0.001)


def test_onnx_graph_is_timed_on_one_thread_at_supported_lengths(monkeypatch):
    passes = []

    class Graph:
        most_tokens = 256

        def __init__(self, folder, dtype, num_threads):
            assert (folder, dtype, num_threads) == ("folder", "int8", 1)

        def __call__(self, batch):
            assert batch["input_ids"].max() < 120 and batch["attention_mask"].all() and not batch["token_type_ids"].any()
            passes.append(batch["input_ids"].shape)

    monkeypatch.setattr(module, "OnnxModel", Graph)
    found = module.onnx_price("folder", "int8", 120, 127)
    assert set(passes) == {(1, 32), (8, 32)}, "batches as predict makes them"
    assert list(found["milliseconds"]) == list(found["texts_per_second"]) == ["32"] and found["milliseconds"]["32"] >= 0
    monkeypatch.setattr(Graph, "__call__", lambda *args: (_ for _ in ()).throw(ModelError("no <eos>")))
    assert module.onnx_price("folder", "int8", 120, None) == {}
