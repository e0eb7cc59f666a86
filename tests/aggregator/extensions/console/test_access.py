"""Who may look and act: sign-in, roles, form tokens, origins, hosts, lock-out, addresses."""

import pytest

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.access import EVERYWHERE, SLOW, BindError, check_bind
from aggregator.extensions.console.app import users_file
from aggregator.extensions.console.program import main
from aggregator.extensions.console.users import (
    ADDRESSES,
    IDLE,
    SESSIONS,
    AttemptLimit,
    Sessions,
    new_user,
    read_users,
    write_users,
)
from aggregator.operations.control_queue import waiting
from tests.aggregator.extensions.console.browser import token_in
from tests.aggregator.extensions.console.conftest import BROWSER, fill

PASSWORD = "correct horse battery"
ROLES = {"vera": "viewer", "otto": "operator", "selma": "security"}


@pytest.fixture(scope="module")
def crew():
    return {name: new_user(name, role, PASSWORD) for name, role in ROLES.items()}


@pytest.fixture
def guarded(config, console, crew):
    fill(config)
    write_users(users_file(config), crew)
    return console(config)


def sign_in(client, name, password=PASSWORD, **headers):
    form = {"name": name, "password": password}
    return client.post("/sign-in", data=form, headers={**BROWSER, **headers})


def token_of(client):
    return token_in(client.get("/").text)


def give(client, do="pause", headers=BROWSER, **form):
    return client.post("/order", data={"do": do, "why": "test", **form}, headers=headers)


def test_without_a_session_every_page_leads_to_the_sign_in(guarded):
    for address in ("/", "/devices", "/device?id=meter-1", "/orders", "/keys"):
        answer = guarded.get(address)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert guarded.get("/events").status_code == 401
    assert guarded.get("/sign-in").status_code == 200
    assert give(guarded).status_code == 401
    guarded.cookies["gridfed_console"] = "x" * 43
    assert guarded.get("/").status_code == 303


def test_cookie_is_strict_and_hidden_from_scripts(guarded):
    answer = sign_in(guarded, "vera")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert PASSWORD not in users_file(guarded.console.config).read_text()
    assert guarded.get("/").status_code == 200


def test_viewer_may_not_act_and_operator_may_not_revoke(config, guarded):
    sign_in(guarded, "vera")
    assert 'action="/order"' not in guarded.get("/device?id=meter-1").text
    assert give(guarded, token=token_of(guarded)).status_code == 403
    sign_in(guarded, "otto")
    token = token_of(guarded)
    assert give(guarded, "revoke", token=token, device="meter-1").status_code == 403
    wipe = {"op": "wipe", "device": "meter-1", "token": token}
    assert give(guarded, "command", **wipe).status_code == 403
    assert not list(waiting(config.inbox))
    assert give(guarded, token=token).status_code == 303
    sign_in(guarded, "selma")
    assert give(guarded, "revoke", token=token_of(guarded), device="meter-1").status_code == 303
    orders = [order for _, order in waiting(config.inbox)]
    assert sorted((one.do, one.who) for one in orders) == [("pause", "otto"), ("revoke", "selma")]


def test_form_needs_the_origin_and_its_token(config, guarded):
    sign_in(guarded, "selma")
    token = token_of(guarded)
    for headers in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert give(guarded, headers=headers, token=token).status_code == 403
    for wrong in ("", "0" * 64, "\u00e9"):
        assert give(guarded, token=wrong).status_code == 403
    assert not list(waiting(config.inbox))


def test_token_of_another_session_is_refused(config, guarded):
    sign_in(guarded, "selma")
    token = token_of(guarded)
    sign_in(guarded, "otto")
    assert give(guarded, token=token).status_code == 403


def test_other_host_names_are_refused_as_after_rebinding(config, console):
    client = console(config)
    for host in ("evil.example", "", "127.0.0.1.evil.example", "10.0.0.1"):
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 400, host
    for host in ("localhost:9470", "127.0.0.1", "[::1]:9470"):
        assert client.get("/", headers={"host": host}).status_code == 200


def logged(caplog, event):
    return [one.getMessage() for one in caplog.records if one.getMessage().startswith(event)]


