"""Queue of control orders from commands to a running daemon: one small file each, in a folder.

An order is written atomically, applied in the daemon's loop, and then removed. A crash between
applying and removing applies it twice, so every order is idempotent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from aggregator.ingress.registry import PARTICIPATION_OF
from aggregator.operations.commands import (
    LabelError,
    Labels,
    OrderError,
    changed_labels,
    check_command,
    label_text,
    parse_labels,
)
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.schema import Length, SchemaError, build
from edge_sdk.protocol.keys import write_atomically
from edge_sdk.protocol.messages import LARGEST, RELEASES_LIMIT, Moment, Releases, Scalars


class KnownDevices:
    """Enrolled devices by id and by key, so that many orders read the database once.

    >>> known = KnownDevices([EnrolledDevice("m-1", (b"a",)), EnrolledDevice("m-2", (b"b",))])
    >>> known.insert(EnrolledDevice("m-2", (b"a",)))
    >>> [one.id for one in known.others_of(known["m-1"])], known.get("m-3")
    (['m-2'], None)
    """

    def __init__(self, clients: Iterable[EnrolledDevice]) -> None:
        self._by_id: dict[str, EnrolledDevice] = {}
        self.get = self._by_id.get
        self._by_key: dict[bytes, dict[str, None]] = {}
        for client in clients:
            self.insert(client)

    def __contains__(self, device: str) -> bool:
        return device in self._by_id

    def __getitem__(self, device: str) -> EnrolledDevice:
        return self._by_id[device]

    def insert(self, client: EnrolledDevice) -> None:
        """Insert or replace a device."""
        before = self._by_id.get(client.id)
        for key in () if before is None else before.sign:
            self._by_key[key].pop(client.id, None)
        self._by_id[client.id] = client
        for key in client.sign:
            self._by_key.setdefault(key, {})[client.id] = None

    def others_of(self, device: EnrolledDevice) -> list[EnrolledDevice]:
        ids = {name for key in device.sign for name in self._by_key.get(key, ())}
        return [self._by_id[name] for name in sorted(ids - {device.id})]


LIMIT = 65_536  # bytes per order

PARTICIPATIONS_LIMIT = 4  # ids of one device, all with its key
_BY_THE_DAEMON = {
    "pause": "pause its fleet",
    "resume": "resume its fleet",
    "round": "open a round",
    "retry": "retry a dead letter",
    "clear": "clear a dead letter",
    "unlearn": "unlearn a device",
    "weather": "announce weather",
    "sums": "announce contracts of sums",
    "rollout": "change a rollout",
    "record": "record an act",
}


@dataclass(frozen=True, slots=True)
class ControlOrder:
    """One order of an operator."""

    # ``enrol``, ``revoke``, ``label``, ``unlearn`` or ``command`` a device; ``pause`` or ``resume``
    # the fleet; open a ``round`` before its start; ``retry`` or ``clear`` a dead letter; announce
    # ``weather``; begin or change a ``rollout``; ``record`` an act of another program
    do: Literal[
        "enrol",
        "revoke",
        "command",
        "pause",
        "resume",
        "round",
        "retry",
        "clear",
        "unlearn",
        "label",
        "weather",
        "sums",
        "rollout",
        "record",
    ]
    # id of the device; ``_all`` for the fleet, or for every dead letter; for ``weather`` the
    # region; for ``record`` the subject
    device: Annotated[str, Length(1, 64)]
    public: Annotated[str, Length(0, 66)] = ""  # raw public key as hex, for ``enrol``
    op: str = ""  # command for the device, for ``command``; act, for ``rollout`` and ``record``
    why: Annotated[str, Length(0, 200)] = ""  # reason; recorded with the device for ``revoke``
    # person: the login name at a command, the user of the console
    who: Annotated[str, Length(0, 64)] = ""
    via: Literal["command", "console", "authority"] = "command"  # way by which it came
    args: Scalars = field(default_factory=dict)  # numeric arguments
    until: Moment | None = None  # expiry, server time in Unix ms
    # count of releases in the new ledger, for ``enrol`` with another key; by default the previous
    # count continues
    spent: Releases | None = None
    # changes of labels, ``name=value`` between commas, for ``enrol`` and ``label``
    labels: Annotated[str, Length(0, 2000)] = ""
    # the only run that is meant, for ``pause``, ``resume``, ``round`` and ``unlearn``; empty for
    # all
    run: Annotated[str, Length(0, 64)] = ""
    # id of the order, given by ``leave``; empty for an immediate one
    id: Annotated[str, Length(0, 64)] = ""
    # raw public key as hex that ``public`` replaces, its signature being verified: the ledger
    # continues; both are valid until ``public`` is used
    former: Annotated[str, Length(0, 66)] = ""
    detail: Annotated[str, Length(0, 1000)] = ""  # description of the change, for ``record``
    # the root's signatures of a command that destroys, as hex
    root: Annotated[str, Length(0, 2304)] = ""


def apply(order: ControlOrder, store: Any, known: KnownDevices | None = None) -> str:  # noqa: ANN401 - a Store that also issues commands
    """Carry out an order and return a one-line result.

    An enrolment is entered in ``known``, the devices of the store, if the caller has read them.

    Raises:
        OrderError: As ``check_order``; a label is malformed; or only a running daemon can do it.
    """
    if order.do in _BY_THE_DAEMON:
        raise OrderError(f"only a running daemon can {_BY_THE_DAEMON[order.do]}")
    known = KnownDevices(store.devices.all()) if known is None else known
    _check(order, known)
    if order.do == "enrol":
        result = _enrol(order, store, known.get(order.device))
        known.insert(store.devices.get(order.device))
        return result
    if order.do == "revoke":
        meant = [known[order.device], *known.others_of(known[order.device])]
        for one in meant:
            store.devices.save(replace(one, state="revoked", why=order.why))
        *others, last = [one.id for one in meant]
        return f"{', '.join(others)} and {last} are revoked" if others else f"{last} is revoked"
    if order.do == "label":
        before = known[order.device]
        labelled = replace(before, labels=_labels(before.labels, order))
        store.devices.save(labelled)
        store.commands.issue(order.device, "hello")  # it learns its runs from the welcome
        return f"{order.device} is labelled {label_text(labelled.labels) or 'with nothing'}"
    if store.ledgers.get(order.device).cmd >= LARGEST:
        raise OrderError(
            f"{order.device}: all command numbers are used",
            hint="enrol it with a new key: gridfed-aggregator enrol ID --public FILE",
        )
    terms = order.op, order.args, order.until, bytes.fromhex(order.root)
    waiting = [
        c for c in store.commands.open(order.device) if (c.op, c.args, c.until, c.root) == terms
    ]
    command = waiting[0] if waiting else store.commands.issue(order.device, *terms)
    return f"command {command.num} for {order.device}: {order.op}"


def check_order(order: ControlOrder, store: Any, before: Iterable[ControlOrder] = ()) -> None:  # noqa: ANN401 - as ``apply``
    """Refuse an order about a device that cannot be carried out.

    Raises:
        OrderError: The device is not enrolled, its key is enrolled under another id, or the command
            is unknown.
    """
    check_orders([order], store, before)


def check_orders(
    orders: Iterable[ControlOrder],
    store: Any,  # noqa: ANN401 - as ``apply``
    before: Iterable[ControlOrder] = (),
) -> None:
    """Refuse a list of orders if one cannot be carried out after its predecessors."""
    known = KnownDevices(store.devices.all())
    for one in before:
        _expect(one, known)
    for order in orders:
        _check(order, known)
        _expect(order, known)


def _expect(order: ControlOrder, known: KnownDevices) -> None:
    if order.do == "enrol" and order.device not in known:
        known.insert(_enrolled_by(order))


def _check(order: ControlOrder, known: KnownDevices) -> None:
    if order.do == "enrol":
        _refuse_key(order, known)
        return
    if order.do in ("revoke", "command", "label", "unlearn") and order.device not in known:
        raise OrderError(f"{order.device!r} is not enrolled", hint="gridfed-aggregator list")
    if order.do == "command":
        check_command(order.device, order.op, order.args, order.root)


def _refuse_key(order: ControlOrder, known: KnownDevices) -> None:
    """Refuse a key that other ids have, unless all are participations of one device."""
    here = _enrolled_by(order, known.get(order.device))
    others = known.others_of(here)
    if not others:
        return
    owner = _owner(here)
    if any(_owner(one) != owner or one.state == "revoked" for one in others):
        raise OrderError(
            f"{order.device}: this key is already enrolled as {others[0].id!r}; a key names one device",
            hint="create a key on the device itself: gridfed-edge enrol; for a further participation "
            f"of an enrolled device: --label {PARTICIPATION_OF}={_owner(others[0])}",
        )
    if len(others) >= PARTICIPATIONS_LIMIT:
        raise OrderError(
            f"{order.device}: {owner} has {len(others)} participations; a device has at most "
            f"{PARTICIPATIONS_LIMIT}"
        )


def _enrolled_by(order: ControlOrder, before: EnrolledDevice | None = None) -> EnrolledDevice:
    labels = _labels(() if before is None else before.labels, order)
    return EnrolledDevice(order.device, (bytes.fromhex(order.public),), labels=labels)


def _owner(client: EnrolledDevice) -> str:
    return dict(client.labels).get(PARTICIPATION_OF, client.id)


def _enrol(order: ControlOrder, store: Any, before: EnrolledDevice | None) -> str:  # noqa: ANN401 - as ``apply``
    public = bytes.fromhex(order.public)
    labels = _labels(() if before is None else before.labels, order)
    if before is None:
        new = EnrolledDevice(order.device, (public,), labels=labels)
        store.renew(new, spent=order.spent or 0)
        return f"{order.device} is enrolled"
    is_same = before.sign == (public,) or (order.former and public in before.sign)
    if is_same and before.state == "enrolled":
        if labels != before.labels:
            store.devices.save(replace(before, labels=labels))
        return f"{order.device} is already enrolled with this key"
    if _is_succession(order, before):
        former = bytes.fromhex(order.former)
        store.devices.save(replace(before, sign=(former, public), labels=labels))
        store.commands.issue(order.device, "hello")  # signed by the new key
        return f"{order.device} has a new key, which replaces the former one once it is used"
    generation = before.generation + 1
    again = EnrolledDevice(order.device, (public,), generation, labels=labels)
    if before.sign == (public,):
        store.devices.save(again)
        return f"{order.device} is enrolled again with the same key, generation {generation}"
    note = renewal(order, store)
    store.renew(again, spent=_count_after(order, store))
    return f"{order.device} is enrolled again, generation {generation}{note}"


def _is_succession(order: ControlOrder, before: EnrolledDevice) -> bool:
    is_known = bytes.fromhex(order.former) in before.sign
    return is_known and bytes.fromhex(order.public) not in before.sign and before.state != "revoked"


def _count_after(order: ControlOrder, store: Any) -> int:  # noqa: ANN401 - as ``apply``
    """Return the count of releases in a new ledger.

    The previous count continues, so that another key or machine gives no new budget. One that no
    device can have reached is a damaged number: it begins at 0.
    """
    if order.spent is not None:
        return order.spent
    counted = int(store.ledgers.get(order.device).spent)
    return counted if counted < RELEASES_LIMIT else 0


def _labels(before: Labels, order: ControlOrder) -> Labels:
    try:
        return changed_labels(before, parse_labels(order.labels))
    except LabelError as error:
        raise OrderError(f"{order.device}: {error}") from error


def renewal(order: ControlOrder, store: Any) -> str:  # noqa: ANN401 - as ``apply``
    """Return a note on the counters that an enrolment resets; empty if there are none."""
    before = store.devices.get(order.device)
    if order.do != "enrol" or before is None or before.sign == (bytes.fromhex(order.public),):
        return ""
    is_listed = bytes.fromhex(order.public) in before.sign
    if order.former and (is_listed or _is_succession(order, before)):
        return ""
    counted, after = store.ledgers.get(order.device).spent, _count_after(order, store)
    change = f"continues at {after}" if after == counted else f"changes from {counted} to {after}"
    note = (
        f", with a new key: its ledger begins again\n"
        f"  the aggregator's count of releases {change}\n"
        "  kept: the privacy ledger on the device, which reports its count in its next hello"
    )
    if after >= counted:
        return note
    return f"{note}\n  if the lower count is a mistake, enrol it with --spent {counted}"


def leave(folder: Path, order: ControlOrder) -> Path:
    """Write an order for the daemon atomically, under its id, which is drawn if it has none."""
    make_private_folder(folder)
    order = replace(order, id=order.id or secrets.token_hex(8))
    path = folder / f"{order.id}.json"
    fields = {name: getattr(order, name) for name in order.__dataclass_fields__}
    raw = json.dumps({name: value for name, value in fields.items() if value not in (None, {})})
    write_atomically(path, raw.encode(), 0o600)
    return path


def waiting(folder: Path) -> Iterator[tuple[Path, ControlOrder | None]]:
    """Return the orders in a folder, oldest first; None for a file that is no order."""
    paths = sorted(folder.glob("*.json"), key=_age)
    for path in paths:
        yield path, _read(path)


def carry_out(
    folder: Path, do: Callable[[ControlOrder], str], report: Callable[[str], None]
) -> int:
    """Apply and remove every order; return the number applied.

    An order that cannot be carried out is reported and removed.
    """
    done = 0
    for path, order in waiting(folder):
        if order is None:
            report(f"{path.name} is not an order")
        else:
            try:
                report(do(order))
                done += 1
            except OrderError as error:
                report(str(error))
        path.unlink(missing_ok=True)
    return done


def _age(path: Path) -> tuple[int, str]:
    """Return the sorting key of an order: its time, then its name; 0 if it was just removed."""
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name


def _read(path: Path) -> ControlOrder | None:
    try:
        if path.stat().st_size > LIMIT:
            return None
        return build(ControlOrder, json.loads(path.read_text("utf-8")))
    except (SchemaError, ValueError, OSError, RecursionError):
        return None
