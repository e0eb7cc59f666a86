"""Both real halves, no wire: personalisation layers, as calculated by hand in the specification."""

from functools import partial

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import Closed, Due, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd


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


class Pair:
    """A server half and its devices, and a driver in the place of both shells."""

    def __init__(self, method, targets, shared=("phi",), rounds=None, **settings):
        spec = ParamSpec.of([("phi", (1,)), ("psi", (1,))], shared)
        rule, row = bind("mean"), SERVERS[method]
        rounds = rounds or Rounds(quorum=len(targets))
        self.server = row.half(Setup(rule, row.settings(**settings), rounds, spec))
        self.devices = {name: self.device(method, spec, name, t) for name, t in targets.items()}
        whole = np.zeros(spec.size, np.float32)
        self.states = {name: half.init(whole) for name, half in self.devices.items()}
        self.spec, self.closed = spec, []
        self.state, effects = self.server.apply(self.server.init(spec.shared(whole)), OPEN)
        self.tell(effects)

    def device(self, method, spec, name, target):
        graphs = {"gradient": line}
        window = Window(target)
        local = TrainingContext(name, spec, graphs, lambda: window, 64, partial(keyed, 0, name))
        return DEVICES[method](local, LocalSgd(optimiser=sgd))

    def tell(self, effects):
        for effect in effects:
            if isinstance(effect, Task):
                self.task = effect
            elif isinstance(effect, Closed):
                self.closed.append(effect)

    def answers(self, names=None):
        """Let devices train on the open task; return their updates."""
        out = []
        for name in names if names is not None else self.devices:
            self.states[name], effects = self.devices[name].apply(self.states[name], self.task)
            out += effects
        return out

    def deliver(self, updates):
        for update in updates:
            self.state, effects = self.server.apply(self.state, update)
            self.tell(effects)

    def round(self):
        self.deliver(self.answers())

    @property
    def phi(self):
        return float(self.server.model(self.state)["p"][0])

    @property
    def psi(self):
        return [float(state.p[1]) for state in self.states.values()]


@pytest.mark.parametrize(
    ("steps", "rounds"),
    [
        (1, [(0.4, [0.2, 0.6]), (0.64, [0.28, 1.0])]),
        (2, [(0.64, [0.32, 0.96]), (0.8704, [0.3328, 1.408])]),
    ],
)
def test_two_devices_share_one_layer(steps, rounds):
    pair = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=steps, rate=0.1)
    for phi, psi in rounds:
        pair.round()
        assert pair.phi == pytest.approx(phi, rel=1e-6)
        assert pair.psi == pytest.approx(psi, rel=1e-6)


def test_swapping_devices_swaps_personal_layers_only():
    straight = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=2, rate=0.1)
    crossed = Pair("fedavg", {"a": 3.0, "b": 1.0}, steps=2, rate=0.1)
    for _ in range(3):
        straight.round()
        crossed.round()
    assert straight.phi == pytest.approx(crossed.phi, rel=1e-6)
    assert straight.psi == pytest.approx(crossed.psi[::-1], rel=1e-6)


def test_a_personal_layer_does_not_depend_on_other_devices_after_one_round():
    near = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=4, rate=0.1)
    far = Pair("fedavg", {"a": 1.0, "b": -9000.0}, steps=4, rate=0.1)
    near.round()
    far.round()
    assert near.psi[0] == far.psi[0]


def test_one_gradient_step_equals_federated_averaging_of_one_step():
    sgd_pair = Pair("fedsgd", {"a": 1.0, "b": 3.0}, rate=0.1)
    avg_pair = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=1, rate=0.1)
    for _ in range(4):
        sgd_pair.round()
        avg_pair.round()
        assert sgd_pair.phi == pytest.approx(avg_pair.phi, rel=1e-6)
        assert sgd_pair.psi == pytest.approx(avg_pair.psi, rel=1e-6)


