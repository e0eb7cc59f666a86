"""Define the seam of the device: an option that the core calls, and knows nothing about.

``edge_sdk/extensions/index.toml`` names the extensions of this package, and an entry point of the group
``gridfed.edge_sdk.extensions`` each one of another package. One is imported when the configuration asks
for it, or the method of the run in force by a trait of its contract, and never else. The client calls
the running extensions in the order of the index:

1. ``start``, once, before the link is made; one whose row has ``begins = "training"`` is imported before
   the first training, or when somebody looks at the device's state;
2. ``on_message`` for every verified message of a kind in ``kinds``, after the core has followed it;
3. ``on_download`` for every complete body, of which it recognises its own;
4. ``on_run`` when another bundle or run is in force; an extension that its method needs is started;
5. ``on_tick`` in every tick, after the network was served and before a task is trained; ``on_defect``
   after a defect in it, or in a task;
6. ``on_task`` for a task that is to be trained; the first that takes it over answers it;
7. ``on_idle``, in a tick without a task or a local round, of the first extension that is due;
8. ``on_forecast``, then ``serving``, before every forecast; the first version that one returns
   forecasts;
9. the others, whenever the device's state is looked at.

The core forecasts with the fleet's model in force, and an extension may have a better one. It gives
``learner.forecaster.serve`` what is served instead (``ServedForecast``: quantiles over the bundle's
horizon, of one step or of many), and says in ``quality`` which one that is and how good it was. It sees
new readings before the model learns from them by ``learner.call_before_training``. A command that reads
the device beside it finds the same by the row's ``recalled``, a function of the configuration, the store,
the runtime and the state that returns a ``RecalledChoice``, or None.

A defect in ``on_tick`` or ``on_idle`` is counted and logged, and does not stop the others. One in ``on_message`` or
``on_download`` is a defect of that message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.extensions import ExtensionEntry
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.forecasting.forecast import Forecast, ForecastQuality
from edge_sdk.protocol.contract.method import CONTRACTS, Task, answered
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.session.agenda import Agenda, digest_of, is_defect
from edge_sdk.session.download import DownloadCompleted
from edge_sdk.session.identity import IdentityKeys
from edge_sdk.session.session import Session
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import ActiveRun, GivenUp
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.model_runtime import ModelRuntime

if TYPE_CHECKING:
    from edge_sdk.training.training_transaction import TrainingTransaction


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """The parts of a client that an extension may use."""

    # configuration of the device; ``config.extensions`` has the extension's own section
    config: Config
    store: DeviceStore  # store; the extension's records have names that begin with its own name
    session: Session  # session, which sends and counts
    agenda: Agenda  # work that waits
    identity: IdentityKeys
    active: ActiveRun  # the bundle in use, with its state and the privacy account
    # returns the training of one task, up to the saved update
    transaction: Callable[[], TrainingTransaction]
    scheduler: FlushScheduler
    serve: Callable[[float], None]  # serves the network for some seconds


class ServedVersion(Protocol):
    """A version of the model that forecasts beside the bundle in use."""

    @property
    def runtime(self) -> ModelRuntime:
        """Model runtime of the version."""

    def forecast(self, learned: Vector) -> Forecast | None:
        """Forecast, with the learned vector of the bundle in use; None if it gives no number."""


class RecalledChoice(Protocol):
    """The saved choice of the served forecast."""

    @property
    def quality(self) -> ForecastQuality:
        """The served candidate, with its held-back error."""

    def compared(self, forecast: Forecast) -> CommandResult | None:
        """Return the candidates and their errors, for the command that shows a forecast; None if none."""


class DeviceExtension:
    """An extension of one device; a class overrides the hooks that it needs."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of the messages that it reads."""

    def __init__(self, device: DeviceParts) -> None:
        self.device = device

    def start(self) -> None:
        """Begin; the link is not made yet."""

    def on_message(self, message: VerifiedMessage) -> None:
        """Follow a verified message.

        Raises:
            Refused: It must not be followed, which is counted.
        """

    def on_download(self, completed: DownloadCompleted) -> None:
        """Follow a complete body."""

    def on_forecast(self) -> None:
        """Prepare the forecast that is about to be made."""

    @property
    def quality(self) -> ForecastQuality | None:
        """Return the served candidate with its held-back error; None without a choice."""

    def serving(self, choice: str) -> ServedVersion | None:
        """Return a version that forecasts instead of the candidate that the device has chosen."""

    @property
    def marks(self) -> tuple[object, ...]:
        """Values on which the forecast depends: another one is due when any of them changes."""
        return ()

    def on_tick(self) -> None:
        """Run the due work.

        Raises:
            StoreFull: No space; it is tried again.
        """

    @property
    def is_due(self) -> bool:
        """Return whether there is work for ``on_idle``; a run is not settled before it is done."""
        return False

    def on_idle(self) -> None:
        """Run work of low priority, when no other work is due."""

    def on_defect(self) -> None:
        """Discard the input of ``on_tick``, or of a task, after a defect."""

    def on_run(self) -> None:
        """Follow another bundle or run."""

    def on_task(self, task: Task) -> bool:  # noqa: ARG002 - for those that take one over
        """Take over a task, or return False to let it be trained."""
        return False

    @property
    def is_done(self) -> bool | None:
        """Return whether the run is done here; None where the session decides it."""
        return None

    @property
    def is_training(self) -> bool:
        """Return whether the device trains without an aggregator's tasks."""
        return False

    def limit_wait(self, timeout: float) -> float:
        """Return the longest wait for the network that keeps the extension on time."""
        return timeout

    def status(self) -> dict[str, Any]:
        return {}


