"""``gridfed-aggregator forget``: removal by command, its certificate, and what cannot be certified."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.analytic.fleet import AnalyticFleet
from edge_sdk.extensions.analytic.solve import fleet_solution
from edge_sdk.extensions.analytic.statistics import total
from tests.fleet.test_analytic import closed_form, finish

pytestmark = pytest.mark.extension


def ran(capsys, *args, code=0):
    capsys.readouterr()
    assert cli.main(["forget", *map(str, args)]) == code
    shown = capsys.readouterr()
    return shown.out if code == 0 else shown.err + shown.out


def ended(world):
    """A run of one pass, over."""
    one = closed_form(world, settings={"passes": 1})
    one.start_all()
    finish(one, 2)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    return one


@pytest.fixture
def removed(world, capsys, tmp_path):
    """A fleet without home-2, its certificate, its log's export and its public key."""
    one = ended(world)
    assert "then: the same command with --out" in ran(capsys, "home-2", "--config", one.config)
    one.until(lambda: not list(one.daemon.config.inbox.glob("*.json")))
    one.until(lambda: one.version == 3)
    said, log = tmp_path / "home-2.removal", tmp_path / "models.jsonl"
    ran(capsys, "home-2", "--config", one.config, "--out", said)
    assert cli.main(["log", "export", "--config", str(one.config), "--out", str(log)]) == 0
    return one, said, log, one.config.parent / "aggregator" / "aggregator.pub"


def test_a_removal_is_certified_and_verified_without_the_database(removed, capsys):
    one, said, log, public = removed
    assert "home-2" not in one.daemon.state.held
    text = ran(capsys, "home-2", "--verify", said, "--public", public, "--log", log)
    assert "home-2 was removed from run 1 of north" in text
    found = json.loads(ran(capsys, "home-2", "--verify", said, "--public", public, "--json"))[
        "removals"
    ][0]
    leaf = json.loads(log.read_text().splitlines()[1 + found["leaf"]])
    assert (leaf["version"], leaf["digest"]) == (found["version"], found["model"])
    assert found["version"] == 3
    other = ran(capsys, "home-1", "--verify", said, "--public", public, code=2)
    assert "no certificate of 'home-1'" in other


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "home-1"}, "BAD_SIGNATURE"),
        ({"event": 1}, "BAD_SIGNATURE"),
        ({"signature": "00"}, "BAD_SIGNATURE"),
        ({"path": ""}, "MALFORMED"),
        ({"note": "none"}, "MALFORMED"),
        ({"format": "other"}, "MALFORMED"),
    ],
)
def test_a_certificate_that_was_changed_is_refused(removed, capsys, change, reason):
    _, said, _, public = removed
    changed = json.loads(said.read_text()) | change
    said.write_text(json.dumps(changed))
    text = ran(capsys, "home-2", "--verify", said, "--public", public, code=1)
    assert f"refused: {reason}" in text


def test_the_model_has_the_bits_of_the_sums_of_the_others(removed):
    """The others' statistics are what they sent; the solution is that of a fleet of these alone."""
    one, *_ = removed
    section = one.daemon._engine.run.bundle.manifest.analytic
    fleet = AnalyticFleet(section, 3, None)
    known = total(fleet.statistics(one.daemon.state.held))
    wanted = fleet_solution(known, section.penalty)
    np.testing.assert_array_equal(one.consensus()[-wanted.size :], wanted.ravel())


def test_what_cannot_be_certified_is_one_sentence(removed, capsys):
    one, said, _, _ = removed
    assert "expected --out" in ran(capsys, "home-2", "--config", one.config, code=2)
    assert "expected --public" in ran(capsys, "home-2", "--verify", said, code=2)
