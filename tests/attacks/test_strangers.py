"""Files of other authors: only harmless fields of their JSON are read, and nothing in a repository runs by itself."""

import json
import socket

import pytest

from attacks.hostile import MACHINE, adapter, classifier, files, finetuned, masked_lm
from hf_tlm.errors import HfTlmError, HubError
from hf_tlm.models import ModelError
from hf_tlm.models.adapters import read_adapter
from hf_tlm.models.export import load_exported
from hf_tlm.runs import predict
from hf_tlm.runs.few_shot.classifier import PromptClassifier
from hf_tlm.runs.few_shot.prompts import PromptError
from hf_tlm.runs.records import PREDICTING, read_saved
from hf_tlm.utils.json_files import LARGEST, listed, mapped, maybe, one_of, read_fields, real, record, truth, whole, words

NAN = float("nan")


@pytest.fixture
def addresses(monkeypatch):
    """The addresses that this process connects to."""
    found, connect = set(), socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: [found.add(address), connect(self, address)][1])
    return found


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "the enzyme raises the gene"}\n{"text": "the drug blocks the receptor"}\n')
    return path


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "check, good, bad, expected",
    [
        (whole(1, 9), 3, [0, 10, True, 3.0, "3", None, [3]], "must be a whole number from 1 to 9"),
        (real(0, 1), 0.5, [-1, 2, NAN, True, "0.5", None], "must be a number from 0 to 1"),
        (words(3), "abc", ["abcd", 3, None, ["abc"]], "must be a text of at most 3 characters"),
        (one_of("a", 1), 1, ["b", True, None, {}], 'must be "a" or 1'),
        (truth, False, [0, "false", None], "must be true or false"),
        (maybe(words(3)), None, [3, False], "must be a text of at most 3"),
        (listed(truth, 2), [True], [[True] * 3, True, {"0": True}, "x"], "must be a list of at most 2 items"),
        (mapped(truth, 1), {"a": True}, [{"a": True, "b": True}, [], None], "must be an object of at most 1 names"),
        (record({"a": truth}), {"a": True, "b": nested(50)}, [[], None, "a"], "must be an object"),
    ],
)
def test_fields_are_typed_and_bounded(check, good, bad, expected, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"value": good, "other": {"push_to_hub": True}}))
    assert set(read_fields(path, {"value": check}, HfTlmError)) == {"value"}
    for value in bad:
        path.write_text(json.dumps({"value": value}))
        with pytest.raises(HfTlmError, match=expected) as raised:
            read_fields(path, {"value": check}, ModelError)
        assert type(raised.value) is ModelError and "value must" in str(raised.value) and len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"value": 1', "not JSON"),
        (b"[1]", "all of it must be an object"),
        (b"{}", "value must be a whole number from 0 to 1; found nothing"),
        (b" " * (LARGEST + 1), "has 67,108,865 bytes"),
        (b'{"value": ' + b"9" * 5000 + b"}", "not JSON|whole number"),
    ],
)
def test_file_without_a_json_object_is_a_one_line_error(content, expected, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(HfTlmError, match=expected):
        read_fields(path, {"value": whole(0, 1)}, HfTlmError)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"arguments": {"max_length": 10**9}}, "arguments.max_length must be a whole number"),
        ({"arguments": {"n_best": "20"}}, "arguments.n_best must be a whole number"),
        ({"arguments": {"crf": 1}}, "arguments.crf must be true or false"),
        ({"arguments": {"null_threshold": NAN}}, "arguments.null_threshold must be a number"),
        ({"task": {"name": 3}}, "task.name must be a text"),
        ({"task": {"name": "x" * 2000}}, "task.name must be a text of at most 1,000"),
        ({"task": {"text_columns": "text"}}, "task.text_columns must be a list"),
        ({"task": {"columns": {"a": []}}}, "task.columns.a must be a text"),
        ({"task": {"kind": "theirs"}}, "kinds of tasks are"),
        ({"task": []}, None),
        ({"label_names": [1]}, "label_names.0 must be a text"),
        ({"label_names": None}, "label_names must be a list"),
    ],
)
def test_invalid_finetuned_json_is_refused(changes, expected, tmp_path):
    saved = finetuned(**changes) if expected else {**finetuned(), **changes}
    (tmp_path / "finetuned.json").write_text(json.dumps(saved))
    with pytest.raises(HfTlmError, match=expected or "task must be an object"):
        read_saved(tmp_path)


def test_only_fields_for_predictions_are_read_from_finetuned_json(tmp_path):
    task = {"path": "mallory/data", "data_files": {"train": "theirs"}, "revision": "main", "config_name": "theirs"}
    (tmp_path / "finetuned.json").write_text(json.dumps(finetuned(arguments=MACHINE, task=task)))
    spec, _, arguments = read_saved(tmp_path)
    assert set(arguments) == set(PREDICTING)
    assert (spec.path, spec.data_files, spec.revision, spec.config_name) == ("", None, None, None)


