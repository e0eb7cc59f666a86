"""The console's pages: there for an empty and a full store, escaped, linked, small, read-only."""

import hashlib
import re
from dataclasses import replace
from datetime import datetime
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

from aggregator.audit_log import AuditLog, Initiator
from aggregator.config import AggregatorConfig
from aggregator.extensions.console import live_status
from aggregator.extensions.console.refusal_guide import ADVICE
from aggregator.extensions.console.rendering import PAGES
from aggregator.extensions.rollouts.rollout_table import DeviceTrial, RolloutTable
from aggregator.operations.control_queue import waiting
from aggregator.rounds.announcements import Ends
from aggregator.store.opener import open_store
from aggregator.store.types import Contact, DeclinedRun, EnrolledDevice, Version
from edge_sdk.errors import Reason
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol.messages import BundleMessage
from tests.aggregator.conftest import ONLINE, ROOT
from tests.aggregator.extensions.console.browser import token_in
from tests.aggregator.extensions.console.conftest import (
    BROUGHT,
    BROWSER,
    HOSTILE,
    fill,
    send_forecast,
)

ADDRESSES = [*(address for address, _ in PAGES), *BROUGHT]
FORECAST_PAGE = "forecasts.forecast_page"
DETAILS = [
    "/run?run=1",
    "/round?run=1&round=1",
    "/device?id=meter-1",
    f"/device?id={quote(HOSTILE, safe='')}",
    "/refusals?reason=NORM_EXCEEDED",
    "/devices?q=meter&label=kind%3Dmeter&state=enrolled&page=1",
    f"/devices?q={quote(HOSTILE, safe='')}",
    "/suspects?run=1",
    "/audit-log?act=announce",
    f"/audit-log?subject={quote(HOSTILE, safe='')}",
]


