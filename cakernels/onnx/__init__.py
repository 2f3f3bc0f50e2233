"""Export of trained models to ONNX, the exchange format that onnxruntime and other runtimes execute."""
