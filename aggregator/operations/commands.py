"""Check the orders of an operator: commands for devices, their labels, and unlearning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from edge_sdk.errors import RUNTIME, USAGE, Failure
from edge_sdk.protocol.contract.method import CONTRACTS, answered
from edge_sdk.protocol.messages import RELEASES_LIMIT
from edge_sdk.protocol.statements import COMMANDS

LABELS_LIMIT = 16  # labels of one device
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Labels = tuple[tuple[str, str], ...]  # pairs of name and value, sorted by name


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
    """Raise LabelError for a malformed label, with the part and its form."""
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


# commands that the aggregator's everyday key alone signs
OPS = tuple(op for op, needs_root in COMMANDS.items() if not needs_root)


class OrderError(Failure):
    """An order that cannot be carried out."""

    exit_code = RUNTIME


def check_command(device: str, op: str, args: Mapping[str, float], root: str) -> None:
    """Refuse a command that the device would refuse.

    Args:
        root: The root's signatures of it, as hex.

    Raises:
        OrderError: It is unknown, the root has to sign it and has not, or an argument is out of bounds.
    """
    if op not in COMMANDS:
        raise OrderError(f"unknown command {op!r}; known: {', '.join(COMMANDS)}")
    if COMMANDS[op] and not root:
        raise OrderError(
            f"{op} needs the root's signature, and the order has none",
            hint=f"gridfed-aggregator command {device} {op} --root-key FILE",
        )
    check_args(op, args)


def check_args(op: str, args: Mapping[str, float]) -> None:
    """Refuse arguments of a command that the device would refuse.

    Raises:
        OrderError: An argument is out of bounds; the message names it and its bounds.

    >>> check_args("budget", {"releases": 40.0})
    >>> check_args("budget", {"releases": -1.0})
    Traceback (most recent call last):
    aggregator.operations.commands.OrderError: releases: expected a whole number from 0 to 2147483647, got -1
    """
    if (op == "budget") != ("releases" in args):
        raise OrderError(
            "releases: required for the command budget, and only there",
            hint="gridfed-aggregator command ID budget --releases N",
        )
    releases = args.get("releases", 0.0)
    if not (0 <= releases <= RELEASES_LIMIT and releases == int(releases)):
        raise OrderError(
            f"releases: expected a whole number from 0 to {RELEASES_LIMIT}, got {releases:g}"
        )


def refuse_unlearning(method: str) -> None:
    """Refuse to unlearn a device where a method does not keep contributions apart.

    >>> refuse_unlearning("fedavg")
    Traceback (most recent call last):
    aggregator.operations.commands.OrderError: method 'fedavg' cannot unlearn a device: ...
    """
    if method in CONTRACTS and answered(CONTRACTS[method])[1].has_statistic:
        return
    raise OrderError(
        f"method {method!r} cannot unlearn a device: its updates are mixed into the model when a "
        "round closes",
        hint="revoke the device, then begin anew: gridfed-aggregator announce --fresh",
    )
