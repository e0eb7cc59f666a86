"""The authority is replaced under a fleet that trains: real programs, `ca serve`, and Mosquitto with TLS."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from cryptography import x509 as reader

from aggregator.extensions.authority.certificate_reader import (
    certificates_in,
    common_name,
    issuer_id,
)
from edge_sdk.errors import OK, USAGE
from tests.aggregator.extensions.key_rotation.test_key_rotation import killed_at
from tests.broker.test_certificate_renewal import TRAINING, RenewalSite
from tests.broker.test_enrolment import run, sites, until, version_of

pytestmark = pytest.mark.broker

LIFE = 120.0  # s that a device's certificate is valid: a rotation takes a tenth of it


class RotationSite(RenewalSite):
    """A site whose operator replaces the authority, and is killed on the way."""

    daemon = None

    def start_daemon(self):
        self.daemon = self.start("aggregator", "run", self.config)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()
        self.programs.remove(self.daemon)

    def rotate(self, *words):
        return run("rotate", "ca", *words, "--config", self.config)

    def rotate_killed(self, at, *words):
        """Give the command, let it be killed at its n-th change of a file, and give it again."""
        ended = killed_at(SimpleNamespace(path=self.config), at, "ca", *words)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert self.rotate(*words) == OK

    def key_ids(self, file):
        return {common_name(one): key_of(one) for one in certificates_in(file.read_bytes())}

    def issuer_of(self, file, known):
        """Return the name of the authority that has issued the first certificate of a file."""
        by = issuer_id(certificates_in(file.read_bytes())[0])
        return next((name for name, key in known.items() if key == by), "another")


def key_of(one):
    return reader.SubjectKeyIdentifier.from_public_key(one.public_key()).digest.hex()


@pytest.fixture
def site(tmp_path):
    yield from sites(RotationSite, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_device_trains_before_during_and_after_the_replacement_with_kills_on_the_way(
    site, capsys
):
    # Mosquitto 2.0.11 ends now and then when it reads its rules again while a client disconnects.
    here = site(more=TRAINING, reload=["true"])

    def trains(rounds=2):
        before = version_of(here, capsys)
        agent.until(lambda _: version_of(here, capsys) >= before + rounds)

    here.start_daemon()
    agent = here.enrolled(life=LIFE)
    agent.start()
    trains()
    own = agent.folder / "ca.pem"
    here.kill_daemon()
    here.rotate_killed(12)
    known = here.key_ids(here.ca / "ca.pem")
    former, following = known
    assert list(here.key_ids(own)) == [former]
    here.broker.restart()
    here.start_daemon()
    agent.until(lambda said: "authorities replaced" in said)
    agent.stop(signal.SIGKILL)
    assert list(here.key_ids(own)) == [following, former]
    agent.start()
    agent.until(
        lambda said: (
            "certificate confirmed" in said and here.issuer_of(agent.pem, known) == following
        )
    )
    assert "certificate refused" not in agent.said
    trains()

    host = ("--host", "localhost", "--host", "127.0.0.1")
    capsys.readouterr()
    assert here.rotate("--finish") == USAGE
    assert "the certificate is of the former authority" in capsys.readouterr().err
    for name, role, *more in (("broker", "broker", *host), ("_agg", "aggregator")):
        words = (name, "--role", role, *more, "--renew", "--config", here.config)
        assert run("ca", "issue", *words) == OK
        assert here.issuer_of(here.ca / "issued" / f"{name}.pem", known) == following
    assert here.rotate("--finish") == USAGE  # the broker has its former certificate in memory
    assert "restart the broker" in capsys.readouterr().err
    here.broker.restart()
    trains()
    here.kill_daemon()
    here.rotate_killed(10, "--finish")
    here.broker.restart()
    here.start_daemon()
    until(lambda: list(here.key_ids(own)) == [following], "the device trusts the next one alone")
    agent.stop(signal.SIGKILL)
    agent.start()
    trains()
    agent.until(lambda said: "certificate confirmed" in said)  # by `ca serve`, which went on
    assert here.issuer_of(agent.pem, known) == following
    assert "certificate refused" not in agent.log
    assert agent.stop() == 0
    assert run("audit-log", "show", "--config", here.config) == OK
    shown = capsys.readouterr().out
    assert "finished: authority" in shown
