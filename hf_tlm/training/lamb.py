"""LAMB as its authors' code computes it, from `pytorch_optimizer` (the extra `optim`)."""

from __future__ import annotations

import math

import pytorch_optimizer


class Lamb(pytorch_optimizer.Lamb):
    """LAMB (You et al., ICLR 2020, https://arxiv.org/abs/1904.00962, algorithm 2 with phi(z) = z).

    A step computes

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  u = m / (sqrt(v) + eps) + weight_decay w
        w = w - lr ||w|| / ||u|| u

    for every tensor w with a gradient g; the ratio is 1 where a norm is 0. As in the code of the authors and of ALBERT
    (google-research/albert), m and v are not corrected for their start at 0: u is divided by its own norm, so that the
    correction would change nothing but the shares of `weight_decay` and eps in it, for the first steps. The package's own
    defaults differ: weights decay outside the ratio, ||w|| counts as 10 at most, and lr is divided by 1 - beta1^step, which
    makes the first step ten times as long.

    Parameter groups with `"adam": True` have the ratio 1.
    """

    clamp = math.inf

    def __init__(self, params, **kwargs):
        super().__init__(params, weight_decouple=False, adam_debias=True, **kwargs)
