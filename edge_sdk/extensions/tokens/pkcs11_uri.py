"""Read the addresses of keys in PKCS #11 tokens: the ``pkcs11`` URIs of RFC 7512.

Attributes of the path select a token and a key in it; every one that is given must match. A device's
configuration has module and PIN file as keys of their own and refuses a query (``pin-value`` above all);
elsewhere the query may name these two.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.public_key import KeyKind

SCHEME: Final = "pkcs11:"
_FORM: Final = re.compile(r"(?:[A-Za-z0-9\-._~:\[\]@!$'()*+,=&]|%[0-9A-Fa-f]{2})*")  # RFC 7512, 2.3
_QUERY: Final = ("module-path", "pin-source")
_FIELD_OF: Final = {
    "token": "token",
    "manufacturer": "manufacturer",
    "model": "model",
    "serial": "serial",
    "object": "label",
    "id": "id",
}


@dataclass(frozen=True, slots=True)
class Pkcs11Uri:
    r"""Attributes that select a token and a private key in it; None is a wildcard.

    >>> uri = Pkcs11Uri.parse("pkcs11:token=Meter%20TPM;object=gridfed;id=%01%02")
    >>> uri.token, uri.label, uri.id
    ('Meter TPM', 'gridfed', b'\x01\x02')
    >>> print(uri)
    token 'Meter TPM', object 'gridfed', id 0102
    >>> Pkcs11Uri.parse("pkcs11:token=a;object=b?pin-value=1234")
    Traceback (most recent call last):
    ValueError: expected no query after '?': module and PIN are keys of their own (module, pin_file)
    """

    token: str | None = None
    manufacturer: str | None = None
    model: str | None = None
    serial: str | None = None
    label: str | None = None  # attribute "object"
    id: bytes | None = None

    @classmethod
    def parse(cls, text: str) -> Pkcs11Uri:
        """Return the token and key that a URI selects.

        Raises:
            ValueError: It is no such URI, or selects no token or no key. No value is in the message.
        """
        if not text.startswith(SCHEME):
            raise ValueError("expected a URI of RFC 7512: pkcs11:token=LABEL;object=NAME")
        path, mark, _ = text[len(SCHEME) :].partition("?")
        if mark:
            raise ValueError(
                "expected no query after '?': module and PIN are keys of their own (module, pin_file)"
            )
        found: dict[str, Any] = {}
        for part in filter(None, path.split(";")):
            name, _, value = part.partition("=")
            if name == "type":
                if value != "private":
                    raise ValueError("type: expected private")
                continue
            _add(found, name, value)
        uri = cls(**found)
        if uri.token is None and uri.serial is None:
            raise ValueError("expected token=LABEL or serial=NUMBER, which selects a token")
        if uri.label is None and uri.id is None:
            raise ValueError("expected object=NAME or id=%HEX, which selects a key")
        return uri

    def selects_token(self, *, label: str, manufacturer: str, model: str, serial: str) -> bool:
        """Return whether every given attribute is a token's own."""
        wanted = (self.token, self.manufacturer, self.model, self.serial)
        own = (label, manufacturer, model, serial)
        return all(one is None or one == its for one, its in zip(wanted, own, strict=True))

    def __str__(self) -> str:
        parts = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:
                name = "object" if one.name == "label" else one.name
                parts.append(f"{name} {value.hex() if isinstance(value, bytes) else repr(value)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """Place of a private key."""

    module: Path  # shared library of the token's maker
    uri: Pkcs11Uri
    kind: KeyKind | None  # kind of the key; None for either kind
    pin_file: Path | None = None  # file with the user PIN; None for a token that asks for none

    def __str__(self) -> str:
        return f"PKCS #11 {self.uri}"


def place_in(uri: str) -> TokenPlace:
    """Return the place of a key of either kind that a URI with its query names.

    Raises:
        ValueError: It is no such URI, or lacks the module. The query is not in the message.

    >>> place_in("pkcs11:token=hsm;object=ca?module-path=/p11.so&pin-source=file:/etc/pin").pin_file
    PosixPath('/etc/pin')
    """
    path, _, query = uri.partition("?")
    named = dict(part.partition("=")[::2] for part in query.split("&") if part)
    if unknown := [name for name in named if name not in _QUERY]:
        raise ValueError(f"{path}: unknown query {unknown[0][:32]!r}; known: {', '.join(_QUERY)}")
    module, pin = (unquote(named.get(name, "")).removeprefix("file:") for name in _QUERY)
    if not module:
        raise ValueError(f"{path}: expected ?module-path=FILE")
    try:
        return TokenPlace(Path(module), Pkcs11Uri.parse(path), None, Path(pin) if pin else None)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _add(found: dict[str, Any], name: str, value: str) -> None:
    field = _FIELD_OF.get(name)
    if field is None:
        raise ValueError(f"unknown attribute {name[:32]!r}; known: {', '.join(_FIELD_OF)}, type")
    if field in found:
        raise ValueError(f"{name}: is there twice")
    if not value or not _FORM.fullmatch(value):
        raise ValueError(f"{name}: expected text in which any other character is a %HEX escape")
    raw = unquote_to_bytes(value)
    try:
        found[field] = raw if field == "id" else raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: expected UTF-8") from error