def test_predicting_with_a_foreign_model_only_reads_it(hub, tokenizer, rows, addresses, monkeypatch):
    folder = classifier(rows.parent / "theirs", tokenizer, finetuned(arguments=MACHINE))
    hub.put("mallory/model", files(folder))
    monkeypatch.chdir(rows.parent)
    before = {path.name for path in rows.parent.iterdir()}
    hub.log.clear()
    path = predict("mallory/model", "rows.jsonl", use_cpu=True)
    assert [json.loads(line)["prediction"] for line in path.read_text().splitlines()]
    assert {path.name for path in rows.parent.iterdir()} - before <= {"predictions", "hub-cache"}
    assert {method for method, _ in hub.log} <= {"GET", "HEAD"} and all("mallory/model" in url for _, url in hub.log)
    assert all(f"http://{host}:{port}" == hub.url for host, port in addresses)


def test_foreign_model_with_another_number_of_labels_is_refused(tokenizer, rows):
    folder = classifier(rows.parent / "theirs", tokenizer, finetuned(label_names=["up"]))
    with pytest.raises(ModelError, match="has 3 classes, but finetuned.json names 1"):
        predict(str(folder), str(rows), use_cpu=True)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"peft_type": "PROMPT_TUNING", "tokenizer_kwargs": {"trust_remote_code": True}}, 'peft_type must be "LORA"'),
        ({"megatron_config": {"a": 1}, "megatron_core": "theirs"}, "megatron_config must be null"),
        ({"target_modules": "((a+)+)+!"}, "target_modules must be names of layers"),
        ({"target_modules": {"a": 1}}, "target_modules must be a list"),
        ({"rank_pattern": {"(a+)+": 4}}, "rank_pattern must be {}"),
        ({"init_lora_weights": "eva"}, "init_lora_weights must be true"),
        ({"layer_replication": [[0, 9999]]}, "layer_replication must be null"),
        ({"r": 10**9}, "r must be a whole number from 1 to 4,096"),
        ({"lora_alpha": "32"}, "lora_alpha must be a number"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path must be a text"),
    ],
)
def test_invalid_adapter_config_json_is_refused(changes, expected, tokenizer, tmp_path):
    folder = adapter(tmp_path / "adapter", tokenizer, "alice/base", **changes)
    with pytest.raises(ModelError, match=expected):
        read_adapter(folder)


def test_adapter_written_by_peft_is_read(tokenizer, tmp_path):
    config = read_adapter(adapter(tmp_path / "adapter", tokenizer, "alice/base", new_field_that_does_nothing=3))
    assert config.target_modules == {"query"} and config.r == 2


def test_adapter_from_the_hub_needs_a_base_model_from_the_hub(hub, tokenizer, rows, addresses):
    """A local path in its config is refused, even if it exists."""
    private = masked_lm(rows.parent / "private", tokenizer)
    hub.put("mallory/adapter", files(adapter(rows.parent / "theirs", tokenizer, str(private))))
    with pytest.raises(HubError, match="must be a model on the Hub"):
        predict("mallory/adapter", str(rows), rows.parent / "found.jsonl", use_cpu=True)
    hub.put("alice/base", files(private))
    hub.put("mallory/adapter", files(adapter(rows.parent / "again", tokenizer, "alice/base")))
    assert predict("mallory/adapter", str(rows), rows.parent / "found.jsonl", use_cpu=True).is_file()
    assert all(f"http://{host}:{port}" == hub.url for host, port in addresses)


PROMPT = {"template": "{text} It was {mask}.", "label_words": {"a": "gene", "b": "cell"}, "max_length": 32, "seed": 0}
PROMPT |= {"sets": 1, "similarity_model": None, "examples": None}


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"max_length": 1 << 40}, "max_length must be a whole number"),
        ({"sets": 10**9}, "sets must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"template": ["{text}"]}, "template must be a text"),
        ({"template": "{text.__class__} {mask}"}, "has an invalid field"),
        ({"label_words": {"a": 3}}, "label_words.a must be a text"),
        ({"similarity_model": {"trust_remote_code": True}}, "similarity_model must be a text"),
        ({"examples": [{"text": "x", "label": -1}]}, "examples.0.label must be a whole number"),
        ({"examples": [{"text": "x", "label": 7}]}, "examples of more classes"),
        ({"examples": [{"text": "x", "label": 0}] * 2}, "has examples, but none of class 'b': expected two or more of each"),
        ({"examples": [3]}, "examples.0 must be an object"),
    ],
)
def test_invalid_prompt_json_is_refused(changes, expected, tmp_path):
    (tmp_path / "prompt.json").write_text(json.dumps(PROMPT | changes))
    with pytest.raises(PromptError, match=expected):
        PromptClassifier.from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"trust_remote_code": True, "heads": "theirs"}, 'heads must be "rtd" or "rtd_linear" or "clm"'),
        ({"temperature": NAN}, "temperature must be a number"),
        ({"apart": "yes"}, "apart must be true or false"),
        ([], "must be an object"),
    ],
)
def test_invalid_corruption_json_is_refused(values, expected, tmp_path):
    (tmp_path / "generator").mkdir()
    (tmp_path / "generator/config.json").touch()
    (tmp_path / "corruption.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=expected):
        load_exported(tmp_path, id2label={0: "a"})


def test_foreign_prompt_with_a_local_similarity_model_is_refused(hub, tokenizer, tmp_path):
    folder = masked_lm(tmp_path / "theirs", tokenizer)
    (folder / "prompt.json").write_text(json.dumps(PROMPT | {"similarity_model": str(tmp_path)}))
    hub.put("mallory/prompt", files(folder))
    with pytest.raises(HubError, match="must be a model on the Hub"):
        PromptClassifier.from_pretrained("mallory/prompt")
