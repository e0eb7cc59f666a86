"""The daemon over a loopback link, with devices that are scripts: rounds, deadlines, restarts."""

import numpy as np
import pytest

from aggregator.config import bind
from aggregator.daemon import Daemon
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners, RunSetupError
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from edge_sdk.errors import Reason
from edge_sdk.protocol import envelope, keys
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.messages import (
    CommandMessage,
    ContentBody,
    ModelMessage,
    PartMessage,
    ReceiptMessage,
    RefusalMessage,
    StatusMessage,
    TimeMessage,
    WelcomeMessage,
)
from firmware_sim.testing.loopback import LoopbackBroker


@pytest.fixture
def serve(still_clock):
    """Starts daemons on one broker and one clock, and closes them."""
    opened = []

    def make(config, broker):
        daemon = Daemon(config, transport=broker.link("_agg"), clock=still_clock)
        opened.append(daemon)
        daemon.open()
        daemon.turn()
        return daemon

    yield make
    for daemon in opened:
        daemon.close()


def turns(daemon, *puppets, count=6):
    for _ in range(count):
        daemon.turn()
        for puppet in puppets:
            puppet.poll()


def greeted(daemon, puppets, life=1):
    for puppet in puppets:
        puppet.hello(life)
    turns(daemon, *puppets)


def model_of(puppet):
    """The model a device would take over: the parts of the newest manifest."""
    manifest = puppet.last(ModelMessage)
    parts = {
        p.i: p.blob
        for p in puppet.heard
        if isinstance(p, PartMessage) and p.id == manifest.digest[:16]
    }
    content = decode(ContentBody, b"".join(parts[i] for i in sorted(parts)))
    return manifest.version, np.frombuffer(content.blob, "<f4")


def test_a_round_from_hello_to_receipt_to_the_next_model(founded, serve, puppets):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    assert one.last(WelcomeMessage).run == 1
    np.testing.assert_array_equal(model_of(one)[1], [1.0, -2.0])
    one.answer([0.5, 0.0])
    two.answer([1.5, 1.0])
    turns(daemon, one, two)
    assert (one.last(ReceiptMessage).code, two.last(ReceiptMessage).code) == (0, 0)
    version, w = model_of(one)
    assert version == 1
    np.testing.assert_array_equal(w, [0.0, -2.5])
    manifest = one.last(ModelMessage)
    assert (manifest.round, manifest.phase, manifest.vals["steps"]) == (2, "train", 4.0)


def test_the_manifest_comes_after_its_slots(founded, serve, puppets):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    one.heard.clear()
    for puppet, asked in ((one, two.last(ModelMessage)), (two, two.last(ModelMessage))):
        puppet.heard.append(asked)
        puppet.answer([0.5, 0.0])
    one.heard.clear()
    turns(daemon, one, two)
    assert [type(m) for m in one.heard if isinstance(m, ModelMessage | PartMessage)] == [
        PartMessage,
        ModelMessage,
    ]


