"""Records that runs and subsets leave, as inputs of cards."""

COST = {
    "steps": 460,
    "tokens": 1_000_000,
    "real_tokens": 600_000,
    "flops": 9e12,
    "seconds": 83.4,
    "flops_ratio": 9e12 / 4.36e21,
}


def record(seed, score):
    scores = {"micro_f1": score, "accuracy": score}
    stage = {"cost": {**COST, "steps": 160}, "validation": scores}
    return {
        "seed": seed,
        "parameters": 1_500_000,
        "trained_parameters": 20_000,
        "cost": COST,
        "stages": {"1": stage, "2": stage},
        "validation": scores,
        "test": scores,
    }


RUN = {
    "task": "chemprot",
    "metric": "micro_f1",
    "subset": {
        "corpus": {"name": "wiki", "fingerprint": "0123"},
        "counts": {"union": 23782, "passages": 409154},
        "retriever": "bm25s",
        "top_k": 50,
    },
    "arguments": {"stage": "both", "rho1": 3, "rho2": 20, "loss_normalization": "mean", "mlm_probability": 0.15},
    "model": {"model_name_or_path": None, "embedding_init": "random", "spectral_scale": 1.0},
    "environment": {"hf_tlm": "0.1.0", "transformers": "5.23.0", "torch": "2.13.0", "processor": "a CPU"},
    "summary": {
        split: {name: {"mean": 0.51, "std": 0.01, "n": 2, "values": [0.5, 0.52]} for name in ("micro_f1", "accuracy")}
        for split in ("validation", "test")
    },
    "seeds": [record(0, 0.50), record(1, 0.52)],
}

SELECTION = {"method": "iss", "of": 23782, "size": 4756}
COCO_LM = {"objective": "cocolm", "clm": "full", "stop_gradient": True, "scl": True, "crop_fraction": 0.9}
COCO_LM |= {"scl_temperature": 1.0, "scl_projection": "none"}
PRETRAINED = {
    "corpus": {"name": "wiki", "fingerprint": "0123", "blocks": 5000, "tokens": 630_000, "bad_files": {}},
    "arguments": {
        **{"objective": "mlm", "max_length": 128, "mlm_probability": 0.15, "rtd_weight": 50.0, "learning_rate": 5e-4},
        **{"lr_scheduler_type": "linear", "optim": "lamb", "seed": 3, "texts_per_step": 1024},
    },
    "model": {
        "model_name_or_path": None,
        "temperature": 0.8,
        "replacements": "sampled",
        "freeze_auxiliary": False,
        "spectral_scale": 1.0,
    },
    "blocks": {"blocks": "contiguous", "validation_share": 0.005},
    "environment": RUN["environment"],
    "vocabulary": 30_522,
    "parameters": 13_500_000,
    "trained_parameters": 13_500_000,
    "cost": COST,
    "validation": {"loss": 2.5, "mlm_loss": 2.5, "rtd_accuracy_original": 0.97},
    "validation_blocks": 1000,
    "initialization": None,
}

SUBSET = {
    "corpus": {"name": "wiki", "fingerprint": "0123"},
    "task": {"name": "chemprot", "fingerprint": "4567", "split": "train"},
    "retriever": "bm25",
    "query_mode": "text",
    "top_k": 50,
    "seed": None,
    "decontamination": {"ngram": 13, "threshold": 0.2, "passages": 7},
    "counts": {"union": 23782, "passages": 409154, "queries": 4169, "empty_queries": 1, "queries_without_hits": 2},
    "versions": {"hf_tlm": "0.1.0", "datasets": "5.2.0"},
}
REPORT = "# Retrieval for chemprot from wiki\n\n## Counts\n\nA table.\n\n### 1\n\nAn example.\n"
INFO = {
    "features": [{"name": "id", "dtype": "string"}, {"name": "text", "dtype": "string"}],
    "splits": [{"name": "train", "num_bytes": 1000, "num_examples": 23782}],
    "download_size": 500,
    "dataset_size": 1000,
}
