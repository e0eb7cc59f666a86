"""Judge PFGL's claims and ours over seeds: reproduced or not, with the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tools.experiments import ev
from tools.experiments.claims import Claim, Results
from tools.experiments.graph_baselines import Marks
from tools.experiments.pages import SEEDS
from tools.experiments.rankings import where

WIDEST = 0.12
"""Share of readings that may lie below, and above, a served interval of 80 %."""

LONGER = 0.01
"""Relative difference that counts as a tie, as in the marks."""

LOUD = ("flipping", "gaussian")
DEGRADED, BROKEN = 0.03, 0.20
"""Largest rise of PFGL's error under an attack, and least rise of an undefended average's."""

TIE = 0.02
OURS = "week, federated"
RESIDUAL = "PFGL, residual"
"""Name of the row with the residual path and the norm of ASTGCN's reference, which the paper does not print."""


def qs(result: Mapping[str, Any]) -> float:
    return float(result["mean"]["QS"])


def tasks(results: Results) -> list[tuple[str, int]]:
    found = {(r["arm"]["dataset"], r["arm"]["horizon"]) for r in results}
    return [(d, h) for h in (1, 6) for d in ev.SETS if (d, h) in found]


def called(task: tuple[str, int]) -> str:
    return f"{ev.TITLES[task[0]]} p={task[1]}"


def paired(results: Results, one: str, other: str, task: tuple[str, int]) -> list[float]:
    """Return the relative difference in QS of two rows, seed by seed: negative is better."""
    here = [r for r in results if (r["arm"]["dataset"], r["arm"]["horizon"]) == task]
    first = {r["arm"]["seed"]: qs(r) for r in where(here, name=one)}
    second = {r["arm"]["seed"]: qs(r) for r in where(here, name=other)}
    return [first[s] / second[s] - 1.0 for s in sorted(first.keys() & second.keys())]


def less(results: Results, one: str, other: str, text: str = "") -> list[Claim]:
    """Claim that one row's QS is below another's on every task, in every seed."""
    found = {t: paired(results, one, other, t) for t in tasks(results)}
    found = {t: gaps for t, gaps in found.items() if gaps}
    if not found:
        return []
    holds = all(gap < 0 for gaps in found.values() for gap in gaps)
    said = ", ".join(f"{called(t)} {_spread(gaps)}" for t, gaps in found.items())
    return [Claim(text or f"QS of {one} is below {other}'s", holds, said)]


def _spread(gaps: Sequence[float]) -> str:
    """Format a mean over seeds and its range.

    >>> _spread([-0.05]), _spread([-0.05, 0.01])
    ('-5.0%', '-2.0% (-5.0% to +1.0%, 2 seeds)')
    """
    mean = f"{np.mean(gaps):+.1%}"
    if len(gaps) == 1:
        return mean
    count = "" if len(gaps) == SEEDS else f", {len(gaps)} seeds"
    return f"{mean} ({min(gaps):+.1%} to {max(gaps):+.1%}{count})"


CHECKPOINTS = " (PFGL at its best held-back round, No_FL at its last step)"


def of_e1(results: Results) -> list[Claim]:
    """Judge the paper's claims on accuracy."""
    claims = less(results, "PFGL", "No_FL")
    claims += less(results, "PFGL", "CNFGNN")
    claims += less(results, "CNFGNN", "No_FL")
    claims += _growing(results)
    claims += _everywhere(results)
    claims += less(results, "LSTM-PFL", "LSTM-FedAvg")
    claims += less(results, "LSTM-CNN-PFL", "LSTM-CNN-FedAvg")
    far = [r for r in results if r["arm"]["horizon"] == 6]
    claims += less(far, "LSTM-CNN-FedAvg", "LSTM-FedAvg")
    claims += _closest(results)
    fair = "QS of PFGL is below No_FL's trained to convergence (not in the paper)"
    return claims + less(results, "PFGL", "No_FL converged", fair)


def of_longer(longer: Results, results: Results) -> list[Claim]:
    """Judge PFGL in runs of one greater length: against No_FL's of it, and a converged one."""
    converged = where(results, name="No_FL converged")
    claims = []
    for name in ("PFGL", RESIDUAL):
        text = f"in {longer[0]['arm']['rounds']} rounds, QS of {name} is below No_FL's"
        claims += less(longer, name, "No_FL", f"{text} of the same length{CHECKPOINTS}")
        claims += less([*longer, *converged], name, "No_FL converged", f"{text}, converged")
    return claims + _growing(longer)


