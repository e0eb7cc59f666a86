"""What the operator sees of a feeder: command, picture, HTTP document, gauges; and when a daemon forecasts."""

import csv
import io
import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder import command, feeder_refresh
from aggregator.extensions.feeder.feeder import FeederBook, FeederError, feeder_forecast
from aggregator.extensions.feeder.feeder_chart import day_chart
from aggregator.extensions.feeder.feeder_page import document, feeder_values
from aggregator.extensions.feeder.feeder_refresh import FeederForecasts
from tests.aggregator.extensions.feeder.sums import DAY, MONDAY, sums_of

HOUR = 3_600_000


@pytest.fixture
def config(workplace):
    more = ("\n[run]\n", '\nfeeder = { forecast = true, zone = "Europe/Berlin" }\n\n[run]\n')
    return AggregatorConfig.load(workplace(replacing=[more]))


@pytest.fixture
def shown(config, monkeypatch):
    """Return a function that runs the command on sums of two feeders."""
    sums = sums_of(28, members=19) + sums_of(3, feeder="F13", error=None)
    monkeypatch.setattr(command, "require_database", lambda found: found)
    monkeypatch.setattr(command, "opened_sums", lambda *_: sums)

    def show(feeder=None, *, csv=False, plot=None, store=False):
        given = {"feeder": feeder, "csv": csv, "plot": plot, "store": store}
        return command.run(SimpleNamespace(config=config.file, **given))

    return show


def test_all_feeders_have_a_line_each(shown):
    first, second = shown().text.splitlines()
    assert first.startswith("F12 ")
    assert "1 of 20 devices missing, from " in first
    assert second.endswith("20 of 20 devices missing, from the history alone")


def test_one_feeder_is_a_table_beside_the_day_before(shown):
    found = shown("F12")
    lines = found.text.splitlines()
    assert len(lines) == 3 + 24
    assert lines[1].startswith("history: 28 days until 2026-02-02T00:00:00+00:00; ")
    assert lines[3].startswith("2026-02-02T00:00:00+00:00 ")
    assert json.loads(json.dumps(found.data))["feeders"][0]["missing"] == 1


def test_csv_has_a_row_for_each_step_and_nothing_where_nothing_is_known(shown):
    rows = list(csv.DictReader(io.StringIO(shown("F13", csv=True).text)))
    assert len(rows) == 24
    assert (rows[0]["feeder"], rows[0]["missing"], rows[0]["lower"]) == ("F13", "20", "")
    assert rows[0]["start"] == "2026-01-08T00:00:00+00:00"


def test_a_picture_has_the_forecast_its_interval_and_the_day_before(shown, tmp_path):
    shown("F12", plot=tmp_path / "f12.svg")
    picture = (tmp_path / "f12.svg").read_text()
    assert (picture.count("<polyline"), picture.count("<polygon")) == (2, 1)
    assert "Sun 01 Feb, known" in picture  # the whole legend is inside
    assert max(float(at) for at in re.findall(r'<text x="([0-9.]+)"', picture)) < 700
    assert ">03:00<" in picture  # in the feeder's zone
    with pytest.raises(FeederError, match="expected one feeder"):
        shown(plot=tmp_path / "all.svg")


def test_a_picture_of_nothing_but_zeros_has_an_axis():
    one = feeder_forecast(sums_of(3, error=None), "F12", ZoneInfo("UTC"))
    nothing = replace(one, values=(0.0,) * 24, yesterday=replace(one.yesterday, values=(0.0,) * 24))
    picture = day_chart(nothing, ZoneInfo("UTC"))
    assert "nan" not in picture
    assert (">0<" in picture, ">1<" in picture) == (True, True)


def test_what_is_stored_is_on_the_page_over_http_and_in_the_metrics(shown, config):
    shown(store=True)
    values = feeder_values(config, {"id": "F12"})
    assert values["names"] == ["F12", "F13"]
    assert [one["name"] for one in values["feeders"]] == ["F12"]
    first = document(config)["feeders"][0]
    assert first["missing"] == 1
    registry = CollectorRegistry()
    begun = FeederForecasts(parts_of(registry, MONDAY + 28 * DAY + HOUR // 2), config)
    begun.measure()
    text = generate_latest(registry).decode()
    assert 'gridfed_feeder_missing_devices{feeder="F12"} 1.0' in text
    value = first["values"][0]["value"]
    assert f'gridfed_feeder_forecast{{feeder="F12",what="value"}} {value}' in text
    assert begun.status()["feeders"]["F12"]["missing"] == 1


def test_without_sums_it_says_so(shown, monkeypatch):
    monkeypatch.setattr(command, "opened_sums", lambda *_: [])
    assert shown().text == "no sum of a feeder's load is opened"
    with pytest.raises(FeederError, match="feeders: none"):
        shown("F12")


def parts_of(registry, wall=0):
    clock = SimpleNamespace(wall=lambda: wall)
    metrics = SimpleNamespace(registry=registry)
    return SimpleNamespace(isolation=SimpleNamespace(clock=clock, metrics=metrics))


def test_a_daemon_forecasts_once_for_each_newer_sum(config, monkeypatch):
    sums, begun = sums_of(3), []

    class Process:
        def __init__(self, command, **_):
            begun.append(command)

        def poll(self):
            return 0

    monkeypatch.setattr(feeder_refresh, "opened_sums", lambda *_: sums)
    monkeypatch.setattr(feeder_refresh.subprocess, "Popen", Process)
    daemon = FeederForecasts(parts_of(CollectorRegistry()), config)
    for second in range(200):
        daemon.on_tick(float(second))
    assert len(begun) == 1
    assert begun[0][2:] == ["aggregator", "feeder", "--store", "--config", str(config.file)]
    sums += sums_of(4)
    for second in range(200, 400):
        daemon.on_tick(float(second))
    assert len(begun) == 2


def test_the_process_that_a_daemon_starts_ends_and_a_fault_is_logged(config, monkeypatch, caplog):
    monkeypatch.setattr(feeder_refresh, "opened_sums", lambda *_: sums_of(3))
    daemon = FeederForecasts(parts_of(CollectorRegistry()), config)
    end = time.monotonic() + 60
    while "feeders not forecast" not in caplog.text and time.monotonic() < end:
        daemon.on_tick(1000.0)  # there is no database
        time.sleep(0.05)
    assert "feeders not forecast code=" in caplog.text
    assert not list(FeederBook.of(config).all())


def test_an_unknown_zone_is_refused(workplace):
    more = ("\n[run]\n", '\nfeeder = { zone = "Europe/Nowhere" }\n\n[run]\n')
    with pytest.raises(Exception, match="no time zone 'Europe/Nowhere'"):
        AggregatorConfig.load(workplace(replacing=[more]))
