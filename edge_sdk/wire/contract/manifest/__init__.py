"""Define a bundle's manifest: layout, window, features, training, graphs and golden sample.

The exporter writes it, the device and the aggregator read it; neither needs torch, onnx or an
inference engine. It is stored as canonical JSON, so a manifest has one digest and one signature.
"""

from __future__ import annotations

from edge_sdk.wire.contract.manifest.document import Manifest, ManifestError
from edge_sdk.wire.contract.manifest.graphs import (
    AIDED_FORECAST,
    CLIPPED_GRADIENT,
    DECODE,
    ENCODE,
    ENCODE_VJP,
    FORECAST,
    GRADIENT,
    HIDDEN,
    HVP,
    ROBUST_GRADIENT,
    SIGNATURES,
    SPLIT,
)
from edge_sdk.wire.contract.manifest.sections import (
    BUNDLE_NAME,
    LEAD_SDK,
    OPTIONAL_SDK,
    Feature,
    Golden,
    GraphFile,
    LipschitzStage,
    Loss,
    Target,
    Training,
    Window,
    oldest_sdk,
)

__all__ = [
    "AIDED_FORECAST",
    "BUNDLE_NAME",
    "CLIPPED_GRADIENT",
    "DECODE",
    "ENCODE",
    "ENCODE_VJP",
    "FORECAST",
    "GRADIENT",
    "HIDDEN",
    "HVP",
    "LEAD_SDK",
    "OPTIONAL_SDK",
    "ROBUST_GRADIENT",
    "SIGNATURES",
    "SPLIT",
    "Feature",
    "Golden",
    "GraphFile",
    "LipschitzStage",
    "Loss",
    "Manifest",
    "ManifestError",
    "Target",
    "Training",
    "Window",
    "oldest_sdk",
]
