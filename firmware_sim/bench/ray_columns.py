"""Compute blocks of columns of an aggregation rule on a Ray cluster.

A block is one task on one processor. Ray repeats a task whose process has died. The blocks are handed
over some at a time, so the cluster's memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from firmware_sim.bench.ray_runs import RayRunError


@dataclass(frozen=True)
class RayColumns:
    """Executor of blocks for ``aggregator.rules.blocked_ops.executed_by``.

    Functions, blocks and the order of the results do not depend on the cluster, so a rule has the bits of
    one process where the processors are of one kind.

    Examples:
        200 rows of float32 make blocks of ten columns of 8,000 bytes:

        >>> RayColumns(None, block_bytes=8_000).columns(200, 4)
        10
        >>> RayColumns(None, block_bytes=8_000).columns(100_000, 4)
        1
    """

    ray: Any  # the module ``ray``, connected (``firmware_sim.bench.ray_runs.ray_cluster``)
    # size of a block in bytes, at most; a block has at least one column
    block_bytes: int = 8_000_000
    # largest number of blocks that were handed over and whose results were not used
    in_flight: int = 8

    def columns(self, count: int, itemsize: int) -> int:
        return max(1, self.block_bytes // (count * itemsize))

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterator[Any]:
        """Return the function's result for every block, in order.

        Raises:
            RayRunError: The cluster lost a task, or its function raised.
        """
        task = self.ray.remote(num_cpus=1)(_applied)
        common = self.ray.put(function)
        waiting: deque[Any] = deque()
        try:
            for block in blocks:
                waiting.append(task.remote(common, block))
                if len(waiting) >= self.in_flight:
                    yield self.ray.get(waiting.popleft())
            while waiting:
                yield self.ray.get(waiting.popleft())
        except self.ray.exceptions.RayError as error:
            raise RayRunError(f"a block of columns: {str(error).splitlines()[-1]}") from error


def _applied(function: Callable[[Any], Any], block: Any) -> Any:  # noqa: ANN401 - what the rule hands over
    return function(block)
