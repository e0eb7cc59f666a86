"""Run a bundle on this device's series: training, evaluation and forecasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.bundle import extension_of
from edge_sdk.config import Config
from edge_sdk.forecasting.calendar_features import Floats, Ints, time_zone
from edge_sdk.forecasting.forecast import (
    POINT,
    Forecast,
    ForecastQuality,
    IssuedForecast,
    missing_readings,
    rolling,
)
from edge_sdk.forecasting.incoming_readings import AnnouncedValues, columns_of
from edge_sdk.forecasting.series import Reading, ReadingOutcome, Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable, Scale, Span
from edge_sdk.methods.local_sgd import LocalSgd, LocalState, fedavg
from edge_sdk.methods.training_context import Graph, TrainingContext, keyed
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.protocol.contract.manifest import AIDED_FORECAST, Manifest
from edge_sdk.protocol.contract.method import CONTRACTS, SERVE, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.training.forecaster import Forecaster
from edge_sdk.training.run_role import BundleForm, RunnableBundle, RunRole, RunShell, own_start

if TYPE_CHECKING:
    from edge_sdk.training.canary import CanaryTest

_NO_CLOCK_BEFORE = 1_577_836_800.0  # a wall clock before 2020 counts as unset

HELD = 256
"""Maximum number of held-back windows in an evaluation; bounds the memory of one batch."""


@dataclass(slots=True)
class ModelRuntime:
    """One bundle on the readings of one device."""

    config: Config  # the device's configuration
    bundle: RunnableBundle
    role: RunRole
    series: Series  # readings, on the bundle's grid
    mechanism: Mechanism  # privacy mechanism between the readings and everything learned
    shell: RunShell
    # scale of the model's training; fixed at the first training
    scale: Scale | None = field(init=False, default=None)
    between_batches: Callable[[], None] = field(init=False)
    # values announced for slots that are still to be forecast
    announced: AnnouncedValues = field(init=False)
    manifest: Manifest = field(init=False)
    spec: ParamSpec = field(init=False)
    half: Half[Any] = field(init=False)
    local_half: Half[LocalState] = field(init=False)
    form: BundleForm = field(init=False)
    _context: TrainingContext = field(init=False)
    _canary_test: CanaryTest | None = field(init=False, default=None)
    forecaster: Forecaster = field(init=False)
    _before_training: dict[str, Callable[[Vector], None]] = field(init=False, default_factory=dict)
    _frame: ChannelFrame | None = field(init=False, default=None)
    _learnable: ChannelFrame | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        manifest = self.manifest = self.bundle.manifest
        self.between_batches = self.shell.between_batches
        self.announced = AnnouncedValues(manifest)
        self.spec = manifest.spec(self.role.shared)
        kind = self.config.offered("forecaster") or Forecaster
        self.forecaster = kind(self.config.forecast, self.bundle)
        computed = extension_of(manifest)
        self.form = BundleForm() if computed is None else computed.load("form")(self)
        local = TrainingContext(
            client=self.config.id,
            spec=self.spec,
            graphs=self.mechanism.graphs(self.bundle.graphs),
            windows=self.learnable,
            size=manifest.training.batch,
            key=partial(keyed, self.role.run, self.config.id),
            turn=self.between_batches,
            judged=self.judged,
            newest=self.newest_learnable,
            held=self.held_back,
        )
        self._context = local
        settings = LocalSgd.of(manifest.training)
        allowed = replace(settings, weekly_profile=self.config.accept.weekly_profile)
        self.half = self.shell.methods[self.role.method](local, allowed)
        self.local_half = fedavg(local, settings)

    def first_state(self) -> Any:  # noqa: ANN401 - the half's own type
        """Return the initial state: the bundle's vector, with personal layers of this device."""
        initial = self.bundle.initial
        if self.config.accept.personal_init == "device" and not self.config.is_alone:
            initial = own_start(initial, self.spec, self.config.id)
        return self.half.init(initial)

    def observe(self, reading: Reading, latest: float) -> ReadingOutcome:
        """Merge one reading into the series; a later value is an announced one."""
        announced, known = self.announced, ReadingOutcome.LATE
        changes = announced.changes
        if announced.reads(reading, latest, self.series.step):
            known = announced.add(reading, self.series)
        is_late = reading.time < (self.series.oldest + self.series.capacity - 1) * self.series.step
        seen = self.series.add(reading, latest=latest)
        if seen is ReadingOutcome.NEW or seen is ReadingOutcome.CHANGED:
            self._frame = self._learnable = None
            if is_late or seen is ReadingOutcome.CHANGED:
                self.form.forget()
            announced.settle(self.series)
        if announced.changes > changes:
            self._frame = self._learnable = None
        return known if seen is ReadingOutcome.FUTURE and known is not ReadingOutcome.LATE else seen

    def observe_all(
        self, readings: Sequence[Reading], latest: Callable[[str], float]
    ) -> Counter[ReadingOutcome]:
        """Merge readings as ``observe`` does one after another, and count the outcomes."""
        is_plain = not self.announced.streams
        columns = columns_of(readings, self.series, latest) if is_plain else None
        if columns is None:
            return Counter(self.observe(one, latest(one.stream)) for one in readings)
        newest = self.series.newest if len(self.series) else -(2**63)
        is_late = any(column.slots[0] < newest for column in columns)
        found = self.series.merge(columns)
        if found[ReadingOutcome.NEW] or found[ReadingOutcome.CHANGED]:
            self._frame = self._learnable = None
            if is_late or found[ReadingOutcome.CHANGED]:
                self.form.forget()
        return found

    def load(self, rows: list[SeriesRow]) -> None:
        """Add saved readings."""
        self.series.load(rows)
        self._frame = self._learnable = None
        self.form.forget()

    def refresh(self) -> None:
        """Compute the channels again: another runtime has changed the readings that both share."""
        self._frame = self._learnable = None

    def call_before_training(self, name: str, function: Callable[[Vector], None] | None) -> None:
        """Register a function that is called with the vector in use before each training."""
        self._before_training.pop(name, None)
        if function is not None:
            self._before_training[name] = function

    def fix_scale(self, scale: Scale) -> None:
        self.scale = scale

    def forget(self) -> None:
        """Discard the scale and all values derived from the readings."""
        self.scale = self._frame = self._learnable = None
        self.forecaster.forget()
        self.form.forget()

    def frame(self) -> ChannelFrame:
        """Return the model's input channels, computed after every change."""
        if self._frame is None:
            self._frame = self._framed(self.series)
        return self._frame

    def windows(self) -> Drawable:
        """Return the windows of the unperturbed readings: for counting and readiness only."""
        return self._drawable(self.frame())

    @property
    def recorded_until(self) -> int:
        """Start of the newest recorded row, Unix seconds; 0 without any. It builds no window."""
        return self.series.newest * self.series.step if len(self.series) else 0

    def learnable(self) -> Drawable:
        """Return the windows for training; it perturbs and stores readings without noise."""
        return self._drawable(self._learnable_frame())

    def judged(self, vector: Vector) -> float | None:
        """Return a vector's loss on windows held back from training; None without any.

        The windows are of the training series, perhaps perturbed, and the same for every vector
        until a reading arrives. None where the mechanism covers gradients only: a
        model selected by a noise-free loss would reveal that loss in every later update.
        """
        held = self.held_back() if self.mechanism.may_select_by_loss else None
        if held is None:
            return None
        rng = keyed(self.role.run, self.config.id, "held back", 0)
        batch = held.draw(rng, HELD)
        loss, *_ = self.bundle.graphs["gradient"](p=vector, x=batch.x, y=batch.y)
        return float(loss)

    def held_back(self) -> Drawable | None:
        """Return the windows held back from training; None without any."""
        if self.config.training.holdout_fraction == 0.0:
            return None
        frame = self._learnable_frame()
        held = Drawable(
            frame, frame.origins((self._trained[1], 1.0)) if len(frame) else np.zeros(0, np.int64)
        )
        return held if len(held) else None

    @property
    def _trained(self) -> Span:
        return 0.0, 1.0 - self.config.training.holdout_fraction

    def learn(self, state: Any, task: Task) -> tuple[Any, Effects]:  # noqa: ANN401 - as above
        """Apply a training task to a state; return the new state and its effects.

        Pure except for the series' scale, fixed here, and the calibration, updated before. A device alone
        learns as without an aggregator, and answers nothing.
        """
        if self.config.is_alone:
            return self.learn_alone(state, task), ()
        self.calibrate(state)
        self.mechanism.begin()
        self._fix_scale()
        return self.half.apply(state, task)

    def apply_perishable(self, state: Any, event: Event) -> tuple[Any, Effects]:  # noqa: ANN401 - as above
        """Apply a perishable event: as ``learn``, but no noise is drawn for it."""
        self.calibrate(state)
        self._fix_scale()
        return self.half.apply(state, event)

    def learn_alone(self, state: Any, task: Task) -> LocalState:  # noqa: ANN401 - as above
        """Take plain SGD steps from the learned state, or solve the bundle if it has a solution.

        Whatever the run's method is, the result is this device's alone.
        """
        self.calibrate(state)
        begun = state if isinstance(state, LocalState) else LocalState(self.vector(state))
        self._fix_scale()
        solved = self.form.solved_alone(self._context, begun.p)
        return self.local_half.apply(begun, task)[0] if solved is None else LocalState(solved)

    def fault_of(self, candidate: Any, present: Any) -> str:  # noqa: ANN401 - the half's own type
        """Return why a state must not replace the one in use; empty if it may or cannot be tested.

        Its parameters and those that it forecasts with are tested on the newest windows of the
        training series (``edge_sdk.training.canary``). Nothing is tested where privacy depends only
        on noise in the gradient, or in readings that are not perturbed yet.
        """
        point = self.mechanism.plan.point
        if point.is_each_step or (point.is_on_readings and self._learnable is None):
            return ""
        pairs = zip(self._vectors(candidate), self._vectors(present), strict=True)
        return self._canary.fault_of(pairs, self._canary_frame)

    def mends(self, candidate: Any, present: Any, task: Task) -> bool:  # noqa: ANN401 - as above
        """Return whether the received model was at fault, and training made it no worse.

        Then the update is a step back to usable forecasts, though this device keeps its own state.
        """
        size = self.spec.shared_size
        given = [v for v in task.arrays.values() if v.shape == (size,)]
        if not given or not np.isfinite(given[0]).all():
            return False
        own = self.vector(present)
        received = self.spec.place(own, given[0].astype(np.float32))
        trained = self._vectors(candidate)[1]
        return self._canary.mends(received, own, trained, self._canary_frame)

    def is_measurable(self) -> bool:
        return len(self.windows()) > 0

    def _vectors(self, state: Any) -> tuple[Vector, Vector]:  # noqa: ANN401 - as above
        return self.vector(state), np.asarray(state.p, np.float32)

    @property
    def _canary(self) -> CanaryTest:
        from edge_sdk.training.canary import CanaryTest  # noqa: PLC0415 - with the first windows

        if self._canary_test is None:
            self._canary_test = CanaryTest(self.bundle.graphs["forecast"])
        return self._canary_test

    @property
    def _canary_frame(self) -> ChannelFrame:
        return self._learnable if self._learnable is not None else self.frame()

    @property
    def newest(self) -> int | None:
        """Number of the newest window of the unperturbed readings; None while it is incomplete.

        It equals that of ``Drawable.named``: the same on all devices at the same time.
        """
        return self.frame().newest if len(self.series) else None

    def newest_learnable(self) -> tuple[int, Array] | None:
        """Return the newest window for release: its number, and ``(1, lookback, channels)``.

        It is of the training series, perhaps perturbed: the noise of a reading that has none yet is
        drawn, stored and charged by this call, as for training.

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
        """Forecast the values after the newest reading, with a calibrated interval.

        A model to which windows are added takes those since its training first; its interval is
        calibrated before, so that it judges forecasts of what the model had not seen.
        """
        graph, source = self._helped(state)
        frame, trained, served = self.frame(), self.vector(state), self._served(state)
        found = self.forecaster.forecast(served, frame, graph, source, trained)
        found = self.form.completed(found, served, frame)
        lacks = self.missing
        is_chosen = self.forecaster.served is not None and not lacks
        if is_chosen or found.source not in ("last day", "none"):
            return found
        return replace(found, missing=lacks or "the model's values were not finite")

    def issued(
        self, found: Forecast, quality: ForecastQuality, *, now: float, run: int, version: int
    ) -> IssuedForecast:
        """Return a forecast as outputs receive it."""
        manifest, series = self.manifest, self.series
        return IssuedForecast(
            device=self.config.id,
            fleet=self.config.fleet,
            stream=manifest.target.stream,
            issued=now if now > _NO_CLOCK_BEFORE else None,
            newest=series.newest * series.step if len(series) else None,
            step=series.step,
            forecast=found,
            bundle=manifest.name,
            bundle_version=manifest.version,
            run=run,
            version=version,
            quality=quality,
        )

    @property
    def missing(self) -> str:
        """Readings that a forecast by the model still needs, for people; empty if none."""
        return missing_readings(self.series, self.manifest).text

    def _served(self, state: Any) -> Vector:  # noqa: ANN401 - as above
        """Return the vector of the next forecast, updated online with the windows since the training."""
        feeds = {} if isinstance(state, LocalState) else self.half.model(state)
        renew = self.form.renewal(feeds) if len(self.series) else None
        if renew is None:
            return self.vector(state)
        self.calibrate(state)
        return renew(self.windows())

    def _helped(self, state: Any) -> tuple[Graph, str]:  # noqa: ANN401 - as above
        """Return the graph for a forecast of the newest window, and the name of its source.

        In a split method the server sends z for the window; without it, z is zero.
        """
        local_half, aided = self.bundle.graphs["forecast"], self.bundle.graphs.get(AIDED_FORECAST)
        if aided is None or SERVE not in CONTRACTS[self.role.method]:
            return local_half, "model"
        if self.newest is not None and self.helped_at(state) == self.newest:
            z = self.half.model(state)["z"]
            return partial(aided, z=z.astype(np.float32)), "model"
        return local_half, "without graph"

    def helped_at(self, state: Any) -> int | None:  # noqa: ANN401 - as above
        """Return the number of the last window that the server's graph answered, or None."""
        feeds = {} if isinstance(state, LocalState) else self.half.model(state)
        return int(feeds["window"]) if "window" in feeds else None

    def calibrate(self, state: Any) -> None:  # noqa: ANN401 - as above
        """Update the calibration with new readings, before the model learns from them.

        Candidates for the forecast are compared on them too. Before the first forecast there is no
        calibration.
        """
        called: list[Callable[[Vector], None]] = []  # one of them may name more
        while due := [one for one in self._before_training.values() if one not in called]:
            called += due
            for function in due if len(self.series) else ():
                function(self.vector(state))
        if self.forecaster.kept is not None and len(self.series):
            trained = self.vector(state)
            self.forecaster.calibrate(self.form.latest(trained), self.frame(), trained)

    def intervals(self, state: Any, begin: float, end: float) -> Floats | None:  # noqa: ANN401 - as above
        """Return the intervals that go with ``rolling``, ``(n, horizon, 2)``; None without any.

        Each is what the present model would have issued: calibrated on earlier readings only.
        """
        origins = self._origins(begin, end)
        return self.forecaster.intervals(self.vector(state), self.frame(), origins)

    def rolling(self, state: Any, begin: float, end: float) -> tuple[Ints, Floats, Floats]:  # noqa: ANN401 - as above
        """Forecast from every complete window whose first target is in a span of time.

        Returns:
            Times of the first targets, forecasts and truth ``(n, horizon)``, NaN where unobserved.
        """
        frame, origins = self.frame(), self._origins(begin, end)
        graph = self.bundle.graphs["forecast"]
        values = rolling(graph, self.vector(state), frame, origins, self.levels)
        return frame.times[origins] + self.series.step, values, frame.truth(origins)

    @property
    def levels(self) -> tuple[float, ...]:
        """The quantile levels of the model, rising; the median alone for a point forecast."""
        return self.manifest.loss.levels or POINT

    def _origins(self, begin: float, end: float) -> Ints:
        frame = self.frame()
        origins = frame.origins(observed=False)
        first = frame.times[origins] + self.series.step
        return np.asarray(origins[(first >= begin) & (first < end)])

    def _fix_scale(self) -> None:
        if self.scale is not None or not len(self.learnable()):
            return
        public = self.mechanism.scale
        self.scale = Scale(*public) if public else self.learnable().frame.scale
        self._frame = self._learnable = None

    def _framed(self, series: Series) -> ChannelFrame:
        frame = self.shell.frames(
            series,
            self.manifest,
            zone=time_zone(self.config.forecast.time_zone),
            site=self.config.site,
            scale=self.scale,
            span=self._trained,
        )
        return self.form.framed(frame).without_open_row()

    def _learnable_frame(self) -> ChannelFrame:
        if self._learnable is None:
            seen = self.mechanism.learnable(self.series)
            self._learnable = self.frame() if seen is self.series else self._framed(seen)
        return self._learnable

    def _drawable(self, frame: ChannelFrame) -> Drawable:
        if not len(frame):
            return Drawable(frame, np.zeros(0, np.int64))
        return Drawable(frame, frame.origins(self._trained))

    def common(self, state: Any) -> Vector | None:  # noqa: ANN401 - as above
        """Return the fleet's model beside this device's own, where the method has both."""
        found = None if isinstance(state, LocalState) else self.half.model(state).get("fleet")
        return None if found is None else np.asarray(found, np.float32)

    def vector(self, state: Any) -> Vector:  # noqa: ANN401 - as above
        half = self.local_half if isinstance(state, LocalState) else self.half
        return np.asarray(half.model(state)["p"], np.float32)