def test_a_strong_proximal_penalty_gives_a_zero_update():
    free = Pair("fedprox", {"a": 1.0, "b": 3.0}, steps=8, rate=0.01, prox=0.0)
    held = Pair("fedprox", {"a": 1.0, "b": 3.0}, steps=8, rate=0.01, prox=80.0)
    free.round()
    held.round()
    assert abs(held.phi) < 0.25 * abs(free.phi)


@pytest.mark.parametrize("method", ["fedsgd", "fedavg", "fedprox", "fedavgm", "fedadam"])
def test_every_method_reduces_the_distance_of_two_devices(method):
    settings = {"rate": 0.05} | ({} if method == "fedsgd" else {"steps": 4})
    settings |= {"fedavgm": {"beta": 0.5}, "fedadam": {"server_rate": 0.3}}.get(method, {})
    pair = Pair(method, {"a": 1.0, "b": 3.0}, **settings)
    for _ in range(60):
        pair.round()
    assert [pair.phi + psi for psi in pair.psi] == pytest.approx([1.0, 3.0], abs=0.05)


class TestFaults:
    """Whatever arrives when, the numbers are those of the devices that count."""

    def test_duplicate_and_old_updates_change_nothing(self):
        pair = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=1, rate=0.1)
        first = pair.answers()
        pair.deliver([first[0], first[0], first[1], first[0]])
        second = pair.answers()
        pair.deliver([first[1], *second, *second, *first])
        assert pair.phi == pytest.approx(0.64, rel=1e-6)
        assert [c.moved for c in pair.closed] == [True, True]

    def test_reordered_updates_give_the_same_bits(self):
        straight = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=2, rate=0.1)
        turned = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=2, rate=0.1)
        for _ in range(3):
            straight.round()
            turned.deliver(reversed(turned.answers()))
        assert straight.state.w.tobytes() == turned.state.w.tobytes()

    def test_a_round_with_too_few_updates_is_abandoned_and_the_next_one_closes(self):
        pair = Pair("fedavg", {"a": 1.0, "b": 3.0}, steps=1, rate=0.1)
        pair.deliver(pair.answers(["a"]))
        pair.deliver([Due(1, "train")])
        assert (pair.phi, pair.closed[0].moved, pair.task.round) == (0.0, False, 2)
        personal = pair.psi[0]  # what a learned for itself stays learned
        pair.round()
        assert personal == pytest.approx(0.2)
        # a starts from phi = 0, psi = 0.2: error -0.8; b from 0, 0: error -3
        assert pair.phi == pytest.approx(0.1 * 2 * (0.8 + 3.0) / 2, rel=1e-6)

    def test_a_device_may_join_later_or_leave_for_ten_rounds(self):
        rounds = Rounds(quorum=2, least=1)
        pair = Pair("fedavg", {"a": 1.0, "b": 3.0}, rounds=rounds, steps=1, rate=0.1)
        for number in range(1, 11):
            pair.deliver(pair.answers(["a"]))
            pair.deliver([Due(number, "train")])
        alone = Pair("fedavg", {"a": 1.0}, rounds=Rounds(quorum=1), steps=1, rate=0.1)
        for _ in range(10):
            alone.round()
        assert pair.state.w.tobytes() == alone.state.w.tobytes()
        pair.round()
        assert pair.closed[-1].report["cohort"] == ["a", "b"]

    def test_a_stopped_and_restarted_server_loses_no_bit(self):
        straight = Pair("fedadam", {"a": 1.0, "b": 3.0}, steps=2, rate=0.1)
        stopped = Pair("fedadam", {"a": 1.0, "b": 3.0}, steps=2, rate=0.1)
        for _ in range(5):
            straight.round()
            updates = stopped.answers()
            stopped.deliver(updates[:1])
            fresh = stopped.server.init(np.zeros(1, np.float32))
            stopped.state = state_codec.rebuild(fresh, state_codec.flatten(stopped.state))
            stopped.deliver(updates[1:])
        assert straight.state.w.tobytes() == stopped.state.w.tobytes()
        assert straight.state.moments["v"].tobytes() == stopped.state.moments["v"].tobytes()
