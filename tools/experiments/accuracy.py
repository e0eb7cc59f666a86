"""The reports of E9 (accuracy), E10 (the budget) and E11 (waiting)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.experiments import cells, noise, papers, pictures, rankings, verdicts
from tools.experiments.claims import Results
from tools.experiments.method_rows import FIELD
from tools.experiments.pages import Page, called, said, states, table
from tools.experiments.rankings import score, tasks, where

PARTS = {
    "As the paper has it": (
        "Every method with its paper's net; BAFDP on noisy readings, NbAFL and UDP with noise on "
        "what they send, the others without any."
    ),
    "Control: one net for all, no noise on the readings": (
        "RMSE. The same MLP everywhere. `local long` is every cell alone to convergence, `pooled` one "
        "model on all readings in one place."
    ),
    "Control: one net and one noise for all": (
        "RMSE. All devices learn from the same noisy readings: what is left of an advantage is the "
        "method's."
    ),
}
SWEEP = (
    "Every reading is noised once (analytic Gaussian, delta = 1e-5); targets too. The attacker "
    "holds the noisy readings and knows the noise. First: the share of right answers when asked "
    "which end of the range was read (guessing: 50 %), in 10 000 trials. Then the share of real "
    "readings rebuilt to within a tenth of the cell's range, beside that of an attacker who only "
    "has the usual value of the hour."
)


def e9(results: Results, *, marks: Mapping[str, Mapping[str, str]], missing: Sequence[str]) -> Page:
    """Return the report of E9: accuracy as in the paper, and with controls."""
    paper = [r for r in results if _is_papers(r["arm"])]
    clean = where(results, net="mlp", budget=None)
    noisy = [r for r in where(results, net="mlp") if r["arm"]["budget"] is not None]
    lines = states(results, missing)
    parts = zip(PARTS.items(), (paper, clean, noisy), strict=True)
    for (title, text), some in parts:
        lines += ["", f"### {title}", "", text, "", *_accuracy(some, is_papers=some is paper)]
    lines += ["", "### What needs no learning, and the anchors' marks, on the same windows", ""]
    names = list(dict.fromkeys(x for row in marks.values() for x in row))
    lines += table(
        ("forecast", *marks), ([x, *(marks[t].get(x, "") for t in marks)] for x in names)
    )
    return Page(
        "E9: accuracy of BAFDP and eight others (Table I)",
        verdicts.of_e9(paper, clean, noisy),
        lines,
    )


def _is_papers(arm: Mapping[str, Any]) -> bool:
    name = arm["name"]
    if name not in verdicts.NINE or name not in FIELD or arm["net"] != FIELD[name].net:
        return False
    return bool((arm["budget"] is not None) == (name == "BAFDP"))


def _accuracy(results: Results, *, is_papers: bool) -> list[str]:
    """Return a table of RMSE / MAE by method and task, with the paper's values beside its own form."""
    if not results:
        return ["Nothing of it has been run."]
    names = list(dict.fromkeys(r["arm"]["name"] for r in results))
    found = tasks(results)
    ranks = rankings.ranks(results, names)
    head = ["method", *(called(t) for t in found), "average rank"]
    head += ["paper: Milan H=1", "paper: Milan H=24", "paper's rank"] if is_papers else []
    rows = []
    for name in sorted(names, key=lambda x: ranks.get(x, 99.0)):
        found_of = (where(results, name=name, dataset=d, horizon=h) for d, h in found)
        ours = [said(x, has_mae=is_papers) for x in found_of]
        rank = f"{ranks[name]:.2f}" if name in ranks else ""
        theirs = papers.TABLE_I.get(name, ("", "", "")) if is_papers else ()
        rows.append([name, *ours, rank, *theirs])
    return table(head, rows)


def e10(results: Results, missing: Sequence[str] = ()) -> Page:
    """Return the report of E10: the budget sweep, with an attacker's success at every level.

    The paper has another sweep on Trento, which is a second table where Trento is there.
    """
    lines = states(results, [x for x in missing if x == cells.TRENTO])
    lines += ["", "### Accuracy and attack success together", "", SWEEP]
    places = {cells.TRENTO: papers.TABLE_III}
    for dataset in dict.fromkeys(r["arm"]["dataset"] for r in results):
        theirs = places.get(dataset, papers.TABLE_II)
        lines += ["", *_sweep(where(results, dataset=dataset), theirs)]
    lines += _sweep_pictures(results, tasks(results))
    return Page("E10: the privacy budget (Tables II and III)", verdicts.of_e10(results), lines)