def test_refused_acts_are_logged_once_each(guarded, caplog):
    """No session, another site's form, no token, no role: each with path, status and reason."""
    assert give(guarded).status_code == 401
    sign_in(guarded, "vera")
    token = token_of(guarded)
    assert give(guarded, headers={"origin": "http://evil.example"}, token=token).status_code == 403
    assert give(guarded).status_code == 403
    assert give(guarded, token=token).status_code == 403
    lines = logged(caplog, "console request refused")
    wanted = ["Sign in first", "not sent from a page", "The form has expired", "needs the role"]
    assert len(lines) == len(wanted)
    for line, why in zip(lines, wanted, strict=True):
        assert "path=/order" in line
        assert why in line
    guarded.cookies.clear()
    caplog.clear()
    assert guarded.get("/").status_code == 303
    assert guarded.get("/events").status_code == 401
    assert logged(caplog, "console request refused") == [], "a page that needs a sign-in"


def test_locks_are_logged_once(guarded, caplog):
    for n in range(60):
        sign_in(guarded, f"nobody{n}", "wrong")
    (line,) = logged(caplog, "console sign-in locked")
    assert 'what=name which="of no user" address=127.0.0.1' in line
    assert len(logged(caplog, "console request refused")) == 5
    for name in ("vera", "otto", "selma") * 15:
        sign_in(guarded, name, "wrong")
    locks = [one.split()[3:5] for one in logged(caplog, "console sign-in locked")[1:]]
    assert locks == [["what=name", f"which={name}"] for name in ("vera", "otto", "selma")]


def test_failures_lock_a_name_where_they_came_from_and_no_user_elsewhere(guarded):
    for _ in range(5):
        assert sign_in(guarded, "vera", "wrong").status_code == 403
    locked = sign_in(guarded, "vera")
    assert locked.status_code == 429
    assert "wait 15 minutes" in locked.text
    assert sign_in(guarded, "otto").status_code == 303
    for stranger in range(6):
        guarded.address = f"203.0.113.{stranger}"
        sign_in(guarded, "vera", "wrong")
    guarded.address = "192.0.2.7"
    assert sign_in(guarded, "vera").status_code == 303, "the right password from another address"


def test_addresses_of_one_ipv6_network_are_counted_together(guarded):
    for n in range(5):
        guarded.address = f"2001:db8::{n}"
        assert sign_in(guarded, "vera", "wrong").status_code == 403
    guarded.address = "2001:db8::ffff"
    assert sign_in(guarded, "vera").status_code == 429
    guarded.address = "2001:db8:0:1::1"
    assert sign_in(guarded, "vera").status_code == 303


def test_guesses_from_many_addresses_slow_every_attempt_and_shut_out_nobody(guarded, caplog):
    slept, app = [], guarded.console

    async def sleep(seconds):
        slept.append((seconds, frozenset(app._waiting)))

    app.sleep = sleep
    for n in range(EVERYWHERE):
        app.access.record_failure(f"203.0.{n}.1")
    assert len(logged(caplog, "console sign-in slowed")) == 1
    guarded.address = "192.0.2.7"
    assert sign_in(guarded, "vera").status_code == 303
    assert (slept, app._waiting) == ([(SLOW, {"192.0.2.7"})], set())
    app._waiting.add("192.0.2.7")
    again = sign_in(guarded, "vera")
    assert (again.status_code, len(slept)) == (429, 1), "one attempt of an address at a time"
    guarded.address = "192.0.2.8"
    for _ in range(5):
        app.access.names.record_failure("192.0.2.8 vera")
    assert (sign_in(guarded, "vera").status_code, len(slept)) == (429, 1), "a locked name at once"


def test_a_hundred_thousand_attempts_stay_cheap_and_bounded(guarded):
    access = guarded.console.access
    for _ in range(5):
        sign_in(guarded, "vera", "wrong")
    for n in range(100_000):
        key = f"2001:db8::{n:x}"
        assert access.names.is_locked("127.0.0.1 vera")
        access.addresses.record_failure(key)
    assert len(access.addresses) == ADDRESSES
    for n in range(20):
        assert sign_in(guarded, f"x{n}", "wrong").status_code in {403, 429}
    assert len(access.names) <= 2, "unknown names share one entry"


