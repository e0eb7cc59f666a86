"""What a shell lends: the draw, the turns, the graphs."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

SPEC = ParamSpec.of([("w", (1,))])


class Rows:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def draw(self, rng, size):
        y = rng.choice(self.count, size, replace=False).reshape(-1, 1)
        return Batch(np.zeros((size, 1, 1), np.float32), y.astype(np.float32))


def lent(count, turns=None, seed=1, client="m"):
    rows = Rows(count)
    turn = (lambda: turns.append(1)) if turns is not None else (lambda: None)
    return TrainingContext(
        client,
        SPEC,
        {"twice": lambda p: (2 * p,)},
        lambda: rows,
        4,
        partial(keyed, seed, client),
        turn,
    )


def ys(local, number, **given):
    return [batch.y.tolist() for batch in local.batches(3, number, fresh=True, **given)]


def test_the_draw_depends_on_run_device_and_round_and_on_nothing_else():
    base = ys(lent(1000), 1)
    assert base == ys(lent(1000), 1)
    others = [ys(lent(1000), 2), ys(lent(1000, seed=2), 1), ys(lent(1000, client="n"), 1)]
    assert all(base != other for other in others)


def test_names_that_run_into_each_other_draw_differently():
    assert keyed(1, "a", "bc", 1).random() != keyed(1, "ab", "c", 1).random()


def test_the_draws_are_those_of_philox_with_the_key_of_the_names():
    """Golden: a round that is repeated after an update of the SDK draws the same minibatch."""
    key = int.from_bytes(
        hashlib.sha256(b"gridfed/1/draw\x003\0meter-1\0batch\x007").digest()[:16], "big"
    )
    drawn, plain = keyed(3, "meter-1", "batch", 7), np.random.Philox(key=key)
    assert str(drawn.bit_generator.state) == str(plain.state)
    assert drawn.integers(0, 2**63, 2).tolist() == [5886396953338233153, 6053207760176675668]


def test_the_shell_has_a_turn_between_two_batches():
    turns = []
    assert len(list(lent(9, turns).batches(4, 1, fresh=False))) == 4
    assert len(turns) == 3


def test_no_windows_no_batches():
    assert list(lent(0).batches(4, 1, fresh=True)) == []
    assert lent(0).count == 0


def test_a_graph_is_run_by_name():
    assert lent(1).run("twice", p=np.ones(1))[0].tolist() == [2.0]
