"""The complete method on a real task and a sample of the real corpus, for a few steps."""

import pytest
from datasets import Dataset

from hf_tlm.corpora import load_corpus
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.tasks import load_task
from hf_tlm.training import ModelArguments, TlmArguments


@pytest.mark.slow
def test_tlm_runs_on_scierc(data_dir, tmp_path):
    task = load_task(str(data_dir / "tasks" / "scierc"))
    rows = Dataset.from_parquet(str(data_dir / "corpus" / "cs_nlp.parquet"), cache_dir=str(tmp_path / "cache"))
    subset = retrieve(task, load_corpus(rows.select(range(2000))), top_k=1)
    assert 300 < len(subset.dataset) <= 2000
    query, passage, score = subset.examples(task, 1)[0]
    assert query in task.train["text"][:] and score > 0
    assert len(set(query.lower().split()) & set(passage.lower().split())) >= 3
    args = TlmArguments(
        output_dir=str(tmp_path / "out"),
        rho1=1,
        max_steps=2,
        per_device_train_batch_size=4,
        max_length=32,
        stage2_max_steps=2,
        stage2_eval_steps=2,
        stage2_total_batch_size=4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    config = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    run = run_tlm(task, subset, args, ModelArguments(model_config={**config, "intermediate_size": 32}, vocab_size=1000))
    assert run.details["metric"] == "macro_f1" and 0 <= run.summary["test"]["macro_f1"]["mean"] <= 1
    assert run.seeds[0]["cost"]["steps"] == 4
