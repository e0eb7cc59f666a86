"""Everything a device sends has a row in docs/privacy.md, and what a row says is so.

The rows about values are judged by what a claim about noised readings means: two devices that read
different values, and whose readings have the same noised values, send the same bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import edge_sdk
from edge_sdk.app.settings import from_table
from edge_sdk.bundle import Bundle as OpenBundle
from edge_sdk.bundle import TrustedKeys
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.peers.gossip import ADAPT, BEGIN, MIX, exchange_parts
from edge_sdk.forecasting.series import Reading, SeriesRow
from edge_sdk.link.transport import Message
from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy.noise_calibration import DeviceFacts
from edge_sdk.privacy.validation import plan_of, refuse_method
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import CONTRACTS, END, Due, Signal, Task, Up, Update
from edge_sdk.protocol.envelope import unproved
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from tests.edge_sdk.conftest import DEVICE, DEVICE_KEY

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "privacy.md").read_text("utf-8")
SECTION = PAGE.split("## Everything a device sends")[1].split("\n## ")[0]
POINTS = ("input", "gradient", "statistic", "update", "sign")
MECHANISMS = {
    "input": {"name": "gaussian", "point": "input", "range": [0.0, 5.0]},
    "gradient": {
        "name": "gaussian", "point": "gradient", "clip_norm": 1.0, "noise_multiplier": 300.0,
        "range": [0.0, 5.0],
    },
    "statistic": {
        "name": "gaussian", "point": "statistic", "clip_norm": 1.0, "noise_multiplier": 60.0,
        "range": [0.0, 5.0],
    },
    "update": {"name": "gaussian", "point": "update", "clip_norm": 1.0, "noise_multiplier": 20.0},
    "sign": {"name": "sign_gaussian", "point": "sign", "clip_norm": 1.0, "noise_multiplier": 20.0},
}  # fmt: skip


@dataclass(frozen=True)
class FieldRow:
    """Some fields of a message, and what covers them."""

    kind: str
    fields: tuple[str, ...]
    covered_by: str

    def __str__(self):
        return f"{self.kind}-{self.fields[0]}"


@dataclass(frozen=True)
class AnswerRow:
    """An answer of some methods, its numbers, and the points where it is covered."""

    methods: tuple[str, ...]
    ask: str
    part: str
    numbers: tuple[str, ...]
    points: tuple[str, ...]

    def __str__(self):
        return f"{self.methods[0]}-{self.ask}"


def words(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


def tables():
    """Yield the cells of every row, by the head of its table."""
    head = ""
    for line in SECTION.splitlines():
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line
        elif not line.startswith("| ---"):
            yield head, [cell.strip() for cell in line.strip("|").split("|")]


FIELDS = [
    FieldRow(words(kind)[0], words(names), words(by)[0])
    for head, (kind, names, _, by) in (r for r in tables() if len(r[1]) == 4)
    if head.startswith("| message")
]
ANSWERS = [
    AnswerRow(words(who), words(ask)[0], words(part)[0], words(numbers), tuple(points))
    for head, (who, ask, part, numbers, *points) in (r for r in tables() if len(r[1]) == 9)
    if head.startswith("| method")
]


FROM_DEVICES = {kind for kind, cls in m.KINDS.items() if cls.from_device}


# --- a row for everything, and nothing for nothing ----------------------------------------------


def test_every_field_of_every_message_kind_has_one_row():
    said = Counter((row.kind, name) for row in FIELDS for name in row.fields)
    there = {(kind, f.name) for kind in FROM_DEVICES for f in fields(m.KINDS[kind])}
    assert set(said) == there, set(said) ^ there
    assert set(said.values()) == {1}
    assert {row.covered_by for row in FIELDS} == {
        "mechanism",
        "public",
        "process",
        "opt-in",
    }


def test_every_update_of_every_method_has_one_row():
    said = Counter((name, row.ask) for row in ANSWERS for name in row.methods)
    there = {
        (name, ask)
        for name, contract in CONTRACTS.items()
        for ask, told in contract.items()
        if told.up is not Up.NOTHING
    }
    assert set(said) == there, set(said) ^ there
    assert set(said.values()) == {1}


def test_the_protocol_page_gives_devices_these_kinds():
    page = (Path(codec.__file__).parent / "PROTOCOL.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `gf/1/F/D/")]
    cells = [row.split("|")[3] for row in rows if "device D" in row]
    named = {kind for cell in cells for said in words(cell) for kind in said.split()}
    assert named & m.KINDS.keys() == FROM_DEVICES


@pytest.mark.parametrize("kind", sorted(m.KINDS.keys() - FROM_DEVICES))
def test_a_device_sends_no_other_message_kind(kind):
    post = SignedLink(DEVICE_KEY, fleet="north", device=DEVICE)
    message = object.__new__(m.KINDS[kind])
    for say in (post.sealed, post.send, lambda said: post.send_sealed(said.kind, b"", bytes(72))):
        with pytest.raises(ValueError, match=f"must not send '{kind}'"):
            say(message)


# --- the points where a method is covered -------------------------------------------------------


@pytest.fixture(scope="module")
def plans():
    found = {}
    for point, mechanism in MECHANISMS.items():
        name = "load-analytic" if point == "statistic" else "cells-mlp-1"
        manifest = OpenBundle.open(name, trust=TrustedKeys()).manifest
        facts = DeviceFacts(manifest, keep=17_568, max_steps=4, shared=4673)
        found[point] = plan_of(section(mechanism), facts)
    return found


def section(mechanism, mode="honest"):
    table = {"mechanism": mechanism, "mode": mode}
    table |= {"budget": {"epsilon": 50.0}} if mode == "honest" else {}
    return from_table(PrivacySection, table, "privacy")


@pytest.mark.parametrize("row", ANSWERS, ids=str)
def test_each_update_is_covered_or_its_method_is_refused(row, plans):
    for name in row.methods:
        ask = CONTRACTS[name][row.ask]
        assert row.part == ask.up.value
        assert row.numbers == tuple(number.name for number in ask.report)
        found = []
        for point in POINTS:
            try:
                refuse_method(plans[point], name, CONTRACTS[name])
            except ConfigError:
                found.append("refused")
            else:
                found.append("covered")
        assert tuple(found) == row.points


# --- the same noised readings, the same bytes: by method -----------------------------------------


PERISHABLE = {name for name, contract in CONTRACTS.items() if "encode" in contract}
SIGNS_ONLY = {"dp_rsa"}
HOURS, BEGIN_AT = 24 * 14, 1_700_000_000 // 3600 * 3600
NUMBERS = {
    "steps": 2.0, "rate": 0.05, "prox": 0.1, "bound": 1.0, "choice": 2.0, "regulariser": 1.0,
    "eps_start": 1.0, "eps_cap": 9.0, "eps_rate": 0.1, "noise": 0.1, "radius": 0.1, "l1": 0.01,
    "check_every": 1.0, "cons_rate": 0.1, "counted": 1.0, "smooth": 0.1, "ridge": 0.1, "own": 0.5,
    "of": 1.0, "iterations": 3.0, "damping": 1.0, "batches": 1.0, "weight": 1.0,
    "own_steps": 2.0, "pull": 0.1, "share": 0.5, "share_rate": 0.01, "head_steps": 2.0, "beta": 0.5,
    "tune_steps": 2.0,
}  # fmt: skip


def values(seed):
    return np.random.default_rng(seed).uniform(0.5, 4.5, HOURS).tolist()


def bundle_for(method):
    if method == "analytic":
        return "load-analytic"
    return "chargers-1" if method in PERISHABLE else "cells-mlp-1"


def learner_of(folder, method, seed, mechanism, known=()):
    """Make what a device learns with, from its configuration, with readings and their noise."""
    table = {
        "id": "meter-1", "fleet": "north", "state": str(folder),
        "bundle": bundle_for(method),
        "broker": {"url": "mqtt://127.0.0.1:1"},
        "keys": {"device": "meter.key", "root": "root.pub"},
        "accept": {"methods": [method]}, "training": {"holdout_fraction": 0.2},
        "privacy": {"mechanism": {"name": "none"}},
    }  # fmt: skip
    config = from_table(Config, table, "meter.toml")
    config = replace(config, privacy=mechanism)
    store = DeviceStore.open(folder)
    bundle = OpenBundle.open(config.bundle, trust=TrustedKeys())
    learner = bootstrap.set_up(config, store, bundle, None)
    if known:
        store.add_noised(known, learner.mechanism.plan.charge(count=len(known)))
    stream = learner.manifest.target.stream
    for hour, value in enumerate(values(seed)):
        learner.observe(Reading(stream, BEGIN_AT + 3600.0 * hour, value), np.inf)
    return learner, store


def said_of(effects, learner):
    """Return what leaves of some effects, as it leaves."""
    for effect in effects:
        if isinstance(effect, Update):
            update = learner.mechanism.release(effect)
            yield update.vector.tobytes(), dict(update.values), update.check
        elif isinstance(effect, Signal):
            array = np.asarray(effect.array)
            asked_for = (effect.round, effect.ask, effect.step, effect.attempt, array.shape)
            yield array.tobytes(), dict(effect.values), asked_for


def asked(method, ask, **more):
    """Ask as a server does: with every number that the contract names and we care for."""
    numbers = {n.name for n in CONTRACTS[method][ask].numbers}
    chosen = {name: value for name, value in NUMBERS.items() if name in numbers}
    return Task("meter-1", more.pop("round", 1), ask, base=1, values=chosen, **more)


def answers(learner, method):
    """Ask a device everything that its method's server may; return by ask what left."""
    out, state, spec = {}, learner.first_state(), learner.spec
    w = spec.shared(learner.bundle.initial)
    if method in PERISHABLE:
        return split(learner, method, state, w)
    if "begin" in CONTRACTS[method]:
        return {"begin": exchanged(learner, method, state)}
    opens = next(iter(CONTRACTS[method]))
    arrays = {"w": w, "z": w, "c": w, "centres": w, "dual": np.zeros_like(w)}
    down = {k: v for k, v in arrays.items() if k in CONTRACTS[method][opens].down}
    for number in (1, 2):
        state, effects = learner.learn(state, asked(method, opens, round=number, arrays=down))
        out.setdefault(opens, []).extend(said_of(effects, learner))
    if "solve" in CONTRACTS[method]:
        task = asked(method, "solve", round=3, arrays={"p": np.full_like(w, 0.01)})
        task = replace(task, values={**task.values, "of": 2.0})
        out["solve"] = list(said_of(learner.learn(state, task)[1], learner))
    state, effects = learner.learn(state, Task("meter-1", 9, END, base=9, arrays={"w": w}))
    assert not effects
    return out


