"""Write an issued forecast as JSON, CSV or line protocol."""

from __future__ import annotations

import csv
import io
import json
from typing import Final

from edge_sdk.forecasting.forecast import IssuedForecast, moment

COLUMNS: Final = (
    "issued_at",
    "start",
    "seconds",
    "value",
    "lower",
    "upper",
    "unit",
    "source",
    "candidate",
    "error",
    "bundle",
    "bundle_version",
    "run",
    "version",
)
"""Columns of the CSV format: one row for each forecast interval."""

HEADER: Final = ",".join(COLUMNS) + "\n"


def json_text(issued: IssuedForecast) -> str:
    return json.dumps(issued.document(), ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(issued: IssuedForecast) -> str:
    """Return one row for each forecast interval, without the header."""
    out, found = io.StringIO(), issued.forecast
    writer = csv.writer(out, lineterminator="\n")
    for start, value, lower, upper in issued.rows():
        writer.writerow(
            (
                moment(issued.issued) or "",
                moment(start),
                issued.step,
                *(_text(number) for number in (value, lower, upper)),
                found.unit,
                found.source,
                issued.quality.candidate,
                _text(issued.quality.error),
                issued.bundle,
                issued.bundle_version,
                issued.run,
                issued.version,
            )
        )
    return out.getvalue()


def line_protocol(issued: IssuedForecast) -> str:
    """Return InfluxDB's line protocol: one line for each forecast interval, at its start.

    A value that is not known has no field; an interval without any value has no line.
    """
    tags = "".join(
        f",{key}={_tag(value)}"
        for key, value in (
            ("device", issued.device),
            ("fleet", issued.fleet),
            ("stream", issued.stream),
            ("unit", issued.forecast.unit),
            ("source", issued.forecast.source),
            ("candidate", issued.quality.candidate),
            ("bundle", issued.bundle),
        )
        if value
    )
    common = [f"run={issued.run}i", f"version={issued.version}i"]
    if issued.issued is not None:
        common.append(f"issued={int(issued.issued)}i")
    if issued.quality.error is not None:
        common.append(f"error={issued.quality.error!r}")
    lines = []
    for start, *numbers in issued.rows():
        named = zip(("value", "lower", "upper"), numbers, strict=True)
        values = [f"{name}={number!r}" for name, number in named if number is not None]
        if values:
            held = ",".join((*values, *common))
            lines.append(f"gridfed_forecast{tags} {held} {start}000000000\n")
    return "".join(lines)


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:.9g}"


def _tag(text: str) -> str:
    r"""Escape a tag's value.

    >>> print(_tag("last day, a=b"))
    last\ day\,\ a\=b
    """
    for mark in ("\\", ",", "=", " "):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.splitlines())
