"""Scores on disk: equal from one process or several and after a kill, and never reused with other settings."""

import json
import threading

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.data import tokenize
from hf_tlm.influence import InfluenceError, score, score_files
from hf_tlm.influence.rows import rows_digest
from hf_tlm.influence.score_files import SETTINGS_FILE
from hf_tlm.influence.task_gradients import GRADIENTS_FOLDER
from support.fake_scorer import FakeScorer

TASK_BATCH = 5


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(score_files, "SHARD_ROWS", 7)
    monkeypatch.setattr(score_files, "POLL_SECONDS", 0.005)


@pytest.fixture
def task_rows(task, tokenizer):
    return tokenize(task.validation, tokenizer, 32)


@pytest.fixture
def subset_rows(corpus_rows, tokenizer):
    """60 passages, one of which is empty: 9 shards."""
    texts = [row["text"] for row in corpus_rows]
    texts[17] = ""
    rows = tokenize(Dataset.from_dict({"text": texts}), tokenizer, 32)
    return rows.add_column("id", [f"p{number}" for number in range(len(rows))])


@pytest.fixture
def expected(task_rows, subset_rows, tokenizer, tmp_path):
    scorer = FakeScorer(tokenizer)
    scorer.fit(task_rows, TASK_BATCH, tmp_path / "fitted")
    return scorer.score(subset_rows)


def score_all(*arguments, **options):
    found = score(*arguments, task_batch_size=TASK_BATCH, **options)
    return found[:, 0 : found.shape[1]]


def test_sharded_scores_equal_the_scorer(task_rows, subset_rows, tokenizer, expected, tmp_path):
    scorer = FakeScorer(tokenizer)
    found = score(task_rows, subset_rows, scorer, tmp_path / "work", task_batch_size=TASK_BATCH)
    assert found.shape == (60, 5) == expected.shape
    np.testing.assert_array_equal(found[:, 1:3], expected[:, 1:3])
    np.testing.assert_array_equal(found[:, 0:99], expected)
    assert found[:, 0:1].dtype == np.float32 and np.isnan(expected[17]).all() and np.isnan(expected).sum() == 5
    names = {SETTINGS_FILE, *(f"scores-{number:05d}.npy" for number in range(9))}
    assert {path.name for path in (tmp_path / "work").iterdir()} == names
    assert np.load(tmp_path / "work" / "scores-00008.npy").shape == (4, 5)


@pytest.mark.parametrize("num_processes", [2, 3, 12])
def test_processes_divide_the_scoring_and_return_equal_scores(
    task_rows, subset_rows, tokenizer, expected, tmp_path, num_processes
):
    scorers = [FakeScorer(tokenizer) for _ in range(num_processes)]
    results = [None] * num_processes

    def work(index):
        results[index] = score_all(
            task_rows, subset_rows, scorers[index], tmp_path / "work", process_index=index, num_processes=num_processes
        )

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in reversed(range(num_processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert sorted(name for scorer in scorers for name in scorer.scored) == sorted(subset_rows["id"])
    assert [scorer.fitted + scorer.loaded for scorer in scorers] == [1] * min(num_processes, 9) + [0] * (num_processes - 9)
    assert all(scorer.scored for scorer in scorers[:9])
    assert not (tmp_path / "work" / GRADIENTS_FOLDER).exists()


@pytest.mark.parametrize("then", [1, 2])
def test_killed_scoring_resumes(task_rows, subset_rows, tokenizer, expected, tmp_path, then):
    killed = FakeScorer(tokenizer, fail_after=25)
    with pytest.raises(KeyboardInterrupt):
        score_all(task_rows, subset_rows, killed, tmp_path / "work")
    assert len(killed.scored) == 21
    scorers = [FakeScorer(tokenizer) for _ in range(then)]
    threads = [
        threading.Thread(
            target=score_all,
            args=(task_rows, subset_rows, scorer, tmp_path / "work"),
            kwargs={"process_index": index, "num_processes": then},
            daemon=True,
        )
        for index, scorer in enumerate(scorers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(name for scorer in scorers for name in scorer.scored) == sorted(subset_rows["id"][21:])
    assert [(scorer.fitted, scorer.loaded) for scorer in scorers] == [(0, 1)] * then
    finished = FakeScorer(tokenizer)
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, finished, tmp_path / "work"), expected)
    assert (finished.fitted, finished.loaded, finished.scored) == (0, 0, [])


@pytest.mark.parametrize("damage", ["cut", "empty", "remove", "another shape", "a bit"])
def test_damaged_shard_is_rebuilt(task_rows, subset_rows, tokenizer, expected, tmp_path, damage):
    found = score(task_rows, subset_rows, FakeScorer(tokenizer), tmp_path / "work", task_batch_size=TASK_BATCH)
    path = tmp_path / "work" / "scores-00002.npy"
    if damage == "remove":
        path.unlink()
    elif damage in ("cut", "empty"):
        path.write_bytes(path.read_bytes()[:-9] if damage == "cut" else b"")
    elif damage == "a bit":
        path.write_bytes(path.read_bytes()[:-20] + bytes([path.read_bytes()[-20] ^ 1]) + path.read_bytes()[-19:])
    else:
        np.save(path, np.zeros((7, 4), np.float32))
    found = score_files.ScoreFiles(tmp_path / "work", found.shape)
    with pytest.raises(InfluenceError, match="scores-00002.npy is missing or damaged"):
        found[:, 0:1]
    scorer = FakeScorer(tokenizer)
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, scorer, tmp_path / "work"), expected)
    assert scorer.scored == subset_rows["id"][14:21]


