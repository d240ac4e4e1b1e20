"""What a run costs, as the papers count it."""

from __future__ import annotations

from dataclasses import dataclass

# TLM paper, section 1 and Table 2.
ROBERTA_LARGE_FLOPS = 4.36e21


@dataclass(frozen=True)
class Cost:
    """Totals of a stage or a run, over all processes.

    steps: optimizer steps.
    tokens: steps x batch x sequence length, as TLM section 4.1 counts training tokens (nominal, padding included).
    real_tokens: tokens that are not padding.
    flops: 6 x tokens x parameters (TLM Table 2, after Brown et al. 2020).
    seconds: wall-clock time of training, evaluation during training included.
    """

    steps: int = 0
    tokens: int = 0
    real_tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.real_tokens + other.real_tokens,
            self.flops + other.flops,
            self.seconds + other.seconds,
        )

    def to_dict(self) -> dict[str, float]:
        """The fields and `flops_ratio`, the share of RoBERTa-Large's training FLOPs."""
        return {**self.__dict__, "flops_ratio": self.flops / ROBERTA_LARGE_FLOPS}

    @classmethod
    def from_dict(cls, values: dict[str, float]) -> Cost:
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


def training_flops(tokens: int, parameters: int) -> float:
    """6 x tokens x parameters: a forward and a backward pass (TLM Table 2, footnote 1)."""
    return 6.0 * tokens * parameters
