"""The methods of BAFDP's tables as this project runs them: one row, one name, its settings.

Settings were chosen on Milan's week before the test, never on the test; what a paper gives is used
where it gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edge_sdk.privacy import MechanismSection, PrivacySection

STEPS = 4
RATE = 1e-3
UPLOADS = 1
"""Number of uploads in NbAFL's calibration; with all of them, noise exceeds every model."""

TIED = {"l1": 0.3, "server_rate": 0.01}
"""Penalty weight and consensus rate of BAFDP, RSA and DP-RSA.

Of l1 0.01, 0.05, 0.1, 0.3 and 1, with rates that let the consensus move about as far, this had the
least error in Milan's week before the test. At 0.01 an l1 step is a hundredth of Adam's: devices
stay far apart, and a third of liars moves what lies between them.
"""

CALM = 0.003
"""Rate of the consensus where a clock ends the run; at 0.01, thousands of firings make it oscillate.

Chosen on the same week, on the same clock, for BAFDP and BSFDP alike; 0.001 was slower.
"""

DUAL = 0.03
"""Bound of BAFDP's duals: a tenth of its l1 weight; the specification's bound is the whole weight.

Honest duals stay far below either; a liar's go to the bound. In the week before the test nothing
changes without liars, and of 0.3, 0.1 and 0.03 this had the least error with them.
"""

CLIP = 10.0
"""Clipping norm of NbAFL's weights; the norm of the common model stays below it."""


@dataclass(frozen=True, slots=True)
class Case:
    """Facts of the arm that a row is run for."""

    names: Sequence[str]  # the devices, sorted
    samples: int  # the fewest windows of any of them
    rounds: int  # how many firings there will be
    budget: float | None  # epsilon of the noise on the readings, where there is some
    is_timed: bool = False  # whether a clock ends the run, after some ten times as many firings


def _local(_: Case) -> Mapping[str, Any]:
    return {"steps": STEPS, "rate": RATE}


def _open(_: Case) -> PrivacySection | None:
    return None


@dataclass(frozen=True, slots=True)
class Row:
    """Settings with which a method is run."""

    method: str  # a key of both ``METHODS``
    net: str = "mlp"
    settings: Callable[[Case], Mapping[str, Any]] = _local  # of the server half
    steps: int = STEPS  # gradient steps behind one answer
    share: float = 1.0  # of the devices, whose answers make a firing
    # what stands between an answer and the link
    privacy: Callable[[Case], PrivacySection | None] = _open
    is_drawn: bool = False  # whether only so many are asked, another draw each round; else all are
    plain: str = ""  # the method that does the same with a net that its own refuses

    def quorum(self, devices: int) -> int:
        """Return the number of updates of a firing.

        >>> Row("bafdp", share=0.5).quorum(25), Row("fedavg").quorum(25)
        (13, 25)
        """
        return max(1, math.ceil(self.share * devices - 1e-9))

    def firings(self, work: int, devices: int) -> int:
        """Return the number of firings for ``work`` gradient steps of an average device.

        >>> Row("bafdp", steps=1, share=0.5).firings(1000, 4)
        2000
        """
        return max(1, round(work / self.steps * devices / self.quorum(devices)))


def _districts(case: Case) -> Mapping[str, Any]:
    rows: dict[str, list[str]] = {}
    for name in case.names:
        grid = name.removeprefix("cell_")
        rows.setdefault(f"row-{grid[:2]}" if grid != name else "all", []).append(name)
    return {**_local(case), "clusters": {x: tuple(names) for x, names in rows.items()}}


def _traffic(case: Case) -> Mapping[str, Any]:
    rounds = max(1, case.rounds // 6)
    weeks = {"quasi": "weeks", "quasi_rounds": rounds, "rho": 0.1}
    return {**_local(case), **weeks, "clustering": "profiles", "cluster_count": 4}


def _nbafl(case: Case) -> Mapping[str, Any]:
    numbers = {"weights_clip_norm": CLIP, "min_samples": case.samples, "uploads": UPLOADS}
    return {**_local(case), **numbers}


def _nbafl_noise(case: Case) -> PrivacySection:
    return _paper("nbafl", CLIP, {"samples": float(case.samples), "uploads": float(UPLOADS)})


def _udp_noise(case: Case) -> PrivacySection:
    values = {"rate": RATE, "steps": float(STEPS), "rounds": float(case.rounds)}
    return _paper("udp", 1.0, {"samples": float(case.samples), **values})


def _paper(
    calibration: Literal["nbafl", "udp"], clip: float, told: Mapping[str, float]
) -> PrivacySection:
    """Return the noise on an update by a paper's calibration, which gives no privacy claim here."""
    at_update = MechanismSection(
        "gaussian",
        point="update",
        clip_norm=clip,
        epsilon=30.0,
        calibration=calibration,
        formula=told,
    )
    return PrivacySection(at_update, "paper")


def _noisy_signs(_: Case) -> PrivacySection:
    """Return the noise on DP-RSA's signs of ``z - w``, as large as the coordinate bound."""
    at_sign = MechanismSection(
        "sign_gaussian", point="sign", coordinate_bound=0.01, noise_multiplier=1.0
    )
    return PrivacySection(at_sign, "paper")


def _bafdp(case: Case) -> Mapping[str, Any]:
    tied = {**TIED, "server_rate": CALM} if case.is_timed else TIED
    return {"steps": 1, "rate": RATE, "eps_cap": case.budget or 30.0, "dual_max": DUAL, **tied}


def _defaults(case: Case) -> Mapping[str, Any]:
    return {"eps_cap": case.budget or 30.0}


def _aspire(_: Case) -> Mapping[str, Any]:
    return {"steps": 1, "rate": RATE, "optimiser": "adam", "server_rate": 0.5, "kappa": 0.1}


def _rsa(_: Case) -> Mapping[str, Any]:
    steady = {"decay": "none", "normalise": "mean"}
    return {"steps": 1, "rate": RATE, "optimiser": "adam", **steady, **TIED}


FIELD: Mapping[str, Row] = {
    "FedAvg": Row("fedavg"),
    "FedGRU": Row("fedgru", "gru", share=0.5, is_drawn=True, plain="fedavg"),
    "Fed-NTP": Row("fedntp", "lstm", share=0.5, is_drawn=True, plain="fedavg"),
    "FedAtt": Row("fedatt", "lstm"),
    "FedDA": Row("fedda", "branches", _districts),
    "FedDA, traffic": Row("fedda", "branches", _traffic),
    "AFL": Row("afl"),
    "ASPIRE-EASE": Row("aspire_ease", settings=_aspire, steps=1, share=0.5),
    "NbAFL": Row("nbafl", settings=_nbafl, privacy=_nbafl_noise),
    "UDP": Row("udp", privacy=_udp_noise),
    "BAFDP": Row("bafdp", settings=_bafdp, steps=1, share=0.5),
    "BAFDP, defaults": Row("bafdp", settings=_defaults, steps=1, share=0.5),
    "BSFDP": Row("bsfdp", settings=_bafdp, steps=1),
    "RSA": Row("rsa", settings=_rsa, steps=1),
    "DP-RSA": Row("dp_rsa", settings=_rsa, steps=1, privacy=_noisy_signs),
}
"""Every method by its name in the tables."""