def test_older_shards_without_checksums_are_used(task_rows, subset_rows, tokenizer, expected, tmp_path):
    score_all(task_rows, subset_rows, FakeScorer(tokenizer), tmp_path / "work")
    for path in (tmp_path / "work").glob("*.npy"):
        np.save(path, np.load(path))
    scorer = FakeScorer(tokenizer)
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, scorer, tmp_path / "work"), expected)
    assert not scorer.scored


def test_other_settings_are_refused(task_rows, subset_rows, tokenizer, tmp_path):
    folder = tmp_path / "work"
    score_all(task_rows, subset_rows, FakeScorer(tokenizer), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        InfluenceError, match=r"layer \(2 in the folder, 0 now\), scorer .*Choose another --work_dir for this selection"
    ):
        score_all(task_rows, subset_rows, FakeScorer(tokenizer, layer=0), folder)
    with pytest.raises(InfluenceError, match=r"subset \("):
        score_all(task_rows, subset_rows.select(range(59)), FakeScorer(tokenizer), folder, process_index=1, num_processes=2)
    with pytest.raises(InfluenceError, match=r"task \("):
        score_all(task_rows.select(range(20)), subset_rows, FakeScorer(tokenizer), folder)
    with pytest.raises(InfluenceError, match=r"task_batch_size \(5 in the folder, 4 now\)"):
        score(task_rows, subset_rows, FakeScorer(tokenizer), folder, task_batch_size=4)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for content in ("{", "[]"):
        (folder / SETTINGS_FILE).write_text(content)
        with pytest.raises(InfluenceError, match="settings.json is damaged"):
            score_all(task_rows, subset_rows, FakeScorer(tokenizer), folder)
    (folder / SETTINGS_FILE).unlink()
    with pytest.raises(InfluenceError, match=r"contains scores \(scores-00000.npy ...\), but no settings.json"):
        score_all(task_rows, subset_rows, FakeScorer(tokenizer), folder)


def test_refused_scoring_leaves_no_folder(task_rows, subset_rows, tokenizer, expected, tmp_path):
    class Refusing(FakeScorer):
        def fit(self, *args, **kwargs):
            raise InfluenceError("no such label")

    with pytest.raises(InfluenceError, match="no such label"):
        score_all(task_rows, subset_rows, Refusing(tokenizer, layer=0), tmp_path / "work")
    assert not (tmp_path / "work").exists()
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, FakeScorer(tokenizer), tmp_path / "work"), expected)


def test_scores_without_a_folder_are_cached(task_rows, subset_rows, tokenizer, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, FakeScorer(tokenizer)), expected)
    again, other = FakeScorer(tokenizer), FakeScorer(tokenizer, seed=1)
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, again), expected)
    assert again.scored == []
    assert (score_all(task_rows, subset_rows, other) != expected).all() and len(other.scored) == 60
    settings = [json.loads(path.read_text()) for path in tmp_path.rglob(SETTINGS_FILE)]
    assert sorted(found["seed"] for found in settings) == [0, 1]


def test_digest_depends_on_the_content(subset_rows, tmp_path):
    digest = rows_digest(subset_rows)
    subset_rows.save_to_disk(tmp_path / "saved")
    assert rows_digest(Dataset.load_from_disk(tmp_path / "saved")) == digest
    assert rows_digest(subset_rows.select(list(range(60)))) == digest
    changes = [
        subset_rows.select(list(range(60))[::-1]),
        subset_rows.select(range(59)),
        subset_rows.map(lambda row, index: {"id": row["id"] + "x" * (index == 40)}, with_indices=True),
        subset_rows.map(lambda row, index: {"input_ids": [9] * (index == 40) + row["input_ids"]}, with_indices=True),
        subset_rows.add_column("token_type_ids", [[0] * len(ids) for ids in subset_rows["input_ids"]]),
        Dataset.from_dict({"id": ["a", "b"], "input_ids": [[1], [2, 3]]}),
        Dataset.from_dict({"id": ["a", "b"], "input_ids": [[1, 2], [3]]}),
    ]
    assert len({digest, *map(rows_digest, changes)}) == len(changes) + 1


def test_concurrent_selections_share_the_scores(task_rows, subset_rows, tokenizer, expected, tmp_path):
    """One ends and removes the gradients while the other is scoring a shard."""
    started, ended = threading.Event(), threading.Event()

    class Slow(FakeScorer):
        def score(self, rows):
            if len(self.scored) == 14:
                started.set()
                ended.wait(30)
                np.load(tmp_path / "work" / GRADIENTS_FOLDER / "gradients.npy")
            return super().score(rows)

    slow, results = Slow(tokenizer), []
    thread = threading.Thread(
        target=lambda: results.append(score_all(task_rows, subset_rows, slow, tmp_path / "work")), daemon=True
    )
    thread.start()
    started.wait(30)
    fast = FakeScorer(tokenizer)
    np.testing.assert_array_equal(score_all(task_rows, subset_rows, fast, tmp_path / "work"), expected)
    ended.set()
    thread.join(30)
    np.testing.assert_array_equal(results[0], expected)
    assert len(slow.scored) == 14 and fast.scored == subset_rows["id"][14:]
    assert (slow.fitted, fast.fitted, fast.loaded) == (1, 0, 1)
    # A scorer that lacks its gradients while scores are missing is an error, and not taken for the case above.
    lost = FakeScorer(tokenizer)
    lost.score = lambda rows: np.load(tmp_path / "gone.npy")
    with pytest.raises(FileNotFoundError):
        score_all(task_rows, subset_rows, lost, tmp_path / "other")


def test_ids_may_be_large_strings(subset_rows):
    import pyarrow as pa
    from datasets import Value

    large = subset_rows.cast_column("id", Value("large_string"))
    assert pa.types.is_large_string(large.data.schema.field("id").type) and rows_digest(large) == rows_digest(subset_rows)
