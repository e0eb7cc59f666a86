"""Make the page and the picture of the papers together from the kept results of E15."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

IDEAS: Mapping[str, str] = {
    "layers": "PL-FL's personal layers",
    "credit": "PFGL's credit",
    "consensus": "BAFDP's consensus by signs",
    "noise": "noise on the readings",
}
ATTACKS: Mapping[str, str] = {"": "no attack", "flipping": "3 of 10 flip", "alie": "3 of 10 ALIE"}
COLOURS = ("#3a6ea5", "#d9822b", "#7a5195")
RECORD = Path(__file__).parent / "combined.json"
FREE, RISE = 0.10, 0.15
"""Largest relative cost beside FedAvg, and largest rise under attack, of a combination that works."""

ROW, LEFT, WIDE = 13, 250, 420

PAGE = """\
# The papers together

Every subset of four of the papers' ideas ran on one set, with one net and one fleet, with and without
attackers; no paper tried it.

- **layers**: PL-FL's personal layers. The first layer is shared, the other two stay on the device.
- **credit**: PFGL's mixtures of models, sigma 0.8, as method `pfl`, without its graph.
- **consensus**: BAFDP's l1 term and votes by sign, with its duals, regulariser and budget, but with
  every device in each round (`bsfdp`). It moves once in four local steps, four times as far as in E9.
