"""Tasks to one device, checked in every state of a model, and every planted fault found.

No task is learned twice, no round answered twice, nothing is said that a restart could take back,
and once faults stop the model moves on.
"""

import random
from collections import deque

import pytest

from tests.edge_sdk.protocol import task_model as model

Tasks = model.Tasks

BUDGETS = (
    {"crash": 2, "tick": 1},
    {"drop": 2, "tick": 2},
    {"replay": 2, "tick": 1},
    {"crash": 1, "drop": 1, "replay": 1, "tick": 1},
)
DEEP = 3  # rounds: beyond, a state is the same but for its numbers


def start(budget):
    return model.World(budget=tuple(sorted(budget.items())))


def explore(tasks, budget):
    """Visit every reachable state of the first rounds; return (what broke, states seen)."""
    first = start(budget)
    seen, todo = {first}, deque([first])
    while todo:
        w = todo.popleft()
        if broken := model.wrong(w) or tasks.calm(w):
            return broken, len(seen)
        if w.agg.folded >= DEEP:
            continue
        for _, after in tasks.moves(w):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return None, len(seen)


def wander(tasks, budget, walks, seed=0):
    rng, steps = random.Random(seed), 0
    for _ in range(walks):
        w = start(budget)
        for _ in range(60):
            name, w = rng.choice(tasks.moves(w))
            steps += 1
            if broken := model.wrong(w):
                return f"{broken} after {name}", steps
        if broken := tasks.calm(w):
            return broken, steps
    return None, steps


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_every_state_keeps_every_promise(budget):
    broken, states = explore(Tasks(), budget)
    assert broken is None
    assert states > 50


def test_long_walks_keep_them_too():
    everything = {"crash": 4, "drop": 6, "replay": 6, "tick": 8}
    broken, steps = wander(Tasks(), everything, walks=60)
    assert broken is None
    assert steps == 60 * 60


@pytest.mark.parametrize("fault", sorted(model.FAULTS))
def test_every_planted_fault_is_found(fault):
    found = any(explore(Tasks(fault), budget)[0] for budget in BUDGETS)
    assert found, f"{model.FAULTS[fault]}: nobody noticed"
