"""A lean dataclass does what one of the standard library does."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import field
from typing import ClassVar

import pytest

from edge_sdk.app.lean_dataclass import dataclass


def shapes(decorate):
    """Return classes of every shape in use, made by one decorator."""

    @decorate(frozen=True, slots=True)
    class Frozen:
        COUNT: ClassVar[int] = 3
        x: int
        y: list = field(default_factory=list, compare=False)
        z: str = "z"
        made: int = field(init=False, default=7)

        def __post_init__(self):
            object.__setattr__(self, "x", self.x + 1)

    @decorate(frozen=True, slots=True, kw_only=True)
    class Named:
        b: int = 1
        a: int

    @decorate(frozen=True)
    class Open:
        x: int = 2

    @decorate(slots=True)
    class Mutable:
        x: int
        y: dict = field(default_factory=dict, init=False, repr=False)

    @decorate(frozen=True, slots=True, eq=False)
    class Same:
        x: int

    @decorate(frozen=True, slots=True)
    class Own:
        x: int

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 5

    @decorate(frozen=True, slots=True)
    class Child(Named):
        c: int = 4

    class Plain(Open):
        pass

    @decorate
    class Empty:
        pass

    return {
        cls.__name__: cls for cls in (Frozen, Named, Open, Mutable, Same, Own, Child, Plain, Empty)
    }


def assign(one, name):
    setattr(one, name, 9)
    return repr(one)


TRIED = [
    "repr(Frozen(1)), repr(Frozen(1, [2], z='a')), Frozen(1).made, Frozen(1).y, Frozen.COUNT",
    "Frozen(1) == Frozen(1, [2]), Frozen(1) == Frozen(2), Frozen(1) == 1, hash(Frozen(1, [2]))",
    "Frozen()",
    "Frozen(1, 2, 3, 4)",
    "Frozen(w=1)",
    "Frozen(1).y is Frozen(1).y",
    "assign(Frozen(1), 'x')",
    "assign(Open(), 'other')",
    "delattr(Frozen(1), 'x')",
    "Frozen.__match_args__, Frozen.__slots__, [f.name for f in dataclasses.fields(Frozen)]",
    "repr(dataclasses.replace(Frozen(1), z='b')), dataclasses.asdict(Frozen(1))",
    "copy.copy(Frozen(1)) == Frozen(1), repr(copy.deepcopy(Frozen(1, [1])))",
    "Frozen.__doc__, str(inspect.signature(Frozen)).count('='), Frozen.__init__.__qualname__",
    "repr(Named(a=2)), Named(a=2) == Named(a=2, b=1)",
    "Named(2)",
    "repr(Child(a=1)), Child(a=1) == Child(a=1, c=4), hash(Child(a=1))",
    "assign(Child(a=1), 'c')",
    "assign(Open(), 'x')",
    "assign(Plain(), 'x')",
    "assign(Plain(), 'other'), Plain() == Plain(), Plain() == Open()",
    "assign(Mutable(1), 'x'), Mutable(1) == Mutable(1)",
    "hash(Mutable(1))",
    "Same(1) == Same(1), repr(Same(1)), len({Same(1), Same(1)})",
    "repr(Own(1)), Own(1) == 3, hash(Own(1))",
    "repr(Empty()), Empty() == Empty(), Open() == Empty()",
]


def outcome(text, names):
    try:
        return eval(text, globals() | names)
    except Exception as error:  # noqa: BLE001 - compared
        return type(error), str(error)


@pytest.mark.parametrize("text", TRIED)
def test_it_does_what_the_standard_library_does(text):
    lean, standard = (str(outcome(text, shapes(one))) for one in (dataclass, dataclasses.dataclass))
    assert lean == standard


@dataclass(frozen=True, slots=True)
class Sent:
    x: int
    y: tuple[int, ...] = ()


def test_it_is_pickled():
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


def test_a_value_that_contains_itself_has_a_text():
    (cls,) = (cls for name, cls in shapes(dataclass).items() if name == "Mutable")
    one = cls(None)
    one.x = one
    assert "..." in repr(one)
