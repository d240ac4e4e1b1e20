"""Damage to what a run has finished is noticed, the part is created again, and never published."""

import errno
import io
import json
import shutil

import pytest

from attacks.attack import assert_refused, attack, tree
from hf_tlm.errors import HfTlmError, HubError
from hf_tlm.hub.publish import publish_model
from hf_tlm.training.run_folder import SEED, copy_best_model, finish, finished


def flipped(data):
    return data[:-5] + bytes([data[-5] ^ 255]) + data[-4:]


def half(data):
    return data[: len(data) // 2]


DAMAGES = {
    "a seed's weights": {"seed-0/model/model.safetensors": flipped},
    "half of a seed's weights": {"seed-0/model/mlm/model.safetensors": half},
    "a seed's config": {"seed-0/model/config.json": lambda data: data.replace(b"bert", b"beet")},
    "a seed's record": {"seed-0/results.json": half},
    "a seed's seal": {"seed-0/seal.json": half},
    "a seed's predictions": {"seed-0/predictions/test.jsonl": half},
    "a seed and its stage 2": {
        "seed-0/model/model.safetensors": flipped,
        "seed-0/stage2/model/model.safetensors": flipped,
    },
    "a seed and both stages": {
        "seed-0/results.json": lambda data: b"[]",
        "seed-0/stage1/model/model.safetensors": half,
        "seed-0/stage2/model/stage.json": half,
    },
    "a score of a seed": {"seed-0/results.json": lambda data: data.replace(b'"seed": 0', b'"seed": 1')},
}


@pytest.fixture(scope="module")
def finished_run(made_toys, tmp_path_factory):
    """A folder that train_tlm has finished, and the command."""
    out = tmp_path_factory.mktemp("finished") / "out"
    command = ("--task", made_toys.task, "--subset", made_toys.subset, "--model_config", made_toys.model)
    command += ("--rho1", 1, "--max_steps", 2, "--stage2_max_steps", 2, "--stage2_eval_steps", 1, "--save_strategy", "no")
    command += ("--max_length", 32, "--vocab_size", 120, "--report_to", "none", "--use_cpu", "true")
    outcome = attack("train_tlm", *command, "--output_dir", out)
    assert outcome.status == 0, outcome.stderr
    return out, command


def models(folder):
    """Return the files of all models, and the predictions."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".jsonl")]
    found += list(folder.rglob("config.json"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.parametrize("harms", DAMAGES.values(), ids=DAMAGES)
def test_damaged_part_is_created_again(finished_run, tmp_path, harms):
    (folder, command), out = finished_run, tmp_path / "out"
    shutil.copytree(folder, out)
    for name, damage in harms.items():
        changed = damage((out / name).read_bytes())
        assert changed != (out / name).read_bytes()
        (out / name).write_bytes(changed)
    outcome = attack("train_tlm", *command, "--output_dir", out)
    assert outcome.status == 0 and "created again" in outcome.stderr and "Traceback" not in outcome.stderr, outcome.stderr
    assert models(out) == models(folder)
    scores = [json.loads((run_folder / "results.json").read_text())["summary"] for run_folder in (folder, out)]
    assert scores[0] == scores[1]
    assert finished(out / "seed-0", None, fields=SEED, local=True)


def test_intact_run_is_not_created_again(finished_run, tmp_path):
    (folder, command), out = finished_run, tmp_path / "out"
    shutil.copytree(folder, out)
    (out / "seed-0/model/README.md").write_text("Edited.")
    outcome = attack("train_tlm", *command, "--output_dir", out)
    assert outcome.status == 0 and "created again" not in outcome.stderr
    assert (out / "seed-0/model/README.md").read_text() == "Edited."


@pytest.mark.parametrize("recipe, missing", [("train_tlm", "--task"), ("train_tlm", "--subset"), ("finetune", "--task")])
def test_finished_run_with_missing_data_is_said_to_be_finished(finished_run, toys, tmp_path, recipe, missing):
    out, command = finished_run
    given = command if recipe == "train_tlm" else toys.commands[recipe]
    outcome = attack(recipe, *given, "--output_dir", out, missing, tmp_path / "gone")
    assert_refused(outcome, "gone", f"The run in {out} is finished: its model and results.json are there")


def test_run_without_seals_is_accepted(finished_run, tmp_path):
    (folder, command), out = finished_run, tmp_path / "out"
    shutil.copytree(folder, out)
    for seal in out.rglob("seal.json"):
        seal.unlink()
    outcome = attack("train_tlm", *command, "--output_dir", out)
    assert outcome.status == 0 and "created again" not in outcome.stderr and models(out) == models(folder)


def test_damaged_settings_are_a_one_line_error(finished_run, tmp_path):
    (folder, command), out = finished_run, tmp_path / "out"
    shutil.copytree(folder, out)
    for content in (b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000):
        (out / "settings.json").write_bytes(content)
        assert_refused(attack("train_tlm", *command, "--output_dir", out), "settings.json", "damaged")
    (out / "settings.json").write_text('{"arguments": [], "model": 3}')
    assert_refused(attack("train_tlm", *command, "--output_dir", out), "other settings")
    assert models(out) == models(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "mlm/model.safetensors", "tokenizer.json"])
def test_damaged_model_is_not_published(finished_run, tmp_path, name):
    out = tmp_path / "out"
    shutil.copytree(finished_run[0], out)
    (out / name).write_bytes(flipped((out / name).read_bytes()))
    with pytest.raises(HubError, match=f"{name}.*remove seal.json"):
        publish_model(out, "owner/name")


@pytest.mark.parametrize("recipe", ["finetune", "train_tlm"])
def test_damaged_model_is_not_trained_further(finished_run, tmp_path, toys, recipe):
    model = tmp_path / "model"
    shutil.copytree(finished_run[0], model)
    (model / "model.safetensors").write_bytes(flipped((model / "model.safetensors").read_bytes()))
    start = ("--task", toys.task, "--model_name_or_path", model, "--max_steps", 2, "--use_cpu", "true")
    start += ("--rho1", 0) if recipe == "train_tlm" else ()
    assert_refused(attack(recipe, *start, "--output_dir", toys.out), "model.safetensors has changed", "remove seal.json")
    assert not toys.out.exists()


def test_copied_model_is_sealed_except_for_its_card(tmp_path):
    model, folder = tmp_path / "seed-0" / "model", tmp_path / "seed-0"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "README.md"):
        (model / name).write_text(name)
    finish(folder, {"seed": 0}, "model", "predictions")
    assert finished(folder, None, local=True) == {"seed": 0}
    copy_best_model(model, tmp_path / "out")
    sealed = json.loads((tmp_path / "out" / "seal.json").read_text())["files"]
    assert set(sealed) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("content", ['{"seed": "0"}', '{"seed": 0}', '{"seed": 0, "validation": {"f1": "high"}}', "3"])
def test_record_that_a_card_cannot_use_counts_as_damaged(tmp_path, content, caplog):
    (tmp_path / "results.json").write_text(content)
    assert finished(tmp_path, None, fields=SEED, local=True) is None
    assert "results.json" in caplog.text and "created again" in caplog.text


@pytest.mark.parametrize("name", ["results.json", "seal.json", "model.safetensors"])
def test_unreadable_file_is_not_taken_for_damaged(tmp_path, monkeypatch, name):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    finish(tmp_path, {"seed": 0}, "model.safetensors")
    before, real = tree(tmp_path), io.open

    def failing(file, *arguments, **options):
        if str(file).endswith(name):
            raise OSError(errno.ESTALE, "Stale file handle", str(file))
        return real(file, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", failing)
        patch.setattr("io.open", failing)
        with pytest.raises(HfTlmError, match="finished and cannot be read.*Stale file handle.*Try again later"):
            finished(tmp_path, None, local=True)
    assert tree(tmp_path) == before and finished(tmp_path, None, local=True) == {"seed": 0}