def _growing(results: Results) -> list[Claim]:
    """Return the paper's headline: there is a gain, and it is larger at six steps than at one."""
    said, holds = [], []
    for dataset in ev.SETS:
        near, far = (paired(results, "PFGL", "No_FL", (dataset, h)) for h in (1, 6))
        if near and far:
            holds.append(float(np.mean(far)) < min(0.0, float(np.mean(near))))
            said.append(f"{ev.TITLES[dataset]} {np.mean(near):+.1%} and {np.mean(far):+.1%}")
    text = (
        f"in {results[0]['arm']['rounds']} rounds, PFGL gains over No_FL at p=6, and more than at p=1 "
        "(paper: -12.8 % and -5.7 %)"
    )
    return [Claim(text, all(holds), ", ".join(said))] if holds else []


def _everywhere(results: Results) -> list[Claim]:
    better, count = 0, 0
    for ours in where(results, name="PFGL"):
        arm = ours["arm"]
        same = {k: arm[k] for k in ("dataset", "horizon", "seed")}
        for theirs in where(results, name="No_FL", **same):
            gains = [ours["stations"][x]["QS"] < row["QS"] for x, row in theirs["stations"].items()]
            better, count = better + sum(gains), count + len(gains)
    text = "QS of PFGL is below No_FL's on every station"
    return [Claim(text, better == count, f"{better} of {count}")] if count else []


def _closest(results: Results) -> list[Claim]:
    """Return the claim that PFGL's coverage is the closest to 0.8 of the paper's rows."""
    said, holds = [], []
    for task in tasks(results):
        here = [r for r in results if (r["arm"]["dataset"], r["arm"]["horizon"]) == task]
        off: dict[str, list[float]] = {}
        for r in here:
            if not r["arm"]["name"].startswith(("week", "pooled", "No_FL c")):
                off.setdefault(r["arm"]["name"], []).append(abs(r["mean"]["ICP"] - 0.8))
        if "PFGL" in off and len(off) > 1:
            means = {name: float(np.mean(values)) for name, values in off.items()}
            holds.append(means["PFGL"] <= min(means.values()))
            said.append(f"{called(task)} {means['PFGL']:.3f} off, best {min(means.values()):.3f}")
    text = "PFGL's ICP is the closest to 0.8"
    return [Claim(text, all(holds), ", ".join(said))] if holds else []


def of_marks(results: Results, marks: Marks) -> list[Claim]:
    """Judge our best configuration against the results of others on the same windows."""
    claims = []
    for kind, most, text in (
        ("must beat", 0, "below every method that must be beaten, on every set"),
        ("same window", 1, "at or below the best method on the same window, on 3 sets of 4"),
    ):
        for horizon in (1, 6):
            rows = _beside(results, marks, horizon, kind)
            if rows:
                missed = sum(ours > mark for ours, mark in rows.values())
                said = f"on {len(rows) - missed} of {len(rows)} sets"
                claims.append(Claim(f"{OURS}, p={horizon}: {text}", missed <= most, said))
    return claims + less(results, OURS, "week, alone", "a federation gains over training alone")


def _beside(
    results: Results, marks: Marks, horizon: int, kind: str
) -> dict[str, tuple[float, float]]:
    out = {}
    for dataset in ev.SETS:
        found = where(results, name=OURS, dataset=dataset, horizon=horizon)
        if found and (dataset, horizon) in marks:
            mean = float(np.mean([r.get("served", r["mean"])["QS"] for r in found]))
            out[dataset] = (mean, marks[dataset, horizon][kind][1])
    return out


def of_intervals(results: Results) -> list[Claim]:
    """Judge the served intervals: misses on either side, and their length."""
    found = [r for r in where(results, name=OURS) if "calibrated" in r]
    if not found:
        return []
    worst = {
        side: max((row[side], x) for r in found for x, row in r["calibrated"].items())
        for side in ("below", "above")
    }
    said = ", ".join(f"{side} at most {share:.3f} ({x})" for side, (share, x) in worst.items())
    holds = all(share <= WIDEST for share, _ in worst.values())
    claims = [Claim(f"served 80 % intervals miss at most {WIDEST} a side, everywhere", holds, said)]
    shares = [r["served"]["MIL"] / r["served"]["MIL equal"] - 1.0 for r in found]
    text = (
        f"they are at most {LONGER:.0%} longer than the uncalibrated ones, widened in hindsight to "
        "miss as few"
    )
    said = f"{np.mean(shares):+.1%} on average, {max(shares):+.1%} at most"
    return [*claims, Claim(text, max(shares) <= LONGER, said)]


