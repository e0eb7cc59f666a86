"""E7 and E8 from a command line: which runs, kept where, and what is said of the paper's curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tools.experiments import language, located_devices, real_graphs, synthetic_graph
from tools.experiments.claims import Claim
from tools.experiments.pages import Page, counted, table
from tools.experiments.pictures import curves
from tools.experiments.robust import written

EXPERIMENTS: Final = ("e7", "e8")
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
"""What a method without a server is judged by where it is to agree, as the chapter's figures do."""


def main(options: argparse.Namespace) -> int:
    """Run what is missing unless only kept results are asked for; print and write the pages."""
    options.out.mkdir(parents=True, exist_ok=True)
    pages = {}
    if "e7" in options.experiments:
        pages["e7"] = made_up(_made_up(options))
        for place in located_devices.there(options.data):
            pages[f"e7-{place}"] = real(_real(options, place))
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


def _real(options: argparse.Namespace, place: str) -> list[Run]:
    found: list[Run] = []
    rounds = 5 if options.quick else real_graphs.ROUNDS
    for seed in range(options.seeds):
        for name in real_graphs.KINDS:
            path = options.out / real_graphs.file(place, name, seed, rounds)
            if not options.kept or path.exists():
                one = real_graphs.run(place, name, seed, options.data, options.out, rounds=rounds)
                found.append(one)
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
    rounds = _of(runs, "local", seeds[0], part="train")[-1][ROUND]
    said = (
        f"{counted(len(seeds))}. Five nodes on a ring, whole data sets, {synthetic_graph.STEPS} "
        f"local steps a round, {runs[0]['rounds']} rounds; fifty nodes with the four nearest as "
        f"neighbours, minibatches of 32, {rounds:.0f} rounds on either graph. Losses are on "
        "examples that nobody learned from. The step is the same for all."
    )
    lines = [said, "", *_first(runs, seeds), "", *_third(runs, seeds)]
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
    said = ", ".join(f"{NAMES[x]} {_spread(needed[x])}" for x in synthetic_graph.SPEEDS)
    holds = means[0] < means[1] < means[2]
    return Claim(text, holds, f"{said}; so in {agree} of {counted(len(seeds))}")


def _agreeing(runs: Sequence[Run], seeds: Sequence[int]) -> Claim:
    """Trackers make models agree at a constant step; without, a difference stays."""
    apart = {x: [_last(runs, x, s, APART, **LINE) for s in seeds] for x in ("dfl_gt", "dfl_sgd")}
    halves = [_half(runs, "dfl_sgd", s) for s in seeds]
    fades = all(gt < 0.01 * sgd for gt, sgd in zip(apart["dfl_gt"], apart["dfl_sgd"], strict=True))
    stays = all(last > 0.5 * half for last, half in zip(apart["dfl_sgd"], halves, strict=True))
    return Claim(
        "with a constant step and a linear model, which comes to an end, DFL-GT's consensus error "
        "goes to zero (below a hundredth of DFL-SGD's), DFL-SGD's stays (above half of what it was "
        "at half the run)",
        fades and stays,
        f"DFL-GT {_spread(apart['dfl_gt'])}, DFL-SGD {_spread(apart['dfl_sgd'])}",
    )


def _of_kinds(runs: Sequence[Run], seeds: Sequence[int]) -> list[Claim]:
    """Judge figure 10.3: methods that are to agree by their average, and by each one's own."""
    claims = []
    for part, where in (("train", ""), ("test", "on the test graph: ")):
        ends = {x: [_last(runs, x, s, LOSS, part=part) for s in seeds] for x in NAMES}
        ends |= {
            name: [_last(runs, x, s, MEAN, part=part) for s in seeds] for x, name in MEANS.items()
        }
        common = ("fedavg", *MEANS.values())
        claims += [
            _ordered(f"{where}BiG-FL at or below FeSEM", ends, [("bigfl", "fesem")]),
            _ordered(
                f"{where}FeSEM below FedAvg and the average of DFL's models",
                ends,
                [("fesem", x) for x in common],
            ),
            _ordered(
                f"{where}BiG-FL below FedAvg and the average of DFL's models",
                ends,
                [("bigfl", x) for x in common],
            ),
            _ordered(
                f"{where}FeSEM below what each device of DFL makes for itself",
                ends,
                [("fesem", x) for x in MEANS],
            ),
        ]
        text = f"{where}a mark of ours: BiG-FL below learning alone"
        claims.append(_ordered(text, ends, [("bigfl", "local")]))
    return claims


def _ordered(
    text: str, ends: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]]
) -> Claim:
    holds = all(a <= b for x, y in pairs for a, b in zip(ends[x], ends[y], strict=True))
    named = dict.fromkeys(name for pair in pairs for name in pair)
    return Claim(text, holds, ", ".join(f"{NAMES.get(x, x)} {_spread(ends[x])}" for x in named))


