"""Checkpoints in the layout of the TLM paper's release: stock ELECTRA gives the same logits, and dropped weights are
named."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_tlm.data import tokenize
from hf_tlm.models import ModelError, convert_legacy, load_released_tlm
from hf_tlm.runs import evaluate_checkpoint
from hf_tlm.tasks import TASKS, load_task
from hf_tlm.utils.files import atomic_write
from support.released_tlm import SCIERC, published
from support.toys import code_blocks, sentences

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "publish.py"


@pytest.fixture
def folder(tmp_path, tokenizer):
    """A function that writes a model in the released layout."""

    def write(model=None, name="tlm-sciie-small-scale", state=None, with_tokenizer=True, **values):
        path = tmp_path / name
        model = published() if model is None else model
        path.mkdir()
        config = {**json.loads(model.config.to_json_string()), "architectures": ["BertForMaskedLM"], **values}
        (path / "config.json").write_text(json.dumps(config))
        torch.save(model.state_dict() if state is None else state, path / "pytorch_model.bin")
        if with_tokenizer:
            tokenizer.save_pretrained(path)
        return path

    return write


@pytest.fixture
def batch():
    ids = torch.randint(5, 120, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()
    types = torch.zeros_like(ids)
    types[0, 6:] = 1
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def load_converted(folder):
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    lm, info = AutoModelForMaskedLM.from_pretrained(folder, subfolder="mlm", output_loading_info=True)
    assert not any(info.values())
    assert {type(classifier).__name__, type(lm).__name__} == {"ElectraForSequenceClassification", "ElectraForMaskedLM"}
    return classifier.eval(), lm.eval()


@pytest.mark.parametrize("prefix", ["", "module.", "model."])
def test_both_heads_give_the_logits_of_the_published_network(folder, batch, tmp_path, prefix):
    model = published()
    state = {prefix + name: value for name, value in model.state_dict().items()}
    released = convert_legacy(str(folder(model, state=state)), tmp_path / "out")
    classifier, lm = load_converted(tmp_path / "out")
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        classes, tokens = model.both(**batch)
        torch.testing.assert_close(classifier(**batch).logits, classes, rtol=0, atol=1e-6)
        torch.testing.assert_close(lm(**batch).logits[real], tokens[real], rtol=0, atol=1e-6)
    assert classes.std() > 0.1 and tokens.std() > 0.1
    assert released.left_out == []
    assert not list((tmp_path / "out").rglob("*.bin"))
    assert (classifier.config.layer_norm_eps, classifier.config.classifier_dropout) == (1e-7, 0.0)
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight


def test_untied_output_embedding_is_kept(folder, batch, tmp_path):
    model = published(tie_word_embeddings=False)
    with torch.no_grad():  # In this version of transformers the bias is untied too.
        model.cls.predictions.decoder.bias.copy_(model.cls.predictions.bias)
    assert not torch.equal(model.cls.predictions.decoder.weight, model.bert.embeddings.word_embeddings.weight)
    convert_legacy(str(folder(model)), tmp_path / "out")
    classifier, lm = load_converted(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(lm(**batch).logits, model.both(**batch)[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("missing", ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"])
@pytest.mark.parametrize("bias", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_shared_tensor_may_have_either_name(folder, missing, bias):
    """Safetensors files, to which the pickle may have been converted, store a shared tensor once."""
    model = published()
    state = {name: value for name, value in model.state_dict().items() if name not in (missing, bias)}
    path = folder(model)
    (path / "pytorch_model.bin").unlink()
    save_file(state, path / "model.safetensors")
    found = load_released_tlm(path)
    assert torch.equal(found.model.mlm_head.weight, model.bert.embeddings.word_embeddings.weight)
    assert torch.equal(found.model.mlm_head["generator_lm_head"].bias, model.cls.predictions.bias)
    assert found.model.config.tie_word_embeddings and found.left_out == []


def test_left_out_weights_are_named(folder):
    state = published().state_dict() | {
        "bert.embeddings.position_ids": torch.arange(40)[None],
        "bert.pooler.dense.weight": torch.ones(16, 16),
        "cls.seq_relationship.weight": torch.ones(2, 16),
    }
    left_out = load_released_tlm(folder(state=state)).left_out
    assert left_out == ["bert.embeddings.position_ids", "bert.pooler.dense.weight", "cls.seq_relationship.weight"]


def test_half_precision_is_loaded_without_loss(folder):
    state = {name: value.half() for name, value in published().state_dict().items()}
    model = load_released_tlm(folder(state=state)).model
    assert model.dtype == torch.float32
    assert torch.equal(model.classifier.dense.weight, state["cls_layer.0.weight"].float())


@pytest.mark.parametrize(
    "name,options,expected",
    [
        ("tlm-sciie-small-scale", {}, SCIERC),
        ("checkpoint", {}, list("0123456")),
        ("checkpoint", {"task": "sciie"}, SCIERC),
        ("checkpoint", {"task": "scierc"}, SCIERC),
        ("tlm-imdb-large-scale", {"task": "yxchar/sciie-tlm"}, SCIERC),
        ("tlm-imdb-large-scale", {"label_names": list("abcdefg")}, list("abcdefg")),
    ],
)
def test_label_names_follow_the_name_or_the_options(folder, tmp_path, name, options, expected):
    config = convert_legacy(str(folder(name=name)), tmp_path / "out", **options).model.config
    assert list(config.id2label.values()) == expected and config.label2id[expected[3]] == 3


class TestErrors:
    @pytest.mark.parametrize(
        "changes,message",
        [
            ({"bert.encoder.layer.1.output.dense.bias": None}, r"missing: bert\.encoder\.layer\.1\.output\.dense\.bias\."),
            ({"bert.encoder.layer.2.output.dense.bias": torch.ones(16)}, r"unexpected: bert\.encoder\.layer\.2\S+bias\."),
            ({"cls_layer.4.weight": torch.ones(2)}, r"unexpected: cls_layer\.4\.weight"),
            ({"cls_layer.0.bias": torch.ones(15)}, r"another shape: cls_layer\.0\.bias \(15,\) instead of \(16,\)"),
            (
                {"cls.predictions.decoder.bias": torch.ones(150)},
                r"cls\.predictions\.bias and cls\.predictions\.decoder\.bias in .* must be equal, but differ",
            ),
            ({"cls_layer.0.weight": None}, r"one weight named \[\.\.\.\]cls_layer\.0\.weight; found none"),
            ({"cls_layer.2.weight": None}, r"lacks cls_layer\.2\.weight"),
            ({"copy.cls_layer.0.weight": torch.ones(2)}, r"found cls_layer\.0\.weight, copy\.cls_layer\.0\.weight"),
        ],
    )
    def test_invalid_weights_are_refused(self, folder, changes, message):
        state = published().state_dict()
        for name, value in changes.items():
            state.pop(name, None)
            state |= {} if value is None else {name: value}
        with pytest.raises(ModelError, match=message):
            load_released_tlm(folder(state=state))

    @pytest.mark.parametrize(
        "values,message",
        [
            ({"hidden_act": "relu"}, "hidden_act 'relu'"),
            ({"position_embedding_type": "relative_key"}, "'relative_key'"),
            ({"is_decoder": True}, "is_decoder True"),
            ({"num_hidden_layers": 3}, r"missing: .* and 13 more"),
            ({"num_attention_heads": 3}, r"\(16, 16\) instead of \(15, 16\)"),
            ({"hidden_size": "wide"}, "config.json cannot be used"),
            ({"vocab_size": 140}, r"\(150, 16\) instead of \(140, 16\)"),
        ],
    )
    def test_invalid_config_is_refused(self, folder, values, message):
        with pytest.raises(ModelError, match=message):
            load_released_tlm(folder(**values))

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "config.json"])
    def test_missing_or_damaged_file_is_refused(self, folder, name):
        path = folder()
        (path / name).write_bytes((path / name).read_bytes()[:100])
        with pytest.raises(ModelError, match=name):
            load_released_tlm(path)
        (path / name).unlink()
        with pytest.raises(ModelError, match=f"Cannot read .*{name}"):
            load_released_tlm(path)

    def test_missing_tokenizer_is_refused(self, folder, tokenizer, tmp_path):
        path = folder(with_tokenizer=False)
        with pytest.raises(ModelError, match="has no tokenizer .*--tokenizer_name"):
            load_released_tlm(path)
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        found = load_released_tlm(path, tokenizer_name=str(tmp_path / "tokenizer")).tokenizer
        assert found.get_vocab() == tokenizer.get_vocab() and found.model_max_length == 32

    def test_tokenizer_of_another_model_is_refused(self, folder):
        with pytest.raises(ModelError, match="vocabulary has 60. Both must belong to the same model"):
            load_released_tlm(folder(published(vocab_size=60)))

    @pytest.mark.parametrize(
        "options,message",
        [
            ({"task": "imdb"}, r"7 classes; received 2 labels \(neg, pos\)"),
            ({"task": "nothing"}, "There is no registered task 'nothing'"),
            ({"label_names": ["a"]}, "received 1 labels"),
        ],
    )
    def test_invalid_label_names_are_refused(self, folder, tmp_path, options, message):
        with pytest.raises(ModelError, match=message):
            convert_legacy(str(folder()), tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()

    def test_options_without_effect_on_coco_lm_are_refused(self, folder, tmp_path):
        with pytest.raises(ModelError, match="task, tokenizer_name: only for checkpoints of TLM"):
            convert_legacy(str(folder(model_type="cocolm")), tmp_path / "out", task="imdb", tokenizer_name="x")

    def test_released_folder_is_not_overwritten(self, folder):
        path = folder()
        with pytest.raises(ModelError, match="Choose another output folder"):
            convert_legacy(str(path), path)
        assert (path / "pytorch_model.bin").is_file()

    @pytest.mark.parametrize("kept", ["seed-0/results.json", "thesis.tex"])
    def test_folder_with_other_files_is_not_overwritten(self, folder, tmp_path, kept):
        out = tmp_path / "out"
        (out / kept).parent.mkdir(parents=True)
        (out / kept).touch()
        released = str(folder())
        with pytest.raises(ModelError, match=f"contains other files than a converted model .{kept.split('/')[0]}"):
            convert_legacy(released, out)
        assert [path.name for path in out.iterdir()] == [kept.split("/")[0]]
        (out / kept).rename(tmp_path / "elsewhere")
        for path in out.iterdir():
            path.rmdir()
        for _ in range(2):  # An earlier conversion may be overwritten.
            convert_legacy(released, out)


def test_recipe_evaluates_the_converted_model(folder, tmp_path, monkeypatch, capsys):
    rows = [{"text": row["text"], "label": SCIERC[at % len(SCIERC)]} for at, row in enumerate(sentences(30))]
    for split in ("train", "validation", "test"):
        atomic_write(tmp_path / "task" / f"{split}.jsonl", "\n".join(map(json.dumps, rows)))
    arguments = ["--legacy_checkpoint", folder(published()), "--evaluate_on", tmp_path / "task"]
    monkeypatch.setattr(sys, "argv", ["publish.py", *map(str, arguments), "--output_dir", str(tmp_path / "out")])
    runpy.run_path(str(RECIPE), run_name="__main__")
    scores = evaluate_checkpoint(str(tmp_path / "out"), load_task(str(tmp_path / "task")))
    printed = capsys.readouterr().out
    assert set(scores) == {"validation", "test"} and 0 < scores["test"]["accuracy"] < 1
    line = f"macro_f1 {100 * scores['test']['macro_f1']:.2f}, accuracy {100 * scores['test']['accuracy']:.2f}"
    assert f"test        {line}" in printed and f"validation  {line}" in printed


@pytest.mark.parametrize("name,length", [("imdb", 512), ("sciie", 128), ("hyp", 128), ("ours", 128)])
def test_max_length_of_evaluation_follows_the_task(folder, tmp_path, monkeypatch, capsys, name, length):
    """As in `evaluate.sh`: 512 tokens for IMDB, 128 for every other task; max_length overrides it."""
    labels = TASKS["imdb"].classes if name == "imdb" else TASKS["hyperpartisan"].classes if name == "hyp" else SCIERC
    rows = [{"text": row["text"], "label": labels[at % len(labels)]} for at, row in enumerate(sentences(30))]
    for split in ("train", "validation"):
        atomic_write(tmp_path / name / f"{split}.jsonl", "\n".join(map(json.dumps, rows)))
    cut = []
    home = sys.modules[evaluate_checkpoint.__module__]
    monkeypatch.setattr(
        home, "tokenize", lambda rows, tokenizer, most, **how: cut.append(most) or tokenize(rows, tokenizer, most)
    )
    monkeypatch.setattr(home, "_match_classes", lambda model, classes, task: list(range(len(task.label_names))))
    converted = tmp_path / "converted"
    convert_legacy(str(folder(published())), converted)
    task = load_task(str(tmp_path / name))
    logits = home.checkpoint_logits(str(converted), task)
    assert cut == [length] and len(logits["validation"]) == 30
    home.checkpoint_logits(str(converted), task, max_length=20)
    assert cut == [length, 20]


@pytest.mark.parametrize(
    "name,options,length",
    [
        ("tlm-imdb-large-scale", (), 512),
        ("mine", ("--task", "imdb"), 512),
        ("tlm-sciie-small-scale", (), 128),
        ("tlm-imdb-large-scale", ("--evaluate_length", "20"), 20),
    ],
)
def test_recipe_uses_the_max_length_of_the_checkpoint(folder, tmp_path, monkeypatch, name, options, length):
    """Independent of the local name of the evaluation data."""
    rows = [{"text": row["text"], "label": SCIERC[at % len(SCIERC)]} for at, row in enumerate(sentences(20))]
    for split in ("train", "validation"):
        atomic_write(tmp_path / "reviews" / f"{split}.jsonl", "\n".join(map(json.dumps, rows)))
    cut = []
    home = sys.modules[evaluate_checkpoint.__module__]
    monkeypatch.setattr(
        home, "tokenize", lambda rows, tokenizer, most, **how: cut.append(most) or tokenize(rows, tokenizer, most)
    )
    arguments = ["--legacy_checkpoint", folder(published(), name), "--output_dir", tmp_path / "out"]
    arguments += ["--evaluate_on", tmp_path / "reviews", "--label_names", *SCIERC, *options]
    monkeypatch.setattr(sys, "argv", ["publish.py", *map(str, arguments)])
    runpy.run_path(str(RECIPE), run_name="__main__")
    assert cut == [length]


@pytest.mark.slow
def test_recipe_writes_a_folder_that_loads_without_hf_tlm(folder, batch, tmp_path, monkeypatch, capsys, tokenizer):
    model, out = published(), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["publish.py", "--legacy_checkpoint", str(folder(model)), "--output_dir", str(out)])
    runpy.run_path(str(RECIPE), run_name="__main__")
    assert "parameters" in capsys.readouterr().out
    card = (out / "README.md").read_text(encoding="utf-8")
    assert all(label in card for label in SCIERC) and str(tmp_path) not in card
    assert code_blocks(card, out) == 2
    with torch.no_grad():
        torch.save((batch, *model.both(**batch)), tmp_path / "expected.pt")
    ids = tokenizer("the enzyme binds the gene")["input_ids"]
    program = (
        "import sys, torch, transformers\n"
        "sys.modules['hf_tlm'] = None\n"
        f"batch, classes, tokens = torch.load('{tmp_path}/expected.pt')\n"
        f"classify = transformers.pipeline('text-classification', model='{out}')\n"
        f"assert classify('the enzyme binds the gene')[0]['label'] in {SCIERC}\n"
        f"assert classify.tokenizer('the enzyme binds the gene')['input_ids'] == {ids}\n"
        f"lm = transformers.AutoModelForMaskedLM.from_pretrained('{out}', subfolder='mlm')\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(classify.model(**batch).logits, classes, rtol=0, atol=1e-6)\n"
        "    torch.testing.assert_close(lm(**batch).logits, tokens, rtol=0, atol=1e-6)\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
