"""A device trusts the authorities that its root names, in the place of those that it named before."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization

from aggregator.extensions.authority import certificates as made
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.certificates import followed_authorities as module
from edge_sdk.extensions.certificates.authority_certificates import (
    certificates_of,
    digest_of,
    pem_of,
)
from edge_sdk.extensions.certificates.certificate_request import described
from edge_sdk.extensions.certificates.followed_authorities import (
    FILE,
    FollowedAuthorities,
    trusted_digests,
)
from edge_sdk.extensions.certificates.followed_authorities import checked_authorities as checked
from edge_sdk.extensions.certificates.renewal_schedule import SPREAD
from edge_sdk.protocol import keys
from tests.edge_sdk.conftest import AGG_KEY, ROOT_KEY
from tests.edge_sdk.session.test_root_rotation import announce, following, listed, refused

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def authority(name):
    return made.new_authority(name, made.new_key(), NOW, 3650 * DAY)


AUTHORITIES = {name: authority(name) for name in "ABX"}
A, B, X = (made.der_of(one.certificate) for one in AUTHORITIES.values())


def leaf(name):
    """Return a device's certificate by an authority."""
    key = made.new_key().public_key()
    by = AUTHORITIES[name]
    found = made.issue(by, "meter-1", "device", key, now=NOW, lifetime=30 * DAY)
    return described(made.pem_of(found))


class Place:
    """Files of a device, and the lists that it receives."""

    def __init__(self, folder, *held):
        self.folder, self.file = folder, folder / "ca.pem"
        self.file.write_bytes(pem_of(list(held)))
        self.followed = FollowedAuthorities.of(folder, "north", self.file, self.file, None)

    def receive(self, *ca, now=1000.0):
        self.followed.follow(ca, checked(ca), now)
        return self.held

    @property
    def held(self):
        return certificates_of(self.file.read_bytes())


@pytest.fixture
def place(tmp_path):
    return lambda *held: Place(tmp_path, *held)


def test_the_next_authority_is_trusted_beside_the_former_and_then_alone(place):
    here = place(A)
    assert here.receive() == [A]
    assert here.receive(B, A) == [B, A]
    assert here.receive(B, A) == [B, A]
    assert here.receive(B) == [B]
    assert here.receive(B) == [B]


def test_an_authority_that_the_root_never_named_stays(place):
    here = place(X, A)
    assert here.receive(B, A) == [B, A, X]
    assert here.receive(B) == [B, X]


def test_a_file_without_a_named_authority_is_not_touched(place):
    here = place(X)
    assert here.receive(B, A) == [X]
    assert here.receive(B) == [X]


def test_a_device_that_slept_through_the_overlap_keeps_what_it_has(place):
    assert place(A).receive(B) == [A]  # it needs ca.pem by hand: nobody told it that A led to B


def test_a_device_that_was_given_both_by_hand_lets_the_former_go(place):
    here = place(A, B)
    assert here.receive(B) == [B, A]  # never named: it may be the operator's own
    here = place(A, B)
    assert here.receive(B, A) == [B, A]
    assert here.receive(B) == [B]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("lists", [[(B, A)], [(B, A), (B,)]])
def test_a_kill_between_two_writes_is_made_up_for_by_the_next_list(place, monkeypatch, at, lists):
    here, count, write = place(X, A), 0, module.write_atomically
    for one in lists[:-1]:
        here.receive(*one)

    def fatal(*args):
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        write(*args)

    monkeypatch.setattr(module, "write_atomically", fatal)
    with pytest.raises(KeyboardInterrupt):
        here.receive(*lists[-1])
    assert A in here.held
    monkeypatch.undo()
    assert here.receive(*lists[-1]) == [*lists[-1], X]


def test_a_file_that_cannot_be_written_is_tried_again_and_loses_nothing(place, monkeypatch, caplog):
    here, write = place(A), module.write_atomically

    def full(path, *args):
        if path == here.file:
            raise OSError(28, "No space left on device")
        write(path, *args)

    monkeypatch.setattr(module, "write_atomically", full)
    assert here.receive(B, A) == [A]
    assert "authority not stored" in caplog.text
    monkeypatch.undo()
    assert here.receive(B) == [B]  # the list of the overlap was known


def test_what_is_known_belongs_to_a_fleet_and_survives_damage(place, caplog):
    here = place(A)
    here.receive(B, A)
    other = FollowedAuthorities.of(here.folder, "south", here.file)
    assert other.load().named == ()
    (here.folder / FILE).write_text("{")
    assert here.followed.load().named == ()
    assert "stored value rejected" in caplog.text
    assert here.receive(B, A) == [B, A]


