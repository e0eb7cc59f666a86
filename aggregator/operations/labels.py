"""Read and change the labels of devices, by which runs choose their cohorts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from edge_sdk.app.cli import USAGE, Failure

LABELS_LIMIT = 16  # labels of one device
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Labels = tuple[tuple[str, str], ...]
"""Pairs of name and value, sorted by name."""


class LabelError(Failure):
    """A label that cannot be read, or more labels than a device may have."""

    exit_code = USAGE


def parse_labels(text: str) -> dict[str, str]:
    """Return labels by name, from ``name=value`` pairs between commas or semicolons.

    An empty value stands for a label to remove.

    Raises:
        LabelError: A pair, a name or a value is malformed; the message names it.

    >>> parse_labels("region=north, kind=meter")
    {'region': 'north', 'kind': 'meter'}
    >>> parse_labels("kind=")
    {'kind': ''}
    """
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in re.split("[,;]", text))):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise LabelError(f"label {pair!r}: expected name=value, as in region=north")
        refuse_label(name, value or "x")
        if name in found:
            raise LabelError(f"label {name!r} is given twice")
        found[name] = value
    return found


def refuse_label(name: str, value: str) -> None:
    """Refuse a malformed label.

    Raises:
        LabelError: The message names the part and its form.
    """
    if not _NAME.fullmatch(name):
        raise LabelError(
            f"label {name!r}: expected a name of a-z, 0-9, - and _, at most 32, beginning with a letter"
        )
    if not _VALUE.fullmatch(value):
        raise LabelError(
            f"label {name}: {value!r}: expected letters, digits, ., - and _, at most 64"
        )


def changed_labels(before: Labels, changes: Mapping[str, str]) -> Labels:
    """Return labels after a change; an empty value removes a label.

    Raises:
        LabelError: There would be more than ``LABELS_LIMIT``.

    >>> changed_labels((("kind", "meter"), ("region", "north")), {"region": "south", "kind": ""})
    (('region', 'south'),)
    """
    after = {**dict(before), **changes}
    kept = tuple(sorted((name, value) for name, value in after.items() if value))
    if len(kept) > LABELS_LIMIT:
        raise LabelError(f"{len(kept)} labels; a device has at most {LABELS_LIMIT}")
    return kept


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels as ``parse_labels`` reads them.

    >>> label_text((("kind", "meter"), ("region", "north")))
    'kind=meter,region=north'
    """
    return ",".join(f"{name}={value}" for name, value in labels)
