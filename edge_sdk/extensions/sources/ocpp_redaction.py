"""Reduce a charger's messages to measured values, without the identity of the driver.

A charger and its back office exchange JSON arrays: ``[2, id, action, payload]`` is a call, ``[3,
id, payload]`` a result. Four calls carry energy values; one result is needed, because it gives a
transaction its number. All other messages are dropped, and so is every token that identifies a
driver. (OCPP-J 1.6 section 4; OCPP 2.0.1 part 4 section 4.)
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

_KEPT = frozenset({"StartTransaction", "StopTransaction", "MeterValues", "TransactionEvent"})
IGNORED = "Ignored"
"""Action of the record of a call that could not be recorded."""

_NAMING = frozenset({"idTag", "idToken", "parentIdTag", "groupIdToken", "idTokenInfo", "idTagInfo"})
_ASKED = 64  # calls kept while they wait for their result
_DEEP = 12  # levels of a message; a schema of OCPP has at most seven


@dataclass(slots=True)
class ConversationLog:
    """The redacted messages of one charger.

    >>> notes = ConversationLog("CP1")
    >>> ask = '[2, "7", "StartTransaction", {"idTag": "ANNA", "meterStart": 5}]'
    >>> notes.record(ask, from_charger=True)
    b'["CP1", "StartTransaction", "7", {"meterStart": 5}]'
    >>> notes.record('[3, "7", {"transactionId": 9, "idTagInfo": {}}]', from_charger=False)
    b'["CP1", "Started", "7", {"transactionId": 9}]'
    >>> notes.record('[2, "8", "Heartbeat", {}]', from_charger=True) is None
    True

    Some chargers number their messages, where the standard wants a text:

    >>> notes.record('[2, 9, "MeterValues", {}]', from_charger=True)
    b'["CP1", "MeterValues", "9", {}]'
    """

    charger: str  # name of the charger: the last part of its path
    _asked: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def record(self, message: str, *, from_charger: bool) -> bytes | None:
        """Return the redacted record of a message, or None if it carries no energy.

        A call with energy values in another form than the standard's is recorded as ignored.

        Raises:
            ValueError: Or ``RecursionError``: it is not JSON.
        """
        match json.loads(message):
            case [2, str() | int() as number, str(action), dict(payload)] if (
                from_charger and action in _KEPT
            ):
                if action == "StartTransaction":
                    self._asked[str(number)] = None
                    if len(self._asked) > _ASKED:
                        self._asked.popitem(last=False)
                return self._line(action, str(number), payload)
            case [3, str() | int() as number, dict(payload)] if (
                not from_charger and str(number) in self._asked
            ):
                del self._asked[str(number)]
                return self._line("Started", str(number), payload)
            case [_, _, str(action), *_] if from_charger and action in _KEPT:
                return self._line(IGNORED, "", {"action": action})
            case _:
                return None

    def _line(self, action: str, number: str, payload: dict[str, Any]) -> bytes:
        return json.dumps([self.charger, action, number, _unnamed(payload)]).encode()


def _unnamed(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any tree of JSON
    """Copy a message without the fields that identify a driver.

    >>> _unnamed({"a": [{"idToken": {"idToken": "X"}, "b": 1}]})
    {'a': [{'b': 1}]}
    """
    if depth > _DEEP:
        return None
    if isinstance(value, dict):
        kept = {key: row for key, row in value.items() if key not in _NAMING}
        return {key: _unnamed(row, depth + 1) for key, row in kept.items()}
    if isinstance(value, list):
        return [_unnamed(row, depth + 1) for row in value]
    return value
