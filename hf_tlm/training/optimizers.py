"""Additions to the Trainer's optimizers: LAMB, Muon, layer-wise learning rate decay, and averages of the weights."""

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
# Optimizers that the Trainer does not have.
OWN = (LAMB, MUON)
# File of a checkpoint with averaged weights: the raw weights, from which training continues.
RAW_WEIGHTS = "raw_weights.safetensors"


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for matrices, and AdamW for other parameters.

    For a matrix W of shape [A, B] with gradient G and momentum m:

        b = m b + (1 - m) G;  U = (1 - m) G + m b;  O = NewtonSchulz5(U / ||U||)
        W = W - lr weight_decay W - lr 0.2 sqrt(max(A, B)) O

    O approximates the nearest matrix whose singular values are all 1. The factor gives steps the size of AdamW's, a root
    mean square of about 0.2 per element, so that AdamW's learning rates can be used (Liu et al. 2025,
    https://arxiv.org/abs/2502.16982, section 2.2). The iterations are in bfloat16, as in torch. A matrix without a gradient
    does not change, nor does its momentum.

    Args:
        params: parameter groups; those with `"muon": True` hold matrices.
        lr: learning rate of groups that have none.
        betas, eps: AdamW's.
        momentum: m.

    Raises:
        ValueError: a parameter for Muon is not a matrix.
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
        matrices, others = ([group for group in groups if group["muon"] is use_muon] for use_muon in (True, False))
        # Both share the group objects that schedulers and checkpoints see.
        self._muon = self._adamw = None
        if matrices:
            self._muon = torch.optim.Muon(matrices, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        if others:
            self._adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=True)
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        """Take one step of both optimizers; `closure` is ignored."""
        for optimizer, use_muon in ((self._muon, True), (self._adamw, False)):
            if optimizer is not None:
                # Loading a checkpoint replaces the groups and the state.
                optimizer.param_groups = [group for group in self.param_groups if group["muon"] is use_muon]
                optimizer.state = self.state
                optimizer.step()


def check_optimizer(args: TrainingArguments) -> None:
    """Check that the optimizer exists and, for one of `OWN`, accepts its options, or raise an ArgumentsError."""
    optimizer_names = [*OWN, *(name.value for name in OptimizerNames)]
    if args.optim not in optimizer_names:
        hint = suggestion(str(args.optim).lower(), optimizer_names) or f" Choose {', '.join(OWN)}, adamw_torch, ..."
        raise ArgumentsError(f"optim: unknown optimizer {str(args.optim)!r:.60}.{hint}")
    if args.optim == LAMB and find_spec("pytorch_optimizer") is None:
        raise ArgumentsError("optim lamb needs the package pytorch_optimizer: pip install 'hf-tlm[optim]'.")
    if args.optim in OWN and args.optim_args:
        rates = "learning_rate" if args.optim == LAMB else "learning_rate, muon_learning_rate"
        raise ArgumentsError(
            f"optim {args.optim} accepts {rates}, weight_decay, adam_beta1, adam_beta2 and adam_epsilon, but no optim_args; "
            f"received {args.optim_args!r}."
        )
    if args.optim == MUON and uses_fsdp(args):
        raise ArgumentsError(
            "optim muon equalises the singular values of complete matrices, and with FSDP each process holds only parts of "
            "them. Use DDP (the preset accelerate/ddp), or another optim."
        )


