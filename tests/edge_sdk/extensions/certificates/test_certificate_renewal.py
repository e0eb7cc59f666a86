"""Renewal by the running device: when, how often again, and what a kill at any step leaves behind."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import logging
import ssl
import threading
from pathlib import Path
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aggregator.extensions.authority.certificates import validity
from edge_sdk.extensions.certificates import certificate_files, certificate_renewal
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.extensions.certificates.certificate_renewal import (
    LOOK,
    PATIENCE,
    REFUSALS,
    Attempt,
    CertificateRenewal,
)
from edge_sdk.extensions.certificates.est_client import EstError
from edge_sdk.extensions.certificates.renewal_schedule import (
    BROKER,
    CLOCK,
    RenewalFailure,
    due_at,
    jitter_of,
)

DAY, HOUR = 86_400.0, 3_600.0
START = 1_800_000_000.0
LIFE = 30 * DAY
AUTHORITY = ec.generate_private_key(ec.SECP256R1())


def certificate(key: bytes, since: float, until: float, name: str = "meter-1") -> bytes:
    moments = [dt.datetime.fromtimestamp(int(t), dt.UTC) for t in (since, until)]
    private = serialization.load_pem_private_key(key, None)
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(named)
        .issuer_name(named)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moments[0])
        .not_valid_after(moments[1])
        .sign(AUTHORITY, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


class KilledError(BaseException):
    """The process ends here: nothing of the program catches it."""


class Immediate:
    """A request that is over when it has been started."""

    def __init__(self, request, since):
        self.since, self.error, self.is_over = since, None, True
        try:
            request()
        except Exception as error:  # noqa: BLE001 - as the thread does
            self.error = error


class Link:
    """A link to a broker that accepts some certificates; it reads the file at each connection."""

    def __init__(self, world):
        self.world, self.is_up, self.refusals, self.shown = world, False, 0, b""
        self.connects = 0

    @property
    def has_current_files(self):
        return self.shown == self.world.files.path.read_bytes()

    def reconnect(self, _why):
        self.is_up = False
        self.attempt()

    def attempt(self):
        if self.world.is_broker_away:
            return
        self.shown = self.world.files.path.read_bytes()
        if self.world.accepts(self.shown):
            self.is_up, self.connects = True, self.connects + 1
        else:
            self.refusals += 1


class World:
    """A device, its EST server and its broker; time passes in ``pass_time``."""

    def __init__(self, folder: Path, name="meter-1", *, offset=0.0):
        self.files = CertificateFiles(folder / "tls.pem")
        self.name, self.now, self.offset = name, START, offset
        self.trouble: Exception | None = None
        self.is_broker_away = False
        self.refused: set[bytes] = set()
        self.requests: list[float] = []
        self.notes: list[bytes] = []
        key = certificate_files.new_tls_key()
        self.files.path.write_bytes(key + certificate(key, START, START + LIFE, name))
        self.start()

    def start(self):
        """Start the process: only files and the stored note remain of an earlier one."""
        self.files.restore()
        self.link = Link(self)
        self.renewal = CertificateRenewal(
            self.name,
            self.name,
            self.files,
            self.link,
            lambda: self.now + self.offset,
            lambda: self.request,
            self.notes.append,
            Random(1),
            RenewalFailure.read(self.notes[-1] if self.notes else None),
            start=Immediate,
        )

    def request(self):
        self.requests.append(self.now)
        if self.trouble is not None:
            raise self.trouble
        if not self.files.received():
            key = self.files.pending_key()
            made = certificate(key, self.now, self.now + LIFE, self.name)
            self.files.receive([made], self.name)

    def accepts(self, content: bytes) -> bool:
        pem = content[content.index(b"-----BEGIN CERT") :]
        found = x509.load_pem_x509_certificate(pem)
        return validity(found)[1].timestamp() > self.now and content not in self.refused

    def turn(self):
        self.renewal.turn(self.now)
        if not self.link.is_up:
            self.link.attempt()

    def pass_time(self, seconds, step=HOUR):
        end = self.now + seconds
        while self.now < end:
            self.now += step
            self.turn()

    @property
    def due(self):
        present = self.files.present()
        return due_at(present.since, present.until, jitter_of(self.name, present.until))

    @property
    def state(self):
        return self.renewal.status()["certificate renewal"]

    def is_alone(self):
        return not self.files.next.exists() and not self.files.previous.exists()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def loads(path: Path):
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)


# --- when ------------------------------------------------------------------------------------------


def test_a_certificate_is_renewed_between_half_and_three_fifths_of_its_validity(world):
    first, due = world.files.path.read_bytes(), world.due
    assert START + LIFE / 2 <= due <= START + 0.6 * LIFE
    world.now = due - 2 * LOOK
    world.turn()
    assert not world.requests
    world.pass_time(4 * LOOK, LOOK / 2)
    assert len(world.requests) == 1
    assert 0 <= world.requests[0] - due <= LOOK
    assert world.files.path.read_bytes().partition(b"-----BEGIN CERT")[0] not in first
    assert world.link.is_up
    assert world.is_alone()
    assert world.renewal.renewals == 1


def test_the_moment_is_fixed_for_a_device_and_spread_over_a_fleet(tmp_path):
    until = START + LIFE
    drawn = [jitter_of(f"meter-{n}", until) for n in range(1_000)]
    tenths = [sum(int(10 * x) == tenth for x in drawn) for tenth in range(10)]
    assert min(tenths) > 60
    assert drawn == [jitter_of(f"meter-{n}", until) for n in range(1_000)]
    assert jitter_of("meter-1", until + DAY) != drawn[1]
    world = World(tmp_path)
    due = world.due
    world.now = due - LOOK
    for _ in range(5):
        world.start()
        world.turn()
    assert not world.requests


def test_a_year_has_some_twenty_renewals_each_with_a_key_of_its_own(world):
    keys = set()
    for _ in range(365):
        world.pass_time(DAY)
        keys.add(world.files.path.read_bytes().partition(b"-----BEGIN CERT")[0])
    assert world.renewal.renewals == len(world.requests) == len(keys) - 1
    assert 20 <= len(world.requests) <= 24


# --- failures ---------------------------------------------------------------------------------------


def test_an_unreachable_server_is_asked_again_after_doubling_waits(world, caplog):
    world.trouble = EstError("https://ca: no route to host")
    world.now = world.due
    with caplog.at_level(logging.INFO, certificate_renewal.__name__):
        world.pass_time(8 * DAY, 300.0)
    waits = [b - a for a, b in itertools.pairwise(world.requests)]
    for number, wait in enumerate(waits):
        bound = min(HOUR * 2**number, DAY)
        assert bound / 2 <= wait <= bound + 600
    assert 8 <= len(waits) <= 20
    said = [record.getMessage() for record in caplog.records]
    assert all(line.startswith("certificate not renewed why=") for line in said)
    assert "check ca.url, the network" in said[0]
    assert world.link.is_up
    assert world.state["failures"] == len(world.requests)
    assert world.state["why"] == "https://ca: no route to host"
    world.trouble = None
    world.pass_time(DAY, 300.0)
    assert world.renewal.renewals == 1
    assert "failures" not in world.state
    assert RenewalFailure.read(world.notes[-1]).failures == 0


def test_a_restart_continues_the_back_off(world):
    world.trouble = EstError("unreachable")
    world.now = world.due
    world.pass_time(DAY, 300.0)
    asked = len(world.requests)
    failure = RenewalFailure.read(world.notes[-1])
    for _ in range(10):
        world.start()
        world.turn()
    assert len(world.requests) == asked
    world.pass_time(failure.retry - world.now + 600, 300.0)
    assert len(world.requests) == asked + 1
    assert RenewalFailure.read(world.notes[-1]).failures == failure.failures + 1


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"failures": "x"}', b'{"retry": 1e400}'])
def test_a_damaged_note_is_no_failure_and_delays_nothing(note):
    found = RenewalFailure.read(note)
    assert found.failures == 0
    assert found.why == ""


def test_a_server_that_never_ends_its_answer_is_left_after_the_patience(world):
    class Hanging:
        is_over, error = False, None

        def __init__(self, _request, since):
            self.since = since
            world.requests.append(since)

    world.renewal.start = Hanging
    world.now = world.due + LOOK
    world.pass_time(PATIENCE, 10.0)
    assert not world.notes
    assert world.renewal._attempt is not None
    world.pass_time(2 * LOOK, 10.0)
    assert "no end within 300 s" in world.state["why"]
    world.pass_time(2 * HOUR, 60.0)
    assert len(world.requests) == 2


def test_the_request_waits_in_a_thread_and_the_turn_does_not(world):
    going = threading.Event()
    request = world.request

    def slow():
        assert going.wait(60)
        request()

    world.renewal.start, world.renewal.prepare = Attempt, lambda: slow
    world.now = world.due
    for _ in range(5):
        world.now += LOOK
        world.turn()
    assert not world.requests
    assert world.link.is_up
    going.set()
    world.renewal._attempt._thread.join(60)
    world.now += 1
    world.turn()
    world.now += 1
    world.turn()
    assert world.renewal.renewals == 1
    assert world.is_alone()


def test_a_request_that_ends_without_a_certificate_is_a_failure(world):
    world.renewal.prepare = lambda: lambda: world.requests.append(world.now)
    world.now = world.due + LOOK
    world.pass_time(600.0, 1.0)
    assert len(world.requests) == 1
    assert world.state["why"] == "no certificate was stored"


def test_a_folder_that_cannot_be_written_is_a_failure_and_not_an_end(world, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    world.now = world.due
    with monkeypatch.context() as patch:
        patch.setattr(certificate_files, "write_atomically", full)
        world.pass_time(HOUR, LOOK)
    assert "No space left" in world.state["why"]
    world.files.pending_key()
    world.pass_time(3 * HOUR, LOOK)
    assert world.renewal.renewals == 1


def test_a_disk_that_fills_up_before_the_exchange_leaves_the_present_pair(world, monkeypatch):
    before = world.files.path.read_bytes()
    real, calls = certificate_files.write_atomically, []

    def filling(path, data, mode):
        calls.append(path.name)
        if path.name.endswith(".previous"):
            raise OSError(28, "No space left on device")
        real(path, data, mode)

    world.now = world.due
    with monkeypatch.context() as patch:
        patch.setattr(certificate_files, "write_atomically", filling)
        world.pass_time(HOUR, LOOK)
    assert "tls.pem.previous" in calls
    assert world.files.path.read_bytes() == before
    world.pass_time(DAY, LOOK)
    assert world.files.path.read_bytes() != before
    assert world.is_alone()
    assert len(world.requests) == 1


# --- confirming, and going back -----------------------------------------------------------------------


def test_the_former_pair_is_kept_until_the_first_connack_with_the_new_one(world):
    former = world.files.path.read_bytes()
    world.turn()
    world.is_broker_away = True
    world.now = world.due
    world.pass_time(4 * LOOK, LOOK)
    assert world.renewal.renewals == 1
    world.pass_time(5 * DAY)
    assert world.files.previous.read_bytes() == former
    assert world.state["state"] == "new; the former one is kept until a broker accepts it"
    world.start()
    world.pass_time(DAY)
    assert world.files.previous.read_bytes() == former
    world.is_broker_away = False
    world.pass_time(10.0, 1.0)
    assert world.link.is_up
    assert world.is_alone()
    assert world.state["state"] == "valid"


class RefusesNew(set):
    """The set of refused contents: every pair but the first one."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def __contains__(self, content):
        return content != self.first


