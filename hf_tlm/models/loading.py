"""Reading checkpoints, with errors that say which one could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from hf_tlm.models.errors import ModelError
from hf_tlm.models.families import family_of

# What transformers, huggingface_hub and safetensors raise for a model that cannot be loaded.
UNREADABLE = (OSError, RuntimeError, KeyError, ImportError, ValueError, SafetensorError)


@contextmanager
def reading(what: str, advice: str = "") -> Iterator[None]:
    """Raises:
    ModelError: `what` cannot be loaded; ends with `advice`.
    """
    try:
        yield
    except ModelError:
        raise
    except UNREADABLE as error:
        raise ModelError(f"Cannot load {what}: {error}{advice}") from error


def hub_options(revision: str | None, trust_remote_code: bool, attn_implementation: str | None) -> dict:
    """Keyword arguments of `from_pretrained`; transformers takes no None for an attention implementation."""
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    return options if attn_implementation is None else options | {"attn_implementation": attn_implementation}


def load_classifier(name_or_path: str, *, id2label: dict[int, str], **options) -> tuple[PreTrainedModel, bool]:
    """A checkpoint as a stock classifier; a head that it lacks, or one of other classes, begins at random.

    Args:
        options: see `hub_options`.

    Returns:
        The model, and whether some of its head begins at random.

    Raises:
        ModelError: its `model_type` is not a supported encoder. For others see `reading`.
    """
    label2id = {label: index for index, label in id2label.items()}
    config = AutoConfig.from_pretrained(name_or_path, id2label=id2label, label2id=label2id, **options)
    family_of(config)
    model, info = AutoModelForSequenceClassification.from_pretrained(
        name_or_path, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
    )
    new = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    return model, head_is_new(model, new)


def head_is_new(model: PreTrainedModel, new: Iterable[str]) -> bool:
    """Whether some of the parameters `new` are not of the model's body."""
    return any(not name.startswith(f"{model.base_model_prefix}.") for name in new)