def check_adapted(args: TrainingArguments, use_peft: bool) -> None:
    """Check that Muon does not train an adapter, or raise an ArgumentsError."""
    if use_peft and args.optim == MUON:
        raise ArgumentsError(
            "optim muon is for complete matrices, and use_peft trains low-rank factors of their updates. Use an AdamW "
            "optimizer, or remove use_peft."
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
    """Return the optimizer's class and arguments, with `params` if the groups are not the Trainer's default two.

    Args:
        args: `optim` and the optimizer's options.
        decaying: names of the parameters that get weight decay.
        trainers_choice: `Trainer.get_optimizer_cls_and_kwargs`.
        layerwise_lr_decay: see `parameter_groups`.
        muon_learning_rate: learning rate of the matrices with optim muon; None: `learning_rate`.

    Raises:
        ArgumentsError: `layerwise_lr_decay` with an optimizer that forms its own groups, or Muon without layer matrices.
    """
    if args.optim in OWN:
        cls: Any = Muon
        if args.optim == LAMB:
            from hf_tlm.training.lamb import Lamb  # Based on an optional package.

            cls = Lamb
        betas = (args.adam_beta1, args.adam_beta2)
        kwargs: dict[str, Any] = {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    else:
        cls, kwargs = trainers_choice(args, model)
        if layerwise_lr_decay == 1:
            return cls, kwargs
        if not isinstance(cls, type) or {"params", "model", "optimizer_dict"} & kwargs.keys():
            raise ArgumentsError(
                f"optim {args.optim} groups the parameters in its own way, so layerwise_lr_decay has no effect. Use an "
                "AdamW optimizer, lamb or muon, or remove layerwise_lr_decay."
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
    """Group the trainable parameters of a model by learning rate and weight decay.

    A parameter's learning rate is learning_rate x layerwise_lr_decay ^ its distance from the top. ELECTRA fine-tunes with
    0.8 (small, base) and 0.9 (large) (Clark et al., ICLR 2020, appendix B). In its released code, everything below the head
    has one power more than here.

    Args:
        decaying: names of the parameters that get weight decay.
        others: further entries of the groups without weight decay.
        muon_learning_rate: learning rate of separate groups of the layers' matrices, with `"muon": True`, after the other
            groups. None: no such groups.

    Returns:
        Parameter groups with `params`, `lr` and `weight_decay`. Groups with the full rate come first, because the Trainer
        logs the rate of the first group.

    Raises:
        ArgumentsError: see `layer_matrices`.
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
    """Yield the bodies of a model, the innermost stock models with a list of layers.

    Yields (prefix of the body's parameter names, prefix of its layers' parameter names, the layers).
    """
    for prefix, body in model.named_modules():
        if not isinstance(body, PreTrainedModel) or any(isinstance(m, PreTrainedModel) for m in list(body.modules())[1:]):
            continue
        match = next(((name, module) for name, module in body.named_modules() if isinstance(module, nn.ModuleList)), None)
        if match is not None:
            yield f"{prefix}.", f"{prefix}.{match[0]}.", match[1]


def layer_matrices(model: nn.Module) -> set[str]:
    """Return the names of the weights of linear modules in the layers of the bodies, which Muon optimizes.

    Raises:
        ArgumentsError: there are none, or a layer has a parameter with more than two dimensions.
    """
    prefixes = tuple(prefix for _, prefix, _ in _bodies(model))
    matrices = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(prefixes)
    }
    unsupported = [name for name, value in model.named_parameters() if name.startswith(prefixes) and value.dim() > 2]
    if unsupported or not matrices:
        raise ArgumentsError(
            "optim muon is for layers whose weights are matrices; "
            + (f"{unsupported[0]} has more dimensions. " if unsupported else "no layers were found in this model. ")
            + "Use another optim."
        )
    return matrices


def distances_from_top(model: nn.Module) -> dict[str, int]:
    """Return the distance of each parameter from the top of its body in `model`, in layers.

    It is 1 for a body's last layer, 2 for the previous one, ..., and one more than the number of layers for its embeddings.
    Heads, poolers and a final normalisation have 0. Layers that ALBERT shares count as one.

    For a parameter that two bodies share, its position in the first one counts.
    """
    distances = dict.fromkeys((name for name, _ in model.named_parameters()), 0)
    for body, start, layers in _bodies(model):
        # Every model family registers the modules below the layers before the layers.
        below = True
        for name in distances:
            if name.startswith(start):
                below = False
                distances[name] = len(layers) - int(name.removeprefix(start).split(".")[0])
            elif below and name.startswith(body):
                distances[name] = len(layers) + 1
    return distances


class AveragedWeights(TrainerCallback):
    """Exponential moving averages of the trained weights (Polyak and Juditsky, 1992, with a decay).

    After step t (from 1) average = d average + (1 - d) weight, d = min(decay, (1 + t) / (10 + t)), so that the random first
    steps are soon forgotten. The averages start at the weights with which training begins. Processes with the same weights
    have the same averages.

    Args:
        decay: share of the average that is left after a step.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.model: nn.Module | None = None
        # Empty before and after training.
        self._averages: dict[str, torch.Tensor] = {}

    def _weights(self) -> dict[str, nn.Parameter]:
        assert self.model is not None  # `start` is called first.
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def start(self, model: nn.Module) -> None:
        """Start the averages at the current weights of `model`."""
        self.model = model
        self._averages = {name: weight.detach().clone() for name, weight in self._weights().items()}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if not self._averages:  # No checkpoint was loaded.
            self.start(model)

    @torch.no_grad()
    def on_step_end(self, args, state, control, **kwargs):
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        get_ema_multi_avg_fn(decay)([*self._averages.values()], [*self._weights().values()], state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        # The best model, if there is one, already consists of averages.
        if not args.load_best_model_at_end or state.best_model_checkpoint is None:
            self._exchange()
        self._averages = {}

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, weight in self._weights().items():
            average = self._averages[name].clone()
            self._averages[name].copy_(weight)
            weight.copy_(average)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the model within the block; no effect before and after training."""
        if not self._averages:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def save(self, checkpoint: Path) -> None:
        """Write the raw weights to a checkpoint, whose model has the averages."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self._weights().items()}
        save_file(weights, checkpoint / RAW_WEIGHTS)

    @torch.no_grad()
    def load(self, model: nn.Module, checkpoint: Path) -> None:
        """Load the averages and the raw weights of a checkpoint whose model was already loaded into `model`.

        The weights of `model` become the averages, and it gets the raw weights.
        """
        self.start(model)
        raw = load_file(checkpoint / RAW_WEIGHTS)
        for name, weight in self._weights().items():
            weight.copy_(raw[name])
