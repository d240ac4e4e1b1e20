"""Scoring by an executor's tasks, and of documents in a pipeline, equals one process, also after a kill."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_tlm.data import tokenize, train_wordpiece
from hf_tlm.errors import HfTlmError
from hf_tlm.influence import (
    DocumentScores,
    InfluenceError,
    InfluenceScorer,
    load_scorer,
    save_scorer,
    score,
    score_files,
    score_sharded,
    select,
    select_rows,
)
from hf_tlm.influence.scorer import SCORER_FILE
from hf_tlm.retrieval import Sharding, retrieve
from support.naive import tiny
from support.slurm_cluster import slurm_cluster  # noqa: F401
from support.task_blocks import Killed, count_blocks

pytest.importorskip("datatrove", reason="NO SCORING ON EXECUTORS TESTED: pip install 'hf-tlm[sharded]'")

TEXTS = 40
HERE = Sharding(3, "local", workers=1)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    from hf_tlm.influence import datatrove_steps

    monkeypatch.setattr(score_files, "SHARD_ROWS", 7)
    monkeypatch.setattr(datatrove_steps, "SHARD_ROWS", 7)


@pytest.fixture(scope="module")
def texts(corpus_rows):
    found = [row["text"] for row in corpus_rows][:TEXTS]
    found[11] = ""
    return found


@pytest.fixture(scope="module")
def trained_tokenizer(corpus_rows):
    return train_wordpiece([row["text"] for row in corpus_rows], 120, max_length=32)


@pytest.fixture
def scorer(trained_tokenizer):
    return InfluenceScorer(
        [tiny("bert", dtype=torch.float32), tiny("bert", dtype=torch.float32, seed=1)], trained_tokenizer, layer=1
    )


@pytest.fixture
def rows(task, texts, trained_tokenizer):
    passages = tokenize(Dataset.from_dict({"text": texts}), trained_tokenizer, 32).add_column(
        "id", [f"p{at}" for at in range(TEXTS)]
    )
    return tokenize(task.validation, trained_tokenizer, 32), passages


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def expected(rows, scorer, tmp_path):
    score(*rows, scorer, tmp_path / "one", task_batch_size=5)
    return files(tmp_path / "one")


@pytest.mark.slow
def test_two_executor_processes_give_the_same_files(rows, scorer, expected, tmp_path, capfd):
    found = score_sharded(*rows, scorer, Sharding(3, "local", workers=2), tmp_path / "work", task_batch_size=5)
    assert files(tmp_path / "work") == expected and len(expected) == 7
    assert found.shape == (TEXTS, 5) and np.isnan(found[:, 0:9]).sum() == 5
    assert "PIPELINE" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("slurm_cluster")
def test_tasks_of_slurm_give_the_same_files(rows, scorer, expected, tmp_path):
    options = {"partition": "cpu", "time": "0:10:00", "mem_per_cpu_gb": 1}
    score_sharded(*rows, scorer, Sharding(3, "slurm", options=options), tmp_path / "work", task_batch_size=5)
    assert files(tmp_path / "work") == expected and len(expected) == 7


@pytest.mark.parametrize("then", [HERE, Sharding(9, "local", workers=1), None], ids=["same", "other shards", "in process"])
def test_killed_scoring_resumes(rows, scorer, expected, tmp_path, monkeypatch, then):
    scored_rows, work = [], tmp_path / "work"
    score_rows = InfluenceScorer.score

    def fail_at_third(self, rows):
        scored_rows.append(rows["id"][0])
        if len(scored_rows) == 3:
            raise Killed
        return score_rows(self, rows)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(InfluenceScorer, "score", fail_at_third)
        score_sharded(*rows, scorer, HERE, work, task_batch_size=5)
    assert not list(work.glob("scores-*")) and len(list((work / "sharded" / "scores").glob("[0-9]*"))) == 2
    again = []
    monkeypatch.setattr(InfluenceScorer, "score", lambda self, rows: again.append(rows["id"][0]) or score_rows(self, rows))
    fits = []
    block = InfluenceScorer._compute_block
    monkeypatch.setattr(InfluenceScorer, "_compute_block", lambda self, *given: fits.append(given) or block(self, *given))
    if then is None:
        score(*rows, scorer, work, task_batch_size=5)
        assert len(again) == 6
    else:
        score_sharded(*rows, scorer, then, work, task_batch_size=5)
        assert sorted([*again, *scored_rows[:2]]) == ["p0", "p14", "p21", "p28", "p35", "p7"] and not fits
    assert files(work) == expected
    again.clear()
    score_sharded(*rows, scorer, HERE, work, task_batch_size=5)
    assert not again


def test_task_gradients_of_a_killed_run_are_reused(rows, scorer, tmp_path, monkeypatch):
    blocks = count_blocks(monkeypatch, texts=5)
    blocks.stop = 2
    with pytest.raises(Killed):
        score_sharded(*rows, scorer, HERE, tmp_path / "work", task_batch_size=5)
    blocks.stop = None
    found = score_sharded(*rows, scorer, HERE, tmp_path / "work", task_batch_size=5)
    assert blocks.made == [*range(found.shape[1])]
    alone = score(*rows, scorer, tmp_path / "alone", task_batch_size=5)
    np.testing.assert_array_equal(found[:, 0:9], alone[:, 0:9])
    assert not (tmp_path / "work" / "sharded").exists()


def test_jobs_exchange_files_in_a_remote_folder(rows, scorer, expected, tmp_path, monkeypatch):
    """Jobs are run locally, and the remote folder is fsspec's memory filesystem: there is no Hub to test with."""
    import huggingface_hub
    from datatrove.tools import launch_pickled_pipeline

    launched = []

    def run_uv_job(script, *, script_args, env, **_):
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", [script, *script_args])
            launch_pickled_pipeline.main()
        launched.append(script_args)
        return SimpleNamespace(id=f"job{len(launched)}", url="")

    done = SimpleNamespace(status=SimpleNamespace(stage="COMPLETED"))
    monkeypatch.setattr(huggingface_hub, "run_uv_job", run_uv_job)
    monkeypatch.setattr(huggingface_hub, "inspect_job", lambda **_: done)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    options = {"token": "hf_secret", "dependencies": ["hf-tlm[sharded]"], "poll_interval": 0}
    jobs = Sharding(3, "jobs", options=options)
    for _ in range(2):
        found = score_sharded(*rows, scorer, jobs, "memory://bucket/iss", task_batch_size=5)
        assert files(found.folder) == expected and tmp_path in found.folder.parents
    assert len(launched) == 4  # One for the gradients; the second run finds everything in the cache.
    with pytest.raises(HfTlmError, match="jobs executor needs a remote work_dir"):
        score_sharded(*rows, scorer, jobs, tmp_path / "work")


