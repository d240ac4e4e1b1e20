"""Finished models for onnxruntime and the browser: ONNX graphs, quantised ones, checked when they are made."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.export.arguments import ExportArguments
    from hf_tlm.runs.export.export import Exported, export_onnx
    from hf_tlm.runs.export.int8 import int8_price
    from hf_tlm.runs.export.page import write_page

__getattr__, __dir__, __all__ = export_lazily(__name__)
