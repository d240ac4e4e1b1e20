"""Checks of options of the Trainer, made when they are parsed, as the Trainer checks them late or never."""

from __future__ import annotations

from importlib.util import find_spec
from inspect import signature
from typing import Any

from transformers import TrainingArguments

from hf_tlm.errors import ArgumentsError
from hf_tlm.training.optimizers import OWN

_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Optimizers that choose matrices of the model: prefix of their names -> package.
_MATRIX_OPTIMIZERS = {"galore": "galore_torch", "apollo": "apollo_torch", "lomo": "lomo_optim", "adalomo": "lomo_optim"}
# Optimizers that need no check without `optim_args`: torch's work, and ours are checked elsewhere.
_ALWAYS_AVAILABLE = ("adamw_torch", "adamw_torch_fused", *OWN)


def check_trainer_options(args: TrainingArguments) -> None:
    """Check the tracker, optimizer, scheduler, compiler, checkpointing and kernel options, or raise an ArgumentsError.

    Each must exist, be installed and accept its options.
    """
    _check_trackers(args.report_to)
    _check_optimizer(args)
    check_scheduler(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type), args.lr_scheduler_kwargs)
    _check_compiler(args)
    _check_checkpointing(args)
    if args.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ArgumentsError(
            "use_liger_kernel needs the package liger_kernel, which is not installed. Install it, or remove "
            "use_liger_kernel."
        )


def _check_trackers(report_to: str | list[str] | None) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

    for name in [report_to] if isinstance(report_to, str) else report_to or ():
        if name not in INTEGRATION_TO_CALLBACK:
            supported = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise ArgumentsError(f"report_to: expected none, all or some of {supported}; received {name!r:.60}.")
        if name not in get_available_reporting_integrations() and not _can_be_created(INTEGRATION_TO_CALLBACK[name]):
            raise ArgumentsError(f"report_to {name}: its package is not installed. Install it, or give --report_to none.")


def _can_be_created(callback: type) -> bool:
    """Return whether a tracker that transformers does not list as available can be used, such as Flyte or Azure ML."""
    try:
        callback()
    except Exception:  # RuntimeError and ImportError if its package is missing.
        return False
    return True


class _ReadTrackingDict(dict):
    """A dict of arguments of an optimizer that records which keys were read."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.read: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.read.add(name)
        return super().pop(name, *default)


def _check_optimizer(args: TrainingArguments) -> None:
    optim = getattr(args.optim, "value", args.optim)
    required_package = next((package for name, package in _MATRIX_OPTIMIZERS.items() if optim.startswith(name)), None)
    if args.optim_target_modules and required_package is None:
        raise ArgumentsError(f"optim_target_modules has no effect with optim {optim}. Remove it.")
    if required_package is not None:
        if find_spec(required_package) is None:
            raise ArgumentsError(
                f"optim {optim} needs the package {required_package}, which is not installed. Choose another optim."
            )
        return
    if optim in _ALWAYS_AVAILABLE and not args.optim_args:
        return
    optimizer_args = _parse_optimizer_arguments(args.optim_args)
    try:
        kwargs = _create_optimizer_arguments(args, optimizer_args)
    except Exception as error:  # Any error of a package, about values or because it is missing.
        raise ArgumentsError(
            f"optim {optim}{f' with optim_args {args.optim_args!r:.100}' if optimizer_args else ''} cannot be created: "
            f"{' '.join(str(error).split()):.200}. Choose another."
        ) from error
    if unused := [name for name in optimizer_args if name not in optimizer_args.read and name not in kwargs]:
        raise ArgumentsError(f"optim_args: optim {optim} does not accept {', '.join(unused)[:60]}. Remove it.")


def _parse_optimizer_arguments(text: str | None) -> _ReadTrackingDict:
    pairs = [pair.partition("=") for pair in (text or "").replace(" ", "").split(",") if pair]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise ArgumentsError(f"optim_args: expected name=value,name=value; received {wrong[0]!r:.60}.")
    return _ReadTrackingDict({name: value for name, _, value in pairs})


def _create_optimizer_arguments(args: TrainingArguments, optimizer_args: _ReadTrackingDict) -> dict[str, Any]:
    """Return the arguments of the optimizer, after creating one with them to check that this works."""
    import torch
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext

    kwargs, adam = {"lr": args.learning_rate}, {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    context = OptimizerContext(args=args, model=None, optimizer_kwargs=kwargs, adam_kwargs=adam, optim_args=optimizer_args)
    cls, kwargs = _OPTIMIZER_HANDLERS[args.optim](context)
    cls([torch.nn.Parameter(torch.zeros(2))], **kwargs)
    return kwargs


def check_scheduler(kind: str, kwargs: Any = None, name: str = "lr_scheduler_type") -> None:
    """Check that a learning rate scheduler can be created and take a step.

    Args:
        kind: type of the scheduler, as in the Trainer's `lr_scheduler_type`.
        kwargs: as in the Trainer's `lr_scheduler_kwargs`.
        name: name of the option that has the type, for errors.

    Raises:
        ArgumentsError: it cannot be created, or `kwargs` is not a dict.
    """
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentsError(f"lr_scheduler_kwargs: expected a JSON object; received {kwargs!r:.60}.")
    if kind == "linear" and not kwargs:
        return
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    try:
        scheduler = get_scheduler(kind, optimizer, 1, 10, scheduler_specific_kwargs=kwargs or {})
        if not signature(scheduler.step).parameters.get("metrics"):
            optimizer.step()
            scheduler.step()
    except Exception as error:  # TypeError, ValueError, and errors of arithmetic with bad values.
        raise ArgumentsError(
            f"{name} {kind} with lr_scheduler_kwargs {kwargs!r:.100} cannot be created: {str(error):.200}. "
            f"{'Change them' if name == 'lr_scheduler_type' else 'Take another'}."
        ) from error


def _check_compiler(args: TrainingArguments) -> None:
    if args.torch_compile_mode is not None and args.torch_compile_mode not in _COMPILE_MODES:
        raise ArgumentsError(
            f"torch_compile_mode: expected {', '.join(_COMPILE_MODES)}; received {args.torch_compile_mode!r:.60}."
        )
    if args.torch_compile_backend is not None:
        from accelerate.utils import DynamoBackend

        backends = sorted(backend.lower() for backend in DynamoBackend.list())
        if args.torch_compile_backend.lower() not in backends:
            raise ArgumentsError(
                f"torch_compile_backend: expected one of {', '.join(backends)}; received {args.torch_compile_backend!r:.60}."
            )


def _check_checkpointing(args: TrainingArguments) -> None:
    from torch.utils.checkpoint import checkpoint

    kwargs = args.gradient_checkpointing_kwargs
    if kwargs is None:
        return
    supported = [name for name in signature(checkpoint).parameters if name not in ("function", "args", "kwargs")]
    supported.append("preserve_rng_state")  # `checkpoint` reads this one from its **kwargs.
    if not isinstance(kwargs, dict) or not set(kwargs) <= set(supported):
        raise ArgumentsError(
            f"gradient_checkpointing_kwargs: expected a JSON object with some of {', '.join(supported)}; received "
            f"{kwargs!r:.60}."
        )
