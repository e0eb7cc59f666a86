"""The reports of E12 (Byzantine devices) and E13 (rules against attacks)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.experiments import matrix, papers, pictures, verdicts, wire
from tools.experiments.claims import Claim, Results
from tools.experiments.pages import Page, counted, said, states, table
from tools.experiments.rankings import where

SETTING = (
    "At least the stated share of the devices is Byzantine in every round. Errors are those of the "
    "honest devices; a rise compares with the same devices in a run without an attack. All devices "
    "train on clean readings, so that nothing else differs."
)

TOGETHER = (
    "BAFDP has the settings that an operator has who sets nothing. Noise: every reading once, analytic "
    "Gaussian, delta = 1e-5. Straggler: log-normal answers, one device ten times slower, half of the "
    "devices make a firing; the run ends by the clock, after more steps than on the even one. FedAvg has "
    "no straggler, because it waits for every device."
)


BEST = 10
"""Rules in the table over all attacks."""


def e12(results: Results, found: dict[str, float]) -> Page:
    """Return the report of E12: Byzantine devices."""
    lines = states(results)
    lines += [
        "",
        SETTING,
    ]
    for horizon in sorted({r["arm"]["horizon"] for r in results}):
        here = where(results, horizon=horizon)
        names = [x for x in ("BAFDP", "RSA", "DP-RSA", "FedAvg") if where(here, name=x)]
        kinds = sorted({(r["arm"]["attack"], r["arm"]["ratio"]) for r in here})
        rows = [
            [
                attack or "no attack",
                f"{ratio:.0%}",
                *(_hit(here, x, attack, ratio) for x in names),
            ]
            for attack, ratio in kinds
        ]
        lines += ["", f"### Milan, H={horizon}", ""]
        lines += ["RMSE / MAE, and by how much the RMSE rises.", ""]
        lines += table(("attack", "Byzantine", *names), rows)
    lines += ["", "The paper (kind of attack not stated), H=1 and H=24:", "", *papers.TABLE_IV]
    paths = {
        f"{r['arm']['ratio']:.0%} Byzantine": [(x["time"], x["RMSE"]) for x in r["path"]]
        for r in where(results, name="BAFDP", horizon=1, seed=0)
        if r["arm"]["attack"] in {"", "flipping"}
    }
    text = "BAFDP under flipping; from half on outside any guarantee"
    lines.append(pictures.curves(paths, x="simulated seconds", y="RMSE", title=text, is_log=True))
    claims = verdicts.of_e12(results)
    if found:
        lines += wire.lines(found)
        claims.append(wire.judge(found))
    return Page("E12: Byzantine devices (Table IV, Figures 7 and 8)", claims, lines)


def _hit(results: Results, name: str, attack: str, ratio: float) -> str:
    found = where(results, name=name, attack=attack, ratio=ratio)
    if not found:
        return ""
    if not attack:
        return said(found)
    horizon = found[0]["arm"]["horizon"]
    rises = verdicts.rises(results, name, attack, ratio, horizon)
    return f"{said(found)} ({_rise(float(np.mean(rises)))})" if rises else said(found)


def _rise(value: float) -> str:
    return f"{value:+.0%}" if value < 100 else "diverged"


def e14(results: Results) -> Page:
    """Return the report of E14: noise on readings, a straggler and attackers, one by one and together."""
    lines = [*states(results), "", TOGETHER, ""]
    head = ("method", "hours ahead", "noise", "clock", "without attack", "30 % flipping", "rise")
    rows = []
    for name in ("BAFDP, defaults", "FedAvg"):
        for horizon, budget, clock in itertools.product(
            (1, 24), (None, 30.0), ("even", "straggler")
        ):
            setting = {"horizon": horizon, "budget": budget, "clock": clock}
            free = where(results, name=name, attack="", **setting)
            hit = where(results, name=name, attack="flipping", **setting)
            if free or hit:
                noise = "none" if budget is None else f"a={budget:g}"
                rises = together(results, name, budget, clock, horizon)
                change = " ".join(f"{x:+.1%}" for x in rises)
                rows.append([name, str(horizon), noise, clock, said(free), said(hit), change])
    return Page("E14: BAFDP's parts together", together_claims(results), lines + table(head, rows))


def together(
    results: Results, name: str, budget: float | None, clock: str, horizon: int = 1
) -> list[float]:
    """Return the relative rise of the RMSE under attack, for each seed, in one setting."""
    some = where(results, name=name, budget=budget, clock=clock, horizon=horizon)
    return verdicts.rises(some, name, "flipping", 0.3, horizon)


def together_claims(results: Results) -> list[Claim]:
    """Judge the combination: the attack costs no more beside noise and a straggler."""
    out = []
    for text, budget, clock, horizon in (
        ("attackers alone", None, "even", 1),
        ("attackers, noise on readings (a=30) and a straggler together", 30.0, "straggler", 1),
        ("attackers alone, a day ahead", None, "even", 24),
    ):
        if found := together(results, "BAFDP, defaults", budget, clock, horizon):
            shares = ", ".join(f"{x:+.1%}" for x in found)
            bound = (
                f"BAFDP with its defaults: RMSE rises by at most {verdicts.RISE:.0%} under {text}"
            )
            out.append(Claim(bound, max(found) <= verdicts.RISE, shares))
    return out


def e13(results: Sequence[Mapping[str, Any]]) -> Page:
    """Return the report of E13: the matrix of rules and attacks."""
    return Page(
        "E13: every rule against every attack", matrix_claims(results), matrix_lines(results)
    )


def matrix_claims(results: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Judge the claims that an operator relies on."""
    found = matrix.ratios(results)
    if not found:
        return []
    broken = [a for r, a, b in found if r == "mean" and not b and np.mean(found[r, a, b]) >= 2.0]
    ranks = matrix.rank_table(found)
    safe = {x: worst for x, (_, worst) in ranks.items() if worst <= 1.0 + verdicts.RISE}
    within = f"within {verdicts.RISE:.0%} of the undisturbed mean under every attack"
    best = sorted(safe, key=lambda x: safe[x])[:5]
    named = ", ".join(f"{_named(x)} {safe[x]:.2f}" for x in best)
    said_of = f"{len(safe)} of {len(ranks)}; worst of the best: {named}"
    lost = "the plain mean at least doubles its error under some attack"
    return [
        Claim(lost, bool(broken), ", ".join(broken)),
        Claim(f"some rule stays {within}", bool(safe), said_of),
    ]