- **noise**: Gaussian noise on every reading that is learnt from, drawn once, with a budget of 30
  (BAFDP's a).
- **credit and consensus**: each device has its own consensus, moved by signs that its credit weighs
  (`tools/experiments/personal_consensus.py`). This is an experiment; the product has no such method.

Milan, {clients} cells, an hour ahead, `cells-mlp-1` (4673 numbers), {rounds} rounds of 4 steps, {seeds} seeds.
Three cells lie. RMSE is in the raw unit, over the same seven honest cells in every column; ± is the
deviation over seeds, which also draw the attackers. kB are the vectors that a device receives and sends in the run.
A combination *works* if its error without attack is at most {free:.0f} % above FedAvg's, and no attack raises it by
more than {rise:.0f} %; both bounds are ours.

```console
$ .venv/bin/python tools/reproduce.py e15 --data data --out runs --docs docs
```

The 150 arms of three seeds take some 3 minutes of one core, in 179 MiB.

{table}

Training **alone** for as many steps has {alone:.0f} ± {alone_spread:.0f},
and {alone_noise:.0f} ± {alone_noise_spread:.0f} with noise.
{better} of the {many} combinations have a lower error without attack: cells with weeks of their own readings gain
nothing here from one another.

{good} of {many} combinations work. The least error under the worse of both attacks has **{best}**.

![RMSE of every combination, with and without attack](combined.svg)

## What each idea adds

The error with the idea over that without it, the geometric mean over the eight pairs of combinations that differ
in it alone. Below 1 is better.

{effects}
"""


@dataclass(frozen=True, slots=True)
class Combination:
    """One subset of the ideas."""

    ideas: tuple[str, ...]
    bytes: int  # bytes of vectors that a device sends and receives in the run
    errors: Mapping[str, tuple[float, ...]]  # RMSE over honest cells by attack, one number a seed

    def error(self, attack: str) -> float:
        return float(np.mean(self.errors[attack]))

    @property
    def rise(self) -> float:
        """Return the largest relative rise of the error under an attack."""
        return max(self.error(x) for x in self.errors if x) / self.error("") - 1.0


def summary(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the kept results of E15, in order of the ideas and seeds."""
    out: dict[tuple[str, ...], dict[str, Any]] = {}
    shown = [r for r in results if r["arm"]["attack"] in ATTACKS]
    for r in sorted(shown, key=lambda r: (len(r["arm"]["ideas"]), r["arm"]["seed"])):
        arm, ideas = r["arm"], tuple(r["arm"]["ideas"])
        row = out.setdefault(ideas, {"ideas": list(ideas), "bytes": r["bytes"], "errors": {}})
        row["errors"].setdefault(arm["attack"], []).append(round(r["honest"]["RMSE"], 2))
    return list(out.values())


def read(path: Path = RECORD) -> list[Combination]:
    """Read the record; none without a file."""
    if not path.is_file():
        return []
    rows = json.loads(path.read_text("utf-8"))["rows"]
    return [
        Combination(tuple(r["ideas"]), r["bytes"], {k: tuple(v) for k, v in r["errors"].items()})
        for r in rows
    ]


def write(results: Sequence[Mapping[str, Any]], path: Path = RECORD) -> None:
    """Write the record of E15's results."""
    arm = results[0]["arm"]
    run = {name: arm[name] for name in ("rounds", "clients")}
    run["seeds"] = len({r["arm"]["seed"] for r in results})
    for key, ideas in (("alone", []), ("alone_noise", ["noise"])):
        found = [r for r in results if r["arm"]["attack"] == "alone" and r["arm"]["ideas"] == ideas]
        run[key] = round(float(np.mean([r["honest"]["RMSE"] for r in found])), 2)
        run[f"{key}_spread"] = round(float(np.std([r["honest"]["RMSE"] for r in found])), 2)
    path.write_text(json.dumps({"run": run, "rows": summary(results)}, indent=1) + "\n", "utf-8")


def works(one: Combination, plain: Combination) -> bool:
    """Return whether a combination costs little and withstands both attacks.

    >>> plain = Combination((), 8, {"": (100.0,), "flipping": (300.0,), "alie": (110.0,)})
    >>> good = Combination(("credit",), 8, {"": (104.0,), "flipping": (110.0,), "alie": (99.0,)})
    >>> works(plain, plain), works(good, plain)
    (False, True)
    """
    return one.error("") <= (1.0 + FREE) * plain.error("") and one.rise <= RISE


def effect(rows: Sequence[Combination], idea: str, attack: str) -> float:
    """Return the geometric mean, over all pairs that differ in one idea, of the errors' ratio."""
    by_ideas = {frozenset(one.ideas): one.error(attack) for one in rows}
    logs = [
        math.log(error / by_ideas[ideas - {idea}])
        for ideas, error in by_ideas.items()
        if idea in ideas
    ]
    return math.exp(float(np.mean(logs)))


def page(rows: Sequence[Combination], record: Path = RECORD) -> str:
    """Return the page; rows are all subsets of the ideas."""
    run = json.loads(record.read_text("utf-8"))["run"]
    plain = next(one for one in rows if not one.ideas)
    good = [one for one in rows if works(one, plain)]
    head = [*IDEAS, "kB a device", *ATTACKS.values(), "worst rise", "works"]
    effects = [
        [text, *(f"{effect(rows, idea, x):.2f}" for x in ATTACKS)] for idea, text in IDEAS.items()
    ]
    return PAGE.format(
        **run,
        free=100 * FREE,
        rise=100 * RISE,
        table="\n".join(_table(head, [_row(one, plain) for one in rows])),
        good=len(good),
        many=len(rows),
        best=_named(_best(rows)),
        better=sum(one.error("") < run["alone"] for one in rows),
        effects="\n".join(_table(["idea", *ATTACKS.values()], effects)),
    )


def _best(rows: Sequence[Combination]) -> Combination:
    return min(rows, key=lambda one: max(one.error(x) for x in ATTACKS if x))


def _named(one: Combination) -> str:
    return " + ".join(one.ideas) or "none (FedAvg)"


def _row(one: Combination, plain: Combination) -> list[str]:
    ticks = ["x" if idea in one.ideas else "" for idea in IDEAS]
    cells = [f"{one.error(x):.0f} ± {np.std(one.errors[x]):.0f}" for x in ATTACKS]
    verdict = "**yes**" if works(one, plain) else "no"
    return [*ticks, f"{one.bytes / 1e3:.0f}", *cells, f"{one.rise:+.0%}", verdict]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def picture(rows: Sequence[Combination]) -> str:
    """Return three bars for every combination, as SVG; a bar beyond the frame has an arrow."""
    most = 2.0 * max(one.error("") for one in rows)
    height = 34 + len(rows) * (ROW * len(ATTACKS) + 6)
    size = f'width="{LEFT + WIDE + 80}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<text x="4" y="16" font-weight="bold">RMSE of the honest cells</text>',
    ]
    for number, (colour, text) in enumerate(zip(COLOURS, ATTACKS.values(), strict=True)):
        x = LEFT + 130 * number
        lines += [f'<rect x="{x}" y="6" width="11" height="11" fill="{colour}"/>']
        lines += [f'<text x="{x + 16}" y="16">{text}</text>']
    top = 28
    for one in rows:
        middle = top + ROW * len(ATTACKS) / 2 + 4
        lines.append(
            f'<text x="{LEFT - 6}" y="{middle:.0f}" text-anchor="end">{_named(one)}</text>'
        )
        for colour, attack in zip(COLOURS, ATTACKS, strict=True):
            lines += _bar(one.error(attack), most, top, colour)
            top += ROW
        top += 6
    return "\n".join([*lines, "</svg>", ""])


def _bar(value: float, most: float, top: int, colour: str) -> list[str]:
    width = WIDE * min(value, most) / most
    text = f"{value:.0f}" + (" →" if value > most else "")
    return [
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{ROW - 2}" fill="{colour}"/>',
        f'<text x="{LEFT + width + 4:.1f}" y="{top + 10}" font-size="11">{text}</text>',
    ]
