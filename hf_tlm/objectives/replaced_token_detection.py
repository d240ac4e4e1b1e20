"""Replaced token detection."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_tlm.objectives.reductions import CORRUPTION_SHARES, Batch, corruption_shares, mean, read, share


class ReplacedTokenDetection:
    r"""ELECTRA's loss of the main transformer (Clark et al. 2020, section 2, L_Disc).

    .. math:: L_{RTD} = -\frac{1}{T} \sum_t \left[ r_t \log \sigma(z_t) + (1 - r_t) \log (1 - \sigma(z_t)) \right]

    over all T tokens that are not padding, with r = 1 where the token was replaced by another one. A drawn token that
    equals the original counts as original.

    Reads `outputs.rtd_logits`, `outputs.replaced` [T], `outputs.guesses`, `batch["attention_mask"]` and `mlm_labels`.
    """

    name = "rtd"
    terms = ("rtd_loss", "rtd_accuracy_replaced", "rtd_accuracy_original", *CORRUPTION_SHARES)

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of real tokens: `{"rtd": int64 scalar}`."""
        return {self.name: read(batch, "attention_mask", self).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, and accuracies.

        These are `{"loss", "rtd_loss"}`, and pairs (sum, count) of shares: `rtd_accuracy_replaced`, `rtd_accuracy_original`,
        and those of `corruption_shares`.

        `counts` replaces the batch's own number of tokens as the divisor of the loss.
        """
        count = (counts or self.count(batch))[self.name]
        replaced = outputs.replaced
        logits = outputs.rtd_logits.to(torch.promote_types(outputs.rtd_logits.dtype, torch.float32))
        total = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="sum")
        loss = mean(total, count)
        right = (logits > 0) == replaced
        return {
            "loss": loss,
            "rtd_loss": loss.detach(),
            "rtd_accuracy_replaced": share((right & replaced).sum(), replaced.sum()),
            "rtd_accuracy_original": share((right & ~replaced).sum(), (~replaced).sum()),
            **corruption_shares(outputs, batch),
        }
