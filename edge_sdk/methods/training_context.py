"""Define the device's interface for a method's half; its data is already privacy-protected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_sdk.runtime import GraphError
from edge_sdk.wire.contract.method import Array
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector

_NONE = np.zeros(0, np.float32)

Graph = Callable[..., tuple[Array, ...]]
"""An exported function: named arrays in, results in the manifest's order out."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some windows as arrays, scaled.

    Attributes:
        x: Inputs, shape ``(B, lookback, channels)``, float32.
        y: Targets, shape ``(B, horizon)``, float32.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.x)


class TrainingContext(Protocol):
    """Data and graphs that a half may use; between two batches the shell gets a turn.

    The shell may raise in that turn (a newer task, shutdown). A half is pure, so its state is then
    unchanged.
    """

    @property
    def client(self) -> str:
        """Return the id of this device."""

    @property
    def spec(self) -> ParamSpec:
        """Return the layout of the vector, with the run's shared layers marked."""

    @property
    def count(self) -> int:
        """Return the number of windows available for training now; 0 without any."""

    def batches(self, steps: int, of_round: int, *, fresh: bool) -> Iterator[Batch]:
        """Yield ``steps`` minibatches; none at all without windows.

        The draw depends on run, device and round only: a second call for the same round gives the
        same batches. ``fresh`` draws a new one for each step; otherwise one is drawn and repeated.
        """

    def run(self, graph: str, **feeds: Array) -> tuple[Array, ...]:
        """Run a graph of the bundle by its name."""

    def judged(self, p: Vector) -> float | None:
        """Return a whole vector's mean loss on held-back windows; None without any.

        It is a measured number without noise: a half uses it for local decisions, and reports it
        only under a name that its contract declares as measured.
        """

    def span(self, *, held: bool = False) -> tuple[int, int] | None:
        """Return the numbers of the first and last window for training; None without any.

        A window's number is the start of its last row in Unix seconds over the step: the same for
        all devices at the same time. ``held`` selects held-back windows instead.
        """

    def named(self, ids: Array, *, held: bool = False) -> tuple[NDArray[np.bool_], Batch]:
        """Return which windows of these numbers are available for training, and those, in order.

        ``held`` selects held-back windows instead.
        """

    def newest(self) -> tuple[int, NDArray[np.float32]] | None:
        """Return the newest window as it may be sent: its number, and ``(1, lookback, channels)``.

        None while the readings do not reach far enough back, or are not available for training.
        """


class Windows(Protocol):
    """Windows to draw from (``edge_sdk.forecasting.windows`` implements them)."""

    def __len__(self) -> int:
        """Return the number of windows."""

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        """Draw ``size`` windows without repetition, or all when there are fewer."""


class NumberedWindows(Windows, Protocol):
    """Windows that can also be selected by their numbers."""

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last number; None without any window."""

    def named(self, ids: Array) -> tuple[NDArray[np.bool_], Batch]:
        """Return which of these numbers exist, and their windows."""


def do_nothing() -> None:
    """Do nothing: the turn of a shell without other work."""


def no_held_back() -> None:
    """Return None: no windows are held back."""


def no_newest() -> tuple[int, NDArray[np.float32]] | None:
    """Return None: there is no window to forecast from."""
    return None


def no_loss(_p: Vector) -> float | None:
    """Return None: no windows are held back."""
    return None


@dataclass(frozen=True, slots=True)
class ShellContext:
    """Default ``TrainingContext`` of every shell: windows, graphs and keyed randomness.

    Attributes:
        client: This device's id.
        spec: The layout of its vector.
        graphs: The bundle's graphs by name.
        windows: Function that returns the windows for training; called anew after new readings.
        size: Windows in a minibatch.
        key: ``(purpose, round) -> Generator``, e.g. ``partial(keyed, run, device)`` of
            ``edge_sdk.training.keyed_rng``.
        turn: Called between two batches; may raise to stop the training.
        judge: Function for a whole vector's loss on held-back windows, or None.
        latest: Function for the newest window as it may be sent, or None.
        held: Function for the held-back windows; None without any.
    """

    client: str
    spec: ParamSpec
    graphs: Mapping[str, Graph]
    windows: Callable[[], Any]  # Windows, or NumberedWindows where a half selects by number
    size: int
    key: Callable[[str, int], np.random.Generator]
    turn: Callable[[], None] = do_nothing
    judge: Callable[[Vector], float | None] = no_loss
    latest: Callable[[], tuple[int, NDArray[np.float32]] | None] = no_newest
    held: Callable[[], Any] = no_held_back  # NumberedWindows, or None

    @property
    def count(self) -> int:
        """Return the number of windows available for training."""
        return len(self.windows())

    def batches(self, steps: int, of_round: int, *, fresh: bool) -> Iterator[Batch]:
        """Yield this round's minibatches, giving the shell a turn between two."""
        windows: Windows = self.windows()
        if not len(windows):
            return
        rng = self.key("batch", of_round)
        batch = windows.draw(rng, self.size)
        for step in range(steps):
            if step:
                self.turn()
                batch = windows.draw(rng, self.size) if fresh else batch
            yield batch

    def run(self, graph: str, **feeds: Array) -> tuple[Array, ...]:
        """Run a graph of the bundle by its name.

        Raises:
            GraphError: The bundle has no such graph: the method may request it, but this run's
                bundle does not contain it.
        """
        if graph not in self.graphs:
            raise GraphError(f"this bundle has no graph {graph!r}, which the task requires")
        return self.graphs[graph](**feeds)

    def judged(self, p: Vector) -> float | None:
        """Return a whole vector's mean loss on held-back windows; None without any."""
        return self.judge(p)

    def span(self, *, held: bool = False) -> tuple[int, int] | None:
        """Return the numbers of the first and last window for training; None without any."""
        windows: NumberedWindows | None = self.held() if held else self.windows()
        return None if windows is None else windows.span()

    def named(self, ids: Array, *, held: bool = False) -> tuple[NDArray[np.bool_], Batch]:
        """Return which windows of these numbers are available for training, and those, in order."""
        windows: NumberedWindows | None = self.held() if held else self.windows()
        if windows is None:
            return np.zeros(len(ids), np.bool_), Batch(_NONE, _NONE)
        return windows.named(ids)

    def newest(self) -> tuple[int, NDArray[np.float32]] | None:
        """Return the newest window as it may be sent, and its number."""
        return self.latest()
