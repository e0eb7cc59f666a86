"""Check that device halves and attacks of other packages keep the interface's promises."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.methods import METHODS
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, Graph, TrainingContext, keyed
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd
from firmware_sim.attacks import ATTACKS, bind
from firmware_sim.attacks.attack_context import AttackContext, sendable
from tests.plugins.promises import Checks, NotCheckedError, require

SPEC = ParamSpec.of([("body", (6,)), ("head", (2,))], ("body",))
DEVICE = "meter-1"
STEPS = 3  # largest number of steps that a check asks for, so that it takes no minutes
ROUNDS = 12
Floats = NDArray[np.float32]


class _LinearWindows:
    """Windows whose batches are drawn from a generator; none if the count is 0."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        n = min(size, self._count)
        x = rng.normal(size=(n, 1, SPEC.size)).astype(np.float32)
        return Batch(x, x.sum(axis=(1, 2)).astype(np.float32)[:, None])

    def span(self) -> tuple[int, int] | None:
        return (1, self._count) if self._count else None

    def named(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Batch]:
        there = (ids >= 1) & (ids <= self._count)
        return there, self.draw(np.random.default_rng(7), int(there.sum()))


def _least_squares(p: Floats, x: Floats, y: Floats) -> tuple[Any, ...]:
    error = x[:, 0] @ p - y[:, 0]
    return np.float32(np.mean(error**2)), (2 * x[:, 0].T @ error / len(x)).astype(np.float32)


def _not_finite(p: Floats, x: Floats, y: Floats) -> tuple[Any, ...]:
    del x, y
    return np.float32(np.nan), np.full_like(p, np.inf)


def _half(name: str, *, windows: int = 40, gradient: Graph = _least_squares) -> method.Half[Any]:
    needed = {graph for ask in method.CONTRACTS[name].values() for graph in ask.graphs}
    if missing := sorted(needed - {"gradient"}):
        raise NotCheckedError(f"its device half runs {', '.join(missing)}; only a fleet has them")
    found = _LinearWindows(windows)
    local = TrainingContext(
        DEVICE, SPEC, {"gradient": gradient}, lambda: found, 8, partial(keyed, 0, DEVICE)
    )
    return METHODS[name](local, LocalSgd(optimiser=sgd, rate=1e-2, steps=2))


def _value(number: method.Number, choice: str, rng: np.random.Generator) -> float:
    most = min(number.highest, STEPS) if number.name == "steps" else number.highest
    if choice == "lowest":
        return number.lowest
    if choice == "highest":
        return most
    return float(np.clip(rng.exponential(), number.lowest, most))


