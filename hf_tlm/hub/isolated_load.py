"""The program that `verify` runs in a separate process, to load a repository as a machine without this package would.

It reads one JSON object from standard input: `kind` (model or dataset), `repo`, `commit`, `files` (of the repository),
`local` (a folder, or null), `config` (of a dataset, or null), `trust_remote_code` and `token` (or null). To the file that
its argument names it writes a JSON object: name of what was loaded -> {`words`, `difference`}. It must not import anything
from this package.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path, PurePosixPath

TEXT = "A fixed text of some words, by which two models are compared."
# Peft's name for the task of an adapter -> the Auto class of its base model.
ADAPTER_CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


class HiddenPackage(MetaPathFinder):
    """An import hook that makes this package look as if it were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_tlm":
            raise ModuleNotFoundError(f"No module named {name!r}: what is published must load without it", name=name)
        return None


def model_folders(files: list[str]) -> list[str]:
    """Return the folders of a repository that contain a config and safetensors; "" for its root."""
    weights = {PurePosixPath(file).parent for file in files if file.endswith(".safetensors")}
    configs = {PurePosixPath(file).parent for file in files if PurePosixPath(file).name == "config.json"}
    return sorted("" if str(folder) == "." else str(folder) for folder in weights & configs)


def load_model(name: str, folder: str, has_adapter: bool, hub: dict, trust: bool):
    """Load a model with the class that its config names; load an adapter on top of its base model."""
    import transformers

    location, code, login = {"subfolder": folder, **hub}, {"trust_remote_code": trust}, {"token": hub.get("token")}
    config = transformers.AutoConfig.from_pretrained(name, **location, **code)
    if has_adapter:
        from peft import PeftConfig, PeftModel

        peft = PeftConfig.from_pretrained(name, **location)
        # Peft has no task name for multiple choice and masked LM. The adapter contains the head of multiple choice, but not
        # that of masked LM, which is the base model's.
        default_class = "AutoModelForMultipleChoice" if peft.modules_to_save else "AutoModelForMaskedLM"
        options = {"config": config, "ignore_mismatched_sizes": True, **code, **login}
        base = getattr(transformers, ADAPTER_CLASSES.get(peft.task_type, default_class))
        base = base.from_pretrained(peft.base_model_name_or_path, revision=peft.revision, **options)
        return PeftModel.from_pretrained(base, name, **location).eval()
    (architecture,) = config.architectures
    classes = [key for key, value in getattr(config, "auto_map", {}).items() if value.endswith(f".{architecture}")]
    loader = getattr(transformers, classes[0] if classes else architecture)
    return loader.from_pretrained(name, config=config, use_safetensors=True, **location, **code)


def run_model(name: str, folder: str, files: list[str], hub: dict, trust: bool):
    """Run a model on the fixed text; return its class name, the input ids, and its first output."""
    import torch
    import transformers

    def exists(file_name):
        return str(PurePosixPath(folder, file_name)) in files

    torch.manual_seed(0)  # Weights in neither the repository nor a base model are initialised equally both times.
    model = load_model(name, folder, exists("adapter_config.json"), hub, trust)
    if any(PurePosixPath(file).name == "tokenizer_config.json" for file in files):
        subfolder = folder if exists("tokenizer_config.json") else ""
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, subfolder=subfolder, trust_remote_code=trust, **hub)
        inputs = dict(tokenizer(TEXT, truncation=True, max_length=16, return_tensors="pt"))
    else:
        inputs = {"input_ids": torch.arange(16)[None] % model.config.vocab_size}
    base_model = model.get_base_model() if exists("adapter_config.json") else model
    if type(base_model).__name__.endswith("ForMultipleChoice"):
        inputs = {key: values[:, None] for key, values in inputs.items()}  # [texts, choices, tokens]
    with torch.inference_mode():
        return type(model).__name__, inputs["input_ids"], model(**inputs)[0]


def compare_models(request: dict) -> dict[str, dict]:
    results, files = {}, request["files"]
    local = request["local"] and [p.relative_to(request["local"]).as_posix() for p in Path(request["local"]).rglob("*")]
    for folder in model_folders(files):
        hub = {"revision": request["commit"], "token": request.get("token")}
        remote = run_model(request["repo"], folder, files, hub, request["trust_remote_code"])
        name, ids, output = remote
        difference = None
        if local is not None:
            name_here, ids_here, output_here = run_model(request["local"], folder, local, {}, request["trust_remote_code"])
            same = (name, ids.tolist(), output.shape) == (name_here, ids_here.tolist(), output_here.shape)
            difference = (output - output_here).abs().max().item() if same else float("inf")
        results[folder] = {"words": f"{name}, output {tuple(output.shape)}", "difference": difference}
    return results


def digest_splits(name: str, config: str, hub_options: dict) -> dict[str, tuple[int, str]]:
    """Return split of a dataset -> (number of rows, digest of the rows)."""
    import datasets

    splits = {}
    for split, rows in datasets.load_dataset(name, config, **hub_options).items():
        digest = hashlib.sha256()
        for row in rows:
            digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        splits[str(split)] = (len(rows), digest.hexdigest())
    return splits


def compare_datasets(request: dict) -> dict[str, dict]:
    import datasets

    results, local, hub = {}, request["local"], {"revision": request["commit"], "token": request.get("token")}
    local_configs = datasets.get_dataset_config_names(local) if local else []
    for config in [request["config"]] if request["config"] else datasets.get_dataset_config_names(request["repo"], **hub):
        remote_splits = digest_splits(request["repo"], config, hub)
        local_splits = digest_splits(local, config if config in local_configs else local_configs[0], {}) if local else {}
        for split in sorted({*remote_splits, *local_splits}):
            rows = remote_splits.get(split, (0, ""))
            difference = None if not local else 0.0 if local_splits.get(split) == rows else float("inf")
            results[f"{config}/{split}"] = {"words": f"{rows[0]:,} rows", "difference": difference}
    return results


def compare(request: dict) -> dict[str, dict]:
    return compare_datasets(request) if request["kind"] == "dataset" else compare_models(request)


def main() -> None:
    sys.meta_path.insert(0, HiddenPackage())
    Path(sys.argv[1]).write_text(json.dumps(compare(json.load(sys.stdin))), encoding="utf-8")


if __name__ == "__main__":
    main()
