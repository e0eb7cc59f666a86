"""Keep what a device knows about its candidates: errors, choice, and the models beside the fleet's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from edge_sdk.app.cli import fields
from edge_sdk.config import Config
from edge_sdk.forecasting.candidates import CandidateModels, ServedForecast
from edge_sdk.forecasting.combination import (
    BY_STEP,
    CANDIDATES,
    COLUMNS,
    FLEET,
    HeldBackErrors,
    blocks_of,
)
from edge_sdk.forecasting.forecast_choice import ForecastChoice, by_steps
from edge_sdk.forecasting.model_monitor import ModelMonitor
from edge_sdk.forecasting.own_model import OwnModel
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.boosting import FittedTrees
from edge_sdk.training.fine_tuning import TunedModel, why_fleet, why_not_tuned
from edge_sdk.training.last_good import LastGood
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.wire.errors import WireError
from edge_sdk.wire.protocol.codec import Leaf, pack_leaves, unpack_leaves

SELECTION, TUNED_MODEL, OWN_MODEL = "forecast selection", "tuned model", "own model"
BOOSTED_MODEL, GOOD_MODEL = "boosted model", "last good model"
"""Names under which the store keeps them."""

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
    """The state of the choice between candidates.

    Attributes:
        table: Held-back errors.
        choice: The present choice.
        upto: Number of the newest row compared; -1 before the first.
        judged: Unix seconds of the last choice; 0 before the first.
        judged_row: Number of the newest row at the last choice.
        base: Digest of the common model at the last choice.
        monitor: Daily scores of what was served.
    """

    table: HeldBackErrors = field(default_factory=HeldBackErrors.empty)
    choice: ForecastChoice = field(default_factory=ForecastChoice)
    upto: int = -1
    judged: int = 0
    judged_row: int = -1
    base: bytes = b""
    monitor: ModelMonitor = field(default_factory=ModelMonitor)

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
        """Rebuild from what ``leaves`` returned.

        Raises:
            KeyError: A leaf is missing.
            ValueError: A value that no selection has.
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
    """Rebuild a choice.

    Raises:
        KeyError: A leaf is missing.
        ValueError: An unknown name, or weights that are no mean.
    """
    name, weights, errors = leaves["name"], dict(leaves["weights"]), dict(leaves["errors"])
    if name not in COLUMNS and not (name == BY_STEP and parts):
        raise ValueError(f"choice {name!r} is none of {', '.join(COLUMNS)}")
    if set(weights) - set(CANDIDATES) or set(errors) - {*COLUMNS, BY_STEP}:
        raise ValueError("a weight or an error of an unknown candidate")
    wanted = 0.0 if name == BY_STEP else 1.0
    if min(weights.values(), default=0.0) < 0.0 or not abs(sum(weights.values()) - wanted) < 1e-6:
        raise ValueError(f"weights {weights} are below 0, or their sum is not {wanted:g}")
    return ForecastChoice(name, weights, errors, _whole(leaves["days"]), parts)


def _whole(number: Leaf) -> int:
    """Return a whole number.

    Raises:
        ValueError: One of 2^53 or more, either way.
    """
    if not abs(number) < 2**53:
        raise ValueError(f"{number} is not below 2^53")
    return int(number)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCandidates:
    """The saved candidates of a device beside the model of the fleet.

    Attributes:
        selection: State of the choice.
        tuned: Result of the last fine-tuning; None before the first.
        own: Linear model of this device; None before the first fit.
        boosted: Wide model of this device with trees and a blend; None before the first fit.
        good: The fleet's model of the last day on which it was good; None before the first.
    """

    selection: SavedSelection = field(default_factory=SavedSelection)
    tuned: TunedModel | None = None
    own: OwnModel | None = None
    boosted: FittedTrees | None = None
    good: LastGood | None = None

    @classmethod
    def recall(cls, learner: ModelRuntime, store: DeviceStore) -> DeviceCandidates:
        """Return what is saved for this bundle, and models for this scale; no other is used."""
        empty = SavedSelection(HeldBackErrors.empty(blocks_in(learner)))
        selection = _read(store, learner, SELECTION, SavedSelection.from_leaves)
        if selection is None or selection.table.blocks != empty.table.blocks:
            selection = empty
        return cls(
            selection,
            _read(store, learner, TUNED_MODEL, TunedModel.from_arrays),
            _read(store, learner, OWN_MODEL, OwnModel.from_arrays),
            _read(store, learner, BOOSTED_MODEL, FittedTrees.from_arrays),
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

    def served(self, learner: ModelRuntime, state: Any) -> ServedForecast | None:  # noqa: ANN401 - as above
        """Return what to serve instead of the fleet's model; None if that is the choice."""
        models, choice = self.models(learner, state), self.selection.choice
        if choice.name == FLEET or not choice.used & {*models.available}:
            return None
        return ServedForecast(models, choice)

    def summary(self, steps: int) -> dict[str, Any]:
        """Return the choice in plain words: errors are relative to the fleet's model.

        Args:
            steps: Steps of the horizon.
        """
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


def blocks_in(learner: ModelRuntime) -> int:
    """Return the number of blocks of steps in a bundle's horizon."""
    return len(blocks_of(learner.manifest.window.horizon))


def summary_of(config: Config, learner: ModelRuntime, found: DeviceCandidates) -> dict[str, Any]:
    """Return what is served and why, in plain words, or why nothing is compared."""
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
        build: From the other leaves to the record.

    Raises:
        WireError: The bytes have changed since they were written.
        LookupError: A leaf is missing.
        ValueError: A leaf has a value that no record has.
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
    """Return what a record belongs to; errors are in the series' unit and fit any scale."""
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