def test_a_certificate_of_the_former_authority_is_renewed_early_and_spread(place):
    here, present = place(A), leaf("A")
    validity = present.until - present.since
    assert not here.followed.is_renewal_due(present, 1000.0)
    here.receive(B, A, now=1000.0)
    due = [
        t for t in (1000.0, 1000.0 + validity * SPREAD) if here.followed.is_renewal_due(present, t)
    ]
    assert due[-1:] == [1000.0 + validity * SPREAD]
    here.receive(B, A, now=9e8)  # the same list later changes nothing
    assert here.followed.is_renewal_due(present, 1000.0 + validity * SPREAD)
    for other in ("B", "X"):
        assert not here.followed.is_renewal_due(leaf(other), 9e9)
    assert not here.followed.is_renewal_due(None, 9e9)
    here.receive(B)
    assert not here.followed.is_renewal_due(present, 9e9)  # no server issues by it any more


def test_an_answer_by_the_former_authority_is_not_asked_for_again_at_once(place):
    here, present = place(A), leaf("A")
    validity = present.until - present.since
    here.receive(B, A, now=1000.0)
    now = 1000.0 + validity * SPREAD
    here.followed.record_issued(present, now)
    assert not here.followed.is_renewal_due(present, now)
    assert here.followed.is_renewal_due(present, now + 2 * validity * SPREAD)
    here.followed.record_issued(leaf("B"), now)


def test_a_clock_that_was_ahead_delays_no_renewal(place):
    here, present = place(A), leaf("A")
    here.receive(B, A, now=9e9)
    assert here.followed.is_renewal_due(present, 1.8e9)


@pytest.mark.parametrize(
    "der",
    [
        b"no certificate",
        made.der_of(
            made.issue(
                AUTHORITIES["A"],
                "meter-1",
                "device",
                made.new_key().public_key(),
                now=NOW,
                lifetime=DAY,
            )
        ),
    ],
    ids=["noise", "leaf"],
)
def test_what_is_no_authority_is_refused(der):
    with pytest.raises(Refused) as caught:
        checked([B, der])
    assert caught.value.reason is Reason.MALFORMED


def test_only_authorities_of_every_file_are_stated(tmp_path):
    for name, held in (("a.pem", [A, B]), ("b.pem", [B, X])):
        (tmp_path / name).write_bytes(pem_of(held))
    assert trusted_digests([tmp_path / "a.pem", tmp_path / "b.pem"]) == [digest_of(B)]
    assert trusted_digests([]) == []


def test_files_of_keys_and_certificates_are_read_by_their_certificates():
    key = AUTHORITIES["A"].key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    assert certificates_of(key + pem_of([A]) + b"# B\n" + pem_of([B, A])) == [A, B]


# --- a device that runs ---------------------------------------------------------------------------


@pytest.fixture
def one(make):
    one = make()
    one.device.start()
    one.device.observe()
    one.run(40)
    return one


def trusting(one, folder, *held):
    """Give the running device a file of authorities."""
    here = Place(folder, *held)
    announcements = one.device.client._session.parts.announcements

    def follow(found):
        here.followed.follow(found, checked(found), time.time())

    announcements.ring = replace(announcements.ring, follow_authorities=follow)
    return here


def test_an_authority_that_the_root_has_not_signed_is_refused_by_reason_and_counted(one, tmp_path):
    here = trusting(one, tmp_path, A)
    forged = made.der_of(authority("B").certificate)
    announce(one, listed(5, ca=(forged, A)), keys.from_seed(b"m" * 32))
    assert here.held == [A]
    assert refused(one)["UNKNOWN_CLIENT"] == 1
    announce(one, listed(6, ca=(forged, A)), AGG_KEY, sender="_agg")
    assert here.held == [A]
    assert refused(one)["WRONG_SENDER"] == 1
    announce(one, listed(7, ca=(b"noise", A)), ROOT_KEY)
    assert here.held == [A]
    assert refused(one)["MALFORMED"] == 1
    assert following(one).announced.serial < 5
    announce(one, listed(8, ca=(B, A)), ROOT_KEY)
    assert here.held == [B, A]
    announce(one, listed(7, ca=(forged,)), ROOT_KEY)  # an older list, repeated
    assert here.held == [B, A]
    assert refused(one)["ROLLBACK"] == 1
