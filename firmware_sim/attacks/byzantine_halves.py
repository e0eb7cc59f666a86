"""Byzantine device halves: halves of a real device whose updates are changed before sealing.

The state of a Byzantine device stays that of an honest one; only its messages differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_sdk import METHODS
from edge_sdk.protocol.contract.method import (
    CONTRACTS,
    END,
    Ask,
    Effect,
    Effects,
    Half,
    Signal,
    Task,
    Up,
    Update,
)
from firmware_sim.attacks import BoundAttack
from firmware_sim.attacks.attack_context import AttackContext, Row, sendable
from firmware_sim.attacks.coalition import ALONE, Coalition
from firmware_sim.attacks.data import Scaled

Factory = Callable[..., Half[Any]]  # makes a device half; the SDK defines its further arguments


def recorded(coalition: Coalition, device: str) -> Mapping[str, Factory]:
    """Return honest device halves whose updates are recorded for the coalition."""

    def wrap(factory: Factory) -> Factory:
        def made(*given: Any) -> Half[Any]:  # noqa: ANN401 - the SDK's own
            half = factory(*given)

            def apply(state: Any, event: Any) -> tuple[Any, Effects]:  # noqa: ANN401 - as above
                state, effects = half.apply(state, event)
                for effect in effects:
                    if isinstance(effect, Update):
                        coalition.record(device, effect.round, effect.vector)
                return state, effects

            return half._replace(apply=apply)

        return made

    return METHODS.mapped(lambda _name, factory: wrap(factory))


@dataclass(slots=True)
class ByzantineHalves:
    """Part of one device in an attack, and its memory."""

    device: str
    bound: BoundAttack
    coalition: Coalition
    start_round: int = 1  # round before which it is honest
    is_colluding: bool = False  # true if all Byzantine devices of a round send the same vector
    seed: int = 0  # seed of the attack's draws
    features: Callable[[], Any] = tuple  # returns the inputs of the bundle in use; for data attacks
    _at: int = 0
    _past: dict[int, tuple[Row, Row]] = field(default_factory=dict)  # round -> sent, received

    def methods(self) -> Mapping[str, Factory]:
        return METHODS.mapped(self._attacking)

    def read_features(self, features: Callable[[], Any]) -> None:
        """Read the inputs of the bundle in use with this function: its client exists only now."""
        self.features = features

    def is_attacking(self, of_round: int) -> bool:
        """Return True if the attack has begun; a device's own local rounds are excluded."""
        return self.start_round <= of_round < ALONE

    def may_answer(self, task: Task) -> bool:
        """Return True if this device has the inputs of an attack on a task."""
        is_asked = task.ask != END and self.is_attacking(task.round)
        return not (is_asked and self.bound.attack.is_omniscient) or self.coalition.may_answer(
            self.device, task
        )

    def _attacking(self, method: str, factory: Factory) -> Factory:
        def made(local: Any, *given: Any) -> Half[Any]:  # noqa: ANN401 - the SDK's own
            half = factory(self._poisoned(local), *given)

            def apply(state: Any, event: Any) -> tuple[Any, Effects]:  # noqa: ANN401 - as above
                if not isinstance(event, Task):
                    state, effects = half.apply(state, event)
                    return state, tuple(self._attacked_signal(effect) for effect in effects)
                self._at = event.round or self._at  # a task without a round changes none
                state, effects = half.apply(state, event)
                return state, tuple(
                    self._attacked_update(method, event, effect) for effect in effects
                )

            return half._replace(apply=apply)

        return made

    def _poisoned(self, local: Any) -> Any:  # noqa: ANN401 - as above
        if self.bound.attack.kind != "data":
            return local
        poisoner, honest = DataPoisoner(self.bound, self.features, self._key(0)), local.windows

        def windows() -> Any:  # noqa: ANN401 - as above
            return poisoner.windows(honest()) if self.is_attacking(self._at) else honest()

        return replace(local, windows=windows)

    def _attacked_update(self, method: str, task: Task, effect: Effect) -> Effect:
        if isinstance(effect, Signal):
            return self._attacked_signal(effect)
        if not isinstance(effect, Update) or task.round >= ALONE:
            return effect
        own, ask = np.asarray(effect.vector, np.float64), CONTRACTS[method][task.ask]
        received, part = _received(task, ask, own), ask.up
        is_on = self.is_attacking(task.round)
        changed = self._attack_vector(part, task, own, received) if is_on else None
        self._save_round(task.round, own, received)
        if changed is None:
            return effect
        return replace(effect, vector=_fitted(changed, part, effect.vector))

    def _attacked_signal(self, effect: Effect) -> Effect:
        is_on = self.bound.attack.kind == "signal" and self.is_attacking(self._at)
        if not (is_on and isinstance(effect, Signal) and effect.array.size):
            return effect
        return replace(effect, array=self.bound.act(effect.array))

    def _attack_vector(self, part: Up, task: Task, own: Row, received: Row) -> Row | None:
        def vector() -> Row:
            if self.bound.attack.kind != "model":
                return own
            return self.bound.on(part)(self._scene(task, own, received))

        if self.is_colluding:
            return self.coalition.shared_vector(task.round, vector)
        return vector() if self.bound.attack.kind == "model" else None

    def _scene(self, task: Task, own: Row, received: Row) -> AttackContext:
        rows = self.coalition.rows(task) if self.bound.attack.is_omniscient else None
        past = [self._past[number] for number in sorted(self._past) if number < task.round]
        byzantine = len(self.coalition.byzantine)
        return AttackContext(
            own=own,
            honest=own[None] if rows is None else rows,
            received=received,
            past=tuple(sent for sent, _ in past),
            models=tuple(model for _, model in past),
            devices=byzantine + len(self.coalition.honest),
            byzantine=byzantine,
            rng=np.random.default_rng(self._key(task.round)),
        )

    def _save_round(self, of_round: int, own: Row, received: Row) -> None:
        self._past[of_round] = own, received
        reach = max(1, int(getattr(self.bound.act, "keywords", {}).get("rounds", 5)))
        for old in sorted(self._past)[: -reach - 1]:
            del self._past[old]

    def _key(self, of_round: int) -> int:
        text = f"{self.seed}\0{self.device}\0{of_round}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _received(task: Task, ask: Ask, own: Row) -> Row:
    for name in ask.down:
        if name in task.arrays and task.arrays[name].shape == own.shape:
            return np.asarray(task.arrays[name], np.float64)
    return np.zeros_like(own)


