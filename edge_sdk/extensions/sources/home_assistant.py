"""Read the long-term statistics of Home Assistant's recorder, from its WebSocket interface.

A sum of the recorder is a register that it has continued over restarts of the meter; ``Normaliser``
takes its differences, so that an hour that the recorder lacks stays without a value.
https://developers.home-assistant.io/docs/api/websocket
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.schema import Between, Length
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import (
    UNDECODABLE,
    Decoder,
    FramedLink,
    RawFrame,
    Rejected,
    SourceSample,
)
from edge_sdk.extensions.sources.http_poll import HttpService
from edge_sdk.extensions.sources.interface import Interface, LiveSection
from edge_sdk.extensions.sources.normaliser import NO_CLOCK_BEFORE
from edge_sdk.extensions.sources.stream_map import StreamName
from edge_sdk.extensions.sources.websocket_client import WebSocketClient
from edge_sdk.forecasting.series import STREAMS

ROWS = 4000
"""Most rows of all statistics together that one request asks for."""

_HOUR = 3_600_000  # milliseconds
_DAY = 86_400
_SHORT_TERM = 12  # days; the recorder keeps values of five minutes for ten
_LATE = 14 * _DAY  # seconds that one statistic may be behind another
_OTHERS = 100  # messages that are not the awaited one
_SHOWN = 20  # statistics that a refusal names

UNITS: Mapping[str, tuple[str, str]] = {
    "kWh": ("energy", "kWh"),
    "m³": ("volume", "m³"),
    "kW": ("power", "kW"),
    "°C": ("temperature", "°C"),
    "m/s": ("speed", "m/s"),
}
"""Class of units of the recorder, and the unit that it is asked for, by a stream's unit."""

Connect = Callable[[HttpService, str, float], WebSocketClient]


@dataclass(slots=True)
class RecorderFeed:
    """The rows of some statistics, a span in each frame, and later the new ones."""

    service: HttpService
    statistics: Mapping[str, str]  # stream by the id of a statistic
    step: float  # seconds of the grid; below an hour, the values of five minutes are read
    days: int  # length of the history before the first request
    every: float  # seconds between two polls
    timeout: float  # longest wait for one answer, in seconds
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], object] = time.sleep  # function that sleeps for so many seconds
    connect: Connect = WebSocketClient
    rejected: Counter[str] = field(default_factory=Counter)  # nothing: every fault is an OSError
    _link: WebSocketClient | None = None
    _units: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, int] = field(default_factory=dict)  # end of the newest row, ms, by statistic
    _start: int = 0  # begin of the next span, ms; 0 until the first poll
    _next: float = -math.inf
    _refused: str = ""  # token that Home Assistant has refused: it counts each attempt
    _number: int = 0

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds; return the rows of one span if a request is due.

        Raises:
            OSError: Home Assistant cannot be reached, or refuses the token or a statistic.
        """
        now = self.clock.wall()
        pause = self._next - self.clock.monotonic()
        if pause > 0 or now < 1000 * NO_CLOCK_BEFORE:
            self.wait(min(pause, patience) if pause > 0 else patience)
            return []
        try:
            if self._link is None:
                self._open(now)
            end = self._start + ROWS // len(self.statistics) * self._span
            rows = self._rows(self._start, end)
        except (*UNDECODABLE, AttributeError) as error:
            raise ConnectionError(_FOREIGN) from error
        if end > now:
            self.close()
            self._next = self.clock.monotonic() + self.every
        else:
            self._start = end
        if not any(rows.values()):
            return []
        text = json.dumps({"units": self._units, "rows": rows})
        return [RawFrame(text.encode(), now / 1000)]

    def close(self) -> None:
        """Close the connection; the next call of ``frames`` opens it again."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _open(self, now: int) -> None:
        token = self.service.token()
        if token == self._refused:
            raise PermissionError(_NO_TOKEN)
        path = self.service.parts.path.rstrip("/") + "/api/websocket"
        self._link = self.connect(self.service, path, self.timeout)
        self._answer("auth_required")
        self._link.send(json.dumps({"type": "auth", "access_token": token}))
        if self._answer("auth_ok", "auth_invalid")["type"] == "auth_invalid":
            self._refused = token
            raise PermissionError(_NO_TOKEN)
        if not self._units:
            self._units = self._checked_units()
        days = self.days if self._span == _HOUR else min(self.days, _SHORT_TERM)
        first = now - days * _DAY * 1000
        newest = max(self._ends.values(), default=0)
        behind = min(self._ends.get(name, first) for name in self.statistics)
        self._start = max(behind, newest - _LATE * 1000) // self._span * self._span

    @property
    def _span(self) -> int:
        """Milliseconds of one row."""
        return _HOUR if self.step >= _HOUR / 1000 else _HOUR // 12

    def _checked_units(self) -> dict[str, str]:
        """Return the unit of each statistic; refuse one that the recorder lacks."""
        known = {str(row["statistic_id"]): row for row in self._ask("recorder/list_statistic_ids")}
        units: dict[str, str] = {}
        for name, stream in self.statistics.items():
            unit = _unit(stream)
            kind, asked = UNITS.get(unit, ("", ""))
            row = known.get(name)
            if row is None or (_is_sum(stream) and not row.get("has_sum")):
                fits = sorted(
                    other
                    for other, one in known.items()
                    if one.get("unit_class") == kind and (one.get("has_sum") or not _is_sum(stream))
                )
                why = "no such statistic" if row is None else "it has no sum"
                shown = ", ".join(fits[:_SHOWN]) or "none"
                raise ConnectionError(f"{name}: {why}; those with {unit or 'a unit'} are: {shown}")
            has_kind = bool(kind) and row.get("unit_class") == kind
            units[name] = (
                asked if has_kind else str(row.get("statistics_unit_of_measurement") or "")
            )
        return units

    def _rows(self, start: int, end: int) -> dict[str, list[tuple[int, float]]]:
        """Return the time of the value in ms, and the value, of each new row, by statistic."""
        found = self._ask(
            "recorder/statistics_during_period",
            start_time=_moment(start),
            end_time=_moment(end),
            statistic_ids=[*self.statistics],
            period="hour" if self._span == _HOUR else "5minute",
            types=["sum", "mean"],
            units=dict(UNITS.values()),
        )
        new: dict[str, list[tuple[int, float]]] = {}
        ends = dict(self._ends)
        for name, stream in self.statistics.items():
            kind, edge = ("sum", "end") if _is_sum(stream) else ("mean", "start")
            seen = self._ends.get(name, 0)
            rows = [
                row
                for row in found.get(name, ())
                if row.get(kind) is not None and row["end"] > seen
            ]
            new[name] = [(int(row[edge]), float(row[kind])) for row in rows]
            if rows:
                ends[name] = int(rows[-1]["end"])
        self._ends = ends
        return new

    def _ask(self, command: str, **more: object) -> Any:  # noqa: ANN401 - JSON
        assert self._link is not None
        self._number += 1
        self._link.send(json.dumps({"id": self._number, "type": command, **more}))
        answer = self._answer("result")
        if not answer.get("success"):
            why = answer.get("error", {}).get("message", "no reason")
            raise ConnectionError(f"{command} is refused: {str(why)[:200]}")
        return answer["result"]

    def _answer(self, *kinds: str) -> dict[str, Any]:
        assert self._link is not None
        for _ in range(_OTHERS):
            answer = json.loads(self._link.receive())
            is_mine = answer["type"] != "result" or answer["id"] == self._number
            if answer["type"] in kinds and is_mine:
                return dict(answer)
        raise ConnectionError(_FOREIGN)


