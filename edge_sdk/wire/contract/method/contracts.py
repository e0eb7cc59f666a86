"""List the contract of every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.wire.contract.method.asks import Ask, Contract, Number, Up, answered
from edge_sdk.wire.plugin_registry import PluginRegistry

METHODS_GROUP = "gridfed.methods"
"""Entry-point group of other packages' methods (``edge_sdk.wire.contract.plugin.MethodPlugin``)."""

SERVE = "serve"
"""Name of the timer, and of the ask, for the graph's output on the newest window."""

SHARE = "share"
"""The ask for a round's answer in split learning."""

STEPS = Number("steps", 0, 65536)
RATE = Number("rate", 0.0, 1e3)
PROX = Number("prox", 0.0, 1e9)
BOUND = Number("bound", 0.0, 1e9)  # largest Euclidean norm of an answer
LOSS = Number("loss", 0.0, 3.4e38, measured=True)

WEEK_PARTS = tuple(f"week_{number:02}" for number in range(28))
"""Names of the scaled mean demand in each six-hour part of a week, in order of time."""

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
_AVERAGED = replace(
    _TRAIN,
    numbers=(
        *_TRAIN.numbers,
        Number("week", 0, 10_080),  # readings in a week, at most one a minute; 0 for none
        Number("averaged", *_FLAG),  # train on the averaged week
        Number("profile", *_FLAG),  # report the coarse week
    ),
    report=(LOSS, *(Number(name, -3.4e38, 3.4e38, measured=True) for name in WEEK_PARTS)),
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
    SHARE: Ask(numbers=(_ORDER,), perishable=True),
    SERVE: Ask(("encode",), ("z",), (_HALF, _KEPT), Up.SIGNAL, perishable=True),
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
        "fedda": {"train": _AVERAGED},
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
