"""An output runs beside the agent: it may be slow, broken or absent."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from edge_sdk.extensions.outputs import threaded_output
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, ForecastIssuer
from edge_sdk.extensions.outputs.threaded_output import ThreadedOutput
from edge_sdk.runtime import GraphError
from tests.edge_sdk.extensions.outputs.conftest import issued_forecast


class Sink:
    """A sink that fails as long as it is told to."""

    def __init__(self, error=None):
        self.error, self.got, self.closed = error, [], False

    def send(self, report, *, is_new):
        if self.error:
            raise self.error
        self.got.append((report.issued.version, is_new))
        return True

    def serve(self, _patience):
        time.sleep(0.001)

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(threaded_output, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(threaded_output, "_LONGEST_WAIT", 0.02)


def until(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def a_report(version=1):
    return AgentReport(issued_forecast(version=version))


@pytest.mark.parametrize("error", [OSError("no disk"), ValueError("odd"), KeyError("x")])
def test_a_failure_is_logged_when_it_begins_and_when_it_ends(caplog, error):
    caplog.set_level(logging.INFO)
    sink = Sink(error)
    output = ThreadedOutput("0 file", 1.0, lambda: sink)
    output.start()
    output.submit(a_report(), is_new=True)
    until(lambda: output.health()["failures"] >= 3)
    assert output.health()["failing"]
    sink.error = None
    until(lambda: sink.got == [(1, True)])
    until(lambda: not output.health()["failing"])
    output.close()
    assert sink.closed
    messages = [record.message.partition(" output=")[0] for record in caplog.records]
    assert messages == ["output failed", "output restored"]


def test_one_that_cannot_be_opened_is_tried_again():
    attempts = []

    def make():
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("in use")
        return Sink()

    output = ThreadedOutput("0 http", 1.0, make)
    output.start()
    output.submit(a_report(), is_new=True)
    until(lambda: output.health()["written"] == 1)
    output.close()


def test_only_the_newest_report_waits_and_a_new_forecast_is_not_lost():
    sink = Sink()
    output = ThreadedOutput("0 file", 1.0, lambda: sink)
    output.submit(a_report(1), is_new=True)
    output.submit(a_report(1), is_new=False)
    output.submit(a_report(2), is_new=False)
    output.start()
    until(lambda: sink.got)
    output.close()
    assert sink.got == [(2, True)]


def test_what_waits_at_the_end_is_written():
    sink = Sink()
    output = ThreadedOutput("0 file", 1.0, lambda: sink)
    output.start()
    until(lambda: True)
    output.submit(a_report(3), is_new=True)
    output.close()
    assert sink.got == [(3, True)]
    assert sink.closed


def test_a_blocked_one_does_not_hold_up_the_end():
    gate = threading.Event()

    class Blocked(Sink):
        def serve(self, _patience):
            gate.wait(60)

    output = ThreadedOutput("0 file", 1.0, Blocked)
    output.start()
    begun = time.monotonic()
    output.close(patience=0.1)
    assert time.monotonic() - begun < 30
    gate.set()


def test_several_blocked_ones_share_the_time_to_end(monkeypatch):
    monkeypatch.setattr("edge_sdk.extensions.outputs.forecast_issuer._FAREWELL", 0.2)
    gate = threading.Event()

    class Blocked(Sink):
        def serve(self, _patience):
            gate.wait(60)

    outputs = [ThreadedOutput(f"{i} file", 1.0, Blocked) for i in range(8)]
    with ForecastIssuer(outputs, Client()):
        begun = time.monotonic()
    assert time.monotonic() - begun < 30
    gate.set()


class Client:
    """A client whose marks and clock the test sets."""

    def __init__(self):
        self.now, self.marks, self.issues, self.error = 0.0, 1, 0, None

    def forecast_marks(self):
        return (self.marks,)

    def issue(self):
        self.issues += 1
        if self.error:
            raise self.error
        return issued_forecast(version=self.issues)

    def status(self):
        return {"linked": True}


class Kept(ThreadedOutput):
    """An output that keeps its reports."""

    def __init__(self, name, interval):
        super().__init__(name, interval, Sink)
        self.reports = []

    def submit(self, report, *, is_new):
        self.reports.append((report.issued.version, is_new))


def test_a_forecast_is_issued_when_something_changed_and_not_sooner_than_the_interval():
    fast, slow, client = Kept("0 http", 1.0), Kept("1 file", 60.0), Client()
    issuer = ForecastIssuer([fast, slow], client)
    issuer.turn()
    assert (fast.reports, slow.reports) == ([(1, True)], [(1, True)])
    issuer.turn()
    assert client.issues == 1
    client.now, client.marks = 5.0, 2
    issuer.turn()
    assert fast.reports[-1] == (2, True)
    assert slow.reports[-1] == (2, False), "its interval is not over"
    client.now = 60.0
    issuer.turn()
    assert slow.reports[-1] == (2, True)
    assert client.issues == 2


def test_the_state_is_reported_between_forecasts():
    output, client = Kept("0 http", 1.0), Client()
    issuer = ForecastIssuer([output], client)
    for client.now in (0.0, 14.0, 15.0, 29.0, 30.0):
        issuer.turn()
    assert output.reports == [(1, True), (1, False), (1, False)]


def test_a_forecast_that_fails_is_logged_once(caplog):
    output, client = Kept("0 http", 1.0), Client()
    client.error = GraphError("no operator")
    issuer = ForecastIssuer([output], client)
    for number in range(5):
        client.now, client.marks = 10.0 * number, number
        issuer.turn()
    assert [r.message for r in caplog.records] == ['forecast not issued why="no operator"']
    assert not output.reports
    client.error, client.marks = None, 99
    client.now = 100.0
    issuer.turn()
    assert output.reports


def test_without_outputs_nothing_is_computed():
    client = Client()
    ForecastIssuer([], client).turn()
    assert not client.issues
