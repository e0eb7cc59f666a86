"""Open signing keys in files, or in a security token through PKCS#11; the only importer of ``pkcs11``.

A key in a token is named by a URI of RFC 7512: ``pkcs11:token=NAME;object=LABEL`` with the query
attributes ``module-path`` (the token's library) and ``pin-source`` (a file with its PIN). It needs the
package python-pkcs11 (extra ``pkcs11``). The private key never leaves the token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from edge_sdk.wire import p256
from edge_sdk.wire.keys import KeyFileError, Signer, kid_of, load_device_key
from edge_sdk.wire.public_key import KeyKind, weakness

if TYPE_CHECKING:
    import pkcs11

SCHEME: Final = "pkcs11:"
_CURVES: Final[dict[KeyKind, str]] = {"ed25519": "1.3.101.112", "p256": "1.2.840.10045.3.1.7"}
_UNCOMPRESSED = 4


@dataclass(frozen=True, slots=True)
class TokenUri:
    """Parts of a PKCS#11 URI.

    Attributes:
        token: Label of the token.
        label: Label of the key.
        module: Path of the token's library.
        pin_source: File with the PIN; empty for a token without one.

    Example:
        >>> uri = "pkcs11:token=meter;object=identity?module-path=/usr/lib/p11.so&pin-source=/etc/pin"
        >>> TokenUri.parse(uri)
        TokenUri(token='meter', label='identity', module='/usr/lib/p11.so', pin_source='/etc/pin')
        >>> TokenUri.parse("pkcs11:object=a%20key?module-path=/m.so")
        Traceback (most recent call last):
        edge_sdk.wire.keys.KeyFileError: pkcs11:object=a%20key: expected token=, object= and module-path=
    """

    token: str
    label: str
    module: str
    pin_source: str = ""

    @classmethod
    def parse(cls, uri: str) -> TokenUri:
        """Return the parts of a URI.

        Raises:
            KeyFileError: It lacks the token, the object or the module.
        """
        path, _, query = uri.removeprefix(SCHEME).partition("?")
        parts = [part.partition("=") for part in (*path.split(";"), *query.split("&"))]
        named = {name: unquote(value) for name, _, value in parts}
        token, label = named.get("token", ""), named.get("object", "")
        module = named.get("module-path", "")
        if not (token and label and module):
            said = uri.partition("?")[0]
            raise KeyFileError(f"{said}: expected token=, object= and module-path=")
        return cls(token, label, module, named.get("pin-source", "").removeprefix("file:"))

    @property
    def name(self) -> str:
        """Return the URI without its query, for messages."""
        return f"{SCHEME}token={self.token};object={self.label}"

    def pin(self) -> str | None:
        """Read the PIN.

        Raises:
            KeyFileError: The file cannot be read.
        """
        if not self.pin_source:
            return None
        try:
            return Path(self.pin_source).read_text("utf-8").strip()
        except OSError as error:
            raise KeyFileError(f"{self.name}: pin-source: {error.strerror}") from error


def is_token_uri(where: Path | str) -> bool:
    """Return whether this names a key in a token instead of a file.

    >>> is_token_uri("pkcs11:token=a;object=b?module-path=/m.so"), is_token_uri("/etc/meter.key")
    (True, False)
    """
    return str(where).startswith(SCHEME)


class TokenSigningKey:
    """An Ed25519 or a P-256 key in a token. Its session stays open as long as the object.

    Args:
        name: URI of the key, for messages.
        private: Private key in the token.
        public: Its raw public key.
    """

    __slots__ = ("_name", "_private", "public")

    def __init__(self, name: str, private: Any, public: bytes) -> None:  # noqa: ANN401 - as _raw
        """Keep the handle of the private key."""
        self._name, self._private, self.public = name, private, public

    @property
    def kid(self) -> bytes:
        """Return the 8 bytes by which envelopes name this key."""
        return kid_of(self.public)

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of ``data``.

        Raises:
            KeyFileError: The token is gone, or refuses.
        """
        import pkcs11  # noqa: PLC0415 - an extra

        try:
            if len(self.public) != p256.PUBLIC_SIZE:
                return bytes(self._private.sign(data, mechanism=pkcs11.Mechanism.EDDSA))
            whole = hashlib.sha256(data).digest()
            raw = bytes(self._private.sign(whole, mechanism=pkcs11.Mechanism.ECDSA))
        except pkcs11.PKCS11Error as error:
            raise KeyFileError(f"{self._name}: the token does not sign: {_text(error)}") from error
        r, s = (int.from_bytes(part, "big") for part in (raw[:32], raw[32:]))
        return p256.signature_of(r, s)

    def __repr__(self) -> str:
        """Return the class name and the key id."""
        return f"TokenSigningKey({self.kid.hex()})"


def open_signer(where: Path | str) -> Signer:
    """Open a private key: a PEM file, or a key in a token.

    Raises:
        KeyFileError: No such file or token, another kind of key, or python-pkcs11 is missing.
    """
    return open_token_key(str(where)) if is_token_uri(where) else load_device_key(where)


