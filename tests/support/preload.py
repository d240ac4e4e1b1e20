"""What the server of `support.warm` has imported before it forks."""

import importlib
import pkgutil

import datasets  # noqa: F401
import torch
import transformers

import hf_tlm

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
for package in (found for found in pkgutil.iter_modules(hf_tlm.__path__, "hf_tlm.") if found.ispkg):
    for module in pkgutil.iter_modules(importlib.import_module(package.name).__path__, f"{package.name}."):
        importlib.import_module(module.name)
assert hf_tlm.__version__
