"""Run the conformance checks of a package's entry points, and list the findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import OK, RUNTIME, USAGE, Failure

Status = Literal["passed", "failed", "not checked"]


class NotConformingError(Exception):
    """A promise of the interface that an entry does not keep."""


class NotCheckedError(Exception):
    """A check that does not apply to an entry, with the reason."""


class UnknownPackage(Failure):
    """No package of this name is installed, or it offers no entry points of gridfed."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class ConformanceResult:
    """Result of one check."""

    entry: str  # group and name of the entry point
    check: str  # what the interface promises, in words
    status: Status  # ``passed``, ``failed`` or ``not checked``
    detail: str = ""  # reason, unless it passed


Checks = Mapping[str, Callable[[], object]]
"""Checks by what they promise. Each raises ``NotConformingError`` or ``NotCheckedError``."""


def conformance(entry: str, checks: Checks) -> list[ConformanceResult]:
    """Run the checks of one entry; any other exception of one is a failure too.

    >>> def half(): raise NotConformingError("2 of 3 rows")
    >>> [one.status for one in conformance("rules mean", {"is finite": lambda: 1, "is whole": half})]
    ['passed', 'failed']
    """
    found = []
    for name, check in checks.items():
        status: Status = "passed"
        detail = ""
        try:
            check()
        except NotCheckedError as reason:
            status, detail = "not checked", str(reason)
        except NotConformingError as reason:
            status, detail = "failed", str(reason)
        except Exception as error:  # noqa: BLE001 - whatever a foreign package raises
            status, detail = "failed", repr(error)
        found.append(ConformanceResult(entry, name, status, detail))
    return found


def require(condition: object, problem: str) -> None:
    """Raise ``NotConformingError`` with a problem unless a condition holds."""
    if not condition:
        raise NotConformingError(problem)


def offered(package: str, groups: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that an installed package offers in each of some groups."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - 15 ms

    try:
        points = distribution(package).entry_points
    except PackageNotFoundError:
        raise UnknownPackage(
            f"no package {package!r} is installed", hint="install it: pip install -e FOLDER"
        ) from None
    if not any(point.group.startswith("gridfed.") for point in points):
        raise UnknownPackage(
            f"package {package!r} offers no entry points of gridfed",
            hint="docs/plugins.md lists the groups",
        )
    return {group: sorted(p.name for p in points if p.group == group) for group in groups}


def settings_by_entry(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return settings by entry and key, from ``NAME.KEY=VALUE``; a value is JSON, or else text.

    >>> settings_by_entry(["meamed.f=2", "odd.mode=fast"])
    {'meamed': {'f': 2}, 'odd': {'mode': 'fast'}}

    Raises:
        UnknownPackage: A text of another form.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        name, _, setting = key.partition(".")
        if not (name and setting and value):
            raise UnknownPackage(f"--setting {text!r}: expected NAME.KEY=VALUE")
        try:
            read = json.loads(value)
        except ValueError:
            read = value
        found.setdefault(name, {})[setting] = read
    return found


def summary(results: list[ConformanceResult]) -> CommandResult:
    """Return the results as a table and as JSON; exit code 1 if one failed."""
    lines, entry = [], ""
    for one in results:
        if one.entry != entry:
            lines.append(one.entry)
            entry = one.entry
        lines.append(f"  {one.status:12} {one.check}{f': {one.detail}' if one.detail else ''}")
    failed = sum(one.status == "failed" for one in results)
    lines.append(f"{len(results)} checks, {failed} failed")
    data: dict[str, Any] = {"results": [asdict(one) for one in results], "failed": failed}
    return CommandResult(data, "\n".join(lines), RUNTIME if failed else OK)
