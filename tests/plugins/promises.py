"""Run checks of what the interface promises, and list the findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "not checked"]


class NotConformingError(Exception):
    """A promise of the interface that an entry does not keep."""


class NotCheckedError(Exception):
    """A check that does not apply to an entry, with the reason."""


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
