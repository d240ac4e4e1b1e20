"""FSDP2 on two CPU processes, for every family: equal gradients without sharding, also for tied weights and unused
heads."""

import socket
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoConfig, set_seed

from hf_tlm.models import TlmModel, gather_fsdp
from support.toys import TINY_CONFIGS

PROCESSES = 2


def loss_of(model, rank, step):
    """Return a loss of both heads, of the masked-LM head, or of the classifier, on each process's own texts."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    input_ids = torch.randint(5, 120, (3, 10), generator=generator)
    mlm_labels = torch.full_like(input_ids, -100)
    mlm_labels[:, 1:3] = 7 + rank
    heads = [{"mlm_labels": mlm_labels, "labels": torch.tensor([0, 1, 2])}, {"mlm_labels": mlm_labels}, {}]
    output = model(input_ids, torch.ones_like(input_ids), **heads[step])
    terms = [] if output.mlm_loss is None else [output.mlm_loss]
    if output.logits is not None:
        terms.append(F.cross_entropy(output.logits, torch.tensor([0, 1, 2])))
    return sum(terms)


def shard(model):
    """Shard with accelerate's own function, with the settings of `recipes/configs/accelerate/fsdp.yaml`."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    state = SimpleNamespace(fsdp_plugin=plugin)
    return fsdp2_prepare_model(SimpleNamespace(state=state, mixed_precision="no", is_main_process=True), model)


def check_family(model_type, rank, changes):
    set_seed(0)
    config = AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], **changes})
    model = TlmModel.from_config(config).eval()
    reference = deepcopy(model)
    model = shard(model)
    units = {type(m).__mro__[2].__name__ for m in model.modules() if type(m).__name__.startswith("FSDP")}
    assert model._no_split_modules < units, f"{model_type}: the layers are not sharded one by one: {units}"
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for step in range(3):
        loss_of(model, rank, step).backward()
        (sum(loss_of(reference, r, step) for r in range(PROCESSES)) / PROCESSES).backward()
        expected = {name: p.grad for name, p in reference.named_parameters()}
        for name, parameter in model.named_parameters():
            gradient = None if parameter.grad is None else parameter.grad.full_tensor()
            wanted = expected[name]
            if gradient is None or wanted is None:  # FSDP may give an unused parameter a gradient of 0.
                assert all(g is None or not g.any() for g in (gradient, wanted)), (model_type, step, name)
            else:
                torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5, msg=f"{model_type} {step} {name}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    copy = gather_fsdp(model)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(copy.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=f"{model_type} {name}")
    assert copy.num_parameters() == reference.num_parameters() == model.num_parameters()


def work(rank, port, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES)
    for model_type in TINY_CONFIGS:
        check_family(model_type, rank, {})
    check_family("bert", rank, {"tie_word_embeddings": False})
    dist.destroy_process_group()
    results.put(rank)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_sharded_models_have_equal_gradients():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(work, (port, results), nprocs=PROCESSES)
    assert {results.get() for _ in range(PROCESSES)} == set(range(PROCESSES))


def test_gather_fsdp_returns_an_unsharded_model_itself():
    model = TlmModel.from_config(AutoConfig.for_model("bert", **TINY_CONFIGS["bert"]))
    assert gather_fsdp(model) is model
