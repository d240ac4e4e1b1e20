"""The package installed from a wheel, without a clone: the command, recipes and presets work in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from hf_tlm.commands import COMMANDS
from hf_tlm.version import __version__
from support.launching import TINY
from support.toys import write_files

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def metadata(name, folder):
    """Return the metadata of an installed package."""
    (package,) = distributions(name=name, path=[str(folder)])
    return package.metadata


def run(command, folder, environment, status=0):
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=480)
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build a wheel, install it beside the dependencies; return (command, empty folder, environment)."""
    base = tmp_path_factory.mktemp("wheel")
    source, target, empty = base / "source", base / "installed", base / "empty"
    empty.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("hf_tlm", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip, quiet = [sys.executable, "-m", "pip"], ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run([*pip, "wheel", *quiet, "--no-build-isolation", "--wheel-dir", base, source], base, environment)
    (wheel,) = base.glob("hf_tlm-*.whl")
    run([*pip, "install", *quiet, "--target", target, wheel], base, environment)
    shutil.rmtree(source)
    # Reuse the kernels that the clone has compiled from the same files, if any: compiling takes ten seconds, and other tests
    # check it.
    for file in (ROOT / "hf_tlm").rglob("*.nb[ic]"):
        copied = target / file.relative_to(ROOT)
        copied.parent.mkdir(exist_ok=True)
        shutil.copy(file, copied)
        module = file.parent.parent / f"{file.name.partition('.')[0]}.py"
        assert (target / module.relative_to(ROOT)).read_bytes() == module.read_bytes()
        shutil.copystat(module, target / module.relative_to(ROOT))
    described = metadata("hf-tlm", target)
    assert described["Requires-Python"] == ">=3.11" and described["License-Expression"] == "Apache-2.0"
    assert described["Version"] == __version__ and "stem" in described.get_all("Provides-Extra")
    assert any(each.startswith("torch") for each in described.get_all("Requires-Dist"))
    environment |= {"PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"}
    return target / "bin" / "hf-tlm", empty, environment


def test_every_command_has_help_and_presets_are_found(installed):
    command, folder, environment = installed
    package_file = run([sys.executable, "-c", "import hf_tlm; print(hf_tlm.__file__)"], folder, environment)
    assert Path(package_file.strip()) == command.parent.parent / "hf_tlm" / "__init__.py"
    assert run([command, "--version"], folder, environment).startswith("hf-tlm ")
    for name in COMMANDS:
        assert f"usage: hf-tlm {name} " in run([command, name, "--help"], folder, environment)
    presets = run([command, "presets"], folder, environment).splitlines()
    configs = [path for path in (ROOT / "recipes" / "configs").glob("*/*") if path.is_file()]
    assert len(presets) == len(configs) > 100
    assert "Did you mean tlm/coffee?" in run([command, "presets", "tlm/cofee"], folder, environment, status=1)


def test_retrieve_and_train_on_two_processes(installed):
    command, folder, environment = installed
    work = folder / "data"
    for left in (work, folder / "bm25", folder / "tlm"):  # A test that failed is run again.
        shutil.rmtree(left, ignore_errors=True)
    work.mkdir()
    write_files(work)
    data = ["--task", work / "task"]
    run(
        [command, "retrieve", *data, "--corpus", work / "corpus.parquet", "--top_k", 4, "--output_dir", "bm25"],
        folder,
        environment,
    )
    assert (folder / "bm25" / "report.md").is_file()
    train = ["train", "--config", "tlm/tiny", *data, "--subset", "bm25", "--output_dir", "tlm"]
    # Without --use_cpu, like a user who has no GPU.
    position = TINY.index("--use_cpu")
    train += ["--model_config", "models/bert_tiny", *TINY[:position], *TINY[position + 2 :], "--total_batch_size", "8"]
    environment = {**environment, "CUDA_VISIBLE_DEVICES": ""}
    run([command, *train, "--num_processes", "2"], folder, environment)
    results = json.loads((folder / "tlm" / "results.json").read_text(encoding="utf-8"))
    assert results["environment"]["processes"] == 2 and results["command"].startswith(
        "hf-tlm train --config tlm/tiny --task "
    )
    # A finished run only prints its results again, under accelerate's own command too.
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", 1, "--num_machines", 1]
    accelerate += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "hf_tlm.cli"]
    assert "test" in run([*accelerate, *train], folder, environment)
    wrong = run([command, *train, "--rho1", "5"], folder, environment, status=1)
    assert "other settings (rho1" in wrong and "Traceback" not in wrong
