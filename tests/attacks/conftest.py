"""Toys that commands are attacked with."""

from types import SimpleNamespace

import pytest

from toys import write_files


@pytest.fixture(scope="session")
def made_toys(tmp_path_factory):
    """A task, a corpus, a model's config and a subset, each a path. Not to be written to."""
    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    folder = tmp_path_factory.mktemp("toys")
    write_files(folder, train=24, held_out=12)
    subset = retrieve(load_task(str(folder / "task")), load_corpus(str(folder / "corpus.parquet")), top_k=4)
    subset.save(folder / "subset")
    names = ("task", "corpus.parquet", "model.json", "subset")
    return SimpleNamespace(**{name.partition(".")[0]: folder / name for name in names})


@pytest.fixture
def toys(made_toys, tmp_path):
    """The toys, a folder `out` that is not there yet, and by name of a recipe a command line that ends well."""
    out = tmp_path / "out"
    task, subset, model = ("--task", made_toys.task), ("--subset", made_toys.subset), ("--model_config", made_toys.model)
    quiet = ("--report_to", "none", "--use_cpu", "true", "--disable_tqdm", "true")
    stages = ("--rho1", 1, "--max_steps", 2, "--stage2_max_steps", 2, "--stage2_eval_steps", 1, "--save_strategy", "no")
    sizes = ("--max_length", 32, "--vocab_size", 120)
    commands = {
        "retrieve": (*task, "--corpus", made_toys.corpus, "--top_k", 2, "--output_dir", out),
        "train_tlm": (*task, *subset, *model, *sizes, *stages, *quiet, "--output_dir", out),
        "baseline": (*task, "--output_dir", out),
        "pretrain": ("--corpus", made_toys.corpus, *model, "--max_length", 16, "--vocab_size", 120, "--max_steps", 2)
        + ("--total_batch_size", 4, "--validation_share", 0.2, "--save_strategy", "no", *quiet, "--output_dir", out),
    }
    return SimpleNamespace(**vars(made_toys), out=out, commands=commands)
