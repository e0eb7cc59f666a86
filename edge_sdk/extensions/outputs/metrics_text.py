"""Write the state of the agent in the text format of Prometheus (exposition format 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edge_sdk.extensions.outputs.forecast_issuer import AgentReport

Sample = tuple[Mapping[str, object], float | None]
"""Labels and value; a value of None is left out."""


def metrics_text(report: AgentReport) -> str:
    """Return every metric of the agent; no measured value is among them, but forecasts are."""
    lines = [line for family in _families(report) for line in _family(*family)]
    return "\n".join(lines) + "\n"


def _families(report: AgentReport) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    issued, status = report.issued, report.status
    own = {"device": issued.device, "fleet": issued.fleet}
    info = {
        **own,
        "bundle": issued.bundle,
        "bundle_version": issued.bundle_version,
        "method": status.get("method", ""),
    }
    yield "gridfed_edge_info", "gauge", "Bundle and method in use.", [(info, 1.0)]
    yield from _states(own, status)
    yield from _forecast(own, report)
    counts = status.get("counts", {})
    named = [({**own, "event": name}, _number(n)) for name, n in sorted(counts.items())]
    yield "gridfed_edge_events_total", "counter", "Events by name, since the start.", named
    yield from _ends(own, report)


def _states(
    own: Mapping[str, object], status: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    for name, key, text in (
        ("linked", "linked", "1 while the broker has accepted the connection."),
        ("welcomed", "ready", "1 after the aggregator's welcome."),
        ("can_forecast", "can_forecast", "1 if the readings suffice for the model."),
        ("outbox_entries", "outbox", "Updates that wait for a receipt."),
        ("windows", "windows", "Windows to train on."),
        ("run", "run", "Training run."),
        ("round", "round", "Newest round announced."),
        ("model_version", "version", "Version of the common model; -1 before the first."),
        ("releases_total", "spent", "Updates released, over the life of the key."),
    ):
        kind = "counter" if name.endswith("_total") else "gauge"
        yield f"gridfed_edge_{name}", kind, text, [(own, _number(status.get(key)))]
    stopped = str(status.get("stopped", ""))
    labels = {**own, "reason": stopped}
    text = "1 while the device sends no updates."
    yield "gridfed_edge_stopped", "gauge", text, [(labels, float(bool(stopped)))]


def _forecast(
    own: Mapping[str, object], report: AgentReport
) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    issued, quality = report.issued, report.issued.quality
    labels = {**own, "stream": issued.stream, "unit": issued.forecast.unit}
    ahead = [
        ({**labels, "step": step, "bound": bound}, value)
        for step, (_, *values) in enumerate(issued.rows(), 1)
        for bound, value in zip(("median", "lower", "upper"), values, strict=True)
    ]
    yield "gridfed_edge_forecast", "gauge", "Forecast by step after the newest reading.", ahead
    source = {**labels, "source": issued.forecast.source, "candidate": quality.candidate}
    text = "Source of the forecast, and the candidate that is served."
    yield "gridfed_edge_forecast_source", "gauge", text, [(source, 1.0)]
    text = "Unix time at which the forecast was issued."
    yield "gridfed_edge_forecast_issued_seconds", "gauge", text, [(labels, issued.issued)]
    text = "Unix time of the start of the newest reading."
    newest = None if issued.newest is None else float(issued.newest)
    yield "gridfed_edge_newest_reading_seconds", "gauge", text, [(labels, newest)]
    errors = [
        ({**labels, "of": "served"}, quality.error),
        ({**labels, "of": "fleet"}, quality.fleet_error),
    ]
    yield "gridfed_edge_forecast_error", "gauge", "Held-back error, in the unit.", errors
    days = [(labels, float(quality.days))]
    yield "gridfed_edge_forecast_days_compared", "gauge", "Days of the held-back error.", days
    yield from _monitor(labels, report.status.get("forecast", {}).get("monitor", {}))


def _monitor(
    labels: Mapping[str, object], monitor: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    if not monitor:
        return
    ratio = _number(monitor.get("error relative to naive, 7 days"))
    text = "Error of the served forecast over seven days, relative to the seasonal naive forecast."
    yield "gridfed_edge_forecast_error_ratio", "gauge", text, [(labels, ratio)]
    text = "Alarms: the served forecast had become worse than the seasonal naive one."
    alarms = _number(monitor.get("alarms"))
    yield "gridfed_edge_forecast_alarms_total", "counter", text, [(labels, alarms)]


def _ends(
    own: Mapping[str, object], report: AgentReport
) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    rows = [({**own, "source": f"{i} {s['type']}"}, s) for i, s in enumerate(report.sources)]
    for name, kind, key, text in (
        ("source_linked", "gauge", "linked", "1 while the source's link is open."),
        ("source_frames_total", "counter", "accepted", "Frames decoded."),
        ("source_losses_total", "counter", "lost", "Times that the link was lost."),
        ("source_age_seconds", "gauge", "seconds_since", "Seconds since the last frame."),
    ):
        samples = [(labels, _number(state.get(key))) for labels, state in rows]
        yield f"gridfed_edge_{name}", kind, text, samples
    refused = [
        ({**labels, "reason": reason}, float(count))
        for labels, state in rows
        for reason, count in sorted(state.get("rejected", {}).items())
    ]
    yield "gridfed_edge_source_rejected_total", "counter", "Input rejected.", refused
    outputs = [({**own, "output": state["output"]}, state) for state in report.outputs]
    written = [(labels, _number(state["written"])) for labels, state in outputs]
    yield "gridfed_edge_output_written_total", "counter", "Forecasts written.", written
    failed = [(labels, _number(state["failures"])) for labels, state in outputs]
    yield "gridfed_edge_output_failures_total", "counter", "Failed attempts to write.", failed


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    rows = [(labels, value) for labels, value in samples if value is not None]
    if not rows:
        return
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        inside = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        yield f"{name}{{{inside}}} {_written(value)}"


def _number(value: object) -> float | None:
    """Return a number or a truth value as a number; None for anything else.

    >>> _number(True), _number(3), _number("x"), _number(float("nan"))
    (1.0, 3.0, None, None)
    """
    if not isinstance(value, bool | int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _written(value: float) -> str:
    """Write a number without loss.

    >>> _written(3.0), _written(0.1), _written(1.7e9)
    ('3', '0.1', '1700000000')
    """
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _escaped(text: str) -> str:
    r"""Escape a label value.

    >>> print(_escaped('a"b\\c\n'))
    a\"b\\c\n
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