class Page(HTMLParser):
    """Tags, links and the texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.forms, self.text, self.ids = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "a":
            self.links.append(found["href"])
        if tag == "form":
            self.forms.append(found["action"])

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def full(config, console):
    fill(config)
    return console(config)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_is_there_without_any_device(config, console, address):
    answer = console(config).get(address)
    assert answer.status_code == 200, answer.text
    assert "</html>" in answer.text


@pytest.mark.parametrize("address", ADDRESSES + DETAILS)
def test_every_page_shows_hostile_ids_as_text(full, address):
    answer = full.get(address)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    scripts = [found for tag, found in page.tags if tag == "script"]
    assert [one["src"].partition("?")[0] for one in scripts] == ["/static/console.js"]
    assert [set(one) for one in scripts] == [{"src", "defer"}]
    assert not [1 for _, found in page.tags for name in found if name.startswith("on")]
    assert not [1 for _, found in page.tags if "style" in found]
    assert "alert(1)</script>" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_hostile_ids_are_on_the_pages_that_this_test_takes_them_from(full):
    for address in ("/devices", "/suspects", "/round?run=1&round=1"):
        assert HOSTILE in unescape(full.get(address).text)


def test_every_link_leads_to_a_page(full):
    seen, todo = set(), ["/"]
    while todo:
        address = todo.pop()
        if address in seen or address.startswith("#"):
            continue
        seen.add(address)
        answer = full.get(address)
        assert answer.status_code == 200, (address, answer.text)
        page = Page(answer.text)
        todo += [link for link in page.links if link not in seen]
        for form in page.forms:
            assert form in {"/order", "/sign-out", "/devices", "/audit-log"}
    paths = {urlsplit(one).path for one in seen}
    assert {"/run", "/round", "/device", *ADDRESSES} <= paths


@pytest.mark.parametrize(
    "address",
    [
        "/device?id=none",
        "/run?run=9",
        "/round?run=1&round=99",
        "/run",
        "/run?run=x",
        "/devices?page=x",
        "/refusals?reason=NONE",
        f"/run?run={'9' * 5000}",
    ],
)
def test_what_is_not_there_is_404_and_no_trace(full, address):
    answer = full.get(address)
    assert answer.status_code == 404
    assert "</html>" in answer.text


def test_pages_have_headings_labels_and_table_heads(full):
    for address in ADDRESSES + DETAILS:
        text = full.get(address).text
        assert len(re.findall("<h1>", text)) == 1
        for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
            assert "<th scope=" in table or 'scope="col"' in table, (address, table[:200])
        for field in re.findall(r"<input(?! type=.hidden)[^>]*>", text):
            assert re.search(rf"<label>[^<]*{re.escape(field)}", text), (address, field)


def test_every_chart_has_a_name_and_a_table(config, console, full):
    limited = console(with_limit(config, 40))
    for client, address in (
        (full, "/"),
        (full, "/run?run=1"),
        (full, "/suspects"),
        (full, "/device?id=meter-1"),
        (full, "/scores"),
        (limited, "/budgets"),
    ):
        text = client.get(address).text
        assert 'role="img" aria-label="' in text
        assert text.index("<svg") < text.rindex("<table>")


def test_refusals_explain_every_reason(full):
    text = unescape(full.get("/refusals").text)
    for reason, advice in ADVICE.items():
        assert reason.name in text
        assert advice.meaning in text
        assert advice.remedy in text
    assert set(ADVICE) == set(Reason) - {Reason.ACCEPTED}


def test_device_page_says_why_it_takes_no_part(full):
    text = unescape(full.get("/device?id=meter-1").text)
    assert "Its newest update was refused, NORM_EXCEEDED: longer than admission.max_norm" in text
    shut = unescape(full.get(f"/device?id={quote(HOSTILE, safe='')}").text)
    assert "It is quarantined: " in shut


def test_device_page_says_which_run_it_declines_and_is_not_green_above_that(full, config):
    with open_store(config.database) as store:
        store.declined.add(DeclinedRun("meter-5", "", "UNKNOWN_KIND", bytes(16)))
    text = full.get("/device?id=meter-5").text
    said = words(text)
    assert "It declines the run, UNKNOWN_KIND: it does not accept the method. Add it to" in said
    assert "Why it takes no part" in said
    assert "Nothing keeps it" not in said


def test_the_first_page_shows_rounds_loss_answers_cost_and_trend(full, config, console):
    text = full.get("/").text
    said = words(text)
    assert 'role="img" aria-label="Rounds, loss and answers"' in text
    rows = re.findall(r"(2025-10-\d\d) 1 0 (\S+) 3 1 ", said)
    assert rows == [("2025-10-10", "1.00"), ("2025-10-11", "0.500"), ("2025-10-12", "0.333")]
    assert "About 6 kB received and 200 kB sent by the aggregator in 10 days (3 rounds)" in said
    assert (
        "2 of the devices that may take part answered none of the rounds drawn last: meter-4"
        in said
    )
    assert len(re.findall('<form class="act"', text)) == 1, "one reason, three buttons"
    assert re.findall(r'name="do" value="(\w+)"', text) == ["pause", "resume", "round"]
    assert "has moved the model" not in said


def test_the_first_page_draws_forecasts_that_reach_beyond_now(full, monkeypatch):
    send = 1_763_888_400_000
    at_time(monkeypatch, send - 1)
    said = words(full.get("/").text)
    assert "1 device sends its forecast; drawn: meter-1" in said
    assert 'aria-label="Forecasts of elec.import.energy"' in full.get("/").text
    at_time(monkeypatch, send + 25 * 3_600_000)
    assert "sends its forecast" not in words(full.get("/").text)


def test_a_run_that_has_never_moved_needs_a_person(config, console):
    with open_store(config.database) as store:
        run = store.runs.latest().run
        for number in range(1, 39):
            report = {"why": "too few updates"}
            at = 1_760_000_000_000 + number * 3_600_000
            closed = Version(run, number, 0, False, bytes(32), report, at)
            store.commit(run, {}, 0, closed=closed)
    said = words(console(config).get("/").text)
    assert "Run 1: none of its 38 rounds has moved the model; the newest: too few updates." in said
    assert "Nothing needs a person" not in said


def words(text):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def with_limit(config, limit):
    return replace(config, admission=replace(config.admission, max_updates=limit))


def test_the_list_of_devices_has_model_budget_and_refusals(full, config, console, monkeypatch):
    text = words(full.get("/devices").text)
    seen = "unknown - -"
    assert f"meter-1 enrolled {seen} toy, round 3 3 1 of 4, newest NORM_EXCEEDED kind=meter" in text
    assert f"meter-5 enrolled {seen} toy 0 none kind=meter" in text
    with open_store(config.database) as store:
        store.contacts.save({"meter-1": Contact("1.2.3", 1_760_000_000_000)})
        store.declined.add(DeclinedRun("meter-5", "", "NO_WINDOWS", bytes(16)))
    text = words(console(with_limit(config, 40)).get("/devices").text)
    assert (
        "meter-1 enrolled unknown 2025-10-09 08:53:20 UTC 1.2.3 toy, round 3 3 of 40 1 of" in text
    )
    assert f"meter-5 enrolled {seen} none : NO_WINDOWS 0 of 40 none" in text
    contacts = {
        "meter-1": {"state": "online", "sdk": "2.0", "seen": 5, "bundle refused": "ROLLBACK"}
    }
    monkeypatch.setattr(live_status, "read_page", lambda _config: {"contacts": contacts})
    text = words(console(config).get("/devices").text)
    assert "meter-1 enrolled online 2025-10-09 08:53:20 UTC 2.0 toy : ROLLBACK 3" in text


def test_the_timeline_has_updates_orders_and_days_of_a_rollout(full, config):
    by = Initiator("console", "ann")
    with open_store(config.database) as store:
        AuditLog(store, "north", ONLINE).record(
            by, "label", "meter-0", reason="moved", detail="x=1"
        )
    text = words(full.get("/device?id=meter-0").text)
    table = text[text.index("What it sent, what was done about it") :]
    events = [
        "label: x=1 by ann (console): moved -",
        "2026-11-25 00:00:00 UTC compared the rollout's version on 2026-11-24 lost with it -",
        "2025-10-12 08:53:20 UTC update 1.3 for round 3 left out: ",
        "update 1.1 for round 1 left out: ",
    ]
    places = [table.index(one) for one in events]
    assert places == sorted(places), "newest first"
    shut = words(full.get(f"/device?id={quote(HOSTILE, safe='')}").text)
    assert f"revoke by {HOSTILE} (console): {HOSTILE}" in shut


def at_time(monkeypatch, now):
    """Let the pages be made at a time, Unix milliseconds."""
    for module in ("console.pages", "console.budget_page", "console.key_page", FORECAST_PAGE):
        clock = f"aggregator.extensions.{module}.SystemClock"
        monkeypatch.setattr(clock, lambda: SimpleNamespace(wall=lambda: now))


def test_budgets_say_how_many_have_spent_how_much_and_who_stops_when(
    full, config, console, monkeypatch
):
    now = 1_760_000_000_000 + 3 * 86_400_000
    at_time(monkeypatch, now)
    text = words(console(with_limit(config, 10)).get("/budgets").text)
    assert "meter-0 enrolled 3 10 7 30.0 2025-10-19 08:53:20 UTC" in text, (
        "one a day: in seven days"
    )
    assert "meter-5 enrolled 0 10 10 0.00 -" in text, "it has no pace"
    assert "0 to 10 % 2 10 to 20 % 0 20 to 30 % 0 30 to 40 % 4" in text
    spent = words(console(with_limit(config, 3)).get("/budgets").text)
    assert "meter-0 enrolled 3 3 0 100 has stopped" in spent
    assert "meter-0 enrolled 3 - - - -" in words(full.get("/budgets").text), "no bound"


def test_keys_and_announcements_of_the_root_with_their_ends(full, config, monkeypatch):
    text = words(full.get("/keys").text)
    key = keys.kid_of(ONLINE.public).hex()
    found = re.search(rf"key {key} - (\S+ \S+ UTC) (\S+ \S+ UTC) (\d+) ", text)
    assert found, text
    assert found[1] < found[2]
    assert "Sign it again" not in full.get("/").text
    bundle = re.search(r"bundle toy version 1 - - (\S+) (\S+) UTC \d+ ", text)
    end = datetime.fromisoformat(f"{bundle[1]} {bundle[2]}+00:00").timestamp()
    now = int(1000 * (end - 10.5 * 86_400))
    at_time(monkeypatch, now)
    text = words(full.get("/").text)
    assert "The announcement of toy version 1 ends in 10 days. Sign it again" in text
    assert re.search(r"bundle toy version 1 - - \S+ \S+ UTC 10 ", words(full.get("/keys").text))


def test_rounds_have_the_bytes_that_crossed_while_they_were_open(full):
    text = words(full.get("/run?run=1").text)
    assert re.search(r" 3 2025-10-12 08:53:20 UTC moved 4 1 0\.3333 0\.1000 - 3 kB 67 kB 3 ", text)


def test_suspects_count_rounds(full):
    text = re.sub(r"<[^>]+>", " ", full.get("/suspects").text)
    assert re.search(r"meter-0\s+3\s+3\s+3 ", text)
    assert not re.search(r"meter-1\s+\d", text)


def test_looking_at_every_page_changes_no_byte_of_the_database(config, full):
    def digest():
        return hashlib.sha256(config.database.read_bytes()).hexdigest()

    before = digest()
    for address in ADDRESSES + DETAILS:
        full.get(address)
    assert digest() == before
    assert not list(waiting(config.inbox))


def test_a_database_of_before_this_version_opens(config, console):
    """Schemas before 4 have no labels."""
    import sqlite3  # noqa: PLC0415 - the test changes the file itself

    with sqlite3.connect(config.database) as db:
        db.execute("INSERT INTO clients VALUES ('m', '[]', 1, 'enrolled', '')")
        for table in ("labels", "run_names", "content_names"):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version = 3")
    client = console(config)
    for address in [*ADDRESSES, "/device?id=m", "/devices?label=kind"]:
        assert client.get(address).status_code == 200


@pytest.mark.slow
def test_five_thousand_devices_make_small_pages(config, console):
    with open_store(config.database) as store, store.transaction():
        for n in range(5000):
            public = keys.from_seed(n.to_bytes(32, "big")).public
            store.devices.save(EnrolledDevice(f"meter-{n:05}", (public,), labels=(("n", str(n)),)))
    client = console(config)
    for address in [*ADDRESSES, "/devices?q=04&page=3"]:
        answer = client.get(address)
        assert answer.status_code == 200
        assert len(answer.content) <= 60_000, address
    last = Page(client.get("/devices?page=100").text)
    assert "/device?id=meter-04999" in last.links


def test_an_order_given_on_a_page_waits_for_the_daemon(config, full):
    token = token_in(full.get("/device?id=meter-1").text)
    form = {"token": token, "do": "revoke", "device": "meter-1", "why": "sold <b>"}
    answer = full.post("/order", data=form, headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (303, "/orders")
    ((_, order),) = waiting(config.inbox)
    assert (order.do, order.device, order.who, order.why) == (
        "revoke",
        "meter-1",
        "local",
        "sold <b>",
    )
    page = full.get("/orders").text
    assert "sold &lt;b&gt;" in page
    assert "carries these out when it runs" in page
    with open_store(config.database, read_only=True) as store:
        assert {one.id: one.state for one in store.devices.all()}["meter-1"] == "enrolled"


@pytest.mark.parametrize(
    ("form", "status", "says"),
    [
        ({"do": "rollout", "op": "start", "why": "x"}, 400, "There is no act 'start' of a rollout"),
        ({"do": "revoke", "device": "nobody", "why": "x"}, 409, "'nobody' is not enrolled"),
        ({"do": "pause"}, 400, "Give a reason"),
        ({"do": "enrol", "device": "m", "why": "x"}, 400, "There is no order 'enrol'"),
        ({"do": "command", "device": "meter-1", "op": "dance", "why": "x"}, 409, "unknown command"),
        (
            {"do": "command", "device": "meter-1", "op": "budget", "releases": "-1", "why": "x"},
            400,
            "releases: expected a whole number",
        ),
        ({"do": "pause", "why": "x" * 201}, 400, "why"),
        ({"do": "pause", "why": "x" * 20_000}, 413, "more than 16384 bytes"),
    ],
)
def test_wrong_orders_are_refused_in_a_sentence(config, full, form, status, says):
    token = token_in(full.get("/").text)
    answer = full.post("/order", data={"token": token, **form}, headers=BROWSER)
    assert answer.status_code == status
    assert says in unescape(answer.text)
    assert not list(waiting(config.inbox))


def test_the_rollout_page_shows_stages_days_and_changes_and_gives_orders(full, config):
    text = unescape(full.get("/rollout").text)
    assert "load version 2 is served in 5 % of the fleet: stage 1 of 2, 0 of 3 days passed." in text
    assert "2026-11-24" in text
    assert HOSTILE in text
    for op in ("pause", "abort"):
        token = token_in(full.get("/rollout").text)
        form = {"token": token, "do": "rollout", "op": op, "why": "complaints"}
        answer = full.post("/order", data=form, headers=BROWSER)
        assert (answer.status_code, answer.headers["location"]) == (303, "/orders")
    orders = [order for _, order in waiting(config.inbox)]
    assert [(one.do, one.device, one.op, one.who, one.why) for one in orders] == [
        ("rollout", "_all", "pause", "local", "complaints"),
        ("rollout", "_all", "abort", "local", "complaints"),
    ]


def test_a_change_of_the_rollout_changes_the_fingerprint(full, config):
    before = full.console.pages.fingerprint()
    with open_store(config.database) as store:
        (*_, last) = store.table(RolloutTable).changes()
        store.table(RolloutTable).record(
            last.of, DeviceTrial("meter-2", "score", 20_782, {20_782: (False, False)})
        )
    assert full.console.pages.fingerprint() != before


def ended(config, phase, stage, why):
    """Let the rollout of the database end."""
    with open_store(config.database) as store:
        last = store.table(RolloutTable).changes()[-1]
        store.table(RolloutTable).change(replace(last, phase=phase, stage=stage, why=why))


def test_a_rollout_that_harm_stopped_needs_a_person_until_another_begins(full, config):
    before = unescape(full.get("/").text)
    assert "Rollout of load version 2: at wave 5 %, stage 1 of 2." in before
    assert "stopped" not in before
    ended(config, "return", 1, "harm")
    text = unescape(full.get("/").text)
    assert "Rollout of load version 2 stopped at wave 5 %: members lost too many days" in text
    assert "stage 1 of 2" not in text
    page = full.get("/rollout").text
    assert re.search(r"5 %</td><td>stopped</td>.*100 %</td><td>not reached</td>", page, re.DOTALL)
    assert "Were to serve it when it stopped" in page
    ended(config, "return", 1, "operator: complaints")
    assert "Rollout of load" not in full.get("/").text, "the operator knows"


def test_a_rollout_that_has_passed_needs_a_person_until_it_is_announced(full, config):
    ended(config, "done", 2, "passed")
    assert "has passed all waves. Promote and announce it" in unescape(full.get("/").text)
    run = BundleMessage(
        serial=9, name="load", version=2, digest=b"t" * 32, size=900, spec=bytes(16), sdk="1.0",
        method="fedavg", run=2, shared=(),
    )  # fmt: skip
    with open_store(config.database) as store:
        topic = topics.common("north", "bundle")
        store.announce({topic: Ends("north", ROOT).to_all(run, "_root")})
    assert "Rollout of load" not in full.get("/").text


def test_the_device_page_shows_the_forecast_that_the_device_sends(full, config):
    text = unescape(full.get("/device?id=meter-1").text)
    figure = re.search(r"<figure>.*?</figure>", text, re.DOTALL)[0]
    assert figure.count("<circle") == 72
    assert "hours after 2025-11-23 09:00 UTC" in figure
    assert "by load-mlp version 2, candidate tuned; held-back error 0.125 kWh" in text
    assert "contain 90 % of the values" in text
    rows = re.findall(
        r"<tr><td><time[^>]*>([^<]*)</time></td>" + r'<td class="num">([^<]*)</td>' * 3, text
    )
    assert rows[0] == ("2025-11-23 09:00:00 UTC", "1.000", "0.5000", "1.500")
    assert len(rows) == 24
    other = unescape(full.get("/device?id=meter-2").text)
    assert "None is stored: the device sends its forecasts only with" in other
    assert "<figure>" not in other


def test_a_forecast_without_interval_and_with_hostile_texts_is_text(full, config):
    values = np.full((3, 24), np.nan, "<f4")
    values[0] = 1.0
    changes = {"stream": HOSTILE, "model": HOSTILE, "by": HOSTILE, "source": HOSTILE}
    send_forecast(config, "meter-2", blob=values.tobytes(), coverage=None, **changes)
    text = full.get("/device?id=meter-2").text
    assert "it has no interval" in text
    assert text.count("<circle") == 24
    assert "<script>alert" not in text


def test_suspects_show_times_credit_and_signs_of_clones(full, monkeypatch):
    credit = {"meter-0": {"meter-2": 1.0}, "meter-1": {"meter-2": 0.5}, "meter-2": {"meter-1": 0.5}}
    document = {"running": True, "credit": credit, "refused": {"OUTLIVED": 2}}
    monkeypatch.setattr(live_status, "read_page", lambda _config: document)
    text = " ".join(re.sub(r"<[^>]+>", " ", full.get("/suspects").text).split())
    assert re.search(r"meter-0 3 3 3 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC [^-]* 1 to 3", text)
    assert "meter-0 0.00 no weight by most meter-1 0.250 - meter-2 0.750 -" in text
    assert "The daemon has counted 2 signs since its start" in text
    assert "In quarantine" in text


def test_refusals_that_occur_come_first_and_alone_have_counts(full):
    text = full.get("/refusals").text
    present, absent = text.split("Reasons that do not occur at present")
    assert "NORM_EXCEEDED" in present
    assert "NORM_EXCEEDED" not in absent
    assert "BAD_SIGNATURE" in absent
    assert 'class="num"' not in absent


def test_pages_are_titled_by_what_they_show(full):
    titles = {
        "/run?run=1": "Run 1",
        "/round?run=1&round=2": "Round 2",
        "/device?id=meter-1": "meter-1",
        "/suspects": "Suspects",
    }
    for address, title in titles.items():
        assert f"<h1>{title}</h1>" in full.get(address).text
        assert f"<title>{title} - " in full.get(address).text


def test_a_changed_style_sheet_has_another_address(full):
    address = re.search(r'href="(/static/console\.css\?[0-9a-f]{12})"', full.get("/").text)[1]
    assert full.get(address).status_code == 200


def test_scores_are_a_picture_and_a_table(full):
    text = full.get("/scores").text
    assert "2025-11-23: 6 devices" in text
    assert text.count("<svg") == 1
    assert text.count("<rect") == 8
    plain = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"0\.9 to 1 +\S+ +\S+ +\S+ +\S+", plain)


def test_an_extension_that_is_switched_off_brings_no_page(workplace, config, console):
    off = console(AggregatorConfig.load(workplace()))
    assert off.get("/scores").status_code == 404
    assert 'href="/scores"' not in off.get("/").text
    assert 'href="/scores"' in console(config).get("/").text


def test_without_an_opened_sum_the_page_of_scores_says_so(config, console):
    assert "No sum of scores was opened." in console(config).get("/scores").text
