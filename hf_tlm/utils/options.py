"""Fields of dataclasses of options: their help, the ranges of numbers, and the conditions under which they have no effect.

Ranges and choices hold for the command line, YAML files and Python alike. The type of a field says when it has no effect:

    crop_fraction: Annotated[float, NoEffect("scl", (False,), "with scl false. Leave it out.")] = 0.9

Argument parsers see only the annotated type.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints, overload

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.shown import kind_of

T = TypeVar("T")
# Upper bounds that catch mistakes. Step numbers are int32 in some libraries.
COUNT, LENGTH, BATCH, MANY = 2**31 - 1, 2**20, 2**16, 10_000


@overload
def option(default: T, help: str, **metadata: Any) -> T: ...
@overload
def option(*, help: str, factory: Callable[[], T], **metadata: Any) -> T: ...
@overload
def option(*, help: str, **metadata: Any) -> Any: ...
def option(default: Any = MISSING, help: str = "", factory: Any = MISSING, **metadata: Any) -> Any:
    """Return a dataclass field with a help text, for `HfArgumentParser`.

    Args:
        default: the default value; without `default` and `factory` the option is required.
        help: the text that `--help` shows.
        factory: a function that returns the default, if that is a list.
        metadata: other entries that the parser reads, such as `choices`.
    """
    return field(default=default, default_factory=factory, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class Range:
    """A range of numbers from `low` to `high`.

    whole: integers only.
    above, below: whether `low` and `high` themselves are excluded.
    also: numbers outside the range that are valid too, with a special meaning.
    """

    low: float
    high: float
    whole: bool = False
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether a value is a number in this range."""
        kind: Any = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        if value in self.also:
            return True
        above_low = value > self.low if self.above else value >= self.low
        return bool(above_low and (value < self.high if self.below else value <= self.high))

    def __str__(self):
        kind = "whole number" if self.whole else "number"
        if self.high == math.inf:
            text = f"{kind}, {_format_number(self.low)} or more"
        elif self.above or self.below:
            text = f"{kind} {'above' if self.above else 'of at least'} {_format_number(self.low)} and "
            text += f"{'below' if self.below else 'at most'} {_format_number(self.high)}"
        else:
            text = f"{kind} from {_format_number(self.low)} to {_format_number(self.high)}"
        return " or ".join(["a " + text, *map(_format_number, self.also)])


def _format_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


_COUNT, _SEED = Range(1, COUNT, whole=True), Range(0, 2**32 - 1, whole=True)
_BATCH, _MANY = Range(1, BATCH, whole=True), Range(1, MANY, whole=True)
_LENGTH = Range(3, LENGTH, whole=True)  # Two special tokens and one more.
_TOKENS = Range(1, LENGTH, whole=True)
_RATE, _POSITIVE_RATE = Range(0, 100), Range(0, 100, above=True)
_WEIGHT, _POSITIVE = Range(0, 10**6), Range(0, 10**6, above=True)
_SHARE, _POSITIVE_SHARE = Range(0, 1), Range(0, 1, above=True)
_FRACTION = Range(0, 1, below=True)
_INTERVAL = Range(0, COUNT, above=True)  # Number of steps, or below 1 a share of all steps.
_STEPS = Range(-1, COUNT, whole=True)
_ANY = Range(-1e9, 1e9)


def _same_range(names: str, shared_range: Range) -> dict[str, Range]:
    return dict.fromkeys(names.split(), shared_range)


