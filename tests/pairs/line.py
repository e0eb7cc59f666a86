"""The smallest device: one window, and a model that is a shared number plus a personal one."""

from functools import partial

import numpy as np

from edge_sdk.methods import METHODS
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd

SPEC = ParamSpec.of([("phi", (1,)), ("psi", (1,))], ("phi",))


class Window:
    """One window, the target its only number."""

    def __init__(self, target):
        self.batch = Batch(np.ones((1, 1, 1), np.float32), np.full((1, 1), target, np.float32))

    def __len__(self):
        return 1

    def draw(self, _rng, _size):
        return self.batch


def line(p, x, y):
    """Squared error of shared * x + personal, with x = 1, and its gradient."""
    error = p.sum() * x[:, 0, 0] - y[:, 0]
    return np.float32((error**2).mean()), np.full(p.size, 2 * error.mean(), np.float32)


def device(method, name, target):
    """The real device half of a method, around one target."""
    window = Window(target)
    local = TrainingContext(
        name, SPEC, {"gradient": line}, lambda: window, 64, partial(keyed, 0, name)
    )
    return METHODS[method](local, LocalSgd(optimiser=sgd))
