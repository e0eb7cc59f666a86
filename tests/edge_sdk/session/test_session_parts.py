"""Each part of a session owns its state, takes explicit inputs, and returns events."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from dataclasses import fields as fields_of
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused, StoreFull
from edge_sdk.link.transport import LinkDown
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import encode, pack_tensor
from edge_sdk.protocol.contract.method import CONTRACTS, Task
from edge_sdk.protocol.envelope import digest
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.protocol.root_keys import RootKeys
from edge_sdk.session import agenda as events
from edge_sdk.session import parts as parts_of_session
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.announcements import Announcements
from edge_sdk.session.connection import Connection
from edge_sdk.session.download import Downloader
from edge_sdk.session.durable_outbox import BudgetRefused, DurableOutbox
from edge_sdk.session.key_ring import KeyRing
from edge_sdk.session.manifest_checks import ManifestExpectation
from edge_sdk.session.participation import SAVE_AFTER, LinkQuota, Participation
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.session import Session
from edge_sdk.session.task_inbox import TaskInbox
from edge_sdk.store.store import DeviceStore

SPEC = b"s" * 16
HOUR = 3600.0
DAY = 86_400_000


class Clock:
    def __init__(self):
        self.at, self.unix = 0.0, 1_800_000_000_000

    def monotonic(self):
        return self.at

    def wall(self):
        return self.unix + int(1000 * self.at)


class Link:
    """Notes what is sent, in one line with what the store saves."""

    is_up = True

    def __init__(self, log):
        self.log = log

    @property
    def signing(self):
        return self

    def sign_again(self, entry):
        return entry

    def send(self, message, **_):
        self.log.append(message.kind)
        return 1

    def send_sealed(self, kind, _body, _proof):
        self.log.append(kind)

    def discard_queue(self):
        self.log.append("discarded")

    def subscribe_parts(self, *, wanted, slots=()):
        self.log.append(f"parts {wanted}{list(slots) or ''}")


@pytest.fixture
def store(tmp_path):
    with DeviceStore.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def parts(store):
    """The parts that need neither keys nor a broker."""
    log, clock, counts, agenda = [], Clock(), Counter(), Agenda()
    link, rng = Link(log), random.Random(1)
    time = ServerClock(store, clock)
    downloads = Downloader(link, rng, clock.monotonic, counts)
    waits = SimpleNamespace(retained_model="2s")
    config = SimpleNamespace(id="meter-1", index=Config.index, timeouts=waits)
    announced = SimpleNamespace(name="", bundle=SimpleNamespace(run=1))
    inbox = TaskInbox(config, store, time, downloads, agenda, announcements=announced)
    outbox = DurableOutbox(store, link, rng, clock.monotonic, counts, base=1.0)
    quota = LinkQuota(store, 1000)
    participation = Participation(store, outbox, inbox, quota)
    return SimpleNamespace(**{k: v for k, v in locals().items() if k != "store"})


# --- no inheritance -------------------------------------------------------------------------------


def test_no_part_inherits_from_another():
    kinds = {cls for cls in vars(parts_of_session).values() if inspect.isclass(cls)}
    ours = [cls for cls in kinds if cls.__module__.startswith("edge_sdk.session")]
    assert len(ours) >= 11
    for cls in (Session, Agenda, *ours):
        assert cls.__mro__ == (cls, object)


def test_events_cannot_be_changed():
    task = Task("meter-1", 1, "train")
    with pytest.raises(AttributeError):
        events.TaskReceived(task).task = None
    assert [one.name for one in fields_of(events.TaskReceived)] == ["task"]


# --- agenda ---------------------------------------------------------------------------------------


def test_an_agenda_follows_the_events_in_their_order():
    agenda, first, second = Agenda(), Task("m", 1, "train"), Task("m", 2, "train")
    agenda.add(events.TaskReceived(first))
    agenda.start(agenda.pop_waiting())
    agenda.add(events.TaskReceived(second))
    assert agenda.tasks == (second, first)
    agenda.add(events.TaskWithdrawn())
    assert agenda.tasks == (first,)
    agenda.finish()
    agenda.postpone(first)
    assert agenda.waiting is first
    agenda.add(events.TaskReceived(second))
    agenda.postpone(first)
    assert agenda.waiting is second, "a newer task is not replaced by one that was given up"


def test_an_agenda_reports_a_store_loss_and_a_list_of_peers_once():
    agenda = Agenda()
    agenda.add(events.StoreLossDetected())
    assert (agenda.pop_store_loss(), agenda.pop_store_loss()) == (True, False)
    agenda.add(events.PeersAnnounced("peers"))
    assert (agenda.pop_peers(), agenda.pop_peers()) == ("peers", None)


# --- downloads ------------------------------------------------------------------------------------


def model(body, number=1, **changes):
    fields = {"serial": number, "run": 1, "round": number, "version": number, "phase": "train"}
    fields |= {"part": "shared", "spec": bytes(16), "enc": "f4", "digest": digest(body)}
    fields |= {"size": len(body), "chunk": 8192, "until": 2_000_000_000_000, "spread": 0}
    return m.ModelMessage(**fields | {"inline": 0, "share": 1.0} | changes)


def pieces(body):
    chunks = [body[at : at + 8192] for at in range(0, len(body), 8192)]
    return [m.PartMessage(digest(body)[:16], i, blob) for i, blob in enumerate(chunks)]


def fetched(parts, body, number=1, **changes):
    parts.downloads.begin(model(body, number, **changes), patience=60.0)
    parts.clock.at += 10.0
    parts.downloads.advance()
    return [parts.downloads.add(piece) for piece in pieces(body)][-1].body


def test_parts_that_come_before_their_manifest_complete_it_without_a_subscription(parts):
    first, second = b"1" * 20_000, b"2" * 20_000
    assert fetched(parts, first) == first
    assert parts.log == ["parts True"], "the slots stay subscribed"
    assert [parts.downloads.add(piece) for piece in pieces(second)] == [None] * 3
    parts.downloads.begin(model(second, 2), patience=60.0)
    assert parts.downloads.completed().body == second
    assert parts.downloads.completed() is None
    assert parts.log == ["parts True"]


def test_parts_of_which_one_was_lost_are_read_from_their_slots(parts):
    first, second = b"1" * 20_000, b"2" * 20_000
    fetched(parts, first)
    for piece in pieces(second)[:2]:
        parts.downloads.add(piece)
    parts.downloads.begin(model(second, 2), patience=60.0)
    assert parts.downloads.completed() is None
    parts.downloads.advance()
    assert parts.log == ["parts True"] * 2
    assert parts.downloads.add(pieces(second)[2]).body == second


def test_early_parts_take_no_more_memory_than_the_last_model(parts):
    fetched(parts, b"1" * 8192)
    large = b"2" * 80_000
    for piece in pieces(large):
        parts.downloads.add(piece)
    parts.downloads.begin(model(large, 2))
    assert parts.downloads.completed() is None
    for piece in pieces(large)[:-1]:
        assert parts.downloads.add(piece) is None
    assert parts.downloads.add(pieces(large)[-1]).body == large


@pytest.mark.parametrize("changes", [{"spread": 10_000}, {"share": 0.5}])
def test_slots_are_left_where_devices_begin_at_different_times(parts, changes):
    fetched(parts, b"1" * 20_000, **changes)
    assert parts.log == ["parts True", "parts False"]
    assert parts.downloads.add(pieces(b"2" * 20_000)[0]) is None


def test_released_slots_are_unsubscribed_once(parts):
    fetched(parts, b"1" * 20_000)
    parts.downloads.release_slots()
    parts.downloads.release_slots()
    assert parts.log == ["parts True", "parts False"]


# --- outbox ---------------------------------------------------------------------------------------


def welcomed(parts, **changes):
    parts.outbox.link_up(65_536)
    ref = parts.outbox.state.hello.ref
    welcome = m.WelcomeMessage(
        hello=ref, life=1, spent=0, time=1_800_000_000_000, wire=1, caps=(), run=1, inline=4096,
        window=4, quota=2**30, hold=2, cmd=0,
    )  # fmt: skip
    return replace(welcome, **changes)


def entry(**changes):
    whole = OutboxEntry(1, 1, b"body", b"proof", 1, 1, 0, SPEC, 1)
    return replace(whole, **changes)


def test_nothing_is_sent_before_it_is_saved(parts, store, monkeypatch):
    keep = store.keep
    monkeypatch.setattr(store, "keep", lambda *a, **k: (parts.log.append("saved"), keep(*a, **k)))
    parts.outbox.receive(welcomed(parts))
    assert parts.log == ["saved", "hello", "saved"]
    parts.outbox.release(entry())
    assert parts.log[3:] == ["saved", "update"]


def test_an_entry_stored_as_tried_is_sent_without_another_transaction(parts, store, monkeypatch):
    parts.outbox.receive(welcomed(parts))
    fresh = entry(proof=bytes(72))
    stored = parts.outbox.as_stored(fresh)
    assert (fresh.attempts, stored.attempts) == (0, 1)
    store.keep(UplinkCounters(1, 1, 1, lost=False), after=(stored,))
    parts.log.clear()
    monkeypatch.setattr(store, "keep", lambda *a, **k: parts.log.append("saved"))
    parts.outbox.release(fresh, stored)
    assert parts.log == ["update"], "whole, because it was never sent before"
    assert parts.outbox.state.entries == store.outbox()
    assert parts.outbox.state.numbers == store.numbers()


def test_an_entry_that_cannot_be_sent_now_is_stored_as_not_tried(parts):
    parts.outbox.receive(welcomed(parts))
    parts.outbox.link_down()
    assert parts.outbox.as_stored(entry()).attempts == 0


def test_a_full_disk_leaves_the_outbox_as_it_was(parts, store, monkeypatch):
    def full(*_, **__):
        raise StoreFull("no space left")

    monkeypatch.setattr(store, "keep", full)
    before = parts.outbox.state
    with pytest.raises(StoreFull):
        parts.outbox.link_up(65_536)
    assert parts.outbox.state is before
    assert parts.log == []


def test_a_refused_budget_is_returned_and_limits_the_releases(parts):
    parts.outbox.receive(welcomed(parts))
    parts.outbox.release(entry())
    sent = parts.outbox.state.entries[0]
    receipt = m.ReceiptMessage(1, 1, sent.id, Reason.BUDGET_SPENT, 1, 1)
    notes = parts.outbox.receive(receipt)
    assert notes == (BudgetRefused(1),)
    parts.participation.follow(notes)
    assert parts.participation.releases_allowed == 1


def test_a_welcome_that_is_far_ahead_is_refused(parts):
    welcome = welcomed(parts, spent=m.RELEASES_LEAP + 1)
    with pytest.raises(Refused, match="spent"):
        parts.outbox.check_leap(welcome)
    assert parts.outbox.is_loss(welcome), "the store is new, and releases were counted"


# --- participation --------------------------------------------------------------------------------


def test_the_reasons_have_an_order(parts):
    participation = parts.participation
    assert participation.why_stopped == ""
    parts.quota.count(1000, None, announced=None)
    assert participation.why_stopped == "quota"
    assert participation.exhaust_budget()
    assert not participation.exhaust_budget(), "logged once"
    assert participation.why_stopped == "budget"
    participation.hold(is_held=True)
    assert participation.why_stopped == participation.why_silent == "command"


def test_an_operators_limit_survives_a_restart(parts, store):
    parts.participation.allow(7)
    again = Participation(store, parts.outbox, parts.inbox, parts.quota)
    assert again.releases_allowed == 7


# --- time and quota -------------------------------------------------------------------------------


def test_a_time_in_doubt_is_requested_once_an_hour(parts):
    clock, time = parts.clock, parts.time
    time.correct(clock.wall() + 10 * DAY, is_sound=True)
    late = clock.wall()
    assert not time.receive(late, may_request=False)
    assert [time.receive(late, may_request=True) for _ in range(3)] == [True, False, False]
    clock.at += HOUR
    assert time.receive(late, may_request=True)


def test_a_time_without_a_valid_key_changes_nothing(parts, caplog):
    before = parts.time.now()
    parts.time.correct(parts.clock.wall() + 10 * DAY, is_sound=False)
    assert parts.time.now() is before is None
    assert "server time rejected" in caplog.text


def test_the_lower_quota_holds_and_is_counted_once(store, caplog):
    quota = LinkQuota(store, 500)
    quota.count(400, None, announced=1000)
    assert not quota.is_spent(1000)
    assert quota.is_spent(300)
    for _ in range(2):
        quota.count(600, None, announced=1000)
    assert caplog.text.count("daily quota exhausted") == 1
    assert LinkQuota(store, 500).is_spent(None)


# --- tasks and bundles ----------------------------------------------------------------------------


def content(version=0):
    return encode(
        m.ContentBody(
            run=1, version=version, part="shared", spec=SPEC, enc="f4",
            blob=pack_tensor(np.arange(3, dtype=np.float32), "f4"),
        )
    )  # fmt: skip


def personal_task(body, **changes):
    task = m.TaskMessage(
        run=1, round=1, ask="train", base=0, spec=SPEC, digest=digest(body),
        size=len(body), chunk=8192, vals={"steps": 2.0, "rate": 0.1}, blob=body,
    )  # fmt: skip
    return replace(task, **changes)


def test_a_task_withdraws_the_one_before_and_is_returned(parts):
    parts.inbox.expect(ManifestExpectation(SPEC, 3, CONTRACTS["fedbuff"], 100))
    task = personal_task(content())
    withdrawn, received = parts.inbox.receive_task(task, is_held=False)
    assert withdrawn == events.TaskWithdrawn()
    assert (received.task.round, received.task.ask) == (1, "train")
    parts.agenda.add(received)
    assert list(parts.inbox.receive_task(task, is_held=False)) == [], "it is here already"


def test_a_task_is_withdrawn_even_if_the_next_one_is_damaged(parts):
    parts.inbox.expect(ManifestExpectation(SPEC, 3, CONTRACTS["fedbuff"], 100))
    parts.agenda.add(events.TaskReceived(Task("meter-1", 0, "train")))
    damaged = parts.inbox.receive_task(
        personal_task(content(), blob=bytes(len(content()))), is_held=False
    )
    parts.agenda.add(next(damaged))
    with pytest.raises(Refused, match="BAD_DIGEST"):
        next(damaged)
    assert parts.agenda.waiting is None


def bundle(serial, **changes):
    announced = m.BundleMessage(
        serial=serial, name="linear", version=serial, digest=bytes([serial]) * 32, size=3,
        spec=SPEC, sdk="0.1.0", method="fedavg", run=serial, shared=("body.",),
    )  # fmt: skip
    return replace(announced, **changes)


def test_a_newer_bundle_replaces_the_one_in_download_and_arrives(parts, store):
    """The announcement belongs to its download: the newer one is not lost with the older."""
    whole = b"new"
    announcements = Announcements(
        store, parts.downloads, KeyRing(RootKeys((bytes(32),))), ["fedavg"]
    )
    newer = bundle(2, digest=digest(whole))
    assert list(announcements.receive_bundle(bundle(1), b"one", time=0)) == []
    assert list(announcements.receive_bundle(newer, b"two", time=0)) == []
    completed = parts.downloads.add(m.ChunkMessage(digest(whole)[:16], 0, blob=whole))
    (event,) = announcements.downloaded(completed)
    assert event == events.BundleAnnounced(events.FoundBundle(newer, b"two", whole))
    assert list(parts.inbox.downloaded(completed)) == [], "it is no task"


def test_with_another_bundle_in_use_the_announced_one_is_fetched_again_and_an_older_one_refused(
    parts, store
):
    """The device started with the bundle before, because the announced one was damaged."""
    whole = b"new"
    newer = bundle(2, digest=digest(whole))
    announcements = Announcements(
        store, parts.downloads, KeyRing(RootKeys((bytes(32),))), ["fedavg"]
    )
    announcements.record_installed(newer.digest)
    announcements.adopt(events.FoundBundle(newer, encode(newer), None))
    again = Announcements(store, parts.downloads, KeyRing(RootKeys((bytes(32),))), ["fedavg"])
    again.record_installed(bundle(1).digest)
    assert again.bundle is None
    with pytest.raises(Refused, match="ROLLBACK"):
        list(again.receive_bundle(bundle(1), b"one", time=0))
    assert list(again.receive_bundle(newer, encode(newer), time=0)) == []
    completed = parts.downloads.add(m.ChunkMessage(digest(whole)[:16], 0, blob=whole))
    (event,) = again.downloaded(completed)
    assert event.found.archive == whole


# --- what another process reads -------------------------------------------------------------------


def test_a_refusal_that_ends_participation_is_kept_until_the_next_welcome(parts, store):
    parts.outbox.receive(welcomed(parts))
    parts.outbox.receive(m.RefusalMessage(code=Reason.REVOKED, wait=0))
    assert store.fact("refused") == Reason.REVOKED
    again = DurableOutbox(store, parts.link, parts.rng, parts.clock.monotonic, Counter(), base=1.0)
    later = SimpleNamespace(outbox=again)
    again.receive(welcomed(later, life=2))
    assert store.fact("refused") == 0
    assert store.fact("quota announced") == 2**30


def test_the_count_of_the_link_moves_while_the_agent_runs(store):
    quota = LinkQuota(store, None)
    quota.count(SAVE_AFTER - 1, None, announced=None)
    assert store.fact("used") == 0
    quota.count(SAVE_AFTER, None, announced=None)
    assert store.fact("used") == SAVE_AFTER


def test_the_count_of_a_large_quota_is_saved_in_larger_steps(store):
    quota = LinkQuota(store, 256 * 100_000)
    quota.count(99_999, None, announced=None)
    assert store.fact("used") == 0
    quota.count(100_000, None, announced=None)
    assert store.fact("used") == 100_000


def test_each_reason_of_a_lost_link_is_logged_once_until_the_link_is_up(parts, caplog):
    connection = Connection(parts)
    refused = "the broker closed the connection before CONNACK; it may not accept the certificate"
    with caplog.at_level("INFO"):
        for why in ("the broker closed the connection without a reason", refused, refused):
            connection.link_down(LinkDown(why))
    lines = [one.getMessage() for one in caplog.records if "link down" in one.getMessage()]
    assert len(lines) == 2
    assert refused in lines[1]
