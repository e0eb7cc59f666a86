"""E7 and E8 from a command line: which runs, kept where, and what is said of the paper's curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tools.experiments import language, milan_graph, synthetic_graph
from tools.experiments.cells import MILAN
from tools.experiments.claims import Claim
from tools.experiments.pages import Page, counted, table
from tools.experiments.pictures import curves
from tools.experiments.robust import written

EXPERIMENTS: Final = ("e7", "e8")
Run = Mapping[str, Any]
ROUND, SAID, LOSS, APART = range(4)
WHAT: Final = ("loss", "consensus error")
WAYS: Final = (
    {"fading": True, "linear": False},
    {"fading": False, "linear": False},
    {"fading": False, "linear": True},
)
NAMES: Final = {
    "fedavg": "FedAvg",
    "dfl_sgd": "DFL-SGD",
    "dfl_gt": "DFL-GT",
    "fesem": "FeSEM",
    "bigfl": "BiG-FL",
    "local": "alone",
}


def main(options: argparse.Namespace) -> int:
    """Run what is missing unless only kept results are asked for; print and write the pages."""
    options.out.mkdir(parents=True, exist_ok=True)
    pages = {}
    if "e7" in options.experiments:
        pages["e7"] = made_up(_made_up(options))
        if options.data is not None and (options.data / MILAN).is_dir():
            pages["e7-milan"] = real(_real(options))
    if "e8" in options.experiments:
        pages["e8"] = spoken(_spoken(options))
    made = {name: page for name, page in pages.items() if page.lines}
    for name, page in made.items():
        written(name, page, options)
        print(page.markdown())
    if not made:
        print(f"reproduce: nothing is finished in {options.out}", file=sys.stderr)
    return 0 if made else 2


def _made_up(options: argparse.Namespace) -> list[Run]:
    """Return the seeds of which every part is there; of others there is nothing to compare."""
    found: list[Run] = []
    for seed in range(options.seeds):
        paths = [
            options.out / synthetic_graph.file(*part, seed, quick=options.quick)
            for part in synthetic_graph.parts()
        ]
        if options.kept and not all(path.exists() for path in paths):
            continue
        for part in synthetic_graph.parts():
            found += synthetic_graph.run(part, seed, options.out, quick=options.quick)
        print(f"e7: seed {seed} is there", file=sys.stderr)
    return found


def _real(options: argparse.Namespace) -> list[Run]:
    found: list[Run] = []
    rounds = 5 if options.quick else milan_graph.ROUNDS
    for seed in range(options.seeds):
        for name in milan_graph.KINDS:
            path = options.out / milan_graph.file(name, seed, rounds)
            if not options.kept or path.exists():
                found.append(milan_graph.run(name, seed, options.data, options.out, rounds=rounds))
    return found


def _spoken(options: argparse.Namespace) -> list[Run]:
    """Return the seeds of which every arm is there."""
    found: list[Run] = []
    for seed in range(options.seeds):
        names = [language.file(x, seed, quick=options.quick) for x in language.KINDS]
        if not options.kept or all((options.out / name).exists() for name in names):
            found += [
                language.run(x, seed, options.out, quick=options.quick) for x in language.KINDS
            ]
    return found


# --- text -----------------------------------------------------------------------------------------


def spoken(runs: Sequence[Run]) -> Page:
    """Judge figure 10.4 on a reduced task, and show its curves."""
    title = "E8, reduced: a language model for many domains"
    if not runs:
        return Page(title, (), ())
    seeds = sorted({x["seed"] for x in runs})
    ends = {
        name: [x["shown"][-1][2] for s in seeds for x in runs if _is(x, name, s)]
        for name in language.KINDS
    }
    claims = [
        _ordered("BiG-FL at or below FeSEM", ends, [("bigfl", "fesem")]),
        _ordered("FeSEM at or below FedAvg", ends, [("fesem", "fedavg")]),
        _ordered("a mark of ours: BiG-FL below learning alone", ends, [("bigfl", "local")]),
    ]
    said = (
        f"{counted(len(seeds))}. {runs[0]['domains']} domains are parts of Python's standard "
        f"library, {runs[0]['size']} numbers, {runs[0]['shown'][-1][0]} rounds of "
        f"{language.STEPS} steps. Losses are on text that nobody learned from. The paper's "
        "sixteen domains of reviews, its 63 144 words and its map of all of them are not repeated."
    )
    rows = [[NAMES[x], _spread(values)] for x, values in ends.items()]
    first = {x["method"]: x["shown"] for x in runs if x["seed"] == seeds[0]}
    lines = {NAMES[x]: [(p[0], p[2]) for p in points] for x, points in first.items()}
    return Page(
        title,
        claims,
        [said, "", *table(("", "loss"), rows), "", curves(lines, x="round", y="loss", title="E8")],
    )


def _is(run: Run, method: str, seed: int) -> bool:
    return (run["method"], run["seed"]) == (method, seed)


# --- made-up data ---------------------------------------------------------------------------------


def made_up(runs: Sequence[Run]) -> Page:
    """Judge figures 10.1 and 10.3 and show their curves."""
    if not runs:
        return Page("E7: made-up graphs", (), ())
    seeds = sorted({x["seed"] for x in runs})
    said = (
        f"{counted(len(seeds))}. Five nodes on a ring, whole data sets, {synthetic_graph.STEPS} "
        "local steps a round; fifty nodes with the four nearest as neighbours, minibatches of 32. "
        "Losses are on examples that nobody learned from."
    )
    lines = [
        said,
        "",
        *_first(runs, seeds),
        "",
        *_third(runs, seeds),
    ]
    return Page("E7: made-up graphs", _claims(runs, seeds), lines)


def _claims(runs: Sequence[Run], seeds: Sequence[int]) -> list[Claim]:
    needed = _needed(runs, seeds)
    means = {x: float(np.mean(needed[x])) for x in synthetic_graph.SPEEDS}
    line = {"fading": False, "linear": True}
    apart = {x: [_last(runs, x, s, APART, **line) for s in seeds] for x in needed}
    levels = {x: [_half(runs, x, s) for s in seeds] for x in ("dfl_sgd", "dfl_gt")}
    fades = all(gt < 0.01 * sgd for gt, sgd in zip(apart["dfl_gt"], apart["dfl_sgd"], strict=True))
    stays = all(
        last > 0.5 * half for last, half in zip(apart["dfl_sgd"], levels["dfl_sgd"], strict=True)
    )
    ends = {x: [_last(runs, x, s, LOSS, part="train") for s in seeds] for x in NAMES}
    others = {
        x: [_last(runs, x, s, LOSS, part="test") for s in seeds] for x in synthetic_graph.CARRIED
    }
    return [
        Claim(
            "FedAvg needs fewer rounds to a loss that all reach than DFL-GT, DFL-GT fewer than "
            "DFL-SGD, averaged over seeds (fading steps)",
            means["fedavg"] < means["dfl_gt"] < means["dfl_sgd"],
            ", ".join(f"{NAMES[x]} {n:.0f}" for x, n in means.items()),
        ),
        Claim(
            "with a constant step and a linear model, which comes to an end, DFL-GT's consensus "
            "error goes to zero (below a hundredth of DFL-SGD's), DFL-SGD's stays (above half of "
            "what it was at half the run)",
            fades and stays,
            f"DFL-GT {_spread(apart['dfl_gt'])}, DFL-SGD {_spread(apart['dfl_sgd'])}",
        ),
        _ordered("BiG-FL at or below FeSEM", ends, [("bigfl", "fesem")]),
        _ordered(
            "FeSEM below FedAvg and DFL",
            ends,
            [("fesem", x) for x in ("fedavg", "dfl_sgd", "dfl_gt")],
        ),
        _ordered("on the test graph: BiG-FL at or below FeSEM", others, [("bigfl", "fesem")]),
        _ordered("on the test graph: FeSEM below FedAvg", others, [("fesem", "fedavg")]),
        _ordered("a mark of ours: BiG-FL below learning alone", ends, [("bigfl", "local")]),
    ]


def _ordered(
    text: str, ends: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]]
) -> Claim:
    holds = all(a <= b for x, y in pairs for a, b in zip(ends[x], ends[y], strict=True))
    named = dict.fromkeys(name for pair in pairs for name in pair)
    return Claim(text, holds, ", ".join(f"{NAMES[x]} {_spread(ends[x])}" for x in named))


def _needed(runs: Sequence[Run], seeds: Sequence[int]) -> dict[str, list[int]]:
    """Rounds to the loss that the slowest ends with, by method and seed."""
    out: dict[str, list[int]] = {x: [] for x in synthetic_graph.SPEEDS}
    for seed in seeds:
        shown = {x: _of(runs, x, seed, fading=True, linear=False) for x in out}
        level = max(min(point[LOSS] for point in points) for points in shown.values())
        for name, points in shown.items():
            out[name].append(int(next(p[ROUND] for p in points if p[LOSS] <= level)))
    return out


def _of(runs: Sequence[Run], method: str, seed: int, **said: Any) -> list[list[float]]:  # noqa: ANN401
    wanted = {"method": method, "seed": seed, **said}
    found: list[list[float]] = next(
        x["shown"] for x in runs if all(x.get(k) == v for k, v in wanted.items())
    )
    return found


def _last(runs: Sequence[Run], method: str, seed: int, what: int, **said: Any) -> float:  # noqa: ANN401
    return float(_of(runs, method, seed, **said)[-1][what])


def _half(runs: Sequence[Run], method: str, seed: int) -> float:
    points = _of(runs, method, seed, fading=False, linear=True)
    half = points[-1][ROUND] / 2
    return float(next(p[APART] for p in points if p[ROUND] >= half))


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values):.1g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{spread}"


def _first(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    rows = [
        [
            NAMES[method],
            *(
                _spread([_last(runs, method, s, what, **way) for s in seeds])
                for way in WAYS
                for what in (LOSS, APART)
            ),
        ]
        for method in synthetic_graph.SPEEDS
    ]
    head = ["", *(f"{what}, {way}" for way in ("fading", "constant", "linear") for what in WHAT)]
    lines = {
        NAMES[x]: [(p[ROUND], p[LOSS]) for p in _of(runs, x, seeds[0], fading=True, linear=False)]
        for x in synthetic_graph.SPEEDS
    }
    apart = {
        NAMES[x]: [
            (p[ROUND], max(p[APART], 1e-16))
            for p in _of(runs, x, seeds[0], fading=False, linear=True)
        ]
        for x in ("dfl_sgd", "dfl_gt")
    }
    return [
        *table(head, rows),
        "",
        curves(lines, x="round", y="loss of the average model", title="Figure 10.1"),
        curves(
            apart, x="round", y="consensus error", title="constant step, linear model", is_log=True
        ),
    ]


def _third(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    rows = []
    for method, name in NAMES.items():
        ends = [_last(runs, method, s, LOSS, part="train") for s in seeds]
        said = [_last(runs, method, s, SAID, part="train") / 1e6 for s in seeds]
        other = ""
        if method in synthetic_graph.CARRIED:
            other = _spread([_last(runs, method, s, LOSS, part="test") for s in seeds])
        rows.append([name, _spread(ends), other, f"{np.mean(said):.3g}"])
    of = {x: _of(runs, x, seeds[0], part="train") for x in NAMES}
    by_round = {NAMES[x]: [(p[ROUND], p[LOSS]) for p in points] for x, points in of.items()}
    by_byte = {
        NAMES[x]: [(p[SAID] / 1e6, p[LOSS]) for p in points]
        for x, points in of.items()
        if points[-1][SAID]
    }
    return [
        *table(("", "loss", "loss on the test graph", "MB a device"), rows),
        "",
        curves(by_round, x="round", y="loss", title="Figure 10.3", is_log=True),
        curves(by_byte, x="MB said and heard by a device", y="loss", is_log=True),
    ]


# --- real data ------------------------------------------------------------------------------------


def real(runs: Sequence[Run]) -> Page:
    """Set every method beside learning alone, FedAvg and PL-FL."""
    title = "The same methods on Milan's squares"
    if not runs:
        return Page(title, (), ())
    ends = {
        name: {x["seed"]: x["shown"][-1] for x in runs if x["name"] == name}
        for name in milan_graph.KINDS
    }
    ends = {name: found for name, found in ends.items() if found}
    rows = [_row(name, found, ends, runs) for name, found in ends.items()]
    head = ("", "RMSE", "MAE", "step", "MB a device", *(f"better than {x}" for x in MARKS))
    said = (
        "25 squares, traffic one hour ahead, neighbours have a common side; "
        f"{runs[0]['shown'][-1]['round']} rounds of {milan_graph.STEPS} steps, the step chosen on "
        "the week before the test week. Better means: in RMSE, in every seed."
    )
    lines = [
        said,
        "",
        *table(head, rows),
        "",
        curves(_curves(runs, "round"), x="round", y="RMSE", title="Milan", is_log=True),
        curves(_curves(runs, "said"), x="MB said and heard by a device", y="RMSE", is_log=True),
    ]
    return Page(title, (), lines)


MARKS: Final = ("local", "FedAvg", "PL-FL")


def _row(
    name: str,
    found: Mapping[int, Mapping[str, float]],
    ends: Mapping[str, Mapping[int, Mapping[str, float]]],
    runs: Sequence[Run],
) -> list[str]:
    rates = sorted({x["rate"] for x in runs if x["name"] == name})
    said = np.mean([x["said"] for x in found.values()]) / 1e6
    marks = []
    for mark in MARKS:
        common = sorted(found.keys() & ends.get(mark, {}).keys())
        better = [found[s]["RMSE"] < ends[mark][s]["RMSE"] for s in common]
        marks.append("" if mark == name or not common else "yes" if all(better) else "**no**")
    return [
        f"{name} ({counted(len(found))})",
        _spread([x["RMSE"] for x in found.values()]),
        _spread([x["MAE"] for x in found.values()]),
        ", ".join(f"{rate:g}" for rate in rates),
        f"{said:.3g}",
        *marks,
    ]


def _curves(runs: Sequence[Run], along: str) -> dict[str, list[tuple[float, float]]]:
    unit = 1e6 if along == "said" else 1.0
    first = [x for x in runs if x["seed"] == min(y["seed"] for y in runs)]
    lines = {
        x["name"]: [(p[along] / unit, p["RMSE"]) for p in x["shown"] if np.isfinite(p["RMSE"])]
        for x in first
    }
    return {name: points for name, points in lines.items() if points and points[-1][0] > 0} or {
        "nothing said": []
    }
