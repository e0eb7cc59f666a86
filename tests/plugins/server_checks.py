"""Check that rules and server halves of other packages keep the promises of the interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.rules import RULES, BoundRule, Rows, TooFewRows, UnknownRuleError, bind
from aggregator.rules.parameters import uniform
from aggregator.store.state_codec import digest, flatten, rebuild
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from tests.plugins.promises import Checks, NotCheckedError, require

SPEC = ParamSpec.of([("body", (6,)), ("head", (2,))], ("body",))
CLIENTS = ("ash", "birch", "elm", "fir", "oak")
EVENTS = 300
QUORUM = 3
WIDTH = 8
LARGE = 1e30
Vector64 = NDArray[np.float64]


def rule_checks(name: str, settings: Mapping[str, Any]) -> Checks:
    """Return the checks of a rule, by their property."""
    return {
        "is built from its parameters": partial(_rule, name, settings),
        "returns the row that all clients sent": partial(_unanimous, name, settings),
        "gives the same bits for the same rows": partial(_repeated, name, settings),
        "is finite for large, equal and zero rows": partial(_hostile, name, settings),
        "refuses fewer rows than it needs": partial(_too_few, name, settings),
        "bounds the effect of f Byzantine rows": partial(_withstood, name, settings),
    }


def _rule(name: str, settings: Mapping[str, Any], **more: Any) -> BoundRule:
    try:
        return bind(name, **{**settings, **more})
    except UnknownRuleError as error:
        if error.key == "f" and "missing" in error.why:
            return _rule(name, settings, **{**more, "f": 1})
        if "missing" in error.why:
            why = f"the rule needs {error.key}; pass --setting {name}.{error.key}=VALUE"
            raise NotCheckedError(why) from error
        raise


def _rows(vectors: Vector64) -> Rows:
    return Rows.of({f"client-{i:03}": row for i, row in enumerate(vectors)})


def _verdict(rule: BoundRule, vectors: Vector64) -> Vector64:
    value: Vector64 = rule(_rows(vectors), uniform(len(vectors))).value
    return value


def _unanimous(name: str, settings: Mapping[str, Any]) -> None:
    rule = _rule(name, settings)
    row = np.linspace(-3.0, 5.0, WIDTH)
    value = _verdict(rule, np.tile(row, (rule.least + 2, 1)))
    require(value.shape == row.shape, f"shape {value.shape}, expected {row.shape}")
    require(np.allclose(value, row, rtol=1e-6, atol=1e-9), f"{value} for equal rows of {row}")


def _repeated(name: str, settings: Mapping[str, Any]) -> None:
    rule = _rule(name, settings)
    vectors = np.random.default_rng(0).normal(size=(rule.least + 3, WIDTH))
    rows, shares = _rows(vectors), uniform(len(vectors))
    one, two = rule(rows, shares).value, rule(rows, shares).value
    require(np.array_equal(rows.block(0, WIDTH), vectors), "the rows were changed in place")
    require(np.array_equal(one, two), "a second call returned other bits")


@np.errstate(all="ignore")
def _hostile(name: str, settings: Mapping[str, Any]) -> None:
    rule = _rule(name, settings)
    rows = rule.least + 2
    drawn = np.random.default_rng(1).normal(size=(rows, WIDTH))
    signs = np.where(np.arange(rows)[:, None] % 2, LARGE, -LARGE)
    cases = {
        "zero rows": np.zeros((rows, WIDTH)),
        "equal rows": np.ones((rows, WIDTH)),
        f"rows of {LARGE:g}": signs * np.ones((1, WIDTH)),
        "tiny rows": drawn * 1e-30,
        "one large row": np.vstack([drawn[:-1], np.full((1, WIDTH), LARGE)]),
    }
    for case, vectors in cases.items():
        try:
            value = _verdict(rule, vectors)
        except TooFewRows:
            continue
        require(np.isfinite(value).all(), f"{case}: {value}")


def _too_few(name: str, settings: Mapping[str, Any]) -> None:
    rule = _rule(name, settings)
    if rule.least < 2:
        return
    try:
        _verdict(rule, np.ones((rule.least - 1, WIDTH)))
    except TooFewRows:
        return
    require(condition=False, problem=f"{rule.least - 1} rows were accepted, it needs {rule.least}")


def _withstood(name: str, settings: Mapping[str, Any]) -> None:
    if not RULES[name].withstands:
        raise NotCheckedError("the rule declares withstands=False")
    f = int(settings.get("f", 1))
    rule = _rule(name, settings, f=f)
    honest = np.random.default_rng(2).normal(size=(max(rule.least, 4 * f + 4) - f, WIDTH))
    radius = float(np.linalg.norm(honest, axis=1).max())
    for size in (10.0, 1e6, 1e20):
        value = _verdict(rule, np.vstack([honest, np.full((f, WIDTH), size)]))
        length = float(np.linalg.norm(value))
        require(
            length <= 2.0 * radius,
            f"{f} rows of {size:g}: the result has a norm of {length:.3g}, the longest honest row "
            f"of {radius:.3g}",
        )


def method_checks(name: str, settings: Mapping[str, Any]) -> Checks:
    """Return the checks of a method's server half, by their property."""
    return {
        "has a contract that both ends can check": partial(_contract, name),
        "has settings with defaults": partial(_half, name, settings),
        "sends only what its contract declares": partial(_walked, name, settings, "tasks"),
        "continues from its saved state with the same bits": partial(
            _walked, name, settings, "replay"
        ),
        "leaves the state it was given unchanged": partial(_walked, name, settings, "pure"),
        "keeps a finite model": partial(_walked, name, settings, "finite"),
        "returns the same state for an event of another round": partial(_ignored, name, settings),
        "moves the model": partial(_walked, name, settings, "moves"),
    }


