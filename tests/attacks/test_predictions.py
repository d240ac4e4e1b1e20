"""Files to predict that are missing, empty, damaged or of other columns, and folders that cannot be published."""

import json

import pytest

from attacks.attack import assert_refused, attack, tree

ROWS = {
    "missing": (None, "rows.jsonl"),
    "empty": (b"", "rows.jsonl"),
    "another column": (b'{"body": "the gene"}\n', "text"),
    "null": (b'{"text": "the gene"}\n{"text": null}\n', "text"),
    "a list of texts": (b'{"text": ["the gene"]}\n', "text"),
    "not JSON": (b"{", "rows.jsonl"),
    "a list": (b"[1, 2]\n", "rows.jsonl"),
    "binary": (bytes(range(256)) * 8, "rows.jsonl"),
}
FOLDERS = {
    "missing": (None, ""),
    "empty": ({}, "no model"),
    "unfinished": ({"settings.json": b"{}"}, "not finished"),
    "a config alone": ({"config.json": b"{}"}, "no model"),
    "an adapter that is damaged": ({"adapter_config.json": b"{", "adapter_model.safetensors": b""}, "adapter_config.json"),
    "an adapter of nothing": ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, "adapter"),
}


@pytest.mark.parametrize("content, expected", ROWS.values(), ids=ROWS)
def test_rows_to_predict(toys, tmp_path, content, expected):
    rows = tmp_path / "rows.jsonl"
    if content is not None:
        rows.write_bytes(content)
    outcome = attack("finetune", *toys.commands["finetune"], "--predict", rows)
    assert_refused(outcome, expected)
    assert not list(toys.out.rglob("rows*"))
    assert not toys.out.exists()  # It was not trained first.


def test_a_format_and_a_place_that_do_not_go(toys, tmp_path):
    for given, expected in (
        (("--predict_format", "glue"), "GLUE"),
        (("--predict_format", "squad"), "question answering"),
        (("--predict_output", tmp_path), "is a folder"),
    ):
        assert_refused(attack("finetune", *toys.commands["finetune"], "--predict", toys.texts, *given), expected)
        assert not toys.out.exists()


@pytest.mark.parametrize("content, expected", FOLDERS.values(), ids=FOLDERS)
def test_folders_to_publish(tmp_path, content, expected):
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
    before = tree(tmp_path)
    outcome = attack("publish", "--model", folder, "--repo_id", "me/model", "--dry_run", "true")
    assert_refused(outcome, expected)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("manifest", [b"{", b"[]", b"{}", json.dumps({"files": 3}).encode(), b'{"files": {"x": 3}}'])
def test_subsets_to_publish(tmp_path, manifest):
    (tmp_path / "manifest.json").write_bytes(manifest)
    outcome = attack("publish", "--subset", tmp_path, "--repo_id", "me/subset", "--dry_run", "true")
    assert_refused(outcome)
