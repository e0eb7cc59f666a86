"""Read what is recorded of a paper: ``tools/papers/NAME.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from edge_sdk.wire.schema import Length, Matches, build

FOLDER = Path(__file__).parent
PAPERS = ("pfgl", "pl-fl", "graph-aware", "bafdp")

State = Literal["reproduced", "not reproduced", "no data", "not run", "definition"]
Day = Annotated[str, Matches(r"20\d\d-\d\d-\d\d")]
Text = Annotated[str, Length(1, 600)]


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation of a paper and the code that computes it.

    Attributes:
        number: As printed.
        what: What it says.
        where: ``path:name`` of functions or classes; none where no code computes it.
    """

    number: Text
    what: Text
    where: tuple[Annotated[str, Matches(r"[a-z_0-9/]+\.py:\w+")], ...]


@dataclass(frozen=True, slots=True)
class PrintedSymbol:
    """A symbol of a paper and our name for it.

    Attributes:
        printed: As printed; Greek letters by name.
        here: Names in the code between backticks, with what is worth knowing.
        where: ``path:name`` of functions or classes that have these names; none where none has.
    """

    printed: Text
    here: Text
    where: tuple[Annotated[str, Matches(r"[a-z_0-9/]+\.py:\w+")], ...]


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A table or figure of a paper, and ours.

    Attributes:
        name: As printed.
        what: What it shows.
        state: Whether ours agrees; ``definition`` where there is nothing to measure.
        date: Day of our result, or of the last look where there is none.
        command: What repeats it.
        where: Page and anchor below ``docs``.
        paper: The paper's main numbers.
        ours: Our numbers beside them.
        bars: Numbers of the picture, by label; none for no picture.
        unit: What they are.
        curves: Record of a picture of lines instead, in ``tools/papers/curves``.
        weights: Record of a heat map instead, in ``tools/papers/weights``.
        lanes: Boxes of a diagram instead, by lane; those that begin with ``~`` stay on the device.
    """

    name: Text
    what: Text
    state: State
    date: Day
    command: Text
    where: Text
    paper: Text
    ours: Text
    bars: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unit: str = ""
    curves: str = ""
    weights: str = ""
    lanes: Mapping[str, tuple[Text, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def has_picture(self) -> bool:
        """Return whether a picture is drawn of it."""
        return bool(self.bars or self.curves or self.weights or self.lanes)


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A claim, as the paper states it.

    Attributes:
        says: The paper's own criterion.
        verdict: Ours.
        by: The numbers behind it.
    """

    says: Text
    verdict: State
    by: Text


@dataclass(frozen=True, slots=True)
class Correction:
    """A form that is not implemented as printed.

    Attributes:
        printed: The paper's form.
        here: Ours.
        why: The reason.
    """

    printed: Text
    here: Text
    why: Text


@dataclass(frozen=True, slots=True)
class CommandCost:
    """Time and memory of a command of ``tools/reproduce.py``.

    Attributes:
        command: Its experiments and options.
        arms: Number of runs that it makes; each is kept, and not made again.
        minutes: Processor time of one core for all of them.
        mib: Largest resident memory of one process.
        measured: On what the minutes rest.
    """

    command: Text
    arms: int
    minutes: float
    mib: int
    measured: Text


@dataclass(frozen=True, slots=True)
class Paper:
    """Everything recorded of a paper."""

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
