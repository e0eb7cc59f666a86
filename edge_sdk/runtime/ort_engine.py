"""Run graphs with onnxruntime: one session, one thread, little memory. The only importer of it."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from edge_sdk.protocol.contract.method import Array
from edge_sdk.runtime import GraphError, require_inputs

_QUIET = 3  # errors only: the optimiser's messages are kept out of a device's journal


class OrtGraph:
    """A graph run by onnxruntime.

    Execution is sequential, at a fixed number of threads: one and two threads give different last
    bits, so where hashes are compared the count must not depend on the machine.
    """

    def __init__(self, data: bytes, *, threads: int = 1) -> None:
        """Build the session (0.1 to 0.4 s on a small device for a recurrent gradient).

        Raises:
            GraphError: onnxruntime cannot load these bytes.
        """
        try:
            self._session = ort.InferenceSession(
                data, _options(threads), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions share no public base class
            engine = f"onnxruntime {ort.__version__}"
            raise GraphError(f"{engine} cannot load the graph: {error}") from error
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())

    def __call__(self, **feeds: Array) -> tuple[Array, ...]:
        """Run the graph once. Feeds are float32 arrays by input name; results in output order.

        Raises:
            GraphError: A feed is missing, unknown, or of a shape or type the graph refuses.
        """
        require_inputs(self.inputs, feeds)
        arrays = {name: np.asarray(value, np.float32) for name, value in feeds.items()}
        try:
            results = self._session.run(None, arrays)
        except Exception as error:  # as above
            raise GraphError(f"the graph could not run: {error}") from error
        return tuple(results)


def _options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = (
        True  # 1 MB more resident; without it batch 64 takes twice as long
    )
    options.enable_mem_pattern = True  # plans one block for a shape: a third faster at batch 8
    options.enable_mem_reuse = False  # a plan without shapes, quadratic in nodes: 0.1 s to load
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # as fast as all
    options.log_severity_level = _QUIET
    return options
