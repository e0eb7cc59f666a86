"""Define a method: two pure state machines, one per end, and the contract between them.

A half is a pure state machine; a shell (``edge_sdk.client`` on a device, ``aggregator.daemon`` on
the server) drives it and owns bytes, clocks, disks, keys and noise. A task is an effect of the
server half and an event of the device half; an update is the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.plugin_registry import PluginRegistry

METHODS_GROUP = "gridfed.methods"
"""Entry-point group of other packages' methods (``edge_sdk.wire.contract.plugin.MethodPlugin``)."""

ALL = "_all"
"""The recipient that means every client of the fleet."""

END = "end"
"""The ask by which a device's shell passes the final model ``w`` to its half after the run.

No server half sends it and no contract names it. A half that forecasts with the common model adopts
``w`` and answers nothing; one with a model of its own may leave its state unchanged.
"""

Array = NDArray[Any]
Scalars = Mapping[str, float]
NO_SCALARS: Scalars = MappingProxyType({})
NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})

S = TypeVar("S")


def _no_scalars() -> Scalars:
    return NO_SCALARS


def _no_arrays() -> Mapping[str, Array]:
    return NO_ARRAYS


@dataclass(frozen=True, slots=True)
class Task:
    """A request to one client, or to all."""

    to: str  # a client id, or ALL
    round: int  # the round it opens or continues; rises for one client
    ask: str  # the name of its kind in the contract
    step: int = 0  # the turn inside the round
    base: int = 0  # version of the model it carries
    attempt: int = 0  # how often the round was restarted
    values: Scalars = field(default_factory=_no_scalars)  # declared in the contract
    arrays: Mapping[str, Array] = field(default_factory=_no_arrays)  # declared in the contract


@dataclass(frozen=True, slots=True)
class Update:
    """A durable answer that changes the model: receipted, and counted once."""

    sender: str  # a client id; proved by the envelope, never read from the body
    round: int
    base: int  # version the training started from
    vector: Array  # shape (P,), of kind `part`; float64 once a server has admitted it
    values: Scalars = field(default_factory=_no_scalars)  # declared numbers (n, loss, …)
    check: bytes = b""  # 8 bytes of a hash of the state that both ends hold, or nothing


@dataclass(frozen=True, slots=True)
class Signal:
    """A transient answer within a deadline: not stored, not receipted."""

    sender: str
    round: int
    ask: str
    step: int
    array: Array  # of no elements where the answer has only numbers
    values: Scalars = field(default_factory=_no_scalars)
    attempt: int = 0  # how often the round was restarted


@dataclass(frozen=True, slots=True)
class Due:
    """A timer: as an effect, it starts and runs ``after`` seconds; as an event, it has expired."""

    round: int
    ask: str
    step: int = 0
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """An event: a client became present (``present``) or absent.

    It is emitted with every welcome and every reconnect, and again when the client's answer was
    refused and the model has moved since. A half that asks one client at a time answers with the
    task the client should work on now, unless its answer is already queued. A task that is still
    open may be repeated; the shell sends it once.
    """

    client: str
    present: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a round; ``moved`` is whether it produced a new version or was abandoned."""

    round: int
    version: int
    moved: bool
    report: Mapping[str, Any] = field(default_factory=dict)  # cohort, dropped, norms, why


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a round's transient turns, for the journal.

    Signals are not journalled. Their effect on the server's own parameters is recorded here, so
    that the state remains a fold over the journal.
    """

    round: int
    attempt: int
    arrays: Mapping[str, Array] = field(default_factory=_no_arrays)
    values: Scalars = field(default_factory=_no_scalars)
    record: str = ""  # participants of each turn, one line each


@dataclass(frozen=True, slots=True)
class Unlearned:
    """An event: an operator removes what a client has contributed.

    Only a half that keeps contributions apart can apply it; any other returns its very state.
    """

    client: str


Event = Task | Update | Signal | Due | Member | Played | Unlearned
Effect = Task | Update | Signal | Due | Closed | Played
Effects = tuple[Effect, ...]


