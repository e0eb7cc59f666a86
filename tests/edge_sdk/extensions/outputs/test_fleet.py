"""The output to the fleet: what is sent, what waits, and what voids a claim of privacy."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace

import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.outputs.fleet import FleetOutput, forecast_message
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, open_output
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.protocol.codec import decode, encode
from tests.edge_sdk.extensions.outputs.conftest import START, issued_forecast, nothing_yet


@pytest.fixture
def forecast_book():
    """The aggregator's module, where its packages are installed."""
    pytest.importorskip("prometheus_client", reason="the aggregator's packages are not installed")
    return importlib.import_module("aggregator.extensions.forecasts.forecast_book")


def test_a_forecast_crosses_the_wire_with_its_quality_and_its_gaps(forecast_book):
    message = forecast_message(issued_forecast())
    assert message is not None
    back = decode(ForecastMessage, encode(message))
    assert (back.model, back.bundle, back.run, back.version) == ("load-week-1", 1, 3, 7)
    assert (back.by, back.error, back.source, back.coverage) == ("own", 0.125, "own model", 0.8)
    assert forecast_book.steps_of(back) == [
        {"start": float(START), "value": 1.25, "lower": 1.0, "upper": 1.5},
        {"start": START + 3600.0, "value": None, "lower": None, "upper": None},
    ]


def test_nothing_is_sent_without_a_forecast_or_a_clock():
    assert forecast_message(nothing_yet()) is None
    assert forecast_message(issued_forecast(issued=None)) is None
    unknown = forecast_message(issued_forecast(version=-1))
    assert unknown is not None
    assert unknown.version is None


def test_a_forecast_waits_for_the_link_and_a_newer_one_replaces_it():
    output = open_output({"type": "fleet"}, 3, "meter-1")
    assert isinstance(output, FleetOutput)
    assert (output.name, output.interval) == ("3 fleet", 900.0)
    sent, is_up = [], False

    def send(message):
        if is_up:
            sent.append(message.t)
        return is_up

    output.start(SimpleNamespace(send_forecast=send))
    output.submit(AgentReport(issued_forecast(issued=1.0)), is_new=True)
    output.submit(AgentReport(issued_forecast(issued=2.0)), is_new=True)
    assert output.health()["failing"] == "the aggregator is away"
    is_up = True
    output.submit(AgentReport(issued_forecast(issued=2.0)), is_new=False)
    output.submit(AgentReport(issued_forecast(issued=2.0)), is_new=False)
    assert sent == [2000]
    assert output.health() == {"output": "3 fleet", "written": 1, "failures": 0, "failing": ""}


def test_a_promise_of_noise_and_an_open_forecast_do_not_go_together():
    with pytest.raises(ConfigError, match=r"output\[0\]: .* voids the claim of \[privacy\]"):
        open_output({"type": "fleet"}, 0, "meter-1", is_private=True)
    open_output({"type": "fleet", "uncovered": True}, 0, "meter-1", is_private=True)


def test_the_aggregator_keeps_the_newest_forecast_also_after_a_restart(forecast_book, tmp_path):
    book = forecast_book.ForecastBook(tmp_path / "forecasts")

    def message(t):
        found = forecast_message(issued_forecast(issued=float(t)))
        assert found is not None
        return found, encode(found)

    assert book.record("meter-1", *message(5))
    assert not book.record("meter-1", *message(5))
    again = forecast_book.ForecastBook(tmp_path / "forecasts")
    assert not again.record("meter-1", *message(4))
    assert again.record("meter-1", *message(6))
    assert [(device, found.t) for device, found in again.stored()] == [("meter-1", 6000)]
    (tmp_path / "forecasts" / "meter-2.forecast").write_bytes(b"\xff")
    assert [device for device, _ in again.stored()] == ["meter-1"]
    assert again.record("meter-2", *message(1))
    assert math.isclose(forecast_book.steps_of(message(1)[0])[0]["value"], 1.25)
