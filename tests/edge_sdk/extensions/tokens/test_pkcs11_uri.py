"""URIs of RFC 7512: what they select, and which ones are refused."""

from __future__ import annotations

import pytest

from edge_sdk.extensions.tokens.pkcs11_uri import Pkcs11Uri

OWN = {"label": "The Software PKCS#11 Softtoken", "manufacturer": "Snake Oil, Inc."}
OWN |= {"model": "1.0", "serial": "4711"}
LONG = (
    "pkcs11:token=The%20Software%20PKCS%2311%20Softtoken;manufacturer=Snake%20Oil,%20Inc.;"
    "model=1.0;object=my-certificate;type=private;id=%69%95%3E%5C%F4%BD%EC%91;serial=4711"
)


@pytest.mark.parametrize(
    ("uri", "label", "key_id"),
    [
        # from RFC 7512, section 3
        (
            LONG,
            "my-certificate",
            bytes.fromhex("69953e5cf4bdec91"),
        ),
        ("pkcs11:serial=4711;id=%00%ff", None, b"\x00\xff"),
        ("pkcs11:serial=4711;object=Z%C3%A4hler", "Zähler", None),
    ],
)
def test_a_uri_selects_a_token_and_a_key(uri, label, key_id):
    found = Pkcs11Uri.parse(uri)
    assert (found.label, found.id) == (label, key_id)
    assert found.selects_token(**OWN)
    for name in OWN:
        other = found.selects_token(**{**OWN, name: "another"})
        given = {"label": "token"}.get(name, name) + "="
        assert other == (given not in uri)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("/etc/key.pem", "expected a URI of RFC 7512"),
        ("pkcs11:", "selects a token"),
        ("pkcs11:object=a", "selects a token"),
        ("pkcs11:token=a", "selects a key"),
        ("pkcs11:token=a;object=b;object=c", "object: is there twice"),
        ("pkcs11:token=a b;object=c", "token: expected text"),
        ("pkcs11:token=%4;object=c", "token: expected text"),
        ("pkcs11:token=;object=c", "token: expected text"),
        ("pkcs11:token=%ff;object=c", "token: expected UTF-8"),
        ("pkcs11:token=a;object=b;slot-id=3", "unknown attribute 'slot-id'"),
        ("pkcs11:token=a;object=b;type=cert", "type: expected private"),
        ("pkcs11:token=a;object=b?pin-value=31337", "expected no query"),
        ("pkcs11:token=a;object=b?module-path=/m.so", "expected no query"),
    ],
)
def test_other_uris_are_refused_and_no_pin_is_repeated(uri, why):
    with pytest.raises(ValueError, match=why) as refused:
        Pkcs11Uri.parse(uri)
    assert "31337" not in str(refused.value)
