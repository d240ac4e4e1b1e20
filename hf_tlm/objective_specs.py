"""Specifications of the objectives, apart from their losses: names, the model that each needs, and its options.

The losses are combined in `hf_tlm.training.objectives`, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass

# Options of every objective with an auxiliary model that replaces tokens.
_CORRUPTING = (
    "rtd_weight auxiliary_size auxiliary_layers auxiliary_name_or_path freeze_auxiliary temperature replacements".split()
)


# Options of every objective that chooses single tokens instead of spans.
_CHOOSING = ("mlm_probability_end", "whole_word_mask")


@dataclass(frozen=True)
class ObjectiveSpec:
    """A language-modelling objective, as `--objective` names it.

    title: its name in tables.
    model_title: what a model pretrained with it is called on its card.
    citations: keys of the cards' citations, in addition to TLM's.
    options: fields of the run's and the model's arguments that have an effect with this objective, but not with all.
    corrupts: whether an auxiliary model replaces tokens of the main model's input; otherwise tokens are masked.
    corrects: whether the main model predicts the original tokens, and not only which tokens were replaced.
    separate_sampling: whether replacements are sampled in a separate pass without dropout; see `GeneratorDiscriminator`.
    masks_spans: whether spans of tokens are masked instead of single tokens (SpanBERT, section 3.1).
    mask_special: whether special tokens may be masked like any other (COCO-LM, appendix D).
    contrasts: whether the representations of two views of a text are pulled together if `scl` is on.
    auxiliary_size: default width of the auxiliary model as a fraction of the main model's.
    auxiliary_depth: default number of layers of the main model for each layer of the auxiliary model; None: equal depth.
    temperature: default temperature of the softmax from which replacements are sampled.
    encoders: supported model types; empty: all.
    encoder_advice: a description of these encoders, and the name of a config.
    """

    title: str
    model_title: str
    citations: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    corrupts: bool = False
    corrects: bool = False
    separate_sampling: bool = False
    masks_spans: bool = False
    mask_special: bool = False
    contrasts: bool = False
    auxiliary_size: float = 0.25
    auxiliary_depth: int | None = None
    temperature: float = 0.8
    encoders: tuple[str, ...] = ()
    encoder_advice: tuple[str, str] = ("", "")


OBJECTIVES = {
    "mlm": ObjectiveSpec("MLM", "Masked language model", options=_CHOOSING),
    "span": ObjectiveSpec("Span MLM", "Span-masked language model", ("spanbert",), masks_spans=True),
    "electra": ObjectiveSpec(
        "ELECTRA", "ELECTRA", ("electra",), (*_CHOOSING, *_CORRUPTING, "share_embedding_norm"), corrupts=True
    ),
    "ale": ObjectiveSpec(
        "ALE",
        "ALE",
        ("electra", "ale"),
        (*_CHOOSING, *_CORRUPTING, "share_embedding_norm"),
        corrupts=True,
        encoders=("albert",),
        encoder_advice=("ELECTRA on an ALBERT body", "ale_small"),
    ),
    "cocolm": ObjectiveSpec(
        "COCO-LM",
        "COCO-LM",
        ("coco_lm",),
        (
            *_CHOOSING,
            *_CORRUPTING,
            "clm",
            "rtd_head",
            "stop_gradient",
            "scl",
            "scl_cosines",
            "scl_temperature",
            "scl_projection",
            "crop_fraction",
        ),
        corrupts=True,
        corrects=True,
        separate_sampling=True,
        mask_special=True,
        contrasts=True,
        auxiliary_size=1.0,
        auxiliary_depth=3,
        temperature=1.0,
        encoders=("cocolm", "modernbert"),
        encoder_advice=("for COCO-LM's body or a ModernBERT", "cocolm_base"),
    ),
}


def takers(option: str) -> tuple[str, ...]:
    """Return the objectives that use an option; empty for an option that all objectives use."""
    return tuple(name for name, spec in OBJECTIVES.items() if option in spec.options)
