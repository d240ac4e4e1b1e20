"""Tokenizers with missing or damaged files, and their cache: nothing is trained on texts of [UNK]."""

import json
import os
import shutil

import pytest

from attacks.attack import assert_refused, attack
from hf_tlm.data import TokenizerError, load_tokenizer, tokenize
from hf_tlm.data.tokenization import FILES, cached_wordpiece
from hf_tlm.models import TlmModel, build_config, export_stock
from hf_tlm.tasks import load_task

TEXTS = ["the gene binds the cell", "a protein of the acid"] * 10


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder hf_tlm in an empty cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_tlm"


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def modernbert_alone(folder):
    """Remove the tokenizer of a ModernBERT model, a class without a fallback tokenizer in transformers."""
    (folder / "tokenizer.json").unlink()
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "model_type": "modernbert"}))


def changed(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def half(data):
    return data[: len(data) // 2]


CACHES = {
    "empty": empty,
    "removed": shutil.rmtree,
    "no vocabulary": lambda folder: (folder / "tokenizer.json").unlink(),
    "no settings": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "no seal": lambda folder: (folder / "seal.json").unlink(),
    "half a vocabulary": changed("tokenizer.json", half),
    "other settings": changed("tokenizer_config.json", lambda data: data.replace(b"true", b"null")),
    "half a seal": changed("seal.json", half),
}


@pytest.mark.parametrize("harm", CACHES.values(), ids=CACHES)
def test_damaged_tokenizer_in_the_cache_is_created_again(cache, harm):
    tokenizer = cached_wordpiece(TEXTS, 120)
    (folder,) = cache.iterdir()
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    harm(folder)
    again = cached_wordpiece(TEXTS, 120)
    assert again.get_vocab() == tokenizer.get_vocab() and len(tokenizer) > 20
    assert files == {file.name: file.read_bytes() for file in folder.iterdir()}
    stamp = os.stat(folder / "tokenizer.json").st_mtime_ns
    cached_wordpiece(TEXTS, 120)
    assert os.stat(folder / "tokenizer.json").st_mtime_ns == stamp  # An intact one is not created again.


def test_saved_tokenizer_does_not_depend_on_the_cache(cache, tmp_path):
    """The tokenizer and the tokens may be new or from the cache, and the tokenizer used before it is saved."""
    task = tmp_path / "task"
    task.mkdir()
    for split in ("train", "validation"):
        rows = [{"text": text, "label": text[:3]} for text in TEXTS]
        (task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    saved = set()
    for number in range(3):
        tokenizer = cached_wordpiece(TEXTS, 120)
        tokenizer(TEXTS, truncation=True, max_length=4, padding=True) if number == 2 else None
        tokenize(load_task(str(task)).train, tokenizer, 8)
        tokenizer.save_pretrained(tmp_path / str(number))
        saved.add(tuple((tmp_path / str(number) / name).read_bytes() for name in FILES))
    assert len(saved) == 1 and json.loads(saved.pop()[0])["truncation"] is None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny model with its tokenizer. Tests must not write to it."""
    from hf_tlm.data import train_wordpiece

    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    tokenizer = train_wordpiece(TEXTS, 120)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = build_config(
        {"model_type": "bert", "max_position_embeddings": 64, **sizes}, tokenizer, id2label={0: "a", 1: "b"}, max_length=32
    )
    export_stock(TlmModel.from_config(config), tokenizer, folder, {})
    return folder


def with_vocabulary(vocabulary):
    def change(data):
        content = json.loads(data)
        content["model"]["vocab"] = vocabulary
        return json.dumps(content).encode()

    return change


FOLDERS = {
    "a model alone": (
        lambda folder: [(folder / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")],
        "has no vocabulary",
    ),
    "settings alone": (lambda folder: (folder / "tokenizer.json").unlink(), "has no vocabulary"),
    "an empty vocabulary": (changed("tokenizer.json", with_vocabulary({})), "has no vocabulary"),
    "half a file": (changed("tokenizer.json", half), "Cannot load a tokenizer"),
    "an empty file": (changed("tokenizer.json", lambda data: b""), "Cannot load a tokenizer"),
    "an object without keys": (changed("tokenizer.json", lambda data: b"{}"), "Cannot load a tokenizer"),
    "a list": (changed("tokenizer.json", lambda data: b"[]"), "Cannot load a tokenizer"),
    "settings that are a list": (changed("tokenizer_config.json", lambda data: b"[]"), "Cannot load a tokenizer"),
    "a token that is a list": (
        changed("tokenizer_config.json", lambda data: b'{"tokenizer_class": "BertTokenizer", "pad_token": [1]}'),
        "Cannot load a tokenizer",
    ),
    "a model of another class alone": (modernbert_alone, "tokenizer.json is missing"),
    "nothing": (empty, "contains neither a model nor a tokenizer"),
}


@pytest.mark.parametrize("harm,message", FOLDERS.values(), ids=FOLDERS)
def test_tokenizer_with_missing_or_damaged_files_is_refused(checkpoint, tmp_path, harm, message):
    assert len(load_tokenizer(str(checkpoint))) > 20
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    harm(folder)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(str(folder))


@pytest.mark.parametrize("recipe", ["train_tlm", "finetune", "pretrain"])
def test_training_from_a_checkpoint_without_tokenizer_is_refused(checkpoint, toys, tmp_path, recipe):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").unlink()
    sizes = ("--max_length", 16, "--max_steps", 1, "--use_cpu", "true", "--output_dir", toys.out)
    data = ("--corpus", toys.corpus) if recipe == "pretrain" else ("--task", toys.task)
    data += ("--rho1", 0) if recipe == "train_tlm" else ()
    outcome = attack(recipe, *data, "--model_name_or_path", folder, *sizes)
    assert_refused(outcome, "has no vocabulary", "tokenizer.json")
    assert not toys.out.exists()
