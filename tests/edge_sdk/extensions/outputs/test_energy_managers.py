"""The shapes of energy managers: golden documents, refusals, and their parsers where one is a package.

Sources of the shapes, August 2026: EMHASS, "Passing data to EMHASS", a forecast as timestamped
values; evcc, the custom tariff's ``forecast``, a list of start, end and value; Predbat,
``load_forecast`` in its page on apps.yaml, a dictionary of timestamps and increasing kWh; OpenEMS,
``updateComponentConfig`` of its REST controller, and the rows that its simulated predictor reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import tomllib
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError, from_table
from edge_sdk.extensions.outputs.energy_managers import (
    PLANS,
    RECORDED,
    NotPlannableError,
    emhass,
    entity,
    evcc,
    openems,
    plan_text,
    predbat,
    present,
)
from edge_sdk.extensions.outputs.file import FileOutputSection, FileSink
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, open_output
from edge_sdk.extensions.outputs.http import HttpSink
from edge_sdk.extensions.outputs.mqtt import MqttOutputSection, MqttSink, MqttTopics
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.link.transport import LinkUp
from edge_sdk.sources import open_source
from tests.edge_sdk.extensions.outputs.conftest import START, issued_forecast, nothing_yet
from tests.edge_sdk.extensions.outputs.test_http import get
from tests.edge_sdk.extensions.outputs.test_mqtt import Link

HOUR = 3600


def day_ahead(steps=24, step=HOUR, unit="kWh", start=START, values=None, **changes):
    """A forecast of a day: a bundle with so many steps, each 0.1 above the one before."""
    known = 0.1 * (1 + np.arange(steps)) if values is None else np.asarray(values, float)
    ends = np.stack([known - 0.05, known + 0.05], axis=1)
    times = start + step * np.arange(len(known), dtype=np.int64)
    forecast = Forecast(times, known, unit, "model", ends, 0.8)
    return issued_forecast(forecast=forecast, step=step, **changes)


def test_emhass_gets_mean_power_in_watts_by_time():
    found = emhass(day_ahead())["load_power_forecast"]
    assert len(found) == 24
    assert list(found.items())[:2] == [
        ("2023-11-14T23:00:00+00:00", 100.0),
        ("2023-11-15T00:00:00+00:00", 200.0),
    ]
    quarters = emhass(day_ahead(96, 900))["load_power_forecast"]
    assert next(iter(quarters.values())) == 400.0, "0.1 kWh in a quarter of an hour"
    power = emhass(day_ahead(unit="kW", stream="elec.import.power"))["load_power_forecast"]
    assert next(iter(power.values())) == 100.0


def test_plans_are_made_of_expected_values_where_the_forecast_has_them():
    issued = day_ahead()
    known = issued.forecast
    better = replace(known, expected=known.values + 0.5)
    issued = replace(issued, forecast=better)
    assert next(iter(emhass(issued)["load_power_forecast"].values())) == 600.0
    assert evcc(issued)[0]["value"] == 600.0
    total = max(predbat(issued)["results"].values())
    assert total == pytest.approx(float(better.expected.sum()))
    state = entity("home-assistant", issued, START)
    assert state["state"] == 0.6
    assert state["attributes"]["forecast"][0]["low"] == 0.05


def test_evcc_gets_rates_with_both_ends():
    assert evcc(day_ahead())[0] == {
        "start": "2023-11-14T23:00:00+00:00",
        "end": "2023-11-15T00:00:00+00:00",
        "value": 100.0,
    }
    warm = evcc(day_ahead(unit="°C", stream="weather.temperature"))
    assert warm[0]["value"] == pytest.approx(0.1)


def minutes_of(results, midnight):
    """kWh of each minute as Predbat's documentation reads it: linear between increasing values."""
    at = [datetime.strptime(x, "%Y-%m-%dT%H:%M:%S%z").timestamp() for x in results]
    known = np.array([*results.values()])
    minutes = midnight + 60 * np.arange(3 * 1440)
    return np.diff(np.interp(minutes, at, known))


