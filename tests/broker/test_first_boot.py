"""A device that was never welcomed and whose clock is at 1970: it learns the time on a limited connection."""

from __future__ import annotations

import sqlite3
import time

import pytest

from edge_sdk.commands.main import main as edge
from edge_sdk.errors import OK
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.transport import LinkDown, LinkUp
from edge_sdk.store.store import DeviceStore
from tests.broker.authority import Authority
from tests.broker.test_certificate_renewal import RenewalSite
from tests.broker.test_clock import DAY, dated_broker, site
from tests.broker.test_enrolment import sites, until

pytestmark = pytest.mark.broker

__all__ = ["site"]  # a fixture: a broker whose certificate begins in ten days and ends in twenty


@pytest.fixture
def place(tmp_path):
    yield from sites(RenewalSite, tmp_path)


def first(url, authority, days, may_be_later):
    """Return the first event of a link; ``days`` from now is the latest time that is known."""
    broker = Broker(
        url=url,
        client_id="dev1",
        ca_file=authority,
        judged_at=lambda: time.time() + days * DAY,
        earliest=lambda: time.time() + days * DAY if may_be_later else None,
    )
    link = MqttLink(broker)
    link.open()
    try:
        for _ in range(2000):
            for happening in link.poll(0.05):
                return happening
    finally:
        link.close()


def test_a_certificate_that_begins_later_makes_a_limited_connection(site):
    url, authority, _ = site
    found = first(url, authority, -400, may_be_later=True)
    assert isinstance(found, LinkUp)
    assert found.is_limited
    assert found.dates_by == "no time yet"
    found = first(url, authority, 11, may_be_later=True)
    assert isinstance(found, LinkUp)
    assert not found.is_limited


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A broker whose certificate ended ten days ago, as it seems to a clock that is ahead."""
    yield from dated_broker(tmp_path_factory.mktemp("ended"), (-20, -10))


def connections(url, authority, earliest, judged_at):
    """Return the first two events of a link."""
    broker = Broker(
        url=url,
        client_id="dev1",
        ca_file=authority,
        judged_at=judged_at,
        earliest=earliest,
        reconnect_min=0.1,
    )
    link, found = MqttLink(broker), []
    link.open()
    try:
        for _ in range(2000):
            found += link.poll(0.05)
            if len(found) >= 2:
                break
    finally:
        link.close()
    return found[:2]


@pytest.mark.soak
def test_a_clock_that_is_ahead_gets_the_time_on_a_limited_connection(ended):
    url, authority, _ = ended
    right = time.time() - 15 * DAY  # the machine's clock is fifteen days ahead
    refused, limited = connections(url, authority, lambda: right, lambda: None)
    assert isinstance(refused, LinkDown)
    assert "expired" in refused.why
    assert isinstance(limited, LinkUp)
    assert limited.is_limited
    first = connections(url, authority, lambda: None, lambda: right)[0]
    assert isinstance(first, LinkUp)  # the welcome has given the time
    assert not first.is_limited
    assert first.dates_by == "stored time"


def test_a_certificate_that_ended_before_the_signed_time_is_refused_again_and_again(ended):
    url, authority, _ = ended
    for earliest in (time.time() - 5 * DAY, None):
        found = connections(url, authority, lambda at=earliest: at, lambda: None)
        assert [type(one) for one in found] == [LinkDown, LinkDown]


def test_the_connection_is_refused_once_the_time_is_known(site):
    url, authority, _ = site
    found = first(url, authority, -400, may_be_later=False)
    assert isinstance(found, LinkDown)
    assert "this machine's clock is wrong" in found.why


def test_a_certificate_that_has_ended_chain_and_name_are_refused_as_ever(site, tmp_path):
    url, authority, _ = site
    other = Authority(tmp_path, "other").file
    named = url.replace("127.0.0.1", "localhost")
    wrong = "CERTIFICATE_VERIFY_FAILED"
    for where, trusted, days, why in (
        (url, authority, 21, "this machine's clock is wrong"),
        (url, other, -400, wrong),
        (named, authority, -400, wrong),
    ):
        found = first(where, trusted, days, may_be_later=True)
        assert isinstance(found, LinkDown), where
        assert why in found.why


@pytest.mark.slow
def test_a_device_at_1970_that_was_never_welcomed_gets_the_time_and_takes_part(place, tmp_path):
    here = place()
    here.start("aggregator", "run", here.config)
    agent = here.enrolled(life=3600)  # by a person whose machine has a clock
    shift = tmp_path / "shift"
    shift.write_text(str(-int((time.time() - DAY) * 1000)))  # on 2 January 1970
    agent.start("-m", "tests.broker.shifted_clock", shift, "edge_sdk", "run", agent.config)
    agent.until(lambda said: said.count("welcome received") >= 1)
    said = agent.said
    limited, known = said.index("connection limited"), said.index("server time is known")
    assert limited < known < said.index("welcome received")
    assert 'certificate_dates_by="no time yet"' in said[:known]
    assert 'certificate_dates_by="stored time"' in said[known:]
    agent.until(lambda said: "round trained" in said)
    assert agent.stop() == 0
    with sqlite3.connect(next((agent.folder / "state").glob("*.db"))) as db:
        ((floor,),) = db.execute("SELECT value FROM facts WHERE name = 'floor'")
    assert abs(floor / 1000 - time.time()) < DAY
    assert edge(["status", str(agent.config)]) == OK


@pytest.mark.slow
def test_a_device_at_1970_whose_certificate_has_expired_without_its_knowledge_renews_it(
    place, tmp_path
):
    here = place()
    here.start("aggregator", "run", here.config)
    agent = here.enrolled(life=12)
    issued = CertificateFiles(agent.pem).present()
    with DeviceStore.open(agent.folder / "state") as store:
        store.set_facts(floor=int(1000 * (issued.since + 1)))  # its last signed time
    here.serve_short(life=3600)
    until(lambda: time.time() > issued.until, "the end of the certificate")
    shift = tmp_path / "shift"
    shift.write_text(str(-int((time.time() - DAY) * 1000)))  # on 2 January 1970
    agent.start("-m", "tests.broker.shifted_clock", shift, "edge_sdk", "run", agent.config)
    agent.until(lambda said: "certificate confirmed" in said)
    said = agent.said
    assert "the broker refuses the certificate" in said[: said.index("certificate renewed")]
    assert agent.stop() == 0
    assert CertificateFiles(agent.pem).present().until > issued.until
