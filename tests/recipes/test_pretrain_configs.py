"""The files of recipes/configs/pretrain and their models against the tables of the papers, transcribed here."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModel

from hf_tlm.config import parse
from hf_tlm.corpora import CorpusArguments
from hf_tlm.data import BlockArguments
from hf_tlm.models import generator_config
from hf_tlm.training import ModelArguments, PretrainArguments

CONFIGS = Path(__file__).resolve().parent.parent.parent / "recipes" / "configs"
# Table V of the ALE paper.
TABLE_V = """
    parameters           4.8    13.5     13.5
    max_length           128    128      128
    embedding_size       128    128      128
    total_batch_size     1024   1024     1024
    max_steps            162e3  125e3    163e3
    learning_rate        5e-4   5e-4     5e-4
    num_hidden_layers    12     12       12
    hidden_size          256    256      256
    intermediate_size    1024   1024     1024
    num_attention_heads  4      4        4
    head_size            64     64       64
    auxiliary_size       0.25   0.25     /
    mlm_probability      0.15   0.15     0.15
    warmup_steps         10000  10000    10000
    adam_beta1           0.9    0.9      0.9
    adam_beta2           0.999  0.999    0.999
    adam_epsilon         1e-6   1e-6     1e-6
    hidden_dropout_prob  0.1    0.1      0.1
    attention_probs_dropout_prob 0.1 0.1 0.1
    weight_decay         0.01   0.01     0.01"""
# Table 6 of the ELECTRA paper (its Table 1 for the parameters of base and large).
TABLE_6 = """
    parameters           110    335
    num_hidden_layers    12     24
    hidden_size          768    1024
    intermediate_size    3072   4096
    num_attention_heads  12     16
    head_size            64     64
    embedding_size       768    1024
    auxiliary_size       0.333  0.25
    mlm_probability      0.15   0.25
    warmup_steps         10000  10000
    learning_rate        2e-4   2e-4
    adam_epsilon         1e-6   1e-6
    adam_beta1           0.9    0.9
    adam_beta2           0.999  0.999
    hidden_dropout_prob  0.1    0.1
    attention_probs_dropout_prob 0.1 0.1
    weight_decay         0.01   0.01
    total_batch_size     256    2048
    max_steps            766e3  400e3
    max_length           512    512"""

# Table 6 of the COCO-LM paper; sizes, layers and vocabularies from its section 4.
COCO_LM = """
    num_hidden_layers    12      12      24
    hidden_size          768     768     1024
    auxiliary_layers     4       4       6
    auxiliary_size       1       1       1
    vocab_size           32768   64000   64000
    max_steps            125e3   1.95e6  1.95e6
    learning_rate        5e-4    2e-4    1e-4
    total_batch_size     2048    2048    2048
    warmup_steps         10e3    10e3    10e3
    max_length           512     512     512
    relative_attention_num_buckets   32   64   128
    relative_attention_max_distance  128  128  256
    adam_epsilon         1e-6    1e-6    1e-6
    adam_beta1           0.9     0.9     0.9
    adam_beta2           0.98    0.98    0.98
    max_grad_norm        2       2       2
    hidden_dropout_prob  0.1     0.1     0.1
    attention_probs_dropout_prob 0.1 0.1 0.1
    weight_decay         0.01    0.01    0.01
    mlm_probability      0.15    0.15    0.15
    crop_fraction        0.9     0.9     0.9
    scl_temperature      1       1       1
    temperature          1       1       1
    rtd_weight           50      50      50"""
FILES = {
    "electra_tiny": ["tiny", "electra_tiny"],
    "cocolm_base": ["cocolm_base"],
    "cocolm_base_plus": ["cocolm_base", "cocolm_base_plus"],
    "cocolm_large_plus": ["cocolm_base", "cocolm_large_plus"],
    "cocolm_tiny": ["tiny", "cocolm_tiny"],
}


def read(name):
    """Return the values of base.yaml and `name`.yaml, and the config of their model."""
    values = {}
    for file in FILES.get(name, ("base", name)):
        values |= yaml.safe_load((CONFIGS / "pretrain" / f"{file}.yaml").read_text())["pretrain"]
    model = json.loads((CONFIGS.parent.parent / values["model_config"]).read_text())
    return values, AutoConfig.for_model(**model, vocab_size=30522)


def trunk(config):
    """Return the parameters of the body without the pooler, which ELECTRA does not have and ALE does not train."""
    with torch.device("meta"):
        body = AutoModel.from_config(config)
    return sum(value.numel() for name, value in body.named_parameters() if not name.startswith("pooler."))


@pytest.mark.parametrize(
    "table,names", [(TABLE_V, ["ale_small", "electra_small", "bert_small"]), (TABLE_6, ["electra_base", "electra_large"])]
)
def test_presets_equal_ale_table_v_and_electra_table_6(table, names):
    for column, name in enumerate(names):
        values, config = read(name)
        found = {**values, **config.to_dict(), "head_size": config.hidden_size // config.num_attention_heads}
        found["parameters"] = trunk(config) / 1e6
        for line in table.strip().splitlines():
            key, *row = line.split()
            if row[column] == "/":
                assert key not in values
                continue
            # The papers round the parameters of base and large.
            tolerance = 0.011 if key == "parameters" else 2e-3
            assert float(found[key]) == pytest.approx(float(row[column]), rel=tolerance), (name, key)
        assert values["lr_scheduler_type"] == "linear"
        assert values["optim"] == ("lamb" if table is TABLE_V else "adamw_torch_fused")
        assert values["objective"] == {"ale": "ale", "electra": "electra", "bert": "mlm"}[name.split("_")[0]]
        assert config.model_type == ("albert" if name == "ale_small" else "electra")


def test_presets_equal_coco_lm_table_6():
    for column, name in enumerate(("cocolm_base", "cocolm_base_plus", "cocolm_large_plus")):
        values, config = read(name)
        found = {**config.to_dict(), **values}
        for line in COCO_LM.strip().splitlines():
            key, *row = line.split()
            assert float(found[key]) == pytest.approx(float(row[column])), (name, key)
        assert config.intermediate_size == 4 * config.hidden_size and config.hidden_size == 64 * config.num_attention_heads
        assert (values["objective"], config.relative_attention_mode) == ("cocolm", "t5")
        assert values["lowercase"] is (name == "cocolm_base")
        # Every checkpoint of Figure 3 is kept.
        kept = values["save_total_limit"] * values["save_steps"]
        assert (kept >= values["max_steps"]) is (name == "cocolm_base")
    values, config = read("cocolm_tiny")
    assert trunk(config) < 5e6 and values["auxiliary_layers"] == 1 < config.num_hidden_layers


def test_electra_tiny_is_small():
    values, config = read("electra_tiny")
    assert trunk(config) < 5e6 and (values["objective"], config.model_type) == ("electra", "electra")


@pytest.mark.parametrize("name,heads", [("electra_small", 1), ("electra_base", 4), ("electra_large", 4), ("ale_small", 1)])
def test_auxiliary_models_have_the_sizes_of_the_papers(name, heads):
    values, config = read(name)
    auxiliary = generator_config(config, values["auxiliary_size"])
    assert (auxiliary.num_attention_heads, auxiliary.hidden_size, auxiliary.intermediate_size) == (
        heads,
        64 * heads,
        256 * heads,
    )
    assert (values["temperature"], values["rtd_weight"]) == (0.8 if "small" in name else 1.0, 50)


def test_flops_of_table_iv_correspond_to_128_texts_per_step():
    """The comment of base.yaml states this."""
    parameters = trunk(read("bert_small")[1])
    assert parameters == 13_483_008
    assert 6 * parameters * 163_000 * 1024 * 128 == pytest.approx(1.73e18, rel=2e-3)
    assert 6 * parameters * 163_000 * 128 * 128 == pytest.approx(2.16e17, rel=2e-3)
    assert 2.3e17 / (6 * parameters * 1024 * 128) == pytest.approx(21_500, rel=1e-2)


@pytest.mark.parametrize("name", ["electra_tiny", "ale_tiny"])
def test_tiny_models_have_an_auxiliary_model(name):
    config = AutoConfig.for_model(**json.loads((CONFIGS / "models" / f"{name}.json").read_text()))
    auxiliary = generator_config(config)
    assert (auxiliary.hidden_size, auxiliary.num_attention_heads, auxiliary.num_hidden_layers) == (32, 1, 2)
    assert trunk(config) < 3e6


@pytest.mark.parametrize("name", ["ale_small", "electra_small", "bert_small", "electra_base", "electra_large", *FILES])
def test_files_parse_on_top_of_base(name, tmp_path):
    files = [str(CONFIGS / "pretrain" / f"{file}.yaml") for file in FILES.get(name, ("base", name))]
    _, _, model_args, args = parse(
        *(CorpusArguments, BlockArguments, ModelArguments, PretrainArguments),
        recipe="pretrain",
        description="",
        args=["--config", *files, "--corpus", "x", "--output_dir", str(tmp_path), "--use_cpu", "true"],
    )
    values, _ = read(name)
    optim = values.get("optim", "adamw_torch_fused")
    assert (args.objective, args.optim, args.max_steps) == (values["objective"], optim, values["max_steps"])
    assert (model_args.model_config, args.warmup_steps) == (values["model_config"], values["warmup_steps"])
    trainer_args = args.for_trainer(tmp_path, 0)
    assert trainer_args.per_device_train_batch_size * trainer_args.gradient_accumulation_steps == values["total_batch_size"]
