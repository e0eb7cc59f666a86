"""Find values in a JSON document by a path: a small subset of RFC 9535, in bounded time.

A path is ``$`` followed by names (``.name`` or ``['any name']``), array indices (``[0]``, ``[-1]``)
and at most one ``[*]``, all items of an array. Filters, slices and descent are not supported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MOST: Final = 20_000
"""Most values that one path may find."""

_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*)|\['(?P<quoted>[^']*)'\]|\[(?P<index>-?\d{1,6})\]|\[(?P<all>\*)\]"
)


class PathError(ValueError):
    """A path that is not of the supported form."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path."""

    steps: tuple[str | int | None, ...]  # names, indices, and None for all items

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path; the leading ``$`` may be left out before a name.

        Raises:
            PathError: The message shows where the path cannot be read.

        >>> JsonPath.parse("$.hourly['temperature_2m'][*]").steps
        ('hourly', 'temperature_2m', None)
        >>> JsonPath.parse("attributes.temperature").steps
        ('attributes', 'temperature')
        >>> JsonPath.parse("$..x")
        Traceback (most recent call last):
        edge_sdk.extensions.sources.json_path.PathError: '$..x': cannot read '..x'; \

        expected .name, ['name'], [0] or [*]
        """
        rest = text.removeprefix("$")
        if rest and rest[0] not in ".[":
            rest = f".{rest}"
        steps: list[str | int | None] = []
        at = 0
        while at < len(rest):
            found = _STEP.match(rest, at)
            if found is None:
                raise PathError(
                    f"{text!r}: cannot read {rest[at:]!r}; expected .name, ['name'], [0] or [*]"
                )
            steps.append(_step(found))
            at = found.end()
        if steps.count(None) > 1:
            raise PathError(f"{text!r}: [*] may occur once")
        return cls(tuple(steps))

    @property
    def is_list(self) -> bool:
        return None in self.steps

    def find(self, document: object) -> list[object]:
        """Return the values at the path, in order; an item that lacks a name is None.

        Raises:
            LookupError: The document has nothing there, or another shape.

        >>> path = JsonPath.parse("$.forecast[*].temperature")
        >>> path.find({"forecast": [{"temperature": 3.5}, {}]})
        [3.5, None]
        """
        return _find(document, self.steps)


def _step(found: re.Match[str]) -> str | int | None:
    if found["index"] is not None:
        return int(found["index"])
    if found["all"] is not None:
        return None
    return found["name"] if found["name"] is not None else str(found["quoted"])


def _find(value: object, steps: tuple[str | int | None, ...]) -> list[object]:
    for at, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list) or len(value) > MOST:
                raise LookupError(f"no array of at most {MOST} items")
            return [_item(item, steps[at + 1 :]) for item in value]
        value = _inside(value, step)
    return [value]


def _item(item: object, steps: tuple[str | int | None, ...]) -> object:
    try:
        return _find(item, steps)[0]
    except LookupError:
        return None


def _inside(value: object, step: str | int) -> object:
    if isinstance(step, str) and isinstance(value, dict):
        return value[step]
    if isinstance(step, int) and isinstance(value, list):
        return value[step]
    raise LookupError(f"no {step!r}")