# An option has the same range in all recipes; conditions on several options are checked elsewhere.
RANGES: dict[str, Range] = {
    # Training.
    **_same_range("learning_rate stage2_learning_rate", _RATE),
    **_same_range("learning_rates muon_learning_rate stage2_muon_learning_rate", _POSITIVE_RATE),
    **_same_range("weight_decay stage2_weight_decay", Range(0, 1000)),
    **_same_range("layerwise_lr_decay stage2_layerwise_lr_decay", _POSITIVE_SHARE),
    **_same_range("warmup_steps stage2_warmup_steps eval_delay", Range(0, COUNT)),
    **_same_range("logging_steps save_steps eval_steps stage2_eval_steps", _INTERVAL),
    "max_steps": _STEPS,
    "stage2_max_steps": Range(1, COUNT, whole=True, also=(-1,)),
    **_same_range("num_train_epochs stage2_num_train_epochs max_hours", _POSITIVE),
    **_same_range("max_flops max_tokens", Range(0, 1e30, above=True)),
    **_same_range("seed seeds data_seed selection_seed split_seeds", _SEED),
    **_same_range("per_device_train_batch_size per_device_eval_batch_size batch_sizes", _BATCH),
    **_same_range("total_batch_size stage2_total_batch_size gradient_accumulation_steps", Range(1, 2**20, whole=True)),
    **_same_range("adam_beta1 adam_beta2", _FRACTION),
    **_same_range("label_smoothing_factor stage2_label_smoothing stage2_dropout stage2_ema_decay lora_dropout", _FRACTION),
    **_same_range("rho1", Range(0, 10**6, also=(math.inf,))),
    **_same_range("rho2 rtd_weight stage2_rho2 stage2_rdrop teacher_weight neftune_noise_alpha temperature", _WEIGHT),
    **_same_range("scl_temperature spectral_scale lora_alpha teacher_temperature", _POSITIVE),
    "adam_epsilon": _SHARE,
    "max_grad_norm": Range(0, math.inf),
    "total_batch_tokens": Range(1, 2**26, whole=True),
    "max_logits": Range(1, 2**40, whole=True),
    **_same_range("mlm_probability mlm_probability_end teacher_share", Range(0, 1, above=True, below=True)),
    "teacher_passages": Range(0, COUNT, whole=True),
    "teacher_candidates": _COUNT,
    "teacher_rounds": Range(1, 100, whole=True),
    "crop_fraction": _POSITIVE_SHARE,
    "stage2_class_balance": _SHARE,
    **_same_range("stage2_min_steps early_stopping_patience stage2_early_stopping_patience", Range(0, COUNT, whole=True)),
    # Options of the Trainer only.
    "save_total_limit": _COUNT,
    "dataloader_num_workers": Range(0, 256, whole=True),
    "dataloader_prefetch_factor": Range(1, 1024, whole=True),
    "ddp_bucket_cap_mb": Range(1, LENGTH, whole=True),
    "ddp_timeout": Range(1, 10**8, whole=True),
    "local_rank": Range(-1, BATCH, whole=True),
    **_same_range("eval_accumulation_steps torch_empty_cache_steps", _COUNT),
    # Models.
    "auxiliary_layers": _MANY,
    "auxiliary_size": Range(0, 100, above=True),
    "vocab_size": Range(6, 2**20, whole=True),  # Five special tokens and one more.
    "lora_r": _BATCH,
    **_same_range("max_length corpus_max_length score_max_length evaluate_length", _LENGTH),
    "stage2_max_length": Range(3, LENGTH, whole=True, also=(0,)),
    # Corpora and blocks.
    "passage_words": Range(1, COUNT, whole=True, also=(0,)),
    **_same_range("vocab_texts max_validation_blocks shards_ahead", _COUNT),
    "tokenizer_passages": Range(0, COUNT, whole=True),
    **_same_range("validation_share test_share", _FRACTION),
    "shard_size": Range(1, 2**24, whole=True),
    # Retrieval and influence.
    **_same_range("top_k num_passages max_query_terms max_train_samples max_eval_samples", _COUNT),
    "query_batch_size": _TOKENS,
    "k1": _POSITIVE,
    "b": _SHARE,
    "delta": _WEIGHT,
    **_same_range("deduplicate fraction", _POSITIVE_SHARE),
    "num_threads": Range(1, 1024, whole=True),
    **_same_range("num_shards workers", _BATCH),
    **_same_range("corpus_batch_size task_batch_size score_batch_size", _BATCH),
    "score_mlm_probability": Range(0.01, 1),  # Masks are drawn until they hide a token: lower shares take too many draws.
    "projection_dim": _TOKENS,
    "layer": Range(-MANY, MANY, whole=True),
    "num_examples": Range(0, COUNT, whole=True),
    # Fine-tuning and few-shot runs.
    "train_fraction": _POSITIVE_SHARE,
    **_same_range("max_query_length max_answer_length first_text_limit other_text_limit", _TOKENS),
    "doc_stride": Range(0, LENGTH, whole=True),
    **_same_range("n_best splits demonstration_sets optuna_trials", _MANY),
    "k": Range(1, 10**6, whole=True),
    "null_threshold": _ANY,
    # Exports: the opsets that torch writes, and points of a score.
    "opset": Range(18, 23, whole=True),
    "max_drop": Range(0, 100),
    # Analyses.
    **_same_range("max_texts max_pairs top_words min_count case_passages top_sources rank_bins", _COUNT),
    **_same_range("report_rows report_characters rare_below smoothing", _COUNT),
    "batch_size": _BATCH,
    "case_studies": Range(0, COUNT, whole=True),
    "heads_tokens": Range(3, 4096, whole=True),
    "perplexity": _POSITIVE,
    "similar_from": _ANY,
}


