"""Store the selection of a device: errors, choice, and the models beside the fleet's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from edge_sdk.app.cli import CommandResult, fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import WireError
from edge_sdk.extensions.choice.candidates import BoostedCandidate, CandidateModels, ServedCandidate
from edge_sdk.extensions.choice.combination import (
    BY_STEP,
    CANDIDATES,
    COLUMNS,
    HeldBackErrors,
    blocks_of,
)
from edge_sdk.extensions.choice.fine_tuning import TunedModel, why_fleet, why_not_tuned
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice, by_steps
from edge_sdk.extensions.choice.last_good import LastGood
from edge_sdk.extensions.choice.model_monitor import ModelMonitor
from edge_sdk.extensions.choice.own_model import OwnModel
from edge_sdk.forecasting.forecast import FLEET, Forecast, ForecastQuality
from edge_sdk.protocol.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.messages import BundleMessage
from edge_sdk.session.announcements import saved_message
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.model_runtime import ModelRuntime

SELECTION, TUNED_MODEL, OWN_MODEL = "forecast selection", "tuned model", "own model"
BOOSTED_MODEL, GOOD_MODEL = "boosted model", "last good model"
"""Names of the stored models."""

_UNREADABLE = (
    WireError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class SavedSelection:
    """The state of the choice between candidates."""

    table: HeldBackErrors = field(default_factory=HeldBackErrors.empty)
    choice: ForecastChoice = field(default_factory=ForecastChoice)
    upto: int = -1  # number of the newest row compared; -1 before the first
    judged: int = 0  # Unix seconds of the last choice; 0 before the first
    judged_row: int = -1  # number of the newest row at the last choice
    base: bytes = b""  # digest of the common model at the last choice
    monitor: ModelMonitor = field(default_factory=ModelMonitor)  # daily scores

    def leaves(self) -> dict[str, Leaf]:
        """Return the state as leaves, to be saved; ``from_leaves`` is the inverse."""
        choice = self.choice
        monitor = {"monitor": self.monitor.leaves()} if len(self.monitor.scores.days) else {}
        return {
            "columns": list(self.table.columns),
            "table": self.table.arrays(),
            **_choice_leaves(choice),
            "parts": [_choice_leaves(part) for part in choice.parts],
            "upto": self.upto,
            "judged": self.judged,
            "judged_row": self.judged_row,
            "base": self.base,
            **monitor,
        }

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, Leaf]) -> SavedSelection:
        """Rebuild from the result of ``leaves``.

        Raises:
            KeyError: A leaf is missing.
            TypeError: A leaf of another type.
        """
        table = HeldBackErrors.from_arrays(leaves["table"], leaves["columns"])
        parts = tuple(_choice_of(part) for part in leaves.get("parts", ()))
        choice = _choice_of(leaves, parts)
        if len(parts) not in (0, table.blocks):
            raise ValueError(f"{len(parts)} choices for {table.blocks} blocks of steps")
        upto, judged, row = (_whole(leaves[name]) for name in ("upto", "judged", "judged_row"))
        base = leaves["base"]
        if not isinstance(base, bytes):  # bytes(4e9) would make four gigabytes of a whole number
            raise TypeError(f"the digest of the common model is a {type(base).__name__}")
        saved = leaves.get("monitor")
        monitor = ModelMonitor() if saved is None else ModelMonitor.from_leaves(saved)
        return cls(table, choice, upto, judged, row, base, monitor)


def _choice_leaves(choice: ForecastChoice) -> dict[str, Leaf]:
    return {
        "name": choice.name,
        "weights": dict(choice.weights),
        "errors": dict(choice.errors),
        "days": choice.days,
    }


def _choice_of(
    leaves: Mapping[str, Leaf], parts: tuple[ForecastChoice, ...] = ()
) -> ForecastChoice:
    name, weights, errors = leaves["name"], dict(leaves["weights"]), dict(leaves["errors"])
    if name not in COLUMNS and not (name == BY_STEP and parts):
        raise ValueError(f"unknown choice {name!r}; expected one of {', '.join(COLUMNS)}")
    if set(weights) - set(CANDIDATES) or set(errors) - {*COLUMNS, BY_STEP}:
        raise ValueError("a weight or an error of an unknown candidate")
    wanted = 0.0 if name == BY_STEP else 1.0
    if min(weights.values(), default=0.0) < 0.0 or not abs(sum(weights.values()) - wanted) < 1e-6:
        raise ValueError(f"weights {weights} are below 0, or their sum is not {wanted:g}")
    return ForecastChoice(name, weights, errors, _whole(leaves["days"]), parts)


def _whole(number: Leaf) -> int:
    if not abs(number) < 2**53:
        raise ValueError(f"{number} is not below 2^53")
    return int(number)


class FittedCandidate(Protocol):
    """A model that an extension has fitted.

    The row of that extension names a class by ``candidate``, which reads the saved arrays (``from_arrays``),
    and by ``fit`` a function of the runtime, the state and the digest of the fleet's model that returns
    an object of it, or None where the record is too short.
    """

    @property
    def model(self) -> BoostedCandidate:
        """The model."""

    @property
    def row(self) -> int:
        """Number of the newest row of readings at the fit."""

    @property
    def base(self) -> bytes:
        """Digest of the fleet's model at the fit."""

    def arrays(self) -> dict[str, Array]:
        """Return it as named arrays, to be saved."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCandidates:
    """The saved candidates of a device beside the model of the fleet."""

    selection: SavedSelection = field(default_factory=SavedSelection)  # state of the choice
    tuned: TunedModel | None = None  # result of the last fine-tuning; None before the first
    own: OwnModel | None = None  # linear model of this device; None before the first fit
    # wide model of this device with trees and a blend; None before the first fit
    boosted: FittedCandidate | None = None
    # the fleet's model of the last day on which it was good; None before the first
    good: LastGood | None = None

    @classmethod
    def recall(cls, learner: ModelRuntime, store: DeviceStore) -> DeviceCandidates:
        """Return the selection saved for this bundle, with the models fitted at this scale."""
        fitted = learner.config.offered("candidate")
        return cls(
            _selection(store, learner),
            _read(store, learner, TUNED_MODEL, TunedModel.from_arrays),
            _read(store, learner, OWN_MODEL, OwnModel.from_arrays),
            None if fitted is None else _read(store, learner, BOOSTED_MODEL, fitted.from_arrays),
            _read(store, learner, GOOD_MODEL, LastGood.from_arrays),
        )

    def models(self, learner: ModelRuntime, state: Any) -> CandidateModels:  # noqa: ANN401 - the half's own type
        """Return the candidates' models, with those of the fleet in a state."""
        tuned = None if self.tuned is None else self.tuned.p
        if tuned is not None and len(tuned) != learner.spec.size:
            tuned = None
        return CandidateModels(
            learner.bundle.graphs["forecast"],
            learner.levels,
            tuned,
            is_tuned=self.tuned is not None,
            own=self.own,
            common=learner.common(state),
            boosted=None if self.boosted is None else self.boosted.model,
            good=None if self.good is None else self.good.p,
        )

    def served(self, learner: ModelRuntime, state: Any) -> ServedCandidate | None:  # noqa: ANN401 - as above
        """Return the candidate served instead of the fleet's model; None if that model is served."""
        models, choice = self.models(learner, state), self.selection.choice
        if choice.name == FLEET or not choice.used & {*models.available}:
            return None
        return ServedCandidate(models, choice)

    @property
    def quality(self) -> ForecastQuality:
        """Return the served candidate with its held-back error."""
        choice, errors = self.selection.choice, self.selection.choice.errors
        return ForecastQuality(choice.name, errors.get(choice.name), errors.get(FLEET), choice.days)

    def compared(self, forecast: Forecast) -> CommandResult | None:
        """Return the candidates and their held-back errors, beside a forecast; None without errors."""
        return compared(self.selection.choice, forecast.unit, len(forecast.times))

    def summary(self, steps: int) -> dict[str, Any]:
        """Return the choice in plain words: errors are relative to the fleet's model."""
        choice = self.selection.choice
        fleet = choice.errors.get(FLEET, 0.0)
        moment = datetime.fromtimestamp(self.selection.judged, UTC).isoformat()
        tuned = self.tuned
        gain = None if tuned is None or not tuned.before else 1.0 - tuned.after / tuned.before
        return {
            "served": choice.name,
            "days compared": choice.days,
            "error relative to fleet": {
                name: round(error / fleet, 4) for name, error in choice.errors.items() if fleet
            },
            **({"weights": dict(choice.weights)} if len(choice.weights) > 1 else {}),
            **({"steps": by_steps(choice, steps)} if choice.parts else {}),
            "chosen at": moment if self.selection.judged else "never",
            **({} if gain is None else {"gain of tuning": round(gain, 4)}),
            "monitor": self.selection.monitor.summary(),
        }