def exchanged(learner, method, state):
    """Offer what a neighbour is told in two exchanges."""
    out, numbers = [], {"rate": 0.05}
    state = learner.apply_perishable(state, Task("meter-1", 1, BEGIN, values=numbers))[0]
    for step in range(2):
        for turn, parts in enumerate(exchange_parts(method, numbers)):
            told = {**numbers, "turn": float(turn)}
            state = learner.apply_perishable(state, Task("meter-1", 1, ADAPT, step, values=told))[0]
            offered = {part: state.offered(learner.spec, part) for part in parts}
            out += [(vector.tobytes(), {}, part) for part, vector in offered.items()]
            mixed = {part: vector[None] * 0.5 for part, vector in offered.items()}
            mixed["weights"] = np.array([0.5])
            task = Task("meter-1", 1, MIX, step, values=told, arrays=mixed)
            state = learner.apply_perishable(state, task)[0]
    return out


def split(learner, method, state, w):
    """Play a round with its turns, then ask what the graph says of the newest window."""
    opened = asked(method, "train", arrays={"w": w})
    out = {}

    def tell(ask, event=None, **more):
        nonlocal state
        event = event or asked(method, ask, **more)
        act = learner.learn if ask == "share" else learner.apply_perishable
        state, effects = act(state, event)
        out.setdefault("train" if ask == "share" else ask, []).extend(said_of(effects, learner))
        return effects

    (ready,) = tell("ready", opened)
    ids = np.arange(ready.values["last"] - 3, ready.values["last"] + 1)
    held = np.arange(ready.values["held_last"] - 3, ready.values["held_last"] + 1)
    (h,) = tell("encode", step=1, arrays={"ids": ids})
    z = np.random.default_rng(0).normal(0, 0.1, h.array.shape).astype(np.float32)
    tell("decode", step=1, arrays={"z": z})
    tell("finish", step=1, arrays={"hgrad": z})
    task = asked(method, "encode", step=2, arrays={"ids": held})
    tell("encode", replace(task, values={"held": 1.0, "frozen": 1.0}))
    tell("judge", step=2, arrays={"z": z})
    tell("share", step=3)
    tell("serve", Due(0, "serve", learner.newest))
    return {ask: said for ask, said in out.items() if said}