def range_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of an option that has a range; None if it is in the range."""
    return None if RANGES[name].holds(value) else f"expected {RANGES[name]}; received {value!r:.60}."


def check_given(error: type[HfTlmError], **given: tuple[Any, type]) -> None:
    """Raise `error` for an argument that is not an instance of its class; `given` maps names to (value, class)."""
    for name, (value, cls) in given.items():
        if not isinstance(value, cls):
            raise error(f"{name}: expected a {cls.__name__}; received {kind_of(value)}. Give {cls.__name__}(...).")


@overload
def named(option: str, value: Any, error: type[HfTlmError]) -> str | None: ...
@overload
def named(option: str, value: Any, error: type[HfTlmError], *, needed: Literal[True], what: str = ...) -> str: ...
def named(
    option: str, value: Any, error: type[HfTlmError], *, needed: bool = False, what: str = "a folder or a Hub id"
) -> str | None:
    """Return the name of a folder or a Hub id, given as a string or a path; None if none is given.

    Args:
        option: name of the option, for the error.
        needed: whether None is an error.
        what: what the value names, for the error.

    Raises:
        error: the value is an object instead of its name, such as a model; or it is None and `needed`.
    """
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if value is None and not needed:
        return None
    save = "save" if hasattr(value, "save") else "save_pretrained"  # Subsets and scorers; models and tokenizers.
    advice = "" if value is None else f" Save it with {save}(folder), and give the folder."
    raise error(f"{option}: expected {what}; received {kind_of(value)}.{advice}")


def to_python(value: Any) -> Any:
    """Convert numbers and arrays of NumPy or torch to Python numbers and lists, and paths to strings; keep other values.

    Records are written as JSON, and random generators take seeds, which must be plain Python values.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    package = type(value).__module__.partition(".")[0]
    return value.tolist() if package in ("numpy", "torch") and hasattr(value, "tolist") else value


def _to_plain(name: str, value: Any, is_list: bool, error: type[HfTlmError]) -> Any:
    """Return a field's value as plain Python values; raise `error` for a single number in a field that is a list."""
    value = to_python(value)
    if is_list and isinstance(value, Real) and not isinstance(value, bool):
        raise error(f"--{name}: expected a list; received {value!r}. Give [{value!r}].")
    return [to_python(item) for item in value] if is_list and isinstance(value, (list, tuple, range)) else value