def _contract(name: str) -> None:
    contract = method.CONTRACTS[name]
    _, ask = method.answered(contract)
    settings = METHODS[name].settings()
    require(
        not ask.patient or hasattr(settings, "max_staleness"),
        "its ask is patient, so its settings need max_staleness",
    )
    for one, asked in contract.items():
        names = [number.name for number in (*asked.numbers, *asked.report)]
        require("n" not in names, f"ask {one!r}: the number n is the count of windows")
        for number in (*asked.numbers, *asked.report):
            require(number.lowest <= number.highest, f"{one}.{number.name}: empty range")


def _half(name: str, settings: Mapping[str, Any]) -> method.Half[Any]:
    made = METHODS[name]
    given = made.settings(**settings)
    for quorum in (QUORUM, 1):
        try:
            return made.half(Setup(bind("mean"), given, Rounds(quorum=quorum, limit=EVENTS), SPEC))
        except SchemaError as misfit:
            problem = misfit
    if problem.path.startswith("run."):  # a graph, a bundle, a file: only a fleet has it
        raise NotCheckedError(f"the half needs more than a small linear model: {problem}")
    raise problem


def _events(contract: method.Contract, course: Any, rng: np.random.Generator) -> method.Event:
    _, ask = method.answered(contract)
    client = str(rng.choice(CLIENTS))
    kind = rng.integers(10)
    if kind == 0:
        return method.Member(client, present=bool(rng.integers(4)))
    if kind == 1:
        return method.Due(int(course.round), method.answered(contract)[0])
    scale = float(rng.choice([0.0, 1e-3, 1.0, 1e30]))
    vector = rng.normal(size=SPEC.shared_size) * scale
    late = int(rng.choice([0, 0, 0, 1]))
    values = {n.name: _between(n.lowest, n.highest, rng) for n in ask.report}
    values["n"] = float(rng.integers(1, 1000))
    base = max(0, int(course.version) - late)
    return method.Update(client, max(1, int(course.round) - late), base, vector, values)


def _between(lowest: float, highest: float, rng: np.random.Generator) -> float:
    return float(np.clip(rng.normal() + 2.0, lowest, highest))


def _walk(
    half: method.Half[Any],
    contract: method.Contract,
    state: Any,
) -> Iterator[tuple[Any, method.Event, Any, method.Effects]]:
    rng = np.random.default_rng(7)
    events: list[method.Event] = [method.Member(name, present=True) for name in CLIENTS]
    for event in (*events, OPEN):
        after, effects = half.apply(state, event)
        yield state, event, after, effects
        state = after
    for _ in range(EVENTS):
        event = _events(contract, state, rng)
        after, effects = half.apply(state, event)
        yield state, event, after, effects
        state = after


@np.errstate(all="ignore")
def _walked(name: str, settings: Mapping[str, Any], what: str) -> None:
    half, contract = _half(name, settings), method.CONTRACTS[name]
    first = half.init(np.zeros(SPEC.shared_size, np.float32))
    saved, version = first, 0
    for before, event, after, effects in _walk(half, contract, first):
        version = int(after.version)
        if what == "tasks":
            for task in (one for one in effects if isinstance(one, method.Task)):
                _declared(contract, task)
        elif what == "replay":
            saved, _ = half.apply(rebuild(first, flatten(saved)), event)
            require(digest(saved) == digest(after), f"the states differ after {event!r:.120}")
        elif what == "pure":
            kept = digest(before)
            half.apply(before, event)
            require(digest(before) == kept, f"apply changed its argument at {event!r:.120}")
        elif what == "finite":
            p = half.model(after)["p"]
            require(p.shape == (SPEC.shared_size,), f"model p has the shape {p.shape}")
            require(np.isfinite(p).all(), f"after {event!r:.120}: {p}")
    if what == "moves":
        if method.answered(contract)[1].up is method.Up.PEERS:
            raise NotCheckedError("its devices exchange models with neighbours")
        require(version > 0, f"no version after {EVENTS} events of {len(CLIENTS)} clients")


def _declared(contract: method.Contract, task: method.Task) -> None:
    require(task.ask in contract, f"ask {task.ask!r} is not in the contract")
    ask = contract[task.ask]
    numbers = {number.name: number for number in ask.numbers}
    for key, value in task.values.items():
        require(key in numbers, f"{task.ask}.{key} is not declared")
        require(numbers[key].admits(value), f"{task.ask}.{key}={value:g} is out of its range")
    for key, array in task.arrays.items():
        require(key in ask.down, f"{task.ask}: array {key!r} is not declared")
        require(np.isfinite(array).all(), f"{task.ask}: array {key!r} is not finite")
        require(array.dtype == np.float32, f"{task.ask}: array {key!r} is {array.dtype}")
        is_whole = array.shape[-1:] == (SPEC.shared_size,)
        require(is_whole, f"{task.ask}: array {key!r} has the shape {array.shape}")
    require(
        ask.personal == (task.to in CLIENTS), f"{task.ask}: personal={ask.personal}, to {task.to}"
    )


def _ignored(name: str, settings: Mapping[str, Any]) -> None:
    half = _half(name, settings)
    state, _ = half.apply(half.init(np.zeros(SPEC.shared_size, np.float32)), OPEN)
    for event in (
        method.Due(10**6, method.answered(method.CONTRACTS[name])[0]),
        method.Due(10**6, "none"),
    ):
        after, effects = half.apply(state, event)
        require(after is state and not effects, f"{event} changed something")
