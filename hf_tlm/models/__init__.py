"""Encoders, heads, spectral initialisation, and export to stock classes."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.models.configure import build_config
    from hf_tlm.models.export import export_stock
    from hf_tlm.models.families import FAMILIES, ModelError
    from hf_tlm.models.tlm import MLM_SUBFOLDER, TlmModel, TlmOutput

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "configure": ["build_config"],
        "export": ["export_stock"],
        "families": ["FAMILIES", "ModelError"],
        "tlm": ["MLM_SUBFOLDER", "TlmModel", "TlmOutput"],
    },
)
