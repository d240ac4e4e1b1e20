"""What the server of `support.warm` imports, and makes, before it forks: what a process would make once for itself."""

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
tqdm.monitor_interval = 0  # No thread of its own, which a fork would not have.
transformers.utils.logging.disable_progress_bar()
# All modules; the one that workers of sharded retrieval load makes an index, and so loads numba's kernels.
for module in pkgutil.walk_packages(hf_tlm.__path__, "hf_tlm."):
    importlib.import_module(module.name)

from hf_tlm.hub import cards  # noqa: E402
from hf_tlm.retrieval import filters  # noqa: E402

get_checkpoint_conversion_mapping("bert")
filters._kinds()
for kind in ("csv", "json", "parquet", "text"):
    extend_module_for_streaming(f"datasets.packaged_modules.{kind}.{kind}", datasets.DownloadConfig())
for template in Path(cards.__file__).parent.joinpath("templates").iterdir():
    cards._environment().get_template(template.name)
