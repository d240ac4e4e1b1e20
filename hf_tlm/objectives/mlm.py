"""Masked language modelling."""

from __future__ import annotations

import torch

from hf_tlm.objectives.reductions import Batch, mean, read


class Mlm:
    r"""BERT's masked-LM loss (TLM, section 3.1, L_mlm).

    .. math:: L_{mlm} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde x)

    with M the masked positions and x-tilde the corrupted text.

    Reads `outputs.mlm_loss`, the sum, and `batch["mlm_labels"]` [R, S] (-100 where nothing is predicted). A batch in
    which nothing was masked has loss 0.
    """

    name, terms = "mlm", ("mlm_loss",)

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of masked positions: `{"mlm": int64 scalar}`."""
        return {self.name: (read(batch, "mlm_labels", self) != -100).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """`{"loss", "mlm_loss"}`; `counts` replaces the batch's own number of masked positions as the divisor."""
        count = (counts or self.count(batch))[self.name]
        loss = mean(outputs.mlm_loss, count)
        return {"loss": loss, "mlm_loss": loss.detach()}
