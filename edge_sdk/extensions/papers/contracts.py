"""Define the papers' methods: the contract of each, and the references to its two halves."""

from __future__ import annotations

from dataclasses import replace

from edge_sdk.protocol.contract.method import (
    CONTRACTS,
    LOSS,
    PROX,
    RATE,
    SERVE,
    STEPS,
    Ask,
    Contract,
    Number,
    Up,
)
from edge_sdk.protocol.contract.plugin import MethodPlugin

TRAIN = CONTRACTS["fedavg"]["train"]

SHARE = "share"
"""The ask for a round's answer in split learning."""

BOUND = Number("bound", 0.0, 1e9)  # largest Euclidean norm of an answer
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
    TRAIN,
    numbers=(
        *TRAIN.numbers,
        Number("week", 0, 10_080),  # readings in a week, at most one a minute; 0 for none
        Number("averaged", *_FLAG),  # train on the averaged week
        Number("profile", *_FLAG),  # report the coarse week
    ),
    report=(LOSS, *(Number(name, -3.4e38, 3.4e38, measured=True) for name in WEEK_PARTS)),
)
_BOUNDED = replace(TRAIN, numbers=(STEPS, RATE, BOUND))

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


def _plugin(contract: Contract, server: str, device: str = "") -> MethodPlugin:
    half = f"edge_sdk.extensions.papers.{device}" if device else "edge_sdk.methods.local_sgd:fedavg"
    return MethodPlugin(contract, half, f"aggregator.extensions.papers.{server}")


FEDASYNC = MethodPlugin(
    {"train": replace(TRAIN, up=Up.WEIGHTS, personal=True, patient=True)},
    "edge_sdk.extensions.papers.bounded_answers:whole_weights",
    "aggregator.methods.asynchronous:FEDASYNC",
)
CACHED = _plugin(
    {"train": replace(TRAIN, numbers=(STEPS, RATE), personal=True, patient=True)},
    "averaging.cached:METHOD",
)
WORKER_MOMENTUM = _plugin(
    {"train": replace(TRAIN, numbers=(STEPS, RATE, Number("beta", *_FLAG)))},
    "averaging.worker_momentum:METHOD",
    "worker_momentum:worker_momentum",
)
AFL = _plugin(
    {"train": replace(TRAIN, report=(replace(LOSS, needed=True),))}, "averaging.afl:METHOD"
)
FEDATT = _plugin({"train": TRAIN}, "averaging.fedatt:METHOD")
FEDDA = _plugin({"train": _AVERAGED}, "clustered.fedda:METHOD", "averaged_week:fedda")
FEDGRU = _plugin({"train": TRAIN}, "averaging.fedgru:FEDGRU")
FEDNTP = _plugin({"train": TRAIN}, "averaging.fedgru:FEDNTP")
NBAFL = _plugin(
    {"train": replace(_BOUNDED, up=Up.WEIGHTS)},
    "averaging.dp_averaging:NBAFL",
    "bounded_answers:bounded_weights",
)
UDP = _plugin(
    {"train": _BOUNDED}, "averaging.dp_averaging:UDP_METHOD", "bounded_answers:bounded_difference"
)
FESEM = _plugin(
    {"train": replace(TRAIN, up=Up.WEIGHTS, personal=True, patient=True)},
    "clustered.fesem:METHOD",
    "fesem:fesem_half",
)
IFCA = _plugin(
    {
        "train": replace(
            TRAIN,
            down=("centres",),
            numbers=(STEPS, RATE),
            up=Up.WEIGHTS,
            report=(LOSS, Number("cluster", 0, 255, measured=True, needed=True)),
            personal=True,
            patient=True,
            stacked=True,
        )
    },
    "clustered.ifca:METHOD",
    "ifca:ifca_half",
)
PFL = _plugin({"train": _PERSONAL}, "personalised.pfl:METHOD", "pfl:pfl_half")
DITTO = _plugin(
    {
        "train": replace(
            TRAIN,
            numbers=(STEPS, RATE, Number("own_steps", 0, 65536), Number("pull", 0.0, 1e9)),
        )
    },
    "personalised.personal_copy:DITTO",
    "personal_copy:ditto",
)
APFL = _plugin(
    {
        "train": replace(
            TRAIN, numbers=(STEPS, RATE, Number("share", *_FLAG), Number("share_rate", 0.0, 1e3))
        )
    },
    "personalised.personal_copy:APFL",
    "personal_copy:apfl",
)
FEDREP = _plugin(
    {"train": replace(TRAIN, numbers=(STEPS, RATE, Number("head_steps", 0, 65536)))},
    "personalised.personal_copy:FEDREP",
    "personal_copy:fedrep",
)
FEDBABU = _plugin(
    {"train": replace(TRAIN, numbers=(STEPS, RATE, Number("tune_steps", 0, 65536)))},
    "personalised.personal_copy:FEDBABU",
    "personal_copy:fedbabu",
)
BIGFL = _plugin(_BILEVEL, "bilevel.bigfl:METHOD", "bilevel:bilevel_half")
PFGL = _plugin(_SPLIT, "split.pfgl:PFGL_METHOD", "split.split:split_half")
CNFGNN = _plugin(_SPLIT, "split.pfgl:CNFGNN", "split.split:split_half")
LSTM_CNN_FEDAVG = _plugin(_SPLIT, "split.pfgl:LSTM_CNN_FEDAVG", "split.split:split_half")
LSTM_CNN_PFL = _plugin(_SPLIT, "split.pfgl:LSTM_CNN_PFL", "split.split:split_half")
BAFDP = _plugin({"step": _BAFDP}, "consensus.rsa_bafdp:BAFDP", "consensus:consensus_half")
BSFDP = _plugin({"step": _BAFDP}, "consensus.rsa_bafdp:BSFDP", "consensus:consensus_half")
ASPIRE_EASE = _plugin({"step": _ASPIRE}, "consensus.aspire:METHOD", "consensus:consensus_half")
RSA = _plugin(
    {"step": replace(_RSA, up=Up.SIGNS, enc="b2")},
    "consensus.rsa_bafdp:RSA",
    "consensus:signs_half",
)
RSA_WEIGHTS = _plugin({"step": _RSA}, "consensus.rsa_bafdp:RSA_WEIGHTS", "consensus:consensus_half")
DP_RSA = _plugin(
    {"step": replace(_RSA, up=Up.SIGNS, enc="b1")},
    "consensus.rsa_bafdp:DP_RSA",
    "consensus:difference_half",
)