def check_number(error: type[HfTlmError], name: str, value: Any, allowed: Range) -> None:
    """Raise `error` if the argument `name` is not in the range `allowed`."""
    if not allowed.holds(to_python(value)):
        raise error(f"{name}: expected {allowed}; received {value!r:.60}.")


def check_numbers(error: type[HfTlmError], **values: Any) -> None:
    """Raise `error` for a value that is not in the range of its option; None means not given and is accepted."""
    for name, value in values.items():
        if value is not None and (wrong := range_problem(name, value)):
            raise error(f"--{name}: {wrong}")


def check_ranges(arguments: Any, error: type[HfTlmError]) -> None:
    """Raise `error` for a field of a dataclass instance that is not in its range, or not one of its choices.

    The instance is changed: numbers of NumPy and torch become Python numbers, paths strings, and sequences lists.
    """
    for entry in fields(arguments):
        initial = getattr(arguments, entry.name)
        value = _to_plain(entry.name, initial, str(entry.type).removeprefix("Annotated[").startswith("list["), error)
        if value is not initial:
            setattr(arguments, entry.name, value)
        if (choices := entry.metadata.get("choices")) and value != entry.default:
            for item in value if isinstance(value, list) else [value]:
                if item not in choices:
                    raise error(f"--{entry.name}: expected one of {', '.join(choices)}; received {item!r:.60}.")
        if entry.name not in RANGES or (value is None and entry.default is None):
            continue
        hint = get_type_hints(type(arguments))[entry.name] if value is None or isinstance(value, list) else None
        types = {get_origin(item) or item for item in (hint, *get_args(hint))}
        if value is None and type(None) in types:
            continue
        for number in value if list in types else [value]:
            if wrong := range_problem(entry.name, number):
                raise error(f"--{entry.name}: {wrong}")


@dataclass(frozen=True)
class NoEffect:
    """An annotation: the field has no effect if another field of its dataclass has one of some values.

    option, values: the other field, and its values.
    because: the rest of the error's message after "... has no effect".
    """

    option: str
    values: tuple[Any, ...]
    because: str

    def refusal(self, value: Any, prefix: str) -> str | None:
        """Return the rest of the error's message if this value of the other field leaves no effect, else None."""
        return self.because if value in self.values else None


@dataclass(frozen=True)
class OnlyWith:
    """An annotation: the field has an effect only if another field of its dataclass has one of some values.

    option, values: the other field, and its values.
    ignored: further values of the other field, with which the field is ignored without an error.
    """

    option: str
    values: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def refusal(self, value: Any, prefix: str) -> str | None:
        """See `NoEffect.refusal`."""
        if value in (*self.values, *self.ignored):
            return None
        other = prefix + self.option
        accepted = " and ".join(self.values)
        return f"with {other} {getattr(value, 'value', value)}: it is for {accepted}. Remove it, or change {other}."


def check_effects(options: Any, error: type[Exception], prefix: str = "") -> None:
    """Raise `error` for a field that is not at its default, but has no effect by its `NoEffect` or `OnlyWith`.

    prefix: what precedes names of options in errors.
    """
    for name, default, conditions in conditions_of(options.__class__):
        value = getattr(options, name)
        for condition in conditions if value != default else ():
            if reason := condition.refusal(getattr(options, condition.option), prefix):
                separator = "" if reason.startswith(":") else " "
                raise error(f"{prefix}{name} {value} has no effect{separator}{reason}")


@functools.cache
def conditions_of(cls: Any) -> list[tuple[str, Any, list[NoEffect | OnlyWith]]]:
    """Return the name, the default and the conditions of each field that has conditions."""
    hints, conditional = get_type_hints(cls, include_extras=True), []
    for entry in fields(cls):
        metadata = getattr(hints[entry.name], "__metadata__", ())
        conditions = [item for item in metadata if isinstance(item, (NoEffect, OnlyWith))]
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if conditions:
            conditional.append((entry.name, default, conditions))
    return conditional
