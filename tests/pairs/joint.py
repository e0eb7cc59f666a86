"""Split learning in one loop: real halves on both ends, and a driver in place of both shells."""

import random
from dataclasses import replace
from functools import partial

import numpy as np

from aggregator.extensions.papers.graph import Diffusion
from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.methods.base.types import BoundGraph as LentGraph
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import build
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import Closed, Due, Member, Played, Signal, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd

F, L = 2, 3
SPEC = ParamSpec.of([("encoder", (F,)), ("own", (F,)), ("graph", (F,))])
RING = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], np.float64)


def encode(p, x):
    """h[b, f, l] = e_f x[b, l]."""
    return (p[None, :F, None] * x[:, None, :, 0],)


def encode_vjp(p, x, gh):
    g = np.zeros_like(p)
    g[:F] = np.einsum("bfl,bl->f", gh, x[:, :, 0])
    return (g,)


def decode(p, h, z, y):
    """The mean square of sum_fl (a_f h + c_f z) - y, and its gradients."""
    own, graph = p[F : 2 * F], p[2 * F :]
    error = np.einsum("bfl,f->b", h, own) + np.einsum("bfl,f->b", z, graph) - y[:, 0]
    d = 2.0 * error / len(error)
    g = np.zeros_like(p)
    g[F : 2 * F] = np.einsum("b,bfl->f", d, h)
    g[2 * F :] = np.einsum("b,bfl->f", d, z)
    gh = d[:, None, None] * own[None, :, None] * np.ones_like(h)
    return np.mean(error**2), g, gh, d[:, None, None] * graph[None, :, None] * np.ones_like(z)


GRAPHS = {"encode": encode, "encode_vjp": encode_vjp, "decode": decode}


class Windows:
    """Numbered windows of one station, drawn from its name; some may be missing."""

    def __init__(self, name, kind, first=100, count=40, gaps=()):
        rng = np.random.default_rng(sum(map(ord, name)))
        self.x = rng.normal(size=(count, L, 1)).astype(kind)
        self.y = rng.normal(size=(count, 1)).astype(kind)
        self.first, self.gaps = first, frozenset(gaps)

    def __len__(self):
        return len(self.x)

    def span(self):
        return self.first, self.first + len(self.x) - 1

    def named(self, ids):
        rows = np.asarray(ids, np.int64) - self.first
        here = (rows >= 0) & (rows < len(self.x)) & ~np.isin(ids, list(self.gaps))
        return here, Batch(self.x[rows[here]], self.y[rows[here]])


def start(name, kind):
    return np.random.default_rng(len(name) + ord(name[-1])).normal(size=SPEC.size).astype(kind)


