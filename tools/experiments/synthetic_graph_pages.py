"""Report of E7's synthetic graphs: the claims on figures 10.1 and 10.3, their curves and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tools.experiments import synthetic_graph
from tools.experiments.claims import Claim
from tools.experiments.pages import Page, counted, table
from tools.experiments.pictures import curves

Run = Mapping[str, Any]
ROUND, SAID, LOSS, APART, MEAN = range(5)
WHAT: Final = ("loss", "consensus error")
HELD: Final = {"fading": False, "linear": False, "rate": synthetic_graph.RATE}
FADED: Final = {**HELD, "fading": True}
LINE: Final = {**HELD, "linear": True}
NAMES: Final = {
    "fedavg": "FedAvg",
    "dfl_sgd": "DFL-SGD",
    "dfl_gt": "DFL-GT",
    "fesem": "FeSEM",
    "bigfl": "BiG-FL",
    "local": "alone",
}
MEANS: Final = {"dfl_sgd": "DFL-SGD's average", "dfl_gt": "DFL-GT's average"}
"""Average model by which a method without a server is judged for agreement, as in the chapter."""


def synthetic_graphs(runs: Sequence[Run]) -> Page:
    """Judge figures 10.1 and 10.3 and show their curves."""
    if not runs:
        return Page("E7: made-up graphs", (), ())
    seeds = sorted({x["seed"] for x in runs})
    rounds = _of(runs, "local", seeds[0], part="train")[-1][ROUND]
    text = (
        f"{counted(len(seeds))}. Five nodes on a ring, whole data sets, {synthetic_graph.STEPS} "
        f"local steps a round, {runs[0]['rounds']} rounds; fifty nodes with the four nearest as "
        f"neighbours, minibatches of 32, {rounds:.0f} rounds on either graph. Losses are on "
        "examples that no device has trained on. The step is the same for all."
    )
    lines = [text, "", *_first(runs, seeds), "", *_third(runs, seeds)]
    claims = [*_of_speeds(runs, seeds), *_of_kinds(runs, seeds)]
    return Page("E7: made-up graphs", claims, lines)


def _of_speeds(runs: Sequence[Run], seeds: Sequence[int]) -> list[Claim]:
    """Judge figure 10.1."""
    text = (
        "rounds to a loss that all reach, averaged over seeds: FedAvg fewer than DFL-GT, DFL-GT "
        "fewer than DFL-SGD; "
    )
    held = f"steps of {synthetic_graph.RATE:g}, near the longest that is stable"
    faded = f"steps of {synthetic_graph.RATE:g} over the root of their number"
    return [
        _faster(runs, seeds, HELD, text + held),
        _faster(runs, seeds, FADED, text + faded),
        _agreeing(runs, seeds),
    ]


def _faster(runs: Sequence[Run], seeds: Sequence[int], way: Run, text: str) -> Claim:
    needed = _needed(runs, seeds, way)
    means = [float(np.mean(needed[x])) for x in synthetic_graph.SPEEDS]
    each = zip(*(needed[x] for x in synthetic_graph.SPEEDS), strict=True)
    agree = sum(fedavg < gt < sgd for fedavg, gt, sgd in each)
    said = ", ".join(f"{NAMES[x]} {spread(needed[x])}" for x in synthetic_graph.SPEEDS)
    holds = means[0] < means[1] < means[2]
    return Claim(text, holds, f"{said}; so in {agree} of {counted(len(seeds))}")


def _agreeing(runs: Sequence[Run], seeds: Sequence[int]) -> Claim:
    apart = {x: [_last(runs, x, s, APART, **LINE) for s in seeds] for x in ("dfl_gt", "dfl_sgd")}
    halves = [_half(runs, "dfl_sgd", s) for s in seeds]
    fades = all(gt < 0.01 * sgd for gt, sgd in zip(apart["dfl_gt"], apart["dfl_sgd"], strict=True))
    stays = all(last > 0.5 * half for last, half in zip(apart["dfl_sgd"], halves, strict=True))
    return Claim(
        "with a constant step and a linear model, which comes to an end, DFL-GT's consensus error "
        "goes to zero (below a hundredth of DFL-SGD's), DFL-SGD's stays (above half of what it was "
        "at half the run)",
        fades and stays,
        f"DFL-GT {spread(apart['dfl_gt'])}, DFL-SGD {spread(apart['dfl_sgd'])}",
    )


def _of_kinds(runs: Sequence[Run], seeds: Sequence[int]) -> list[Claim]:
    """Judge figure 10.3, by the average model and by each device's own."""
    claims = []
    for part, where in (("train", ""), ("test", "on the test graph: ")):
        ends = {x: [_last(runs, x, s, LOSS, part=part) for s in seeds] for x in NAMES}
        ends |= {
            name: [_last(runs, x, s, MEAN, part=part) for s in seeds] for x, name in MEANS.items()
        }
        common = ("fedavg", *MEANS.values())
        claims += [
            ordered(f"{where}BiG-FL at or below FeSEM", ends, [("bigfl", "fesem")]),
            ordered(
                f"{where}FeSEM below FedAvg and the average of DFL's models",
                ends,
                [("fesem", x) for x in common],
            ),
            ordered(
                f"{where}BiG-FL below FedAvg and the average of DFL's models",
                ends,
                [("bigfl", x) for x in common],
            ),
            ordered(
                f"{where}FeSEM below what each device of DFL makes for itself",
                ends,
                [("fesem", x) for x in MEANS],
            ),
        ]
        text = f"{where}own target: BiG-FL below learning alone"
        claims.append(ordered(text, ends, [("bigfl", "local")]))
    return claims


