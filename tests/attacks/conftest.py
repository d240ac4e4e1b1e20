"""Small inputs for attacks on recipes."""

import json
from types import SimpleNamespace

import pytest

from support.toys import TINY_CONFIGS, write_files

QUIET = ("--report_to", "none", "--use_cpu", "true", "--disable_tqdm", "true")
ARMS = ("task only", "BM25")


@pytest.fixture(scope="session")
def made_toys(tmp_path_factory):
    """Paths of a task, a corpus, a model's config, a subset, a checkpoint, a finished run and options of a table.

    Tests must not write to them.
    """
    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    folder = tmp_path_factory.mktemp("toys")
    write_files(folder, train=24, held_out=12)
    task = load_task(str(folder / "task"))
    subset = retrieve(task, load_corpus(str(folder / "corpus.parquet")), top_k=4)
    subset.save(folder / "subset")
    _write_checkpoint(folder / "checkpoint", task)
    _write_run(folder / "run", task, subset, folder / "model.json")
    stages = {
        "rho1": 1,
        "max_steps": 2,
        "stage2_max_steps": 2,
        "stage2_eval_steps": 1,
        "model_config": str(folder / "model.json"),
    }
    options = {"train_tlm": {**stages, "vocab_size": 120, "max_length": 32, "report_to": "none"}, "retrieve": {"top_k": 2}}
    (folder / "table.yaml").write_text(json.dumps(options))
    (folder / "texts.jsonl").write_text(json.dumps({"text": "the gene raises the cell"}) + "\n")
    names = ("task", "corpus.parquet", "model.json", "subset", "checkpoint", "run", "table.yaml", "texts.jsonl")
    return SimpleNamespace(**{name.partition(".")[0]: folder / name for name in names})


def _write_checkpoint(folder, task):
    """Save a model with both heads, untrained."""
    from hf_tlm.data import train_wordpiece
    from hf_tlm.models import TlmModel, build_config, export_stock

    tokenizer = train_wordpiece(task.train["text"], 120)
    model = {key: value for key, value in TINY_CONFIGS["bert"].items() if key not in ("vocab_size", "num_labels")}
    config = build_config({"model_type": "bert", **model}, tokenizer, id2label=task.id2label, max_length=32)
    export_stock(TlmModel.from_config(config), tokenizer, folder, {})


def _write_run(folder, task, subset, model):
    from hf_tlm.runs import run_tlm
    from hf_tlm.training import ModelArguments, TlmArguments

    steps = {
        "rho1": 1,
        "max_steps": 2,
        "stage2_max_steps": 2,
        "stage2_eval_steps": 1,
        "max_length": 32,
        "save_strategy": "no",
    }
    args = TlmArguments(output_dir=str(folder), report_to="none", use_cpu=True, disable_tqdm=True, **steps)
    run_tlm(task, subset, args, ModelArguments(model_config=str(model), vocab_size=120))


@pytest.fixture
def toys(made_toys, tmp_path):
    """The toys, a folder `out` that does not exist yet, and by name of a recipe a command line that succeeds."""
    out = tmp_path / "out"
    return SimpleNamespace(**vars(made_toys), out=out, commands=commands(made_toys, out))


def commands(toys, out):
    """Return name -> command line; those of the analyses are called `analyze heads` and so on."""
    task, subset, model = ("--task", toys.task), ("--subset", toys.subset), ("--model_config", toys.model)
    checkpoint, output = ("--model_name_or_path", toys.checkpoint), ("--output_dir", out)
    stages = ("--rho1", 1, "--max_steps", 2, "--stage2_max_steps", 2, "--stage2_eval_steps", 1, "--save_strategy", "no")
    sizes = ("--max_length", 32, "--vocab_size", 120)
    steps = ("--max_steps", 2, "--max_length", 32)
    return {
        "retrieve": (*task, "--corpus", toys.corpus, "--top_k", 2, *output),
        "select_influence": (*task, *subset, "--score_model", toys.run, "--fraction", 0.5, *QUIET, *output),
        "train_tlm": (*task, *subset, *model, *sizes, *stages, *QUIET, *output),
        "baseline": (*task, *output),
        "pretrain": ("--corpus", toys.corpus, *model, "--max_length", 16, "--vocab_size", 120, "--max_steps", 2)
        + ("--total_batch_size", 4, "--validation_share", 0.2, "--save_strategy", "no", *QUIET, *output),
        "finetune": (*task, *checkpoint, *steps, *QUIET, *output),
        "few_shot": (*task, *checkpoint, "--k", 2, "--splits", 1, "--learning_rates", 1e-3, "--batch_sizes", 2, *steps)
        + ("--method", "finetune", "--eval_steps", 1, *QUIET, *output),
        "predict": (*checkpoint, "--data", toys.texts, "--output", out / "found.csv", "--use_cpu", "true"),
        "export": (*checkpoint, "--dtypes", "fp32", *output),
        "publish": ("--model", toys.run, "--repo_id", "alice/toy", "--dry_run", "true"),
        "reproduce": ("--tasks", toys.task, "--arms", *ARMS, "--seeds", 0, "--corpus", toys.corpus, "--config", toys.table)
        + output,
        "quickstart": (*task, "--corpus", toys.corpus, "--top_k", 2, "--max_flops", 1e6, "--stage2_max_steps", 2, *output),
        "analyze heads": ("--what", "heads", "--models", toys.run, "--texts", toys.texts, "--max_length", 32, *output),
        "analyze words": ("--what", "words", *task, "--subsets", toys.subset, "--min_count", 1, *output),
        "analyze embeddings": ("--what", "embeddings", "--models", toys.run, *task, "--max_length", 32, *output),
        "analyze curves": ("--what", "curves", "--run", toys.run, *output),
        "analyze cost": ("--what", "cost", "--run", toys.run, *output),
        "analyze subsets": ("--what", "subsets", *task, "--subsets", toys.subset, *output),
        "analyze tables": ("--what", "tables", "--run", toys.run, *output),
        "analyze report": ("--what", "report", "--run", toys.run, *output),
    }
