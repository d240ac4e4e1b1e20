"""What the Trainer's optimizers lack: LAMB, Muon, rates that fall from the top to the bottom, averages of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames

from hf_tlm.errors import ArgumentsError
from hf_tlm.utils.process import uses_fsdp
from hf_tlm.utils.shown import suggestion

LAMB, MUON = "lamb", "muon"
# Those that are not the Trainer's.
OWN = (LAMB, MUON)
# Of a checkpoint: the weights that training goes on from, where those of the model are averaged ones.
RAW_WEIGHTS = "raw_weights.safetensors"


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


def check_optimizer(args: TrainingArguments) -> None:
    """Raise an ArgumentsError where there is no such optimizer, or one of `OWN` does not take what is given."""
    known = [*OWN, *(name.value for name in OptimizerNames)]
    if args.optim not in known:
        hint = suggestion(str(args.optim).lower(), known) or f" Take {', '.join(OWN)}, adamw_torch, ..."
        raise ArgumentsError(f"optim: there is no {str(args.optim)!r:.60}.{hint}")
    if args.optim == LAMB and find_spec("pytorch_optimizer") is None:
        raise ArgumentsError("optim lamb comes from the package pytorch_optimizer: pip install 'hf-tlm[optim]'.")
    if args.optim in OWN and args.optim_args:
        rates = "learning_rate" if args.optim == LAMB else "learning_rate, muon_learning_rate"
        raise ArgumentsError(
            f"optim {args.optim} takes {rates}, weight_decay, adam_beta1, adam_beta2 and adam_epsilon, no optim_args; "
            f"received {args.optim_args!r}."
        )
    if args.optim == MUON and uses_fsdp(args):
        raise ArgumentsError(
            "optim muon makes the singular values of whole matrices alike, and with FSDP a process holds pieces of them. "
            "Use DDP (the preset accelerate/ddp), or another optim."
        )


def check_adapted(args: TrainingArguments, use_peft: bool) -> None:
    """Raise an ArgumentsError if Muon is to train an adapter."""
    if use_peft and args.optim == MUON:
        raise ArgumentsError(
            "optim muon is for whole matrices, and use_peft trains low-rank factors of their changes. Use an AdamW, or "
            "leave use_peft out."
        )


def grouped_optimizer(
    args: TrainingArguments,
    model: nn.Module,
    decaying: Collection[str],
    trainers_choice: Callable[[TrainingArguments, nn.Module], tuple[Any, dict[str, Any]]],
    *,
    layerwise_lr_decay: float,
    muon_learning_rate: float | None,
) -> tuple[Any, dict[str, Any]]:
    """The optimizer's class and arguments, with `params` where the groups are not the Trainer's two.

    Args:
        args: `optim`, and what the optimizer takes.
        decaying: names of the parameters that weight decay is for.
        trainers_choice: `Trainer.get_optimizer_cls_and_kwargs`.
        layerwise_lr_decay: see `parameter_groups`.
        muon_learning_rate: with optim muon; None: `learning_rate`.

    Raises:
        ArgumentsError: `layerwise_lr_decay` with an optimizer that makes groups of its own.
    """
    if args.optim in OWN:
        betas = (args.adam_beta1, args.adam_beta2)
        cls, kwargs = _own(args.optim), {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    else:
        cls, kwargs = trainers_choice(args, model)
        if layerwise_lr_decay == 1:
            return cls, kwargs
        if not isinstance(cls, type) or {"params", "model", "optimizer_dict"} & kwargs.keys():
            raise ArgumentsError(
                f"optim {args.optim} divides the parameters in its own way, so layerwise_lr_decay has no effect. Use an "
                "AdamW, lamb or muon, or leave layerwise_lr_decay at 1."
            )
    groups = parameter_groups(
        model,
        decaying,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        layerwise_lr_decay=layerwise_lr_decay,
        # As in the authors' code: with a ratio of norms, a bias that starts at 0 would stay near it.
        others={"adam": True} if args.optim == LAMB else {},
        muon_learning_rate=(muon_learning_rate or args.learning_rate) if args.optim == MUON else None,
    )
    return cls, kwargs | {"params": groups}


def _own(optim: str) -> type:
    if optim == MUON:
        return Muon
    from hf_tlm.training.lamb import Lamb

    return Lamb


def parameter_groups(
    model: nn.Module,
    decaying: Collection[str],
    *,
    learning_rate: float,
    weight_decay: float,
    layerwise_lr_decay: float = 1.0,
    others: Mapping[str, Any] = MappingProxyType({}),
    muon_learning_rate: float | None = None,
) -> list[dict[str, Any]]:
    """Every trainable parameter in one group: learning rate x layerwise_lr_decay ^ its distance from the top.

    ELECTRA fine-tunes with 0.8 (small, base) and 0.9 (large) (Clark et al., ICLR 2020, appendix B). Its released code
    lowers everything below the head by one power more than this.

    Args:
        decaying: names of the parameters that weight decay is for.
        others: further entries of the groups that do not decay.
        muon_learning_rate: the matrices of the layers have groups of their own, with this rate and `"muon": True`, after
            the others. None: they have none.

    Returns:
        Groups for an optimizer: `params`, `lr`, `weight_decay`; those of the full rate first, since the Trainer logs the
        first group's.
    """
    distances = distances_from_top(model) if layerwise_lr_decay != 1 else {}
    matrices: Collection[str] = () if muon_learning_rate is None else layer_matrices(model)
    groups: dict[tuple[bool, int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            distance = distances.get(name, 0)
            groups.setdefault((name in matrices, distance, name not in decaying), []).append(parameter)
    return [
        {
            "params": groups[muon, distance, plain],
            "lr": (muon_learning_rate if muon and muon_learning_rate else learning_rate) * layerwise_lr_decay**distance,
            **({"weight_decay": 0.0, **others} if plain else {"weight_decay": weight_decay}),
            **({"muon": True} if muon else {}),
        }
        for muon, distance, plain in sorted(groups)
    ]


def _bodies(model: nn.Module) -> Iterator[tuple[str, str, nn.ModuleList]]:
    """The innermost stock models around a list of layers: prefix of the body, of its layers, and these."""
    for prefix, body in model.named_modules():
        if not isinstance(body, PreTrainedModel) or any(isinstance(m, PreTrainedModel) for m in list(body.modules())[1:]):
            continue
        found = next(((name, module) for name, module in body.named_modules() if isinstance(module, nn.ModuleList)), None)
        if found is not None:
            yield f"{prefix}.", f"{prefix}.{found[0]}.", found[1]


def layer_matrices(model: nn.Module) -> set[str]:
    """Names of the weights of linear maps in the layers of the bodies: what Muon is for; an ArgumentsError without any."""
    starts = tuple(start for _, start, _ in _bodies(model))
    matrices = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(starts)
    }
    odd = [name for name, value in model.named_parameters() if name.startswith(starts) and value.dim() > 2]
    if odd or not matrices:
        raise ArgumentsError(
            "optim muon is for layers whose weights are matrices; "
            + (f"{odd[0]} has more dimensions. " if odd else "no layers were found in this model. ")
            + "Use another optim."
        )
    return matrices


def distances_from_top(model: nn.Module) -> dict[str, int]:
    """Return how deep parameters lie in the bodies of `model`, counted from the top.

    It is 1 for a body's last layer, 2 for the one before, ..., and one more than the number of layers for its embeddings.
    Heads, poolers and a last normalisation are 0. Layers that ALBERT shares are one.

    Of a parameter that two bodies share the first one's place counts.
    """
    distances = dict.fromkeys((name for name, _ in model.named_parameters()), 0)
    for body, start, layers in _bodies(model):
        # Every family registers what lies below the layers before them.
        below = True
        for name in distances:
            if name.startswith(start):
                below = False
                distances[name] = len(layers) - int(name.removeprefix(start).split(".")[0])
            elif below and name.startswith(body):
                distances[name] = len(layers) + 1
    return distances


class AveragedWeights(TrainerCallback):
    """Exponential moving average of the weights that a run trains (Polyak and Juditsky, 1992, with a decay).

    After step t (from 1) average = d average + (1 - d) weight, d = min(decay, (1 + t) / (10 + t)), so that the random first
    steps are soon forgotten. They start as the weights are when training begins. Processes that hold the same weights hold
    the same averages.

    Args:
        decay: share of the average that a step leaves.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.model: nn.Module | None = None
        # Empty: none are kept, before training and after it.
        self._averages: dict[str, torch.Tensor] = {}

    def _weights(self) -> dict[str, nn.Parameter]:
        assert self.model is not None  # `start` comes before all else.
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def start(self, model: nn.Module) -> None:
        """From the weights of `model` as they are."""
        self.model = model
        self._averages = {name: weight.detach().clone() for name, weight in self._weights().items()}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if not self._averages:  # A checkpoint was not read.
            self.start(model)

    @torch.no_grad()
    def on_step_end(self, args, state, control, **kwargs):
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        get_ema_multi_avg_fn(decay)([*self._averages.values()], [*self._weights().values()], state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if not args.load_best_model_at_end:  # Which would be averages already.
            self._exchange()
        self._averages = {}

    @torch.no_grad()
    def _exchange(self) -> None:
        """What is in the model is kept, and the other way round."""
        for name, weight in self._weights().items():
            kept = self._averages[name].clone()
            self._averages[name].copy_(weight)
            weight.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While training, the model has the averages in the block."""
        if not self._averages:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def save(self, checkpoint: Path) -> None:
        """Write the raw weights beside the averages, which the checkpoint has as its model's."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self._weights().items()}
        save_file(weights, checkpoint / RAW_WEIGHTS)

    @torch.no_grad()
    def load(self, model: nn.Module, checkpoint: Path) -> None:
        """Take the averages from `model`, into which the checkpoint was read, and give it the raw weights."""
        self.start(model)
        raw = load_file(checkpoint / RAW_WEIGHTS)
        for name, weight in self._weights().items():
            weight.copy_(raw[name])