def ordered(
    text: str, ends: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]]
) -> Claim:
    """Return the claim that in every pair the first method ends at or below the second."""
    holds = all(a <= b for x, y in pairs for a, b in zip(ends[x], ends[y], strict=True))
    named = dict.fromkeys(name for pair in pairs for name in pair)
    return Claim(text, holds, ", ".join(f"{NAMES.get(x, x)} {spread(ends[x])}" for x in named))


def _needed(runs: Sequence[Run], seeds: Sequence[int], way: Run) -> dict[str, list[float]]:
    """Return the rounds to the slowest method's last loss, by method and seed; NaN if one diverged."""
    out: dict[str, list[float]] = {x: [] for x in synthetic_graph.SPEEDS}
    for seed in seeds:
        shown = {x: _of(runs, x, seed, **way) for x in out}
        level = max(min(point[LOSS] for point in points) for points in shown.values())
        ended = all(_is_sound(points) for points in shown.values())
        for name, points in shown.items():
            first = next((p[ROUND] for p in points if p[LOSS] <= level), np.nan)
            out[name].append(float(first) if ended else np.nan)
    return out


def _is_sound(points: Sequence[Sequence[float]]) -> bool:
    return bool(np.isfinite(points[-1][LOSS]) and points[-1][LOSS] <= points[0][LOSS])


def _of(runs: Sequence[Run], method: str, seed: int, **said: Any) -> list[list[float]]:  # noqa: ANN401
    wanted = {"method": method, "seed": seed, **said}
    found: list[list[float]] = next(
        x["shown"] for x in runs if all(x.get(k) == v for k, v in wanted.items())
    )
    return found


def _last(runs: Sequence[Run], method: str, seed: int, what: int, **said: Any) -> float:  # noqa: ANN401
    return float(_of(runs, method, seed, **said)[-1][what])


def _half(runs: Sequence[Run], method: str, seed: int) -> float:
    points = _of(runs, method, seed, **LINE)
    half = points[-1][ROUND] / 2
    return float(next(p[APART] for p in points if p[ROUND] >= half))


def spread(values: Sequence[float]) -> str:
    """Format a mean over seeds with its deviation."""
    if not values:
        return ""
    deviation = f" ± {np.std(values):.1g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{deviation}"


def _first(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    ways = (FADED, HELD, LINE)
    rows = [
        [
            NAMES[method],
            *(
                spread([_last(runs, method, s, what, **way) for s in seeds])
                for way in ways
                for what in (LOSS, APART)
            ),
        ]
        for method in synthetic_graph.SPEEDS
    ]
    head = ["", *(f"{what}, {way}" for way in ("fading", "constant", "linear") for what in WHAT)]
    pictures = []
    for way, title in ((HELD, "Figure 10.1"), (FADED, "Figure 10.1, fading steps")):
        lines = {
            NAMES[x]: [(p[ROUND], p[LOSS]) for p in _of(runs, x, seeds[0], **way)]
            for x in synthetic_graph.SPEEDS
        }
        pictures.append(curves(lines, x="round", y="loss of the average model", title=title))
    apart = {
        NAMES[x]: [(p[ROUND], max(p[APART], 1e-16)) for p in _of(runs, x, seeds[0], **LINE)]
        for x in ("dfl_sgd", "dfl_gt")
    }
    pictures.append(
        curves(
            apart, x="round", y="consensus error", title="constant step, linear model", is_log=True
        )
    )
    return [*_by_step(runs, seeds), "", *table(head, rows), "", *pictures]


def _by_step(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    """Show the order of the methods at several steps, and the steps that diverge."""
    bent = [x for x in runs if x.get("linear") is False and x["fading"] is False]
    rows = []
    for rate in sorted({x["rate"] for x in bent}):
        needed = _needed(runs, seeds, {**HELD, "rate": rate})
        sound = [s for s, n in zip(seeds, needed["fedavg"], strict=True) if np.isfinite(n)]
        cells = [spread([n for n in needed[x] if np.isfinite(n)]) for x in needed]
        rows.append([f"{rate:g}", *cells, f"{len(seeds) - len(sound)} of {len(seeds)}"])
    head = ("constant step", *(f"{NAMES[x]}, rounds" for x in synthetic_graph.SPEEDS))
    return table((*head, "seeds in which one diverged"), rows)


def _third(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    rows = []
    for method, name in NAMES.items():
        parts = [_last(runs, method, s, SAID, part="train") / 1e6 for s in seeds]
        ends = [
            spread([_last(runs, method, s, what, part=part) for s in seeds])
            if what == LOSS or method in MEANS
            else ""
            for part in ("train", "test")
            for what in (LOSS, MEAN)
        ]
        rows.append([name, *ends, f"{np.mean(parts):.3g}"])
    of = {x: _of(runs, x, seeds[0], part="train") for x in NAMES}
    by_round = {NAMES[x]: [(p[ROUND], p[LOSS]) for p in points] for x, points in of.items()}
    by_round |= {name: [(p[ROUND], p[MEAN]) for p in of[method]] for method, name in MEANS.items()}
    by_byte = {
        NAMES[x]: [(p[SAID] / 1e6, p[LOSS]) for p in points]
        for x, points in of.items()
        if points[-1][SAID]
    }
    head = ("", "loss", "of the average", "loss, test graph", "of the average", "MB a device")
    return [
        *table(head, rows),
        "",
        curves(by_round, x="round", y="loss", title="Figure 10.3", is_log=True),
        curves(by_byte, x="MB sent and received by a device", y="loss", is_log=True),
    ]
