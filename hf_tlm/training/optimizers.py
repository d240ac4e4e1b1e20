"""What the Trainer's choice of optimizers lacks: LAMB, and learning rates that fall from a model's top to its bottom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from hf_tlm.training.options import ArgumentsError

LAMB = "lamb"


def check_lamb(args: TrainingArguments) -> None:
    """Raises:
    ArgumentsError: pytorch_optimizer is not installed, or there are options that LAMB does not take.
    """
    if find_spec("pytorch_optimizer") is None:
        raise ArgumentsError("optim lamb comes from the package pytorch_optimizer: pip install 'hf-tlm[optim]'.")
    if args.optim_args:
        raise ArgumentsError(
            f"optim lamb takes learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon, no optim_args; "
            f"received {args.optim_args!r}."
        )


def grouped_optimizer(
    args: TrainingArguments,
    model: nn.Module,
    decaying: Collection[str],
    trainers_choice: Callable[[TrainingArguments, nn.Module], tuple[Any, dict[str, Any]]],
    apart: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """The optimizer's class and arguments, with `params` where the groups are not the Trainer's two.

    Args:
        args: a `TlmArguments`: `optim`, `layerwise_lr_decay`, and what the optimizer takes.
        decaying: names of the parameters that weight decay is for.
        trainers_choice: `Trainer.get_optimizer_cls_and_kwargs`.
        apart: see `parameter_groups`.

    Raises:
        ArgumentsError: `layerwise_lr_decay` with an optimizer that makes groups of its own.
    """
    if args.optim == LAMB:
        from hf_tlm.training.lamb import Lamb

        betas = (args.adam_beta1, args.adam_beta2)
        cls, kwargs = Lamb, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    else:
        cls, kwargs = trainers_choice(args, model)
        if args.layerwise_lr_decay == 1 and not apart:
            return cls, kwargs
        if not isinstance(cls, type) or {"params", "model", "optimizer_dict"} & kwargs.keys():
            raise ArgumentsError(
                f"optim {args.optim} divides the parameters in its own way, so layerwise_lr_decay has no effect. Use an "
                "AdamW or lamb, or leave layerwise_lr_decay at 1."
            )
    groups = parameter_groups(
        model,
        decaying,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        layerwise_lr_decay=args.layerwise_lr_decay,
        # As in the authors' code: with a ratio of norms, a bias that starts at 0 would stay near it.
        others={"adam": True} if args.optim == LAMB else {},
        apart=apart,
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
    apart: bool = False,
) -> list[dict[str, Any]]:
    """Every trainable parameter in one group: learning rate x layerwise_lr_decay ^ its distance from the top.

    ELECTRA fine-tunes with 0.8 (small, base) and 0.9 (large) (Clark et al., ICLR 2020, appendix B). Its released code
    lowers everything below the head by one power more than this.

    Args:
        decaying: names of the parameters that weight decay is for.
        others: further entries of the groups that do not decay.
        apart: also divide them so that what is in a group is used in the same batches: bodies, and each module of a head.

    Returns:
        Groups for an optimizer: `params`, `lr`, `weight_decay`; those of the full rate first, since the Trainer logs the
        first group's.
    """
    distances = distances_from_top(model) if layerwise_lr_decay != 1 or apart else {}
    groups: dict[tuple[int, bool, str], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            distance, part = distances.get(name, 0), ""
            if apart:
                part = name.split(".")[0] if distance else name.rpartition(".")[0]
            if layerwise_lr_decay == 1:
                distance = 0
            groups.setdefault((distance, name not in decaying, part), []).append(parameter)
    return [
        {
            "params": groups[distance, plain, part],
            "lr": learning_rate * layerwise_lr_decay**distance,
            **({"weight_decay": 0.0, **others} if plain else {"weight_decay": weight_decay}),
        }
        for distance, plain, part in sorted(groups)
    ]


def distances_from_top(model: nn.Module) -> dict[str, int]:
    """How deep parameters lie in the bodies of `model`: 1 for a body's last layer, 2 for the one before, ..., and one more
    than the number of layers for its embeddings. Heads, poolers and a last normalisation are 0. Layers that ALBERT shares
    are one.

    Of a parameter that two bodies share the first one's place counts.
    """
    distances = dict.fromkeys((name for name, _ in model.named_parameters()), 0)
    for prefix, body in model.named_modules():
        # The innermost stock model around a list of layers; every family registers what lies below them before them.
        if not isinstance(body, PreTrainedModel) or any(isinstance(m, PreTrainedModel) for m in list(body.modules())[1:]):
            continue
        found = next(((name, module) for name, module in body.named_modules() if isinstance(module, nn.ModuleList)), None)
        if found is None:
            continue
        start, layers = f"{prefix}.{found[0]}.", found[1]
        below = True
        for name in distances:
            if name.startswith(start):
                below = False
                distances[name] = len(layers) - int(name.removeprefix(start).split(".")[0])
            elif below and name.startswith(f"{prefix}."):
                distances[name] = len(layers) + 1
    return distances
