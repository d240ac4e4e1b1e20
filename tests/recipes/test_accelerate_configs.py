"""The files for `accelerate launch --config_file`, read by accelerate. test_train_tlm_recipe.py runs some of them."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

FOLDER = Path(__file__).resolve().parent.parent.parent / "recipes" / "configs" / "accelerate"
KINDS = {
    "cpu_2": DistributedType.MULTI_GPU,
    "ddp": DistributedType.MULTI_GPU,
    "fsdp": DistributedType.FSDP,
}


def launch_arguments(name, *options):
    """Return the arguments that `accelerate launch` uses."""
    command = ["--config_file", str(FOLDER / f"{name}.yaml"), *options, "recipes/train_tlm.py"]
    return _validate_launch_command(launch_command_parser().parse_args(command))[0]


def test_every_file_is_tested():
    assert {path.stem for path in FOLDER.iterdir()} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_the_file(name):
    path = FOLDER / f"{name}.yaml"
    assert load_config_from_file(str(path)).distributed_type == KINDS[name]
    args = launch_arguments(name, *(["--num_processes", "4"] if name != "cpu_2" else []))
    assert args.num_processes == (2 if name == "cpu_2" else 4) and args.num_machines == 1
    assert (args.use_fsdp, args.use_deepspeed) == (name == "fsdp", False)
    assert args.multi_gpu == (name in ("cpu_2", "ddp")) and args.use_cpu == (name == "cpu_2")
    # accelerate accepts any key in a section; keys without an option have no effect.
    options = vars(launch_command_parser().parse_args(["x.py"]))
    for key, value in yaml.safe_load(path.read_text()).get("fsdp_config", {}).items():
        assert key in options and getattr(args, key) == value, key


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_number_of_gpus_is_required(name):
    with pytest.raises(ValueError, match="--num_processes"):
        launch_arguments(name)


def test_fsdp_settings_reach_the_plugin(monkeypatch):
    for name, value in prepare_multi_gpu_env(launch_arguments("fsdp", "--num_processes", "2")).items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True and not plugin.cpu_ram_efficient_loading
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    assert "FULL_STATE_DICT" in str(plugin.state_dict_type)