def rises(
    results: Results, name: str, attack: str, liars: int, *, honest: bool = False
) -> list[float]:
    """Return by how much a row's QS rises under an attack, seed by seed.

    Over all stations, liars scored with the model that they keep to themselves; or over the
    ``honest`` ones, in both runs.
    """
    free = {r["arm"]["seed"]: r for r in _free(results, name)}
    hit = where(results, name=name, attack=attack, liars=liars, experiment="e2")
    counted = [r for r in hit if not honest or len(r["liars"]) < len(r["stations"])]
    pairs = [(r, free[r["arm"]["seed"]]) for r in counted if r["arm"]["seed"] in free]
    gone = [r["liars"] if honest else [] for r, _ in pairs]
    return [
        _over(r, out) / _over(calm, out) - 1.0 if np.isfinite(qs(r)) else float("inf")
        for (r, calm), out in zip(pairs, gone, strict=True)
    ]


def _over(r: Mapping[str, Any], leave: Sequence[str]) -> float:
    return float(np.mean([row["QS"] for x, row in r["stations"].items() if x not in leave]))


def _free(results: Results, name: str) -> list[Mapping[str, Any]]:
    return where(results, name=name, attack="", horizon=6, stations=None)


def of_e2(results: Results) -> list[Claim]:
    """Judge the attacks, set by set; each has eight stations."""
    sets = dict.fromkeys(r["arm"]["dataset"] for r in results if r["arm"]["experiment"] == "e2")
    return [
        replace(claim, text=f"{ev.TITLES[dataset]}: {claim.text}")
        for dataset in sets
        for claim in _of_attacks(where(results, dataset=dataset))
    ]


def _of_attacks(results: Results) -> list[Claim]:
    claims = []
    for attack in LOUD:
        for crowd in (1, 4, 8):
            for name in ("PFGL", RESIDUAL):
                claims += _hardly_worse(results, name, attack, crowd)
                claims += _still_better(results, name, attack, crowd)
            if found := rises(results, "LSTM-FedAvg", attack, crowd):
                text = f"LSTM-FedAvg degrades by at least {BROKEN:.0%}: {attack}, {crowd} of 8"
                claims.append(Claim(text, min(found) >= BROKEN, _shares(found)))
    for name in ("PFGL", RESIDUAL):
        hit = [r for r in where(results, name=name) if r["arm"]["attack"] in LOUD]
        claims += _shut_out(hit, name)
    return claims


def _hardly_worse(results: Results, name: str, attack: str, crowd: int) -> list[Claim]:
    claims = []
    for honest, whose in ((False, "all stations"), (True, "honest stations")):
        found = rises(results, name, attack, crowd, honest=honest)
        if found:
            text = f"{name} degrades by at most {DEGRADED:.0%}: {attack}, {crowd} of 8, {whose}"
            claims.append(Claim(text, max(found) <= DEGRADED, _shares(found)))
    return claims


def _still_better(results: Results, name: str, attack: str, crowd: int) -> list[Claim]:
    alone = {r["arm"]["seed"]: r for r in _free(results, "No_FL")}
    hit = where(results, name=name, attack=attack, liars=crowd, experiment="e2")
    claims = []
    for honest, whose in ((False, "all stations"), (True, "honest stations")):
        some = [r for r in hit if not honest or len(r["liars"]) < len(r["stations"])]
        out = [r["liars"] if honest else [] for r in some]
        pairs = [
            (_over(r, left), _over(alone[r["arm"]["seed"]], left))
            for r, left in zip(some, out, strict=True)
            if r["arm"]["seed"] in alone
        ]
        if pairs:
            said = _shares([ours / theirs - 1.0 for ours, theirs in pairs])
            text = f"{name} stays below No_FL: {attack}, {crowd} of 8, {whose}"
            claims.append(Claim(text, all(ours < theirs for ours, theirs in pairs), said))
    return claims


def _shut_out(results: Iterable[Mapping[str, Any]], name: str = "PFGL") -> list[Claim]:
    """Return the claim that honest stations give Byzantine ones no weight from round 2 on."""
    heaviest, rounds = 0.0, 0
    for r in results:
        for credit in r["credits"][1:]:
            rounds += 1
            heaviest = max(heaviest, *weights_of_liars(credit, r["liars"]))
    text = f"{name}: attackers' weight is zero from round 2 on"
    said = f"heaviest {heaviest:.4f} in {rounds} rounds"
    return [Claim(text, heaviest == 0.0, said)] if rounds else []


_OF_AN_ATTACK = re.compile(r"(.*): (\w+), (\d) of 8(.*)")