def test_a_server_that_dates_back_further_than_before_is_not_asked_without_end(world):
    world.turn()
    world.refused = RefusesNew(world.files.path.read_bytes())

    def request():
        world.requests.append(world.now)
        key = world.files.pending_key()
        made = certificate(key, START - LIFE, START + 2 * LIFE)
        world.files.receive([made], "meter-1")

    world.renewal.prepare = lambda: request
    world.now = world.due + LOOK
    world.pass_time(600.0, 1.0)
    assert len(world.requests) == 1
    assert RenewalFailure.read(world.notes[-1]).status == BROKER
    assert world.link.is_up


def test_a_refused_certificate_is_taken_back_and_another_one_requested_later(world, caplog):
    former = world.files.path.read_bytes()
    world.refused = RefusesNew(former)
    world.now = world.due
    with caplog.at_level(logging.INFO, certificate_renewal.__name__):
        world.pass_time(60.0, 1.0)
    assert world.link.is_up
    assert world.files.path.read_bytes() == former
    assert world.is_alone()
    assert world.link.refusals == REFUSALS
    events = [
        record.getMessage().partition(" file=")[0].split(" why=")[0] for record in caplog.records
    ]
    assert events == ["certificate renewed", "certificate refused", "certificate not renewed"]
    assert RenewalFailure.read(world.notes[-1]).status == BROKER
    assert "cafile and crlfile" in world.state["do"]
    assert len(world.requests) == 1
    world.start()  # the back-off outlives the process
    world.turn()
    world.refused = set()
    world.pass_time(2 * HOUR, 60.0)
    assert len(world.requests) == 2
    assert world.files.path.read_bytes() != former
    assert world.is_alone()