def _fitted(vector: Row, part: Up, honest: Any) -> Any:  # noqa: ANN401 - an array of the honest type
    if part is Up.SIGNS:
        vector = np.where(np.sign(vector) == 0, np.sign(honest), np.sign(vector))
    return sendable(vector).astype(np.asarray(honest).dtype)


def poisoned(frame: Any, features: Iterable[Any], bound: BoundAttack, seed: int) -> Any:  # noqa: ANN401 - the SDK's own frame
    """Return a frame in which an attack changes the target, and all inputs derived from it.

    Values are changed in the device's own unit interval, after the scale was fixed on the real
    readings: a scale fixed on shifted readings would undo the shift.

    Args:
        frame: A device's channels, targets and scale.
        features: The bundle's inputs, in the order of the channels.
        seed: Seed of its draws; the same for every channel, so that all change alike.
    """

    def poison(y: Scaled) -> Scaled:
        changed: Scaled = bound.act(y, np.random.default_rng(seed))
        return changed

    low, width = frame.scale.low, frame.scale.width
    raw = low + width * poison(frame.scale.shrink(frame.raw))
    if bound.attack.labels_only:
        return replace(frame, raw=raw)
    last = low + width * poison(frame.scale.shrink(frame.last))
    channels = frame.channels.copy()
    for column, feature in enumerate(features):
        if feature.kind in {"target", "lag"}:
            behind = feature.lag_steps - 1 if feature.kind == "lag" else 0
            channels[:, column] = _later(poison(frame.scale.shrink(frame.last)), behind)
    return replace(frame, raw=raw, last=last, channels=channels)


def _later(values: Scaled, rows: int) -> Scaled:
    """Shift later by some rows: the first ones become NaN.

    >>> _later(np.array([1.0, 2.0, 3.0]), 1)
    array([nan,  1.,  2.])
    """
    return np.concatenate([np.full(min(rows, len(values)), np.nan), values])[: len(values)]


@dataclass(slots=True)
class DataPoisoner:
    """Poisons a device's training data, once per frame."""

    bound: BoundAttack
    # returns the bundle's inputs; called when needed, as a run may change the bundle
    features: Callable[[], Iterable[Any]]
    seed: int  # seed of the attack's draws
    _clean: Any = None
    _spoilt: Any = None

    def windows(self, drawable: Any) -> Any:  # noqa: ANN401 - the SDK's own
        """Return the training windows, poisoned."""
        if drawable.frame is not self._clean:
            self._clean = drawable.frame
            self._spoilt = poisoned(drawable.frame, self.features(), self.bound, self.seed)
        return replace(drawable, frame=self._spoilt)
