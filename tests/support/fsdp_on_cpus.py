"""Run a recipe under FSDP on CPUs: `accelerate launch --config_file fsdp.yaml fsdp_on_cpus.py recipe.py ...`.

accelerate 1.15 supports FSDP on accelerators only and falls back to DDP on CPUs, although torch's FSDP2 works with gloo; so
these processes pretend to have GPUs. Everything else, including the Trainer's part, runs as on GPUs.
"""

import runpy
import sys

from accelerate.state import AcceleratorState, DistributedType, PartialState

_init = AcceleratorState.__init__


def _init_with_fsdp(self, *args, **kwargs):
    if PartialState._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    _init(self, *args, **kwargs)
    assert self.distributed_type == DistributedType.FSDP and self.device.type == "cpu"


if __name__ == "__main__":
    AcceleratorState.__init__ = _init_with_fsdp
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
