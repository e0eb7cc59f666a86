"""Run graphs with numpy alone, where onnxruntime has no wheel."""
