"""Tiny pretrained checkpoints, and fine-tuning runs on them that take a second or two."""

from transformers import AutoConfig, AutoModel, set_seed

from hf_tlm.runs import CheckpointArguments, FinetuneArguments, finetune
from support.toys import TINY_CONFIGS, make_task

CONFIGS = {
    **TINY_CONFIGS,
    "xlnet": {"vocab_size": 120, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "pad_token_id": 0},
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAST = {
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "max_length": 32,
    "learning_rate": 1e-2,
    "total_batch_size": 8,
    "num_train_epochs": 1,
}


def pretrained(folder, tokenizer, model_type="bert", auto_class=AutoModel, **changes):
    """Save a body with random weights, large enough for [CLS] to depend on the other tokens, and its tokenizer."""
    set_seed(0)
    values = {name: value for name, value in CONFIGS[model_type].items() if name != "num_labels"}
    model = auto_class.from_config(AutoConfig.for_model(model_type, **{"initializer_range": 0.2, **values, **changes}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def go(folder, base, task=None, model=None, **changes):
    args = FinetuneArguments(output_dir=str(folder), **{**FAST, **changes})
    return finetune(task or make_task(), CheckpointArguments(model_name_or_path=str(base), **(model or {})), args)


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
