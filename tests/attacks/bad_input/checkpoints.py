"""Damage to a checkpoint, the recipes that accept a checkpoint, and sizes that exceed the data."""

import json


def half(data):
    return data[: len(data) // 2]


def cut(name):
    return lambda folder: (folder / name).write_bytes(half((folder / name).read_bytes()))


def emptied(name):
    return lambda folder: (folder / name).write_bytes(b"")


def changed(name, **values):
    def change(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **values}))

    return change


MODELS = {
    "half of the weights": cut("model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "empty weights": emptied("model.safetensors"),
    "a huge header": lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64),
    "half a config": cut("config.json"),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "an empty config": emptied("config.json"),
    "a config that is a list": lambda folder: (folder / "config.json").write_text("[1]"),
    "another type": changed("config.json", model_type="bogus"),
    "a negative size": changed("config.json", hidden_size=-16),
    "another size": changed("config.json", hidden_size=32),
    "a size as a text": changed("config.json", hidden_size="16"),
    "half a tokenizer": cut("tokenizer.json"),
    "an empty tokenizer": emptied("tokenizer.json"),
}
OF_MODELS = {
    "train_tlm": "model_name_or_path",
    "pretrain": "model_name_or_path",
    "finetune": "model_name_or_path",
    "few_shot": "model_name_or_path",
    "predict": "model_name_or_path",
    "select_influence": "score_model",
    "analyze embeddings": "models",
    "analyze heads": "models",
}
LARGE = [
    ("select_influence", ("--fraction", 0.5, "--top_k", 3), "fraction"),
    ("select_influence", ("--num_passages", 10**6), "num_passages"),
    ("few_shot", ("--k", 10**6), "k"),
    ("retrieve", ("--retriever", "random", "--num_passages", 10**6), "distinct passages"),
    ("train_tlm", ("--max_length", 4096), "positions"),
    ("finetune", ("--max_length", 4096), "positions"),
]
