"""docs/logging.md lists every log event of the programs with its level and keys, and no other.

The source is scanned: every ``logger`` call must have the form ``logger.info("event %s",
fields(key=value))`` with the event as a literal. Keys are compared as far as they can be read from
the source: keywords of ``fields``, and a dictionary that the same function builds for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "logging.md"
PROGRAMS = {"Device": "edge_sdk", "Aggregator": "aggregator"}
"""Folder by the heading of its table."""

LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "log"})
SHAPE = re.compile(r"[a-z][a-z0-9-]*( [a-z0-9-]+)*")


class Event(NamedTuple):
    """One call of a logger."""

    name: str
    level: str
    keys: frozenset[str]
    where: str


def calls(folder: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, ast.Call]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and is_logged(node.func):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", scope, node


def is_logged(func: ast.expr) -> bool:
    return (
        isinstance(func, ast.Attribute)
        and func.attr in LEVELS
        and isinstance(func.value, ast.Name)
        and func.value.id in {"logger", "_logger", "log", "LOG"}
    )


def events(folder: str) -> Iterator[Event]:
    for where, scope, call in calls(folder):
        assert isinstance(call.func, ast.Attribute)
        level = {"exception": "error"}.get(call.func.attr, call.func.attr)
        text, *values = call.args[1:] if level == "log" else call.args
        keys = frozenset().union(*(keys_of(value, scope) for value in values))
        branches = (text.body, text.orelse) if isinstance(text, ast.IfExp) else (text,)
        for branch in branches:
            is_text = isinstance(branch, ast.Constant) and isinstance(branch.value, str)
            assert is_text, f"{where}: the event is not a literal"
            name = branch.value.removesuffix(" %s")
            assert SHAPE.fullmatch(name), f"{where}: {branch.value!r} is no event"
            assert branch.value.endswith(" %s") == bool(values), f"{where}: the keys need one %s"
            yield Event(name, level, keys, where)


def keys_of(value: ast.expr, scope: ast.AST) -> frozenset[str]:
    is_fields = (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "fields"
    )
    assert is_fields, f"line {value.lineno}: values of a log event are written by fields()"
    found: set[str] = set()
    for keyword in value.keywords:
        if keyword.arg is not None:
            found.add(keyword.arg)
        elif isinstance(keyword.value, ast.Name):
            found |= literal_keys(keyword.value, scope)
    return frozenset(found)


def literal_keys(name: ast.Name, scope: ast.AST) -> set[str]:
    """Return the constant keys of the dictionary that a function assigned last to a name."""
    found: set[str] = set()
    before = [node for node in ast.walk(scope) if getattr(node, "lineno", 0) <= name.lineno]
    for node in sorted((n for n in before if isinstance(n, ast.stmt)), key=lambda n: n.lineno):
        if isinstance(node, ast.Assign) and is_named(node.targets[0], name.id):
            found = constant_keys(node.value)
        elif isinstance(node, ast.AugAssign) and is_named(node.target, name.id):
            found |= constant_keys(node.value)
    return found


def is_named(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def constant_keys(value: ast.expr) -> set[str]:
    inside = value.keys if isinstance(value, ast.Dict) else []
    return {str(key.value) for key in inside if isinstance(key, ast.Constant)}


def listed(heading: str) -> dict[str, tuple[set[str], set[str]]]:
    """Return levels and keys by event, from the table under a heading."""
    text = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(
        r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \| [^|]*\w[^|]* \|$", text, re.MULTILINE
    )
    assert len(rows) == len({name for name, _, _ in rows}), "an event is listed twice"
    return {
        name: (set(re.findall(r"\w+", levels)), set(re.findall(r"`(\w+)`", keys)))
        for name, levels, keys in rows
    }


@pytest.mark.parametrize("heading", PROGRAMS)
def test_every_log_event_is_listed_and_no_other(heading):
    assert set(listed(heading)) == {event.name for event in events(PROGRAMS[heading])}


@pytest.mark.parametrize("heading", PROGRAMS)
def test_levels_and_keys_of_every_log_event_are_listed(heading):
    table = listed(heading)
    for event in events(PROGRAMS[heading]):
        levels, keys = table[event.name]
        assert event.level == "log" or event.level in levels, event
        assert event.keys <= keys, event


def test_a_sentence_is_no_log_event():
    assert SHAPE.fullmatch("update accepted")
    assert not SHAPE.fullmatch("an image was restored, or two processes use one identity")