class Play(NamedTuple, Generic[S]):
    """A pure state machine for the transient turns inside a round, beside a half.

    A shell drives it with events that are not journalled. It restarts from the half's state
    whenever the half opens a round, restarts one (``attempt``), or has applied ``Played``; a
    restarted process restarts it as well. Its effects are tasks, timers, and ``Played`` at the end.
    """

    begin: Callable[[S, Any], Any]  # a half's state, and the earlier result or None
    apply: Callable[[Any, Event], tuple[Any, Effects]]
    wants: Callable[[Any, Signal, tuple[int, ...]], bool]  # accept an answer by its shape
    placed: Callable[[Any, S], Any]  # the same, where the half only assigned another slot


class Half(NamedTuple, Generic[S]):
    """One end of a method: a pure state machine that a shell drives.

    ``apply`` never raises for anything a peer could have sent (the shells admit first) and never
    blocks; an exception inside it means that no state has changed. Where nothing changes it returns
    the very state it was given, which the shell then does not journal.
    """

    init: Callable[[Vector], S]
    apply: Callable[[S, Event], tuple[S, Effects]]
    model: Callable[[S], Mapping[str, Array]]  # feeds to forecast with, or to publish
    play: Play[Any] | None = None  # present where a round has transient turns


class Up(Enum):
    """The kind of vector that answers an ask; also the ``part`` of the update on the wire."""

    NOTHING = ""
    DELTA = "delta"  # received minus trained
    WEIGHTS = "weights"
    GRADIENT = "grad"
    SIGNS = "sign"
    PAIR = "pair"
    STATISTIC = "stat"  # sums of the device's windows, in the layout of ``statistic_layout``
    SOLUTION = "q"  # solution of the system whose right side is the task's vector
    PEERS = "peers"  # exchanged with neighbours; never sent to the server
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class Number:
    """A declared scalar: name and the closed range a receiver accepts."""

    name: str
    lowest: float
    highest: float
    measured: bool = False  # derived from readings: passes the privacy mechanism
    needed: bool = False  # required: a device that withholds it takes no part

    def admits(self, value: float) -> bool:
        """Return whether a value lies in the range (NaN never does).

        >>> Number("steps", 0, 64).admits(65)
        False
        """
        return bool(np.isfinite(value)) and self.lowest <= value <= self.highest


@dataclass(frozen=True, slots=True)
class Ask:
    """One kind of task: the data it carries, the graphs it runs, the answer it expects."""

    graphs: tuple[str, ...] = ()  # graphs of the bundle; both ends refuse to start without them
    down: tuple[str, ...] = ()  # arrays of the task
    numbers: tuple[Number, ...] = ()  # scalars of the task
    up: Up = Up.NOTHING
    report: tuple[Number, ...] = ()  # scalars of the answer
    personal: bool = False  # sent to one client at a time; the common model is then informational
    patient: bool = False  # an answer counts even if the model has moved since its base
    enc: str = "f4"  # tensor encoding of the answer
    mirrored: bool = False  # both ends compute with the answer: no noise is added to it
    stacked: bool = False  # the last array of ``down`` has a variable number of rows
    has_statistic: bool = False  # the answer has the layout of the bundle's statistic
    perishable: bool = False  # sent once, inside an open round; not stored, not repeated


Contract = Mapping[str, Ask]


def answered(contract: Contract) -> tuple[str, Ask]:
    """Return the first ask of a contract that is answered with an update, and its name.

    The first such ask is the one that opens a round. All of them have the same encoding, and either
    all or none are sent to one client at a time.

    >>> answered({"open": Ask(), "share": Ask(up=Up.WEIGHTS)})[0]
    'share'
    """
    if not (durable := answers(contract)):
        raise ValueError("a contract has an ask with an update")
    return next((name, ask) for name, ask in contract.items() if ask is durable[0])


