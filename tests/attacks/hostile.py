"""Hostile repositories: what an attacker could put on the Hub to run code, publish, write or call other hosts."""

import json
import pickle
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, set_seed

from support.toys import TINY_CONFIGS

LABELS = ["down", "none", "up"]
# Settings that `finetuned.json` must not be able to change.
MACHINE = {
    **{"push_to_hub": True, "hub_model_id": "alice/stolen", "hub_private_repo": False, "hub_strategy": "every_save"},
    **{"output_dir": "elsewhere", "logging_dir": "elsewhere", "report_to": "all", "run_name": "theirs"},
    **{"dataloader_num_workers": 60, "torch_compile": True, "deepspeed": "theirs.json", "use_cpu": False},
    **{"per_device_eval_batch_size": 1 << 30, "trust_remote_code": True, "debug": "underflow_overflow"},
}


class Canary:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def pickled(path: Path) -> bytes:
    return pickle.dumps(Canary(path))


def torch_pickled(path: Path, folder: Path) -> bytes:
    """Return a pickled canary in the format of `torch.save`."""
    torch.save({"state": Canary(path)}, folder / "pickled")
    return (folder / "pickled").read_bytes()


def finetuned(**changes) -> dict:
    """Return the content of `finetuned.json` with changes; "arguments" are added to the usual ones."""
    arguments = {"max_length": 32, "doc_stride": 8, "max_query_length": 8, "max_answer_length": 8, "n_best": 5}
    arguments |= {"null_threshold": None, "option_apart": False, "crf": False} | changes.pop("arguments", {})
    task = {"name": "toy", "text_columns": ["text"], "label_column": "label", "kind": "classification"}
    return {"task": task | changes.pop("task", {}), "label_names": LABELS, "arguments": arguments, **changes}


def classifier(folder: Path, tokenizer, saved: dict) -> Path:
    """Save a fine-tuned folder."""
    set_seed(0)
    labels = dict(enumerate(LABELS))
    config = AutoConfig.for_model(
        "bert", **{**TINY_CONFIGS["bert"], "id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "finetuned.json").write_text(json.dumps(saved))
    return folder


def masked_lm(folder: Path, tokenizer) -> Path:
    set_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"])).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapter(folder: Path, tokenizer, base: str, **changes) -> Path:
    """Save a fine-tuned folder with an adapter, and change values of its adapter_config.json."""
    classifier(folder, tokenizer, finetuned())
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    config = LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"], task_type="SEQ_CLS")
    get_peft_model(model, config).save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    values = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**values, "base_model_name_or_path": base, **changes}))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
