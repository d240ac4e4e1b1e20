"""A third-party classifier of the Hub as a teacher, with a local Hub: recorded, interrupted, refused."""

import json

import huggingface_hub
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from hf_tlm.analysis.report.page import report_page
from hf_tlm.analysis.report.run_folder import read_run
from hf_tlm.errors import ArgumentsError, HubError
from hf_tlm.models import ModelError
from hf_tlm.runs.teachers import models
from hf_tlm.runs.teachers.ask import ask_teacher
from hf_tlm.tasks import task_from_datasets
from hf_tlm.training import TlmArguments
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task, sentences
from support.training_runs import QUIET

PASSAGES = Dataset.from_list([{"text": row["text"]} for row in sentences(40, 9)])
CARD = "---\nlicense: apache-2.0\n---\n# Large\n"


@pytest.fixture
def large(hub, tmp_path, tokenizer):
    """Files of a stock classifier with the task's classes, which is `alice/large` at v1; main has no classifier."""
    folder = pretrained(
        tmp_path / "large",
        tokenizer,
        auto_class=AutoModelForSequenceClassification,
        id2label=make_task().id2label,
        label2id=make_task().label2id,
    )
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.put("alice/large", {**files, "README.md": CARD}, revision="v1")
    return files


def ask(task, teacher, passages=PASSAGES, count=10):
    args = TlmArguments(output_dir="unused", **QUIET, teacher=teacher, teacher_passages=count)
    return ask_teacher(task, passages, args)


def test_card_has_the_commit_and_the_licence(hub, large, tmp_path, tokenizer):
    commit = hub.history("alice/large", revision="v1")[0]
    run = go(tmp_path / "run", pretrained(tmp_path / "base", tokenizer), teacher="alice/large@v1")
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    (entry,) = record["teacher"]["teachers"]
    assert (entry["name"], entry["revision"], entry["license"]) == ("alice/large", commit, "apache-2.0")
    assert record["teacher"]["flops"] > 0 and run.details["arguments"]["teacher"] == "alice/large@v1"
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"`alice/large` at revision `{commit}`: licence `apache-2.0`" in card
    assert "training" not in record["teacher"] and "The cost of training the teacher is not known." in card
    asked = [path for _, path in hub.log if "/resolve/" in path]
    assert any(path.endswith("model.safetensors") for path in asked) and not any(path.endswith(".py") for path in asked)
    # The answers are those of the same model in a folder.
    task = make_task()
    from_hub, from_folder = ask(task, "alice/large@v1"), ask(task, str(tmp_path / "large"))
    assert (from_hub.train == from_folder.train).all() and (from_hub.passages == from_folder.passages).all()


@pytest.mark.parametrize("how", ["truncate", "reset", 503])
def test_failing_download_is_one_line_and_can_be_repeated(hub, large, sleeps, how, tmp_path):
    hub.fail(lambda method, path: path.endswith("model.safetensors"), how, times=100)
    with pytest.raises(HubError) as error:
        ask(make_task(), "alice/large@v1")
    assert "alice/large" in str(error.value) and "\n" not in str(error.value)
    hub.faults.clear()
    assert len(ask(make_task(), "alice/large@v1").rows) > 0


def test_interrupted_teacher_resumes_offline(hub, large, monkeypatch):
    """The answers so far are kept, and the model is loaded from the Hub's cache."""
    task, numbers, chunks = make_task(), models._convert_predictions, []
    monkeypatch.setattr(models, "CHUNK", 16)

    def interrupt_at_fifth(predictions, one):
        chunks.append(len(predictions))
        if len(chunks) == 5:
            raise KeyboardInterrupt
        return numbers(predictions, one)

    monkeypatch.setattr(models, "_convert_predictions", interrupt_at_fifth)
    with pytest.raises(KeyboardInterrupt):
        ask(task, "alice/large@v1")
    monkeypatch.setattr(models, "_convert_predictions", lambda *given: chunks.append(0) or numbers(*given))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    ask(task, "alice/large@v1")
    assert len(chunks) == 5 + (8 - 4) and not hub.log, "four of eight parts were there"


def test_missing_repository_or_revision_is_refused(hub, large):
    for name in ("alice/nothing", "alice/large@v9"):
        with pytest.raises(HubError) as error:
            ask(make_task(), name)
        assert name.partition("@")[0] in str(error.value) and "\n" not in str(error.value)


def test_pickles_and_code_are_refused(hub, large, tmp_path):
    weights = tmp_path / "pytorch_model.bin"
    torch.save({}, weights)
    rest = {name: content for name, content in large.items() if name != "model.safetensors"}
    hub.put("alice/pickled", {**rest, weights.name: weights.read_bytes()})
    with pytest.raises(HubError, match="The weights of .*alice/pickled.* are pickles .pytorch_model.bin"):
        ask(make_task(), "alice/pickled")
    config = json.loads(large["config.json"]) | {"model_type": "own"}
    config |= {"auto_map": {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}}
    code = "raise SystemExit('a stranger's code ran')\n"
    hub.put("alice/own", {**large, "config.json": json.dumps(config), "own.py": code})
    with pytest.raises((HubError, ModelError)) as error:
        ask(make_task(), "alice/own")
    assert "alice/own" in str(error.value) and "\n" not in str(error.value)
    assert not [path for _, path in hub.log if path.endswith(".py")]


def test_names_from_the_hub_are_escaped_in_page_and_card(hub, large, tmp_path, tokenizer):
    names = ["<img src=x onerror=alert(1)>", "</script><b>", "a|b`c"]
    task = make_task()
    splits = {name: rows.remove_columns("label") for name, rows in task.splits.items()}
    splits = {
        name: rows.add_column("label", [names[label] for label in task.splits[name]["label"]])
        for name, rows in splits.items()
    }
    task = task_from_datasets(task.spec, splits)
    config = json.loads(large["config.json"])
    config |= {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}
    evil = "---\nlicense: <b>mit</b>\n---\n<script>alert(1)</script>"
    hub.put("alice/evil", {**large, "config.json": json.dumps(config), "README.md": evil})
    go(tmp_path / "run", pretrained(tmp_path / "base", tokenizer), task, teacher="alice/evil")
    page, card = report_page(read_run(tmp_path / "run")), (tmp_path / "run" / "README.md").read_text()
    body = card.partition("---\n")[2].partition("---\n")[2]
    for text in (page, body):
        assert "<img" not in text and "</script><b>" not in text and "alert(1)</script>" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page and "`alice/evil`" in card and "licence unknown" in card
    with pytest.raises(ArgumentsError) as error:
        ask(make_task(), "alice/evil")
    assert "expected the same names" in str(error.value) and "\n" not in str(error.value)