def test_both_pairs_are_tried_in_turn_while_the_broker_refuses_everybody(world, caplog):
    former = world.files.path.read_bytes()
    world.now = world.due
    world.refused = RefusesNew(b"")
    shown = set()
    with caplog.at_level(logging.INFO, certificate_renewal.__name__):
        for _ in range(200):
            world.now += 60
            world.turn()
            shown.add(world.link.shown)
    assert len(shown) == 1 + len(world.requests)
    assert former in shown
    assert former in {one.read_bytes() for one in (world.files.path, world.files.previous)}
    assert sum("certificate refused" in one.getMessage() for one in caplog.records) <= 3
    assert (
        2 <= len(world.requests) <= 4
    )  # this clock may be behind: asked again after an hour, two …
    world.refused = set()
    world.pass_time(600.0, 60.0)
    assert world.link.is_up
    assert world.is_alone()


def test_a_pair_that_openssl_does_not_load_is_not_put_in_place(world):
    before = world.files.path.read_bytes()
    key, other = certificate_files.new_tls_key(), certificate_files.new_tls_key()
    world.files.next.write_bytes(key + certificate(other, world.now, world.now + LIFE))
    world.turn()
    assert world.files.path.read_bytes() == before
    assert not world.files.next.exists()
    assert "cannot be used" in world.state["why"]


