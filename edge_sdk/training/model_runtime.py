"""Run a bundle on this device's series: training, evaluation and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from edge_sdk.config import Config
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.conformal import ConformalCalibration, CoverageTarget
from edge_sdk.forecasting.forecast import POINT, Forecast, SourceOf, fan, least, predict, rolling
from edge_sdk.forecasting.intervals import IntervalTracker, SavedCalibration
from edge_sdk.forecasting.series import Reading, ReadingOutcome, Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable, Scale
from edge_sdk.methods import Factory
from edge_sdk.methods.local_sgd import LocalSgd, LocalState, fedavg
from edge_sdk.methods.split import SERVE
from edge_sdk.methods.training_context import Graph, ShellContext, nothing
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.training.canary import Measured, fault, measure
from edge_sdk.training.keyed_rng import keyed
from edge_sdk.wire.contract.manifest import AIDED_FORECAST, Manifest
from edge_sdk.wire.contract.method import CONTRACTS, Array, Effects, Event, Half, Task
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector

HELD = 256
"""Maximum number of held-back windows in an evaluation; bounds the memory of one batch."""

NARROWEST = 0.01
"""Minimum width of an interval, as a share of the series' scale."""


class RunnableBundle(Protocol):
    """The interface of a verified bundle (``edge_sdk.bundle`` has the real one)."""

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""

    @property
    def initial(self) -> Vector:
        """Its initial parameter vector."""

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """Its functions by name, loaded."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of its archive; identifies it in announcements."""


@dataclass(frozen=True, slots=True)
class RunRole:
    """The role of this device in a run: run number, method and shared layers."""

    run: int
    method: str
    shared: tuple[str, ...]


