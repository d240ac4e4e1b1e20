"""Losses on unlabelled texts: masked language modelling, replaced token detection, corrective language modelling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from hf_tlm.errors import HfTlmError
from hf_tlm.models.linear_cross_entropy import MAX_LOGITS, linear_cross_entropy
from hf_tlm.objectives.terms import CORRUPTION_SHARES, Batch, corruption_shares, mean, read, share


class Mlm:
    r"""BERT's masked-LM loss (TLM, section 3.1, L_mlm).

    .. math:: L_{mlm} = -\frac{1}{|M|} \sum_{i \in M} \log p(x_i \mid \tilde x)

    with M the masked positions and x-tilde the corrupted text.

    Reads `outputs.mlm_loss`, the sum, and `batch["mlm_labels"]` [R, S] (-100 where nothing is predicted). A batch in
    which nothing was masked has loss 0.
    """

    name, terms = "mlm", ("mlm_loss",)

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of masked positions, `{"mlm": int64 scalar}`."""
        return {self.name: (read(batch, "mlm_labels", self) != -100).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return `{"loss", "mlm_loss"}`; `counts` replaces the batch's own number of masked positions as the divisor."""
        count = (counts or self.count(batch))[self.name]
        loss = mean(outputs.mlm_loss, count)
        return {"loss": loss, "mlm_loss": loss.detach()}


class ReplacedTokenDetection:
    r"""ELECTRA's replaced token detection, the loss of the main transformer (Clark et al. 2020, section 2, L_Disc).

    .. math:: L_{RTD} = -\frac{1}{T} \sum_t \left[ r_t \log \sigma(z_t) + (1 - r_t) \log (1 - \sigma(z_t)) \right]

    over all T tokens that are not padding, with r = 1 where the token was replaced by another one. A sampled token that
    equals the original counts as original.

    Reads `outputs.rtd_logits`, `outputs.replaced` [T], `outputs.guesses`, `batch["attention_mask"]` and `mlm_labels`.
    """

    name = "rtd"
    terms = ("rtd_loss", "rtd_accuracy_replaced", "rtd_accuracy_original", *CORRUPTION_SHARES)

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of tokens that are not padding, `{"rtd": int64 scalar}`."""
        return {self.name: read(batch, "attention_mask", self).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return the loss of a batch and the accuracy of its predictions.

        The entries are `{"loss", "rtd_loss"}` and, as pairs (sum, count), `rtd_accuracy_replaced`, `rtd_accuracy_original`
        and those of `corruption_shares`.

        `counts` replaces the batch's own number of tokens as the divisor of the loss.
        """
        count = (counts or self.count(batch))[self.name]
        replaced = outputs.replaced
        logits = outputs.rtd_logits.to(torch.promote_types(outputs.rtd_logits.dtype, torch.float32))
        total = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="sum")
        loss = mean(total, count)
        correct = (logits > 0) == replaced
        return {
            "loss": loss,
            "rtd_loss": loss.detach(),
            "rtd_accuracy_replaced": share((correct & replaced).sum(), replaced.sum()),
            "rtd_accuracy_original": share((correct & ~replaced).sum(), (~replaced).sum()),
            **corruption_shares(outputs, batch),
        }


