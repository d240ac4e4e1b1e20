"""What is known of each objective beside its losses: names, the model that it needs, and the options that belong to it.

The losses are put together in `hf_tlm.training.objectives`, by the same names.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of every objective with an auxiliary model that replaces tokens.
_CORRUPTING = (
    "rtd_weight auxiliary_size auxiliary_layers auxiliary_name_or_path freeze_auxiliary temperature replacements".split()
)


# Of every objective that chooses tokens, and not spans of them.
_CHOOSING = ("mlm_probability_end", "whole_word_mask")


@dataclass(frozen=True)
class ObjectiveSpec:
    """A language-modelling objective, as `--objective` names it.

    title: in tables.
    model_title: a model that was pretrained with it, on its card.
    citations: keys of the cards' citations, beside TLM's.
    options: fields of the run's and the model's arguments that have an effect with it and not with all objectives.
    corrupts: an auxiliary model replaces tokens of the main model's input; else tokens are masked.
    corrects: the main model predicts the tokens that were replaced, and not only which they are.
    separate_sampling: tokens are drawn in a pass of their own, without dropout; see `GeneratorDiscriminator`.
    masks_spans: spans of tokens are chosen, not single ones (SpanBERT, section 3.1).
    mask_special: special tokens are chosen like any other (COCO-LM, appendix D).
    contrasts: two crops of a text are drawn together where `scl` is on.
    auxiliary_size: width of the auxiliary model over the main one's, by default.
    auxiliary_depth: layers of the main model to one of the auxiliary, by default; None: as many as the main one has.
    temperature: of the softmax that replacements are drawn from, by default.
    encoders: model types that it is for; none: all.
    encoder_advice: what those are, and a config of one.
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
    """The objectives that have a use for an option; none for one that all have a use for."""
    return tuple(name for name, spec in OBJECTIVES.items() if option in spec.options)
