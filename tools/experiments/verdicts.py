"""Judge BAFDP's claims over seeds: reproduced or not, with the numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tools.experiments import cells
from tools.experiments.claims import Claim, Results
from tools.experiments.rankings import ranks, score, spearman, tasks, where

NINE = (
    "FedGRU",
    "Fed-NTP",
    "FedAtt",
    "FedDA",
    "AFL",
    "ASPIRE-EASE",
    "UDP",
    "NbAFL",
    "BAFDP",
)
GROUP = ("AFL", "ASPIRE-EASE", "UDP", "NbAFL", "BAFDP")
"""The distributionally robust and the private methods, which the paper compares as one group."""

KNEE = 50.0
"""Budget cap above which the paper reports no further gain in accuracy on Milan, an hour ahead."""

FASTER, CLOSE = 1.5, 0.03
RISE, DOUBLE = 0.15, 2.0


def of_e9(paper: Results, clean: Results, noisy: Results) -> list[Claim]:
    """Judge E9: as in the paper, then with one net, then with one net and one noise."""
    claims = [_rank_claim("as the paper has it", paper)]
    claims.append(_group_claim(paper))
    claims.append(_rank_claim("every method with the same net, no noise on the readings", clean))
    claims.append(_rank_claim("every method with the same net and the same noise", noisy))
    for name, some in (("without noise", clean), ("with the same noise", noisy)):
        claims.append(_against("FedAvg", some, name))
        claims.append(_against("local long", some, name))
    return [x for x in claims if x.detail]


def _rank_claim(how: str, results: Results) -> Claim:
    found = ranks(results, [x for x in NINE if where(results, name=x)])
    ours = found.get("BAFDP", float("nan"))
    text = f"BAFDP {ours:.2f}"
    few = f"{len(found)} of the nine were run: " if 0 < len(found) < len(NINE) else ""
    return Claim(f"average rank of BAFDP is at most 2 ({how})", ours <= 2.0, few + text)


def _group_claim(results: Results) -> Claim:
    said, holds = [], []
    for dataset, horizon in tasks(results):
        here = where(results, dataset=dataset, horizon=horizon)
        group = _by_seed([r for r in here if r["arm"]["name"] in GROUP])
        plain = _by_seed([r for r in here if r["arm"]["name"] in {"FedGRU", "Fed-NTP"}])
        seeds = sorted(group.keys() & plain.keys())
        better = [np.mean(group[s]) < np.mean(plain[s]) for s in seeds]
        if better:
            holds.append(all(better))
            said.append(f"{dataset} H={horizon}: {sum(better)} of {len(better)} seeds")
    text = "the robust and private group beats FedGRU and Fed-NTP in mean RMSE"
    return Claim(text, bool(holds) and all(holds), ", ".join(said))


def _against(other: str, results: Results, how: str) -> Claim:
    said, holds = [], []
    for dataset, horizon in tasks(results):
        here = where(results, dataset=dataset, horizon=horizon)
        ours, theirs = _rmse(here, "BAFDP"), _rmse(here, other)
        seeds = sorted(ours.keys() & theirs.keys())
        if seeds:
            holds.append(all(ours[s] < theirs[s] for s in seeds))
            mean = float(np.mean([ours[s] / theirs[s] for s in seeds]))
            said.append(f"{dataset} H={horizon}: {mean:.3f} of its RMSE")
    return Claim(f"BAFDP beats {other} {how}", bool(holds) and all(holds), ", ".join(said))


def _by_seed(results: Results) -> dict[int, list[float]]:
    out: dict[int, list[float]] = defaultdict(list)
    for result in results:
        out[int(result["arm"]["seed"])].append(score(result)["RMSE"])
    return out


def _rmse(results: Results, name: str) -> dict[int, float]:
    return {int(r["arm"]["seed"]): score(r)["RMSE"] for r in where(results, name=name)}


def of_e10(results: Results) -> list[Claim]:
    """Judge E10: the error does not increase with the budget; the path of the budget."""
    claims = []
    for dataset, horizon in tasks(results):
        here = [
            r
            for r in where(results, dataset=dataset, horizon=horizon)
            if r["arm"]["budget"] is not None
        ]
        budgets = sorted({r["arm"]["budget"] for r in here})
        means = [float(np.mean([score(r)["RMSE"] for r in where(here, budget=a)])) for a in budgets]
        found = spearman(budgets, means)
        said = ", ".join(f"a={a:g}: {e:.1f}" for a, e in zip(budgets, means, strict=True))
        text = f"Spearman(a, RMSE) <= 0 under honest noise, {dataset} H={horizon} (not the paper's)"
        claims.append(Claim(text, found <= 0.0, f"{found:+.2f}"))
        errors = dict(zip(budgets, means, strict=True))
        if (dataset, horizon) == (cells.TRENTO, 1):
            text = f"the best budget is 20, {dataset} H=1"
            claims.append(Claim(text, min(errors, key=errors.__getitem__) == 20.0, said))
        else:
            claims += _plateau(errors, f"{dataset} H={horizon}")
    paths = [[x["epsilon"] for x in r["path"] if "epsilon" in x] for r in results]
    paths = [x for x in paths if x]
    if paths:
        rises = [all(b >= a - 1e-9 for a, b in pairwise(x)) for x in paths]
        detail = f"{sum(rises)} of {len(rises)} runs; a run this long ends between {_ends(results)}"
        claims.append(Claim("epsilon rises monotonically towards a", all(rises), detail))
        found_it = any(x[-1] <= 0.2 for x in paths)
        text = "epsilon converges to 0.126 with a >= 10, as the paper says"
        claims.append(Claim(text, found_it, "cannot happen under (19): c3 G / eps^2 > 0"))
    return claims


def _plateau(errors: Mapping[float, float], task: str) -> list[Claim]:
    """Return the paper's claim: the error falls up to a=50, and not beyond; none without both parts."""
    rise = [errors[a] for a in sorted(errors) if a <= KNEE]
    flat = [errors[a] for a in sorted(errors) if KNEE < a <= 70.0]
    if len(rise) < 2 or not flat:
        return []
    falls = all(b < a for a, b in pairwise(rise))
    text = f"the error falls up to a={KNEE:g} and not from there to a=70, {task}"
    order = "yes" if falls else "no"
    said = f"falls up to {KNEE:g}: {order}; best beyond {min(flat):.1f}, there {rise[-1]:.1f}"
    return [Claim(text, falls and min(flat) >= rise[-1], said)]


