"""Exports and pages published to a loopback Hub: the files, and predictions with the published export."""

import json
import shutil

import pytest

from hf_tlm.errors import ArgumentsError, HubError
from hf_tlm.hub import PublishArguments, publish_model, publish_space
from hf_tlm.runs import predict, write_page
from support.tiny_checkpoints import files
from support.toys import make_task


def test_published_export_predicts(hub, exported, run, tmp_path):
    publish_model(run, "alice/toy")
    publish_model(exported.folder, "alice/toy-onnx", license="mit")
    published = hub.files("alice/toy-onnx")
    assert {"onnx/model.onnx", "onnx/model_quantized.onnx", "export.json", "config.json", "finetuned.json"} <= set(published)
    card = published["README.md"].decode()
    assert "license: mit" in card and 'pipeline("text-classification", "alice/toy-onnx", { dtype: "q8" })' in card
    make_task().test.select_columns(["id", "text"]).to_json(tmp_path / "texts.jsonl")
    found = []
    for model in ("alice/toy-onnx", str(exported.folder)):
        path = predict(model, str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", backend="onnx", onnx_dtype="int8")
        found.append(path.read_text())
    assert found[0] == found[1] and len(json.loads(found[0].splitlines()[0])["probabilities"]) == 3


def test_export_is_published_beside_the_weights_of_its_model(hub, exported, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/seal.json").unlink()
    config = json.loads((run / "config.json").read_text()) | {"auto_map": {"AutoModel": "modeling_own.Own"}}
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    publish_model(tmp_path / "run", "alice/both")
    before = hub.files("alice/both")
    for _ in range(2):
        publish_model(exported.folder, "alice/both")
        published = hub.files("alice/both")
        assert {"model.safetensors", "onnx/model.onnx", "onnx/model_quantized.onnx", "export.json"} <= set(published)
        assert {name: published[name] for name in before if name != "README.md"} == {
            name: content for name, content in before.items() if name != "README.md"
        }
        assert "in ONNX" in published["README.md"].decode()
    make_task().test.select_columns(["id", "text"]).to_json(tmp_path / "texts.jsonl")
    predict("alice/both", str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", backend="onnx")
    # The graphs were of the old weights, so they are removed.
    publish_model(tmp_path / "run", "alice/both")
    assert hub.files("alice/both") == before


def test_damaged_export_is_not_published(hub, exported, tmp_path):
    for name, content in files(exported.folder).items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content[:-1] if name.endswith(".onnx") else content)
    with pytest.raises(HubError, match="is damaged or was edited"):
        publish_model(tmp_path / "copy", "alice/toy")


def without_seal(folder, to):
    """Copy a folder without its seal, as downloaded from the Hub or edited by hand."""
    shutil.copytree(folder, to)
    (to / "seal.json").unlink(missing_ok=True)
    return to


INT8 = "onnx/model_quantized.onnx"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda text: "", "export.json is not JSON as recipes write it"),
        (lambda text: text[:-40], "export.json is not JSON as recipes write it"),
        (lambda text: "[1]", "export.json is not what recipes write: all of it must be an object"),
        (lambda text: edit(text, max_length="32"), "max_length must be a whole number from 1 to .*; found '32'. Export"),
        (lambda text: edit(text, format_version=2), "format_version must be 1; found 2. Export the model again"),
        (lambda text: edit(text, checked_on=None), "checked_on must be an object; found None. Export the model again"),
        (lambda text: edit(text, files={}), "export.json does not describe onnx/model.onnx. Export the model again"),
        (lambda text: edit_file(text, score="good"), f"files.{INT8}.score must be a number; found 'good'"),
        (lambda text: edit_file(text, bytes=7), f"export.json does not match the graphs: {INT8} has .* not 7"),
        (lambda text: edit_file(text, sha256="0" * 64), f"export.json and the file {INT8} have different checksums"),
        (lambda text: edit_file(text, dtype="fp32"), f"export.json does not describe {INT8}"),
        (lambda text: edit(text, model_type="electra"), "has model_type electra, but config.json next to it has bert"),
    ],
)
def test_damaged_record_is_not_published(hub, exported, tmp_path, harm, said):
    """Without the folder's seal, graphs used to be published with the scores of others."""
    copy = without_seal(exported.folder, tmp_path / "copy")
    publish_model(copy, "alice/toy", dry_run=True)
    (copy / "export.json").write_text(harm((copy / "export.json").read_text()))
    with pytest.raises(HubError, match=said):
        publish_model(copy, "alice/toy", dry_run=True)
    with pytest.raises(ArgumentsError, match=said):
        write_page(copy, tmp_path / "page")


def edit(text, **changes):
    return json.dumps(json.loads(text) | changes)


def edit_file(text, **changes):
    record = json.loads(text)
    record["files"][INT8] |= changes
    return json.dumps(record)


def test_graphs_must_match_the_record(hub, exported, tmp_path, runtime):
    copy = without_seal(exported.folder, tmp_path / "copy")
    (copy / INT8).unlink()
    with pytest.raises(HubError, match=f"export.json lists {INT8}, which does not exist. Export the model again"):
        publish_model(copy, "alice/toy", dry_run=True)
    # A page needs one graph, which may be the only one that was downloaded.
    assert json.loads((write_page(copy, tmp_path / "one", runtime=runtime) / "page.json").read_text())["dtype"] == "fp32"
    page = write_page(exported.folder, tmp_path / "page", runtime=runtime)
    publish_space(page, "alice/page", dry_run=True)
    (page / "model" / INT8).write_bytes((page / "model" / INT8).read_bytes()[:-1])
    with pytest.raises(HubError, match=f"model/export.json does not match the graphs: {INT8} has"):
        publish_space(page, "alice/page", dry_run=True)


def test_page_is_published_as_a_space(hub, exported, tmp_path, runtime, recipe):
    page = write_page(exported.folder, tmp_path / "page", title="tickets: what?", texts=["the gene"], runtime=runtime)
    (page / "notes.txt").write_text("mine")
    command = ["publish", "--space", page, "--repo_id", "alice/page", "--license", "mit"]
    assert "/spaces/alice/page); nothing was sent" in recipe(*command, "--dry_run") and not hub.repositories
    assert "Published alice/page (public) as commit" in recipe(*command, "--private", "false")
    published = hub.files("alice/page", "space")
    card = published.pop("README.md").decode()
    assert card.startswith("---\ntitle: 'tickets: what?'\nsdk: static\napp_file: index.html\n") and "license: mit" in card
    assert published == {name: content for name, content in files(page).items() if name != "notes.txt"}
    assert not hub.repository("alice/page", "space").private
    done = publish_space(page, "alice/page", license="mit")
    assert done.commit is None and done.url.endswith("/spaces/alice/page")
    with pytest.raises(HubError, match="contains no page"):
        publish_space(exported.folder, "alice/other")
    with pytest.raises(HubError, match="--verify has no effect on a Space"):
        PublishArguments(space=str(page), repo_id="alice/page", verify=True)
