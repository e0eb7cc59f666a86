"""Render the console's pages from templates; every value is escaped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aggregator.operations.link_projection import size

OWN = "aggregator.extensions.console"
# address and name of every page in the navigation, before those of extensions
PAGES = (
    ("/", "Fleet"),
    ("/runs", "Runs and rounds"),
    ("/devices", "Devices"),
    ("/budgets", "Privacy budgets"),
    ("/refusals", "Refusals"),
    ("/suspects", "Suspects"),
    ("/keys", "Keys and expiry"),
    ("/orders", "Orders"),
    ("/audit-log", "Audit log"),
)

PHASES = {"train": "training", "pause": "paused", "stop": "complete", "": "unknown"}
# reasons of rules, in words of the pages
EXCLUSIONS = {
    "far": "far from the other updates",
    "weight 0": "no weight",
    "no_trust": "no trust",
    "other_cluster": "in another cluster",
}

# names of a round's facts on its page
FACTS = {
    "step": "Length of the model's change",
    "loss": "Mean loss that devices reported",
    "seconds": "Duration, s",
}


@cache
def environment(packages: tuple[str, ...]) -> Environment:
    """Return the environment of the templates in these packages, after the console's own."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(one) for one in (OWN, *packages)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"moment": moment, "number": number, "table_value": table_value, "day": day}
    made.filters |= {"phase": phase, "exclusion": exclusion, "spans": spans, "size": size}
    made.filters["bytes"] = byte_count
    made.globals |= {"facts_of": FACTS, "assets": _assets_digest()}
    return made


def _assets_digest() -> str:
    """Return a text that differs for other static files, so that no browser shows old ones."""
    folder = files(OWN) / "static"
    digest = hashlib.sha256()
    for name in ("console.css", "console.js"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:12]


def render(packages: tuple[str, ...], template: str, values: Mapping[str, Any]) -> Markup:
    """Return a page or a part of one.

    Args:
        packages: Extensions that bring templates.
        template: Name of the template, without its suffix.
    """
    page = environment(packages).get_template(f"{template}.html").render(**values)
    return Markup(page)  # noqa: S704 - the templates escape


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


def day(milliseconds: float) -> str:
    """Return the day in UTC.

    >>> day(86_400_000 * 20_780)
    '2026-11-23'
    """
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d}"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with some significant digits; a hyphen for None.

    >>> number(0.25), number(None), number(12), number(100.0, 3)
    ('0.2500', '-', '12', '100')
    """
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:#.{digits}g}".removesuffix(".")


def byte_count(value: float | None) -> str:
    """Return a number of bytes for a reader; a hyphen for None.

    >>> byte_count(66_700), byte_count(None)
    ('67 kB', '-')
    """
    return "-" if value is None else size(int(value))


def spans(numbers: Iterable[int]) -> str:
    """Return whole numbers as text, with neighbours joined.

    >>> spans([9, 4, 3, 5, 1])
    '1, 3 to 5, 9'
    """
    found: list[list[int]] = []
    for one in sorted(numbers):
        if found and found[-1][-1] == one - 1:
            found[-1].append(one)
        else:
            found.append([one])
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in found)


def phase(name: str) -> str:
    """Return the phase of a run in words.

    >>> phase("train"), phase("")
    ('training', 'unknown')
    """
    return PHASES.get(name, name)


def exclusion(reason: str) -> str:
    """Return a rule's reason in words; a foreign rule's reason is unchanged.

    >>> exclusion("far"), exclusion("odd")
    ('far from the other updates', 'odd')
    """
    return EXCLUSIONS.get(reason, reason)


def table_value(value: object) -> str:
    """Return a value of a report as text.

    >>> table_value({"name": "krum", "f": 1}), table_value("mean")
    ('{"name": "krum", "f": 1}', 'mean')
    """
    return value if isinstance(value, str) else json.dumps(value)
