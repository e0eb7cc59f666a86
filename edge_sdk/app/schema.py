"""Convert an untrusted mapping into a frozen dataclass, with the path of every error.

The wire builds its messages with it, the programs their configuration. A dataclass is its own
schema: field types define the accepted values, a default makes a field optional, and ``Annotated``
rules narrow a type (``Annotated[int, Between(1, 64)]``). A field called ``from_`` reads the key
``from``. A class attribute ``removed`` maps a former key, or ``key=value``, to the sentence that
refuses it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from edge_sdk.app.lean_dataclass import dataclass

T = TypeVar("T")


class SchemaError(Exception):
    """An error: a value that does not fit the dataclass."""

    def __init__(self, path: str, expected: str, got: str = "") -> None:
        body = f"expected {expected}, got {got}" if got else expected
        super().__init__(f"{path}: {body}" if path else body)
        self.path = path  # path as dotted keys: ``rule.trim``; empty for the whole mapping
        self.expected = expected  # description of the accepted values
        self.got = got  # short description of the value found


@runtime_checkable
class Constraint(Protocol):
    """A rule that narrows a type in ``Annotated``; ``str(rule)`` completes "expected int …"."""

    def admits(self, value: Any, /) -> bool:  # noqa: ANN401 - each rule knows its own type
        """Return whether a value of the right type is also in range."""


@dataclass(frozen=True, slots=True)
class Between:
    """A number in a closed range. NaN is in none.

    >>> Between(0, 1).admits(float("nan"))
    False
    """

    lowest: float = -math.inf
    highest: float = math.inf

    def admits(self, value: float) -> bool:
        return self.lowest <= value <= self.highest

    def __str__(self) -> str:
        """Read as ``from 1 to 64``."""
        return f"from {self.lowest} to {self.highest}"


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of the length of a text (in UTF-8 bytes), byte string or array, ends included."""

    lowest: int
    highest: int

    def admits(self, value: str | bytes | tuple[Any, ...]) -> bool:
        """Return whether the length lies in the range.

        >>> Length(1, 2).admits("é"), Length(1, 2).admits("éé")
        (True, False)
        """
        size = len(value.encode()) if isinstance(value, str) else len(value)
        return self.lowest <= size <= self.highest

    def __str__(self) -> str:
        """Read as ``of length 16`` or ``of length 1 to 64``."""
        if self.lowest == self.highest:
            return f"of length {self.lowest}"
        return f"of length {self.lowest} to {self.highest}"


@dataclass(frozen=True, slots=True)
class Matches:
    """A text that a regular expression matches as a whole."""

    pattern: str

    def admits(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        """Read as ``like [a-z]+``."""
        return f"like {self.pattern}"


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A name among those of a registry."""

    names: Collection[str]

    def admits(self, value: str) -> bool:
        """Return whether the name is known.

        >>> Known(("mean", "median")).admits("mode")
        False
        """
        return value in self.names

    def __str__(self) -> str:
        """Read as ``among mean, median``."""
        return f"among {', '.join(self.names)}"


class FieldPath(NamedTuple):
    """A reader's position in the mapping, and whether unknown keys are skipped there."""

    path: str
    lenient: bool

    def key(self, key: str) -> FieldPath:
        return FieldPath(f"{self.path}.{key}" if self.path else key, self.lenient)

    def item(self, index: int) -> FieldPath:
        return FieldPath(f"{self.path}[{index}]", self.lenient)

    def misfit(self, expected: str, value: object) -> SchemaError:
        return SchemaError(self.path, expected, _shown(value))


Form = Any  # a type as it is written in an annotation; the language has no type for it yet
Reader = Callable[[object, FieldPath], Any]
"""Function from an unchecked value and its path to the built value; or ``SchemaError``."""


def build(
    cls: type[T],
    mapping: object,
    *,
    where: str = "",
    unknown: Literal["refuse", "ignore"] = "refuse",
) -> T:
    """Build a frozen dataclass strictly from an untrusted mapping.

    An int is accepted for a float field; a bool is never a number; text is converted only to a
    ``Path`` and to the values of an ``Enum``.

    Args:
        cls: The dataclass; its field types are the schema.
        mapping: Mapping from a file or a peer.
        where: Prefix for the path in errors, such as the file's name.
        unknown: Whether a key that the dataclass lacks is an error (configuration, where it is a
            misspelling) or is passed over (the wire, where it is a newer peer).

    Raises:
        SchemaError: The first field that does not fit; the message has its path.

    >>> @dataclass(frozen=True)
    ... class Pace:
    ...     steps: Annotated[int, Between(1, 64)]
    ...     rate: float = 0.1
    >>> build(Pace, {"steps": 4, "rate": 1})
    Pace(steps=4, rate=1.0)
    >>> build(Pace, {"steps": True}, where="meter.toml")
    Traceback (most recent call last):
    edge_sdk.app.schema.SchemaError: meter.toml.steps: expected int, got bool (True)
    """
    schema: Form = cls
    built: T = _reader(schema)(mapping, FieldPath(where, unknown == "ignore"))
    return built


def build_value(kind: type[T], value: object, *, where: str) -> T:
    """Build one value of a type; ``where`` is its path in errors."""
    schema: Form = kind
    built: T = _reader(schema)(value, FieldPath(where, lenient=False))
    return built


def key_of(name: str) -> str:
    """Return the mapping key of a field: Python's keywords carry a trailing underscore.

    >>> key_of("from_"), key_of("min_wire")
    ('from', 'min_wire')
    """
    return name.removesuffix("_")


def _dataclass_reader(cls: Form) -> Reader:
    hints, removed = get_type_hints(cls, include_extras=True), getattr(cls, "removed", {})
    slots = {key_of(f.name): (f, _reader(hints[f.name])) for f in fields(cls) if f.init}
    required = [
        key
        for key, (f, _) in slots.items()
        if f.default is MISSING and f.default_factory is MISSING
    ]

    def read(value: object, at: FieldPath) -> object:
        if not isinstance(value, Mapping):
            raise at.misfit("a table", value)
        _refuse_removed(value, removed, at)
        if not at.lenient:
            refuse_unknown(value, tuple(slots), at)
        for key in required:
            if key not in value:
                raise SchemaError(at.key(key).path, "missing")
        built = {
            f.name: reader(value[key], at.key(key))
            for key, (f, reader) in slots.items()
            if key in value
        }
        try:
            return cls(**built)
        except ValueError as error:  # raised by a __post_init__ that compares fields
            raise SchemaError(at.path, str(error)) from error

    return read


def _refuse_removed(value: Mapping[Any, Any], removed: Mapping[str, str], at: FieldPath) -> None:
    for former, why in removed.items():
        key, _, only = former.partition("=")
        if key in value and only in ("", value[key]):
            raise SchemaError(at.key(key).path, why)


def refuse_unknown(value: Mapping[Any, Any], known: tuple[str, ...], at: FieldPath) -> None:
    """Refuse the first key that is not known, with the nearest one.

    Raises:
        SchemaError: The message has its path.
    """
    for key in value:
        if key not in known:
            from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(known)
            raise SchemaError(at.key(str(key)).path, f"unknown key; {hint}")


@cache
def _reader(kind: Form) -> Reader:
    """Return the reader of a type; called once per type."""
    origin: Form = get_origin(kind)
    args = get_args(kind)
    if origin is Annotated:
        return _ruled(_reader(args[0]), args[0], [r for r in args[1:] if isinstance(r, Constraint)])
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _literal(args)
    if origin is tuple:
        return _sequence(args)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_reader(args[1]))
    return _plain(kind)