def _sweep(results: Results, theirs: Mapping[float, tuple[str, str]]) -> list[str]:
    """Return the errors of a set at every budget, beside the paper's."""
    budgets = sorted({_a(r) for r in results})
    found = tasks(results)
    head = ["a", "noise (of the range)", *(f"BAFDP, {called(t)}" for t in found)]
    head += ["which of two extremes", "readings rebuilt to a tenth", "with the usual value alone"]
    head += ["paper H=1", "paper H=24"]
    rows = []
    for a in budgets:
        level = None if np.isinf(a) else a
        here = [r for r in results if _a(r) == a]
        ours = [said(where(here, dataset=d, horizon=h)) for d, h in found]
        seen = [r["attack"] for r in here if "attack" in r]
        spread = "0" if level is None else f"{noise.spread(level):.3f}"
        rows.append(
            [
                "none" if level is None else f"{a:g}",
                spread,
                *ours,
                _share(seen, "told apart"),
                _share(seen, "rebuilt"),
                _share(seen, "usual"),
                *theirs.get(a, ("", "")),
            ]
        )
    return table(head, rows)


def _a(result: Mapping[str, Any]) -> float:
    budget = result["arm"]["budget"]
    return float("inf") if budget is None else float(budget)


def _share(seen: Sequence[Mapping[str, float]], name: str) -> str:
    return f"{np.mean([x[name] for x in seen]):.1%}" if seen else ""


def _sweep_pictures(results: Results, found: Sequence[rankings.Task]) -> list[str]:
    lines = []
    for dataset, horizon in found:
        here = where(results, dataset=dataset, horizon=horizon)
        points = sorted((_a(r), score(r)["RMSE"]) for r in here if np.isfinite(_a(r)))
        free = [score(r)["RMSE"] for r in here if not np.isfinite(_a(r))]
        lines.append(
            pictures.marks(
                {"BAFDP": points},
                x="budget a of a reading",
                y="RMSE",
                title=f"{called((dataset, horizon))}; the line is without noise",
                level=float(np.mean(free)) if free else None,
            )
        )
    paths = {
        f"a={_a(r):g}": [(x["firing"], x["epsilon"]) for x in r["path"] if "epsilon" in x]
        for r in results
        if r["arm"]["seed"] == 0 and r["arm"]["horizon"] == 1 and np.isfinite(_a(r))
    }
    shown = {name: path for name, path in paths.items() if path}
    lines.append(pictures.curves(shown, x="firing", y="mean epsilon of the devices"))
    return [x for x in lines if x]


def e11(results: Results) -> Page:
    """Return the report of E11: synchronous against asynchronous on the simulated clock."""
    lines = states(results)
    lines += [
        "",
        (
            "Answers take log-normal times with a median of one second; one device is ten times "
            "slower. BSFDP waits for everybody, BAFDP for half. Both run for the same simulated "
            "time."
        ),
        "",
    ]
    head = (
        "seed",
        "method",
        "firings",
        "seconds to BSFDP's final loss",
        "final loss",
        "RMSE / MAE",
    )
    rows = []
    for ours in where(results, name="BAFDP"):
        seed = ours["arm"]["seed"]
        for theirs in where(results, name="BSFDP", seed=seed):
            level = theirs["path"][-1]["loss"]
            for r in (ours, theirs):
                when, last = verdicts.reached(r["path"], "loss", level), r["path"][-1]
                scores = score(r)
                rows.append(
                    [
                        str(seed),
                        r["arm"]["name"],
                        f"{last['firing']:.0f}",
                        f"{when:.0f}",
                        f"{last['loss']:.5f}",
                        f"{scores['RMSE']:.1f} / {scores['MAE']:.1f}",
                    ]
                )
    lines += table(head, rows)
    first = [r for r in results if r["arm"]["seed"] == 0]
    for metric in ("loss", "RMSE", "MAE"):
        paths = {r["arm"]["name"]: [(x["time"], x[metric]) for x in r["path"]] for r in first}
        lines.append(pictures.curves(paths, x="simulated seconds", y=metric, is_log=True))
    return Page("E11: with and without waiting (Figures 4 to 6)", verdicts.of_e11(results), lines)
