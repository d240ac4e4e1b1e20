"""A claim is withdrawn only if nothing worth keeping has come of it."""

import json

import pytest

from hf_tlm.errors import HfTlmError
from hf_tlm.training.run_folder import ProtocolError, claim
from hf_tlm.utils.files import sha256
from hf_tlm.utils.locks import Claim, awaited


def claimed(folder):
    claim = Claim(folder, "settings.json")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text("{}")
    claim.new = True
    return claim


def end_in_error(claim, *files, error=HfTlmError):
    """End the claim's block in an error after some files were written."""
    with pytest.raises(error), claim:
        for name in files:
            (claim.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (claim.folder / name).write_text("x")
        raise error


def test_refused_run_leaves_no_files(tmp_path):
    end_in_error(
        claimed(tmp_path / "runs" / "one"), "tokenizer/vocab.txt", "points/a.lock", ".settings.json.1", "seed-0/.a/b"
    )
    assert not list(tmp_path.iterdir())


def test_existing_folder_stays(tmp_path):
    (tmp_path / "one").mkdir()
    end_in_error(claimed(tmp_path / "one"))
    assert (tmp_path / "one").is_dir() and not list((tmp_path / "one").iterdir())


def test_other_runs_beside_the_claim_stay(tmp_path):
    claim = claimed(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "two").mkdir()
    end_in_error(claim)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]


@pytest.mark.parametrize(
    "file", ["seed-0/checkpoint-1/trainer_state.json", "results.json", "notes.txt", "seed-0/settings.json"]
)
def test_claim_stays_if_there_are_results_or_other_files(tmp_path, file):
    end_in_error(claimed(tmp_path / "one"), file)
    assert (tmp_path / "one" / file).is_file() and (tmp_path / "one" / "settings.json").is_file()


def test_link_out_of_the_folder_is_kept_and_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.lock").write_text("x")
    claim = claimed(tmp_path / "one")
    (tmp_path / "one" / "link").symlink_to(tmp_path / "mine")
    end_in_error(claim)
    assert (tmp_path / "mine" / "a.lock").is_file() and (tmp_path / "one" / "settings.json").is_file()


def test_claim_stays_while_another_process_works_in_it(tmp_path):
    claim = claimed(tmp_path / "one")
    with awaited(tmp_path / "one" / "point"):
        end_in_error(claim)
    assert (tmp_path / "one" / "settings.json").is_file()


@pytest.mark.parametrize("new,error", [(True, KeyboardInterrupt), (True, SystemExit), (False, HfTlmError)])
def test_claim_stays_after_interruption_or_if_it_is_older(tmp_path, new, error):
    claim = claimed(tmp_path / "one")
    claim.new = new
    end_in_error(claim, error=error)
    assert (tmp_path / "one" / "settings.json").is_file()


def test_leftover_of_a_killed_claim_is_removed(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / f".settings.json.{'0' * 32}").write_text("{")
    assert claim(folder, {"model": {}}, (), 0).new
    assert [path.name for path in folder.iterdir()] == ["settings.json"]


def test_run_that_recorded_the_seal_of_its_checkpoint_is_continued(tmp_path):
    """Older versions counted `seal.json` among the files of a local model."""
    model, out = tmp_path / "checkpoint-2", tmp_path / "out"
    model.mkdir()
    for name in ("config.json", "seal.json"):
        (model / name).write_text("{}")
    details = {"arguments": {}, "model": {"model_name_or_path": str(model)}}
    claim(out, details, (), 0)
    settings = json.loads((out / "settings.json").read_text())
    settings["files"]["model_name_or_path"].append(["seal.json", sha256(model / "seal.json")])
    (out / "settings.json").write_text(json.dumps(settings))
    claim(out, details, (), 0)
    (model / "config.json").write_text("[]")
    with pytest.raises(ProtocolError, match="the files of model_name_or_path .* have changed"):
        claim(out, details, (), 0)


def test_other_local_model_is_named(tmp_path):
    """The files of the second model had "changed"."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(name))
    first, second = ({"arguments": {}, "model": {"model_name_or_path": str(tmp_path / name)}} for name in ("one", "two"))
    claim(tmp_path / "out", first, (), 0)
    with pytest.raises(ProtocolError, match=r"the files of model_name_or_path \S+two differ from those of \S+one\)"):
        claim(tmp_path / "out", second, (), 0)