def _needed(runs: Sequence[Run], seeds: Sequence[int], way: Run) -> dict[str, list[float]]:
    """Rounds to the loss that the slowest ends with, by method and seed; NaN where one diverged."""
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
    """Whether a run ended no worse than it began."""
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


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ± {np.std(values):.1g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{spread}"


def _first(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    ways = (FADED, HELD, LINE)
    rows = [
        [
            NAMES[method],
            *(
                _spread([_last(runs, method, s, what, **way) for s in seeds])
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
    """Show that the order does not hang on one step, and where steps are too long."""
    bent = [x for x in runs if x.get("linear") is False and x["fading"] is False]
    rows = []
    for rate in sorted({x["rate"] for x in bent}):
        needed = _needed(runs, seeds, {**HELD, "rate": rate})
        sound = [s for s, n in zip(seeds, needed["fedavg"], strict=True) if np.isfinite(n)]
        cells = [_spread([n for n in needed[x] if np.isfinite(n)]) for x in needed]
        rows.append([f"{rate:g}", *cells, f"{len(seeds) - len(sound)} of {len(seeds)}"])
    head = ("constant step", *(f"{NAMES[x]}, rounds" for x in synthetic_graph.SPEEDS))
    return table((*head, "seeds in which one diverged"), rows)


def _third(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    rows = []
    for method, name in NAMES.items():
        said = [_last(runs, method, s, SAID, part="train") / 1e6 for s in seeds]
        ends = [
            _spread([_last(runs, method, s, what, part=part) for s in seeds])
            if what == LOSS or method in MEANS
            else ""
            for part in ("train", "test")
            for what in (LOSS, MEAN)
        ]
        rows.append([name, *ends, f"{np.mean(said):.3g}"])
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
        curves(by_byte, x="MB said and heard by a device", y="loss", is_log=True),
    ]


# --- real data ------------------------------------------------------------------------------------


def real(runs: Sequence[Run]) -> Page:
    """Set every method beside learning alone, FedAvg and PL-FL."""
    if not runs:
        return Page("The same methods on real devices", (), ())
    title, score = f"The same methods on {runs[0]['title']}", runs[0]["score"]
    ends = {
        name: {x["seed"]: x["shown"][-1] for x in runs if x["name"] == name}
        for name in real_graphs.KINDS
    }
    ends = {name: found for name, found in ends.items() if found}
    rows = [_row(name, found, ends, runs) for name, found in ends.items()]
    head = ("", score, "MAE", "step", "MB a device", *(f"better than {x}" for x in MARKS))
    said = (
        f"{runs[0]['said']} {runs[0]['shown'][-1]['round']} rounds of {real_graphs.STEPS} steps. "
        f"Better means: in {score}, in every seed."
    )
    lines = [
        said,
        "",
        *table(head, rows),
        "",
        *_verdicts(ends, score),
        "",
        curves(_curves(runs, "round"), x="round", y=score, title=title, is_log=True),
        curves(_curves(runs, "said"), x="MB said and heard by a device", y=score, is_log=True),
    ]
    return Page(title, (), lines)


MARKS: Final = ("local", "FedAvg", "PL-FL")
Ends = Mapping[str, Mapping[int, Mapping[str, float]]]


def _verdicts(ends: Ends, score: str) -> list[str]:
    """Say of each method whether it helped, and whom it lost against."""
    lines = []
    for name, found in ends.items():
        if name in MARKS:
            continue
        lost = [x for x in MARKS if x in ends and not _is_better(found, ends[x], score)]
        said = f"does not help against {', '.join(lost)}" if lost else "is better than all marks"
        lines.append(f"- {name} {said}.")
    return lines


def _is_better(
    found: Mapping[int, Mapping[str, float]],
    mark: Mapping[int, Mapping[str, float]],
    score: str,
) -> bool:
    """Whether a method is better in every seed that both have."""
    common = found.keys() & mark.keys()
    return bool(common) and all(found[s][score] < mark[s][score] for s in common)


def _row(
    name: str, found: Mapping[int, Mapping[str, float]], ends: Ends, runs: Sequence[Run]
) -> list[str]:
    score = runs[0]["score"]
    rates = sorted({x["rate"] for x in runs if x["name"] == name})
    said = np.mean([x["said"] for x in found.values()]) / 1e6
    marks = []
    for mark in MARKS:
        is_judged = mark != name and found.keys() & ends.get(mark, {}).keys()
        better = "yes" if _is_better(found, ends.get(mark, {}), score) else "**no**"
        marks.append(better if is_judged else "")
    return [
        f"{name} ({counted(len(found))})",
        _spread([x[score] for x in found.values()]),
        _spread([x["MAE"] for x in found.values()]),
        ", ".join(f"{rate:g}" for rate in rates),
        f"{said:.3g}",
        *marks,
    ]


def _curves(runs: Sequence[Run], along: str) -> dict[str, list[tuple[float, float]]]:
    unit, score = 1e6 if along == "said" else 1.0, runs[0]["score"]
    first = [x for x in runs if x["seed"] == min(y["seed"] for y in runs)]
    lines = {
        x["name"]: [(p[along] / unit, p[score]) for p in x["shown"] if np.isfinite(p[score])]
        for x in first
    }
    return {name: points for name, points in lines.items() if points and points[-1][0] > 0} or {
        "nothing said": []
    }
