"""Build a CSV source from its section of a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import date, datetime, tzinfo
from pathlib import Path
from typing import Any, ClassVar

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.csv_dialect import EPOCH, ISO
from edge_sdk.extensions.sources.csvfile import EDGES, KINDS, CsvFile
from edge_sdk.forecasting.calendar_features import time_zone


class CsvSection:
    """Builds CSV sources from sections of a configuration."""

    renamed: ClassVar[Mapping[str, str]] = {
        "form": "time_format",
        "seconds": "interval_seconds",
        "time": "time_column",
        "where": "filter",
        "zone": "time_zone",
    }

    def __call__(self, section: Mapping[str, Any]) -> CsvFile:
        """Build a CSV source from its section of a configuration.

        Keys: ``path``, ``columns`` (column to stream; or ``column`` and ``stream`` for one),
        ``time_column``, ``time_format``, ``time_zone``, ``from``, ``until``, ``interval_seconds``,
        ``kind``, ``times``, ``filter``, ``delimiter``, ``decimal``.

        Raises:
            ConfigError: A missing, unknown or invalid key, or a missing file.
        """
        keys = {key: value for key, value in section.items() if key != "type"}
        if "column" in keys and "stream" in keys:
            keys.setdefault("columns", {keys.pop("column"): keys.pop("stream")})
        keys["start"] = keys.pop("from", -math.inf)
        found = {"rejected", "offending", "unused", "dialect", "registers"}
        known = {f.name for f in fields(CsvFile)} - found
        if unknown := set(keys) - known:
            raise ConfigError(f"source csv: unknown key {min(unknown)!r}")
        if not keys.get("columns") or "path" not in keys:
            raise ConfigError(
                "source csv: needs 'path', and 'columns' that map a column to its stream"
            )
        form = str(keys.get("time_format", "auto"))
        if form not in ("auto", ISO, EPOCH) and "%" not in form:
            raise ConfigError(
                f"source csv: time_format must be 'auto', 'iso', 'epoch' or a pattern such as "
                f"'%d.%m.%Y %H:%M', not {form!r}"
            )
        choices = {"decimal": ("auto", ".", ","), "kind": KINDS, "times": EDGES}
        for key, choice in choices.items():
            if keys.get(key, "auto") not in choice:
                listed = ", ".join(map(repr, choice))
                raise ConfigError(f"source csv: {key} must be one of {listed}, not {keys[key]!r}")
        columns = keys.get("time_column", "time")
        if not isinstance(columns, str) and [*map(type, columns)] != [str, str]:
            raise ConfigError(
                f"source csv: time_column must be a column, or a list of the columns of date and time"
                f" of day, not {columns!r}"
            )
        if len(str(keys.get("delimiter", ""))) > 1:
            raise ConfigError(
                f"source csv: delimiter must be one character, not {keys['delimiter']!r}"
            )
        keys["path"] = Path(keys["path"])
        if not keys["path"].is_file():
            raise ConfigError(f"source csv: path: no such file: {str(keys['path'])!r}")
        keys["time_zone"] = zone = _zone(keys.get("time_zone", "UTC"))
        keys["start"] = _bound(keys["start"], zone)
        keys["until"] = _bound(keys.get("until", math.inf), zone)
        return CsvFile(**keys)


CSV = CsvSection()


def _zone(name: object) -> tzinfo:
    try:
        return time_zone(str(name))
    except ValueError as error:
        raise ConfigError(f"source csv: {error}") from error


def _bound(value: object, zone: tzinfo) -> float:
    """Convert Unix seconds, an ISO text, or TOML's dates and times to Unix seconds."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=zone)
        if isinstance(value, datetime):
            return value.replace(tzinfo=value.tzinfo or zone).timestamp()
        if isinstance(value, int | float):
            return float(value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"source csv: {value!r} is not a time") from error
    raise ConfigError(f"source csv: {value!r} is neither a date nor a number of seconds")