def open_token_key(uri: str) -> TokenSigningKey:
    """Open a key in a token.

    Raises:
        KeyFileError: The token, the key or its library is missing, or the PIN is wrong.
    """
    where = TokenUri.parse(uri)
    import_pkcs11(where)
    import pkcs11  # noqa: PLC0415 - an extra

    session = _session(where, is_writing=False)
    try:
        private = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, label=where.label)
        public = session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, label=where.label)
        return TokenSigningKey(where.name, private, _raw(where, public))
    except (pkcs11.PKCS11Error, ValueError) as error:
        raise KeyFileError(f"{where.name}: {_text(error)}") from error


def has_token_key(uri: str) -> bool:
    """Return whether the token has a key of this label.

    Raises:
        KeyFileError: The token or its library is missing, or the PIN is wrong.
    """
    where = TokenUri.parse(uri)
    import_pkcs11(where)
    import pkcs11  # noqa: PLC0415 - an extra

    wanted = {
        pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PRIVATE_KEY,
        pkcs11.Attribute.LABEL: where.label,
    }
    return next(iter(_session(where, is_writing=False).get_objects(wanted)), None) is not None


def make_token_key(uri: str, kind: KeyKind) -> TokenSigningKey:
    """Draw a key pair in the token; its private half cannot be read.

    Raises:
        KeyFileError: The token cannot make one, or has one of this label.
    """
    where = TokenUri.parse(uri)
    if has_token_key(uri):
        raise KeyFileError(f"{where.name}: the token has a key of this label already")
    import pkcs11  # noqa: PLC0415 - an extra
    from pkcs11.util.ec import encode_named_curve_parameters  # noqa: PLC0415 - an extra

    key_type = pkcs11.KeyType.EC if kind == "p256" else pkcs11.KeyType.EC_EDWARDS
    curve = encode_named_curve_parameters(_CURVES[kind])
    try:
        session = _session(where, is_writing=True)
        parameters = session.create_domain_parameters(
            key_type, {pkcs11.Attribute.EC_PARAMS: curve}, local=True
        )
        parameters.generate_keypair(store=True, label=where.label)
    except pkcs11.PKCS11Error as error:
        raise KeyFileError(
            f"{where.name}: the token makes no {kind} key: {_text(error)}"
        ) from error
    return open_token_key(uri)


def has_key(where: Path | str) -> bool:
    """Return whether a private key file exists, or a token has the key of a URI.

    Raises:
        KeyFileError: The token or its library is missing, or the PIN is wrong.
    """
    return has_token_key(str(where)) if is_token_uri(where) else Path(where).exists()


def delete_key(where: Path | str) -> None:
    """Delete a private key file, or both halves of a key in a token; nothing if there is none.

    Raises:
        KeyFileError: The token is missing, or does not delete it.
    """
    if not is_token_uri(where):
        Path(where).unlink(missing_ok=True)
    elif has_token_key(str(where)):
        import pkcs11  # noqa: PLC0415 - an extra

        named = TokenUri.parse(str(where))
        try:
            session = _session(named, is_writing=True)
            for one in session.get_objects({pkcs11.Attribute.LABEL: named.label}):
                one.destroy()
        except pkcs11.PKCS11Error as error:
            raise KeyFileError(f"{named.name}: not deleted: {_text(error)}") from error


def import_pkcs11(where: TokenUri) -> None:
    """Import python-pkcs11.

    Raises:
        KeyFileError: It is not installed.
    """
    try:
        import pkcs11  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise KeyFileError(
            f"{where.name}: keys in tokens need python-pkcs11: pip install 'gridfed[pkcs11]'"
        ) from error


def _session(where: TokenUri, *, is_writing: bool) -> pkcs11.Session:
    import pkcs11  # noqa: PLC0415 - an extra

    try:
        token = pkcs11.lib(where.module).get_token(token_label=where.token)
        try:
            return token.open(rw=is_writing, user_pin=where.pin())
        except pkcs11.UserAlreadyLoggedIn:  # by another session of this process
            return token.open(rw=is_writing)
    except (pkcs11.PKCS11Error, RuntimeError, OSError) as error:
        raise KeyFileError(f"{where.name}: {_text(error)}") from error


def _raw(where: TokenUri, public: Any) -> bytes:  # noqa: ANN401 - the library's keys have no types
    """Return the raw public key of a token's public key.

    Raises:
        KeyFileError: It is on another curve, or unsafe.
    """
    import pkcs11  # noqa: PLC0415 - an extra

    point = bytes(public[pkcs11.Attribute.EC_POINT])
    if point[:1] == b"\x04" and len(point) == point[1] + 2:  # a DER OCTET STRING around it
        point = point[2:]
    if len(point) == 2 * 32 + 1 and point[0] == _UNCOMPRESSED:
        point = bytes([2 + point[-1] % 2]) + point[1:33]
    if found := weakness(point):
        raise KeyFileError(f"{where.name}: the public key {point.hex()} {found}")
    return point


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