def copy_loss(copy_logits: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Return the sum of -log p_copy(y), y = 1 where the token is original (equation 2), a scalar in float32 or wider.

    Args:
        copy_logits: float [T], w^T h; original: bool [T].
    """
    logits = copy_logits.to(torch.promote_types(copy_logits.dtype, torch.float32))
    return F.binary_cross_entropy_with_logits(logits, original.to(logits.dtype), reduction="sum")


def copy_mixture(log_p: torch.Tensor, copy_logits: torch.Tensor, copied: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return -log p_LM of equation 2 and its derivative with respect to `log_p`, float [M] each.

    With z = w^T h, log p_copy(1) = log sigmoid(z) and log p_copy(0) = log sigmoid(-z). The two terms of the mixture are
    added in log space, so that no exponential can overflow.

    Args:
        log_p: float [M], log-softmax of the LM head at the original token; copy_logits: float [M], z; copied: bool [M],
            True where the token in the input is the original.
    """
    corrected = F.logsigmoid(-copy_logits) + log_p
    either = torch.logaddexp(F.logsigmoid(copy_logits), corrected)
    mixture = torch.where(copied, either, corrected)
    return -mixture, -torch.exp(corrected - mixture)


def corrected_tokens(logits: torch.Tensor, copy_logits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the most likely token under p_LM of equation 2 at each position, int64 [M].

    Args:
        logits: float [M, V], of the LM head; copy_logits: float [M], w^T h; input_ids: int64 [M].
    """
    best = logits.argmax(dim=-1)
    replaced, normalizer = F.logsigmoid(-copy_logits), logits.logsumexp(dim=-1)

    def corrected(tokens: torch.Tensor) -> torch.Tensor:
        return replaced + logits.gather(1, tokens[:, None]).squeeze(1) - normalizer

    keeps_input = torch.logaddexp(F.logsigmoid(copy_logits), corrected(input_ids)) >= corrected(best)
    return torch.where(keeps_input, input_ids, best)


def corrective_lm_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    copy_logits: torch.Tensor,
    labels: torch.Tensor,
    input_ids: torch.Tensor,
    *,
    copy: bool = True,
    stop_gradient: bool = True,
    max_logits: int = MAX_LOGITS,
    visit: Callable[[slice, torch.Tensor], None] | None = None,
) -> torch.Tensor:
    """Return L_LM of equation 2, summed over M tokens, a scalar in float32 or wider. It can be differentiated once.

    Args:
        hidden: float [M, H]; weight: float [V, H] and bias: float [V] or None, of the LM head.
        copy_logits: float [M], w^T h.
        labels: int64 [M], the original tokens; input_ids: int64 [M], the tokens that the main transformer reads.
        copy: False: p_LM is the softmax alone.
        stop_gradient: True: no gradient reaches `copy_logits`.
        max_logits, visit: see `linear_cross_entropy`.
    """
    if not copy:
        return linear_cross_entropy(hidden, weight, bias, labels, max_logits=max_logits, visit=visit)
    copied = labels == input_ids
    logits = copy_logits.to(torch.promote_types(copy_logits.dtype, torch.float32))
    detached, log_p = logits.detach(), torch.empty_like(logits)

    def outer(rows: slice, block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_p[rows] = block
        return copy_mixture(block, detached[rows], copied[rows])

    loss = linear_cross_entropy(hidden, weight, bias, labels, max_logits=max_logits, visit=visit, outer=outer)
    if stop_gradient:
        return loss
    # The same value as a function of the copy logits: it adds 0 to the loss, and its gradient.
    copy_term = copy_mixture(log_p, logits, copied)[0].sum()
    return loss + copy_term - copy_term.detach()


class CorrectiveLm:
    r"""COCO-LM's token-level loss (Meng et al., NeurIPS 2021, section 3.3, equation 2).

    .. math::
        L_{CLM} = \lambda_{copy} L_{copy} + L_{LM}, \quad
        L_{copy} = -\frac{1}{T} \sum_t \log p_{copy}(y_t \mid h_t), \quad
        L_{LM} = -\frac{1}{|M|} \sum_{i \in M} \log \left[ y_i \, p_{copy}(1 \mid h_i)
        + p_{copy}(0 \mid h_i) \, \mathrm{softmax}(E h_i + b)_{x_i} \right]

    with y = 1 where the input token is the original x, over all T tokens that are not padding and the masked positions M;
    p_copy(1 | h) = sigmoid(w^T h) is a constant in L_LM. The copy target is the opposite of replaced token detection's.

    Reads `outputs.copy_logits` float [T], w^T h of the tokens that are not padding, row by row; `outputs.replaced` bool
    [T], 1 - y; `outputs.lm_loss`, the sum over M, and `outputs.lm_right` bool [T], which the model computes by calling
    `lm_loss` of this object; `outputs.guesses`, of the auxiliary model; `batch["attention_mask"]` and
    `batch["mlm_labels"]` [R, S] (-100 outside M).

    The rows of Table 3, "CLM Setup": "CLM w/o. Copy" is `copy=False`, "CLM w/o. Stop-grad" is `stop_gradient=False`, and
    "All-Token LM Only" is `lambda_copy=0, stop_gradient=False, all_tokens=True`.

    Args:
        lambda_copy: weight of the copy loss (50 in the paper).
        copy: False: p_LM is the softmax alone, and the copy loss is a separate task.
        stop_gradient: False: L_LM trains the copy head too.
        all_tokens: True: L_LM is over all T tokens.

    Raises:
        HfTlmError: the weight is negative or not finite; or nothing would train the copy head that p_LM uses.
    """

    name = "clm"
    terms = (
        *("copy_loss", "lm_loss", "copy_accuracy_replaced", "copy_accuracy_original"),
        *("lm_accuracy_replaced", "lm_accuracy_original", *CORRUPTION_SHARES),
    )

    def __init__(
        self, lambda_copy: float = 50.0, *, copy: bool = True, stop_gradient: bool = True, all_tokens: bool = False
    ):
        if not 0 <= lambda_copy < math.inf:
            raise HfTlmError(f"lambda_copy must be finite and 0 or more; received {lambda_copy}.")
        if lambda_copy == 0 and copy and stop_gradient:
            raise HfTlmError(
                "lambda_copy 0 with stop_gradient leaves the copy head untrained: pass stop_gradient=False, or copy=False."
            )
        self.lambda_copy, self.copy, self.stop_gradient, self.all_tokens = lambda_copy, copy, stop_gradient, all_tokens

    def lm_loss(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        copy_logits: torch.Tensor,
        labels: torch.Tensor,
        input_ids: torch.Tensor,
        masked: torch.Tensor,
        max_logits: int = MAX_LOGITS,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed LM loss of a batch, and the tokens that p_LM predicts correctly, bool [T].

        T are the tokens of the batch that are not padding. The loss, see `corrective_lm_loss`, is over those in M, or over
        all with `all_tokens`; it becomes `outputs.lm_loss`. A token is predicted correctly where p_LM is largest at the
        original; the mask is False where p_LM is not computed.

        Args:
            hidden: float [T, H]; copy_logits: float [T]; labels, input_ids: int64 [T]; masked: bool [T], True in M.
        """
        # Indices instead of a mask: a GPU synchronises once for them, not with every tensor that is indexed.
        chosen = (torch.ones_like(masked) if self.all_tokens else masked).nonzero().squeeze(1)
        rows = (hidden, copy_logits, labels, input_ids)
        hidden, copy_logits, labels, input_ids = rows if self.all_tokens else (each[chosen] for each in rows)
        detached, predicted = copy_logits.detach().float(), torch.empty_like(labels)

        def predict(block: slice, logits: torch.Tensor) -> None:
            if self.copy:
                predicted[block] = corrected_tokens(logits, detached[block], input_ids[block])
            else:
                predicted[block] = logits.argmax(dim=-1)

        loss = corrective_lm_loss(
            *(hidden, weight, bias, copy_logits, labels, input_ids),
            copy=self.copy,
            stop_gradient=self.stop_gradient,
            max_logits=max_logits,
            visit=predict,
        )
        return loss, torch.zeros_like(masked).scatter(0, chosen, predicted == labels)

    def count(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the numbers of tokens that the means are over, `{"copy", "lm"}`, int64 scalars."""
        num_tokens = read(batch, "attention_mask", self).sum()
        return {"copy": num_tokens, "lm": num_tokens if self.all_tokens else (read(batch, "mlm_labels", self) != -100).sum()}

    def __call__(self, outputs, batch: Batch, counts: Batch | None = None) -> dict[str, torch.Tensor]:
        """Return the losses of a batch and the accuracies of both heads (Figure 8).

        The entries are `{"loss", "copy_loss", "lm_loss"}` and, as pairs (sum, count), `copy_accuracy_replaced`,
        `copy_accuracy_original`, `lm_accuracy_replaced` and `lm_accuracy_original` (of masked tokens, by the most likely
        token under p_LM), and those of `corruption_shares`.

        `counts` replaces the batch's own numbers of tokens as the divisors of the losses.
        """
        counts = counts or self.count(batch)
        copy = mean(copy_loss(outputs.copy_logits, ~outputs.replaced), counts["copy"])
        lm = mean(outputs.lm_loss, counts["lm"])
        replaced, lm_right = outputs.replaced, outputs.lm_right
        masked = (read(batch, "mlm_labels", self) != -100)[read(batch, "attention_mask", self).bool()]
        kept = masked & ~replaced
        correct = (outputs.copy_logits <= 0) == replaced
        return {
            "loss": self.lambda_copy * copy + lm if self.lambda_copy else lm,
            "copy_loss": copy.detach(),
            "lm_loss": lm.detach(),
            "copy_accuracy_replaced": share((correct & replaced).sum(), replaced.sum()),
            "copy_accuracy_original": share((correct & ~replaced).sum(), (~replaced).sum()),
            "lm_accuracy_replaced": share((lm_right & replaced).sum(), replaced.sum()),
            "lm_accuracy_original": share((lm_right & kept).sum(), kept.sum()),
            **corruption_shares(outputs, batch),
        }
