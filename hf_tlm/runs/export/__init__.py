"""Export of finished models to ONNX, optionally quantised, for onnxruntime and the browser; every file is checked."""
