"""Render the console's pages from templates; every value is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PAGES = (
    ("/", "Fleet"),
    ("/runs", "Runs and rounds"),
    ("/devices", "Devices"),
    ("/budgets", "Privacy budgets"),
    ("/refusals", "Refusals"),
    ("/suspects", "Suspects"),
    ("/replay", "Incident replay"),
    ("/keys", "Keys and expiry"),
    ("/orders", "Orders"),
)
"""Address and name of every page in the navigation."""


@cache
def environment() -> Environment:
    """Return the environment of the templates."""
    made = Environment(
        loader=PackageLoader("aggregator.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"moment": moment, "number": number, "table_value": table_value}
    made.globals["pages"] = PAGES
    return made


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a page.

    Args:
        template: Name of the template, without its suffix.
        values: Values that the template names.
    """
    return environment().get_template(f"{template}.html").render(**values)


def moment(milliseconds: float | None) -> Markup | str:
    """Return a time element in UTC, which the script shows in the viewer's zone.

    >>> moment(0), str(moment(1_700_000_000_000))
    ('-', '<time datetime="2023-11-14T22:13:20Z">2023-11-14 22:13:20 UTC</time>')
    """
    if not milliseconds:
        return "-"
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    machine, text = f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(machine, text)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with some significant digits; a hyphen for None.

    >>> number(0.123456), number(None), number(12)
    ('0.1235', '-', '12')
    """
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def table_value(value: object) -> str:
    """Return a value of a report as text.

    >>> table_value({"name": "krum", "f": 1}), table_value("mean")
    ('{"name": "krum", "f": 1}', 'mean')
    """
    return value if isinstance(value, str) else json.dumps(value)