def entries_of(config: Config, method: str) -> list[ExtensionEntry]:
    """Return the extensions that the configuration asks for, or a method by a trait of its contract."""
    contract = CONTRACTS[method]
    traits = {answered(contract)[1].up.value}
    if any(ask.perishable for ask in contract.values()):
        traits.add("perishable")
    configured = config.index.configured(config.tables)
    return [
        entry
        for entry in config.index.values()
        if (entry.row["method"] in traits if "method" in entry.row else entry in configured)
    ]


class DeviceExtensions:
    """The running extensions of one device, in the order of the index."""

    def __init__(self, device: DeviceParts, guard: DefectGuard) -> None:
        self._device, self._guard = device, guard
        self.running: dict[str, DeviceExtension] = {}
        self._start()

    def _start(self, *, is_first_training: bool = False) -> None:
        device, learner, waiting = self._device, self._device.active.learner, None
        running = {**self.running}  # an extension may train in its turn, and so start others
        for entry in entries_of(device.config, learner.role.method):
            if entry.name in running or "extension" not in entry.row:
                continue
            has_learned = is_first_training or learner.scale is not None
            if entry.row.get("begins") == "training" and not has_learned:
                waiting = self._before_training
                continue
            one: DeviceExtension = entry.load("extension")(device)
            one.start()
            device.session.arrivals.readers.append(one)
            running[entry.name] = one
        order = list(device.config.index)
        self.running = dict(sorted(running.items(), key=lambda x: order.index(x[0])))
        learner.call_before_training("extensions", waiting)

    def _before_training(self, _learned: Vector) -> None:
        self._start(is_first_training=True)

    def named(self, name: str) -> DeviceExtension | None:
        """Return a configured extension, or None."""
        if name not in self.running:
            self._start(is_first_training=True)
        return self.running.get(name)

    def on_run(self) -> None:
        """Follow another bundle or run, and start the extensions that its method needs."""
        for one in self:
            one.on_run()
        self._start()

    def on_task(self, task: Task) -> bool:
        """Return whether an extension takes over a task."""
        return any(one.on_task(task) for one in self)

    def on_tick(self) -> None:
        """Run every extension's due work; a defect of one does not stop the others."""
        for name, one in self.running.items():
            self._guard.run(name, one.on_tick, drop=one.on_defect)

    def on_defect(self) -> None:
        """Let every extension discard its input after a defect in a task."""
        for one in self:
            one.on_defect()

    @property
    def is_due(self) -> bool:
        return any(one.is_due for one in self)

    def on_idle(self) -> None:
        """Run the low-priority work of the first extension with some."""
        due = next(((name, one) for name, one in self.running.items() if one.is_due), None)
        if due is not None:
            self._guard.run(due[0], due[1].on_idle)

    def on_forecast(self) -> None:
        for one in self:
            one.on_forecast()

    @property
    def quality(self) -> ForecastQuality:
        """Return the candidate that the first extension which chooses serves, or the fleet's model."""
        chosen = (one.quality for one in self)
        return next(filter(None, chosen), ForecastQuality())

    def serving(self) -> ServedVersion | None:
        choice = self.quality.candidate
        return next(filter(None, (one.serving(choice) for one in self)), None)

    @property
    def marks(self) -> tuple[object, ...]:
        return tuple(one.marks for one in self)

    @property
    def is_done(self) -> bool | None:
        """Return whether the run is done for the first extension that decides it, or None."""
        return next((one.is_done for one in self if one.is_done is not None), None)

    @property
    def is_training(self) -> bool:
        """Return whether an extension trains without an aggregator's tasks."""
        return any(one.is_training for one in self)

    def limit_wait(self, timeout: float) -> float:
        """Return the longest wait for the network that keeps every extension on time."""
        return min((one.limit_wait(timeout) for one in self), default=timeout)

    def status(self) -> dict[str, Any]:
        config = self._device.config
        self._start(is_first_training=True)
        running = {key: value for one in self for key, value in one.status().items()}
        return config.index.off(config.tables) | running

    def __iter__(self) -> Iterator[DeviceExtension]:
        return iter(self.running.values())


class DefectGuard:
    """The guard around the actions of one client."""

    def __init__(self, session: Session) -> None:
        self._session = session  # keeps the digests of skipped messages

    def run(
        self,
        what: str,
        action: Callable[[], None],
        *number: object,
        drop: Callable[[], None] = lambda: None,
    ) -> None:
        """Run an action; after a defect skip it, and never repeat one that has a number."""
        digest = digest_of(what, *number)
        if number and self._session.set_aside.holds(digest):
            if what == "bundle":
                drop()
            return
        try:
            action()
        except Exception as error:
            if isinstance(error, GivenUp) or not is_defect(error):
                raise
            self._session.set_aside.add(what, digest, error, run=self._session.seen.run)
            drop()
