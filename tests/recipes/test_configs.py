"""Every number of Table B.1, transcribed here row by row as the paper prints it, against the YAML files."""

import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_tlm.config import parse, read_configs
from hf_tlm.retrieval.retrieve import default_top_k
from hf_tlm.tasks import TASKS, TaskArguments
from hf_tlm.training import ModelArguments, TlmArguments

CONFIGS = Path(__file__).resolve().parent.parent.parent / "recipes" / "configs"
COLUMNS = ["agnews", "hyperpartisan", "helpfulness", "imdb", "acl_arc", "scierc", "chemprot", "rct"]
TABLE_B1 = {
    "small": """
        top_k            50   5000  50    500   5000  5000  5000  50
        rho1             1    99    1     19    999   999   999   3
        rho2             100  20    100   100   100   20    20    20
        max_steps        1E5  5E4   1.5E5 1.5E5 1.5E5 1.5E5 1.5E5 1E5
        total_batch_size 256  256   256   256   256   256   256   256
        max_length       128  128   128   512   128   128   128   128""",
    "medium": """
        top_k            50   5000  50    500   5000  5000  5000  50
        rho1             3    99    1     99    999   999   999   3
        rho2             100  100   1000  100   20    20    100   100
        max_steps        3E5  1E5   3E5   3E5   3E5   3E5   3E5   3E5
        total_batch_size 256  256   256   256   256   256   256   256
        max_length       128  128   128   512   128   128   128   128""",
    "large": """
        top_k            100  10000 100   1000  10000 10000 10000 100
        rho1             3    499   7     99    1999  1999  1999  7
        rho2             100  20    100   1000  20    20    20    100
        max_steps        5E5  3E5   5E5   5E5   5E5   3E5   5E5   5E5
        total_batch_size 256  512   512   512   512   512   256   256
        max_length       128  128   128   512   128   128   128   128""",
}
# Those of our own: name -> FLOPs of stage 1, millions of parameters of the masked LM.
SCALES = {"minute": (1e13, 1.5), "coffee": (4e13, 1.5), "night": (5e15, 15.2), "gpu_hour": (4e17, 40.0)}
PAPERS = [CONFIGS / "tlm" / f"{task}_{scale}.yaml" for task in COLUMNS for scale in TABLE_B1]


@pytest.mark.parametrize("scale", TABLE_B1)
def test_table_b1(scale):
    for line in TABLE_B1[scale].strip().splitlines():
        name, *values = line.split()
        assert len(values) == 8
        for task, value in zip(COLUMNS, values, strict=True):
            content = yaml.safe_load((CONFIGS / "tlm" / f"{task}_{scale}.yaml").read_text())
            found = content["retrieve" if name == "top_k" else "train_tlm"][name]
            assert found == int(float(value)), (task, scale, name)
            # Footnote 1: IMDB at the small scale has 512 tokens for task data and 128 for the corpus.
            corpus_length = 128 if (task, scale) == ("imdb", "small") else None
            assert content["train_tlm"].get("corpus_max_length") == corpus_length
            size = "large" if scale == "large" else "base"
            assert content["train_tlm"]["model_config"] == f"recipes/configs/models/bert_{size}.json"


@pytest.mark.parametrize("scale,flops", [("small", 2.74e18), ("medium", 8.30e18), ("large", 7.59e19)])
def test_flops_of_table_2(scale, flops):
    """The mean over tasks of 6 x parameters x steps x batch x length, which the paper prints in another table."""
    total = 0
    for task in COLUMNS:
        values = read_configs([CONFIGS / "tlm" / f"{task}_{scale}.yaml"], "train_tlm")
        rho1, task_length = values["rho1"], values["max_length"]
        length = (rho1 * values.get("corpus_max_length", task_length) + task_length) / (rho1 + 1)
        total += 6 * (355e6 if scale == "large" else 109e6) * values["max_steps"] * values["total_batch_size"] * length
    assert total / len(COLUMNS) == pytest.approx(flops, rel=2e-3)


@pytest.mark.parametrize("scale", TABLE_B1)
@pytest.mark.parametrize("task", COLUMNS)
def test_retrieval_is_the_papers(task, scale):
    """Appendix B's rule for K, doubled at the large scale; key phrases for Helpfulness (section 3.1)."""
    files = [CONFIGS / "tlm" / name for name in ("base.yaml", f"{task}_{scale}.yaml")]
    expected = {"top_k": default_top_k(TASKS[task].split_sizes[0]) * (2 if scale == "large" else 1)}
    assert read_configs(files, "retrieve") == expected | ({"query_mode": "rake"} if task == "helpfulness" else {})


def test_every_task_has_every_scale_and_nothing_else():
    names = {path.stem for path in (CONFIGS / "tlm").glob("*.yaml")}
    assert names == {f"{task}_{scale}" for task in COLUMNS for scale in TABLE_B1} | {"base", "tiny"} | set(SCALES)


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.stem)
def test_files_parse_on_top_of_base(path, tmp_path):
    config = ["--config", str(CONFIGS / "tlm/base.yaml"), str(path)]
    _, model_args, args = parse(
        TaskArguments,
        ModelArguments,
        TlmArguments,
        recipe="train_tlm",
        description="",
        args=[*config, "--task", "x", "--output_dir", str(tmp_path), "--use_cpu", "true"],
    )
    assert args.learning_rate == 1e-4 and args.stage2_learning_rate == 2e-5 and args.warmup_steps == 10000
    one = args.for_stage(1, tmp_path, 0, "macro_f1")
    assert one.per_device_train_batch_size * one.gradient_accumulation_steps == args.total_batch_size
    assert model_args.embedding_init == "random", "the papers' presets do not use our spectral start"


@pytest.mark.parametrize("name,millions", [("bert_tiny", None), ("bert_base", 109), ("bert_large", 335)])
def test_model_sizes(name, millions):
    """Table 2: BERT-Base 109M. (It gives 355M, RoBERTa-Large's figure, for BERT-Large, which has 335M.)"""
    import torch

    values = json.loads((CONFIGS / "models" / f"{name}.json").read_text())
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**values, vocab_size=30522))
    if millions:
        assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("scale", SCALES)
def test_scales_of_our_own(scale, tmp_path):
    """Each is whole by itself, for a small ModernBERT that pools by the mean and begins where it is said to help."""
    import torch

    flops, millions = SCALES[scale]
    file = str(CONFIGS / "tlm" / f"{scale}.yaml")
    values = {"task": "x", "output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    _, model_args, args = parse(
        *(TaskArguments, ModelArguments, TlmArguments),
        recipe="train_tlm",
        description="",
        args=["--config", file],
        values=values,
    )
    assert args.max_flops == flops and args.max_steps <= 0 and read_configs([file], "retrieve")["top_k"] >= 50
    assert model_args.embedding_init == "spectral"
    two = args.for_stage(2, tmp_path, 0, "macro_f1")
    assert two.learning_rate == args.stage2_learning_rate and args.stage2_max_length == (None if scale == "minute" else 0)
    body = json.loads((CONFIGS.parent.parent / model_args.model_config).read_text())
    assert (body["model_type"], body["classifier_pooling"]) == ("modernbert", "mean")
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"), 0)
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**body, **ids, vocab_size=model_args.vocab_size))
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.03)