def test_a_certificate_renewed_by_the_command_is_taken_up_and_confirmed(world):
    world.turn()
    connects = world.link.connects
    world.request()
    assert world.files.install()
    world.pass_time(3 * LOOK, 30.0)
    assert world.link.connects == connects + 1
    assert world.link.has_current_files
    assert world.is_alone()


def test_a_damaged_file_is_replaced_by_the_other_one_at_the_next_start(world):
    world.turn()
    world.is_broker_away = True
    world.now = world.due
    world.pass_time(4 * LOOK, LOOK)
    former = world.files.previous.read_bytes()
    world.files.path.write_bytes(b"")
    world.start()
    assert world.files.path.read_bytes() == former
    world.files.path.write_bytes(b"")
    world.files.previous.unlink()
    assert not world.files.restore()


# --- sleepers and wrong clocks --------------------------------------------------------------------------


def test_an_expired_certificate_is_renewed_at_once_at_the_next_start(world):
    world.now = START + 100 * DAY
    world.start()
    assert not world.accepts(world.files.path.read_bytes())
    assert world.state["state"] == "expired; it is renewed with the identity key"
    world.pass_time(10.0, 1.0)
    assert len(world.requests) == 1
    assert world.link.is_up
    assert world.is_alone()


def test_after_the_grace_the_device_says_that_an_operator_must_approve(world, caplog):
    world.now = START + 400 * DAY
    world.trouble = EstError("expired past grace", 202, 3600.0)
    world.start()
    with caplog.at_level(logging.WARNING, certificate_renewal.__name__):
        world.pass_time(4 * HOUR, 60.0)
    assert 3 <= len(world.requests) <= 4  # as the server asked: once an hour
    assert "certificate awaits approval" in caplog.records[0].getMessage()
    remedy = "an operator must approve: gridfed-aggregator ca approve meter-1"
    assert remedy in caplog.records[0].getMessage()
    assert world.state["state"] == remedy
    world.trouble = None
    world.pass_time(HOUR + 120, 60.0)
    assert world.link.is_up
    assert world.state["state"] == "valid"


