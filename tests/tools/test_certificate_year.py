"""A simulated year of certificates: nobody is locked out, and the simulation notices who would be."""

from __future__ import annotations

import json

import pytest

from aggregator.extensions.authority.est_service import EstService
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles, new_tls_key
from edge_sdk.extensions.certificates.certificate_renewal import CertificateRenewal
from edge_sdk.extensions.certificates.renewal_schedule import due_at, jitter_of
from edge_sdk.protocol.keys import write_atomically
from edge_sdk.session.server_clock import ServerClock
from tools.certificate_year.__main__ import main, text_of
from tools.certificate_year.faults import STEPS
from tools.certificate_year.machine_clock import DAY, KINDS
from tools.certificate_year.year import BEGIN, Year, YearSettings


def simulated(tmp_path, **settings):
    return Year(YearSettings(**settings), tmp_path / "fleet").run()


@pytest.fixture(autouse=True)
def place(tmp_path):
    (tmp_path / "fleet").mkdir()


@pytest.mark.slow
def test_a_fleet_with_kills_outages_and_every_wrong_clock_loses_no_device_and_no_round(tmp_path):
    found = simulated(tmp_path, devices=20, days=62, seed=2, wrong_clocks=0.5, kill_rate=0.1)
    assert found.is_sound, text_of(found)
    assert set(found.wrong_clocks) == {*KINDS, "right"}
    assert found.rounds_owed > 800
    assert found.renewals > 20 * 2
    assert found.requests > found.renewals
    assert sum(found.kills.values()) > 50
    renewed = STEPS[: STEPS.index("former pair removed") + 1]
    assert all(found.visits[step] > 20 for step in renewed)
    assert found.events["limited connections"] > 0
    assert found.events["authority restarted"] > 10


def test_the_same_seed_gives_the_same_year(tmp_path):
    settings = {"devices": 6, "days": 24, "wrong_clocks": 0.0}
    first = simulated(tmp_path, **settings)
    (tmp_path / "again" / "fleet").mkdir(parents=True)
    second = simulated(tmp_path / "again", **settings)
    assert (first.renewals, first.rounds_owed) == (second.renewals, second.rounds_owed)
    assert first.visits == second.visits


def test_a_key_that_replaces_the_former_one_before_its_certificate_is_there_locks_devices_out(
    tmp_path, monkeypatch
):
    real = CertificateFiles.pending_key

    def pending_key(files):
        if files.present() is None:
            return real(files)
        key = new_tls_key()
        write_atomically(files.path, key, 0o600)
        write_atomically(files.next, key, 0o600)
        return key

    monkeypatch.setattr(CertificateFiles, "pending_key", pending_key)
    found = simulated(tmp_path, devices=10, days=40, wrong_clocks=0.0, kill_rate=0.1)
    assert not found.is_sound
    assert len(found.locked_out) > 1
    assert found.events["starts refused"] > 0


def test_a_renewal_by_the_device_s_own_clock_alone_locks_out_devices_without_one(
    tmp_path, monkeypatch
):
    def is_due(self, present):
        return present is None or self.wall() >= due_at(
            present.since, present.until, jitter_of(self.name, present.until)
        )

    monkeypatch.setattr(CertificateRenewal, "_is_due", is_due)
    year = Year(YearSettings(devices=8, days=60, wrong_clocks=1.0), tmp_path / "fleet")
    for device in year.devices:
        device.asleep = [(BEGIN + 10 * DAY, BEGIN + 50 * DAY)]
    found = year.run()
    assert found.locked_out["meter-6"].startswith("clock: 1970 after each power-up")


@pytest.mark.slow
def test_servers_judged_by_the_device_s_own_clock_lock_out_devices_whose_clock_is_wrong(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(ServerClock, "earliest_certificate_time", lambda _self: None)
    found = simulated(tmp_path, devices=5, days=14, wrong_clocks=1.0)
    assert {"clock: years ahead"} <= {why.partition(";")[0] for why in found.locked_out.values()}
    assert found.rounds_lost > 10


def test_a_list_of_revoked_certificates_that_nobody_renews_locks_the_fleet_out(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(EstService, "renew_list", lambda _self: None)
    found = simulated(tmp_path, devices=2, days=33, wrong_clocks=0.0)
    assert len(found.locked_out) == 2


def test_the_command_prints_json_and_its_exit_code_is_the_verdict(tmp_path, capsys):
    words = ["--devices", "3", "--days", "10", "--folder", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["devices"] == 3
    assert found["is_sound"]
    assert main(words) == 0
    assert "locked out: 0" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--days", "2"])
