"""NbAFL and UDP: averaging of clipped and noisy updates, by the papers' calibration.

The device's mechanism adds the noise of an upload and records its privacy cost. The server adds
NbAFL's noise to the published model and shortens UDP's plan. Both name noise levels, not
guarantees: see ``edge_sdk.extensions.papers.paper_noise``.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.averaging import Averaged, averaging
from aggregator.methods.base.round_machine import Averaging, Claims, Rounds
from aggregator.methods.base.types import Count, Length, Method, Rate, Setup, Steps, task
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.extensions.papers.paper_noise import nbafl_downlink
from edge_sdk.protocol.contract.method import Half
from edge_sdk.shared_math.fedavg import server_sgd
from edge_sdk.shared_math.optim import IDENTITY, State, Transform

Vector64 = NDArray[np.float64]
Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class NbAFL:
    """Devices clip their weights and add noise; the server adds noise where theirs is too small."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    # Euclidean norm to which a device clips its weights (the paper's C)
    weights_clip_norm: Length = 20.0
    # the paper's epsilon, for the noise of the downlink
    epsilon: Annotated[float, Between(1e-3, 1e6)] = 30.0
    delta: Annotated[float, Between(1e-12, 0.5)] = 1e-5  # the paper's delta
    # smallest sample count of any device, as configured by the operator (the paper's m)
    min_samples: Count = 1000
    uploads: Count = 1  # number of uploads of one device (the paper's L)
    downlink_noise: bool = True  # true if the server adds its noise
    renamed: ClassVar[Mapping[str, str]] = {
        "bound_weights": "weights_clip_norm",
        "samples": "min_samples",
        "downlink": "downlink_noise",
    }

    def bound(self, rounds: Rounds) -> Averaging:
        values = task(self.steps, self.rate, bound=self.weights_clip_norm)
        return Averaging(server_sgd(1.0), rounds, values, weights=True)

    def sigma(self, rounds: Rounds) -> float:
        """Return the noise that is added to every published model."""
        if not self.downlink_noise or rounds.limit is None:
            return 0.0
        return nbafl_downlink(
            self.epsilon,
            self.delta,
            clip=self.weights_clip_norm,
            samples=self.min_samples,
            uploads=self.uploads,
            rounds=rounds.limit,
            clients=rounds.quorum,
        )


@dataclass(frozen=True, slots=True)
class UDP:
    """Devices clip their update and add noise calibrated for a planned number of rounds."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    server_rate: Rate = 1.0  # step length of the server
    # Euclidean norm to which a device clips its update (the paper's C)
    update_clip_norm: Length = 1.0
    # true discounts the plan: after a round without a lower loss, fewer rounds are left. A device's
    # noise is calibrated before the run and stays; a shorter run spends less budget.
    crd: bool = False
    discount_factor: Annotated[float, Between(0.01, 1.0)] = 0.9  # factor of the discount
    renamed: ClassVar[Mapping[str, str]] = {
        "bound_update": "update_clip_norm",
        "factor": "discount_factor",
    }

    def bound(self, rounds: Rounds) -> Averaging:
        values = task(self.steps, self.rate, bound=self.update_clip_norm)
        scheme = Discounted(rounds, self.discount_factor) if self.crd else None
        return Averaging(server_sgd(self.server_rate), rounds, values, scheme)


def nbafl(setup: Setup, entropy: Entropy = os.urandom) -> Half[Averaged]:
    """Return NbAFL's server half.

    Args:
        entropy: Source of the secret of the downlink's noise, read once a run.

    Raises:
        SchemaError: No planned number of rounds, on which the downlink's noise depends.
    """
    settings: NbAFL = setup.settings
    if settings.downlink_noise and setup.rounds.limit is None:
        raise SchemaError("run.rounds", "missing; the noise of the downlink depends on it")
    bound = settings.bound(setup.rounds)
    sigma = settings.sigma(setup.rounds)
    noisy = replace(bound, after=replayable_noise(sigma, entropy))
    return averaging(setup.rule, noisy, setup.add_row)


def udp(setup: Setup) -> Half[Averaged]:
    """Return UDP's server half; raise SchemaError for a discounted plan without a planned number of rounds."""
    if setup.settings.crd and setup.rounds.limit is None:
        raise SchemaError("run.rounds", "missing; run.settings.crd discounts it")
    return averaging(setup.rule, setup.settings.bound(setup.rounds), setup.add_row)