def test_an_expired_device_repeats_within_the_hour_and_does_not_wait_for_a_day(world):
    world.now = START + 40 * DAY
    world.trouble = EstError("unreachable")
    world.start()
    world.pass_time(5 * DAY, 300.0)
    waits = [b - a for a, b in itertools.pairwise(world.requests)]
    assert max(waits) <= HOUR + 600


@pytest.mark.parametrize("years", [-30, 10])
def test_a_wrong_clock_neither_locks_out_nor_floods_the_server(tmp_path, years):
    world = World(tmp_path, offset=years * 365 * DAY)
    world.pass_time(10 * DAY, 600.0)
    assert world.link.is_up
    if years < 0:
        assert not world.requests  # until signed time arrives, or the broker refuses
    else:
        assert 1 <= len(world.requests) <= 20
        assert RenewalFailure.read(world.notes[-1]).status == CLOCK
        assert "set this machine's clock" in world.state["do"]


class SignedTime:
    """A clock at 1970: the latest signed time is known until a broker accepts the device."""

    def __init__(self, world):
        self.world, self.floor = world, world.now

    def __call__(self):
        if self.world.link.is_up:
            self.floor = self.world.now
        return self.floor


def test_a_certificate_that_expired_unknown_to_the_clock_is_renewed_since_the_broker_refuses_it(
    world,
):
    world.turn()
    clock = SignedTime(world)
    world.now = START + 60 * DAY  # off for two months; the clock is at 1970
    world.start()
    world.renewal.wall = clock
    begun = world.now
    world.pass_time(2 * HOUR, 10.0)
    assert world.link.is_up
    assert len(world.requests) == 1
    assert HOUR / 2 <= world.requests[0] - begun <= HOUR + LOOK + 60
    assert world.is_alone()
    assert RenewalFailure.read(world.notes[-1]).failures == 0  # the broker has accepted it


def test_two_certificates_that_expired_unknown_to_the_clock_are_renewed_too(world):
    world.turn()
    clock = SignedTime(world)
    world.is_broker_away, world.now = True, world.due
    clock.floor = world.now
    world.renewal.wall = clock
    world.pass_time(4 * LOOK, LOOK)
    assert world.files.previous.exists()
    world.is_broker_away, world.now = False, START + 90 * DAY
    world.start()
    world.renewal.wall = clock
    world.pass_time(3 * HOUR, 10.0)
    assert world.link.is_up
    assert len(world.requests) == 2
    assert world.is_alone()


def test_a_long_wait_after_failures_ends_when_the_broker_refuses_the_certificate(world):
    world.turn()
    clock = SignedTime(world)
    world.trouble, world.is_broker_away, world.link.is_up = EstError("unreachable"), True, False
    clock.floor = world.now = world.due + LOOK
    world.renewal.wall = clock  # it stands still: never expired
    world.pass_time(20 * DAY, 300.0)
    wait = RenewalFailure.read(world.notes[-1]).retry - clock()
    assert wait > DAY / 2
    world.trouble, world.is_broker_away = None, False
    begun = world.now
    world.pass_time(2 * HOUR, 10.0)
    assert world.link.is_up
    assert world.requests[-1] - begun <= HOUR + LOOK + 60


def test_a_wait_that_a_clock_without_a_battery_repeats_at_each_start_ends_too(world):
    world.turn()
    clock = SignedTime(world)
    note = RenewalFailure(6, "the broker refuses the new certificate", BROKER, clock.floor + DAY)
    world.notes.append(note.written())
    world.now = START + 60 * DAY
    world.start()
    world.renewal.wall = clock  # at the last signed time, whatever passed meanwhile
    begun = world.now
    world.pass_time(2 * HOUR, 10.0)
    assert world.link.is_up
    assert world.requests[0] - begun <= HOUR + LOOK + 60


def test_refusals_of_the_broker_do_not_double_the_wait_of_other_failures(world):
    world.turn()
    clock = SignedTime(world)
    note = RenewalFailure(14, "unreachable", 0, clock.floor)
    world.notes.append(note.written())
    world.now = START + 60 * DAY
    world.start()
    world.renewal.wall = clock
    begun = world.now
    world.pass_time(2 * HOUR, 10.0)
    assert world.link.is_up
    assert world.requests[0] - begun <= HOUR + LOOK + 60


