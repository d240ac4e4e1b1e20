"""Muon for the matrices of a model's layers, AdamW for everything else, as one optimizer: torch's own two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) beside AdamW.

    Of a matrix W of A x B numbers with gradient G, momentum m:

        b = m b + (1 - m) G;  U = (1 - m) G + m b;  O = NewtonSchulz5(U / ||U||)
        W = W - lr weight_decay W - lr 0.2 sqrt(max(A, B)) O

    O is about the nearest matrix whose singular values are all 1, and the factor makes a step as long as one of AdamW,
    root mean square of its numbers about 0.2, so that AdamW's rates carry over (Liu et al. 2025,
    https://arxiv.org/abs/2502.16982, section 2.2). The iterations are in bfloat16, as in torch. A matrix without a gradient
    is left as it is, its momentum too.

    Args:
        params: parameter groups; those with `"muon": True` hold matrices.
        lr: of groups that have none. betas, eps: AdamW's.
        momentum: m.

    Raises:
        ValueError: a parameter for Muon is no matrix.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
    ):
        groups = [{"muon": False, **group} for group in params]
        matrices, others = ([group for group in groups if group["muon"] is wanted] for wanted in (True, False))
        # Both hold the very groups that this one shows to schedulers and checkpoints.
        self._muon = self._adamw = None
        if matrices:
            self._muon = torch.optim.Muon(matrices, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        if others:
            self._adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=True)
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        """One step of both; without a closure."""
        for part, wanted in ((self._muon, True), (self._adamw, False)):
            if part is not None:
                # Loading a checkpoint replaces the groups and the state.
                part.param_groups = [group for group in self.param_groups if group["muon"] is wanted]
                part.state = self.state
                part.step()
