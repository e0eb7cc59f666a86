"""Run the cells of a sweep, or blocks of columns of a rule, on a Ray cluster: started here, or at an address.

A run is one task on one processor. A task whose process dies is repeated by Ray. Every machine needs
gridfed and its packages in the same versions, and the readings and the bundle at the same paths; each task
compares both with the sweep's before it runs.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from edge_sdk.errors import Failure
from firmware_sim.bench.results import definition, digest_of, versions
from firmware_sim.bench.sweep import SweepCell, SweepDefinition, record_of
from firmware_sim.reports.progress_display import PlainDisplay

# address of a cluster that is started for the sweep, on loopback, and stopped after it
LOCAL = "local"
_STORE_BYTES = 100_000_000


class RayRunError(Failure):
    """A run on the cluster failed, or a machine has other packages or files."""


class RayConnectionError(Failure):
    """There is no cluster at the address, or none could be started."""


@contextmanager
def ray_cluster(address: str, processors: int | None = None) -> Iterator[RayExecutor]:
    """Connect to a cluster, or start one on this machine; disconnect or stop it at the end.

    Ray's usage report, which sends data over the network, is turned off.

    Args:
        address: Address of a cluster as ``ray.init`` takes it, or ``local``.
        processors: Number of processors of a local cluster; None is all.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray: Any = import_module("ray")
    options: dict[str, Any] = {"address": address}
    folder = None
    if address == LOCAL:
        folder = tempfile.mkdtemp(prefix="gf-ray-", dir="/tmp")
        options |= {
            "num_cpus": processors or os.cpu_count(),
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": folder,
        }
    try:
        try:
            with _kept_handler():
                ray.init(**options, log_to_driver=False, logging_level="error")
        except Exception as error:  # Ray raises Exception itself, as a timeout
            raise RayConnectionError(
                f"Ray at {address!r}: {error}",
                hint="if the cluster requires a token, set RAY_AUTH_MODE=token here as well",
            ) from error
        yield RayExecutor(ray)
    finally:
        with _kept_handler():
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept_handler() -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)


@dataclass(frozen=True)
class RayExecutor:
    """Runs cells as tasks of a cluster; each has the bits of a run in one process."""

    ray: Any  # the module ``ray``, connected

    def records(
        self, sweep: SweepDefinition, cells: Iterable[SweepCell]
    ) -> Iterator[tuple[SweepCell, dict[str, Any]]]:
        """Return each cell with its record, as runs end; raise RayRunError if one fails, and cancel the others."""
        task = self.ray.remote(num_cpus=1)(_outcome)
        common = self.ray.put((sweep, str(Path.cwd()), versions()))
        waiting = {task.remote(common, cell): cell for cell in cells}
        try:
            while waiting:
                (ended,), _ = self.ray.wait(list(waiting), num_returns=1)
                cell = waiting.pop(ended)
                found = self.ray.get(ended)
                if isinstance(found, str):
                    raise RayRunError(f"{cell.name}: {found}")
                yield cell, found
        except self.ray.exceptions.RayError as error:
            raise RayRunError(f"{cell.name}: {error}") from error
        finally:
            for left in waiting:
                with suppress(self.ray.exceptions.RayError):
                    self.ray.cancel(left, force=True)


def _outcome(common: tuple[SweepDefinition, str, dict[str, str]], cell: SweepCell) -> Any:  # noqa: ANN401 - the record, or the text of a failure
    sweep, folder, wanted = common
    found = versions()
    if found != wanted:
        names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        return f"other versions on a machine of the cluster: {', '.join(names)}"
    try:
        os.chdir(folder)
        mark = digest_of(definition(sweep.scenario, sweep.samples, list(sweep.seeds)))
        if mark != sweep.mark:
            return "other readings or another bundle on a machine of the cluster"
        return record_of(sweep, cell, PlainDisplay(io.StringIO()))
    except (Failure, OSError) as error:
        return str(error)


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
        """Return the function's result for every block, in order; raise RayRunError if it raised, or was lost."""
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
