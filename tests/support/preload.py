"""Imports and objects that the server of `support.warm` prepares before it forks, as each process would need them."""

import importlib
import pkgutil
from pathlib import Path

import bm25s  # noqa: F401
import datasets.io.parquet
import onnx  # noqa: F401
import torch
import transformers
from datasets.streaming import extend_module_for_streaming
from tqdm import tqdm
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import hf_tlm
from support import quick

torch.set_num_threads(1)
quick.change()
tqdm.monitor_interval = 0  # It would have a thread, which does not survive a fork.
transformers.utils.logging.disable_progress_bar()
# Import all modules; the one for workers of sharded retrieval also builds an index, which compiles numba's kernels.
for module in pkgutil.walk_packages(hf_tlm.__path__, "hf_tlm."):
    importlib.import_module(module.name)

from hf_tlm.hub import cards  # noqa: E402
from hf_tlm.retrieval import filters  # noqa: E402

get_checkpoint_conversion_mapping("bert")
filters._code_point_kinds()
for kind in ("csv", "json", "parquet", "text"):
    extend_module_for_streaming(f"datasets.packaged_modules.{kind}.{kind}", datasets.DownloadConfig())
for template in Path(cards.__file__).parent.joinpath("templates").iterdir():
    cards._environment().get_template(template.name)