def answers(contract: Contract) -> tuple[Ask, ...]:
    """Return all asks of a contract that are answered with updates; each has a part of its own.

    >>> told = answers({"train": Ask(up=Up.WEIGHTS), "ready": Ask(), "solve": Ask(up=Up.SOLUTION)})
    >>> [ask.up.value for ask in told]
    ['weights', 'q']
    """
    return tuple(ask for ask in contract.values() if ask.up not in _PERISHABLE)


_PERISHABLE = (Up.NOTHING, Up.SIGNAL)

STEPS = Number("steps", 0, 65536)
RATE = Number("rate", 0.0, 1e3)
PROX = Number("prox", 0.0, 1e9)
BOUND = Number("bound", 0.0, 1e9)  # largest Euclidean norm of an answer
LOSS = Number("loss", 0.0, 3.4e38, measured=True)

EPS = Number("eps", 0.0, 1e9, measured=True)

_FLAG = (0.0, 1.0)
_PULL = (  # local steps under an l1 penalty, and the dual's ascent, computed at both ends
    STEPS,
    RATE,
    Number("optimiser", 0, 2),  # the bundle's, plain steps, Adam
    Number("l1", 0.0, 1e9),
    Number("l1_mode", 0, 1),  # proximal step, or subgradient
    Number("jacobi", *_FLAG),  # the answer holds the weights before the step
)
_DUAL = (
    Number("cons_rate", 0.0, 1e3),
    Number("cons_max", 0.0, 3.4e38),  # left out: unbounded
    Number("kappa_min", 0.0, 1e9),
    Number("fading", 0.0, 1.0),
    Number("undamped", 0, 0),  # reserved
    Number("counted", *_FLAG),  # the previous answer was counted: both ends take the dual's step
    Number("check_every", 0, 2**31),
)
_GUARD = (  # the regulariser, its radius, and the budget that moves the radius
    Number("regulariser", *_FLAG),
    Number("eps_cap", 1e-12, 1e9),
    Number("eps_start", 1e-12, 1e9),
    Number("eps_min", 1e-12, 1e9),
    Number("eps_rate", 0.0, 1e9),
    Number("eps_dual", 0.0, 1e9),
    Number("noise", 0.0, 1e9),
    Number("noise_by_width", *_FLAG),
    Number("radius", 0.0, 1e9),
    Number("radius_level", 0.0, 1e9),
    Number("radius_tail", 1.0, 1e3),
    Number("radius_scale", 0.0, 1e9),
)
_BAFDP = Ask(
    ("gradient", "robust_gradient"),
    ("z", "dual"),  # the dual only where the two copies may differ
    (*_PULL, *_DUAL, *_GUARD),
    Up.WEIGHTS,
    (EPS, LOSS),
    personal=True,
    patient=True,
    mirrored=True,
)
_ASPIRE = Ask(
    ("gradient",),
    ("z", "dual"),
    (*_PULL, *_DUAL, PROX, Number("weight", 0.0, 1e9)),  # weight of the device's own loss
    Up.WEIGHTS,
    (replace(LOSS, needed=True),),
    personal=True,
    patient=True,
    mirrored=True,
)
_RSA = Ask(("gradient",), ("z",), _PULL, Up.WEIGHTS, (LOSS,), personal=True, patient=True)

_TRAIN = Ask(("gradient",), ("w",), (STEPS, RATE, PROX), Up.DELTA, (LOSS,))
_KEPT = Number("kept", 0, 2**31)  # round whose models had the lowest loss over the fleet
_VALIDATION = Number("validation", 0.0, 3.4e38, measured=True)
_PERSONAL = Ask(  # w is this device's own mixture; it enters only the proximal term
    ("gradient",),
    ("w",),
    (
        STEPS,
        RATE,
        PROX,
        Number("optimiser", 0, 2),  # the bundle's, plain steps, Adam
        Number("received", *_FLAG),  # start at w
        Number("fresh", *_FLAG),  # reset the optimiser's moments
        Number("choice", 0, 2),  # forecast with the last model, the device's best, the fleet's best
        _KEPT,
        Number("tune", *_FLAG),  # steps without a proximal term once the run is over
    ),
    Up.WEIGHTS,
    (LOSS, _VALIDATION),
    personal=True,
    patient=True,
)
_BOUNDED = replace(_TRAIN, numbers=(STEPS, RATE, BOUND))