def test_refusals_delay_no_request_that_is_due_by_the_clock(world):
    world.turn()
    world.now = START + 60 * DAY
    world.trouble = EstError("unreachable")
    world.start()
    world.pass_time(15 * HOUR, 30.0)
    world.trouble = None
    begun = world.now
    world.pass_time(HOUR + 120, 30.0)
    assert world.link.is_up
    assert world.requests[-1] - begun <= HOUR + 60


@pytest.mark.slow
def test_a_broker_that_refuses_everybody_costs_the_server_a_request_after_doubling_waits(world):
    former = world.files.path.read_bytes()
    world.turn()
    world.refused = RefusesNew(b"")
    world.link.is_up = False
    world.pass_time(6 * DAY, 60.0)
    waits = [b - a for a, b in itertools.pairwise(world.requests)]
    assert 5 <= len(world.requests) <= 14
    assert max(waits) >= DAY / 2
    kept = (world.files.path, world.files.previous)
    assert former in {one.read_bytes() for one in kept}  # the one that was accepted before
    world.refused = set()
    world.pass_time(HOUR, 60.0)
    assert world.link.is_up
    assert world.is_alone()
    world.pass_time(15 * DAY, 600.0)
    assert world.link.is_up
    assert RenewalFailure.read(world.notes[-1]).failures == 0


def test_a_broker_whose_clock_is_behind_accepts_a_certificate_before_it_is_replaced(world):
    def accepts(content):  # at first none of the new ones, which begin at their issue
        made = x509.load_pem_x509_certificate(content[content.index(b"-----BEGIN CERT") :])
        begin, end = (moment.timestamp() for moment in validity(made))
        return begin <= world.now - 1.5 * HOUR and world.now < end

    world.now = START + 100 * DAY
    world.accepts = accepts
    world.start()
    world.pass_time(6 * HOUR, 10.0)
    assert world.link.is_up
    assert len(world.requests) <= 4


def test_a_former_pair_that_is_accepted_after_both_were_refused_leaves_the_failure(world):
    former = world.files.path.read_bytes()
    world.turn()
    world.refused, world.now = RefusesNew(b""), world.due
    world.pass_time(20 * 60.0, 10.0)
    assert not world.link.is_up
    world.refused = RefusesNew(former)
    world.pass_time(5 * 60.0, 10.0)
    assert world.link.is_up
    assert world.is_alone()
    assert world.state["why"] == "the broker refuses the new certificate"
    assert len(world.requests) == 1


def test_a_refusal_that_ends_before_the_wait_requests_nothing(world):
    world.turn()
    world.refused = RefusesNew(b"")
    world.link.is_up = False
    world.pass_time(60.0, 10.0)
    assert world.state["why"] == "the broker refuses the certificate"
    world.refused = set()
    world.pass_time(5 * HOUR, 60.0)
    assert not world.requests
    assert "failures" not in world.state


@pytest.mark.parametrize("is_former_in_place", [False, True])
def test_a_kill_at_any_step_of_an_exchange_loses_neither_pair(
    tmp_path, monkeypatch, is_former_in_place
):
    faults = FaultyFiles(monkeypatch)
    for number, is_after in itertools.product(range(1, 5), (False, True)):
        place = tmp_path / f"{number}{is_after}"
        place.mkdir()
        world = World(place)
        former = world.files.path.read_bytes()
        world.request()
        world.files.install()
        if is_former_in_place:
            world.files.exchange()
        both = {one.read_bytes() for one in (world.files.path, world.files.previous)}
        assert former in both
        assert len(both) == 2
        faults.arm(number, is_after=is_after)
        try:
            world.files.exchange()
        except KilledError:
            assert number <= 3
        else:
            assert number == 4
        faults.arm(0, is_after=False)
        assert world.files.restore()
        assert {one.read_bytes() for one in (world.files.path, world.files.previous)} == both
        assert not world.files.exchanged.exists()


# --- kills ------------------------------------------------------------------------------------------------