def test_a_deadline_abandons_a_round_and_keeps_the_version(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    one.answer([0.5, 0.0])
    turns(daemon, one)
    still_clock.now += 61
    turns(daemon, one)
    manifest = one.last(ModelMessage)
    assert (manifest.round, manifest.version) == (2, 0)
    two.poll()
    late = two.answer([1.0, 1.0], round=1)
    turns(daemon, two)
    assert two.last(ReceiptMessage).code == Reason.LATE
    assert late.round == 1
    assert b"gridfed_quorum_failed_total 1.0" in daemon.metrics.text()


def test_a_wake_up_of_a_closed_round_changes_nothing(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    still_clock.now += 30
    one.answer([0.5, 0.0])
    two.answer([0.5, 0.0])
    turns(daemon, one, two)
    still_clock.now += 31  # round 1 would be over by now, round 2 is not
    turns(daemon, one)
    assert one.last(ModelMessage).round == 2


def test_rounds_reached_stop_the_run(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    daemon = serve(founded("rounds = 1"), broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    one.answer([0.5, 0.0])
    two.answer([0.5, 0.0])
    turns(daemon, one, two)
    manifest = one.last(ModelMessage)
    assert (manifest.phase, manifest.version) == ("stop", 1)
    np.testing.assert_array_equal(model_of(one)[1], [0.5, -2.0])
    assert not daemon.is_done
    still_clock.now += 2
    turns(daemon)
    still_clock.now += 3
    turns(daemon)
    assert daemon.is_done


def test_the_same_update_again_is_receipted_again_and_counted_once(founded, serve, puppets):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    one, _ = puppets(broker)
    greeted(daemon, [one])
    said = one.answer([0.5, 0.0])
    one.say(said)
    turns(daemon, one)
    assert [m.code for m in one.heard if isinstance(m, ReceiptMessage)] == [0, 0]
    assert len(daemon.state.pending) == 1


def test_strangers_and_garbage_are_counted_and_change_nothing(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    daemon = serve(founded(devices=1), broker)
    one, stranger = puppets(broker)
    stranger.hello(1)
    one.link.publish("gf/1/north/meter-1/up/update", b"\x95nonsense")
    turns(daemon, one, stranger)
    still_clock.now += 2
    turns(daemon)
    assert stranger.last(WelcomeMessage) is None
    refused = daemon.snapshot.status["refused"]
    assert refused == {"MALFORMED": 1, "UNKNOWN_CLIENT": 1}
    assert daemon.state.round == 1


def test_everything_retained_is_said_again_after_a_broker_lost_it(founded, serve, puppets):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    turns(daemon)
    before = {t: p for t, p in broker.retained().items() if not t.endswith("/time")}
    broker.restart(forget=True)
    turns(daemon)
    after = {t: p for t, p in broker.retained().items() if not t.endswith("/time")}
    assert after == before
    assert {topic.rsplit("/", 1)[1] for topic in after} == {"keys", "bundle", "model", "0"}


def test_server_time_every_minute(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    daemon = serve(founded(), broker)
    (one,) = puppets(broker, 1)
    turns(daemon, one)
    still_clock.now += 61
    turns(daemon, one)
    said = [message for message in one.heard if isinstance(message, TimeMessage)]
    assert [said[-1].t, said[-1].serial > said[0].serial] == [still_clock.wall(), True]


def test_an_order_reaches_a_running_daemon(founded, serve, puppets, still_clock):
    config, broker = founded(devices=1), LoopbackBroker()
    daemon = serve(config, broker)
    one, two = puppets(broker)
    turns(daemon)
    leave(config.inbox, ControlOrder("enrol", "meter-2", public=two.key.public.hex()))
    leave(config.inbox, ControlOrder("command", "meter-1", op="report"))
    still_clock.now += 2
    turns(daemon, one)
    assert one.last(CommandMessage).op == "report"
    two.hello(1)
    turns(daemon, two)
    assert two.last(WelcomeMessage) is not None
    assert not list(config.inbox.iterdir())


def test_a_replaced_key_signs_everything_anew(founded, serve, puppets):
    config, broker = founded(), LoopbackBroker()
    serve(config, broker).close()
    online = keys.from_seed(bytes([77]) * 32)
    keys.save_signing_key(config.signing_key, online)
    with pytest.raises(RunSetupError, match="is not announced"):
        serve(config, broker)
    with open_store(config.database) as store:
        root = keys.load_signing_key(config.state / "root.key")
        set_up(
            bind(config),
            store,
            root=RootSigners.of(root),
            online=online.public,
            now=1_800_000_000_000,
        )
    turns(serve(config, broker))
    ours = {t: p for t, p in broker.retained().items() if t.endswith(("/model", "/part/0"))}
    assert len(ours) == 2
    assert all(envelope._outer(payload)[4][:8] == online.kid for payload in ours.values())


def test_a_paused_fleet_waits_over_a_restart_and_goes_on(founded, serve, puppets, still_clock):
    config, broker = founded(), LoopbackBroker()
    daemon = serve(config, broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    leave(config.inbox, ControlOrder("pause", "_all"))
    still_clock.now += 2
    turns(daemon, one, two)
    assert one.last(ModelMessage).phase == "pause"
    said = one.answer([0.5, 0.0])
    turns(daemon, one)
    assert one.last(RefusalMessage).code == Reason.PAUSED
    daemon.close()
    daemon = serve(config, broker)
    still_clock.now += 3600
    turns(daemon, one, two)
    assert (one.last(ModelMessage).phase, one.last(ModelMessage).round) == ("pause", 1)
    leave(config.inbox, ControlOrder("resume", "_all"))
    still_clock.now += 2
    turns(daemon, one, two)
    assert (one.last(ModelMessage).phase, one.last(ModelMessage).round) == ("train", 1)
    one.say(said)
    two.answer([0.5, 0.0])
    turns(daemon, one, two)
    assert one.last(ModelMessage).version == 1


def test_a_stopped_run_refuses_late_work_for_good(founded, serve, puppets):
    broker = LoopbackBroker()
    daemon = serve(founded("rounds = 1"), broker)
    one, two, three = puppets(broker, 3)
    greeted(daemon, [one, two, three])
    first = three.last(ModelMessage)
    one.answer([0.5, 0.0])
    two.answer([0.5, 0.0])
    turns(daemon, one, two)
    three.answer([0.5, 0.0], round=first.round, base=first.version)
    turns(daemon, three)
    assert three.last(ReceiptMessage).code == Reason.TOO_STALE
    assert three.last(RefusalMessage) is None


# --- restarts -------------------------------------------------------------------------------------


class CrashedError(BaseException):  # a kill is no error that anybody handles
    """The process died here."""


STEPS = (
    ("append", 6),
    ("commit", 3),
    ("save", 2),  # of a ledger
    ("_commit", 8),
    ("publish", 8),
    ("acknowledge", 4),
)
"""What a daemon does that lasts or is seen, and how often at least in three rounds of two."""


def crash_at(daemon, step, nth, before):
    """Make the nth call of a step kill the daemon, before or after it took effect."""
    target = daemon._transport if step in ("publish", "acknowledge") else daemon._store
    if step in ("_commit", "save"):
        target = target.transactions if step == "_commit" else target.ledgers
    real, left = getattr(target, step), [nth]

    def dying(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0 and before:
            raise CrashedError
        done = real(*args, **kwargs)
        if left[0] == 0:
            raise CrashedError
        return done

    setattr(target, step, dying)


class Play:
    """Three rounds, in which devices repeat what was not receipted; the daemon may die once."""

    def __init__(self, start, crew, crash=None):
        self.start, self.crew = start, crew
        self.daemon = start()
        self.said = {puppet.name: {} for puppet in crew}
        self.crashes = 0
        if crash:
            crash_at(self.daemon, *crash)

    def act(self):
        try:
            turns(self.daemon, *self.crew, count=3)
        except CrashedError:
            self.crashes += 1
            self.daemon.close()
            self.daemon = self.start()
            turns(self.daemon, *self.crew, count=3)

    def move(self, puppet, number):
        """What a device does next: greet, answer, or say again what nobody receipted."""
        manifest = puppet.last(ModelMessage)
        if puppet.last(WelcomeMessage) is None:
            puppet.hello(1)
        elif manifest.phase == "train" and manifest.round not in self.said[puppet.name]:
            step = [0.25 * number * manifest.round, -0.125 * manifest.round]
            self.said[puppet.name][manifest.round] = puppet.answer(step)
        else:
            settled = {
                message.seq for message in puppet.heard if isinstance(message, ReceiptMessage)
            }
            for update in self.said[puppet.name].values():
                if update.seq not in settled:
                    puppet.say(update)

    def to_the_end(self):
        for _ in range(20):
            for number, puppet in enumerate(self.crew, 1):
                self.move(puppet, number)
                self.act()
        return [v.digest for v in self.daemon._store.runs.versions(1)], state_codec.digest(
            self.daemon.state
        )


def decode_model(payload):
    model = decode(ModelMessage, envelope._outer(payload)[3])
    return model.round, model.version, model.phase, model.digest


@pytest.fixture
def play(founded, serve, puppets):
    """Plays a run to its end on a broker of its own; returns digests and the last manifest."""

    def run(crash=None):
        config, broker = founded("rounds = 3"), LoopbackBroker()
        for file in config.state.glob("aggregator.db*"):
            file.unlink()
        config = founded("rounds = 3")
        acted = Play(lambda: serve(config, broker), puppets(broker), crash)
        digests = acted.to_the_end()
        acted.daemon.close()
        manifest = broker.retained("gf/1/north/_all/model")["gf/1/north/_all/model"]
        return acted.crashes, digests, decode_model(manifest)

    return run


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("step", "nth"), [(s, n) for s, most in STEPS for n in range(1, most + 1)])
def test_killed_at_any_step_the_run_takes_the_same_path(play, step, nth, *, before):
    crashes, digests, manifest = play((step, nth, before))
    assert crashes == 1
    calm = play()
    assert calm[0] == 0
    assert len(calm[1][0]) == 3
    assert manifest == (3, 3, "stop", manifest[3])
    assert (digests, manifest) == calm[1:]


def test_a_revoked_device_hears_of_it_at_once_and_is_not_counted(
    founded, serve, puppets, still_clock
):
    config, broker = founded(), LoopbackBroker()
    daemon = serve(config, broker)
    one, two = puppets(broker)
    greeted(daemon, [one, two])
    for puppet in (one, two):
        puppet.say(StatusMessage(state="online", life=1, conn=1))
    still_clock.now += 2
    turns(daemon, one, two)
    assert daemon.snapshot.status["devices"] == {"enrolled": 3, "online": 2}
    leave(config.inbox, ControlOrder("revoke", "meter-1"))
    still_clock.now += 2
    turns(daemon, one, two)
    assert one.last(RefusalMessage).code == Reason.REVOKED
    assert two.last(RefusalMessage) is None
    still_clock.now += 2
    turns(daemon, one, two)
    assert daemon.snapshot.status["devices"] == {"enrolled": 2, "online": 1}
    seen = daemon.snapshot.status["contacts"]["meter-2"]
    assert (seen["state"], bool(seen["sdk"]), seen["seen"] > 0) == ("online", True, True)
