"""Both real halves of a consensus method, and a driver in the place of both shells."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aggregator.methods import OPEN
from aggregator.store import state_codec
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import Closed, Due, Member, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd


class Target:
    """One window, whose target is all there is to learn."""

    def __init__(self, target):
        self.batch = Batch(np.zeros((1, 1, 1), np.float32), np.full((1, 1), target, np.float32))

    def __len__(self):
        return 1

    def draw(self, _rng, _size):
        return self.batch


def distance(p, x, y):
    """Half the squared distance of every number to the target, and its gradient."""
    error = p - y[0, 0]
    return 0.5 * float(error @ error), error


def robust_distance(p, x, y, rho):
    """The same plus rho times G = sqrt(1 + p^2), in closed form; p is one number."""
    loss, g = distance(p, x, y)
    slope = np.sqrt(1.0 + p * p)
    return loss + float(rho * slope[0]), g + rho * p / slope, slope[0]


class Fleet:
    """A server half and devices of one number each, or of as many as a layout says.

    Attributes:
        state: The server's.
        states: The devices', by name.
        tasks: What each works on.
        closed: The firings so far.
        due: The deadline that was asked for last.
    """

    def __init__(self, server, device, targets, *, spec=None, start="own", first=None, local=None):
        self.spec = spec or ParamSpec.of([("w", (1,))])
        self.first = np.zeros(self.spec.size, np.float32) if first is None else first
        self.server, self.make, self.start, self.local = server, device, start, local or self.lend
        self.halves, self.states, self.tasks = {}, {}, {}
        self.closed, self.due, self.targets = [], None, dict(targets)
        self.state = server.init(self.spec.shared(self.first))
        self.deliver(OPEN)
        for name in targets:
            self.join(name)

    def half(self, name):
        local = self.local(name, self.targets[name])
        return self.make(local, LocalSgd(optimiser=sgd, start=self.start))

    def lend(self, name, target):
        graphs = {"gradient": distance, "robust_gradient": robust_distance}
        windows = Target(target)
        return TrainingContext(name, self.spec, graphs, lambda: windows, 1, partial(keyed, 0, name))

    def join(self, name):
        if name not in self.halves:
            self.halves[name] = self.half(name)
            self.states[name] = self.halves[name].init(self.first.copy())
        self.deliver(Member(name, present=True))

    def place(self, z=None, **weights):
        """Set where consensus and devices stand."""
        if z is not None:
            self.state = replace(self.state, w=np.full(self.spec.shared_size, z, np.float64))
        for name, w in weights.items():
            p = np.full(self.spec.size, w, np.float32)
            self.states[name] = replace(self.states[name], p=p)

    def deliver(self, event):
        self.state, effects = self.server.apply(self.state, event)
        for effect in effects:
            if isinstance(effect, Task):
                self.tasks[effect.to] = effect
            elif isinstance(effect, Closed):
                self.closed.append(effect)
            elif isinstance(effect, Due):
                self.due = effect
        return effects

    def answer(self, name):
        """Let a device work on its task; its update."""
        self.states[name], (update,) = self.halves[name].apply(self.states[name], self.tasks[name])
        return update

    def activate(self, *names):
        """Let devices answer and the answers arrive, in this order."""
        for update in [self.answer(name) for name in names]:
            self.deliver(update)

    def lie(self, name, value):
        """Answer a device's task with a number of one's own."""
        task = self.tasks[name]
        honest = self.answer(name)
        vector = np.full(self.spec.shared_size, value, np.float64)
        self.deliver(replace(honest, round=task.round, base=task.base, vector=vector))

    def restart(self):
        """Stop the server and start it again from its saved leaves."""
        fresh = self.server.init(self.spec.shared(self.first))
        self.state = state_codec.rebuild(fresh, state_codec.flatten(self.state))

    def reboot(self, name):
        """Stop a device and start it again from its saved arrays."""
        state = self.states[name]
        self.states[name] = type(state).from_arrays(state.arrays())

    @property
    def z(self):
        return float(self.state.w[0])

    def w(self, name):
        return float(self.states[name].p[0])


@pytest.fixture(scope="session")
def consensus():
    """The driver's class."""
    return Fleet
