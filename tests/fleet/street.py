"""Devices that learn among neighbours, without a server: their files, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge_sdk import Config
from edge_sdk.app.clock import SystemClock
from edge_sdk.client import Client
from edge_sdk.extensions.peers.gossip import ADAPT, ALONE, BEGIN, MIX, exchange_parts
from edge_sdk.extensions.peers.topology import settings_of_section
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.keys import generate, save_public, save_signing_key
from edge_sdk.store.second_count import begin_counts
from firmware_sim.fleet.run_files import toml
from firmware_sim.testing.loopback import LoopbackBroker


def ring(names, reach=1):
    """Everybody's neighbours, so many to either side."""
    count, out = len(names), {name: set() for name in names}
    for i, name in enumerate(names):
        for step in range(1, reach + 1):
            out[name] |= {names[(i + step) % count], names[(i - step) % count]}
    return {name: sorted(near) for name, near in out.items()}


@dataclass
class Street:
    """Files of a neighbourhood without an aggregator."""

    folder: Path
    graph: dict[str, list[str]]
    method: str = "dfl_sgd"
    url: str = "mqtt://127.0.0.1:1"
    bundle: str = "load-mlp"
    say: dict = field(default_factory=dict)
    source: list = field(default_factory=list)

    def __post_init__(self):
        self.keys = {name: generate() for name in self.graph}
        save_public(self.folder / "root.pub", generate().public)
        for name, key in self.keys.items():
            save_signing_key(self.folder / f"{name}.key", key)
            begin_counts(self.folder / f"{name}.count", key, {})
            self.write(name)

    def path(self, name):
        return self.folder / f"{name}.toml"

    def write(self, name, near=None, **changes):
        """Write one device's configuration."""
        near = self.graph[name] if near is None else near
        numbers = (
            {"rate": 0.05, "interval": "1s", "deadline": "4s", "total_steps": 6}
            | self.say
            | changes
        )
        table = {
            "id": name,
            "fleet": "street",
            "state": name,
            "bundle": self.bundle,
            "broker": {"url": self.url, "keepalive": 10, "reconnect_max": "2s"},
            "keys": {"device": f"{name}.key", "root": "root.pub"},
            "accept": {"methods": [self.method]},
            "timeouts": {"reply": "1s"},
            "privacy": {"mechanism": {"name": "none"}},
            "neighbours": {**numbers, "keys": {one: self.keys[one].public.hex() for one in near}},
        }
        if self.source:
            table["source"] = self.source
        self.path(name).write_text(toml(table))

    def config(self, name):
        return Config.load(self.path(name))

    def by_hand(self, used, observe):
        """Return what the halves come to over the links that counted, without any wire.

        Args:
            used: By device and exchange, the neighbours that counted.
            observe: Feeds a client its readings.
        """
        clients = {}
        for name in self.graph:
            table = self.path(name).read_text().replace(f'state = "{name}"', f'state = "{name}.0"')
            (self.folder / f"{name}.0.toml").write_text(table)
            config = Config.load(self.folder / f"{name}.0.toml")
            link = LoopbackBroker().link(name)
            clients[name] = Client(config, transport=link, clock=SystemClock())
            observe(name, clients[name])
        hood = settings_of_section(
            self.config(next(iter(self.graph))).extensions["neighbours"], self.method
        )
        states = {name: client.state for name, client in clients.items()}

        def each(ask, step, arrays=lambda _: {}, turn=0):
            values = {**hood.values, "turn": float(turn)}
            for name, client in clients.items():
                told = Task(name, 1, ask, step, values=values, arrays=arrays(name))
                states[name] = client.learner.apply_perishable(states[name], told)[0]

        each(BEGIN, 0)
        for step in range(hood.total_steps):
            if step % hood.steps:
                each(ALONE, step)
                continue
            for turn, parts in enumerate(exchange_parts(self.method, hood.values)):
                each(ADAPT, step, turn=turn)
                number = step * len(exchange_parts(self.method, hood.values)) + turn
                spec = next(iter(clients.values())).learner.spec
                said = {n: {p: s.offered(spec, p) for p in parts} for n, s in states.items()}

                def heard(name, said=said, parts=parts, number=number, spec=spec):
                    near = sorted(used[name].get(number, ()))
                    degree = len(self.graph[name])
                    weights = [1 / (1 + max(degree, len(self.graph[one]))) for one in near]
                    out = {"weights": np.array(weights)}
                    for part in parts:
                        rows = [said[one][part].astype(float) for one in near]
                        out[part] = np.array(rows).reshape(len(near), spec.shared_size)
                    return out

                each(MIX, step, heard, turn)
        for client in clients.values():
            client.close()
        return {name: state.p for name, state in states.items()}
