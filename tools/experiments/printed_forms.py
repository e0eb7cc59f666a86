"""BAFDP's equations (17) and (18) as the paper prints them, and where they lead.

Run ``python -m tools.experiments.printed_forms``. The product has the corrected forms only: the l1
term pulls towards the consensus, and the damping of a dual is subtracted.
"""

from __future__ import annotations

import numpy as np

from edge_sdk.extensions.papers.consensus_dual import Ascent, Floats, damping, next_dual
from edge_sdk.extensions.papers.proximal_step import SIGN, l1_penalty
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import Transform, optimiser_step, sgd, stateless

ONE = ParamSpec.of([("w", (1,))])
ROUNDS = 60


def printed_l1(spec: ParamSpec, z: Vector, reach: float) -> Transform:
    """Return (18)'s subgradient step with the printed sign, which moves away from the consensus.

    >>> p = np.full(1, 0.03)
    >>> printed_l1(ONE, np.zeros(1), 0.05).update(p, {}, p)[0].round(9).tolist()
    [0.08]
    """

    def placed(moved: Vector, p: Vector) -> Vector:
        away = np.sign(spec.shared(p) - z) * moved.dtype.type(reach)
        return spec.place(moved, spec.shared(moved) + away)

    return stateless(placed)


def printed_dual(dual: Floats, z: Floats, w: Floats, fired: int, ascent: Ascent) -> Floats:
    """Return (17)'s dual with the printed sign, which adds the damping: it grows by itself.

    >>> printed_dual(np.full(1, 0.1), np.zeros(1), np.zeros(1), 0, Ascent(0.1, 0.5)).tolist()
    [0.2]
    """
    grown = ascent.rate * damping(ascent.rate, fired, ascent.least, ascent.fading)
    climbed = dual * dual.dtype.type(1.0 + grown) + (z - w) * dual.dtype.type(ascent.rate)
    bounded: Floats = np.clip(climbed, -ascent.most, ascent.most)
    return bounded


def weights(after: Transform, start: float = 0.03, rounds: int = ROUNDS) -> list[float]:
    """Return the path of one weight without a loss, near a consensus at 0."""
    p, path = np.full(1, start), [start]
    for _ in range(rounds):
        p, _state = optimiser_step(sgd(0.1), p, np.zeros(1), sgd(0.1).init(p), after)
        path.append(float(p[0]))
    return path


def duals(printed: bool, start: float = 0.01, rounds: int = ROUNDS) -> list[float]:  # noqa: FBT001
    """Return the path of a dual whose device lies at the consensus."""
    dual, still, path = np.full(1, start), np.zeros(1), [start]
    for fired in range(rounds):
        dual = (printed_dual if printed else next_dual)(dual, still, still, fired, Ascent(0.1, 0.5))
        path.append(float(dual[0]))
    return path


def main() -> None:
    """Print both equations side by side with the corrected forms."""
    paths = {
        "(18), corrected": weights(l1_penalty(ONE, np.zeros(1, np.float32), 0.05, SIGN)),
        "(18), printed": weights(printed_l1(ONE, np.zeros(1, np.float32), 0.05)),
        "(17), corrected": duals(printed=False),
        "(17), printed": duals(printed=True),
    }
    rounds = (0, 1, 5, 20, ROUNDS)
    print("rounds         " + "".join(f"{number:9}" for number in rounds))
    for name, path in paths.items():
        print(f"{name:16}" + "".join(f"{path[number]:9.3f}" for number in rounds))


if __name__ == "__main__":
    main()