@dataclass(slots=True)
class ModelRuntime:
    """One bundle on the readings of one device.

    Attributes:
        config: The device's configuration.
        bundle: The bundle in use.
        role: Role of the device in the run.
        factory: Creates the device half of the run's method.
        series: Readings, on the bundle's grid.
        mechanism: Privacy mechanism between the readings and everything learned.
        scale: Scale of the model's training; fixed at the first training.
        kept: State of the interval calibration; None before the first forecast.
        between_batches: Called between two minibatches; may raise to stop the training.
    """

    config: Config
    bundle: RunnableBundle
    role: RunRole
    factory: Factory
    series: Series
    mechanism: Mechanism
    scale: Scale | None = None
    kept: SavedCalibration | None = None
    between_batches: Callable[[], None] = nothing
    spec: ParamSpec = field(init=False)
    half: Half[Any] = field(init=False)
    alone: Half[LocalState] = field(init=False)
    _frame: ChannelFrame | None = field(init=False, default=None)
    _learnable: ChannelFrame | None = field(init=False, default=None)
    _measured: tuple[tuple[Vector, ChannelFrame, Measured], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Create the device half for this bundle and mechanism."""
        manifest = self.bundle.manifest
        self.spec = manifest.spec(self.role.shared)
        local = ShellContext(
            client=self.config.id,
            spec=self.spec,
            graphs=self.mechanism.graphs(self.bundle.graphs),
            windows=self.learnable,
            size=manifest.training.batch,
            key=partial(keyed, self.role.run, self.config.id),
            turn=self.between_batches,
            judge=self.judged,
            latest=self.newest_learnable,
            held=self.held_back,
        )
        self.half = self.factory(local, LocalSgd.of(manifest.training))
        self.alone = fedavg(local, LocalSgd.of(manifest.training))

    @property
    def manifest(self) -> Manifest:
        """Manifest of the bundle."""
        return self.bundle.manifest

    def first_state(self) -> Any:  # noqa: ANN401 - the half's own type
        """Return the initial state: the bundle's vector, with personal layers of this device."""
        initial = self.bundle.initial
        if self.config.accept.personal_init == "device":
            initial = own_start(initial, self.spec, self.config.id)
        return self.half.init(initial)

    def observe(self, reading: Reading, latest: float) -> ReadingOutcome:
        """Merge one reading into the series."""
        seen = self.series.add(reading, latest=latest)
        if seen is ReadingOutcome.NEW or seen is ReadingOutcome.CHANGED:
            self._frame = self._learnable = None
        return seen

    def load(self, rows: list[SeriesRow]) -> None:
        """Add saved readings."""
        self.series.load(rows)
        self._frame = self._learnable = None

    def restore_intervals(self, kept: SavedCalibration | None) -> None:
        """Set the state of the interval calibration that was saved; None recomputes it."""
        self.kept = kept

    def fix_scale(self, scale: Scale) -> None:
        """Set the scale of a training that was saved."""
        self.scale = scale

    def forget(self) -> None:
        """Discard the scale, and what was derived from the readings."""
        self.scale = self.kept = self._frame = self._learnable = None

    def frame(self) -> ChannelFrame:
        """Return the model's input channels, computed once after every change."""
        if self._frame is None:
            self._frame = self._framed(self.series)
        return self._frame

    def windows(self) -> Drawable:
        """Return the windows of the unperturbed readings: for counting and readiness only."""
        return self._drawable(self.frame())

    def learnable(self) -> Drawable:
        """Return the windows for training: perhaps of perturbed readings, on their own scale.

        Called only for training: it perturbs and stores readings that have no noise yet.
        """
        return self._drawable(self._learnable_frame())

    def judged(self, vector: Vector) -> float | None:
        """Return a vector's loss on windows held back from training; None without any.

        The windows come from the training series, so they may be perturbed, and are the same for
        every vector until a reading arrives. None where the mechanism covers gradients only: a
        model selected by a noise-free loss would reveal that loss in every later update.
        """
        held = self.held_back() if self.mechanism.judges else None
        if held is None:
            return None
        rng = keyed(self.role.run, self.config.id, "held back", 0)
        batch = held.draw(rng, HELD)
        loss, *_ = self.bundle.graphs["gradient"](p=vector, x=batch.x, y=batch.y)
        return float(loss)

    def held_back(self) -> Drawable | None:
        """Return the windows held back from training; None without any."""
        if self.config.training.split != "train":
            return None
        frame = self._learnable_frame()
        held = Drawable(frame, frame.origins("validation") if len(frame) else np.zeros(0, np.int64))
        return held if len(held) else None

    def learn(self, state: Any, task: Task) -> tuple[Any, Effects]:  # noqa: ANN401 - as above
        """Apply a training task to a state; return the new state and its effects.

        Pure except for the series' scale, fixed here, and the calibration, updated before.
        """
        self.calibrate(state)
        self.mechanism.begin()
        self._fix_scale()
        return self.half.apply(state, task)

    def play(self, state: Any, event: Event) -> tuple[Any, Effects]:  # noqa: ANN401 - as above
        """Apply a perishable event: as ``learn``, but no noise is drawn for it."""
        self.calibrate(state)
        self._fix_scale()
        return self.half.apply(state, event)

    def learn_alone(self, state: Any, task: Task) -> LocalState:  # noqa: ANN401 - as above
        """Take plain SGD steps from the learned state, whatever the run's method is."""
        self.calibrate(state)
        begun = state if isinstance(state, LocalState) else LocalState(self.vector(state))
        self._fix_scale()
        return self.alone.apply(begun, task)[0]

    def fault_of(self, candidate: Any, present: Any) -> str:  # noqa: ANN401 - the half's own type
        """Return why a state must not replace the one in use; empty if it may or cannot be tested.

        Its parameters and those that it forecasts with are tested on the newest windows of the
        training series (``edge_sdk.training.canary``). Nothing is tested where privacy depends only
        on noise in the gradient, or in readings that are not perturbed yet.
        """
        point = self.mechanism.plan.mechanism.point
        if point == "gradient" or (point == "input" and self._learnable is None):
            return ""
        for mine, theirs in zip(self._vectors(candidate), self._vectors(present), strict=True):
            if mine is theirs:
                continue
            if found := fault(self._measure(mine), self._measure(theirs)):
                return found
        return ""

    def mends(self, candidate: Any, present: Any, task: Task) -> bool:  # noqa: ANN401 - as above
        """Return whether the received model was at fault, and training made it no worse.

        Then the update is a step back to usable forecasts, though this device keeps its own state.
        """
        size = self.spec.shared_size
        given = [v for v in task.arrays.values() if v.shape == (size,)]
        if not given or not np.isfinite(given[0]).all():
            return False
        own = self.vector(present)
        received = self._measure(self.spec.place(own, given[0].astype(np.float32)))
        made = self._measure(self._vectors(candidate)[1])
        return bool(fault(received, self._measure(own))) and made.error <= received.error

    def is_measurable(self) -> bool:
        """Return whether there are windows to test parameters on."""
        return len(self.windows()) > 0

    def _vectors(self, state: Any) -> tuple[Vector, Vector]:  # noqa: ANN401 - as above
        return self.vector(state), np.asarray(state.p, np.float32)

    def _measure(self, p: Vector) -> Measured:
        """Forecast the canary windows, once for each vector and series."""
        frame = self._learnable if self._learnable is not None else self.frame()
        for vector, of, known in self._measured:
            if vector is p and of is frame:
                return known
        found = measure(self.bundle.graphs["forecast"], p, frame)
        self._measured = (*self._measured[-3:], (p, frame, found))
        return found

    @property
    def newest(self) -> int | None:
        """Number of the newest window of the unperturbed readings; None while it is incomplete.

        It equals that of ``Drawable.named``: the same on all devices at the same time.
        """
        return self.frame().newest if len(self.series) else None

    def newest_learnable(self) -> tuple[int, Array] | None:
        """Return the newest window for release: its number, and ``(1, lookback, channels)``.

        It comes from the training series, so perhaps from perturbed readings: the noise of a
        reading that has none yet is drawn, stored and charged by this call, as for training.

        Returns:
            None while it is incomplete, or while part of it may not be used for training.
        """
        if self.newest is None:
            return None
        frame = self._learnable_frame()
        if frame.newest != self.newest:
            return None
        return self.newest, frame.inputs(np.array([len(frame) - 1], np.int64))

    @property
    def is_ready(self) -> bool:
        """Return whether the model can forecast from the newest window."""
        return len(self.series) > 0 and self.frame().is_ready

    def forecast(self, state: Any) -> Forecast:  # noqa: ANN401 - as above
        """Forecast the values after the newest reading, with a calibrated interval."""
        p, frame = self.vector(state), self.frame()
        graph, source = self._helped(state)
        if len(frame) and self._follows:
            self.kept = self._follower.follow(self.kept, frame, p, self._teller(p))
        told = predict(graph, p, frame, self.levels, self._moved(p, graph))
        return replace(told, source=source) if told.source == "model" else told

    def _helped(self, state: Any) -> tuple[Graph, SourceOf]:  # noqa: ANN401 - as above
        """Return the graph to forecast the newest window with, and the name of its source.

        In a split method the server sends z for the window; without it, z is zero.
        """
        alone, aided = self.bundle.graphs["forecast"], self.bundle.graphs.get(AIDED_FORECAST)
        if aided is None or SERVE not in CONTRACTS[self.role.method]:
            return alone, "model"
        if self.newest is not None and self.helped_at(state) == self.newest:
            z = self.half.model(state)["z"]
            return partial(aided, z=z.astype(np.float32)), "model"
        return alone, "without graph"

    def _moved(self, p: Vector, graph: Graph) -> tuple[ConformalCalibration, CoverageTarget] | None:
        """Return the calibration of a graph's interval and its target coverage, or None."""
        if self.kept is None or not self._follows:
            return None
        follower, frame = self._follower, self.frame()
        if graph is self.bundle.graphs["forecast"]:
            return self.kept.calibration, follower.aim
        newest = np.array([len(frame) - 1], np.int64)
        self.kept = follower.aid(self.kept, frame, fan(graph, p, frame, newest, self.levels)[0])
        assert self.kept.aided is not None
        return self.kept.aided, follower.aim

    def helped_at(self, state: Any) -> int | None:  # noqa: ANN401 - as above
        """Return the number of the last window that the server's graph answered, or None."""
        feeds = {} if isinstance(state, LocalState) else self.half.model(state)
        return int(feeds["window"]) if "window" in feeds else None

    def calibrate(self, state: Any) -> None:  # noqa: ANN401 - as above
        """Update the calibration with new readings, before the model learns from them.

        Nothing happens before the first forecast: no interval has been issued.
        """
        if self.kept is None or not (len(self.series) and self._follows):
            return
        frame, p = self.frame(), self.vector(state)
        if self.kept.calibration.upto < int(frame.times[-1]) // self.series.step:
            self.kept = self._follower.follow(self.kept, frame, p, self._teller(p))
            if self.kept.aided is not None:
                self.kept = self._follower.aid(self.kept, frame, None)

    def intervals(self, state: Any, begin: float, end: float) -> Floats | None:  # noqa: ANN401 - as above
        """Return the intervals that go with ``rolling``, ``(n, horizon, 2)``; None without any.

        Each is what the present model would have issued: calibrated on earlier readings only.
        """
        if len(self.levels) == 1:
            return None
        frame, p = self.frame(), self.vector(state)
        origins = self._origins(begin, end)
        if self._follows:
            return self._follower.served(frame, origins, self._teller(p))
        return np.asarray(self._teller(p)(origins)[:, :, [0, -1]])

    def rolling(self, state: Any, begin: float, end: float) -> tuple[Ints, Floats, Floats]:  # noqa: ANN401 - as above
        """Forecast from every complete window whose first target is in a span of time.

        Returns:
            Times of the first targets, forecasts and truth ``(n, horizon)``, NaN where unobserved.
        """
        frame = self.frame()
        origins = self._origins(begin, end)
        graph, p = self.bundle.graphs["forecast"], self.vector(state)
        told = rolling(graph, p, frame, origins, self.levels)
        return frame.times[origins] + self.series.step, told, frame.truth(origins)

    @property
    def levels(self) -> tuple[float, ...]:
        """The quantile levels of the model, rising; the median alone for a point forecast."""
        return self.manifest.loss.levels or POINT

    @property
    def _follows(self) -> bool:
        return len(self.levels) > 1 and self.config.forecast.calibrate

    @property
    def _follower(self) -> IntervalTracker:
        said, frame = self.config.forecast, self.frame()
        aim = CoverageTarget.of(
            self.levels,
            said.coverage,
            gain=said.step_size,
            least=least(frame),
            narrowest=NARROWEST * frame.scale.width,
        )
        return IntervalTracker(aim, said.calibration_windows, self.manifest.digest)

    def _teller(self, p: Vector) -> Callable[[Ints], Floats]:
        """Return the function that forecasts quantiles from origins, without the server's z."""
        return partial(self._told, p)

    def _told(self, p: Vector, origins: Ints) -> Floats:
        return fan(self.bundle.graphs["forecast"], p, self.frame(), origins, self.levels)

    def _origins(self, begin: float, end: float) -> Ints:
        frame = self.frame()
        origins = frame.origins("all", observed=False)
        first = frame.times[origins] + self.series.step
        return np.asarray(origins[(first >= begin) & (first < end)])

    def _fix_scale(self) -> None:
        """Fix the scale at the first training: of the training series, or a public one."""
        if self.scale is not None or not len(self.learnable()):
            return
        public = self.mechanism.scale
        self.scale = Scale(*public) if public else self.learnable().frame.scale
        self._frame = self._learnable = None

    def _framed(self, series: Series) -> ChannelFrame:
        return ChannelFrame.of(
            series,
            self.manifest,
            site=self.config.site,
            scale=self.scale,
            part=self.config.training.split,
        )

    def _learnable_frame(self) -> ChannelFrame:
        if self._learnable is None:
            seen = self.mechanism.learnable(self.series)
            self._learnable = self.frame() if seen is self.series else self._framed(seen)
        return self._learnable

    def _drawable(self, frame: ChannelFrame) -> Drawable:
        if not len(frame):
            return Drawable(frame, np.zeros(0, np.int64))
        return Drawable(frame, frame.origins(self.config.training.split))

    def vector(self, state: Any) -> Vector:  # noqa: ANN401 - as above
        """Return the parameter vector to forecast with: the half's, or that of the local rounds."""
        half = self.alone if isinstance(state, LocalState) else self.half
        return np.asarray(half.model(state)["p"], np.float32)


def series_for(manifest: Manifest, keep: int) -> Series:
    """Create an empty series on a bundle's grid, with the streams that it reads."""
    streams = {manifest.target.stream: None}
    streams.update({f.stream: None for f in manifest.features if f.stream is not None})
    return Series(manifest.window.step_seconds, list(streams), capacity=keep)


def own_start(initial: Vector, spec: ParamSpec, device: str) -> Vector:
    """Draw new personal layers from the device's id, each with the spread of the bundle's.

    A constant layer (a bias of zero) is unchanged. Shared layers are the bundle's.

    Example:
        >>> spec = ParamSpec.of([("body", (2,)), ("head", (3,))], shared=["body"])
        >>> start = np.array([1, 2, 0.5, -0.5, 0.1], np.float32)
        >>> a, b = own_start(start, spec, "meter-1"), own_start(start, spec, "meter-2")
        >>> a[:2], bool((a[2:] == b[2:]).any())
        (array([1., 2.], dtype=float32), False)
    """
    p = initial.copy()
    for layer in spec.layers:
        if layer.name in spec.shared_names:
            continue
        part = slice(layer.offset, layer.offset + layer.size)
        centre, reach = initial[part].mean(), initial[part].std() * np.sqrt(3.0)
        rng = keyed(0, device, f"start {layer.name}", 0)
        p[part] = centre + reach * rng.uniform(-1.0, 1.0, layer.size)
    return p
