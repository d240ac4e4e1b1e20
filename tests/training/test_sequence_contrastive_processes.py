"""Sequence contrastive learning on two processes equals one process with the joined batch: loss, gradients, cosines."""

import pytest
import torch
import torch.distributed as dist

from hf_tlm.objectives import contrastive_loss
from support.training_runs import run_processes


def vectors():
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(5, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]


def share(folder, sizes):
    """Compute and save the loss, gradients and cosines of one process's share of the batch."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    start = sum(sizes[:rank])
    corrupted, cropped = (x.detach()[start : start + sizes[rank]].requires_grad_() for x in vectors())
    loss, *cosines = contrastive_loss(corrupted, cropped, 0.5)
    loss.backward()
    torch.save((loss.detach(), corrupted.grad, cropped.grad, cosines), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("sizes", [(3, 2), (5, 0)], ids=str)
def test_two_processes_equal_one_with_the_joined_batch(tmp_path, sizes):
    assert run_processes(share, str(tmp_path), sizes, processes=2) == [0, 0]
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    corrupted, cropped = vectors()
    loss, *cosines = contrastive_loss(corrupted, cropped, 0.5)
    loss.backward()
    torch.testing.assert_close(sum(part[0] for part in parts), loss.detach(), rtol=1e-12, atol=0)
    for index, whole in ((1, corrupted), (2, cropped)):
        torch.testing.assert_close(torch.cat([part[index] for part in parts]), whole.grad, rtol=1e-10, atol=1e-14)
    for which, whole in enumerate(cosines):
        torch.testing.assert_close(sum(part[3][which] for part in parts), whole)
