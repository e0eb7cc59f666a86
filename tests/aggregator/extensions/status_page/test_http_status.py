"""The page answers from one snapshot, in time, and says clearly why it cannot start."""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from aggregator.extensions.status_page import http_status
from aggregator.extensions.status_page.http_status import Page, html
from aggregator.metrics import Metrics
from aggregator.operations import status_document as pages
from aggregator.operations.status_document import PageError, Snapshot, split
from edge_sdk.errors import Reason


def get(page, path):
    try:
        with urllib.request.urlopen(f"http://{page.address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def served():
    held = {"now": Snapshot(time.monotonic(), {"broker": True}, {"fleet": "north"})}
    metrics = Metrics()
    page = Page("127.0.0.1:0", lambda: held["now"], metrics.text)
    yield page, held, metrics
    page.close()


def test_alive_while_the_loop_turns_and_not_when_it_hangs(served):
    page, held, _ = served
    assert get(page, "/healthz")[0] == 200
    held["now"] = Snapshot(time.monotonic() - pages.STALE - 1, {"broker": True})
    assert get(page, "/healthz") == (503, "NOT the main loop runs\n")


def test_ready_only_when_every_check_holds(served):
    page, held, _ = served
    assert get(page, "/readyz")[0] == 200
    held["now"] = Snapshot(time.monotonic(), {"broker": False, "disk": True})
    code, text = get(page, "/readyz")
    assert code == 503
    assert "NOT broker" in text
    assert "ok  disk" in text


def test_not_ready_before_the_first_turn():
    assert not Snapshot().is_ready


def test_status_is_json_with_a_schema_number(served):
    page, _, _ = served
    document = json.loads(get(page, "/status")[1])
    assert document["schema"] == pages.SCHEMA
    assert document["fleet"] == "north"


def test_metrics_count_refusals_by_reason(served):
    page, _, metrics = served
    metrics.refuse(Reason.NOT_FINITE)
    metrics.refuse(28)
    assert 'gridfed_refused_total{reason="NOT_FINITE"} 2.0' in get(page, "/metrics")[1]
    assert metrics.refusals() == {"NOT_FINITE": 2}


def test_no_metric_has_a_label_per_device():
    labels = {
        name
        for metric in Metrics().registry.collect()
        for sample in metric.samples
        for name in sample.labels
    }
    assert labels <= {
        "kind",
        "reason",
        "way",
        "how",
        "state",
        "le",
        "version",
        "what",
        "cluster",
    } | {"where"}


def test_clusters_are_counted_for_people_and_named_for_programs(served):
    page, held, _ = served
    clusters = {"0": ["meter-1", "meter-3"], "1": []}
    held["now"] = Snapshot(time.monotonic(), {"broker": True}, {"clusters": clusters})
    text = get(page, "/")[1]
    assert "<th>cluster 0</th><td>2</td>" in text
    assert "<th>cluster 1</th><td>0</td>" in text
    assert "meter-1" not in text
    assert json.loads(get(page, "/status")[1])["clusters"] == clusters


def test_page_is_escaped(served):
    page, held, _ = served
    evil = {"fleet": "<script>", "run": {"method": "<b>"}, "rounds": [{"round": 1, "loss": None}]}
    held["now"] = Snapshot(time.monotonic(), {"broker": True}, evil)
    code, text = get(page, "/")
    assert code == 200
    assert "<script>" not in text
    assert "&lt;b&gt;" in text
    assert "&ndash;" in text


def test_unknown_path_names_the_known_ones(served):
    code, text = get(served[0], "/nothing")
    assert code == 404
    assert "/metrics" in text


def test_a_request_that_trickles_is_cut_off(served, monkeypatch):
    monkeypatch.setattr(http_status, "DEADLINE", 0.3)
    host, port = split(served[0].address)
    with socket.create_connection((host, port), timeout=60) as slow:
        began = time.monotonic()
        slow.sendall(b"GET / HTTP/1.1\r\n")
        ended = False
        while not ended and time.monotonic() - began < 60:
            try:
                slow.sendall(b"X")
                slow.settimeout(0.05)
                ended = slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended


def test_sockets_that_say_nothing_do_not_keep_a_health_check_out(served):
    page, *_ = served
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            silent = socket.create_connection(split(page.address), timeout=60)
            stack.enter_context(silent)
        for _ in range(3):
            assert get(page, "/healthz")[0] == 200


class TestCrowd:
    """Forty clients that renew their connection whenever it ends, in three manners."""

    CLIENTS = 40

    @pytest.fixture
    def crowded(self, served, request):
        address, stop = split(served[0].address), threading.Event()

        def renew():
            while not stop.is_set():
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(address, timeout=60) as client,
                ):
                    client.sendall(request.param)
                    client.settimeout(0.2)
                    while client.recv(65536):
                        pass

        clients = [threading.Thread(target=renew, daemon=True) for _ in range(self.CLIENTS)]
        for client in clients:
            client.start()
        yield served[0]
        stop.set()
        for client in clients:
            client.join(10)

    @pytest.mark.parametrize(
        "crowded",
        [b"", b"GET / HTT", b"GET /status HTTP/1.0\r\n\r\n"],
        ids=["silent", "half a request", "asking"],
        indirect=True,
    )
    def test_every_health_probe_is_answered(self, crowded):
        assert [get(crowded, "/healthz")[0] for _ in range(20)] == [200] * 20


def test_what_no_page_foresaw_is_told_and_logged(served, caplog):
    page, held, _ = served
    held["now"] = Snapshot(time.monotonic(), {"broker": True}, {"fleet": object()})
    code, text = get(page, "/status")
    assert (code, "the log has the trace" in text) == (500, True)
    assert "http request failed path=/status" in caplog.text
    assert get(page, "/healthz")[0] == 200


def test_port_in_use_is_one_sentence(served):
    with pytest.raises(PageError, match="cannot serve the page on") as caught:
        Page(served[0].address, Snapshot, bytes)
    assert caught.value.exit_code == 75
    assert "http.listen" in caught.value.hint


@pytest.mark.parametrize("listen", ["9464", "host:", ":1", "host:x", "host:70000"])
def test_address_must_be_host_and_port(listen):
    with pytest.raises(PageError, match=r"http\.listen"):
        split(listen)


def test_html_of_an_empty_document():
    assert "not ready: starting" in html(Snapshot().document())


def test_the_page_names_the_command_that_draws_credit_weights(served):
    page, held, _ = served
    assert "gridfed-aggregator credit" not in get(page, "/")[1]
    status = {"fleet": "north", "credit": {"a": {"b": 0.5}, "b": {"a": 0.5}}}
    held["now"] = Snapshot(time.monotonic(), {"broker": True}, status)
    assert "gridfed-aggregator credit" in get(page, "/")[1]
    assert get(page, "/credit.svg")[0] == 404
