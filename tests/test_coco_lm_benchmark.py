"""benchmarks/coco_lm.py and coco_lm_long.py run, at a size at which their figures mean nothing."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import warm

KINDS = ("positive", "negative")


@pytest.fixture
def small_data(tmp_path):
    """A folder whose corpus/ has the layout of the real data, filled with random words."""
    rng = random.Random(0)
    texts = [" ".join(f"word{rng.randrange(200)}" for _ in range(60)) + "." for _ in range(300)]
    (tmp_path / "data" / "corpus").mkdir(parents=True)
    pq.write_table(pa.table({"text": texts, "source": ["s"] * len(texts)}), tmp_path / "data" / "corpus" / "a.parquet")
    return tmp_path / "data"


def run(name, small_data, tmp_path, *sizes):
    pytest.importorskip("matplotlib", reason="the extra [analysis] is not installed")
    folders = ["--work_dir", str(tmp_path / "work"), "--results_dir", str(tmp_path / "results"), "--threads", "1"]
    arguments, environment = [*sizes, "--passages", "280", *folders], {"HF_TLM_DATA": str(small_data)}
    done = warm.recipe(f"benchmarks/{name}.py", arguments, environment=environment, limit=280)
    assert done.status == 0, done.stderr[-3000:]
    assert (tmp_path / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results" / f"{name}.md").read_text() in done.stdout
    (section,) = json.loads((tmp_path / "results" / f"{name}.json").read_text()).values()
    return section["rows"]


@pytest.mark.slow
def test_long_run_records_loss_and_copy_accuracy(small_data, tmp_path):
    (row,) = run("coco_lm_long", small_data, tmp_path, "--steps", "2", "--every", "2")
    assert row["step"] == 2 and row["MLM loss"] > 1 and 0 <= row["copy accuracy, replaced"] <= 1


@pytest.mark.slow
def test_runs_with_and_without_scl_start_equal_and_diverge(small_data, tmp_path):
    sizes = ["--steps", "3", "--every", "2", "--batch_size", "8", "--validation_blocks", "16"]
    rows = run("coco_lm", small_data, tmp_path, *sizes)
    assert [(row["objective"], row["step"]) for row in rows] == [
        (arm, step) for arm in ("with SCL", "without SCL") for step in (0, 2, 3)
    ]
    with_scl, without = rows[:3], rows[3:]
    shown = [name for name in rows[0] if name not in ("objective", "logged")]
    # Both start from the same model, measured in the same way; training changes it.
    assert [with_scl[0][name] for name in shown] == [without[0][name] for name in shown]
    for row in rows:
        assert all(-1 <= row[f"cosine, {kind} pairs"] <= 1 and 0 <= row["copy accuracy, original"] <= 1 for kind in KINDS)
    assert [with_scl[2][name] for name in shown[2:]] != [with_scl[0][name] for name in shown[2:]]
    # Training logs cosines only where it uses crops.
    assert "cosine_positive" in with_scl[1]["logged"] and "copy_accuracy_original" in without[1]["logged"]
    assert "cosine_positive" not in without[1]["logged"]