@pytest.mark.parametrize(("steps", "step"), [(24, HOUR), (48, HOUR), (96, 900)])
def test_predbat_gets_increasing_energy(steps, step):
    issued = day_ahead(steps, step)
    results = predbat(issued)["results"]
    assert list(results.values())[:3] == pytest.approx([0.0, 0.1, 0.3])
    midnight = START // 86_400 * 86_400
    kwh = minutes_of(results, midnight)
    first = (START - midnight) // 60
    for number, value in enumerate(issued.forecast.values):
        begin = first + number * step // 60
        assert kwh[begin : begin + step // 60].sum() == pytest.approx(value, abs=1e-3)


def test_predbat_gets_energy_of_a_power():
    results = predbat(day_ahead(96, 900, "kW", stream="elec.import.power"))["results"]
    assert list(results.values())[:3] == pytest.approx([0.0, 0.025, 0.075])


def test_openems_gets_two_days_from_midnight():
    request = openems(day_ahead())
    assert request["method"] == "updateComponentConfig"
    assert request["params"]["componentId"] == "datasource0"
    (source,) = request["params"]["properties"]
    values = source["value"].split("\n")
    assert source["name"] == "source"
    assert len(values) == 2 * 288
    # issued at 23:00: the hour from 23:00 is the first, and that from 22:00 is tomorrow's
    assert values[23 * 12] == "100"
    assert values[24 * 12 - 1] == "100"
    assert values[24 * 12] == "200"
    assert values[22 * 12] == values[46 * 12] == "2400"


def test_every_document_is_json():
    for name in PLANS:
        assert json.loads(plan_text(name, day_ahead())) == PLANS[name](day_ahead())


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(
    ("issued", "why"),
    [
        (day_ahead(1), r"needs a forecast of a day; bundle load-week-1 forecasts 1 step, 1 h: use"),
        (day_ahead(95, 900), "forecasts 95 steps, 23.75 h"),
        (nothing_yet(), "there is no forecast yet: 24 h of energy"),
        (day_ahead(values=[*range(23), np.nan]), "1 of 24 steps of the forecast have no value"),
    ],
    ids=["one step", "short", "none", "hole"],
)
def test_what_cannot_be_planned_with_is_refused(name, issued, why):
    with pytest.raises(NotPlannableError, match=why) as refused:
        plan_text(name, issued)
    assert str(refused.value).startswith(f'format "{name}"')


@pytest.mark.parametrize("name", ["emhass", "predbat", "openems"])
def test_a_load_must_be_energy_or_power(name):
    with pytest.raises(NotPlannableError, match="needs energy in kWh or power in kW"):
        plan_text(name, day_ahead(unit="Mbit", stream="cell.traffic.dl.volume"))


# --- over the outputs that exist --------------------------------------------------------------------


def test_http_has_a_path_for_each():
    sink = HttpSink("127.0.0.1", 0)
    try:
        sink.send(AgentReport(day_ahead()), is_new=True)
        for name in PLANS:
            status, body, answer = get(sink, f"/forecast/{name}")
            assert status == 200
            assert json.loads(body) == PLANS[name](day_ahead())
            assert answer.headers["Content-Type"].startswith("application/json")
        sink.send(AgentReport(day_ahead(1)), is_new=True)
        status, body, _ = get(sink, "/forecast/emhass")
        assert status == 503
        assert b"use a bundle whose horizon is 24 hours or more" in body
        status, body, _ = get(sink, "/forecast/other")
        assert status == 404
        assert b"/forecast/predbat" in body
    finally:
        sink.close()


def test_a_file_holds_one(tmp_path):
    sink = FileSink(tmp_path / "plan.json", "emhass", False, 1024, 0)
    sink.send(AgentReport(day_ahead()), is_new=True)
    assert json.loads((tmp_path / "plan.json").read_text()) == emhass(day_ahead())
    assert sink.send(AgentReport(nothing_yet()), is_new=True), "the forecast before stays"
    with pytest.raises(NotPlannableError):
        sink.send(AgentReport(day_ahead(1)), is_new=True)
    assert sink.send(AgentReport(day_ahead(1)), is_new=False)
    with pytest.raises(SettingsError, match='mode: expected "replace" with format = "evcc"'):
        from_table(
            FileOutputSection,
            {"type": "file", "path": "x", "format": "evcc", "mode": "append"},
            "output[0]",
        )


def test_the_default_of_mqtt_is_the_history():
    made = from_table(MqttOutputSection, {"type": "mqtt", "url": "mqtt://127.0.0.1"}, "output[0]")
    assert made.formats == ("home-assistant",)


def test_home_assistant_is_told_of_each_entity_and_each_interval():
    link, now = Link(), [float(START - 60)]
    topics = MqttTopics.of("meter-1", "gridfed", "homeassistant")
    formats = ("home-assistant", "predbat", "emhass")
    sink = MqttSink(link, topics, formats, clock=lambda: now[0])
    link.events.append(LinkUp(65_536))
    sink.serve(0)
    sink.send(AgentReport(day_ahead()), is_new=True)
    described = json.loads(dict(link.sent)[topics.discovery])
    parts = described["components"]
    assert set(parts) >= {f"gridfed_meter-1_{form}" for form in formats}
    history = parts["gridfed_meter-1_home-assistant"]
    assert history["state_topic"] == "gridfed/meter-1/forecast/home-assistant"
    assert history["device_class"] == "energy"
    assert "state_class" not in history, "a forecast is no meter reading"
    planned = parts["gridfed_meter-1_predbat"]
    assert planned["json_attributes_template"] == "{{ value_json.attributes | tojson }}"
    states = []
    for hour in range(-1, 3):
        now[0] = START + hour * HOUR + 10.0
        sink.serve(0)
        sink.serve(0)
        states.append(json.loads(dict(link.sent)[history["state_topic"]])["state"])
    assert states == [None, 0.1, 0.2, 0.3]
    sent = link.topics.count(history["state_topic"])
    assert sent == 4, "once with the forecast, and once for each new interval"


def test_what_was_issued_stays_in_the_history():
    found = entity("home-assistant", day_ahead(), START + 1.5 * HOUR)
    assert found["state"] == pytest.approx(0.2)
    attributes = found["attributes"]
    assert attributes["start"] == "2023-11-15T00:00:00+00:00"
    assert (attributes["low"], attributes["high"]) == pytest.approx((0.15, 0.25))
    assert attributes["issued_at"] == "2023-11-14T23:00:05+00:00"
    assert len(attributes["forecast"]) == 24
    assert attributes["forecast"][0] == {
        "start": "2023-11-14T23:00:00+00:00",
        "expected": 0.1,
        "low": 0.05,
        "high": 0.15,
    }


@pytest.mark.parametrize(("steps", "kept"), [(96, 96), (192, 150), (1024, 120)])
def test_attributes_fit_into_a_record(steps, kept):
    values = np.pi * (1 + np.arange(steps))
    found = entity("home-assistant", day_ahead(values=values, step=900), START)
    rows = found["attributes"]["forecast"]
    assert kept <= len(rows) <= steps
    assert len(json.dumps(rows)) <= RECORDED
    assert len(json.dumps(found["attributes"])) < 16_384
    plan = entity("emhass", day_ahead(min(steps, 192), 900), START)
    assert len(json.dumps(plan["attributes"])) < 16_384


def test_an_entity_says_why_it_has_no_plan():
    for form in ("emhass", "predbat"):
        found = entity(form, day_ahead(1), START)
        assert found["state"] is None
        assert "use a bundle whose horizon" in found["attributes"]["refused"]
    one = entity("home-assistant", day_ahead(1), START)
    assert one["state"] == pytest.approx(0.1), "one step is shown as it is"
    assert entity("home-assistant", nothing_yet(), START)["attributes"]["forecast"] == []


def test_the_state_of_a_plan_is_one_number():
    assert entity("predbat", day_ahead(), START)["state"] == pytest.approx(0.1 * 300)
    assert entity("emhass", day_ahead(), START)["state"] == pytest.approx(1250.0)


def test_the_present_interval():
    issued = day_ahead()
    assert present(issued, START - 1) is None
    assert present(issued, START) == 0
    assert present(issued, START + 24 * HOUR - 1) == 23
    assert present(issued, START + 24 * HOUR) is None
    assert present(nothing_yet(), START) is None


# --- the parser of a package ------------------------------------------------------------------------


async def taken_by_emhass(utils, text, folder):
    """The power that EMHASS plans with, on its own grid of half hours, and its messages."""
    root = Path(utils.__file__).parent
    paths = {
        "root_path": root,
        "data_path": folder,
        "defaults_path": root / "data/config_defaults.json",
        "associations_path": root / "data/associations.csv",
        "secrets_path": folder / "secrets.yaml",
        "options_path": folder / "options.json",
        "config_path": folder / "config.json",
    }
    logger, said = logging.getLogger("emhass-test"), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.handlers, logger.propagate = [handler], False
    config = await utils.build_config(paths, logger, paths["defaults_path"])
    paths, secrets = await utils.build_secrets(paths, logger, no_response=True)
    params = await utils.build_params(paths, secrets, config, logger)
    shown = json.dumps(params, default=str)
    conf = utils.get_yaml_parse(shown, logger)
    found = await utils.treat_runtimeparams(text, shown, *conf, "dayahead-optim", logger, paths)
    passed = found[0] if isinstance(found[0], dict) else json.loads(found[0])
    return passed["passed_data"]["load_power_forecast"], passed["optim_conf"], said


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "step"), [(24, HOUR), (48, HOUR), (96, 900)])
def test_emhass_itself_takes_the_document(steps, step, tmp_path):
    utils = pytest.importorskip("emhass.utils", reason="needs the package emhass, of 1 GB")
    begin = int(time.time()) // HOUR * HOUR
    issued = day_ahead(steps, step, start=begin)
    text = plan_text("emhass", issued)
    found, conf, said = asyncio.run(taken_by_emhass(utils, text, tmp_path))
    assert not [line for line in said if line.startswith("ERROR")]
    assert conf["load_forecast_method"] == "list"
    assert len(found) == 48, "a day of half hours"
    assert all(np.isfinite(found))
    powers = issued.forecast.values * 3.6e6 / step
    late = (int(time.time()) - begin) // 1800
    halves = np.repeat(powers, 2) if step == HOUR else powers.reshape(-1, 2).mean(axis=1)
    assert found[: 40 - late] == pytest.approx(halves[late:40], abs=1.0)


# --- the page -----------------------------------------------------------------------------------------


def test_the_sections_of_the_page_are_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "history.csv").write_text("entity_id,state,last_changed\n")
    (tmp_path / "exported_statistics.tsv").write_text("statistic_id\tstart\tdelta\n")
    text = (Path(__file__).resolve().parents[4] / "docs" / "energy-managers.md").read_text("utf-8")
    opened = []
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        tables = tomllib.loads(block)
        opened += [open_source(section, "source[0]") for section in tables.get("source", [])]
        opened += [open_output(section, 0, "meter-1") for section in tables.get("output", [])]
    assert len(opened) == 6
    for name in PLANS:
        assert f"/forecast/{name}" in text or name == "predbat"
