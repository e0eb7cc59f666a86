"""Several participations of one device: their configuration, and one record of readings for all."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.app.settings import SettingsError, from_table
from edge_sdk.commands import participant
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.outputs.forecast_issuer import open_outputs
from edge_sdk.extensions.participations.participations import Participations
from edge_sdk.forecasting.series import Reading, Series
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol.outbox_state import UplinkCounters
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.privacy_accountant import charges_of, former_charges

ENERGY, WARMTH = "elec.import.energy", "weather.temperature"
QUARTER, HOUR, START = 900, 3600, 1_514_764_800


def config(folder="state", **more):
    table = {
        "id": "meter-1",
        "fleet": "north",
        "state": str(folder),
        "bundle": "load-week-1",
        "broker": {"url": "mqtt://127.0.0.1"},
        "keys": {"device": "meter.key", "root": "root.pub"},
        "privacy": {"mechanism": {"name": "none"}},
        "participation": [{"id": "meter-1-b", "bundle": "load-mlp", "methods": ["fedavg"]}],
    }
    return from_table(Config, table | more, "meter.toml")


def client(step):
    series = Series(step, [ENERGY, WARMTH])
    learner = SimpleNamespace(series=series, announced=SimpleNamespace(rows=frozenset()))
    return SimpleNamespace(step=step, learner=learner, observe=series.add)


def device(*steps):
    return Participations([client(step) for step in steps])


def values(one, number, stream=ENERGY):
    series = one.clients[number].learner.series
    return dict(zip(series.times().tolist(), series.values(stream).tolist(), strict=True))


# --- the configuration ----------------------------------------------------------------------------


def test_a_further_participation_has_an_id_a_bundle_and_a_folder_and_the_devices_limits():
    own, further = config(limits={"daily_link_bytes": 9}).participants()
    assert (own.id, own.bundle, own.participation) == ("meter-1", "load-week-1", ())
    assert (further.id, further.bundle) == ("meter-1-b", "load-mlp")
    assert further.state == own.state / "participations" / "meter-1-b"
    assert further.accept.methods == ("fedavg",)
    assert further.keys == own.keys
    assert further.limits == own.limits
    assert len(config(participation=[]).participants()) == 1


def test_releases_outside_the_claim_are_those_of_the_devices_own_participation():
    budget = {"unclaimed_releases": 5}
    privacy = {"mechanism": {"name": "none"}, "budget": budget}
    own, further = config(privacy=privacy).participants()
    assert own.privacy.budget.unclaimed_releases == 5
    assert further.privacy.budget.unclaimed_releases == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"participation": [{"id": "meter-1", "bundle": "b"}]}, "'meter-1' is in use"),
        ({"participation": [{"id": "x", "bundle": "b"}] * 2}, "'x' is in use"),
        ({"participation": [{"id": f"x{n}", "bundle": "b"} for n in range(4)]}, "participation"),
        (
            {"participation": [{"id": "x", "bundle": "b", "cert_file": "x.pem"}]},
            r"participation\[0\].cert_file",
        ),
        (
            {"broker": {"url": "mqtts://h", "cert_file": "m.pem", "key_file": "m.key"}},
            r"participation\[0\].cert_file",
        ),
    ],
)
def test_a_shared_id_or_certificate_is_refused(changes, why):
    with pytest.raises(SettingsError, match=why):
        config(**changes)


def test_an_output_belongs_to_one_participation(tmp_path):
    rows = [
        {"type": "file", "path": str(tmp_path / name), **more}
        for name, more in (("a", {}), ("b", {"participation": "meter-1-b"}))
    ]
    both = config(output=rows)
    assert [x.name for x in open_outputs(both, "meter-1")] == ["0 file"]
    assert [x.name for x in open_outputs(both, "meter-1-b")] == ["1 file"]
    other = config(output=[rows[0] | {"participation": "meter-2"}])
    with pytest.raises(ConfigError, match="unknown 'meter-2'; known: meter-1, meter-1-b"):
        open_outputs(other, "meter-1")
    with pytest.raises(ConfigError, match="--participation: unknown 'meter-2'"):
        participant(both, "meter-2")
    assert participant(both, "").id == "meter-1"


# --- one record -----------------------------------------------------------------------------------


@given(st.permutations(range(12)), st.booleans())
def test_a_coarser_grid_has_the_sums_of_the_devices_own_readings(order, has_length):
    one = device(QUARTER, HOUR)
    seconds = float(QUARTER) if has_length else None
    for at in order:
        one.observe(Reading(ENERGY, START + QUARTER * at, float(2**at), seconds=seconds))
    expected = {START + HOUR * h: float(sum(2 ** (4 * h + q) for q in range(4))) for h in range(3)}
    assert values(one, 1) == expected
    assert len(values(one, 0)) == 12


def test_a_longer_intervals_energy_fills_no_slot_of_a_finer_grid_and_a_temperature_does():
    one = device(HOUR, QUARTER)
    one.observe(Reading(ENERGY, START, 4.0))
    one.observe(Reading(WARMTH, START, 9.0))
    assert values(one, 0) == {START: 4.0}
    assert values(one, 1, WARMTH) == {START: 9.0}
    assert math.isnan(values(one, 1)[START])
    assert one.step == QUARTER


@given(st.integers(1, 40), st.integers(0, 40))
def test_a_new_or_restarted_participation_has_the_devices_own_record(rows, before):
    """The oracle is a participation that observed every reading itself."""
    always, late = device(QUARTER, HOUR), device(QUARTER, HOUR)
    for at in range(rows):
        reading = Reading(ENERGY, START + QUARTER * at, 1.0 + at, seconds=float(QUARTER))
        always.observe(reading)
        if at < min(before, rows) // 4 * 4:  # whole hours, which a restart keeps
            late.observe(reading)
        else:
            late.main.observe(reading)
    late.backfill()
    assert values(late, 1) == values(always, 1)
    last = Reading(ENERGY, START + QUARTER * rows, 1.0 + rows, seconds=float(QUARTER))
    for one in (always, late):
        one.observe(last)
    np.testing.assert_equal(values(late, 1), values(always, 1))


# --- ledgers of former participations -------------------------------------------------------------


def test_ledgers_of_former_participations_count_and_unrecorded_releases_are_unbounded(tmp_path):
    charge = PrivacyCharge(0, "device", "update", "gaussian", 4.0, releases=1)
    for name, spent in (("meter-1-b", 1), ("gone", 1), ("lost", 3)):
        with DeviceStore.open(tmp_path / "participations" / name) as store:
            store.charge(UplinkCounters(spent=spent), [charge])
    found = former_charges(config(tmp_path))
    assert [one.released for one in found] == [1, 3]  # gone, lost; not the configured one
    assert found[0] == charges_of(tmp_path / "participations" / "gone")
    assert [one.multiplier for one in found[1].charges] == [4.0, 0.0]