def _ends(results: Results) -> str:
    shares = [
        r["path"][-1]["epsilon"] / r["arm"]["budget"]
        for r in results
        if r["path"] and "epsilon" in r["path"][-1] and r["arm"]["budget"]
    ]
    return f"{min(shares):.2f} a and {max(shares):.2f} a"


def reached(path: Sequence[Mapping[str, float]], metric: str, level: float) -> float:
    """Return the simulated time at which a metric first is at most ``level``; inf if never.

    >>> reached([{"time": 1.0, "loss": 3.0}, {"time": 2.0, "loss": 1.0}], "loss", 2.0)
    2.0
    """
    return next((x["time"] for x in path if x[metric] <= level), float("inf"))


def of_e11(results: Results) -> list[Claim]:
    """Judge E11: asynchronous against synchronous, seed by seed, on the same simulated clock."""
    claims = []
    for dataset, horizon in tasks(results):
        here = where(results, dataset=dataset, horizon=horizon)
        pairs = list(zip(where(here, name="BAFDP"), where(here, name="BSFDP"), strict=False))
        if not pairs:
            continue
        rates, gaps = zip(*(_race(a, s) for a, s in pairs), strict=True)
        text = f"BAFDP reaches BSFDP's final loss at least {FASTER} times sooner, {dataset}"
        said = ", ".join(f"{x:.2f}" for x in rates) + " times"
        claims.append(Claim(text, min(rates) >= FASTER, said))
        text = f"final RMSE of BAFDP within {CLOSE:.0%} of BSFDP's (or below), {dataset}"
        said = ", ".join(f"{x:+.1%}" for x in gaps)
        claims.append(Claim(text, max(gaps) <= CLOSE, said))
    return claims