_FIRST = Number("first", 0, 2**31 - 1, measured=True, needed=True)  # number of a window
_LAST = replace(_FIRST, name="last")
_HALF = Number("half", *_FLAG)  # the answer's array in float16
_ORDER = Number("order", 0, 2**31 - 1)  # sequence number of the task in this attempt
_SPLIT: Contract = {
    "train": Ask(  # opens the round; its answer is expected after the turns (``share``)
        ("encode", "decode", "encode_vjp"),
        ("w",),
        (
            PROX,
            RATE,
            Number("optimiser", 0, 2),  # the bundle's, plain steps, Adam
            Number("received", *_FLAG),  # start at w
            Number("fresh", *_FLAG),  # reset the optimiser's moments
            Number("choice", 0, 2),  # forecast with the last model, or with the fleet's best
            _KEPT,
        ),
        Up.WEIGHTS,
        (LOSS, _VALIDATION),
        personal=True,
        patient=True,
    ),
    "ready": Ask(
        numbers=(_ORDER,),
        up=Up.SIGNAL,
        report=(  # with the fleet's choice also the held-back windows, if there are any
            _FIRST,
            _LAST,
            replace(_FIRST, name="held_first", needed=False),
            replace(_FIRST, name="held_last", needed=False),
        ),
        perishable=True,
    ),
    "encode": Ask(
        ("encode",),
        ("ids",),
        (
            _ORDER,
            _HALF,
            Number("frozen", *_FLAG),  # the device takes no step afterwards
            Number("held", *_FLAG),  # held-back windows; ``judge`` follows
        ),
        Up.SIGNAL,
        perishable=True,
    ),
    "decode": Ask(("decode",), ("z",), (_ORDER, _HALF), Up.SIGNAL, (LOSS,), perishable=True),
    "keep": Ask((), ("z",), (_ORDER, _HALF), perishable=True),
    "judge": Ask(("decode",), ("z",), (_ORDER, _HALF), perishable=True),
    "finish": Ask(  # without its array: the device takes the step alone
        ("encode_vjp",), ("hgrad",), (_ORDER, _HALF), perishable=True
    ),
    "local": Ask(numbers=(_ORDER, STEPS, Number("batch", 1, 65536)), perishable=True),
    "share": Ask(numbers=(_ORDER,), perishable=True),
    "serve": Ask(("encode",), ("z",), (_HALF, _KEPT), Up.SIGNAL, perishable=True),
}
"""Split learning. A device may also send ``ready`` and ``serve`` unasked."""

_LEANING = (  # terms added to a device's loss
    Number("smooth", 0.0, 1e9),
    Number("ridge", 0.0, 1e9),
    Number("own", 0.0, 1.0),  # coefficient of the device's own model
)
_BILEVEL: Contract = {
    "train": Ask(
        ("gradient",),
        ("c", "phi"),  # weighted sum of the neighbours' models; the map, left out for the identity
        (
            STEPS,
            RATE,
            Number("optimiser", 0, 2),  # the bundle's, plain steps, Adam
            *_LEANING,
            Number("form", 0, 3),  # form of the map: identity, diagonal, low rank, a block
            Number("begin", 0, 2**31),  # first index of the block
            Number("side", 0, 65536),  # side of the block
        ),
        Up.WEIGHTS,
        (LOSS,),
        personal=True,
        patient=True,
        stacked=True,
    ),
    "solve": Ask(  # (H + damping) q = p
        ("hvp",),
        ("p",),
        (
            *_LEANING,
            Number("of", 0, 2**31),  # round whose answer is the model at which H is taken
            Number("solver", 0, 1),  # conjugate gradients, a Neumann series
            Number("iterations", 1, 1000),
            Number("damping", 0.0, 1e9),
            Number("tolerance", 0.0, 1.0),
            Number("step", 0.0, 1e9),  # step of the series; left out, the device estimates one
            Number("curvature", 1e-9, 1e9),  # divisor of p where the curvature is negative
            Number("batches", 1, 64),  # number of minibatches that H is averaged over
        ),
        Up.SOLUTION,
        personal=True,
        patient=True,
    ),
}