def _tasks(ask: str, asked: method.Ask) -> Iterator[method.Task]:
    rng = np.random.default_rng(3)
    for at in range(1, ROUNDS + 1):
        choice = ("absent", "lowest", "highest", "drawn")[at % 4]
        numbers = () if choice == "absent" else asked.numbers
        scale = (0.0, 1.0, 1e-3, 1e30)[at // 4 % 4]
        yield method.Task(
            DEVICE,
            at,
            ask,
            base=at - 1,
            values={one.name: _value(one, choice, rng) for one in numbers},
            arrays={
                name: (rng.normal(size=SPEC.shared_size) * scale).astype(np.float32)
                for name in asked.down
            },
        )


def device_checks(name: str) -> Checks:
    """Return the checks of a method's device half, by their property."""
    return {
        "answers with updates that its contract declares": partial(_answers, name),
        "continues from its saved state with the same bits": partial(_resumes, name),
        "answers nothing without windows": partial(_silent, name, {"windows": 0}),
        "sends no number that is not finite": partial(_silent, name, {"gradient": _not_finite}),
        "adopts the final model and answers nothing": partial(_ends, name),
        "returns the same state for an event that is not its own": partial(_ignores, name),
    }


def _run(
    half: method.Half[Any], name: str, through: Callable[[Any], Any] = lambda state: state
) -> Iterator[tuple[Any, method.Task, tuple[Any, ...]]]:
    state = half.init(np.zeros(SPEC.size, np.float32))
    with np.errstate(all="ignore"):
        for ask, asked in method.CONTRACTS[name].items():
            for task in _tasks(ask, asked):
                state, effects = half.apply(through(state), task)
                yield state, task, effects


def _answers(name: str) -> None:
    answers = 0
    for _, task, effects in _run(_half(name), name):
        ask = method.CONTRACTS[name][task.ask]
        numbers = {number.name: number for number in ask.report}
        for update in (one for one in effects if isinstance(one, method.Update)):
            answers += 1
            size = (SPEC.shared_size,)
            require(update.vector.shape == size, f"a vector of shape {update.vector.shape}")
            require(update.sender == DEVICE, f"sender {update.sender!r}, expected local.client")
            require(update.round == task.round, f"round {update.round} for round {task.round}")
            require(update.base == task.base, f"base {update.base} for base {task.base}")
            for key, value in update.values.items():
                require(key == "n" or key in numbers, f"reports {key!r}, which is not declared")
                admitted = key == "n" or numbers[key].admits(value)
                require(admitted, f"reports {key}={value:g}, outside its range")
            missing = [n.name for n in ask.report if n.needed and n.name not in update.values]
            require(not missing, f"does not report {', '.join(missing)}, which is needed")
    if method.answered(method.CONTRACTS[name])[1].up is method.Up.PEERS:
        raise NotCheckedError("its updates go to neighbours")
    require(answers, f"no answer to {ROUNDS} tasks")


def _resumes(name: str) -> None:
    half = _half(name)

    def saved(state: Any) -> Any:
        return type(state).from_arrays({key: a.copy() for key, a in state.arrays().items()})

    pairs = zip(_run(half, name), _run(_half(name), name, saved), strict=True)
    for (one, task, effects), (two, _, again) in pairs:
        same = one.arrays().keys() == two.arrays().keys() and all(
            np.array_equal(a, two.arrays()[key], equal_nan=True) for key, a in one.arrays().items()
        )
        require(same, f"the state differs after round {task.round}")
        vectors = [
            [u.vector for u in some if isinstance(u, method.Update)] for some in (effects, again)
        ]
        equal = len(vectors[0]) == len(vectors[1]) and all(map(np.array_equal, *vectors))
        require(equal, f"the answer differs in round {task.round}")


def _silent(name: str, case: Mapping[str, Any]) -> None:
    for _, task, effects in _run(_half(name, **case), name):
        for update in (one for one in effects if isinstance(one, method.Update)):
            if "gradient" not in case:
                require(condition=False, problem=f"an update without windows, round {task.round}")
            numbers = [*map(float, update.values.values())]
            require(np.isfinite(numbers).all(), f"reports {dict(update.values)}")
            require(np.isfinite(update.vector).all(), "an update with NaN or infinity")


def _ends(name: str) -> None:
    half = _half(name)
    w = np.arange(SPEC.shared_size, dtype=np.float32)
    task = method.Task(DEVICE, 99, method.END, base=9, arrays={"w": w})
    state, effects = half.apply(half.init(np.zeros(SPEC.size, np.float32)), task)
    require(not effects, f"effects at the end of a run: {effects}")
    p = half.model(state)["p"]
    require(p.shape == (SPEC.size,), f"model p has the shape {p.shape}, expected {(SPEC.size,)}")


def _ignores(name: str) -> None:
    half = _half(name)
    state = half.init(np.zeros(SPEC.size, np.float32))
    for event in (method.Due(1, "none"), method.Task(DEVICE, 1, "none")):
        after, effects = half.apply(state, event)
        require(after is state and not effects, f"{event} changed something")


def attack_checks(name: str) -> Checks:
    """Return the checks of an attack, by their property."""
    return {
        "has options that are numbers": partial(_options, name),
        "returns a vector that can be sent": partial(_vector, name),
        "gives the same bits for the same context": partial(_repeats, name),
    }


def _options(name: str) -> None:
    attack = ATTACKS[name]
    require(attack.name == name, f"its name is {attack.name!r}, its entry point's {name!r}")
    for key, default in attack.options.items():
        is_number = default is None or isinstance(default, (int, float))
        require(is_number, f"option {key}: default {default!r} is no number")
        require(default is not inspect.Parameter.empty, f"option {key} has no default")


def _context() -> AttackContext:
    rng = np.random.default_rng(5)
    honest = rng.normal(size=(4, SPEC.shared_size))
    context = AttackContext.among(honest)
    return replace(context, own=honest[0], rng=np.random.default_rng(6))


def _acted(name: str) -> NDArray[np.float64]:
    bound = bind(name)
    if bound.attack.kind != "model":
        raise NotCheckedError(f"an attack on {bound.attack.kind} has no vector")
    row: NDArray[np.float64] = bound.act(_context())
    return row


def _vector(name: str) -> None:
    row = _acted(name)
    require(row.shape == (SPEC.shared_size,), f"shape {row.shape}")
    require(np.isfinite(sendable(row)).all(), f"{row}")


def _repeats(name: str) -> None:
    require(np.array_equal(_acted(name), _acted(name)), "a second call returned other bits")
