"""Define the device's interface for a method's half; its data is already privacy-protected."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.runtime import GraphError

_NONE = np.zeros(0, np.float32)

Graph = Callable[..., tuple[Array, ...]]
"""An exported function: named arrays in, results in the manifest's order out."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some windows as arrays, scaled."""

    x: NDArray[np.float32]  # inputs, shape ``(B, lookback, channels)``, float32
    y: NDArray[np.float32]  # targets, shape ``(B, horizon)``, float32

    def __len__(self) -> int:
        return len(self.x)


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
    """Do nothing: a shell without other work."""


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """Windows and graphs that a half may use, and keyed randomness; the shell is called between two batches.

    The shell may raise in that call (a newer task, shutdown). A half is pure, so its state is then
    unchanged.
    """

    client: str  # this device's id
    spec: ParamSpec  # the layout of its vector, with the run's shared layers marked
    graphs: Mapping[str, Graph]  # the bundle's graphs by name
    # function that returns the windows for training; called anew after new readings
    windows: Callable[[], Any]  # Windows, or NumberedWindows where a half selects by number
    size: int  # windows in a minibatch
    # ``(purpose, round) -> Generator``, e.g. ``partial(keyed, run, device)``
    key: Callable[[str, int], np.random.Generator]
    # called between two batches; may raise to stop the training
    turn: Callable[[], None] = do_nothing
    # mean loss of a whole vector on held-back windows, or None without any: a measured number without
    # noise, for local decisions; it is reported only under a name that a contract declares as measured
    judged: Callable[[Vector], float | None] = lambda _p: None
    # the newest window after noise: its number, and ``(1, lookback, channels)``; None while the readings
    # do not reach far enough back, or are not available for training
    newest: Callable[[], tuple[int, NDArray[np.float32]] | None] = lambda: None
    # function for the held-back windows; None without any
    held: Callable[[], Any] = lambda: None  # NumberedWindows, or None

    @property
    def count(self) -> int:
        """Return the number of windows available for training now; 0 without any."""
        return len(self.windows())

    def batches(self, steps: int, of_round: int, *, fresh: bool) -> Iterator[Batch]:
        """Yield ``steps`` minibatches, and call the shell between two; none without windows.

        The draw depends on run, device and round only: a second call for the same round gives the
        same batches. ``fresh`` draws a new one for each step; otherwise one is drawn and repeated.
        """
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

    def span(self, *, held: bool = False) -> tuple[int, int] | None:
        """Return the numbers of the first and last window for training; None without any.

        A window's number is the start of its last row in Unix seconds over the step: the same for
        all devices at the same time. ``held`` selects held-back windows instead.
        """
        windows: NumberedWindows | None = self.held() if held else self.windows()
        return None if windows is None else windows.span()

    def named(self, ids: Array, *, held: bool = False) -> tuple[NDArray[np.bool_], Batch]:
        """Return whether each of these windows is available for training, and the available ones, in order.

        ``held`` selects held-back windows instead.
        """
        windows: NumberedWindows | None = self.held() if held else self.windows()
        if windows is None:
            return np.zeros(len(ids), np.bool_), Batch(_NONE, _NONE)
        return windows.named(ids)


class _Key:
    """A seed that is the key itself: ``Philox(key=...)`` would first draw one, most of its time."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        """Return the key; Philox asks for its two words."""
        del n_words, dtype
        return self._words


@cache
def _register_key() -> None:
    from numpy.random.bit_generator import ISeedSequence  # noqa: PLC0415 - 2 MB, with the first draw

    ISeedSequence.register(_Key)


def keyed(run: int, device: str, purpose: str, of_round: int) -> np.random.Generator:
    """Return a counter-based generator (Philox) for one purpose of one round.

    Never for privacy noise: anyone who has the four key parts can draw the same numbers.

    >>> first, again = (keyed(1, "meter-1", "batch", 7).random() for _ in range(2))
    >>> first == again, first == keyed(1, "meter-1", "batch", 8).random()
    (True, False)
    """
    _register_key()
    text = "\0".join(("gridfed/1/draw", str(run), device, purpose, str(of_round)))
    digest = hashlib.sha256(text.encode()).digest()
    words = np.frombuffer(digest[15::-1], "<u8")  # of the first 16 bytes as one big-endian number
    philox = np.random.Philox(_Key(words))  # type: ignore[arg-type]  # the stub lacks the interface
    return np.random.Generator(philox)
