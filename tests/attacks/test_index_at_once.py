"""Several processes that build or extend one index at once: each gets a complete index, and each part is built once."""

from pathlib import Path

import pandas as pd
import pytest

from attacks.attack import attack, tree


def commands(toys, corpus, folder, number):
    named = ("--task", toys.task, "--corpus", corpus, "--top_k", 2, "--num_threads", 1)
    return (*named, "--index_dir", folder / "index", "--output_dir", folder / f"out-{number}")


def retrieve_at_once(toys, corpus, folder, cache):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(3) as pool:
        environment = {"HF_DATASETS_CACHE": str(cache)}
        run = lambda number: attack("retrieve", *commands(toys, corpus, folder, number), environment=environment)  # noqa: E731
        return list(pool.map(run, range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_index_is_built_once_by_several_processes(toys, tmp_path, begun):
    rows = pd.read_parquet(toys.corpus)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    rows[: len(rows) // 2].to_parquet(corpus / "a.parquet")
    alone, together, cache = tmp_path / "alone", tmp_path / "together", tmp_path / "cache"
    if begun:
        for folder in (alone, together):
            assert attack("retrieve", *commands(toys, f"{corpus}/*.parquet", folder, "first")).status == 0
    rows[len(rows) // 2 :].to_parquet(corpus / "b.parquet")
    assert attack("retrieve", *commands(toys, f"{corpus}/*.parquet", alone, 0)).status == 0
    ends = retrieve_at_once(toys, f"{corpus}/*.parquet", together, cache)
    assert [end.status for end in ends] == [0] * 3, [end.stderr for end in ends]
    assert tree(together / "index") == tree(alone / "index")
    for number in range(3):
        assert tree(together / f"out-{number}") == tree(alone / "out-0")
    assert not [path for path in Path(together).iterdir() if path.name.startswith(".")]