def test_missing_score_files_are_rebuilt(rows, scorer, expected, tmp_path):
    work = tmp_path / "one"
    (work / "scores-00002.npy").unlink()
    (work / "scores-00005.npy").write_bytes(b"")
    score_sharded(*rows, scorer, HERE, work, task_batch_size=5)
    assert files(work) == expected


def test_failing_task_is_reported(rows, scorer, tmp_path, monkeypatch):
    monkeypatch.setattr(InfluenceScorer, "score", lambda self, rows: 1 / 0)
    with pytest.raises(HfTlmError, match="Shard 0 failed in the stage scores: ZeroDivisionError"):
        score_sharded(*rows, scorer, HERE, tmp_path / "work")
    with pytest.raises(HfTlmError, match="needs a folder as work_dir"):
        score_sharded(*rows, scorer, HERE, "s3://bucket/work")
    with pytest.raises(HfTlmError, match="num_shards: expected"):
        score_sharded(*rows, scorer, Sharding(0), tmp_path / "work")


def test_select_on_an_executor(task, corpus, scorer, tmp_path):
    subset = retrieve(task, corpus, top_k=8, cache_dir=str(tmp_path / "cache"))
    options = {"fraction": 0.4, "scorer": scorer, "max_length": 32}
    found = [
        select(task, subset, work_dir=tmp_path / str(sharding is None), sharding=sharding, **options)
        for sharding in (None, HERE)
    ]
    assert found[0].dataset.to_list() == found[1].dataset.to_list() and found[0].manifest == found[1].manifest
    with pytest.raises(
        InfluenceError, match="An executor must be started by a single process; received local in 2 processes"
    ):
        select(task, subset, sharding=HERE, num_processes=2, **options)
    with pytest.raises(InfluenceError, match="only iss does; received local with random"):
        select(task, subset, method="random", fraction=0.5, sharding=HERE)