_FOREIGN = "an answer is not Home Assistant's"
_NO_TOKEN = "the token is refused; write a new long-lived one into token_file"  # noqa: S105 - a message


def _unit(stream: str) -> str:
    return STREAMS[stream].unit if stream in STREAMS else ""


def _is_sum(stream: str) -> bool:
    return stream in STREAMS and STREAMS[stream].adds


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def decode(frame: RawFrame) -> list[SourceSample]:
    """Return a sample of each row: of a sum at its end, of a mean at its begin.

    Raises:
        Rejected: The frame is not one of ``RecorderFeed``.
    """
    try:
        found = json.loads(frame.payload)
        return [
            SourceSample(name, float(at) / 1000, float(value), str(found["units"][name]))
            for name, rows in found["rows"].items()
            for at, value in rows
        ]
    except (*UNDECODABLE, AttributeError) as error:
        raise Rejected("not statistics") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAssistantSection(LiveSection):
    """``type = "home-assistant"``: long-term statistics of its recorder, history and new hours."""

    url: str = "http://127.0.0.1:8123"  # address of Home Assistant
    token_file: Path  # file with a long-lived access token in its first line
    # stream by the id of a statistic; a stream that adds up takes sums, another one means
    statistics: Annotated[Mapping[str, str], Length(1, 16)]
    # grid; below an hour, values of five minutes are read, which reach ten days back
    step: Duration | None = "1h"
    days: Annotated[int, Between(1, 4000)] = 400  # length of the history that is read first
    poll_interval: Duration = "10m"  # polling interval, at least 1s
    timeout: Duration = "30s"  # longest wait for a whole answer
    ca_file: Path | None = None  # authority of an https address
    insecure: bool = False  # allow http:// to another host: the token is then sent unencrypted

    def __post_init__(self) -> None:
        if self.map:
            raise ValueError("map: not used here; statistics names the stream of each statistic")


def _feed(section: HomeAssistantSection) -> FramedLink:
    every = seconds(section.poll_interval)
    if every < 1.0:
        raise ConfigError(
            f"source home-assistant: poll_interval: {section.poll_interval} is below 1s"
        )
    service = HttpService(
        section.url, section.ca_file, section.token_file, section.insecure, "home-assistant"
    )
    step = _HOUR / 1000 if section.step is None else seconds(section.step)
    timeout = seconds(section.timeout)
    return RecorderFeed(service, section.statistics, step, section.days, every, timeout)


def _decoder(_section: HomeAssistantSection) -> Decoder:
    return decode


def _names(section: HomeAssistantSection) -> dict[str, StreamName]:
    return {
        name: StreamName(stream, "register" if _is_sum(stream) else "instant")
        for name, stream in section.statistics.items()
    }


HOME_ASSISTANT = Interface(
    "home-assistant",
    HomeAssistantSection,
    _feed,
    _decoder,
    ahead=16,
    is_retold=True,
    names=_names,
)
