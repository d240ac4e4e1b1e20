"""A report reads the files of a run's folder, and follows no link out of it."""

import shutil

import pytest

from attacks.attack import assert_refused, attack


@pytest.fixture
def run(toys, tmp_path):
    shutil.copytree(toys.run, tmp_path / "run")
    return tmp_path / "run"


LINKED = ["results.json", "settings.json", "seed-0/predictions/test.jsonl", "seed-0/predictions", "seed-0", "data.parquet"]


@pytest.mark.parametrize("name", LINKED)
def test_link_out_of_the_folder_is_refused(toys, run, tmp_path, name):
    path, secret = run / name, tmp_path / "secret"
    if path.exists():
        path.rename(secret)
    else:
        secret.write_text("{}")
    path.symlink_to(secret)
    outcome = attack("analyze", "--what", "report", "--run", run, "--output_dir", toys.out)
    assert_refused(outcome, f"{path} is a link out of the run's folder")
    assert not toys.out.exists()


def test_links_within_and_to_the_folder_are_followed(toys, run, tmp_path):
    (run / "results.json").rename(run / "kept.json")
    (run / "results.json").symlink_to("kept.json")
    (tmp_path / "link").symlink_to(run)
    assert attack("analyze", "--what", "report", "--run", tmp_path / "link", "--output_dir", toys.out).status == 0