def _selection(store: DeviceStore, learner: ModelRuntime) -> SavedSelection:
    empty = SavedSelection(HeldBackErrors.empty(len(blocks_of(learner.manifest.window.horizon))))
    found = _read(store, learner, SELECTION, SavedSelection.from_leaves)
    return empty if found is None or found.table.blocks != empty.table.blocks else found


def recalled(
    config: Config,
    store: DeviceStore,
    learner: ModelRuntime,
    state: Any,  # noqa: ANN401 - the half's own type
) -> DeviceCandidates | None:
    """Return the saved candidates, and serve the chosen one; None where the fleet's model is served."""
    if why_fleet(config, learner):
        return None
    found = DeviceCandidates.recall(learner, store)
    learner.forecaster.serve(found.served(learner, state))
    return found


def saved_status(config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return the saved choice in plain words, read beside a running device."""
    announced = saved_message(store, BundleMessage, "bundle")
    bundle = bootstrap.open_bundle(config, announced)
    learner = bootstrap.set_up(config, store, bundle, bootstrap.of_bundle(announced, bundle))
    bootstrap.recall(learner, store)
    return {"forecast": summary_of(config, learner, DeviceCandidates.recall(learner, store))}


def error_ratio(
    store: DeviceStore, learner: ModelRuntime, days: int, *, before: int
) -> float | None:
    """Return the served error over the newest scored days as a multiple of the naive one; None if unknown.

    Args:
        before: Number of the day since 1970 before which the days are.
    """
    if why_fleet(learner.config, learner):
        return None
    return _selection(store, learner).monitor.scores.ratio(days, before=before)


def compared(choice: ForecastChoice, unit: str, horizon: int) -> CommandResult | None:
    """Return the held-back errors of a choice's candidates, the least first; None without errors."""
    if not choice.errors:
        return None
    steps = by_steps(choice, horizon)
    lines = [f"held-back error of {choice.days} days, {unit}:"]
    for name, error in sorted(choice.errors.items(), key=lambda item: item[1]):
        mark = "  served" if name == choice.name else ""
        share = choice.weights.get(name, 0.0) if len(choice.weights) > 1 else 0.0
        weight = f"  weight {share:.2f}" if share else ""
        lines.append(f"  {name:<16}{error:.6g}{weight}{mark}")
    lines += [f"  steps {some}: {name}" for some, name in steps.items()]
    found = {"candidates": dict(choice.errors), "days compared": choice.days}
    return CommandResult(found | ({"steps": steps} if steps else {}), "\n".join(lines))


def summary_of(config: Config, learner: ModelRuntime, found: DeviceCandidates) -> dict[str, Any]:
    """Return the served candidate and the reason as text, or why candidates are not compared."""
    if why := why_fleet(config, learner):
        return {"served": FLEET, "why": why}
    why = why_not_tuned(config, learner)
    return {
        **found.summary(learner.manifest.window.horizon),
        **({"fine-tuning": why} if why else {}),
    }


def save(store: DeviceStore, learner: ModelRuntime, name: str, leaves: Mapping[str, Leaf]) -> None:
    """Save a record of this bundle under a name, in one transaction.

    Raises:
        StoreFull: No space; the old record is kept.
    """
    store.file_paper(name, pack_leaves({**leaves, **_marks(learner, name)}))


def read_record(
    paper: bytes, marks: Mapping[str, Leaf], build: Callable[[dict[str, Leaf]], T]
) -> T | None:
    """Return a record from its bytes; None if it belongs to another bundle or scale.

    Args:
        paper: Bytes as ``save`` wrote them.
        marks: What the record must belong to.

    Raises:
        WireError: The bytes have changed since they were written.
        LookupError: A leaf is missing.
        TypeError: A leaf is of another type; likewise AttributeError and OverflowError.
    """
    leaves = unpack_leaves(paper)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of a leaf that is no number
        try:
            if {key: leaves.pop(key) for key in marks} != marks:
                return None
            return build(leaves)
        except Warning as warning:
            raise ValueError(str(warning)) from warning


def _marks(learner: ModelRuntime, name: str) -> dict[str, Leaf]:
    marks: dict[str, Leaf] = {"of bundle": learner.manifest.digest}
    if name != SELECTION:
        scale = learner.scale
        marks["of layout"] = learner.spec.whole_digest
        marks["of scale"] = [scale.low, scale.high] if scale else []
    return marks


def _read(
    store: DeviceStore, learner: ModelRuntime, name: str, build: Callable[[dict[str, Leaf]], T]
) -> T | None:
    """Return a saved record; None if it is missing, damaged, or of another bundle or scale."""
    paper = store.paper(name)
    if paper is None:
        return None
    try:
        return read_record(paper, _marks(learner, name), build)
    except _UNREADABLE as error:
        why = error if str(error) else type(error).__name__
        logger.warning("saved record refused %s", fields(record=name, why=why))
        return None
