"""What the server of `attacks.attack` has imported before it forks."""

import importlib
import pkgutil

import datasets  # noqa: F401
import torch
import transformers

import hf_tlm

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
for name in ("data", "tasks", "corpora", "models", "retrieval", "training", "evaluation", "influence", "hub", "analysis"):
    package = importlib.import_module(f"hf_tlm.{name}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"hf_tlm.{name}.{module.name}")
assert hf_tlm.__version__
