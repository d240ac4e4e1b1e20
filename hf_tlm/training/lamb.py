"""The LAMB optimizer as its authors' code computes it, based on `pytorch_optimizer` (the extra `optim`)."""

from __future__ import annotations

import math

import pytorch_optimizer


class Lamb(pytorch_optimizer.Lamb):
    """LAMB (You et al., ICLR 2020, https://arxiv.org/abs/1904.00962, algorithm 2 with phi(z) = z).

    A step computes

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  u = m / (sqrt(v) + eps) + weight_decay w
        w = w - lr ||w|| / ||u|| u

    for every tensor w with gradient g; the ratio ||w|| / ||u|| is 1 if a norm is 0. As in the code of the authors and of
    ALBERT (google-research/albert), m and v have no bias correction: u is divided by its own norm, so the correction would
    only change the shares of `weight_decay` and eps in it, in the first steps. The defaults of the package differ: weight
    decay is outside the ratio, ||w|| is clamped at 10, and lr is divided by 1 - beta1^step, which makes the first step ten
    times as long.

    Parameter groups with `"adam": True` have the ratio 1.
    """

    clamp = math.inf

    def __init__(self, params, **kwargs):
        super().__init__(params, weight_decouple=False, adam_debias=True, **kwargs)
