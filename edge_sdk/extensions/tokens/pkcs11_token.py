"""Sign with a private key in a PKCS #11 token, which it never leaves.

A token may be a TPM, a smart card, a USB key or a program. It may be removed and returned while the
program runs: then ``sign`` raises ``SignerUnavailable``, and reaches it again once it is there.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from edge_sdk.errors import SignerUnavailable, TokenRefused
from edge_sdk.extensions.tokens.pkcs11_library import (
    library_of,
    open_token,
    pkcs11_package,
    words_of,
)
from edge_sdk.extensions.tokens.pkcs11_uri import TokenPlace, place_in
from edge_sdk.protocol import public_key
from edge_sdk.protocol.keys import KeyFileError, kid_of, verify
from edge_sdk.protocol.public_key import KeyKind, kind_of

_RETRY: Final = 5.0  # seconds between two attempts to reach a token
_PAIR: Final = b"gridfed/1/token\0"  # signed to find the public key of a private one
_NAME: Final[dict[KeyKind, str]] = {"p256": "P-256", "ed25519": "Ed25519"}
_PARAMETERS: Final[dict[KeyKind, bytes]] = {
    "p256": bytes.fromhex("06082a8648ce3d030107"),  # object identifier of the curve, DER
    "ed25519": b"\x13\x0cedwards25519",  # name of the curve, DER (PKCS #11 3.0, section 6.3.3)
}


class Pkcs11Key:
    """A private key in a token, as a ``Signer``.

    Args:
        public: Its public key, by which it can be used before the token was reached once.

    Raises:
        TokenRefused: No ``public`` is given, and the key cannot be used.
        SignerUnavailable: No ``public`` is given, and the token cannot be reached.
    """

    def __init__(self, place: TokenPlace, public: bytes | None = None) -> None:
        self.place = place
        self._library = library_of(str(place.module))
        self._private: Any = None
        self._epoch = -1
        self._retry_at = 0.0
        self._why = ""
        self.public = public or b""
        if public is None:
            with self._library.lock:
                self._connect()

    @property
    def kid(self) -> bytes:
        """Return the 8 bytes by which envelopes name this key."""
        return kid_of(self.public)

    @property
    def is_extractable(self) -> bool:
        attribute = pkcs11_package().Attribute
        return bool(self._in_session(lambda: self._private[attribute.EXTRACTABLE]))

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of ``data`` that ``verify`` accepts.

        Raises:
            SignerUnavailable: The token is away, or refuses.
        """
        with self._library.lock:
            try:
                signature: bytes = self._in_session(lambda: _signature(self._private, data))
            except TokenRefused as error:
                raise SignerUnavailable(str(error)) from error
            if not verify(self.public, signature, data):
                self._drop()
                raise SignerUnavailable(f"{self.place}: the token signed with another key")
            return signature

    def reach(self) -> bool:
        """Return whether the token is connected; try to connect it, every few seconds at most."""
        with self._library.lock:
            try:
                if not self._is_connected:
                    self._connect()
            except (TokenRefused, SignerUnavailable):
                return False
            return True

    def require(self) -> None:
        """Connect the token now.

        Raises:
            TokenRefused: The key cannot be used.
        """
        with self._library.lock:
            if not self._is_connected:
                self._retry_at = 0.0
                self._connect()

    @property
    def _is_connected(self) -> bool:
        return self._private is not None and self._epoch == self._library.epoch

    def _in_session(self, use: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever ``use`` returns
        """Use the key; connect first if necessary, and once more after the token has lost the session."""
        with self._library.lock:
            was_connected = self._is_connected
            if not was_connected:
                self._connect()
            try:
                return use()
            except pkcs11_package().PKCS11Error as error:
                self._drop()
                if not was_connected:
                    raise self._away(error) from error
            self._connect()
            try:
                return use()
            except pkcs11_package().PKCS11Error as error:
                raise self._away(error) from error

    def _connect(self) -> None:
        if time.monotonic() < self._retry_at:
            raise SignerUnavailable(self._why)
        try:
            session = open_token(self._library, self.place)
            private = _found(session, self.place)
            self.public = _public_of(session, private, self.place, self.public)
        except pkcs11_package().PKCS11Error as error:
            raise self._away(error) from error
        except (TokenRefused, SignerUnavailable) as error:
            self._drop()
            self._wait(str(error))
            raise
        self._private, self._epoch = private, self._library.epoch

    def _drop(self) -> None:
        self._private = None
        self._library.reset()

    def _away(self, error: Exception) -> SignerUnavailable:
        self._drop()
        why = f"{self.place}: the token does not answer ({words_of(error)})"
        self._wait(why)
        return SignerUnavailable(why)

    def _wait(self, why: str) -> None:
        self._why, self._retry_at = why, time.monotonic() + _RETRY

    def __repr__(self) -> str:
        return f"Pkcs11Key({self.place})"


def generate_in_token(place: TokenPlace) -> tuple[Pkcs11Key, bool]:
    """Return the key of a place, and whether it was made now because the token had none."""
    with _writable(place) as session:
        is_new = not _matching(session, place)
        if is_new:
            try:
                _generate(session, place)
            except pkcs11_package().PKCS11Error as error:
                why = f"{place}: the token makes no {_name(place)} key ({words_of(error)})"
                raise TokenRefused(why) from error
    return Pkcs11Key(place), is_new


def destroy_in_token(place: TokenPlace) -> bool:
    """Destroy the key of a place and its public key; return whether there was one."""
    with _writable(place) as session:
        keys = _matching(session, place)
        try:
            for key in keys:
                for public in _publics(session, key):
                    public.destroy()
                key.destroy()  # last: a kill before it leaves a key that is found again
        except pkcs11_package().PKCS11Error as error:
            why = f"{place}: the token does not destroy the key ({words_of(error)})"
            raise TokenRefused(why) from error
    return bool(keys)


@contextmanager
def _writable(place: TokenPlace) -> Iterator[Any]:
    """Open a session that may change the token; close every session afterwards."""
    library = library_of(str(place.module))
    with library.lock:
        try:
            yield open_token(library, place, is_writable=True)
        except pkcs11_package().PKCS11Error as error:
            why = f"{place}: the token does not answer ({words_of(error)})"
            raise SignerUnavailable(why) from error
        finally:
            library.reset()


def _matching(session: Any, place: TokenPlace) -> list[Any]:  # noqa: ANN401 - as above
    pkcs11 = pkcs11_package()
    wanted = {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PRIVATE_KEY}
    if place.uri.label is not None:
        wanted[pkcs11.Attribute.LABEL] = place.uri.label
    if place.uri.id is not None:
        wanted[pkcs11.Attribute.ID] = place.uri.id
    return list(session.get_objects(wanted))


def _name(place: TokenPlace) -> str:
    return " or ".join([_NAME[place.kind]] if place.kind else _NAME.values())


def _found(session: Any, place: TokenPlace) -> Any:  # noqa: ANN401 - as above
    found = _matching(session, place)
    if not found:
        raise TokenRefused(f"{place}: the token has no such private key")
    if len(found) > 1:
        raise TokenRefused(f"{place}: {len(found)} keys match; add id=%HEX to the URI")
    types = pkcs11_package().KeyType
    kinds = {types.EC: "p256", types.EC_EDWARDS: "ed25519"}
    if kinds.get(found[0].key_type) not in ([place.kind] if place.kind else [*kinds.values()]):
        kind = getattr(found[0].key_type, "name", "unknown")
        raise TokenRefused(f"{place}: holds a key of type {kind}, expected {_name(place)}")
    return found[0]


def _publics(session: Any, private: Any) -> list[Any]:  # noqa: ANN401 - as above
    """Return the public keys with the id of a private one: an interrupted creation may leave one more."""
    pkcs11 = pkcs11_package()
    return list(
        session.get_objects(
            {
                pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PUBLIC_KEY,
                pkcs11.Attribute.ID: private[pkcs11.Attribute.ID],
            }
        )
    )


def _public_of(session: Any, private: Any, place: TokenPlace, known: bytes) -> bytes:  # noqa: ANN401 - as above
    attribute = pkcs11_package().Attribute
    points = [known] if known else []
    points += [_point(bytes(one[attribute.EC_POINT])) for one in _publics(session, private)]
    signature = _signature(private, _PAIR)
    fitting = [one for one in points if place.kind in {None, kind_of(one)}]
    fitting = [one for one in fitting if not public_key.weakness(one)]
    for point in fitting:
        if verify(point, signature, _PAIR):
            if known and point != known:
                break
            return point
    if known:
        raise TokenRefused(
            f"{place}: holds another key than the enrolled one ({kid_of(known).hex()})"
        )
    raise TokenRefused(f"{place}: the token has no {_name(place)} public key with the key's id")


def _point(found: bytes) -> bytes:
    r"""Return a raw public key from ``CKA_EC_POINT``: an OCTET STRING, or in some tokens its content.

    >>> _point(b"\x04\x41\x04" + bytes(63) + b"\x01").hex()[:6], len(_point(b"\x04\x20" + bytes(32)))
    ('030000', 32)
    """
    if len(found) in (34, 67):
        found = found[2:]
    if len(found) != 65 or found[0] != 4:
        return found
    return bytes([2 + found[-1] % 2]) + found[1:33]


def _signature(private: Any, data: bytes) -> bytes:  # noqa: ANN401 - a key of pkcs11
    pkcs11 = pkcs11_package()
    if private.key_type == pkcs11.KeyType.EC_EDWARDS:
        return bytes(private.sign(data, mechanism=pkcs11.Mechanism.EDDSA))
    raw = bytes(private.sign(hashlib.sha256(data).digest(), mechanism=pkcs11.Mechanism.ECDSA))
    if len(raw) != public_key.P256_SIGNATURE_SIZE:
        return raw  # which verifies nothing
    return public_key.p256_signature(
        int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    )


def _generate(session: Any, place: TokenPlace) -> None:  # noqa: ANN401 - a session of pkcs11
    """Make a key that signs and never leaves the token. A TPM refuses attributes that it sets itself."""
    pkcs11 = pkcs11_package()
    attribute, unset = pkcs11.Attribute, pkcs11.constants.DEFAULT
    if place.kind is None or place.uri.label is None:
        raise TokenRefused(f"{place}: to make a key, add object=NAME to the URI")
    kinds = {"p256": pkcs11.KeyType.EC, "ed25519": pkcs11.KeyType.EC_EDWARDS}
    session.create_domain_parameters(
        kinds[place.kind], {attribute.EC_PARAMS: _PARAMETERS[place.kind]}, local=True
    ).generate_keypair(
        store=True,
        label=place.uri.label,
        id=place.uri.id or secrets.token_bytes(8),
        capabilities=pkcs11.MechanismFlag.SIGN,
        public_template=dict.fromkeys((attribute.ENCRYPT, attribute.WRAP, attribute.VERIFY), unset),
        private_template={
            **dict.fromkeys((attribute.DECRYPT, attribute.UNWRAP, attribute.DERIVE), unset),
            attribute.SENSITIVE: True,
            attribute.EXTRACTABLE: False,
        },
    )


def token_place(uri: str) -> TokenPlace:
    """Return the place of a key of either kind that a URI names.

    Raises:
        KeyFileError: It is no such URI, or lacks the module. The query is not in the message.

    >>> place = token_place("pkcs11:token=hsm;object=root?module-path=/p11.so&pin-source=/etc/pin")
    >>> print(place, place.module, place.pin_file, place.kind)
    PKCS #11 token 'hsm', object 'root' /p11.so /etc/pin None
    >>> token_place("pkcs11:token=hsm;object=root")
    Traceback (most recent call last):
    edge_sdk.protocol.keys.KeyFileError: pkcs11:token=hsm;object=root: expected ?module-path=FILE
    """
    try:
        return place_in(uri)
    except ValueError as error:
        raise KeyFileError(str(error)) from error


def open_token_key(uri: str) -> Pkcs11Key:
    """Open the private key that a URI names.

    Raises:
        KeyFileError: No such key, another kind of key, or python-pkcs11 is missing.
    """
    try:
        return Pkcs11Key(token_place(uri))
    except TokenRefused as error:
        raise KeyFileError(str(error)) from error
