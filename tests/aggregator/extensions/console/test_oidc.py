"""Sign-in by OpenID Connect against an issuer over HTTP: roles, hostile answers, an absent issuer."""

import logging
import re
import time
from html import escape, unescape
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

pytest.importorskip("authlib", reason="the oidc extra is not installed")
pytest.importorskip("joserfc", reason="the oidc extra is not installed")

import requests
from joserfc import jwt

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.access import BindError, check_bind
from aggregator.extensions.console.app import users_file
from aggregator.extensions.console.oidc import PENDING, WAITS, client_of
from aggregator.extensions.console.users import new_user, write_users
from aggregator.operations.control_queue import waiting
from tests.aggregator.extensions.console.browser import token_in
from tests.aggregator.extensions.console.conftest import BROWSER, fill
from tests.aggregator.extensions.console.oidc_issuer import CLIENT, SECRET, Issuer

PASSWORD = "correct horse battery"
SECTION = """
[console.oidc]
issuer = "{issuer}"
client_id = "{client}"
client_secret_file = "client.secret"
viewer = ["grid-readers"]
operator = ["grid-operators"]
security = ["grid-security"]
"""


@pytest.fixture
def issuer():
    made = Issuer()
    yield made
    made.close()


@pytest.fixture
def configured(workplace, config, issuer):
    fill(config)
    (config.file.parent / "client.secret").write_text(SECRET + "\n", "utf-8")
    return AggregatorConfig.load(workplace(SECTION.format(issuer=issuer.url, client=CLIENT)))


@pytest.fixture
def client(configured, console):
    return console(configured)


def returned(client):
    """Begin a sign-in, let the issuer send the browser back; return the path and query it asks for."""
    begun = client.get("/sign-in/oidc")
    assert begun.status_code == 303, begun.text
    answer = requests.get(begun.headers["location"], allow_redirects=False, timeout=30)
    at = urlsplit(answer.headers["location"])
    assert (at.netloc, at.path) == ("127.0.0.1:9470", "/sign-in/return")
    return f"{at.path}?{at.query}"


def changed(path, **changes):
    at = urlsplit(path)
    query = {name: one[0] for name, one in parse_qs(at.query).items()} | changes
    return f"{at.path}?{urlencode(query)}"


def is_signed_in(client):
    return client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["other", "grid-readers"], "viewer"),
        (["grid-readers", "grid-operators"], "operator"),
        ("grid-security", "security"),
    ],
)
def test_the_highest_role_of_the_claim_counts(client, issuer, groups, role):
    issuer.person["groups"] = groups
    answer = client.get(returned(client))
    assert answer.status_code == 200
    assert f"oidc:olga ({role})" in answer.text
    assert 'http-equiv="refresh" content="0;url=/"' in answer.text, "a strict cookie is then sent"
    assert f"oidc:olga ({role})" in client.get("/").text


def test_an_order_has_the_name_of_the_issuer_and_sign_out_ends_it(configured, client):
    client.get(returned(client))
    token = token_in(client.get("/").text)
    form = {"token": token, "do": "pause", "why": "storm"}
    assert client.post("/order", data=form, headers=BROWSER).status_code == 303
    ((_, order),) = waiting(configured.inbox)
    assert order.who == "oidc:olga"
    revoke = form | {"do": "revoke", "device": "meter-1"}
    assert client.post("/order", data=revoke, headers=BROWSER).status_code == 403, "an operator"
    assert client.post("/sign-out", data={"token": token}, headers=BROWSER).status_code == 200
    assert not is_signed_in(client)


def signed_out(client):
    """Sign out by the form; return the answer."""
    token = token_in(client.get("/").text)
    return client.post("/sign-out", data={"token": token}, headers=BROWSER)


def test_sign_out_ends_the_session_of_the_issuer_as_well(client, issuer):
    client.get(returned(client))
    answer = signed_out(client)
    address = unescape(re.search(r'content="0;url=([^"]+)"', answer.text)[1])
    assert f'<a href="{escape(address)}">' in answer.text, "for a browser that does not refresh"
    gone = requests.get(address, allow_redirects=False, timeout=30)
    assert gone.headers["location"] == "http://127.0.0.1:9470/sign-in"
    (query,) = issuer.ended
    hint = jwt.decode(query.pop("id_token_hint"), issuer.key)
    assert (hint.claims["sub"], hint.claims["aud"]) == ("1", CLIENT)
    assert query == {
        "theme": "plain",
        "client_id": CLIENT,
        "post_logout_redirect_uri": "http://127.0.0.1:9470/sign-in",
    }
    assert client.get("/sign-in").status_code == 200


