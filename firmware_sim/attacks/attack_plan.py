"""Attack on a fleet: its Byzantine devices, its options and its start, and the devices' roles."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk import Client
from edge_sdk.app.schema import Between
from edge_sdk.app.settings import Duration, seconds
from firmware_sim.attacks import ATTACKS, BoundAttack, bind, protocol
from firmware_sim.attacks.byzantine_client import TamperingLink, byzantine_client
from firmware_sim.attacks.byzantine_halves import ByzantineHalves, recorded
from firmware_sim.attacks.coalition import Coalition

Make = Callable[..., Client]  # makes a client from its configuration, ``transport=`` and ``clock=``


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """Settings of one attack on one run."""

    attack: str  # a name that ``gridfed-sim attacks`` lists
    # fraction of Byzantine devices, rounded down; at least one is
    byzantine: Annotated[float, Between(0.0, 1.0)] = 0.2
    options: Mapping[str, Any] = field(default_factory=dict)
    start_round: Annotated[int, Between(1, 2**31)] = 1  # round before which the devices are honest
    # the ``first`` ids are Byzantine, or a draw with ``seed``
    selection: Literal["first", "seeded"] = "first"
    seed: int = 0  # seed of that draw, and of the attacks' draws
    colluding: bool = False  # true if all Byzantine devices of a round send one vector
    # seconds that an omniscient device waits for the honest updates of a round
    timeout: Duration = "5s"

    def __post_init__(self) -> None:
        """Refuse a start round for link attacks, which cannot observe rounds."""
        kind = ATTACKS[self.attack].kind if self.attack in ATTACKS else None
        if self.start_round > 1 and kind in {"link", "twin"}:
            raise ValueError(
                f"start_round: must be 1 for {self.attack}, which cannot observe rounds"
            )

    @property
    def bound(self) -> BoundAttack:
        return bind(self.attack, {key: str(value) for key, value in self.options.items()})

    @property
    def is_silenced(self) -> bool:
        """Return True if Byzantine updates never arrive or are refused: no round waits for them."""
        attack = self.bound.attack
        return attack.kind in {"body", "twin"} or attack.name == "empty_payload"

    def count(self, devices: int) -> int:
        """Return the number of Byzantine devices.

        >>> [AttackPlan("flipping", share).count(10) for share in (0.0, 0.05, 0.3, 0.39)]
        [0, 1, 3, 3]
        """
        if self.byzantine <= 0:
            return 0
        return max(1, math.floor(self.byzantine * devices + 1e-9))

    def share(self, devices: int) -> float:
        """Return the fraction of Byzantine devices, from their whole number.

        >>> AttackPlan("flipping", 0.3).share(8)
        0.25
        """
        return self.count(devices) / devices if devices else self.byzantine

    def malicious(self, ids: Sequence[str]) -> frozenset[str]:
        """Return the ids of the Byzantine devices, fixed for the whole run.

        >>> sorted(AttackPlan("flipping", 0.5).malicious(["d", "b", "a", "c"]))
        ['a', 'b']
        """
        known = sorted(ids)
        if self.selection == "seeded":
            known = random.Random(self.seed).sample(known, len(known))  # noqa: S311 - reproducible
        return frozenset(known[: self.count(len(ids))])


@dataclass(frozen=True, slots=True)
class AttackRole:
    """Role of one device."""

    make: Make = Client
    # Wraps its link in one that tampers with messages
    around: Callable[[Any], Any] = lambda link: link
    clones: tuple[str, ...] = ()  # names under which further processes claim its identity


HONEST = AttackRole()


@dataclass(frozen=True, slots=True)
class AttackRoles:
    """Roles of all devices under one attack."""

    plan: AttackPlan
    bound: BoundAttack
    coalition: Coalition  # shared knowledge of the Byzantine devices

    @classmethod
    def of(cls, plan: AttackPlan, ids: Sequence[str], clock: Callable[[], float]) -> AttackRoles:
        """Return the roles of devices under an attack; raise UnknownAttack if it, or an option, does not exist."""
        byzantine = plan.malicious(ids)
        patience = seconds(plan.timeout)
        coalition = Coalition(frozenset(ids) - byzantine, byzantine, patience, clock)
        return cls(plan, plan.bound, coalition)

    def role(self, device: str) -> AttackRole:
        """Return the role of a device: a plain client if it is honest."""
        if not self.coalition.byzantine:
            return HONEST
        if device not in self.coalition.byzantine:
            is_recorded = self.bound.attack.is_omniscient
            recorder = partial(Client, methods=recorded(self.coalition, device))
            return AttackRole(recorder) if is_recorded else HONEST
        match self.bound.attack.kind:
            case "link":
                return AttackRole(around=self._tampering(device))
            case "twin":
                names = protocol.twin([device])
                return AttackRole(clones=tuple(name for _, name in names))
        return AttackRole(partial(byzantine_client, attacker=self._attacker(device)))

    def _attacker(self, device: str) -> ByzantineHalves:
        return ByzantineHalves(
            device,
            self.bound,
            self.coalition,
            start_round=self.plan.start_round,
            is_colluding=self.plan.colluding,
            seed=self.plan.seed,
        )

    def _tampering(self, device: str) -> Callable[[Any], Any]:
        number = sorted(self.coalition.byzantine).index(device)
        rng = np.random.default_rng([self.plan.seed, number])
        return partial(TamperingLink, bound=self.bound, clock=self.coalition.clock, rng=rng)