def test_a_lock_ends():
    now = [0.0]
    limit = AttemptLimit(lambda: now[0], free=2)
    limit.record_failure("a")
    assert not limit.is_locked("a")
    limit.record_failure("a")
    assert limit.is_locked("a")
    now[0] = 901.0
    assert not limit.is_locked("a")
    limit.record_failure("a")
    limit.forget("a")
    assert len(limit) == 0


def test_sessions_end_and_are_bounded():
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.begin("a")
    keys = [sessions.begin("b") for _ in range(SESSIONS)]
    assert (sessions.user(first), sessions.user(keys[-1])) == ("", "b")
    now[0] = IDLE + 1
    assert sessions.user(keys[-1]) == ""
    key = sessions.begin("c")
    for _ in range(14):
        now[0] += IDLE - 1
        found = sessions.user(key)
    assert found == "", "a session ends after twelve hours of use"
    key = sessions.begin("d")
    sessions.end(key)
    assert sessions.user(key) == ""


def test_a_damaged_file_of_users_lets_no_person_in(config, guarded):
    sign_in(guarded, "selma")
    users_file(config).write_text("[{}]")
    for address in ("/", "/orders", "/sign-in"):
        answer = guarded.get(address)
        assert answer.status_code in {200, 409}
        assert "meter" not in answer.text
    assert guarded.get("/").status_code == 409
    assert "not a file of users" in guarded.get("/").text


def test_signing_out_ends_the_session(guarded):
    sign_in(guarded, "vera")
    key = guarded.cookies["gridfed_console"]
    answer = guarded.post("/sign-out", data={"token": token_of(guarded)}, headers=BROWSER)
    assert answer.status_code == 303
    assert guarded.console.access.sessions.user(key) == ""


def test_a_removed_user_is_out_at_once(config, guarded, crew):
    sign_in(guarded, "vera")
    write_users(users_file(config), {"otto": crew["otto"]})
    assert guarded.get("/").status_code == 303


@pytest.mark.parametrize(
    ("console", "has_users", "says"),
    [
        ({}, False, ""),
        ({"listen": "0.0.0.0:9470"}, False, "needs users"),
        ({"listen": "0.0.0.0:9470"}, True, "needs HTTPS"),
        ({"listen": "0.0.0.0:9470", "behind_proxy": True}, True, ""),
        ({"behind_proxy": True}, False, "needs users"),
        ({"listen": "10.0.0.5:1", "cert_file": "c.pem", "key_file": "k.pem"}, True, ""),
        ({"cert_file": "c.pem"}, True, "expected both or none"),
    ],
)
def test_an_open_address_needs_users_and_https(workplace, crew, console, has_users, says):
    lines = "".join(
        f"{key} = {str(value).lower() if value is True else repr(value)}\n"
        for key, value in console.items()
    )
    config = AggregatorConfig.load(workplace(more=f"[console]\n{lines}"))
    users = crew if has_users else {}
    if not says:
        check_bind(config, users)
        return
    with pytest.raises(BindError, match=says):
        check_bind(config, users)


def test_behind_a_proxy_nobody_is_local(workplace, config, console):
    path = workplace(more="[console]\nbehind_proxy = true\n")
    client = console(AggregatorConfig.load(path))
    assert client.get("/").status_code == 303


def test_users_are_added_listed_and_removed(config, capsys, monkeypatch, tmp_path):
    import io  # noqa: PLC0415 - here alone

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    path = str(config.file)
    assert main(["user", "add", "otto", "--role", "operator", "--config", path]) == 0
    (user,) = read_users(users_file(config)).values()
    assert (user.name, user.role) == ("otto", "operator")
    assert users_file(config).stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert main(["user", "list", "--config", path]) == 0
    assert capsys.readouterr().out == "otto  operator\n"
    for given, name, role in (
        ("short", "otto", "viewer"),
        (PASSWORD, "O", "viewer"),
        (PASSWORD, "o", "x"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{given}\n"))
        assert main(["user", "add", name, "--role", role, "--config", path]) == 2
    assert main(["user", "remove", "otto", "--config", path]) == 0
    assert main(["user", "remove", "otto", "--config", path]) == 2
    assert read_users(users_file(config)) == {}
    users_file(config).write_text("{")
    assert main(["user", "list", "--config", path]) == 2
