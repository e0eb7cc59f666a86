"""Local: all of this device that a half may touch; what it hands out is already protected."""

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
    """Some windows at once, scaled.

    Attributes:
        x: Inputs, shape ``(B, lookback, channels)``, float32.
        y: Targets, shape ``(B, horizon)``, float32.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]

    def __len__(self) -> int:
        """How many windows it holds."""
        return len(self.x)


class TrainingContext(Protocol):
    """The privacy boundary, and the heartbeat: between two batches the shell has a turn.

    The shell may raise in that turn (a newer task, shutdown). A half is pure, so nothing has
    happened then.
    """

    @property
    def client(self) -> str:
        """The id of this device."""

    @property
    def spec(self) -> ParamSpec:
        """The layout of its vector, with the run's shared layers marked."""

    @property
    def count(self) -> int:
        """How many windows it could learn from right now; 0 when there is nothing to learn."""

    def batches(self, steps: int, of_round: int, *, fresh: bool) -> Iterator[Batch]:
        """Yield ``steps`` minibatches; none at all if there are no windows.

        The draw depends on run, device and round only: asked again, the same round gives the same
        batches. ``fresh`` draws a new one for each step; otherwise one is drawn and repeated.
        """

    def run(self, graph: str, **feeds: Array) -> tuple[Array, ...]:
        """Run a graph of the bundle by its name."""

    def judged(self, p: Vector) -> float | None:
        """Return a whole vector's mean loss on windows that are held back; None without any.

        A measured number, and nothing is added to it: a half decides by it here, and reports it
        only under a name that its contract declares as measured.
        """

    def span(self, *, held: bool = False) -> tuple[int, int] | None:
        """Return the numbers of the first and last window to learn from; None without any.

        A window's number is the start of its last row in Unix seconds over the step: the same for
        all devices at the same time. ``held`` asks for those that are held back instead.
        """

    def named(self, ids: Array, *, held: bool = False) -> tuple[NDArray[np.bool_], Batch]:
        """Return which windows of these numbers one may learn from, and those, in order.

        ``held`` asks for those that are held back instead.
        """

    def newest(self) -> tuple[int, NDArray[np.float32]] | None:
        """Return the newest window as it may leave: its number, and ``(1, lookback, channels)``.

        None while the readings do not reach far enough back, or may not be learned from.
        """


class Windows(Protocol):
    """What can be drawn from (``edge_sdk.forecasting.windows`` has the real one)."""

    def __len__(self) -> int:
        """How many windows there are."""

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        """Draw ``size`` windows without repetition, or all when there are fewer."""


class NumberedWindows(Windows, Protocol):
    """Windows that can also be asked for by their numbers."""

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last number; None without any window."""

    def named(self, ids: Array) -> tuple[NDArray[np.bool_], Batch]:
        """Return which of these numbers there are, and their windows."""


def nothing() -> None:
    """Do nothing: the turn of a shell that has no one to serve."""


def unheld() -> None:
    """Say that no windows are held back, by name or otherwise."""


def unready() -> tuple[int, NDArray[np.float32]] | None:
    """Say that there is nothing to forecast from."""
    return None


def unjudged(_p: Vector) -> float | None:
    """Say that no windows are held back."""
    return None


@dataclass(frozen=True, slots=True)
class ShellContext:
    """The plain ``TrainingContext`` of every shell: windows, graphs and a keyed source of randomness.

    Attributes:
        client: This device's id.
        spec: The layout of its vector.
        graphs: The bundle's graphs by name.
        windows: What there is to learn from; the shell lends anew when readings came.
        size: Windows in a minibatch.
        key: ``(purpose, round) -> Generator``, e.g. ``partial(keyed, run, device)`` of
            ``edge_sdk.training.keyed_rng``.
        turn: Called between two batches; may raise to stop the training.
        judge: A whole vector's loss on windows that are held back, or None.
        latest: The newest window as it may leave, or None.
        held: Windows that are held back, to judge by; None without any.
    """

    client: str
    spec: ParamSpec
    graphs: Mapping[str, Graph]
    windows: Callable[[], Any]  # Windows; Numbered, where a half asks for windows by number
    size: int
    key: Callable[[str, int], np.random.Generator]
    turn: Callable[[], None] = nothing
    judge: Callable[[Vector], float | None] = unjudged
    latest: Callable[[], tuple[int, NDArray[np.float32]] | None] = unready
    held: Callable[[], Any] = unheld  # Numbered, or None

    @property
    def count(self) -> int:
        """How many windows there are to learn from."""
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
            GraphError: The bundle has no such graph: a task asked for what its method may want,
                but this run's bundle was not made for.
        """
        if graph not in self.graphs:
            raise GraphError(f"this bundle has no graph {graph!r}, which the task asks for")
        return self.graphs[graph](**feeds)

    def judged(self, p: Vector) -> float | None:
        """Return a whole vector's mean loss on windows that are held back; None without any."""
        return self.judge(p)

    def span(self, *, held: bool = False) -> tuple[int, int] | None:
        """Return the numbers of the first and last window to learn from; None without any."""
        windows: NumberedWindows | None = self.held() if held else self.windows()
        return None if windows is None else windows.span()

    def named(self, ids: Array, *, held: bool = False) -> tuple[NDArray[np.bool_], Batch]:
        """Return which windows of these numbers one may learn from, and those, in order."""
        windows: NumberedWindows | None = self.held() if held else self.windows()
        if windows is None:
            return np.zeros(len(ids), np.bool_), Batch(_NONE, _NONE)
        return windows.named(ids)

    def newest(self) -> tuple[int, NDArray[np.float32]] | None:
        """Return the newest window as it may leave, and its number."""
        return self.latest()
