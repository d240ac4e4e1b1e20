"""Checkpoints in the layout of the released COCO-LM: hidden states equal the published code, and dropped weights are
named."""

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sentencepiece", reason="the extra [sentencepiece] is not installed")

import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

from hf_tlm.errors import HfTlmError
from hf_tlm.models import ModelError, convert_released, load_released
from hf_tlm.models.coco_lm import CocoLmForMaskedLM, CocoLmModel, CocoLmTokenizer
from support.released_layout import CONFIG, batch, shapes, weights, write, write_tokenizer
from support.toys import code_blocks

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "publish.py"
TEXT = "The enzyme's model, it'll see"
HEADS = {"lm_head.bias": (60,), "binary_head.out_proj.weight": (1, 16), "binary_head.out_proj.bias": (1,)}
CONTRASTIVE = {"cocolm.scl_head.dense.weight": (16, 16), "cocolm.scl_head.LayerNorm.bias": (16,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("layout") / "released"
    write(path, weights(shapes(CONFIG)))
    write_tokenizer(path)
    return path


@pytest.fixture
def changed(folder, tmp_path):
    """A function that writes a released folder with these weights and config values."""

    def make(state=None, **values):
        path = write(tmp_path / "changed", weights(shapes(CONFIG)) if state is None else state, {**CONFIG, **values})
        for name in ("sp.model", "dict.txt"):
            (path / name).write_bytes((folder / name).read_bytes())
        return path

    return make


def transcription(state, config, input_ids, attention_mask):
    """Return the last hidden states, computed in float64 from weights under their released names."""
    w = {name.removeprefix("cocolm."): value.double() for name, value in state.items()}
    heads, width, length = config["num_attention_heads"], config["hidden_size"], input_ids.shape[1]

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        return F.layer_norm(x, (width,), w[f"{name}.weight"], w[f"{name}.bias"], config["layer_norm_eps"])

    def bucket(n):
        half, size = config["rel_pos_bins"] // 2, abs(n)
        exact = half // 2
        if size >= exact:
            steps = math.log(size / exact) / math.log((config["max_rel_pos"] - 1) / exact) * (half - 1 - exact)
            size = min(half - 1, exact + math.ceil(steps))
        return size if n > 0 else -size

    # Counted from the smallest bucket of a text of full length.
    smallest = bucket(1 - config["max_position_embeddings"])
    buckets = torch.tensor([[bucket(key - query) - smallest for key in range(length)] for query in range(length)])
    bias = w["relative_attention_bias.weight"][buckets].permute(2, 0, 1)
    bias = bias.masked_fill(attention_mask[:, None, None] == 0, -math.inf)
    x = w["embeddings.word_embeddings.weight"][input_ids] + w["embeddings.position_embeddings.weight"][:length]
    x = norm("embeddings.LayerNorm", x) * attention_mask[:, :, None]
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        q, k, v = linear(f"{layer}.attention.self_attn.in_proj", x).split(width, dim=-1)
        q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.mT / math.sqrt(width // heads) + bias
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = norm(f"{layer}.attention.LayerNorm", x + linear(f"{layer}.attention.self_attn.out_proj", context))
        inner = F.gelu(linear(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", inner))
    return x


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hidden_states_equal_a_plain_transcription(folder, attention):
    model, inputs = load_released(folder).model, batch(60, (9, 5, 40), 40)
    assert type(model) is CocoLmModel and not model.training
    model.set_attn_implementation(attention)
    expected = transcription(weights(shapes(CONFIG)), CONFIG, **inputs)
    torch.testing.assert_close(model.double()(**inputs).last_hidden_state, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("positions", [1, 2, 3, 6, 11, 12, 13, 64])
def test_hidden_states_for_any_number_of_positions(changed, positions):
    """Rows of the bucket table are shifted by the smallest bucket, which models of few positions reach before the last
    one."""
    config = {**CONFIG, "max_position_embeddings": positions}
    state, inputs = weights(shapes(config)), batch(60, (positions, max(1, positions // 2)), positions)
    model = load_released(changed(state, max_position_embeddings=positions)).model.double()
    expected = transcription(state, config, **inputs)
    torch.testing.assert_close(model(**inputs).last_hidden_state, expected, rtol=1e-9, atol=1e-11)


def test_hidden_states_equal_the_published_code(folder):
    """Recorded from github.com/microsoft/COCO-LM at 787d7d0, folder huggingface, in float32; the fourth is a padding
    position."""
    hidden = load_released(folder).model(**batch(60, (9, 5, 40), 40)).last_hidden_state
    for (text, position), expected in {
        (0, 0): [-0.448476, -0.55578, 0.427197, -0.560026],
        (0, 8): [0.011324, -0.280319, 0.078577, 0.164294],
        (1, 4): [-0.52884, 0.547295, -1.166324, 1.427769],
        (1, 20): [-1.372385, 0.032866, 0.033669, 0.936235],
        (2, 39): [0.010946, -0.063971, 1.011528, -1.020752],
    }.items():
        torch.testing.assert_close(hidden[text, position, :4], torch.tensor(expected), rtol=0, atol=1e-5)


def test_config_and_tokenizer_are_converted(folder):
    model, tokenizer, left_out = load_released(folder)
    config = model.config
    assert (config.relative_attention_mode, config.relative_attention_num_buckets) == ("signed", 8)
    assert (config.relative_attention_max_distance, config.layer_norm_eps, config.type_vocab_size) == (12, 1e-5, 0)
    assert config.pad_token_id == tokenizer.pad_token_id == 1 and tokenizer.model_max_length == 40
    assert config.hidden_dropout_prob == 0.1 and config.hidden_act == "gelu"  # Not in the config file.
    assert model.pooler is None and not config.copy_head and left_out == []


def test_heads_are_converted_and_left_out_weights_named(changed):
    names = shapes(CONFIG)
    state = weights({**names, **HEADS, **CONTRASTIVE})
    state["lm_head.decoder.weight"] = state["cocolm.embeddings.word_embeddings.weight"].clone()
    model, _, left_out = load_released(changed(state))
    assert type(model) is CocoLmForMaskedLM
    assert left_out == [*CONTRASTIVE, "lm_head.decoder.weight"]
    inputs = batch(60, (9, 5), 9)
    output, hidden = model(**inputs), model.cocolm(**inputs).last_hidden_state
    embedding = state["cocolm.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(hidden.double(), transcription(state, CONFIG, **inputs), rtol=0, atol=1e-5, check_dtype=False)
    torch.testing.assert_close(output.logits, hidden @ embedding.T + state["lm_head.bias"])
    copy = hidden @ state["binary_head.out_proj.weight"][0] + state["binary_head.out_proj.bias"]
    torch.testing.assert_close(output.copy_logits, copy)


def test_checkpoints_may_lack_heads(changed):
    state = weights({**shapes(CONFIG), **HEADS})
    del state["binary_head.out_proj.bias"]
    model = load_released(changed(state)).model
    assert model.copy_head.bias is None and torch.equal(model.copy_head.weight, state["binary_head.out_proj.weight"])
    del state["binary_head.out_proj.weight"]
    model = load_released(changed(state)).model
    assert model.copy_head is None and torch.equal(model.lm_head.bias, state["lm_head.bias"])
    del state["lm_head.bias"]
    assert type(load_released(changed(state)).model) is CocoLmModel


def test_variants_of_the_layout_are_converted(changed):
    """Half precision, more positions than the config has, no relative positions, and token types."""
    name, inputs = "cocolm.embeddings.position_embeddings.weight", batch(60, (9, 5), 9)
    state = weights(shapes(CONFIG))
    expected = load_released(changed()).model(**inputs).last_hidden_state
    longer = {**state, name: torch.cat([state[name], torch.ones(3, 16)])}
    assert torch.equal(load_released(changed(longer)).model(**inputs).last_hidden_state, expected)
    half = load_released(changed({key: value.half() for key, value in state.items()})).model
    assert half.dtype == torch.float32
    assert torch.equal(half.embeddings.position_embeddings.weight, state[name].half().float())
    del state["cocolm.relative_attention_bias.weight"]
    state["cocolm.embeddings.token_type_embeddings.weight"] = torch.ones(2, 16)
    model = load_released(changed(state, rel_pos_bins=0, type_vocab_size=2)).model
    assert model.config.relative_attention_mode is None and model.embeddings.token_type_embeddings.weight.eq(1).all()


class Danger:
    """Unpickling it creates a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class TestErrors:
    def edited(self, **changes):
        """Return weights without these keys, or with other values for them; dots in names are written as double
        underscores."""
        state = weights(shapes(CONFIG))
        for name, value in changes.items():
            state.pop(name := f"cocolm.{name.replace('__', '.')}", None)
            state |= {} if value is None else {name: value}
        return state

    @pytest.mark.parametrize(
        "changes,message",
        [
            ({"encoder__layer__1__attention__self_attn__in_proj__bias": None}, r"missing: cocolm\.\S+in_proj\.bias\. Do"),
            ({"encoder__layer__0__LayerNorm__weight": torch.ones(16)}, r"unexpected: cocolm\.encoder\.layer\.0\.LayerNorm"),
            (
                {"encoder__layer__0__attention__self_attn__in_proj__weight": torch.ones(16, 48)},
                r"another shape: \S+in_proj\.weight \(16, 48\) instead of \(48, 16\)",
            ),
            ({"embeddings__position_embeddings__weight": torch.ones(39, 16)}, r"\(39, 16\) instead of \(40, 16\)"),
        ],
    )
    def test_invalid_weights_are_refused(self, changed, changes, message):
        with pytest.raises(ModelError, match=message):
            load_released(changed(self.edited(**changes)))

    def test_many_missing_weights_are_abbreviated(self, changed):
        with pytest.raises(ModelError, match=r"missing: cocolm\S+, cocolm\S+, cocolm\S+ and 9 more\. Do both"):
            load_released(changed(num_hidden_layers=3))

    @pytest.mark.parametrize(
        "values,message",
        [
            ({"model_type": "bert"}, "of type 'cocolm'; found .*bert"),
            ({"vocab_size": 20}, r"dictionary has \d\d symbols.* has 20"),
            ({"rel_pos_bins": 7}, "config.json cannot be used: .*must be even.*received 7"),
            ({"num_attention_heads": 3}, "config.json cannot be used: .*16.*not a multiple"),
            ({"hidden_size": "wide"}, "config.json cannot be used: .*str"),
            ({"rel_pos_bins": None}, "config.json cannot be used"),
        ],
    )
    def test_invalid_config_is_refused(self, changed, values, message):
        with pytest.raises(ModelError, match=message):
            load_released(changed(**values))

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "config.json", "sp.model", "dict.txt"])
    def test_missing_or_damaged_file_is_refused(self, changed, name):
        path = changed()
        (path / name).write_bytes((path / name).read_bytes()[:100] + b"\xff\xff x\n")
        with pytest.raises(ModelError, match=name):
            load_released(path)
        (path / name).unlink()
        with pytest.raises(ModelError, match=f"Cannot read .*{name}|{name} is missing"):
            load_released(path)

    def test_pickled_code_is_not_run(self, changed, tmp_path):
        with pytest.raises(ModelError, match="damaged, or contains more than tensors"):
            load_released(changed({"cocolm.danger": Danger(tmp_path / "danger")}))
        assert not (tmp_path / "danger").exists()

    def test_other_objects_than_named_tensors_are_refused(self, changed):
        with pytest.raises(ModelError, match="must contain tensors by name; found list"):
            load_released(changed([torch.ones(2)]))

    def test_released_folder_is_not_overwritten(self, changed):
        path = changed()
        with pytest.raises(HfTlmError, match="Choose another output folder"):
            convert_released(path, path / ".." / "changed")
        with pytest.raises(HfTlmError, match="contains other files than a converted model .changed"):
            convert_released(path, path.parent)
        assert (path / "pytorch_model.bin").is_file()


@pytest.mark.slow
def test_recipe_writes_a_folder_that_auto_classes_load(changed, tmp_path, monkeypatch, capsys):
    source, out = changed(weights({**shapes(CONFIG), **HEADS, **CONTRASTIVE})), tmp_path / "converted"
    command = ["publish.py", "--legacy_checkpoint", str(source), "--output_dir", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(str(RECIPE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "CocoLmForMaskedLM" in printed and "Weights left out" in printed and all(name in printed for name in CONTRASTIVE)
    assert (out / "model.safetensors").is_file() and not list(out.glob("*.bin"))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in card for name in CONTRASTIVE) and "pipeline_tag: fill-mask" in card
    assert code_blocks(card, out) == 1

    released, inputs = load_released(source), batch(60, (9, 5), 9)
    ids = released.tokenizer(TEXT)["input_ids"]
    hidden = released.model.base_model(**inputs).last_hidden_state
    # In this process, which imports hf_tlm, without the folder's code.
    tokenizer, body = AutoTokenizer.from_pretrained(out), AutoModel.from_pretrained(out)
    assert type(tokenizer) is CocoLmTokenizer and tokenizer(TEXT)["input_ids"] == ids
    assert torch.equal(body(**inputs).last_hidden_state, hidden)
    # In a process without hf_tlm, with the folder's code; and saved again from there.
    torch.save((inputs, hidden), tmp_path / "expected.pt")
    program = (
        "import json, sys, torch, transformers\n"
        "sys.modules['hf_tlm'] = None\n"
        f"inputs, hidden = torch.load('{tmp_path}/expected.pt')\n"
        f"for folder in ('{out}', '{tmp_path}/again'):\n"
        "    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)\n"
        "    body = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)\n"
        "    assert torch.equal(body(**inputs).last_hidden_state, hidden)\n"
        f"    assert tokenizer({TEXT!r})['input_ids'] == {ids}\n"
        f"    tokenizer.save_pretrained('{tmp_path}/again')\n"
        f"    body.save_pretrained('{tmp_path}/again')\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "auto_map" in json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