@pytest.mark.parametrize("family", ["electra", "albert", "modernbert"])
def test_saved_scorer_gives_equal_scores(rows, trained_tokenizer, tmp_path, family):
    saved = InfluenceScorer(
        [tiny(family, dtype=torch.bfloat16)],
        trained_tokenizer,
        layer=0,
        parameters="*LayerNorm*,*norm*",
        seed=4,
        mlm_probability=0.3,
    )
    saved.fit(rows[0], 4)
    save_scorer(saved, tmp_path / "scorer")
    loaded = load_scorer(tmp_path / "scorer")
    assert loaded.fingerprint == saved.fingerprint and loaded.settings == saved.settings
    np.testing.assert_array_equal(loaded.score(rows[1]), saved.score(rows[1]))
    details = json.loads((tmp_path / "scorer" / SCORER_FILE).read_text())
    (tmp_path / "scorer" / SCORER_FILE).write_text(json.dumps(details | {"fingerprint": "0"}))
    with pytest.raises(InfluenceError, match="differs from the one that was saved"):
        load_scorer(tmp_path / "scorer")
    with pytest.raises(InfluenceError, match="contains no scorer"):
        load_scorer(tmp_path)


def documents(texts):
    from datatrove.data import Document

    return [Document(text=text, id=f"p{at}") for at, text in enumerate(texts)]


@pytest.fixture
def saved(rows, scorer, tmp_path):
    scorer.fit(rows[0], 5)
    save_scorer(scorer, tmp_path / "scorer")
    return str(tmp_path / "scorer")


def test_documents_have_the_scores_of_passages(rows, scorer, saved, texts, expected, tmp_path, monkeypatch):
    from hf_tlm.influence.datatrove_steps import ScoreDocuments

    folder, given, out = str(tmp_path / "out"), documents(texts), []
    for rank, documents_of_rank in enumerate((given[:21], given[21:])):
        with pytest.raises(InfluenceError, match="contains no scores" if rank == 0 else "tasks 1 of 2 are not finished"):
            DocumentScores(folder)
        out += ScoreDocuments(saved, folder, max_length=32).run(iter(documents_of_rank), rank=rank, world_size=2)
    found = DocumentScores(folder)
    scores = score(*rows, scorer, tmp_path / "one", task_batch_size=5)
    np.testing.assert_array_equal(found[:, 1:4], scores[:, 1:4])
    assert found.shape == scores.shape and found.ids == [document.id for document in out] == rows[1]["id"][:]
    options = {"num_passages": 9, "corpus_batch_size": 2}
    chosen, selection = select_rows(found, **options), select_rows(scores, **options)
    np.testing.assert_array_equal(chosen.rows, selection.rows)
    assert [out[row].metadata["influence"] for row in chosen.rows] == selection.influence.tolist()
    assert out[11].metadata["influence"] is None

    # Run again: only a batch that was lost is scored.
    scored, scoring = [], InfluenceScorer.score
    monkeypatch.setattr(InfluenceScorer, "score", lambda self, rows: scored.append(rows["id"][0]) or scoring(self, rows))
    shutil.rmtree(tmp_path / "out" / "00000" / "00001")
    again = list(ScoreDocuments(saved, folder, max_length=32).run(iter(documents(texts[:21])), rank=0, world_size=2))
    assert scored == ["p7"] and again == out[:21]
    assert [document.id for document in again] == found.ids[:21] and DocumentScores(folder).shape == (TEXTS, 5)

    # A changed text with the same id is scored again, with its batch; an unfinished run leaves no readable scores.
    other, scored[:] = documents(texts[:21]), []
    other[9].text = texts[30]
    run = ScoreDocuments(saved, folder, max_length=32).run(iter(other), rank=0, world_size=2)
    changed = [next(run) for _ in range(10)][-1]
    assert scored == ["p7"] and changed.metadata["influence"] != out[9].metadata["influence"]
    with pytest.raises(InfluenceError, match="tasks 0 of 2 are not finished"):
        DocumentScores(folder)
    list(run)
    assert DocumentScores(folder)[9:10, 0:5].mean() == pytest.approx(changed.metadata["influence"], rel=1e-5)


