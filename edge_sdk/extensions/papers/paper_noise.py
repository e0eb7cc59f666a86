"""Compute the noise of NbAFL and UDP for an epsilon, by the papers' own calibrations.

These are labels of noise levels and no guarantees. Both assume that one sample moves a trained
model by at most ``2 C / m`` (NbAFL) or ``2 rate steps C / N`` (UDP). That holds for one exact step
along an averaged gradient, not for local training in general. Both use the classical Gaussian bound
at epsilons for which it is false. The device's ledger records the noise that was added
(``edge_sdk.privacy``); a configuration that asks for one of these gets a warning.

Verification: of the two preprints (arXiv 1911.00222 and 2003.00229) only the abstracts were
    available, so the constants below are those of this project's specification. The code that UDP's
    first author published has the same ``sensitivity * sqrt(2 q T ln(1/delta)) / epsilon``, with
    ``2 C / N`` as the sensitivity and with *weights* clipped, tensor norms added up, where this
    project clips the update; and it discounts by 0.8 where this project's default is 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from edge_sdk.privacy import Numbers, PrivacySection
from edge_sdk.privacy.noise import Calibration
from edge_sdk.privacy.noise_calibration import Complaint


def nbafl_uplink(
    epsilon: float, delta: float, *, clip: float, samples: int, uploads: int = 1
) -> float:
    """Return the standard deviation a device adds to its clipped weights.

    ``sqrt(2 ln(1.25/delta)) * uploads * 2 clip / samples / epsilon``. It is linear in the uploads:
    the paper's composition is loose.

    Args:
        epsilon: The paper's epsilon over all uploads, above 0.
        delta: The paper's delta, between 0 and 1.
        clip: Euclidean bound of the weights.

    Raises:
        ValueError: A number outside its range; the message names it.

    >>> f"{nbafl_uplink(10.0, 1e-5, clip=1.0, samples=1000):.5e}"
    '9.68961e-04'

    Reference:
        Wei et al., Federated Learning with Differential Privacy: Algorithms and Performance
        Analysis, IEEE TIFS 2020.
    """
    _check(epsilon, delta, clip=clip, samples=samples, uploads=uploads)
    return _classical(delta) * uploads * (2.0 * clip / samples) / epsilon


def nbafl_downlink(
    epsilon: float,
    delta: float,
    *,
    clip: float,
    samples: int,
    uploads: int,
    rounds: int,
    clients: int,
) -> float:
    """Return the standard deviation a server adds to the average before it publishes it.

    ``2 c clip sqrt(T^2 - L^2 N) / (samples N epsilon)`` where the model is published more often
    than the noise of the uploads covers (``T > L sqrt(N)``), otherwise nothing.

    Args:
        epsilon: As in ``nbafl_uplink``.
        delta: As in ``nbafl_uplink``.
        clip: As in ``nbafl_uplink``.
        samples: As in ``nbafl_uplink``.

    Raises:
        ValueError: A number outside its range; the message names it.

    >>> settings = dict(clip=1.0, samples=1000, uploads=1, clients=50)
    >>> f"{nbafl_downlink(10.0, 1e-5, rounds=25, **settings):.5e}"
    '4.64697e-04'
    >>> nbafl_downlink(10.0, 1e-5, rounds=7, **settings)
    0.0
    """
    _check(epsilon, delta, clip=clip, samples=samples, uploads=uploads)
    _check(epsilon, delta, rounds=rounds, clients=clients)
    beyond = rounds**2 - uploads**2 * clients
    if beyond <= 0:
        return 0.0
    reach = 2.0 * _classical(delta) * clip * math.sqrt(beyond)
    return reach / (samples * clients * epsilon)


def udp_sensitivity(*, rate: float, steps: int, clip: float, samples: int) -> float:
    """Return ``2 rate steps clip / samples``, the assumed effect of one sample on an update.

    >>> udp_sensitivity(rate=0.01, steps=5, clip=1.0, samples=1000)
    0.0001

    Raises:
        ValueError: A number that is not above 0; the message names it.
    """
    _check(1.0, 0.5, rate=rate, steps=steps, clip=clip, samples=samples)
    return 2.0 * rate * steps * clip / samples


def udp_uplink(
    epsilon: float, delta: float, *, sensitivity: float, rounds: int, sampled: float = 1.0
) -> float:
    """Return the standard deviation a device adds to its clipped update.

    ``sensitivity * sqrt(2 sampled rounds ln(1/delta)) / epsilon``.

    Args:
        epsilon: The paper's epsilon over all rounds, above 0.
        delta: The paper's delta, between 0 and 1.
        sensitivity: As ``udp_sensitivity`` gives it.
        sampled: Share of the devices in a round. The paper credits it with less noise; only a
            secret draw could earn that, and a server's draw is not secret from the server.

    Raises:
        ValueError: A number outside its range; the message names it.

    >>> f"{udp_uplink(10.0, 1e-5, sensitivity=1e-4, rounds=25):.6e}"
    '2.399263e-04'

    Reference:
        Wei et al., User-Level Privacy-Preserving Federated Learning: Analysis and Performance
        Optimization, IEEE TMC 2022 (arXiv 2003.00229).
    """
    _check(epsilon, delta, sensitivity=sensitivity, rounds=rounds, sampled=sampled)
    if sampled > 1.0:
        raise ValueError(f"sampled: expected at most 1, got {sampled}")
    return sensitivity * math.sqrt(2.0 * sampled * rounds * math.log(1.0 / delta)) / epsilon


def _classical(delta: float) -> float:
    return math.sqrt(2.0 * math.log(1.25 / delta))


def _check(epsilon: float, delta: float, **positive: float) -> None:
    for name, value in {"epsilon": epsilon, **positive}.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name}: expected a finite number above 0, got {value}")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta: expected between 0 and 1, got {delta}")


def _formula(
    noise: Callable[[float, float, float, Numbers], float], needed: set[str], optional: set[str]
) -> Calibration:
    """Return a paper's calibration.

    Args:
        noise: From epsilon, delta, the clipping norm and the parameters, to the standard deviation.
        needed: Names of the parameters that must be set.
        optional: Names of those that may be set.
    """

    def level(section: PrivacySection) -> float:
        mechanism, delta = section.mechanism, section.budget.delta
        clip = mechanism.clip_norm or 1.0
        return noise(mechanism.epsilon or 0.0, delta, clip, mechanism.formula) / clip

    def faults(section: PrivacySection) -> Iterator[Complaint]:
        mechanism, kind = section.mechanism, section.mechanism.calibration
        if section.mode != "paper" or mechanism.point != "update":
            why = "it needs point = 'update' and mode = 'paper' (no claim)"
            yield "mechanism.calibration", f"{kind} is a paper's noise level: {why}"
        for key in sorted(needed - set(mechanism.formula)):
            yield f"mechanism.formula.{key}", f"missing; {kind} needs it"
        for key in sorted(set(mechanism.formula) - needed - optional):
            known = ", ".join(sorted(needed | optional))
            yield f"mechanism.formula.{key}", f"unknown; known: {known}"
        for key, value in mechanism.formula.items():
            if not (value > 0.0 and math.isfinite(value)):
                yield f"mechanism.formula.{key}", f"must be above 0, got {value}"
        if mechanism.epsilon is None:
            yield "mechanism.epsilon", "missing; set the paper's epsilon"
        if section.budget.epsilon is not None:
            why = f"{kind} gives no bound; remove it, and set mechanism.epsilon"
            yield "budget.epsilon", why

    return Calibration(faults=faults, level=level)


NBAFL = _formula(
    lambda epsilon, delta, clip, numbers: nbafl_uplink(
        epsilon,
        delta,
        clip=clip,
        samples=int(numbers["samples"]),
        uploads=int(numbers.get("uploads", 1)),
    ),
    {"samples"},
    {"uploads"},
)
UDP = _formula(
    lambda epsilon, delta, clip, numbers: udp_uplink(
        epsilon,
        delta,
        sensitivity=udp_sensitivity(
            rate=numbers["rate"],
            steps=int(numbers["steps"]),
            clip=clip,
            samples=int(numbers["samples"]),
        ),
        rounds=int(numbers["rounds"]),
        sampled=numbers.get("sampled", 1.0),
    ),
    {"samples", "rate", "steps", "rounds"},
    {"sampled"},
)
