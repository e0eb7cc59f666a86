"""Write a function of tensors as an ONNX graph, for the nets of other extensions."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from torch import Tensor

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import emit
from aggregator.extensions.authoring.trace import trace


def emitted(
    function: Callable[..., Any],
    examples: Sequence[Tensor],
    open_sizes: Container[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    """Return a graph whose sizes are fixed but for those of ``open_sizes``.

    Raises:
        ExportError: An operator or a size that cannot be written.
    """
    traced = trace(function, examples, Lowering("unrolled"), (), open_sizes)
    text: bytes = emit(traced, inputs, outputs).SerializeToString()
    return text