def merged(claims: Iterable[Claim]) -> list[Claim]:
    """Make one claim of those that differ in the attack only; it holds if all of them do.

    >>> merged([Claim("x: flipping, 1 of 8", True, "+1%"), Claim("x: gaussian, 4 of 8", False, "+9%")])
    [Claim(text='x', holds=False, detail='flipping 1 yes: +1%; gaussian 4 no: +9%')]
    """
    parts: dict[str, list[Claim]] = {}
    for claim in claims:
        found = _OF_AN_ATTACK.fullmatch(claim.text)
        if found is None:
            parts.setdefault(claim.text, []).append(claim)
            continue
        said = f"{found[2]} {found[3]} {'yes' if claim.holds else 'no'}: {claim.detail}"
        parts.setdefault(found[1] + found[4], []).append(replace(claim, detail=said))
    return [
        Claim(text, all(x.holds for x in some), "; ".join(x.detail for x in some))
        for text, some in parts.items()
    ]


def weights_of_liars(
    credit: Mapping[str, Mapping[str, float]], liars: Sequence[str]
) -> list[float]:
    """Return the weight that each honest station gives to all Byzantine ones together.

    >>> weights_of_liars({"a": {"a": 0.75, "c": 0.25}, "b": {"b": 1.0}, "c": {"c": 1.0}}, ["c"])
    [0.25, 0.0]
    """
    honest = sorted(credit.keys() - set(liars))
    return [sum(credit[x].get(y, 0.0) for y in liars) for x in honest] or [0.0]


def of_e3(results: Results) -> list[Claim]:
    """Judge the claims on the credit."""
    rows = sorted(where(results, experiment="e3"), key=lambda r: float(r["arm"]["credit"]))
    if not rows:
        return []
    counts = _by_credit(rows, lambda w: float(len(w)))
    entropy = _by_credit(rows, entropy_of)
    if len(counts) < 2:
        return _shut_out(rows)
    claims = [
        _let_in(rows, counts),
        Claim("the entropy of a row's weights rises with sigma", _rising(entropy), _said(entropy)),
    ]
    return claims + _shut_out(rows)


def _let_in(rows: Results, counts: Mapping[float, float]) -> Claim:
    all_honest = float(len(rows[0]["stations"]) - len(rows[0]["liars"]))
    few, many = counts[min(counts)], counts[max(counts)]
    text = "fewer contributors with the smallest sigma than with the largest, where all honest ones are"
    return Claim(f"{text} (paper: 2 and 7)", few < many == all_honest, _said(counts))


def entropy_of(weights: Mapping[str, float]) -> float:
    """Return the entropy of a row in nats.

    >>> round(entropy_of({"a": 0.5, "b": 0.5}), 4)
    0.6931
    """
    w = np.array([x for x in weights.values() if x > 0.0])
    return float(-(w * np.log(w)).sum())


def _by_credit(rows: Results, of: Any) -> dict[float, float]:  # noqa: ANN401 - a row's weights to a number
    out: dict[float, list[float]] = {}
    for r in rows:
        honest = [x for x in r["stations"] if x not in r["liars"]]
        for credit in r["credits"][1:]:
            out.setdefault(r["arm"]["credit"], []).extend(of(credit[x]) for x in honest)
    return {sigma: float(np.mean(values)) for sigma, values in sorted(out.items())}


def _rising(values: Mapping[float, float]) -> bool:
    return all(b >= a - 1e-9 for a, b in pairwise(values.values()))


def _said(values: Mapping[float, float]) -> str:
    return ", ".join(f"{sigma:g}: {value:.2f}" for sigma, value in values.items())


def of_e4(results: Results) -> list[Claim]:
    """Judge encoders and the number of stations."""
    whole = [r for r in results if r["arm"]["stations"] is None and not r["arm"]["attack"]]
    claims = []
    gaps = paired(whole, "PFGL, LSTM encoder", "PFGL", (ev.BOULDER, 6))
    if gaps:
        said = f"{np.mean(gaps):+.1%}"
        text = f"QS with an LSTM encoder differs by less than {TIE:.0%} (paper: -0.1 %)"
        claims.append(Claim(text, max(map(abs, gaps)) < TIE, said))
    few = {n: _shared_stations(results, n) for n in (2, 4)}
    for n, pairs in few.items():
        if pairs:
            said = ", ".join(f"{a:.4f} with {n}, {b:.4f} with all" for a, b in pairs)
            text = f"the first two stations' QS is lower with all stations than with {n}"
            claims.append(Claim(text, all(b < a for a, b in pairs), said))
    return claims


def _shared_stations(results: Results, count: int) -> list[tuple[float, float]]:
    out = []
    for r in where(results, experiment="e4", stations=count):
        same = [x for x in _free(results, "PFGL") if x["arm"]["seed"] == r["arm"]["seed"]]
        names = list(r["stations"])[:2]
        for full in same:
            few, all_ = (
                float(np.mean([x["stations"][name]["QS"] for name in names])) for x in (r, full)
            )
            out.append((few, all_))
    return out


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{x:+.1%}" if x < 100 else "diverged" for x in values)