def noised_like(tmp_path, method, mechanism):
    """Return what two devices send that read different values under the same noised ones."""
    first, store = learner_of(tmp_path / "a", method, 1, mechanism)
    said = answers(first, method)
    rows = [SeriesRow(stream, slot, value) for (stream, slot), value in store.noised().items()]
    store.close()
    second, store = learner_of(tmp_path / "b", method, 2, mechanism, rows)
    other = answers(second, method)
    if rows:
        assert len(store.noised()) == len(rows)  # nothing was drawn anew
    store.close()
    return said, other


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Compare, once a method, with noise at the input and without any."""
    made = {}

    def compare(method):
        if method not in made:
            folder = tmp_path_factory.mktemp(method)
            noise = section(MECHANISMS["input"])
            plain = section({"name": "none"}, "none")
            made[method] = (
                noised_like(folder / "noised", method, noise),
                noised_like(folder / "plain", method, plain),
            )
        return made[method]

    return compare


BY_INPUT = [
    pytest.param(row, name, id=f"{name}-{row.ask}")
    for row in ANSWERS
    for name in row.methods
    if name not in SIGNS_ONLY
]


@pytest.mark.parametrize(("row", "method"), BY_INPUT)
def test_an_update_depends_on_noisy_readings_only(row, method, compared):
    assert row.points[0] == "covered"
    (said, other), (plain, control) = compared(method)
    assert said[row.ask] == other[row.ask]
    numbers = {name for _, numbers, _ in plain[row.ask] for name in numbers}
    assert numbers <= {*row.numbers, "n"}
    if row.ask == "ready":  # which windows exist is public: the same with and without noise
        assert said[row.ask] == plain[row.ask] == control[row.ask]
    else:
        assert plain[row.ask] != control[row.ask]  # else this test could not fail


# --- the same noised readings, the same bytes: by message ----------------------------------------


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Return by kind what a broker saw of devices: the same noise, other values; and no noise."""
    from edge_sdk import client as client_module  # noqa: PLC0415
    from tests.edge_sdk.conftest import NumpyBundle  # noqa: PLC0415

    bundle, folder = NumpyBundle(), tmp_path_factory.mktemp("captured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "open_bundle", lambda _config, _announced: bundle)
        first, noise = sent(folder / "a", 1, MECHANISMS["input"])
        second, _ = sent(folder / "b", 2, MECHANISMS["input"], noise)
        return first, second, sent(folder / "c", 2, {"name": "none"})[0]


def sent(folder, seed, mechanism, known=()):
    """Run a device through every message that it sends to its aggregator by itself."""
    from tests.edge_sdk.conftest import make_fleet  # noqa: PLC0415

    said = {"mechanism": mechanism}
    if mechanism["name"] != "none":
        said |= {"mode": "honest", "budget": {"epsilon": 50.0, "delta": 1e-6}}
    fleet = make_fleet(folder, inline=0, privacy=said)
    tap = fleet.broker.link("tap")
    tap.open()
    tap.poll(0.0)
    tap.subscribe("gf/1/+/+/up/+", "gf/1/+/+/status")
    if known:
        with DeviceStore.open(fleet.device.config.state) as store:
            store.add_noised(*known)
    fleet.device.start()
    for hour, value in enumerate(values(seed)[:60]):
        at = BEGIN_AT + 3600 * hour
        fleet.device.client.observe(Reading("elec.import.energy", float(at), value))
    for number in range(2):
        w = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
        fleet.server.open_round(number, number, w, retained=False)
        fleet.run(60, seconds=1.0)
    fleet.server.answer(m.CommandMessage(1, "report"))
    fleet.run(10)
    out: dict[str, list] = {}
    for arrived in tap.poll(0.0):
        if isinstance(arrived, Message):
            kind = topics.parse(arrived.topic).kind
            out.setdefault(kind, []).append(codec.decode(kind, unproved(arrived.payload)))
    out["update"] = list(fleet.server.updates)
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        rows = [SeriesRow(stream, slot, value) for (stream, slot), value in store.noised().items()]
        drawn = [charge for charge in store.ledger() if charge.count and not charge.releases]
    fleet.device.kill()
    return out, (rows, *drawn)


ELSEWHERE = {"signal", "peer", "settle", "refusal", "forecast", "trial", "sum"}
"""Kinds that a device of the averaging family does not send; their vectors are judged above."""


def test_a_message_that_is_said_never_to_be_sent_is_built_nowhere():
    code = "".join(path.read_text("utf-8") for path in Path(edge_sdk.__file__).parent.rglob("*.py"))
    unsent = re.findall(r"^\| `(\w+)` \|.*never sends it", SECTION, re.MULTILINE)
    assert not [kind for kind in unsent if f"m.{kind.capitalize()}Message(" in code]


@pytest.mark.parametrize("row", [row for row in FIELDS if row.kind not in ELSEWHERE], ids=str)
def test_a_field_depends_on_no_value_of_a_reading(row, captured):
    first, second, plain = ({repr_of(x, row) for x in one[row.kind]} for one in captured)
    assert first
    if row.covered_by == "process":
        return  # counts of a process, or random
    assert first == second
    if row.covered_by == "mechanism":
        assert first != plain  # else this test could not fail
    elif row.kind not in {"chunk", "offer"}:
        assert first == plain


def test_only_forecasts_and_trials_and_sums_are_sent_uncovered_on_request():
    requested = {row.kind for row in FIELDS if row.covered_by == "opt-in"}
    assert requested == {"forecast", "trial", "sum"}


REQUESTED = {"opt-in"}


@pytest.mark.parametrize("row", [row for row in FIELDS if row.covered_by not in REQUESTED], ids=str)
def test_an_uncovered_field_is_too_small_for_readings(row):
    """It is a whole number, a word, a yes or no, a short bitmap, or the name of something."""
    cls, hints = m.KINDS[row.kind], get_type_hints(m.KINDS[row.kind], include_extras=True)
    for name in row.fields:
        said = str(hints[name])
        if row.covered_by == "mechanism":
            assert name in {"blob", "vals", "n", "check", "digest", "sig", "id"}, (cls, name)
        else:
            assert name not in {"blob", "vals", "check"}
            assert "float" not in said
            assert "Mapping" not in said
            sizes = [int(most) for most in re.findall(r"highest=(\d+)\)", said) if "bytes" in said]
            assert all(most <= 32 for most in sizes)


def repr_of(message, row):
    return repr([getattr(message, name) for name in row.fields])