def _named(pair: tuple[str, str]) -> str:
    rule, before = pair
    return f"{rule} after {before}" if before else rule


def matrix_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tables that the page on rules and the report both show."""
    found = matrix.ratios(results)
    attacks = [a for a in matrix.ATTACKS_RUN if any(a == x for _, x, _ in found)]
    seeds = len({r["square"]["seed"] for r in results if r["error"] is not None})
    rounds = max((r["square"]["rounds"] for r in results), default=0)
    lines = [
        (
            f"{matrix.CLIENTS} clients, {matrix.LIARS} of them Byzantine; FedAvg, {rounds} rounds of "
            f"{matrix.STEPS} steps on the synthetic task, {counted(seeds)}. A number is the error "
            "of the honest clients' common model over that of the plain mean without an attack: "
            "1.00 is undisturbed."
        )
    ]
    for before in matrix.BEFORE:
        rules = [x for x in matrix.RULES if any((x, before) == (r, b) for r, _, b in found)]
        if rules:
            lines += ["", f"### {'After ' + before if before else 'The rule alone'}", ""]
            lines += _one_table(found, before, rules, attacks)
        lines += _short(results, before)
    return lines + _ranking(found)


def _one_table(
    found: matrix.Ratios, before: str, rules: Sequence[str], attacks: Sequence[str]
) -> list[str]:
    means = {
        (rule, attack or "no attack"): float(np.mean(found[rule, attack, before]))
        for rule in rules
        for attack in attacks
        if (rule, attack, before) in found
    }
    named = [x or "no attack" for x in attacks]
    rows = [
        [
            f"`{rule}`",
            *(_ratio(means.get((rule, x))) for x in named),
            _ratio(max(v for (r, _), v in means.items() if r == rule)),
        ]
        for rule in rules
    ]
    picture = pictures.shades(rules, named, means, title=before or "alone")
    return [*table(("rule", *named, "worst"), rows), "", picture]


def _short(results: Sequence[Mapping[str, Any]], before: str) -> list[str]:
    """Return a line on the rules that need more clients; none if no rule does."""
    needs = {
        r["square"]["rule"]: r["needs"]
        for r in results
        if r.get("needs") and r["square"]["before"] == before
    }
    if not needs:
        return []
    text = ", ".join(f"`{rule}` ({count})" for rule, count in sorted(needs.items()))
    return [
        "",
        f"Refused {'after ' + before if before else 'alone'}, because of too few updates: {text}.",
    ]


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else "diverged"


def _ranking(found: matrix.Ratios) -> list[str]:
    ranks = matrix.rank_table(found)
    rows = [
        [_named(x), f"{place:.1f}", _ratio(worst)]
        for x, (place, worst) in sorted(ranks.items(), key=lambda item: item[1][::-1])[:BEST]
    ]
    lines = ["", "### Over all attacks", "", f"The {BEST} with the least bad worst case.", ""]
    return [*lines, *table(("rule", "average rank", "worst"), rows)]