_AMONG = Ask(  # the task also names the neighbours
    ("gradient",),
    numbers=(
        STEPS,  # local steps between two exchanges
        RATE,
        Number("fading", *_FLAG),  # divide the rate by the square root of the step's number
        Number("order", *_FLAG),  # step and mix together, or step first
        Number("every", 0.0, 1e9),
        Number("deadline", 0.0, 1e9),
        Number("last", 1, 2**31),
    ),
    up=Up.PEERS,
    personal=True,
    mirrored=True,
)
_DOUBTING = (
    Number("insist", *_FLAG),  # wait for a neighbour's message without a time limit
    Number("robust", 0, 2),  # plain, clipped, trimmed mean
    Number("radius", 1e-12, 1e12),
    Number("trim", 0, 24),
)


def _contract_of(_name: str, plugin: Any) -> Contract:  # noqa: ANN401 - a foreign object
    contract = getattr(plugin, "contract", None)
    if not isinstance(contract, Mapping):
        raise TypeError(f"expected a MethodPlugin, got {type(plugin).__name__}")
    answered(contract)
    return contract


CONTRACTS: PluginRegistry[Contract] = PluginRegistry(
    {
        "fedsgd": {
            "train": Ask(("gradient",), ("w",), (RATE,), Up.GRADIENT, (LOSS,)),
        },
        "fedavg": {"train": _TRAIN},
        "fedprox": {"train": _TRAIN},
        "fedavgm": {"train": _TRAIN},
        "fedadam": {"train": _TRAIN},
        "fedasync": {"train": replace(_TRAIN, up=Up.WEIGHTS, personal=True, patient=True)},
        "fedbuff": {"train": replace(_TRAIN, personal=True, patient=True)},
        "afl": {"train": replace(_TRAIN, report=(replace(LOSS, needed=True),))},
        "fedatt": {"train": _TRAIN},
        "fedda": {"train": _TRAIN},
        "fedgru": {"train": _TRAIN},
        "fedntp": {"train": _TRAIN},
        "nbafl": {"train": replace(_BOUNDED, up=Up.WEIGHTS)},
        "udp": {"train": _BOUNDED},
        "fesem": {"train": replace(_TRAIN, up=Up.WEIGHTS, personal=True, patient=True)},
        "dfl_sgd": {"begin": replace(_AMONG, numbers=(*_AMONG.numbers, *_DOUBTING))},
        "dfl_gt": {"begin": _AMONG},
        "pfl": {"train": _PERSONAL},
        "bigfl": _BILEVEL,
        "pfgl": _SPLIT,
        "cnfgnn": _SPLIT,
        "lstm_cnn_fedavg": _SPLIT,
        "lstm_cnn_pfl": _SPLIT,
        "bafdp": {"step": _BAFDP},
        "bsfdp": {"step": _BAFDP},
        "aspire_ease": {"step": _ASPIRE},
        "rsa": {"step": replace(_RSA, up=Up.SIGNS, enc="b2")},
        "rsa_weights": {"step": _RSA},
        "analytic": {
            "train": Ask(
                ("statistic",),
                ("w",),
                (Number("weighted", *_FLAG),),  # weigh windows by the residuals under w
                Up.STATISTIC,
                (LOSS,),
                personal=True,
                patient=True,
                has_statistic=True,
            )
        },
        "dp_rsa": {"step": replace(_RSA, up=Up.SIGNS, enc="b1")},
    },
    METHODS_GROUP,
    _contract_of,
)
"""Every method's asks; the two ``METHODS`` of device and aggregator have the same keys."""