@pytest.mark.parametrize("end", ["", "insecure"])
def test_without_a_secure_address_to_sign_out_only_the_console_does(
    client, issuer, monkeypatch, end
):
    found = issuer.metadata() | {"end_session_endpoint": "http://sso.example/end"}
    if not end:
        del found["end_session_endpoint"]
    monkeypatch.setattr(issuer, "metadata", lambda: found)
    client.get(returned(client))
    answer = signed_out(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert not is_signed_in(client)


def test_sign_out_works_while_the_issuer_is_away(client, issuer, caplog):
    client.get(returned(client))
    client.console.oidc.client._metadata_read = float("-inf")
    issuer.close()
    with caplog.at_level(logging.WARNING, "aggregator.extensions.console"):
        answer = signed_out(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "console issuer failed" in caplog.text
    assert not is_signed_in(client)


def test_a_local_user_signs_out_of_the_console_only(client, configured, issuer):
    write_users(users_file(configured), {"bob": new_user("bob", "viewer", PASSWORD)})
    form = {"name": "bob", "password": PASSWORD}
    assert client.post("/sign-in", data=form, headers=BROWSER).status_code == 303
    assert signed_out(client).status_code == 303
    assert issuer.ended == []


def test_a_long_token_is_not_put_into_an_address(client, issuer):
    issuer.person["picture"] = "x" * 8000
    client.get(returned(client))
    answer = signed_out(client)
    assert "client_id=" in answer.text
    assert "id_token_hint" not in answer.text


def test_the_token_is_in_no_text_of_session_or_person(client):
    client.get(returned(client))
    (session,) = client.console.access.sessions._sessions.values()
    assert session.id_token.count(".") == 2
    assert session.id_token not in repr(session)


def test_no_token_reaches_the_browser(client):
    begun = client.get("/sign-in/oidc")
    cookie = begun.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    answer = client.get(returned(client))
    seen = answer.text + str(answer.headers) + str(client.cookies)
    assert "opaque-access-token" not in seen
    assert "eyJ" not in seen, "no JWT"


@pytest.mark.parametrize(
    "case",
    [
        ({"aud": "another"}, "key", "aud"),
        ({"aud": [CLIENT, "another"]}, "key", "azp"),
        ({"iss": "https://another.example"}, "key", "iss"),
        ({"nonce": "another"}, "key", "nonce"),
        ({"nonce": None}, "key", "nonce"),
        ({"exp": 1_700_000_000}, "key", "expired"),
        ({"exp": None}, "key", "exp"),
        ({"iat": 9_999_999_999}, "key", "in the future"),
        ({}, "none", "token"),
        ({}, "secret", "token"),
        ({}, "other", "token"),
        ({"groups": ["others"]}, "key", "has no role here"),
        ({"groups": None}, "key", "has no role here"),
        ({"preferred_username": "a\nb"}, "key", "printable"),
        ({"preferred_username": "x" * 59}, "key", "58"),
    ],
)
def test_a_bad_token_is_refused_and_logged(client, issuer, caplog, case):
    issuer.changes, issuer.sign, says = case
    with caplog.at_level(logging.INFO):
        answer = client.get(returned(client))
    assert answer.status_code == 403
    assert says in answer.text
    assert not is_signed_in(client)
    (line,) = [one.message for one in caplog.records if one.message.startswith("console")]
    assert line.startswith("console request refused path=/sign-in/return status=403")
    assert issuer.tokens == 1


def test_a_wrong_state_is_refused_before_the_code_is_used(client, issuer):
    path = returned(client)
    answer = client.get(changed(path, state="another"))
    assert (answer.status_code, "state" in answer.text) == (403, True)
    assert client.get(path).status_code == 403, "the sign-in is over"
    assert issuer.tokens == 0


def test_a_code_is_good_once_and_in_its_own_browser(client, console, configured, issuer):
    path = returned(client)
    assert console(configured).get(path).status_code == 403, "another browser has no cookie"
    assert client.get(path).status_code == 200
    assert client.get(path).status_code == 403
    assert issuer.tokens == 1
    again = changed(returned(client), code=parse_qs(urlsplit(path).query)["code"][0])
    assert client.get(again).status_code == 403, "the issuer refuses a used code"


def test_answers_of_another_issuer_and_errors_are_refused(client, issuer):
    answer = client.get(changed(returned(client), iss="https://another.example"))
    assert (answer.status_code, "iss: expected" in answer.text) == (403, True)
    answer = client.get(changed(returned(client), error="access_denied<b>"))
    assert "the issuer refuses: access_denied&lt;b&gt;" in answer.text
    assert client.get(changed(returned(client), iss=issuer.url)).status_code == 200


def test_a_new_key_of_the_issuer_is_fetched(client, issuer):
    from joserfc.jwk import RSAKey  # noqa: PLC0415 - an extra

    assert client.get(returned(client)).status_code == 200
    issuer.key = RSAKey.generate_key(2048, {"kid": "two"})
    clock = time.monotonic() + 60
    client.console.oidc.client.clock = lambda: clock
    assert client.get(returned(client)).status_code == 200


def test_without_the_issuer_the_page_says_so_and_local_users_sign_in(client, issuer, configured):
    issuer.close()
    answer = client.get("/sign-in/oidc")
    assert answer.status_code == 502
    assert "The issuer cannot be used now" in answer.text
    write_users(users_file(configured), {"vera": new_user("vera", "viewer", PASSWORD)})
    form = {"name": "vera", "password": PASSWORD}
    assert client.post("/sign-in", data=form, headers=BROWSER).status_code == 303
    assert is_signed_in(client)


def test_an_issuer_that_ends_between_the_two_steps(client, issuer):
    path = returned(client)
    issuer.close()
    assert client.get(path).status_code == 502
    assert not is_signed_in(client)


def test_an_issuer_with_the_metadata_of_another_is_not_used(client, issuer, monkeypatch):
    monkeypatch.setattr(issuer, "metadata", lambda: {"issuer": "https://another.example"})
    assert "metadata name another issuer" in client.get("/sign-in/oidc").text
    good = {
        "issuer": issuer.url,
        "token_endpoint": f"{issuer.url}/t",
        "jwks_uri": f"{issuer.url}/j",
    }
    bad = good | {"authorization_endpoint": "http://another.example/a"}
    monkeypatch.setattr(issuer, "metadata", lambda: bad)
    assert "expected an address with https" in client.get("/sign-in/oidc").text


def test_sign_ins_that_have_begun_are_bounded_and_end(client, issuer):
    oidc = client.console.oidc.client
    first, _ = oidc.begin()
    for _ in range(PENDING):
        oidc.begin()
    assert len(oidc) == PENDING
    assert first not in oidc._pending
    path, late = returned(client), time.monotonic() + WAITS + 1
    oidc.clock = lambda: late
    assert client.get(path).status_code == 403


def test_refused_sign_ins_lock_the_address(client, issuer):
    issuer.sign = "none"
    for _ in range(50):
        assert client.get("/sign-in/return?code=x&state=y").status_code == 403
    assert client.get("/sign-in/return?code=x&state=y").status_code == 429
    assert client.get("/sign-in/oidc").status_code == 429


def test_with_an_issuer_loopback_needs_a_sign_in_and_without_one_not(client, config, console):
    assert client.get("/").headers["location"] == "/sign-in"
    assert "Sign in at 127.0.0.1" in client.get("/sign-in").text
    assert is_signed_in(console(config))
    assert console(config).get("/sign-in/oidc").status_code == 404


def test_an_issuer_without_https_or_without_roles_is_refused(workplace, configured, issuer):
    check_bind(configured, {})
    text = SECTION.format(issuer=issuer.url, client=CLIENT)
    lines = [
        one for one in text.splitlines() if not one.startswith(("viewer", "operator", "security"))
    ]
    for bad, says in (
        (text.replace("http://127.0.0.1", "http://issuer.example"), r"oidc\.issuer: expected"),
        ("\n".join(lines), "no person gets a role"),
    ):
        with pytest.raises(BindError, match=says):
            check_bind(AggregatorConfig.load(workplace(bad)), {})


def test_a_missing_secret_is_one_sentence(configured):
    (configured.file.parent / "client.secret").unlink()
    with pytest.raises(BindError, match="client_secret_file"):
        client_of(configured)
