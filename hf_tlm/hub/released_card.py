"""The card of a checkpoint that TLM's authors released, after its conversion."""

from __future__ import annotations

from collections.abc import Sequence

from hf_tlm.hub.rendering import displayed_name, hub_name, license_sentence, render


def released_tlm_card(
    checkpoint: str,
    *,
    task: str | None,
    label_names: Sequence[str],
    named: str,
    parameters: int,
    left_out: Sequence[str],
    version: str,
) -> str:
    """The README.md of the converted model.

    Args:
        checkpoint: Hub id, with `@revision` if known, or folder.
        task: the registered task; None if it is not known.
        named: where the names of the classes are from: `registry`, `index`, or `user`.
        left_out: names of weights that the model has no use for.
        version: of hf_tlm.
    """
    from huggingface_hub import ModelCardData

    base, name = hub_name(checkpoint), displayed_name(checkpoint)
    data = ModelCardData(
        language="en",
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["hf_tlm", "tlm", "converted"],
        base_model=base,
    )
    return render(
        "released_tlm.md",
        data,
        title=f"{name.partition('@')[0].rpartition('/')[2]}, as stock ELECTRA",
        task=task,
        base_name=name,
        link=base and f"https://huggingface.co/{base}",
        label_names=label_names,
        named=named,
        parameters=parameters,
        left_out=left_out,
        version=version,
        license_sentence=license_sentence(None),
        citations=["tlm", "electra", "bert"],
    )
