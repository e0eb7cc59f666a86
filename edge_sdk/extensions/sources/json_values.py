"""Decode JSON of any service into samples: one path for each value, and one for its time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.app.schema import Between, Length
from edge_sdk.extensions.sources.base import Decoder, RawFrame, Rejected, SourceSample
from edge_sdk.extensions.sources.interface import LiveSection
from edge_sdk.extensions.sources.json_path import JsonPath, PathError
from edge_sdk.extensions.sources.stream_map import StreamName

_MILLISECONDS = 1e11  # a larger number of a time is in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonValue:
    """One value of a JSON document, ``[[source.value]]``."""

    # path of the value or, with ``[*]``, of an array of values; ``$`` is a plain number
    path: Annotated[str, Length(1, 256)]
    stream: Annotated[str, Length(1, 64)]  # stream of the readings
    # path of the time or, for an array, of as many times: Unix seconds or milliseconds, or ISO
    # 8601, in UTC where it has no offset; empty: the time of arrival
    time: Annotated[str, Length(0, 256)] = ""
    unit: Annotated[str, Length(0, 32)] = ""  # unit of the value; empty: that of the stream
    # ``instant``, ``interval`` (a sum over ``seconds``) or ``register`` (ever rising)
    kind: Literal["instant", "interval", "register"] = "instant"
    # length of the interval, for ``interval``
    seconds: Annotated[float, Between(1.0, 604_800.0)] | None = None
    scale: Annotated[float, Between(-1e9, 1e9)] = 1.0  # factor of the value

    def __post_init__(self) -> None:
        """Refuse a path that cannot be read, and an array without times."""
        for name, text in (("path", self.path), ("time", self.time)):
            try:
                JsonPath.parse(text)
            except PathError as error:
                raise ValueError(f"{name}: {error}") from error
        if JsonPath.parse(self.path).is_list and not self.time:
            raise ValueError("time: required for an array of values; the path of their times")
        if (self.kind == "interval") != (self.seconds is not None):
            raise ValueError('seconds: required for kind = "interval", and only there')

    @property
    def name(self) -> StreamName:
        return StreamName(self.stream, self.kind, self.unit, self.scale)


def names_of(values: Sequence[JsonValue]) -> dict[str, StreamName]:
    return {_name(value): value.name for value in values}


def decoder(values: Sequence[JsonValue]) -> Decoder:
    """Return the decoder of documents with these values.

    A document in which a value is missing gives the others; one without any is rejected.
    """
    parsed = [
        (value, JsonPath.parse(value.path), JsonPath.parse(value.time) if value.time else None)
        for value in values
    ]

    def decode(frame: RawFrame) -> list[SourceSample]:
        try:
            document = json.loads(frame.payload)
        except (ValueError, RecursionError) as error:
            raise Rejected("not JSON") from error
        samples: list[SourceSample] = []
        for value, path, time in parsed:
            samples += _samples(document, frame.at, value, path, time)
        if all(sample.fault for sample in samples):
            raise Rejected(samples[0].fault if samples else "no value")
        return samples

    return decode


def _samples(
    document: object, at: float, value: JsonValue, path: JsonPath, time: JsonPath | None
) -> list[SourceSample]:
    try:
        found = path.find(document)
        times = [at] * len(found) if time is None else [_time(x) for x in time.find(document)]
    except LookupError:
        return [_unread(value, at, "no value")]
    if len(times) == 1 and not path.is_list:
        times *= len(found)
    if len(times) != len(found):
        return [_unread(value, at, "times and values differ in number")]
    return [
        _unread(value, at, "no value" if number is None else "bad time")
        if number is None or moment is None
        else SourceSample(_name(value), moment, number, value.unit, seconds=value.seconds)
        for moment, told, number in zip(times, found, map(_number, found), strict=True)
        if told is not None  # null: an hour that the service leaves open
    ]


def _unread(value: JsonValue, at: float, reason: str) -> SourceSample:
    return SourceSample(_name(value), at, math.nan, value.unit, fault=reason)


def _name(value: JsonValue) -> str:
    return f"{value.path} {value.stream}"


def _number(value: object) -> float | None:
    """Return a finite number, also one that is written as text; None for anything else.

    >>> _number(3), _number("21.5"), _number("unavailable"), _number(True), _number(10**400)
    (3.0, 21.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _time(value: object) -> float | None:
    """Return Unix seconds; None for a value that is no time.

    >>> _time("2026-01-01T00:00"), _time("2026-01-01T01:00:00+01:00"), _time(1767225600000)
    (1767225600.0, 1767225600.0, 1767225600.0)
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
        except (ValueError, OverflowError):
            return None
    number = _number(value)
    if number is None:
        return None
    return number / 1000 if abs(number) > _MILLISECONDS else number


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSourceSection(LiveSection):
    """Keys common to the sources of JSON documents."""

    url: str  # address of the service or broker
    value: Annotated[tuple[JsonValue, ...], Length(1, 64)]  # values of a document
    ca_file: Path | None = None  # authority that signed the other end's certificate
    insecure: bool = False  # allow an unencrypted link to another host

    def __post_init__(self) -> None:
        if self.map:
            raise ValueError("map: not used here; [[source.value]] names the stream of each value")


def json_decoder(section: JsonSourceSection) -> Decoder:
    """Return the decoder of a section's documents."""
    return decoder(section.value)


def json_names(section: JsonSourceSection) -> Mapping[str, StreamName]:
    """Return the meaning of a section's values."""
    return names_of(section.value)
