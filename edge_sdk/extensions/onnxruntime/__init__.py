"""Run graphs with onnxruntime, where its wheel is installed."""
