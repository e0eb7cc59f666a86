"""The daemon keeps many updates in a file: the same bits as in memory, also after a kill -9."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.daemon import Daemon
from aggregator.extensions.audit.recompute import recompute
from aggregator.store.opener import open_store
from aggregator.store.row_file import SpooledRows
from edge_sdk.app.settings import SettingsError
from firmware_sim.testing.loopback import LoopbackBroker
from tests.aggregator.conftest import Puppet, StillClock, write_bundle
from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]

ROOT = Path(__file__).resolve().parents[2]
WIDTH, DEVICES = 7_900, 14
RULE = 'rule = { name = "trimmed_mean", f = 2, preaggregation = ["norm_clipping"] }\nrounds = 2'
IN_FILE = f"rule_memory_mb = 1\n{RULE}"  # a quarter of it is 250 kB, eight of the updates
IN_MEMORY = f"rule_memory_mb = 100\n{RULE}"


@pytest.fixture
def wide(founded, tmp_path):
    """A configuration whose updates take 31.6 kB each."""

    def make(more, url=""):
        layers = (("body.w", (WIDTH,)), ("head.b", (1,)))
        contents = {"initial.f32": np.zeros(WIDTH + 1, "<f4").tobytes()}
        (tmp_path / "state").mkdir(exist_ok=True)
        if not (tmp_path / "toy").exists():
            write_bundle(tmp_path / "toy", contents=contents, layers=layers)
        store = [("[run]", f'[store]\nurl = "{url}"\n\n[run]')] if url else []
        return founded(more, [("quorum = 2", f"quorum = {DEVICES}"), *store], devices=DEVICES)

    return make


def served(config, broker, clock):
    daemon = Daemon(config, transport=broker.link("_agg"), clock=clock)
    daemon.open()
    daemon.turn()
    return daemon


def greeted(daemon, broker, life):
    found = [Puppet(broker, name=f"meter-{i}", seed=i) for i in range(1, DEVICES + 1)]
    for puppet in found:
        puppet.hello(life)
    turned(daemon, found)
    return found


def turned(daemon, puppets, count=4):
    for _ in range(count):
        daemon.turn()
        for puppet in puppets:
            puppet.poll()


def delta(device, number):
    noise = np.random.default_rng([device, number]).normal(size=WIDTH)
    return noise * (-1e4 if device < 2 else 1.0)


def answered(daemon, puppets, numbers, round_number):
    for i in numbers:
        puppets[i].answer(delta(i, round_number))
        turned(daemon, [puppets[i]], count=1)


def finished(config):
    """The digests of all closed rounds, after a recomputation from the journal."""
    bound = bind(config)
    with open_store(config.database, read_only=True) as store:
        audit = recompute(store, bound.half, bound.first_state().w)
        assert audit.is_sound, audit.faults
        assert audit.moved == 2
        return [version.digest for version in store.runs.versions(store.runs.latest().run)]


def pending(daemon):
    return daemon._engine.state.pending


def begun(config):
    broker = LoopbackBroker()
    daemon = served(config, broker, StillClock())
    puppets = greeted(daemon, broker, 1)
    answered(daemon, puppets, range(DEVICES), 1)
    return daemon, puppets


@pytest.fixture
def in_memory(wide):
    """The digests of a run whose updates stay in memory."""
    config = wide(IN_MEMORY)
    daemon, puppets = begun(config)
    answered(daemon, puppets, range(DEVICES - 1), 2)
    assert isinstance(pending(daemon), dict)
    answered(daemon, puppets, [DEVICES - 1], 2)
    daemon.close()
    found = finished(config)
    config.database.unlink()
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    """The URL of an empty PostgreSQL database; empty for a file of SQLite."""
    if request.param == "sqlite":
        return ""
    return request.getfixturevalue("postgres_server").schema()


def test_a_daemon_killed_in_a_round_of_stored_updates_ends_with_the_bits_of_memory(
    in_memory, wide, url
):
    config = wide(IN_FILE, url)
    program = (
        "import os, signal, sys\n"
        "from aggregator.config import AggregatorConfig\n"
        "from aggregator.store.row_file import SpooledRows\n"
        "from tests.aggregator.test_rule_memory import DEVICES, answered, begun, pending\n"
        "daemon, puppets = begun(AggregatorConfig.load(sys.argv[1], {}))\n"
        "answered(daemon, puppets, range(DEVICES - 2), 2)\n"
        "assert isinstance(pending(daemon), SpooledRows) and len(pending(daemon)) == DEVICES - 2\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [sys.executable, "-c", program, str(config.file)]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(config.state.glob("rows-*"))
    broker = LoopbackBroker()
    daemon = served(config, broker, StillClock())
    assert isinstance(pending(daemon), SpooledRows)
    assert len(pending(daemon)) == DEVICES - 2
    puppets = greeted(daemon, broker, 2)
    answered(daemon, puppets, range(DEVICES - 2, DEVICES), 2)
    daemon.close()
    assert finished(config) == in_memory


def refusal(path):
    with pytest.raises(SettingsError) as caught:
        bind(AggregatorConfig.load(path, {}))
    return str(caught.value), caught.value.hint


QUORUM = [("quorum = 2", "quorum = 100000")]


def test_pairs_of_too_many_updates_are_refused_with_a_way_out(workplace):
    said, hint = refusal(workplace('rule = { name = "krum", f = 5 }', QUORUM))
    assert said == (
        "aggregator.toml: run.rule.name: 'krum' compares all pairs of 100000 updates (run.quorum), "
        "which takes 640000 MB of run.rule_memory_mb = 256"
    )
    assert 'put { name = "bucketing", size = 50 } first' in hint
    nnm = 'rule = { name = "median", f = 5, preaggregation = ["nnm"] }'
    assert "'nnm' compares all pairs" in refusal(workplace(nnm, QUORUM))[0]


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "bulyan"])
def test_what_the_refusal_advises_is_accepted(workplace, rule):
    groups = '{ name = "bucketing", size = 50 }'
    more = f'rule = {{ name = "{rule}", f = 400, preaggregation = [{groups}] }}'
    run = bind(AggregatorConfig.load(workplace(more, QUORUM), {}))
    assert run.rounds.quorum == 100_000
    too_many = more.replace("f = 400", "f = 1000")
    assert "run.rule.preaggregation" in refusal(workplace(too_many, QUORUM))[0]


def test_more_memory_accepts_more_pairs(workplace):
    more = 'rule = { name = "krum", f = 5 }'
    quorum = [("quorum = 2", "quorum = 3000")]
    assert "compares all pairs" in refusal(workplace(more, quorum))[0]
    assert bind(AggregatorConfig.load(workplace(f"{more}\nrule_memory_mb = 600", quorum), {}))
