"""What the server of `support.warm` imports, and makes, before it forks: what a process would make once for itself."""

import importlib
import os
import pkgutil
from pathlib import Path

import bm25s  # noqa: F401
import datasets  # noqa: F401
import torch
import transformers
from tqdm import tqdm
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import hf_tlm

torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # As in tests/conftest.py.
tqdm.monitor_interval = 0  # No thread of its own, which a fork would not have.
transformers.utils.logging.disable_progress_bar()
# All modules; the one that workers of sharded retrieval load makes an index, and so loads numba's kernels.
for module in pkgutil.walk_packages(hf_tlm.__path__, "hf_tlm."):
    importlib.import_module(module.name)

from hf_tlm.hub import cards  # noqa: E402
from hf_tlm.retrieval import filters  # noqa: E402
from hf_tlm.runs import price  # noqa: E402

price.SECONDS = 0.0  # One pass is enough where nobody looks at the time.
get_checkpoint_conversion_mapping("bert")
filters._kinds()
for template in Path(cards.__file__).parent.joinpath("templates").iterdir():
    cards._environment().get_template(template.name)
