"""Registry of attacks. A new attack is one function and one line here.

For simulations only: neither the device package nor the aggregator imports this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from edge_sdk.app.extensions import PluginRegistry, instance_of
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol.contract.method import Up
from firmware_sim.attacks import data, model, protocol
from firmware_sim.attacks.attack_context import AttackContext, Row, Space, in_space

__all__ = ["ATTACKS", "Attack", "BoundAttack", "Kind", "UnknownAttack", "bind", "options_of"]

Kind = Literal["model", "data", "signal", "body", "link", "twin"]
"""Target of an attack: the update, the readings, an activation, the signed body, the link, or the
identity."""

KINDS: Mapping[Kind, str] = MappingProxyType(
    {
        "model": "the update, between training and upload",
        "data": "the readings, before training, in the device's own unit interval",
        "signal": "activations and their gradients (split learning)",
        "body": "the signed body of an update",
        "link": "the link to the broker",
        "twin": "the identity of a device",
    }
)

SPACES: Mapping[str, Space] = MappingProxyType(
    {"sent": "sent", "weights": "weights", "update": "update"}
)


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the threat models."""

    name: str  # name on a command line
    kind: Kind  # target, which fixes the signature of ``act``
    act: Callable[..., Any]  # the pure function; its keyword-only parameters are its options
    definition: str
    space: Space = "sent"  # space of a model attack by default (``target=``)
    is_omniscient: bool = False  # true if it receives the honest updates of the round
    labels_only: bool = False  # true if a data attack leaves the inputs unchanged

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the options and their defaults; None is a number that follows from the run."""
        known = inspect.signature(self.act).parameters.values()
        return {p.name: p.default for p in known if p.kind is inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True, slots=True)
class BoundAttack:
    """An attack with its options filled in."""

    attack: Attack
    act: Callable[..., Any]
    space: Space  # space in which a model attack computes
    # true if the space was configured, and is not only the attack's default
    is_chosen: bool = False

    def on(self, part: Up) -> Callable[[AttackContext], Row]:
        """Return a model attack on updates of one kind.

        Where an update has no weights (signs, gradients), an attack whose default is weights
        computes on the vector as it is sent.

        Raises:
            ValueError: The configured space cannot be derived from such an update.

        >>> import numpy as np
        >>> scene = AttackContext.alone(np.array([1.0]), np.array([5.0]))
        >>> bind("flipping").on(Up.DELTA)(scene), bind("flipping").on(Up.SIGNS)(scene)
        (array([9.]), array([-1.]))
        """
        try:
            return in_space(self.space, part, self.act)
        except ValueError:
            if self.is_chosen:
                raise
            return self.act


class UnknownAttack(Failure):
    """An attack or option that does not exist, or a value that does not fit it."""

    exit_code = USAGE


_ROWS = (
    Attack("flipping", "model", model.flipping, "w <- -w", "weights"),
    Attack("scaling", "model", model.scaling, "w <- factor * w", "weights"),
    Attack("gaussian", "model", model.gaussian, "w <- N(0, variance I)", "weights"),
    Attack("constant", "model", model.constant, "w <- value in every coordinate", "weights"),
    Attack("alie", "model", model.alie, "mean - z * std of the honest updates", is_omniscient=True),
    Attack("ipm", "model", model.ipm, "-epsilon * mean of the honest updates", is_omniscient=True),
    Attack("mimic", "model", model.mimic, "a copy of one honest update", is_omniscient=True),
    Attack(
        "near_copy",
        "model",
        model.near_copy,
        "(1 + drift) * one honest device's weights",
        "weights",
        is_omniscient=True,
    ),
    Attack(
        "free_rider",
        "model",
        model.free_rider,
        "w received + N(0, deviation^2); by default the last change of the model",
        "weights",
    ),
    Attack("replay", "model", model.replay, "its own update of some rounds ago, with a new header"),
    Attack("label_flip", "data", data.label_flip, "y <- max + min - y", labels_only=True),
    Attack("fdi_bias", "data", data.bias, "y <- y + by"),
    Attack("fdi_ramp", "data", data.ramp, "y <- y + by * t / T"),
    Attack("fdi_scale", "data", data.scale, "y <- factor * y"),
    Attack("fdi_outage", "data", data.outage, "y <- 0 on one block at a random place"),
    Attack("signal_flip", "signal", protocol.flip_signal, "s <- -s, for activations and gradients"),
    Attack(
        "signal_scale",
        "signal",
        protocol.scale_signal,
        "s <- factor * s, for activations and gradients",
    ),
    Attack("samples", "body", protocol.samples, "claims a number of training samples"),
    Attack("nan", "body", protocol.not_a_number, "a vector of NaN"),
    Attack("huge", "body", protocol.huge, "a vector of 1e38"),
    Attack("wrong_size", "body", protocol.wrong_size, "more scalars than the layout has"),
    Attack(
        "wrong_version",
        "body",
        protocol.wrong_version,
        "claims a base version that does not exist yet",
    ),
    Attack("empty_vector", "body", protocol.empty_vector, "a header without its vector"),
    Attack("delay", "link", protocol.delay, "delays every upload"),
    Attack("drop", "link", protocol.drop, "loses a share of the messages"),
    Attack("duplicate", "link", protocol.duplicate, "sends every message several times"),
    Attack("reorder", "link", protocol.reorder, "delays messages so that later ones arrive first"),
    Attack(
        "empty_payload",
        "link",
        protocol.empty_payload,
        "publishes an empty payload in place of an upload",
    ),
    Attack("twin", "twin", protocol.twin, "two devices with one id and one key"),
)

# entry-point group of other packages' attacks: the name on a command line, and an ``Attack``
GROUP = "gridfed.attacks"
# every attack by its name on a command line
ATTACKS: PluginRegistry[Attack] = PluginRegistry(
    {row.name: row for row in _ROWS}, GROUP, instance_of(Attack)
)


def bind(name: str, options: Mapping[str, str] = MappingProxyType({})) -> BoundAttack:
    """Return the named attack with its options filled in from text.

    Args:
        name: A key of ``ATTACKS``.
        options: Options as text; every model attack accepts ``target``.

    >>> import numpy as np
    >>> bind("scaling", {"factor": "-4"}).act(AttackContext.alone(np.array([1.0]))).tolist()
    [-4.0]
    >>> bind("nan", {"factr": "3"})
    Traceback (most recent call last):
    firmware_sim.attacks.UnknownAttack: attack 'nan': unknown option 'factr'; known: none
    """
    if name not in ATTACKS:
        raise UnknownAttack(f"unknown attack {name!r}; known: {', '.join(ATTACKS.names())}")
    attack, given = ATTACKS[name], dict(options)
    known = (*attack.options, *(("target",) if attack.kind == "model" else ()))
    target = given.pop("target", attack.space) if "target" in known else attack.space
    if target not in SPACES:
        raise UnknownAttack(f"attack {name!r}: target: {', '.join(SPACES)}; got {target!r}")
    for key in given:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise UnknownAttack(f"attack {name!r}: unknown option {key!r}; known: {listed}")
    values = {key: _number(attack, key, text) for key, text in given.items()}
    return BoundAttack(attack, partial(attack.act, **values), SPACES[target], "target" in options)


def options_of(attack: Attack) -> str:
    """Return an attack's options and defaults as text; empty where it has none.

    >>> options_of(ATTACKS["alie"]), options_of(ATTACKS["nan"])
    ('; z=auto floor=0.3 ddof=1', '')
    """
    parts = (f"{k}={'auto' if v is None else f'{v:g}'}" for k, v in attack.options.items())
    text = " ".join(parts)
    return f"; {text}" if text else ""


def _number(attack: Attack, key: str, text: str) -> float:
    try:
        return int(text) if isinstance(attack.options[key], int) else float(text)
    except ValueError:
        raise UnknownAttack(
            f"attack {attack.name!r}: {key}: expected a number, got {text!r}"
        ) from None
