"""Encoders, heads, spectral initialisation, and export to stock classes."""

from hf_tlm.models.configure import build_config
from hf_tlm.models.export import export_stock
from hf_tlm.models.families import FAMILIES, ModelError
from hf_tlm.models.tlm import MLM_SUBFOLDER, TlmModel, TlmOutput

__all__ = ["FAMILIES", "MLM_SUBFOLDER", "ModelError", "TlmModel", "TlmOutput", "build_config", "export_stock"]
