"""The demo of two feeders: sums under masks, silent homes, a picture of each feeder."""

import json

import numpy as np
import pytest

from edge_sdk.extensions.sums.masked_sum import added, rounded, values_of
from firmware_sim.commands.main import main
from firmware_sim.direct import feeder

pytestmark = pytest.mark.extension
SIZE = ["--homes", "24", "--days", "34"]


@pytest.mark.slow
def test_two_feeders_are_forecast_from_sums_that_a_witness_has_opened(tmp_path, capsys):
    folder = tmp_path / "feeders"
    assert main(["feeder", "--out", str(folder), *SIZE, "--silent", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["feeders"]
    assert [one["feeder"] for one in found] == ["F12", "F13"]
    assert {one["how"] for one in found} == {"combined"}
    assert sum(one["missing"] for one in found) > 0
    assert all(len(one["values"]) == len(one["truth"]) == 24 for one in found)
    assert sorted(path.name for path in folder.glob("*.svg")) == ["F12.svg", "F13.svg"]
    assert main(["feeder", "--out", str(folder)]) == 2


def test_an_opened_sum_is_that_of_the_homes_whose_numbers_arrived(tmp_path):
    load = np.stack([feeder._load(n, 30) for n in range(20)])
    sums, sent = feeder._opened(tmp_path, load, load[:, 28:], 0.0, 1)
    assert len(sums) == 2 * (29 + 2)
    assert sent < 2 * (24 * 8 + 160)
    first = next(one for one in sums if (one.source, one.value) == ("history", "F13"))
    assert first.members == first.expected == 10
    terms = feeder._contract("history", bytes([9]) * 32)
    plain = added((rounded(one, terms) for one in load[1::2, 0]), 24)
    assert np.array_equal(first.values, values_of(plain, 10, terms))


def test_a_home_expects_what_its_readings_before_make_its_bundle_expect():
    load = np.stack([feeder._load(n, 30) for n in range(2)])
    found = feeder._expected(load)
    assert found.shape == (2, 2, 24)
    assert np.abs(found - load[:, 28:]).mean() < np.abs(load[:, 27:29] - load[:, 28:]).mean()
    load[:, 29] *= 3.0  # what is to come
    assert np.array_equal(feeder._expected(load), found)


def test_too_few_homes_or_days_are_refused(tmp_path):
    for number, wrong in enumerate((["--homes", "19"], ["--days", "28"])):
        assert main(["feeder", "--out", str(tmp_path / str(number)), *wrong]) == 2
