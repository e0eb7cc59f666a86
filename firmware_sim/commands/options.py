"""Options of trials and of simulated devices as text, parsed before numpy is loaded."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from edge_sdk.app.settings import SettingsError, seconds

MEAN = "mean"  # the rule without robustness: it has no parameter ``f``


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse ``key=value`` texts.

    >>> pairs(["z=1.5", "target=update"], "--attack-option")
    {'z': '1.5', 'target': 'update'}
    """
    read = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise SettingsError(f"{option}: expected KEY=VALUE, got {text!r}")
        read[key] = value
    return read


def of_methods(
    given: Mapping[str, Any], methods: Iterable[str], option: str
) -> dict[str, dict[str, Any]]:
    """Return the settings of each method: those without a name, then those of its own name.

    Args:
        given: Values by ``key`` or ``method.key``.

    >>> of_methods({"steps": 4, "fedprox.prox": 0.1}, ["fedavg", "fedprox"], "--setting")
    {'fedavg': {'steps': 4}, 'fedprox': {'steps': 4, 'prox': 0.1}}
    """
    known = list(methods)
    found = {name: {k: v for k, v in given.items() if "." not in k} for name in known}
    for key, value in given.items():
        method, dot, name = key.partition(".")
        if dot and method not in found:
            raise SettingsError(
                f"{option} {key}: no run has the method {method!r} (methods: {', '.join(known)})",
                hint="METHOD.KEY=VALUE for one method, KEY=VALUE for all",
            )
        if dot:
            found[method][name] = value
    return found


def value_of(text: str) -> Any:  # noqa: ANN401 - what a TOML file would say
    """Return a number, or the text unchanged.

    >>> value_of("2"), value_of("0.5"), value_of("home-1")
    (2, 0.5, 'home-1')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def rule(text: str, options: Mapping[str, str], f: int) -> dict[str, Any]:
    """Return the aggregator's table of a rule; names left of a ``+`` become ``before``.

    Args:
        text: ``krum``, or ``nnm+krum``.
        options: The rule's parameters; a pre-aggregation's as ``name.parameter``.
        f: Number of Byzantine rows; the mean alone has no such parameter.

    >>> rule("bucketing+krum", {"bucketing.size": "3"}, 2)
    {'name': 'krum', 'f': 2, 'preaggregation': [{'name': 'bucketing', 'size': 3}]}
    >>> rule("mean", {}, 2)
    {'name': 'mean'}
    """
    *steps, name = text.split("+")
    own = {key: value_of(value) for key, value in options.items() if "." not in key}
    table: dict[str, Any] = {"name": name}
    if f and (steps or name != MEAN):
        table["f"] = f
    table |= own
    if steps:
        table["preaggregation"] = [_step(step, options) for step in steps]
    return table


def _step(name: str, options: Mapping[str, str]) -> dict[str, Any] | str:
    start = f"{name}."
    own = {k.removeprefix(start): value_of(v) for k, v in options.items() if k.startswith(start)}
    return {"name": name, **own} if own else name


def words(text: str | None) -> tuple[str, ...]:
    """Parse a list separated by commas.

    >>> words("alie,ipm"), words(None)
    (('alie', 'ipm'), ())
    """
    return tuple(word for word in (text or "").split(",") if word)


def arguments(parser: ArgumentParser) -> None:
    """Add the options of a trial to a command."""
    add = parser.add_argument_group("attacks and robust rules").add_argument
    add("--attack", metavar="NAMES", help="attacks, with commas; gridfed-sim attacks lists them")
    add("--byzantine", type=float, metavar="SHARE", help="share of Byzantine devices (0.2)")
    add("--attack-option", action="append", default=[], metavar="K=V", help="option of an attack")
    add("--start-round", type=int, metavar="N", help="first round of the attack (1)")
    words = "Byzantine devices: first ids, or drawn (first)"
    add("--malicious", choices=("first", "seeded"), help=words)
    add("--colluding", action="store_true", help="all Byzantine devices of a round send one vector")
    add("--patience", metavar="TIME", help="longest wait for the honest updates of a round (5s)")
    words = "rules, with commas; + adds a pre-aggregation: nnm+krum (mean)"
    add("--rule", metavar="NAMES", help=words)
    add("--rule-option", action="append", default=[], metavar="K=V", help="option of a rule")
    words = "Byzantine devices that the rule tolerates (their number)"
    add("--f", type=int, metavar="N", help=words)


def add_broker_kind(parser: ArgumentParser, option: str) -> None:
    """Add the kind of broker to start."""
    kinds = ("auto", "mosquitto", "embedded")
    parser.add_argument(
        option, choices=kinds, default="auto", help="kind of broker to start (auto)"
    )


DAY = 86_400


def add_device_options(parser: ArgumentParser, every: str, length: str, faults: str) -> None:
    """Add the options of every simulated device."""
    add = parser.add_argument
    words = "first time of its clock, ISO; UTC without offset (now)"
    add("--start", default="", metavar="TIME", help=words)
    add("--for", dest="length", default=length, metavar="TIME", help=f"simulated time ({length})")
    add("--every", default=every, metavar="TIME", help=f"interval of messages ({every})")
    words = "speed relative to real time; 0: as fast as read (1)"
    add("--speed", type=float, default=1.0, help=words)
    add("--seed", type=int, default=0, help="seed; another one is another device (0)")
    add("--region", default="north", help="region; its devices share their weather (north)")
    add("--zone", default="Europe/Amsterdam", help="time zone (Europe/Amsterdam)")
    add("--truth", type=Path, metavar="CSV", help="file for the true values")
    add("--fault", action="append", default=[], metavar="K=V", help=faults)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            f"--zone {name}: unknown time zone", hint="such as Europe/Amsterdam"
        ) from None


def announce(where: dict[str, Any]) -> None:
    """Print the address of a device at once, for the process that waits for it."""
    print(json.dumps(where), flush=True)  # noqa: T201 - a command's own standard output


def moment(text: str) -> float:
    """Return an ISO time in Unix seconds; now if empty."""
    if not text:
        return time.time() // 1
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"--start {text}: expected an ISO time", hint="such as 2023-10-28T22:00Z"
        ) from None
    return found.replace(tzinfo=found.tzinfo or UTC).timestamp()


def duration(text: str, option: str) -> float:
    """Return a duration in seconds."""
    try:
        return seconds(text)
    except AttributeError:
        raise SettingsError(
            f"{option} {text}: expected a duration", hint="such as 10s, 24h"
        ) from None
