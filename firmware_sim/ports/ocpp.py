"""Messages of a charge point: OCPP 1.6J and 2.0.1, as JSON arrays on a WebSocket."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

Version = Literal["1.6", "2.0.1"]
Sign = Callable[[float, float], str]  # signs a register in Wh at a moment, as OCMF
SUBPROTOCOL: dict[Version, str] = {"1.6": "ocpp1.6", "2.0.1": "ocpp2.0.1"}
_ENERGY, _POWER = "Energy.Active.Import.Register", "Power.Active.Import"


def clock(time: float) -> str:
    """Return a moment as ISO 8601.

    >>> clock(0.0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class SocketSample:
    """Values of a socket's meter."""

    time: float  # time on the charge point's clock
    socket: int  # number of the socket, from 1
    wh: int
    watts: int


@dataclass(frozen=True, slots=True)
class CallMessage:
    """A message with an answer."""

    action: str
    payload: dict[str, Any]
    # local name of its session; a 1.6 charge point replaces it by the back office's number when it
    # is sent
    session: str = ""
    is_start: bool = False  # true if the answer contains that number

    def text(self, number: str, transaction: int | None, *, is_offline: bool) -> str:
        payload = self.payload
        if transaction is not None:
            payload = payload | {"transactionId": transaction}
        if is_offline and self.action == "TransactionEvent":
            payload = payload | {"offline": True}
        return json.dumps([2, number, self.action, payload])


@dataclass(frozen=True, slots=True)
class OcppVersion:
    """Makes the messages of a version."""

    version: Version
    sign: Sign | None = None  # adds signed readings to the end of a session; None adds none

    def boot(self) -> CallMessage:
        if self.version == "1.6":
            named = {"chargePointVendor": "gridfed", "chargePointModel": "sim"}
            return CallMessage("BootNotification", named)
        station = {"vendorName": "gridfed", "model": "sim"}
        return CallMessage("BootNotification", {"reason": "PowerUp", "chargingStation": station})

    def started(self, seen: SocketSample, session: str) -> CallMessage:
        if self.version == "1.6":
            payload = {
                "connectorId": seen.socket,
                "idTag": "DRIVER-0001",
                "meterStart": seen.wh,
                "timestamp": clock(seen.time),
            }
            return CallMessage("StartTransaction", payload, session, is_start=True)
        token = {"idToken": "DRIVER-0001", "type": "ISO14443"}
        return self._event("Started", seen, session, 0, "Transaction.Begin", {"idToken": token})

    def sampled(self, seen: SocketSample, session: str, number: int) -> CallMessage:
        """Return the values of a charging session."""
        if self.version == "1.6":
            payload = {
                "connectorId": seen.socket,
                "meterValue": [self._values(seen, "Sample.Periodic")],
            }
            return CallMessage("MeterValues", payload, session)
        return self._event("Updated", seen, session, number, "Sample.Periodic", {})

    def stopped(
        self, seen: SocketSample, session: str, number: int, before: list[SocketSample]
    ) -> CallMessage:
        """Return the message for the end of a session; values already sent are repeated."""
        if self.version == "1.6":
            data = [self._values(each, "Sample.Periodic") for each in before]
            payload = {
                "meterStop": seen.wh,
                "timestamp": clock(seen.time),
                "reason": "EVDisconnected",
                "transactionData": [*data, self._values(seen, "Transaction.End")],
            }
            return CallMessage("StopTransaction", payload, session)
        return self._event("Ended", seen, session, number, "Transaction.End", {})

    def clock_aligned(self, seen: SocketSample) -> CallMessage:
        """Return the register of a quarter of an hour, with or without a session."""
        key = "connectorId" if self.version == "1.6" else "evseId"
        values = [self._values(seen, "Sample.Clock")]
        return CallMessage("MeterValues", {key: seen.socket, "meterValue": values})

    def _event(  # noqa: PLR0917 - the parts of one message
        self,
        kind: str,
        seen: SocketSample,
        session: str,
        number: int,
        why: str,
        more: dict[str, Any],
    ) -> CallMessage:
        triggers = {"Started": "CablePluggedIn", "Updated": "MeterValuePeriodic"}
        payload = {
            "eventType": kind,
            "timestamp": clock(seen.time),
            "triggerReason": triggers.get(kind, "EVDeparted"),
            "seqNo": number,
            "transactionInfo": {"transactionId": session},
            "meterValue": [self._values(seen, why)],
        }
        if kind == "Started":
            payload["evse"] = {"id": seen.socket, "connectorId": 1}
        return CallMessage("TransactionEvent", payload | more, session)

    def _values(self, seen: SocketSample, why: str) -> dict[str, Any]:
        ends = why == "Transaction.End" and self.sign is not None
        signed = self.sign(seen.time, seen.wh) if ends and self.sign is not None else ""
        if self.version == "1.6":
            rows: list[dict[str, Any]] = [
                {"value": str(seen.wh), "context": why, "measurand": _ENERGY, "unit": "Wh"},
                {"value": f"{seen.watts / 1000:.3f}", "measurand": _POWER, "unit": "kW"},
            ]
            if signed:
                rows.append({"value": signed, "context": why, "format": "SignedData"})
            return {"timestamp": clock(seen.time), "sampledValue": rows}
        energy: dict[str, Any] = {
            "value": seen.wh / 1000,
            "context": why,
            "measurand": _ENERGY,
            "unitOfMeasure": {"unit": "Wh", "multiplier": 3},
        }
        if signed:
            energy["signedMeterValue"] = {
                "signedMeterData": signed,
                "signingMethod": "ECDSA-secp256r1-SHA256",
                "encodingMethod": "OCMF",
                "publicKey": "",
            }
        power = {"value": seen.watts, "measurand": _POWER, "unitOfMeasure": {"unit": "W"}}
        return {"timestamp": clock(seen.time), "sampledValue": [energy, power]}
