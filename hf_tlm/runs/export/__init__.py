"""Finished models for onnxruntime and the browser: ONNX graphs, quantised ones, checked when they are made."""
