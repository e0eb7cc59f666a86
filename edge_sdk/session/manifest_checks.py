"""Check manifests, tasks and bundle announcements, as pure functions.

Announcements are retained and may be replayed, so each carries a serial number that only rises.
This module neither fetches nor stores; ``TaskInbox`` and ``Announcements`` do (`PROTOCOL.md`
sections 7 and 10.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import CONTRACTS, Ask, Contract, answered
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.store.store import DeviceStore

ORDER = "order"
"""Name of the number that orders perishable tasks."""


@dataclass(frozen=True, slots=True)
class NewestAnnouncements:
    """The newest announcements used; saved, so that no restart accepts an older one."""

    serial: int = 0  # serial number of the newest ``model`` manifest
    run: int = 0  # run number announced by root
    version: int = -1  # newest version of the common model used in that run; -1 for none
    round: int = -1  # last round trained in that run; -1 for none
    attempt: int = 0
    step: int = 0  # step inside that round

    @property
    def turn(self) -> tuple[int, int, int]:
        """Round, attempt and step of the last task; only a larger one is new."""
        return self.round, self.attempt, self.step


@dataclass(frozen=True, slots=True)
class ManifestExpectation:
    """The properties that a manifest must have to be accepted on this device."""

    spec: bytes  # layout digest of the shared vector
    size: int  # number of its scalars
    contract: Contract
    max_steps: int  # of the device's own configuration
    signed: Mapping[str, float] = field(default_factory=dict)  # limits of the bundle, by number

    @property
    def limits(self) -> Mapping[str, float]:
        steps = min(self.max_steps, self.signed.get("steps", self.max_steps))
        return {**self.signed, "steps": steps}

    @property
    def name(self) -> str:
        return answered(self.contract)[0]

    @property
    def ask(self) -> Ask:
        return answered(self.contract)[1]


def judge_model(
    model: m.ModelMessage, seen: NewestAnnouncements, wanted: ManifestExpectation
) -> None:
    """Refuse a manifest that this device must not follow, even if its signature is valid.

    Raises:
        Refused: ROLLBACK (older serial or version), WRONG_RUN, WRONG_SPEC, WRONG_ENCODING, or
            BAD_SCALAR for numbers outside the contract or beyond what this device accepts.
    """
    check_serial(model.serial, seen.serial)
    if model.serial < seen.serial:
        why = f"serial number {model.serial} of the manifest is below {seen.serial}"
        raise Refused(Reason.ROLLBACK, why)
    if model.run != seen.run:
        raise Refused(Reason.WRONG_RUN, f"run {model.run}, expected {seen.run}")
    if model.version < seen.version and not wanted.ask.personal:  # then it only informs, and late
        raise Refused(Reason.ROLLBACK, f"version {model.version} is below {seen.version}, in use")
    if model.spec != wanted.spec or model.part != "shared":
        raise Refused(Reason.WRONG_SPEC, _other_layout(model.spec, wanted.spec, model.part))
    if model.enc != "f4":
        raise Refused(Reason.WRONG_ENCODING, f"{model.enc!r}, expected 'f4'")
    judge_numbers(model.vals, wanted.ask, wanted.limits)


def _other_layout(found: bytes, expected: bytes, part: str = "shared") -> str:
    return f"layout {found.hex()} of {part!r}, expected {expected.hex()} of 'shared'"


def check_serial(serial: int, known: int) -> None:
    """Refuse an announcement whose serial number is implausibly far ahead.

    Raises:
        Refused: FROM_FUTURE.
    """
    if serial > known + m.SERIAL_LEAP:
        why = f"serial number {serial} is more than {m.SERIAL_LEAP} above {known}"
        raise Refused(Reason.FROM_FUTURE, why)


def check_expiry(announced: m.ModelMessage | m.BundleMessage, time: int) -> None:
    """Refuse an announcement whose validity is over: a newer one may be withheld.

    Args:
        announced: A manifest, or a bundle announcement; without ``expires`` it is valid for ever.
        time: Latest signed server time, Unix milliseconds.

    Raises:
        Refused: ANNOUNCEMENT_EXPIRED.
    """
    if announced.expires is not None and time >= announced.expires:
        days = (time - announced.expires) / 86_400_000
        why = f"announcement {announced.serial} expired {days:.1f} days ago"
        raise Refused(Reason.ANNOUNCEMENT_EXPIRED, why)


def judge_task(task: m.TaskMessage, seen: NewestAnnouncements, wanted: ManifestExpectation) -> None:
    """Refuse a task that this device must not work on, even if its signature is valid.

    Raises:
        Refused: WRONG_RUN; UNKNOWN_KIND for an ask that the method does not send to one device;
            WRONG_SPEC; ROLLBACK for an older version than the one in use; MALFORMED if it carries
            no vectors where the contract has some, or some where it has none; BAD_SCALAR.
    """
    if task.run != seen.run:
        raise Refused(Reason.WRONG_RUN, f"run {task.run}, expected {seen.run}")
    ask = wanted.contract.get(task.ask)
    if ask is None or not ask.personal:
        raise Refused(Reason.UNKNOWN_KIND, f"ask {task.ask!r} is not sent to one device")
    if task.spec != wanted.spec:
        raise Refused(Reason.WRONG_SPEC, _other_layout(task.spec, wanted.spec))
    if task.base < seen.version:
        raise Refused(Reason.ROLLBACK, f"version {task.base} is below {seen.version}, in use")
    if bool(ask.down) != (task.digest is not None):
        raise Refused(
            Reason.MALFORMED, f"ask {task.ask!r}: expected {len(ask.down)} vectors {ask.down}"
        )
    judge_numbers(task.vals, ask, wanted.limits)


def vectors(
    names: tuple[str, ...], joined: Vector, size: int, *, stacked: bool = False
) -> dict[str, Vector]:
    """Split the body of a content message into vectors, in the order of the contract.

    The last ones may be missing: a contract lists what a task can carry. If ``stacked``, the last
    is a stack of all remaining vectors.

    Raises:
        Refused: WRONG_SIZE: not a whole number of vectors, or too many.

    >>> found = vectors(("z", "dual"), np.arange(4, dtype=np.float32), 2)
    >>> {name: vector.tolist() for name, vector in found.items()}
    {'z': [0.0, 1.0], 'dual': [2.0, 3.0]}
    >>> list(vectors(("z", "dual"), np.zeros(2, np.float32), 2))
    ['z']
    >>> vectors(("c", "phi"), np.zeros(8, np.float32), 2, stacked=True)["phi"].shape
    (3, 2)
    """
    count = len(joined) // size if size else 0
    if count * size != len(joined) or not 1 <= count <= (count if stacked else len(names)):
        raise Refused(
            Reason.WRONG_SIZE,
            f"{len(joined)} scalars, expected vectors of {size} for {', '.join(names)}",
        )
    if stacked and count >= len(names):
        single = (len(names) - 1) * size
        found = dict(zip(names, np.split(joined[:single], max(len(names) - 1, 1)), strict=False))
        return {**found, names[-1]: joined[single:].reshape(-1, size)}
    return dict(zip(names, np.split(joined, count), strict=False))


def judge_numbers(values: Mapping[str, float], ask: Ask, limits: Mapping[str, float]) -> None:
    """Refuse numbers outside the contract, or above the limits of this device and its bundle.

    Args:
        values: Numbers of a task, by name.
        limits: Upper limit of each number, by name; if absent, only the contract's applies.

    Raises:
        Refused: BAD_SCALAR.

    >>> ask = CONTRACTS["fedavg"]["train"]
    >>> judge_numbers({"steps": 64.0, "rate": 1000.0}, ask, {"steps": 64, "rate": 1.0})
    Traceback (most recent call last):
    edge_sdk.errors.Refused: BAD_SCALAR: rate=1000 above 1, the most accepted here
    """
    known = {number.name: number for number in ask.numbers}
    for name, value in values.items():
        if name not in known or not known[name].admits(value):
            raise Refused(Reason.BAD_SCALAR, f"{name}={value:g} is outside the contract")
    for name, most in limits.items():
        if (value := values.get(name, 0.0)) > most:
            why = f"{name}={value:g} above {most:g}, the most accepted here"
            raise Refused(Reason.BAD_SCALAR, why)


def judge_bundle(
    bundle: m.BundleMessage,
    newest: m.BundleMessage | None,
    methods: Sequence[str],
    *,
    floor: tuple[int, int] = (0, 0),
) -> None:
    """Refuse a bundle announcement that is unsupported, or older than the one in force.

    Raises:
        Refused: ROLLBACK for a lower serial, run, or version of the same bundle; UNKNOWN_KIND for a
            method this device does not accept; WRONG_ENCODING if the encoding of the method's
            updates is not allowed; PLAIN_REFUSED if the run requires encryption of a
            kind that this version cannot encrypt.
    """
    if bundle.serial < floor[0] or bundle.run < floor[1]:
        why = f"announcement {bundle.serial} is older than {floor[0]}, in force before"
        raise Refused(Reason.ROLLBACK, why)
    if newest is not None:
        older = bundle.serial < newest.serial or bundle.run < newest.run
        if older or (bundle.name == newest.name and bundle.version < newest.version):
            why = f"announcement {bundle.serial} is older than {newest.serial}, in force"
            raise Refused(Reason.ROLLBACK, why)
    if bundle.method not in methods:
        raise Refused(Reason.UNKNOWN_KIND, f"method {bundle.method!r} is not accepted here")
    contract = CONTRACTS.get(bundle.method)
    enc = answered(contract)[1].enc if contract else "f4"
    if enc not in bundle.encs:
        why = f"updates of {bundle.method!r} need {enc!r}; allowed: {', '.join(bundle.encs)}"
        raise Refused(Reason.WRONG_ENCODING, why)
    if unknown := {x for x in bundle.seal if x not in m.KINDS or not m.KINDS[x].is_encryptable}:
        why = f"{', '.join(sorted(unknown))} must be encrypted, which this version cannot do"
        raise Refused(Reason.PLAIN_REFUSED, why)


class ManifestLog:
    """The absence of a log; the extension that verifies a log overrides the members and documents its refusals.

    Attributes:
        is_behind: True while a manifest waits for a proof that it continues the log.
    """

    is_behind = False

    def __init__(self, store: DeviceStore) -> None:
        self._store = store

    @property
    def place(self) -> bytes:
        """Place in the log, which a hello states; empty without one."""
        return b""

    def follow_run(self, name: str) -> None:
        """Follow the log of the run of this name."""

    def continued(self, manifest: m.ModelMessage) -> Any:  # noqa: ANN401, ARG002 - the extension's own type
        """Return the log with a manifest as its last entry."""
        return None

    def save(self, followed: Any, **facts: int) -> None:  # noqa: ANN401, ARG002 - as above
        """Save a log that ``continued`` has returned, with numbers, in one transaction."""
        self._store.set_facts(**facts)

    def receive_welcome(self, welcome: m.WelcomeMessage, stated: bytes) -> bool:  # noqa: ARG002 - as above
        """Return whether a manifest that waited can be considered again.

        Args:
            stated: Place in the log that the hello has stated.
        """
        return False

    def is_request_due(self, now: float) -> bool:  # noqa: ARG002 - as above
        """Return whether to say hello now for a proof."""
        return False


def is_perishable(message: m.TaskMessage, wanted: ManifestExpectation | None) -> bool:
    """Return whether a task is perishable by the contract in force on this device.

    Before its run is in force here, a task is perishable if it carries an order number.
    """
    ask = wanted.contract.get(message.ask) if wanted is not None else None
    return ORDER in message.vals if ask is None else ask.perishable