def _plain(kind: Form) -> Reader:
    if kind in (Any, object):
        return lambda value, _at: value
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if issubclass(kind, Enum):
        return _enum(kind)
    if kind is Path:
        text = _scalar(str)
        return lambda value, at: Path(text(value, at))
    return _float if kind is float else _scalar(kind)


def _scalar(kind: type) -> Reader:
    def read(value: object, at: FieldPath) -> object:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise at.misfit(kind.__name__, value)
        return value

    return read


def _float(value: object, at: FieldPath) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise at.misfit("float", value)
    try:
        return float(value)
    except OverflowError:
        raise at.misfit("float", f"an int of {int(value).bit_length()} bits") from None


def _enum(kind: type[Enum]) -> Reader:
    values = {member.value: member for member in kind}

    def read(value: object, at: FieldPath) -> object:
        if isinstance(value, kind):
            return value
        _among(value, tuple(values), at)
        return values[value]

    return read


def _literal(choices: tuple[Any, ...]) -> Reader:
    def read(value: object, at: FieldPath) -> object:
        _among(value, choices, at)
        return value

    return read


def _among(value: object, choices: tuple[object, ...], at: FieldPath) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        raise SchemaError(at.path, f"unknown {shown}; known: {', '.join(map(str, choices))}")


def _union(members: tuple[Form, ...]) -> Reader:
    optional = type(None) in members
    readers = [_reader(member) for member in members if member is not type(None)]

    def read(value: object, at: FieldPath) -> object:
        if value is None and optional:
            return None
        refused: list[SchemaError] = []
        for reader in readers:
            try:
                return reader(value, at)
            except SchemaError as misfit:
                refused.append(misfit)
        if len(refused) == 1:
            raise refused[0]
        raise at.misfit(" or ".join(m.expected for m in refused), value)

    return read


def _sequence(args: tuple[Form, ...]) -> Reader:
    repeated = len(args) == 2 and args[1] is Ellipsis
    readers = [_reader(arg) for arg in args if arg is not Ellipsis]

    def read(value: object, at: FieldPath) -> object:
        if not isinstance(value, (list, tuple)):
            raise at.misfit("a list", value)
        if not repeated and len(value) != len(readers):
            raise SchemaError(at.path, f"a list of {len(readers)}", f"{len(value)} items")
        each = readers * len(value) if repeated else readers
        return tuple(r(v, at.item(i)) for i, (r, v) in enumerate(zip(each, value)))  # noqa: B905 - lengths were compared above

    return read


def _mapping(reader: Reader) -> Reader:
    def read(value: object, at: FieldPath) -> object:
        if not isinstance(value, Mapping):
            raise at.misfit("a table", value)
        for key in value:
            if not isinstance(key, str):
                raise at.misfit("str keys", key)
        return {key: reader(item, at.key(key)) for key, item in value.items()}

    return read


def _ruled(reader: Reader, kind: Form, rules: list[Constraint]) -> Reader:
    def read(value: object, at: FieldPath) -> object:
        built = reader(value, at)
        for rule in rules:
            if not rule.admits(built):
                raise at.misfit(f"{getattr(kind, '__name__', kind)} {rule}", value)
        return built

    return read


def _shown(value: object) -> str:
    text = repr(value[:40] if isinstance(value, (str, bytes)) else value)
    return f"{type(value).__name__} ({text if len(text) <= 60 else text[:57] + '...'})"