def test_scoring_documents_with_other_settings_is_refused(scorer, saved, texts, tmp_path):
    from hf_tlm.influence.datatrove_steps import ScoreDocuments

    folder = str(tmp_path / "out")
    next(ScoreDocuments(saved, folder, max_length=32).run(documents(texts)))
    with pytest.raises(InfluenceError, match="with different max_length"):
        next(ScoreDocuments(saved, folder).run(documents(texts)))
    with pytest.raises(InfluenceError, match="different tasks"):
        next(ScoreDocuments(saved, folder, max_length=32).run(documents(texts), world_size=2))
    bare = InfluenceScorer(scorer.models, scorer.tokenizer)
    with pytest.raises(InfluenceError, match="The task gradients have not been computed"):
        save_scorer(bare, tmp_path / "bare")
    save_scorer(bare, tmp_path / "bare", gradients=False)
    with pytest.raises(InfluenceError, match="has no task gradients"):
        next(ScoreDocuments(str(tmp_path / "bare"), folder).run(documents(texts)))
    with pytest.raises(InfluenceError, match="score_max_length 2 leaves no token of a text"):
        next(ScoreDocuments(saved, str(tmp_path / "short"), max_length=2).run(documents(texts)))
    list(ScoreDocuments(saved, str(tmp_path / "none"), max_length=32).run([]))
    with pytest.raises(InfluenceError, match="contains no scores, as the pipeline has read no documents"):
        DocumentScores(str(tmp_path / "none"))


def test_pipeline_scores_and_keeps_documents(saved, texts, tmp_path):
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    from hf_tlm.influence.datatrove_steps import KeepDocuments, ScoreDocuments

    (tmp_path / "in").mkdir()
    for part in range(2):
        rows = [{"id": f"p{at}", "text": text or "none"} for at, text in enumerate(texts) if at % 2 == part]
        Dataset.from_list(rows).to_parquet(str(tmp_path / "in" / f"{part}.parquet"))
    pipeline = [
        ParquetReader(str(tmp_path / "in")),
        ScoreDocuments(saved, str(tmp_path / "scores"), max_length=32),
        ParquetWriter(str(tmp_path / "out")),
    ]
    LocalPipelineExecutor(pipeline, tasks=2, workers=1, logging_dir=str(tmp_path / "logs")).run()
    written = [row for path in sorted((tmp_path / "out").iterdir()) for row in Dataset.from_parquet(str(path))]
    scores = DocumentScores(str(tmp_path / "scores"))
    means = scores[:, 0:5].astype(np.float64).mean(axis=1)
    np.testing.assert_allclose([row["metadata"]["influence"] for row in written], means, rtol=1e-6)
    assert [row["id"] for row in written] == scores.ids and len(written) == TEXTS

    # A second run keeps the selected documents.
    chosen = select_rows(scores, num_passages=9)
    keep = KeepDocuments(str(tmp_path / "scores"), chosen)
    pipeline = [ParquetReader(str(tmp_path / "in")), keep, ParquetWriter(str(tmp_path / "kept"))]
    LocalPipelineExecutor(pipeline, tasks=2, workers=1, logging_dir=str(tmp_path / "logs-kept")).run()
    kept = [row for path in sorted((tmp_path / "kept").iterdir()) for row in Dataset.from_parquet(str(path))]
    assert [row["id"] for row in kept] == [scores.ids[row] for row in chosen.rows]
    assert [row["metadata"]["influence_rank"] for row in kept] == chosen.rank.tolist()
    np.testing.assert_allclose([row["metadata"]["influence"] for row in kept], chosen.influence, rtol=1e-6)

    documents_of_task = [row for row in written if row["id"] in set(scores.ids_of(0))]
    for rows, message in (
        (documents_of_task[:-1], f"reads None instead of '{documents_of_task[-1]['id']}'"),
        ([*documents_of_task, documents_of_task[0]], f"reads '{documents_of_task[0]['id']}' instead of None"),
        (
            [documents_of_task[1], *documents_of_task[1:]],
            f"reads '{documents_of_task[1]['id']}' instead of '{documents_of_task[0]['id']}'",
        ),
    ):
        documents_read = [Document(text=row["text"], id=row["id"]) for row in rows]
        with pytest.raises(InfluenceError, match=message):
            list(keep.run(documents_read, rank=0, world_size=2))
    with pytest.raises(InfluenceError, match="with the same number of tasks. It had 2; received 3"):
        list(keep.run([], rank=0, world_size=3))