class FaultyFiles:
    """Ends the process before or after the n-th change of a file."""

    def __init__(self, monkeypatch):
        self.at, self.count, self.is_after = 0, 0, False
        write = certificate_files.write_atomically
        replace, unlink = Path.replace, Path.unlink
        monkeypatch.setattr(certificate_files, "write_atomically", self.faulty(write))
        renamed = (".next", ".previous", ".exchanged")
        monkeypatch.setattr(Path, "replace", self.faulty(replace, renamed))
        monkeypatch.setattr(Path, "unlink", self.faulty(unlink, ".previous"))

    def faulty(self, real, suffix=""):
        def call(path, *args, **more):
            if not str(path).endswith(suffix):  # a temporary file within another change
                return real(path, *args, **more)
            self.count += 1
            if self.count == self.at and not self.is_after:
                raise KilledError
            done = real(path, *args, **more)
            if self.count == self.at:
                raise KilledError
            return done

        return call

    def arm(self, at, *, is_after):
        self.at, self.count, self.is_after = at, 0, is_after


@pytest.mark.parametrize("is_refusing", [False, True], ids=["accepted", "refused"])
def test_a_kill_at_any_change_of_a_file_leaves_a_pair_that_the_broker_accepts(
    tmp_path, monkeypatch, is_refusing
):
    faults, killed = FaultyFiles(monkeypatch), 0
    for number, is_after in itertools.product(range(1, 12), (False, True)):
        place = tmp_path / f"{number}{is_after}"
        place.mkdir()
        world = World(place)
        former = world.files.path.read_bytes()
        if is_refusing:
            world.refused = RefusesNew(former)
        world.now = world.due
        faults.arm(number, is_after=is_after)
        try:
            world.pass_time(60.0, 1.0)
        except KilledError:
            killed += 1
        faults.arm(0, is_after=False)
        loads(world.files.path)
        pairs = [one for one in (world.files.path, world.files.previous) if one.exists()]
        assert any(world.accepts(one.read_bytes()) for one in pairs)
        world.start()
        world.pass_time(120.0, 1.0)
        assert world.link.is_up
        assert not world.files.previous.exists()
        assert (world.files.path.read_bytes() == former) is is_refusing
        if is_refusing:
            world.refused = set()
        world.pass_time(2 * DAY, 600.0)
        assert world.link.is_up
        assert world.is_alone()
        assert world.files.path.read_bytes() != former
    assert killed == (16 if is_refusing else 10)


@pytest.mark.slow
def test_a_year_with_kills_outages_refusals_and_wrong_clocks_locks_no_device_out(
    tmp_path, monkeypatch
):
    faults, kills, offline = FaultyFiles(monkeypatch), 0, []
    for number in range(4):
        rng = Random(number)
        place = tmp_path / str(number)
        place.mkdir()
        offset = rng.choice([-3650, -1, 1, 3650]) * DAY if number == 0 else 0.0
        world = World(place, f"meter-{number}", offset=offset)
        for _ in range(365):
            world.now += DAY
            world.trouble = EstError("unreachable") if rng.random() < 0.3 else None
            world.is_broker_away = rng.random() < 0.2
            faults.arm(rng.randint(1, 3) if rng.random() < 0.5 else 0, is_after=rng.random() < 0.5)
            try:
                for second in range(4):
                    world.renewal.turn(world.now + second)
                    if not world.link.is_up:
                        world.link.attempt()
            except KilledError:
                kills += 1
                faults.arm(0, is_after=False)
                world.start()
            loads(world.files.path)
        faults.arm(0, is_after=False)
        world.trouble, world.is_broker_away = None, False
        world.pass_time(2 * DAY, 600.0)
        offline += [] if world.link.is_up else [number]
    assert kills > 20
    assert offline == []


# --- what the operator sees --------------------------------------------------------------------------------


def test_the_note_holds_no_more_than_it_must():
    note = RenewalFailure(3, "x" * 10_000, 403, 1.5).written()
    assert len(note) < 1_000
    assert json.loads(note)["failures"] == 3


def test_the_status_names_end_and_moment_of_the_renewal(world):
    assert world.state == {
        "valid until": "2027-02-14 08:00 UTC",
        "renews from": world.state["renews from"],
        "state": "valid",
        "renewals": 0,
    }
    assert "2027-01-30 08:00 UTC" <= world.state["renews from"] <= "2027-02-02 08:00 UTC"
    world.now = world.due + 1
    assert world.state["state"] == "due for renewal"
