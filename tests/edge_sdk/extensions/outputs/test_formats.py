"""The bytes of each format are fixed: other programs read them."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.outputs.formats import COLUMNS, HEADER, csv_text, json_text, line_protocol
from edge_sdk.extensions.outputs.home_assistant import discovery
from edge_sdk.extensions.outputs.metrics_text import metrics_text
from edge_sdk.forecasting.forecast import Forecast
from tests.edge_sdk.extensions.outputs.conftest import START, issued_forecast, nothing_yet


def test_json_has_interval_issue_time_version_and_quality():
    found = json.loads(json_text(issued_forecast()))
    assert found == {
        "schema": 1,
        "device": "meter-1",
        "fleet": "north",
        "stream": "elec.import.energy",
        "unit": "kWh",
        "issued_at": "2023-11-14T23:00:05+00:00",
        "newest_reading": "2023-11-14T22:00:00+00:00",
        "step_seconds": 3600,
        "source": "own model",
        "missing": "",
        "coverage": 0.8,
        "calibrated_on": 48,
        "model": {"bundle": "load-week-1", "bundle_version": 1, "run": 3, "version": 7},
        "quality": {"candidate": "own", "error": 0.125, "fleet_error": 0.25, "days": 9},
        "values": [
            {"start": "2023-11-14T23:00:00+00:00", "value": 1.25, "lower": 1.0, "upper": 1.5},
            {"start": "2023-11-15T00:00:00+00:00", "value": None, "lower": None, "upper": None},
        ],
    }


def test_json_without_a_forecast_says_what_is_missing_and_never_1970():
    text = json_text(nothing_yet())
    found = json.loads(text)
    assert (found["source"], found["missing"], found["values"]) == ("none", "24 h of energy", [])
    assert found["issued_at"] is found["newest_reading"] is found["quality"]["error"] is None
    assert "1970" not in text


def test_csv_is_fixed():
    assert HEADER + csv_text(issued_forecast()) == (
        "issued_at,start,seconds,value,lower,upper,unit,source,candidate,error,bundle,"
        "bundle_version,run,version\n"
        "2023-11-14T23:00:05+00:00,2023-11-14T23:00:00+00:00,3600,1.25,1,1.5,kWh,own model,own,"
        "0.125,load-week-1,1,3,7\n"
        "2023-11-14T23:00:05+00:00,2023-11-15T00:00:00+00:00,3600,,,,kWh,own model,own,"
        "0.125,load-week-1,1,3,7\n"
    )


def test_line_protocol_is_fixed():
    assert line_protocol(issued_forecast()) == (
        "gridfed_forecast,device=meter-1,fleet=north,stream=elec.import.energy,unit=kWh,"
        "source=own\\ model,candidate=own,bundle=load-week-1 value=1.25,lower=1.0,upper=1.5,"
        f"run=3i,version=7i,issued=1700002805i,error=0.125 {START}000000000\n"
    )


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=30),
    st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=8),
)
def test_any_values_give_valid_rows(values, unit):
    times = START + 3600 * np.arange(len(values), dtype=np.int64)
    issued = issued_forecast(forecast=Forecast(times, np.array(values), unit, "model"))
    rows = list(csv.reader(io.StringIO(csv_text(issued))))
    assert len(rows) == len(values)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    json.loads(json_text(issued))
    lines = line_protocol(issued).split("\n")[:-1]
    assert len(lines) == np.isfinite(values).sum()
    assert all(re.fullmatch(r"gridfed_forecast,.* value=[^ ]* \d+", line) for line in lines)


def test_metrics_are_in_the_text_format(report):
    text = metrics_text(report)
    sample = re.compile(r'[a-z_]+\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\} [0-9.e+-]+')
    described = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            name = line.split()[2]
            assert name not in described, "a family is written once"
            described.add(name)
        elif not line.startswith("#"):
            assert sample.fullmatch(line), line
            assert line.partition("{")[0] in described
    assert 'gridfed_edge_linked{device="meter-1",fleet="north"} 1\n' in text
    assert 'gridfed_edge_forecast_error{device="meter-1"' in text
    assert 'step="1",bound="lower"} 1\n' in text
    assert 'step="2"' not in text, "an unknown value is left out"
    assert 'gridfed_edge_forecast_error_ratio{device="meter-1"' in text
    assert re.search(r"gridfed_edge_forecast_alarms_total\{.*\} 2\n", text)
    assert 'event="odd \\"name\\"\\\\"} 1' in text
    assert 'source="0 p1",reason="bad checksum"} 2' in text


def test_metrics_are_readable_by_the_official_client(report):
    parser = pytest.importorskip("prometheus_client.parser")
    families = {f.name: f for f in parser.text_string_to_metric_families(metrics_text(report))}
    (value,) = families["gridfed_edge_model_version"].samples
    assert value.value == 7
    medians = families["gridfed_edge_forecast"].samples
    assert [s.value for s in medians if s.labels["bound"] == "median"] == [1.25]


SENSOR_KEYS = {
    "platform",
    "unique_id",
    "name",
    "value_template",
    "json_attributes_topic",
    "json_attributes_template",
    "unit_of_measurement",
    "device_class",
    "entity_category",
}
"""Keys that Home Assistant documents for an MQTT sensor, as far as this program uses them."""


def test_discovery_has_the_documented_form():
    found = discovery(issued_forecast(), "gridfed/meter-1/forecast", "gridfed/meter-1/availability")
    assert set(found) == {
        "device",
        "origin",
        "components",
        "state_topic",
        "availability_topic",
        "qos",
    }
    assert found["origin"]["name"]
    assert found["device"]["identifiers"]
    components = found["components"]
    ids = [one["unique_id"] for one in components.values()]
    assert len(set(ids)) == len(ids) == 6
    for one in components.values():
        assert one["platform"] == "sensor"
        assert set(one) <= SENSOR_KEYS
        assert one["value_template"].startswith("{{ ")
        assert one["value_template"].endswith(" }}")
    first = components["gridfed_meter-1_next"]
    assert (first["device_class"], first["unit_of_measurement"]) == ("energy", "kWh")
    json.dumps(found)


def test_a_unit_without_a_class_has_none():
    forecast = Forecast(np.array([START]), np.array([1.0]), "1", "model")
    found = discovery(issued_forecast(forecast=forecast), "a", "b")
    assert not {"device_class", "unit_of_measurement"} & set(
        found["components"]["gridfed_meter-1_next"]
    )


def test_templates_give_the_values():
    jinja2 = pytest.importorskip("jinja2")
    found = discovery(issued_forecast(), "a", "b")
    environment = jinja2.Environment(autoescape=False)

    def shown(name, issued):
        template = found["components"][f"gridfed_meter-1_{name}"]
        text = environment.from_string(template["value_template"])
        return text.render(value_json=json.loads(json_text(issued)))

    assert shown("next", issued_forecast()) == "1.25"
    assert shown("upper", issued_forecast()) == "1.5"
    assert shown("issued", issued_forecast()) == "2023-11-14T23:00:05+00:00"
    assert shown("next", nothing_yet()) == "None", "Home Assistant shows unknown"
    attributes = environment.from_string(
        found["components"]["gridfed_meter-1_next"]["json_attributes_template"]
    ).render(value_json=json.loads(json_text(issued_forecast())))
    assert len(json.loads(attributes)["forecast"]) == 2
