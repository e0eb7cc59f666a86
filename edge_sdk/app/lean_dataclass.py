"""Define dataclasses like those of the standard library at a quarter of a class's cost.

``dataclasses.dataclass`` compiles six functions for a frozen class. A device loads some 250 classes:
that is a third of the time of its imports, and 2 MiB. Here only ``__init__`` is compiled. What a class
does is the same, and ``fields``, ``replace``, ``asdict``, pickles and type checkers treat it alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:  # noqa: ANN401 - as there
        """Decorate a class as ``dataclasses.dataclass`` does; without ``order`` and ``init``.

        >>> @dataclass(frozen=True, slots=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1), Point(1) == Point(1, 0), {Point(2): "a"}[Point(2)]
        (Point(x=1, y=0), True, 'a')
        >>> Point(1).x = 3
        Traceback (most recent call last):
        dataclasses.FrozenInstanceError: cannot assign to field 'x'
        """
        return _made(cls, options) if cls else lambda given: _made(given, options)


def _made(cls: type, options: Mapping[str, bool]) -> Any:  # noqa: ANN401 - the class
    frozen, own = options.get("frozen", False), vars(cls)
    if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
        return dataclasses.dataclass(**options)(cls)
    if not cls.__doc__:  # as under -OO: a signature would be made for it
        cls.__doc__ = cls.__name__
    without = dict.fromkeys(("init", "repr", "eq", "frozen"), False)
    made: Any = dataclasses.dataclass(**{**options, **without})(cls)
    made.__init__ = _init(made, frozen=frozen)
    if options.get("repr", True) and "__repr__" not in own:
        made.__repr__ = _repr
    if options.get("eq", True):
        _compare(made, own, frozen=frozen)
    if frozen:
        made.__dataclass_params__.frozen = True
        made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete
        if options.get("slots") and "__getstate__" not in own:
            made.__getstate__, made.__setstate__ = _state, _restore
    return made


def _init(made: Any, *, frozen: bool) -> Any:  # noqa: ANN401 - a class, and a function of its fields
    """Compile ``__init__``."""
    given: dict[str, Any] = {"__set": object.__setattr__, "__none": MISSING}
    plain: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for field in fields(made):
        name, value = field.name, field.name
        parameter = name
        if field.default is not MISSING:
            given[f"__default_{name}"] = field.default
            parameter, value = (
                f"{name}=__default_{name}",
                name if field.init else f"__default_{name}",
            )
        elif field.default_factory is not MISSING:
            given[f"__make_{name}"] = field.default_factory
            parameter, value = f"{name}=__none", f"__make_{name}()"
            value += f" if {name} is __none else {name}" if field.init else ""
        elif not field.init:
            continue
        if field.init:
            (named if field.kw_only else plain).append(parameter)
        body.append(f"__set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    exec("\n ".join([f"def __init__({parameters}):", *(body or ["pass"])]), given)  # noqa: S102 - field names
    init = given.pop("__init__")
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


@recursive_repr("...")
def _repr(self: Any) -> str:  # noqa: ANN401 - any dataclass
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compare(made: Any, own: Mapping[str, Any], *, frozen: bool) -> None:  # noqa: ANN401 - a class
    """Set ``__eq__``, and ``__hash__`` or its absence, over the compared fields."""
    names = [field.name for field in fields(made) if field.compare]
    several = attrgetter(*names) if len(names) > 1 else None

    def key(self: object) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in names)

    values: Callable[[object], Any] = several or key

    def equal(self: object, other: object) -> bool:
        return (
            values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
        )

    if "__eq__" not in own:
        made.__eq__ = equal
    if own.get("__hash__") is None:
        made.__hash__ = (lambda self: hash(values(self))) if frozen else None


def _refuse_set(self: Any, name: str, value: object) -> None:  # noqa: ANN401 - any dataclass
    if _has_field(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_delete(self: Any, name: str) -> None:  # noqa: ANN401 - any dataclass
    if _has_field(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _has_field(self: Any, name: str) -> bool:  # noqa: ANN401 - any dataclass
    kind = type(self)
    return "__dataclass_fields__" in vars(kind) or name in kind.__dataclass_fields__


def _state(self: Any) -> list[object]:  # noqa: ANN401 - any dataclass
    return [getattr(self, field.name) for field in fields(self)]


def _restore(self: Any, state: list[object]) -> None:  # noqa: ANN401 - any dataclass
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
