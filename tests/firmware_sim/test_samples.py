"""The shipped readings are what the index says, and their terms travel with them."""

from __future__ import annotations

import gzip
from itertools import pairwise

import numpy as np
import pytest

from firmware_sim.samples import DATA, DeviceReadings, SampleError, sample_set, sample_sets

SETS = sorted(sample_sets())
OPEN = {"CC BY 4.0", "Open Government Licence v3.0", "Open Database License (ODbL) 1.0"}


@pytest.mark.parametrize("name", SETS)
def test_every_file_has_the_checksum_of_the_index(name):
    for sample in sample_set(name).samples:
        sample.verify()


@pytest.mark.parametrize("name", SETS)
def test_every_set_has_a_licence_and_attribution(name):
    chosen = sample_set(name)
    assert chosen.licence in OPEN
    assert chosen.attribution
    assert chosen.kind in {"measured", "simulated"}
    assert chosen.attribution in (DATA / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SETS)
def test_every_series_is_on_a_grid_without_gaps(name):
    chosen = sample_set(name)
    for sample in chosen.samples:
        times, values = sample.column(chosen.target)
        assert set(np.diff(times)) == {chosen.step_seconds}
        assert np.isfinite(values).all()
        assert (values >= 0).all()


def test_the_samples_stay_small():
    sizes = [x.stat().st_size for x in DATA.rglob("*.gz")]
    assert max(sizes) < 400_000
    assert sum(sizes) < 1_500_000


def test_a_changed_file_is_refused(tmp_path):
    real = sample_set("cells").samples[0]
    copy = tmp_path / real.path.name
    copy.write_bytes(real.path.read_bytes() + b"\0")
    with pytest.raises(SampleError, match="checksum"):
        DeviceReadings(real.device, copy, real.sha256).verify()


def test_no_two_devices_hold_the_same_series():
    for name in SETS:
        chosen = sample_set(name)
        columns = [x.column(chosen.target)[1] for x in chosen.samples]
        assert all(not np.array_equal(a, b) for a, b in pairwise(columns))


def test_a_folder_replaces_a_set(tmp_path):
    (tmp_path / "a.csv").write_text("time,load_kwh\n2020-01-01T00:00Z,1.5\n2020-01-01T01:00Z,\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"time,load_kwh\n2020-01-01T00:00Z,2\n"))
    own = sample_set("homes").of_folder(tmp_path)
    assert [x.device for x in own.samples] == ["a", "b"]
    times, values = own.samples[0].column("load_kwh")
    assert times.tolist() == [1577836800, 1577840400]
    np.testing.assert_array_equal(values, [1.5, np.nan])
    with pytest.raises(SampleError, match="no column 'wind_ms'"):
        own.samples[0].column("wind_ms")


def test_an_empty_folder_and_an_unknown_set_are_refused(tmp_path):
    with pytest.raises(SampleError, match=r"no \*\.csv"):
        sample_set("homes").of_folder(tmp_path)
    with pytest.raises(SampleError, match="cells, chargers, homes"):
        sample_set("meters")