def replayable_noise(sigma: float, entropy: Entropy) -> Transform:
    """Return a transform that adds Gaussian noise to every model.

    The noise comes from a secret that the operating system gives once and the state keeps: a
    journal that is replayed, or a model that is announced again, has the same bits. With ``sigma``
    0 nothing is added and nothing kept.

    >>> noise, w = replayable_noise(0.5, lambda size: bytes(size)), np.zeros(2)
    >>> one, after = noise.update(w, noise.init(w), w)
    >>> again, _ = noise.update(w, noise.init(w), w)
    >>> other, _ = noise.update(w, after, w)
    >>> bool((one == again).all()), bool((one == other).any())
    (True, False)
    """
    if sigma == 0.0:
        return IDENTITY

    def init(_w: Vector64) -> State:
        secret = np.frombuffer(entropy(SECRET_BYTES), np.uint8).astype(np.float64)
        return {"secret": secret, "draws": np.zeros(1)}

    def update(w: Vector64, state: State, _before: Vector64) -> tuple[Vector64, State]:
        secret = state["secret"].astype(np.uint8).tobytes()
        noisy = w + sigma * normal(secret, int(state["draws"][0]), len(w))
        return noisy, {"secret": state["secret"], "draws": state["draws"] + 1.0}

    return Transform(init, update)


@dataclass(frozen=True, slots=True)
class Discounted(Claims):
    """Communication-rounds discounting: a plan that is shortened where the loss does not fall.

    The loss is the median of the reported ones; a Byzantine majority could end a run early, and has
    no other effect. The first author's published code discounts by ``ceil(factor * plan)`` after
    every round whose mean loss is not below that of the round before; so does this, from the second
    round on. Where no loss is reported (a device with a mechanism at its updates reports none) the
    plan stays.
    """

    factor: float

    def keep(self, state: Averaged, w: Vector64) -> Mapping[str, Any]:
        """Return the plan, and the loss to compare with the next."""
        del w
        plan = float(state.kept.get("plan", np.array(self.rounds.limit or math.inf)))
        before = float(state.kept.get("loss", np.array(math.inf)))
        losses = [state.losses[name] for name in sorted(state.losses)]
        loss = float(np.median(losses)) if losses else before
        if losses and before < math.inf and loss >= before:
            plan = max(math.ceil(self.factor * plan), state.version + 1)
        return {"plan": np.array(plan), "loss": np.array(loss)}

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        return version >= float(kept["plan"])


NBAFL = Method(NbAFL, nbafl, is_stepped=True)
UDP_METHOD = Method(UDP, udp, is_stepped=True)


SECRET_BYTES = 32


def normal(secret: bytes, number: int, size: int) -> NDArray[np.float64]:
    """Return the ``number``-th draw of ``size`` standard normal numbers under a secret.

    SHAKE-256 of secret and number, made normal by Box and Muller in pairs. Without the secret the
    noise is unpredictable; with it (it is in the saved state) the same bits are drawn again, so
    that a journal that is replayed gives the same model.

    Args:
        secret: ``SECRET_BYTES`` bytes of ``os.urandom``, kept with the state.
        number: Number of the draw; never the same twice for different purposes.

    >>> first, again = (normal(bytes(32), 7, 3) for _ in range(2))
    >>> bool((first == again).all()), bool((first == normal(bytes(32), 8, 3)).any())
    (True, False)
    """
    pairs = (size + 1) // 2
    text = b"gridfed/1/noise\0" + secret + number.to_bytes(8, "big")
    raw = np.frombuffer(hashlib.shake_256(text).digest(16 * pairs), ">u8")
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
    angle = 2.0 * np.pi * uniform[pairs:]
    both = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    return both[:size]
