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
    equation: tuple[Equation, ...]
    exhibit: tuple[Exhibit, ...]
    claim: tuple[PaperClaim, ...]
    correction: tuple[Correction, ...]


def read(name: str) -> Paper:
    """Read the record of a paper of ``PAPERS``.

    Raises:
        SchemaError: A value does not fit; the message names the file and the key.
    """
    path = FOLDER / f"{name}.toml"
    return build(Paper, tomllib.loads(path.read_text("utf-8")), where=path.name)
