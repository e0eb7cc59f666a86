"""What a person has to see to: told by metrics, status, page, log and ``check``."""

from __future__ import annotations

import json
import logging
import re
import time

import pytest

from aggregator.commands import main as cli
from aggregator.commands import status
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from aggregator.extensions.console.fleet_summary import notices
from aggregator.extensions.status_page.http_status import html
from aggregator.operations.operator_alerts import tls_files
from edge_sdk.app.clock import SystemClock
from firmware_sim.testing.loopback import LoopbackBroker
from tests.broker.authority import Authority

FILES = 'ca_file = "ca.pem", cert_file = "agg.crt", crl_file = "revoked.pem"'
NAMED = 'url = "mqtt://127.0.0.1:1883"', f'url = "mqtts://127.0.0.1:8883", {FILES}'


@pytest.fixture
def authority(tmp_path):
    """Writes the three files beside the configuration."""
    one = Authority(tmp_path, "ca", days=(-400.0, 400.5))
    one.issue("agg", days=(-400.0, 90.5))
    one.revoked(days=(-4.0, 3.5))
    return one


@pytest.fixture
def serve(founded):
    opened = []

    def make(replacing=(NAMED,), clock=None):
        config = founded(replacing=replacing)
        daemon = Daemon(
            config, transport=LoopbackBroker().link("_agg"), clock=clock or SystemClock()
        )
        opened.append(daemon)
        daemon.open()
        return daemon

    yield make
    for daemon in opened:
        daemon.close()


def exported(daemon):
    """Return days left by kind, as a scrape has it."""
    text = daemon.metrics.text().decode()
    rows = [line for line in text.splitlines() if line.startswith("gridfed_certificate_expires")]
    found = {}
    for row in rows:
        kind = row.partition('kind="')[2].partition('"')[0]
        found[kind] = (float(row.rpartition(" ")[2]) - time.time()) / 86_400
    return found


def test_metrics_and_status_tell_when_each_file_expires(authority, serve):
    daemon = serve()
    wanted = {"ca": 400.5, "certificate": 90.5, "crl": 3.5}
    assert exported(daemon) == pytest.approx(wanted, abs=0.01)
    rows = daemon.snapshot.document()["certificates"]
    assert [(r["kind"], r["days"], r["soon"]) for r in rows] == [
        ("ca", 400, False), ("certificate", 90, False), ("crl", 3, False),
    ]  # fmt: skip
    assert "3 days left" in html(daemon.snapshot.document())
    assert "configuration" not in daemon.snapshot.document()


def test_a_renewed_file_and_one_that_is_gone_are_seen_at_the_next_look(authority, serve):
    daemon = serve()
    authority.revoked(days=(-1 / 24, 20.5))
    authority.file.unlink()
    daemon._run_periodic()
    found = exported(daemon)
    assert found["crl"] == pytest.approx(20.5, abs=0.01)
    assert found["ca"] == pytest.approx(-time.time() / 86_400, abs=0.01)  # the metric is 0
    row = daemon.snapshot.document()["certificates"][0]
    told = (row["days"], row["expires"], row["status"], row["soon"])
    assert told == (None, None, "No such file or directory", True)


def test_the_log_warns_once_a_day(authority, serve, still_clock, caplog):
    still_clock.wall = lambda: int(1000 * (time.time() + still_clock.now - 1000.0))
    with caplog.at_level(logging.WARNING, "aggregator.operations.operator_alerts"):
        daemon = serve(clock=still_clock)
        for hours in (0, 12, 24, 36, 48, 60):
            still_clock.now = 1000.0 + 3600 * hours
            daemon._run_periodic()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2  # the last third of a list's week begins after a day
    assert all("kind=crl" in line for line in said)
    assert 'is="1 day left"' in said[1]


def test_access_rules_that_lack_a_run_are_told_at_the_start(serve, tmp_path):
    (tmp_path / "access").write_text(mosquitto_access("south", ["meter-1"]))
    daemon = serve(replacing=(("\n[run]\n", '\n[ca]\naccess_file = "access"\n\n[run]\n'),))
    document = daemon.snapshot.document()
    assert "rules of fleet south, not of north" in document["access_rules"]
    assert "rules of fleet south" in html(document)
    assert any("rules of fleet south" in one.text for one in notices(document, {}))
    assert "rules of fleet south" in status._prose({"running": True, **document})


def test_nothing_that_expires_nothing_to_tell(serve):
    daemon = serve(replacing=())
    assert exported(daemon) == {}
    assert "certificates" not in daemon.snapshot.document()
    assert "Upkeep" not in html(daemon.snapshot.document())


def check(path, capsys):
    code = cli.main(["check", str(path), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if code == 0 else err


def test_check_tells_days_and_warns(authority, workplace, capsys):
    path = workplace(replacing=(NAMED,))
    authority.revoked(days=(-6.0, 1.5))
    code, said = check(path, capsys)
    assert code == 0
    assert [row["days"] for row in said["certificates"]] == [400, 90, 1]
    assert cli.main(["check", str(path)]) == 0
    told = capsys.readouterr().out
    assert f"warning: {authority.folder / 'revoked.pem'}: 1 day left" in told
    assert told.count("warning") == 1
    assert told.rstrip().endswith(": valid")


def swap(authority):
    (authority.folder / "agg.crt").write_bytes((authority.folder / "agg.key").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda a: a.revoked(days=(-9.0, -2.5)),
            r"broker.crl_file: \S+: expired 2 days ago\n.*list",
        ),
        (lambda a: a.issue("agg", days=(-9.0, -1.5)), r"broker.cert_file: .* 1 day ago\n.*_agg"),
        (lambda a: Authority(a.folder, "ca", days=(-9.0, -1.5)), r"broker.ca_file: .* ago\n.*auth"),
        (lambda a: a.file.unlink(), r"broker.ca_file: \S+ca.pem: No such file"),
        (lambda a: a.file.write_text("x"), r"broker.ca_file: \S+: no certificate in it"),
        (swap, r"broker.cert_file: \S+: no certificate in it, but: private key"),
    ],
)
def test_check_refuses_what_keeps_everybody_out(authority, workplace, capsys, spoil, why):
    path = workplace(replacing=(NAMED,))
    spoil(authority)
    code, said = check(path, capsys)
    assert code == 2
    assert re.search(why, said)


def test_an_old_authority_beside_its_successor_is_a_warning(authority, workplace, capsys):
    old = Authority(authority.folder, "old", days=(-9.0, -1.5))
    authority.file.write_bytes(old.file.read_bytes() + authority.file.read_bytes())
    code, said = check(workplace(replacing=(NAMED,)), capsys)
    assert code == 0
    row = said["certificates"][0]
    assert (row["soon"], row["status"]) == (True, "expired 1 day ago, the first of 2")


def test_the_daemon_starts_with_what_has_expired(authority, serve):
    authority.revoked(days=(-9.0, -2.5))
    daemon = serve()
    assert daemon.snapshot.document()["certificates"][2]["status"] == "expired 2 days ago"


def test_status_tells_it_where_no_daemon_runs(authority, founded, capsys):
    config = founded(replacing=(NAMED,))
    assert cli.main(["status", str(config.file)]) == 0
    assert f"crl {authority.folder / 'revoked.pem'}: 3 days left" in capsys.readouterr().out


def test_files_are_those_that_the_configuration_names(workplace):
    assert tls_files(AggregatorConfig.load(workplace(), {})) == ()