class Joint:
    """A server half with its play, and stations.

    Attributes:
        state: The server's.
        act: The play's.
        states: The stations'.
        due: The play's newest wake-up.
        closed: The rounds so far.
    """

    def __init__(self, names, *, method="pfgl", kind=np.float64, graph=None, rate=0.05, **said):
        self.kind, self.names, self.rate = kind, sorted(names), rate
        turns = {"batch": 4, "clip_factor": 0.0, "rate": 0.01, "deadline": 1.0} | said.pop(
            "turns", {}
        )
        quorum = said.pop("quorum", len(names))
        least = said.pop("least", None)
        row = SERVERS[method]
        settings = build(row.settings, {"steps": 3, "rate": rate, "turns": turns} | said, where="s")
        graph = graph or Diffusion(RING, F)
        lent = LentGraph(graph, (F, L), {name: k for k, name in enumerate(self.names)})
        rounds = Rounds(quorum=quorum, least=least, deadline=60.0)
        self.graph = graph
        self.server = row.half(Setup(bind("mean"), settings, rounds, SPEC, seed=5, graph=lent))
        self.state = self.server.init(np.zeros(SPEC.size, np.float32))
        self.act, self.due, self.closed, self.sent = None, None, [], []
        self.queue, self.updates, self.down = [], [], set()
        self.windows = {name: Windows(name, kind) for name in self.names}
        self.halves = {name: self.half(name) for name in self.names}
        self.states = {
            name: replace(self.halves[name].init(start(name, kind)), answered=1) for name in names
        }
        self.open_tasks = {}
        self.journal = []
        self.fold(OPEN)
        for name in self.names:
            self.fold(Member(name, present=True))

    def half(self, name):
        local = TrainingContext(
            name, SPEC, GRAPHS, lambda: self.windows[name], 4, partial(keyed, 0, name),
            newest=lambda: (999, self.windows[name].x[:1]),
        )  # fmt: skip
        return DEVICES["pfgl"](local, LocalSgd(optimiser=sgd, rate=self.rate))

    # --- the server's shell

    def fold(self, event):
        """Take a journalled event, and let the play follow."""
        self.journal.append(event)
        before = (self.state.round, self.state.attempt, self.state.settled)
        self.state, effects = self.server.apply(self.state, event)
        for effect in effects:
            if isinstance(effect, Closed):
                self.closed.append(effect)
            elif isinstance(effect, Task):
                self.open_tasks[effect.to] = effect
                self.queue.append(effect)
        after = (self.state.round, self.state.attempt, self.state.settled)
        if self.act is None or before != after:
            self.act = self.server.play.begin(self.state, self.act)
            self.play(Due(self.state.round, "begin"))
        elif isinstance(event, Member):
            self.act = replace(self.act, slots=self.state.slots)
            self.play(event)

    def play(self, event):
        self.act, effects = self.server.play.apply(self.act, event)
        for effect in effects:
            if isinstance(effect, Played):
                self.fold(effect)
            elif isinstance(effect, Due):
                self.due = effect
            else:
                self.queue.append(effect)

    def hear(self, signal):
        shape = signal.array.shape if signal.array.size else ()
        if self.server.play.wants(self.act, signal, shape):
            self.play(signal)

    def kill_server(self):
        """Start again from what was saved."""
        fresh = self.server.init(np.zeros(SPEC.size, np.float32))
        self.state = state_codec.rebuild(fresh, state_codec.flatten(self.state))
        self.queue, self.act = [], None
        self.fold(Due(self.state.round, "again"))

    # --- a station's shell

    def tell(self, task):
        """Let a station take a task; its answers."""
        if task.to in self.down:
            return []
        self.states[task.to], effects = self.halves[task.to].apply(self.states[task.to], task)
        return list(effects)

    def reboot(self, name):
        state = self.states[name]
        self.states[name] = type(state).from_arrays(state.arrays())
        self.queue.append(self.open_tasks[name])

    # --- both

    def run(self, rounds=1, *, rng=None, most=10_000, until=None):
        """Deliver everything, in order or shuffled, until so many rounds have closed."""
        goal = len(self.closed) + rounds
        for _ in range(most):
            if len(self.closed) >= goal or (until is not None and until(self)):
                return self
            if not self.queue:
                self.play(self.due)
                continue
            task = self.queue.pop(0)
            answers = self.tell(task)
            self.sent.append((task, answers))
            if rng is not None:
                rng.shuffle(answers)
            for answer in answers:
                self.queue_answer(answer, rng)
        raise AssertionError("no end")

    def queue_answer(self, answer, rng):
        if isinstance(answer, Update):
            self.fold(replace(answer, vector=np.asarray(answer.vector, np.float64)))
        elif isinstance(answer, Signal):
            self.hear(answer)
        if rng is not None:  # between stations order is free; one station's tasks stay in order
            lanes = {}
            for task in self.queue:
                lanes.setdefault(task.to, []).append(task)
            self.queue = []
            while lanes:
                name = rng.choice(sorted(lanes))
                self.queue.append(lanes[name].pop(0))
                if not lanes[name]:
                    del lanes[name]


def shuffled(seed):
    return random.Random(seed)
