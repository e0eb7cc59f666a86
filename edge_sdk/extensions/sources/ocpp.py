"""Decode the measured values in a charger's messages: OCPP 1.6 and 2.0.1, from a tap's records.

The identity of a value is its socket, measurand, location, phase and context. Connector 0 is the main
meter of all sockets. The registers of a socket do not depend on sessions; intervals and the registers
at the ends of transactions count where a socket has no other register (``ValueSeries``). The decoder
keeps the socket of each transaction, because a 1.6 charger does not repeat it at the stop, and the
recent values, because a session repeats them at its end, and a queue after a lost link. (OCPP 1.6
sections 6 and 7; OCPP 2.0.1 part 2, TransactionEvent and MeterValuesType.)
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_sdk.extensions.sources.base import RawFrame, Rejected, SourceSample, tally
from edge_sdk.extensions.sources.ocpp_intervals import SocketIntervals
from edge_sdk.extensions.sources.ocpp_power import SocketPowers
from edge_sdk.extensions.sources.ocpp_redaction import IGNORED
from edge_sdk.extensions.sources.ocpp_totals import (
    OF_TRANSACTION,
    PhaseSums,
    Total,
    identity,
    keep,
    sample_of,
    totals,
    trim,
)
from edge_sdk.extensions.sources.ocpp_values import (
    BEGIN,
    END,
    LOCATIONS,
    REGISTER,
    MeterValue,
    is_same,
    moment,
    parsed,
    preferred,
    sampled,
    whole_wh,
)
from edge_sdk.extensions.sources.slot_sums import EVENTS

_SESSION = "session.energy"
_REPEATS = 4096  # recent values kept to detect repeats


@dataclass(slots=True)
class OcppDecoder:
    """The decoder of one tap's records.

    >>> sockets = OcppDecoder()
    >>> ask = b'["CP1","StartTransaction","7",{"connectorId":2,"meterStart":1500,'
    >>> frame = RawFrame(ask + b'"timestamp":"2024-05-14T12:00:00Z"}]', 0.0)
    >>> [(s.name, s.value, s.unit, s.device) for s in sockets(frame)]
    [('Energy.Active.Import.Register', 1500.0, 'Wh', 'CP1/2')]
    """

    # values that are not used, by name and reason, as ``tally`` counts them
    unused: Counter[str] = field(default_factory=Counter)
    _starting: OrderedDict[str, tuple[str, MeterValue | None]] = field(default_factory=OrderedDict)
    _running: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _begun: OrderedDict[str, dict[str, Total]] = field(default_factory=OrderedDict)
    _begins: OrderedDict[tuple[object, ...], float] = field(default_factory=OrderedDict)
    _recent: OrderedDict[tuple[object, ...], MeterValue] = field(default_factory=OrderedDict)
    _phases: PhaseSums = field(default_factory=PhaseSums)
    _sampled: OrderedDict[tuple[object, ...], None] = field(default_factory=OrderedDict)
    _edges: OrderedDict[tuple[object, ...], Total] = field(default_factory=OrderedDict)
    _intervals: SocketIntervals = field(init=False)
    _powers: SocketPowers = field(init=False)

    def __post_init__(self) -> None:
        self._intervals, self._powers = SocketIntervals(self.unused), SocketPowers(self.unused)

    def __call__(self, frame: RawFrame) -> list[SourceSample]:
        """Decode one record; a message without new values yields no samples.

        Raises:
            Rejected: Not a record, no known socket, or a forged reading.
        """
        match json.loads(frame.payload):
            case [str(charger), str(action), str(number), dict(payload)]:
                number = number[:64]
            case _:
                raise Rejected("not a note")
        if action == IGNORED:
            tally(self.unused, str(payload.get("action")), "not a call of OCPP")
            return []
        if action == "Started":
            started = self._starting.pop(f"{charger}/{number}", None)
            transaction = _identity(payload.get("transactionId"))
            if started is not None and transaction:
                socket, register = started
                self._save_transaction(charger, transaction, socket)
                if register is not None:
                    self._begin(charger, transaction, [register])
            return []
        if action == "TransactionEvent":
            return self._event(charger, payload)
        return self._older(charger, action, number, payload)

    def _older(
        self, charger: str, action: str, number: str, payload: dict[str, Any]
    ) -> list[SourceSample]:
        """Decode a message of OCPP 1.6, or ``MeterValues`` of 2.0.1."""
        transaction = _identity(payload.get("transactionId"))
        if action == "StartTransaction":
            socket = _socket(charger, payload.get("connectorId"))
            began = self._edge(payload, "meterStart", BEGIN)
            keep(self._starting, f"{charger}/{number}", (socket, began))
            used = [] if began is None else self._used(socket, [began])
            return [*used, *self._bound(socket, payload, began, is_end=False)]
        if action == "StopTransaction":
            socket = self._known(charger, transaction)
            values = self._values(payload.get("transactionData"), f"{socket} {transaction}")
            ended = self._edge(payload, "meterStop", END)
            used = self._used(socket, [*values, *([] if ended is None else [ended])])
            rest = self._bound(socket, payload, ended, is_end=True)
            session = self._session(charger, transaction, socket, [] if ended is None else [ended])
            return [*used, *rest, *session]
        socket = _socket(charger, payload.get("connectorId", payload.get("evseId")))
        if transaction:
            self._save_transaction(charger, transaction, socket)
        return self._used(
            socket, self._values(payload.get("meterValue"), f"{socket} {transaction}")
        )

    def _event(self, charger: str, payload: dict[str, Any]) -> list[SourceSample]:
        """Decode a message of OCPP 2.0.1."""
        about, evse = payload.get("transactionInfo"), payload.get("evse")
        transaction = _identity(about.get("transactionId") if isinstance(about, dict) else None)
        if isinstance(evse, dict):
            socket = _socket(charger, evse.get("id"))
            if transaction:
                self._save_transaction(charger, transaction, socket)
        else:
            socket = self._known(charger, transaction)
        values = self._values(payload.get("meterValue"), f"{socket} {transaction}")
        kind = payload.get("eventType")
        registers = [one for one in values if one.measurand == REGISTER]
        if kind == "Started":
            self._begin(charger, transaction, registers)
            edge = next((one for one in registers if not one.phase), None)
            first = self._bound(socket, payload, edge, is_end=False)
            return [*first, *self._used(socket, values)]
        used = self._used(socket, values)
        if kind != "Ended":
            return used
        edge = next((one for one in reversed(registers) if not one.phase), None)
        rest = self._bound(socket, payload, edge, is_end=True)
        return [*used, *rest, *self._session(charger, transaction, socket, registers)]

    # Transactions.

    def _edge(self, payload: Mapping[str, Any], key: str, context: str) -> MeterValue | None:
        """Return the register at an end of a transaction of 1.6; None if it cannot be read."""
        try:
            time, wh = moment(payload.get("timestamp")), whole_wh(payload.get(key))
        except Rejected as verdict:
            tally(self.unused, key, verdict.reason)
            return None
        return MeterValue(time, REGISTER, context, LOCATIONS[0], "", wh, "Wh")

    def _begin(self, charger: str, transaction: str, registers: Iterable[MeterValue]) -> None:
        found: dict[str, Total] = {}
        for total in totals(registers):
            found.setdefault(total.text, total)
        if found:
            keep(self._begun, f"{charger}/{transaction}", found)

    def _session(
        self, charger: str, transaction: str, socket: str, registers: Iterable[MeterValue]
    ) -> Iterator[SourceSample]:
        began = self._begun.pop(f"{charger}/{transaction}", {})
        ended = {total.text: total for total in totals(registers)}
        both = [(began[key], one) for key, one in ended.items() if key in began]
        for first, last in sorted(both, key=lambda pair: pair[1].rank)[:1]:
            taken, span = last.value - first.value, last.last.time - first.last.time
            if taken >= 0 and span > 0 and first.last.unit == last.last.unit:
                time, unit = first.last.time, last.last.unit
                yield SourceSample(_SESSION, time, taken, unit, socket, 0, span)

    def _bound(
        self, socket: str, payload: Mapping[str, Any], edge: MeterValue | None, *, is_end: bool
    ) -> list[SourceSample]:
        """Begin or end a transaction for the intervals of its socket; return the completed intervals."""
        try:
            time = moment(payload.get("timestamp"))
        except Rejected:
            return []
        register = None if edge is None else edge.value
        if not is_end:
            return self._intervals.begin(socket, time, register)
        self._powers.forget(socket)
        return self._intervals.end(socket, time, register)

    def _save_transaction(self, charger: str, transaction: str, socket: str) -> None:
        keep(self._running, f"{charger}/{transaction}", socket)

    def _known(self, charger: str, transaction: str) -> str:
        socket = self._running.get(f"{charger}/{transaction}")
        if socket is None:
            raise Rejected("unknown transaction")
        return socket

    # Values.

    def _values(self, rows: object, transaction: str) -> list[MeterValue]:
        values = [one for at, raw in sampled(rows, self.unused) for one in self._parsed(at, raw)]
        return preferred([x for x in values if not self._is_old_begin(x, transaction)], self.unused)

    def _parsed(self, at: float, raw: Mapping[str, Any]) -> Iterator[MeterValue]:
        signed, is_signed = raw.get("signedMeterValue"), raw.get("format") == "SignedData"
        if is_signed or isinstance(signed, dict):
            tally(self.unused, "signed reading", "signed values are not read")
        if not is_signed:
            value = parsed(at, raw, self.unused)
            if value is not None:
                yield value

    def _is_old_begin(self, one: MeterValue, transaction: str) -> bool:
        """Return whether a value of a transaction's beginning is repeated under a later time."""
        if one.context != BEGIN:
            return False
        value = one.value if transaction.endswith(" ") else 0.0  # no transaction is named
        key = (one.measurand, one.location, one.phase, transaction, value)
        is_old = self._begins.setdefault(key, one.time) != one.time
        trim(self._begins)
        if is_old:
            tally(self.unused, f"{one.measurand} {BEGIN}", "repeated")
        return is_old

    def _used(self, socket: str, values: Iterable[MeterValue]) -> list[SourceSample]:
        new = [one for one in values if self._is_new(socket, one)]
        found: list[SourceSample] = []
        instants: list[Total] = []
        for total in self._phases.complete(socket, new, self.unused):
            if total.last.measurand.endswith(".Register"):
                found += self._register(socket, total)
            elif total.last.measurand.endswith(".Interval"):
                found += self._intervals.add(socket, total)
            else:
                instants.append(total)
        return [*found, *self._powers.totals(socket, instants)]

    def _is_new(self, socket: str, one: MeterValue) -> bool:
        key = identity(socket, one)
        before = self._recent.get(key)
        if before is None:
            keep(self._recent, key, one, _REPEATS)
            return True
        reason = "repeated" if is_same(before, one) else "conflict"
        tally(self.unused, one.measurand, reason)
        return False

    def _register(self, socket: str, total: Total) -> Iterator[SourceSample]:
        """Yield a register; one of a transaction's end as a series of its own, too."""
        one, series = total.last, (socket, total.last.measurand, total.text)
        if one.context not in OF_TRANSACTION:
            edge = self._edges.pop(series, None)  # of the transaction that this is the first of
            if edge is not None and edge.last.time < one.time:
                yield sample_of(socket, edge, total.rank, total.text)
            keep(self._sampled, series, None)
            yield sample_of(socket, total, total.rank, total.text)
            return
        yield sample_of(socket, total, EVENTS + total.rank, f"{total.text} at transactions".strip())
        key = identity(socket, one._replace(context="Sample.Periodic"))
        if series not in self._sampled:
            keep(self._edges, series, total)
        elif key not in self._recent:
            keep(self._recent, key, one, _REPEATS)
            yield sample_of(socket, total, total.rank, total.text)


def _socket(charger: str, number: object) -> str:
    """Return the name of a socket; connector 0 is the charger's main meter."""
    if isinstance(number, str) and number.isdecimal() and len(number) < 7:
        number = int(number)
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise Rejected("no connector")
    if not 0 <= number < 10**6 or number != int(number):
        raise Rejected("no connector")
    return f"{charger}/{int(number)}" if number else charger


def _identity(transaction: object) -> str:
    """Return the id of a transaction as text: a number in 1.6, a text in 2.0.1; empty for none."""
    is_id = isinstance(transaction, str | int) and not isinstance(transaction, bool)
    return str(transaction)[:64] if is_id else ""