def _race(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float, float]:
    level = theirs["path"][-1]["loss"]
    slow = reached(theirs["path"], "loss", level)
    fast = reached(ours["path"], "loss", level)
    return slow / fast, score(ours)["RMSE"] / score(theirs)["RMSE"] - 1.0


def rises(results: Results, name: str, attack: str, ratio: float, horizon: int) -> list[float]:
    """Return the relative rise of a method's RMSE under an attack, for each seed.

    Both runs are scored on the cells that do not lie in the attacked one.
    """
    free = {int(r["arm"]["seed"]): r for r in where(results, name=name, attack="", horizon=horizon)}
    hit = where(results, name=name, attack=attack, ratio=ratio, horizon=horizon)
    out = []
    for r in hit:
        seed = int(r["arm"]["seed"])
        if seed in free:
            before = score(free[seed], leave=r["liars"])["RMSE"]
            after = score(r)["RMSE"]
            out.append(after / before - 1.0 if np.isfinite(after) else float("inf"))
    return out


def of_e12(results: Results) -> list[Claim]:
    """Judge E12: errors with three tenths of Byzantine devices, and ranks with one tenth."""
    claims = []
    horizons = sorted({r["arm"]["horizon"] for r in results})
    for horizon in horizons:
        for attack in ("flipping", "scaling", "gaussian"):
            if found := rises(results, "BAFDP", attack, 0.3, horizon):
                text = f"BAFDP's RMSE rises by at most {RISE:.0%}: 30 % {attack}, H={horizon}"
                claims.append(Claim(text, max(found) <= RISE, _shares(found)))
            if found := rises(results, "FedAvg", attack, 0.3, horizon):
                text = f"FedAvg's RMSE doubles or diverges: 30 % {attack}, H={horizon}"
                claims.append(Claim(text, min(found) >= DOUBLE - 1.0, _shares(found)))
        if found := rises(results, "FedAvg", "constant", 0.3, horizon):
            text = f"FedAvg's RMSE doubles or diverges: 30 % constant 1e3, H={horizon}"
            claims.append(Claim(text, min(found) >= DOUBLE - 1.0, _shares(found)))
        claims += _order(results, horizon)
    return claims + _huge(results)


def _order(results: Results, horizon: int) -> list[Claim]:
    names = ("BAFDP", "RSA", "DP-RSA")
    means = {}
    for name in names:
        found = where(results, name=name, attack="flipping", ratio=0.1, horizon=horizon)
        if found:
            means[name] = float(np.mean([score(r)["RMSE"] for r in found]))
    if len(means) < len(names):
        return []
    holds = means["BAFDP"] <= means["RSA"] <= means["DP-RSA"]
    text = ", ".join(f"{x} {means[x]:.1f}" for x in names)
    return [Claim(f"BAFDP <= RSA <= DP-RSA at 10 % flipping, H={horizon}", holds, text)]


def _huge(results: Results) -> list[Claim]:
    big = where(results, name="BAFDP", attack="constant:value=1e30")
    same = (
        where(results, name="BAFDP", attack="constant:value=1e3", ratio=big[0]["arm"]["ratio"])
        if big
        else []
    )
    if not same:
        return []
    pairs = [(score(a)["RMSE"], score(b)["RMSE"]) for a, b in zip(big, same, strict=False)]
    holds = all(a == b for a, b in pairs)
    text = ", ".join(f"{a:.6f} and {b:.6f}" for a, b in pairs)
    return [Claim("one attacker with 1e30 moves z no more than one with 1e3", holds, text)]


def _shares(values: Sequence[float]) -> str:
    """Format rises in per cent; a hundredfold error counts as diverged.

    >>> _shares([0.072, 1e30])
    '+7.2%, diverged'
    """
    return ", ".join(f"{x:+.1%}" if x < 100 else "diverged" for x in values)
