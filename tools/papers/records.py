"""Read the record of a paper: ``tools/papers/NAME.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from edge_sdk.app.schema import Length, Matches, build

FOLDER = Path(__file__).parent
PAPERS = ("pfgl", "pl-fl", "graph-aware", "bafdp")

State = Literal["reproduced", "not reproduced", "no data", "not run", "definition"]
Day = Annotated[str, Matches(r"20\d\d-\d\d-\d\d")]
Text = Annotated[str, Length(1, 600)]


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation of a paper and the code that computes it."""

    number: Text
    what: Text
    # ``path:name`` of functions or classes; none where no code computes it
    where: tuple[Annotated[str, Matches(r"[a-z_0-9/]+\.py:\w+")], ...]


@dataclass(frozen=True, slots=True)
class PrintedSymbol:
    """A symbol of a paper and our name for it."""

    printed: Text  # as printed; Greek letters by name
    here: Text  # names in the code between backticks, with what is worth knowing
    # ``path:name`` of functions or classes that have these names; none where none has
    where: tuple[Annotated[str, Matches(r"[a-z_0-9/]+\.py:\w+")], ...]


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A table or figure of a paper, and ours."""

    name: Text
    what: Text
    state: State  # whether ours agrees; ``definition`` where there is nothing to measure
    date: Day  # day of our result, or of the last look where there is none
    command: Text  # what repeats it
    where: Text  # page and anchor below ``docs``
    paper: Text  # the paper's main numbers
    ours: Text  # our numbers beside them
    # numbers of the picture, by label; none for no picture
    bars: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unit: str = ""  # what they are
    curves: str = ""  # record of a picture of lines instead, in ``tools/papers/curves``
    weights: str = ""  # record of a heat map instead, in ``tools/papers/weights``
    # boxes of a diagram instead, by lane; those that begin with ``~`` stay on the device
    lanes: Mapping[str, tuple[Text, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def has_picture(self) -> bool:
        return bool(self.bars or self.curves or self.weights or self.lanes)


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A claim, as the paper states it."""

    says: Text  # the paper's own criterion
    verdict: State
    by: Text  # the numbers behind it


@dataclass(frozen=True, slots=True)
class Correction:
    """A form that is not implemented as printed."""

    printed: Text  # the paper's form
    here: Text
    why: Text


@dataclass(frozen=True, slots=True)
class CommandCost:
    """Time and memory of a command of ``tools/reproduce.py``."""

    command: Text  # its experiments and options
    arms: int  # number of runs that it makes; each is kept, and not made again
    minutes: float  # processor time of one core for all of them
    mib: int  # largest resident memory of one process
    measured: Text  # on what the minutes rest


@dataclass(frozen=True, slots=True)
class Paper:
    """The record of a paper."""

    name: Text
    title: Text
    source: Text
    method: Text
    repeat: Text
    cost: Text
    proposes: tuple[Text, ...]
    differs: tuple[Text, ...]
    symbol: tuple[PrintedSymbol, ...]
    equation: tuple[Equation, ...]
    exhibit: tuple[Exhibit, ...]
    claim: tuple[PaperClaim, ...]
    correction: tuple[Correction, ...]
    costs: tuple[CommandCost, ...] = ()


def read(name: str) -> Paper:
    """Read the record of a paper of ``PAPERS``.

    Raises:
        SchemaError: A value does not fit; the message names the file and the key.
    """
    path = FOLDER / f"{name}.toml"
    return build(Paper, tomllib.loads(path.read_text("utf-8")), where=path.name)
