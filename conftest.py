"""What pytest must not import: authoring models needs torch and onnx, and nothing else does."""

from importlib.util import find_spec

_CAN_AUTHOR = find_spec("torch") is not None and find_spec("onnx") is not None

collect_ignore_glob = [] if _CAN_AUTHOR else ["aggregator/models/*.py"]
