"""Decode the measured values in a charger's messages: OCPP 1.6 and 2.0.1, from a tap's records.

Energy is read from the meter's register, which does not depend on sessions. The decoder keeps the
socket of each transaction, because a 1.6 charger does not repeat it at the stop, and the recent
values, because a session repeats them at its end, and a queue after a lost link. (OCPP 1.6 sections
6 and 7; OCPP 2.0.1 part 2, TransactionEvent and MeterValuesType.)
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from edge_sdk.sources.base import RawFrame, Rejected, SourceSample

_REGISTER = "Energy.Active.Import.Register"
_SESSION = "session.energy"
_NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,9})?")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE | re.ASCII
)
_MOST = 512  # values in one message
_TRANSACTIONS = 256  # transactions whose socket is kept
_REPEATS = 4096  # recent values kept to detect repeats
_OTHER_LOCATIONS = frozenset({"EV", "Cable", "Body"})  # other locations of a measurement

Verify = Callable[[str], list[SourceSample]]
"""Verifies a signed reading and returns its samples; raises ``Rejected``."""


@dataclass(slots=True)
class OcppDecoder:
    """The decoder of one tap's records.

    Attributes:
        verify: Verifier of signed readings; None ignores them.

    Example:
        >>> sockets = OcppDecoder()
        >>> ask = b'["CP1","StartTransaction","7",{"connectorId":2,"meterStart":1500,'
        >>> frame = RawFrame(ask + b'"timestamp":"2024-05-14T12:00:00Z"}]', 0.0)
        >>> [(s.name, s.value, s.unit, s.device) for s in sockets(frame)]
        [('Energy.Active.Import.Register', 1500.0, 'Wh', 'CP1/2')]
    """

    verify: Verify | None = None
    _starting: OrderedDict[str, tuple[str, SourceSample]] = field(default_factory=OrderedDict)
    _running: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _begun: OrderedDict[str, SourceSample] = field(default_factory=OrderedDict)
    _told: OrderedDict[tuple[str, str, float, float], None] = field(default_factory=OrderedDict)

    def __call__(self, frame: RawFrame) -> list[SourceSample]:
        """Decode one record; a message without new values yields no samples.

        Raises:
            Rejected: Not a record, an invalid time, or a value that is no number.
        """
        return [sample for sample in self._decoded(frame) if self._is_new(sample)]

    def _is_new(self, sample: SourceSample) -> bool:
        """Return whether a value is new: a session repeats its values at its end."""
        key = (sample.device, sample.name, sample.time, sample.value)
        is_new = key not in self._told
        self._told[key] = None
        if len(self._told) > _REPEATS:
            self._told.popitem(last=False)
        return is_new

    def _decoded(self, frame: RawFrame) -> list[SourceSample]:
        match json.loads(frame.payload):
            case [str(charger), str(action), str(number), dict(payload)]:
                pass
            case _:
                raise Rejected("not a note")
        if action == "Started":
            started = self._starting.pop(f"{charger}/{number}", None)
            if started is not None and type(payload.get("transactionId")) is int:
                self._save_transaction(charger, payload["transactionId"], started[0])
                self._begin(charger, payload["transactionId"], started[1])
            return []
        if action == "TransactionEvent":
            return self._event(charger, payload)
        return self._older(charger, action, number, payload)

    def _older(
        self, charger: str, action: str, number: str, payload: dict[str, Any]
    ) -> list[SourceSample]:
        """Decode a message of OCPP 1.6."""
        if action == "StartTransaction":
            socket = f"{charger}/{_whole(payload.get('connectorId'))}"
            began = _register(payload.get("timestamp"), payload.get("meterStart"), socket)
            self._starting[f"{charger}/{number}"] = (socket, began)
            if len(self._starting) > _TRANSACTIONS:
                self._starting.popitem(last=False)
            return [began]
        if action == "StopTransaction":
            socket = self._known(charger, payload.get("transactionId"))
            ended = _register(payload.get("timestamp"), payload.get("meterStop"), socket)
            during = self._values(payload.get("transactionData"), socket)
            return [*during, ended, *self._session(charger, payload.get("transactionId"), ended)]
        socket = f"{charger}/{_whole(payload.get('connectorId', payload.get('evseId')))}"
        if type(payload.get("transactionId")) is int:
            self._save_transaction(charger, payload["transactionId"], socket)
        return self._values(payload.get("meterValue"), socket)

    def _event(self, charger: str, payload: dict[str, Any]) -> list[SourceSample]:
        """Decode a message of OCPP 2.0.1."""
        about, evse = payload.get("transactionInfo"), payload.get("evse")
        number = about.get("transactionId") if isinstance(about, dict) else None
        if isinstance(evse, dict):
            socket = f"{charger}/{_whole(evse.get('id'))}"
            self._save_transaction(charger, number, socket)
        else:
            socket = self._known(charger, number)
        values = self._values(payload.get("meterValue"), socket)
        registers = [value for value in values if value.name == _REGISTER]
        if registers and payload.get("eventType") == "Started":
            self._begin(charger, number, registers[0])
        if registers and payload.get("eventType") == "Ended":
            return [*values, *self._session(charger, number, registers[-1])]
        return values

    def _begin(self, charger: str, transaction: object, register: SourceSample) -> None:
        self._begun[f"{charger}/{transaction}"] = register
        if len(self._begun) > _TRANSACTIONS:
            self._begun.popitem(last=False)

    def _session(
        self, charger: str, transaction: object, ended: SourceSample
    ) -> Iterator[SourceSample]:
        """Return the energy of a whole session, once, if its beginning was received."""
        began = self._begun.pop(f"{charger}/{transaction}", None)
        if began is None or ended.time <= began.time or began.unit != ended.unit:
            return
        taken = ended.value - began.value
        if taken >= 0:
            span = ended.time - began.time
            yield SourceSample(_SESSION, began.time, taken, ended.unit, ended.device, 0, span)

    def _save_transaction(self, charger: str, transaction: object, socket: str) -> None:
        self._running[f"{charger}/{transaction}"] = socket
        if len(self._running) > _TRANSACTIONS:
            self._running.popitem(last=False)

    def _known(self, charger: str, transaction: object) -> str:
        socket = self._running.get(f"{charger}/{transaction}")
        if socket is None:
            raise Rejected("unknown transaction")
        return socket

    def _values(self, rows: object, socket: str) -> list[SourceSample]:
        return sorted(self._read(rows, socket), key=lambda sample: sample.time)

    def _read(self, rows: object, socket: str) -> Iterator[SourceSample]:
        for at, value in _sampled(rows):
            signed = value.get("signedMeterValue")
            if value.get("format") == "SignedData" or isinstance(signed, dict):
                yield from self._signed(value, signed, socket)
            if value.get("format") == "SignedData":
                continue
            if value.get("phase") or value.get("location") in _OTHER_LOCATIONS:
                continue
            unit, factor = _unit(value)
            name = value.get("measurand") or _REGISTER
            if isinstance(name, str) and name.startswith(
                ("Energy.Active.Import", "Power.Active.I")
            ):
                yield SourceSample(name, at, _number(value.get("value")) * factor, unit, socket)

    def _signed(
        self, value: Mapping[str, Any], signed: object, socket: str
    ) -> Iterator[SourceSample]:
        if self.verify is None:
            return
        text = signed.get("signedMeterData") if isinstance(signed, dict) else value.get("value")
        if not isinstance(text, str):
            raise Rejected("not OCMF")
        for sample in self.verify(text):
            yield SourceSample(sample.name, sample.time, sample.value, sample.unit, socket)


def _sampled(rows: object) -> Iterable[tuple[float, Mapping[str, Any]]]:
    """Yield every sampled value of a list of meter values, with its time."""
    count = 0
    for row in rows if isinstance(rows, list) else []:
        at = moment(row.get("timestamp"))
        for value in row.get("sampledValue") or []:
            count += 1
            if count > _MOST:
                raise Rejected("too many values")
            yield at, value


def _unit(value: Mapping[str, Any]) -> tuple[str, float]:
    """Return unit and factor: 1.6 has a unit, 2.0.1 a unit and a power of ten. Default is Wh."""
    name = value.get("measurand") or _REGISTER
    default = "W" if isinstance(name, str) and name.startswith("Power") else "Wh"
    newer = value.get("unitOfMeasure")
    if not isinstance(newer, dict):
        return str(value.get("unit") or default), 1.0
    power = newer.get("multiplier", 0)
    if type(power) is not int or not -9 <= power <= 9:
        raise Rejected("bad value")
    return str(newer.get("unit") or default), 10.0**power


def _register(time: object, value: object, socket: str) -> SourceSample:
    return SourceSample(_REGISTER, moment(time), float(_whole(value)), "Wh", socket)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 10**15:
        raise Rejected("bad value")
    return value


def _number(value: object) -> float:
    """Parse a value: a text in 1.6, a number in 2.0.1.

    >>> _number("12.50"), _number(3)
    (12.5, 3.0)
    >>> _number("NaN")
    Traceback (most recent call last):
    edge_sdk.sources.base.Rejected: bad value
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    raise Rejected("bad value")


def moment(text: object) -> float:
    """Parse a time; without an offset it is UTC, as OCPP requires.

    >>> moment("2024-05-14T14:00:00.000+02:00") - moment("2024-05-14T12:00:00Z")
    0.0

    Raises:
        Rejected: Not a time.
    """
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise Rejected("bad time")
    try:
        read = datetime.fromisoformat(text.upper())
    except ValueError:
        raise Rejected("bad time") from None
    return read.replace(tzinfo=read.tzinfo or UTC).timestamp()
