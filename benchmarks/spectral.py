"""Measure the spectral warm start: masked-LM loss against tokens, and a low-resource task's score, by scale.

    python benchmarks/spectral.py --seeds 0 1 --output_dir runs/spectral

On Reuters R8 (40 examples a class, BM25 subset, BERT 2 x 128, vocabulary 4,000), compares random embeddings with spectral
ones of several norms, with stage 1 (rho1 3) and with stage 2 alone. Writes benchmarks/results/spectral.json and .md.
Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from results_file import ROOT
from reuters import posts_and_summaries, reuters_task

from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.runs import aggregate, format_table, run_tlm
from hf_tlm.training import ModelArguments, TlmArguments

MODEL = {
    "model_type": "bert",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 96,
}
VOCAB_SIZE = 4000
RESULTS = ROOT / "benchmarks" / "results"


def curve(folder: Path, seeds: list[int]) -> list[dict[str, float]]:
    """Return the masked-LM loss on corpus batches against real tokens, means over seeds."""
    runs = []
    for seed in seeds:
        state = json.loads((folder / f"seed-{seed}" / "stage1" / "trainer_state.json").read_text(encoding="utf-8"))
        runs.append([entry for entry in state["log_history"] if "corpus/mlm_loss" in entry])
    return [
        {
            "real_tokens": round(sum(e["real_tokens"] for e in entries) / len(entries)),
            "mlm_loss": round(sum(e["corpus/mlm_loss"] for e in entries) / len(entries), 4),
        }
        for entries in zip(*runs, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--scales", nargs="+", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--max_steps", type=int, default=150)
    parser.add_argument("--output_dir", default="runs/spectral")
    options = parser.parse_args()
    output = Path(options.output_dir)
    task = reuters_task()
    if not (output / "subset" / "manifest.json").is_file():
        retrieve(task, posts_and_summaries(), top_k=100).save(output / "subset")
    subset = Subset.load(output / "subset")

    rows = []
    for scale in (None, *options.scales):
        for stage in ("both", "2"):
            folder = output / f"{'random' if scale is None else scale}-{stage}"
            args = TlmArguments(
                output_dir=str(folder),
                stage=stage,
                rho1=3,
                max_length=96,
                per_device_train_batch_size=16,
                max_steps=options.max_steps,
                learning_rate=1e-3,
                warmup_steps=0.1,
                logging_steps=15,
                stage2_max_steps=300,
                stage2_total_batch_size=16,
                stage2_learning_rate=1e-3,
                stage2_warmup_steps=0.1,
                stage2_eval_steps=0.2,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seeds=options.seeds,
            )
            init = {} if scale is None else {"embedding_init": "spectral", "spectral_scale": scale}
            run = run_tlm(task, subset, args, ModelArguments(model_config=MODEL, vocab_size=VOCAB_SIZE, **init))
            rows.append(
                {
                    "embeddings": "random" if scale is None else f"spectral, norm {scale:g}",
                    "stages": "1 and 2" if stage == "both" else "2 only",
                    "test macro-F1": run.summary["test"]["macro_f1"],
                    "test accuracy": run.summary["test"]["accuracy"],
                    "curve": curve(folder, options.seeds) if stage == "both" else None,
                    "seconds": aggregate([seed["cost"] for seed in run.seeds])["seconds"]["mean"],
                    "spectral": run.details.get("initialization", {}).get("spectral"),
                    "environment": run.details["environment"],
                }
            )
    curves = {row["embeddings"]: row["curve"] for row in rows if row["curve"]}
    points = [[f"{p['real_tokens']:,}" for p in next(iter(curves.values()))]]
    points += [[f"{p['mlm_loss']:.3f}" for p in c] for c in curves.values()]
    names = ["real tokens", *curves]
    loss_rows = [dict(zip(names, values, strict=True)) for values in zip(*points, strict=True)]
    environment = rows[0]["environment"]
    seconds = [row["spectral"]["seconds"] for row in rows if row["spectral"]]
    text = (
        f"Made by `python benchmarks/spectral.py --seeds {' '.join(map(str, options.seeds))} --output_dir "
        f"{options.output_dir}` on {environment['processor']}, {environment['cpu_cores']} cores. Reuters R8, 40 examples a "
        f"class; {len(subset.dataset):,} retrieved passages; BERT 2 x 128, vocabulary {VOCAB_SIZE:,}; stage 1 "
        f"{options.max_steps} steps of 16 x 96, stage 2 300 steps of 16. Percent, mean ± standard deviation of "
        f"{len(options.seeds)} seeds. The embeddings took {min(seconds):.0f} to {max(seconds):.0f} s.\n\n"
        + format_table(rows, ["embeddings", "stages", "test macro-F1", "test accuracy"])
        + "\n\nMasked-LM loss on corpus batches in stage 1 (mean of the steps since the line above):\n\n"
        + format_table(loss_rows, names)
        + "\n"
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spectral.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "spectral.md").write_text(text, encoding="utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
