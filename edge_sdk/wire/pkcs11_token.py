"""Sign with a private key in a PKCS #11 token, which it never leaves; the only importer of pkcs11.

A token may be a TPM, a smart card, a USB key or a program. It may be removed and returned while the
program runs: then ``sign`` raises ``SignerUnavailable``, and reaches it again once it is there. A PIN
that a token has refused is not tried a second time, and the last attempt that a token allows is never used.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from edge_sdk.wire import p256, public_key
from edge_sdk.wire.errors import SignerUnavailable, WireError
from edge_sdk.wire.keys import kid_of, verify
from edge_sdk.wire.pkcs11_uri import TokenPlace
from edge_sdk.wire.public_key import KeyKind, kind_of

_RETRY: Final = 5.0  # seconds between two attempts to reach a token
_PAIR: Final = b"gridfed/1/token\0"  # signed to find the public key of a private one
_NAME: Final[dict[KeyKind, str]] = {"p256": "P-256", "ed25519": "Ed25519"}
_PARAMETERS: Final[dict[KeyKind, bytes]] = {
    "p256": bytes.fromhex("06082a8648ce3d030107"),  # object identifier of the curve, DER
    "ed25519": b"\x13\x0cedwards25519",  # name of the curve, DER (PKCS #11 3.0, section 6.3.3)
}
_INSTALL: Final = "needs python-pkcs11, which is not installed: pip install 'gridfed[pkcs11]'"


class TokenRefused(WireError):  # noqa: N818 - as SignerUnavailable
    """An error: a key in a token that cannot be used until the operator has acted."""


class Pkcs11Key:
    """A private key in a token, as a ``Signer``.

    Args:
        place: Place of the key.
        public: Its public key, by which it can be used before the token was reached once.

    Raises:
        TokenRefused: No ``public`` is given, and the key cannot be used.
        SignerUnavailable: No ``public`` is given, and the token cannot be reached.
    """

    def __init__(self, place: TokenPlace, public: bytes | None = None) -> None:
        self.place = place
        self._library = _library(str(place.module))
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
        """Return whether the token would give the private key away.

        Raises:
            TokenRefused: The key cannot be used.
            SignerUnavailable: The token cannot be reached.
        """
        attribute = _pkcs11().Attribute
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
            SignerUnavailable: The token cannot be reached.
        """
        with self._library.lock:
            if not self._is_connected:
                self._retry_at = 0.0
                self._connect()

    @property
    def _is_connected(self) -> bool:
        return self._private is not None and self._epoch == self._library.epoch

    def _in_session(self, use: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever ``use`` returns
        """Use the key; connect before if need be, and once more if the token has forgotten it."""
        with self._library.lock:
            was_connected = self._is_connected
            if not was_connected:
                self._connect()
            try:
                return use()
            except _pkcs11().PKCS11Error as error:
                self._drop()
                if not was_connected:
                    raise self._away(error) from error
            self._connect()
            try:
                return use()
            except _pkcs11().PKCS11Error as error:
                raise self._away(error) from error

    def _connect(self) -> None:
        """Open a session, find the key, and check that it belongs to the public key."""
        if time.monotonic() < self._retry_at:
            raise SignerUnavailable(self._why)
        try:
            session = _opened(self._library, self.place)
            private = _found(session, self.place)
            self.public = _public_of(session, private, self.place, self.public)
        except _pkcs11().PKCS11Error as error:
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
        """Return the error of a token that does not answer; begin again later."""
        self._drop()
        why = f"{self.place}: the token does not answer ({_words(error)})"
        self._wait(why)
        return SignerUnavailable(why)

    def _wait(self, why: str) -> None:
        self._why, self._retry_at = why, time.monotonic() + _RETRY

    def __repr__(self) -> str:
        """Return the class name and the place."""
        return f"Pkcs11Key({self.place})"


def generate_in_token(place: TokenPlace) -> tuple[Pkcs11Key, bool]:
    """Return the key of a place, and whether it was made now because the token had none.

    Raises:
        TokenRefused: The token refuses, or the URI names no object.
        SignerUnavailable: The token cannot be reached.
    """
    library = _library(str(place.module))
    with library.lock:
        try:
            session = _opened(library, place, is_writable=True)
            is_new = not _matching(session, place)
            if is_new:
                _generate(session, place)
        except _pkcs11().PKCS11Error as error:
            why = f"{place}: the token makes no {_NAME[place.kind]} key ({_words(error)})"
            raise TokenRefused(why) from error
        finally:
            library.reset()
    return Pkcs11Key(place), is_new


def destroy_in_token(place: TokenPlace) -> bool:
    """Destroy the key of a place and its public key; return whether there was one.

    Raises:
        TokenRefused: The token refuses.
        SignerUnavailable: The token cannot be reached.
    """
    library = _library(str(place.module))
    with library.lock:
        try:
            session = _opened(library, place, is_writable=True)
            keys = _matching(session, place)
            for key in keys:
                for public in _publics(session, key):
                    public.destroy()
                key.destroy()  # last: a kill before it leaves a key that is found again
        except _pkcs11().PKCS11Error as error:
            raise TokenRefused(
                f"{place}: the token does not destroy the key ({_words(error)})"
            ) from error
        finally:
            library.reset()
    return bool(keys)


class _Library:
    """A loaded module: one in a process, with one lock, as PKCS #11 without threads demands.

    Attributes:
        lock: Held during every call into the module.
        epoch: Number of resets; sessions of an earlier epoch are closed.
        refused: Digests of PINs that a token refused.
    """

    def __init__(self, path: str) -> None:
        self.lock = threading.RLock()
        self.epoch = 0
        self.refused: set[bytes] = set()
        self._path = path
        self._lib: Any = None

    def tokens(self) -> list[Any]:
        """Return the tokens that are there, after loading the module.

        Raises:
            TokenRefused: It cannot be loaded.
        """
        pkcs11 = _pkcs11()
        if not Path(self._path).is_file():
            raise TokenRefused(f"PKCS #11 module {self._path}: no such file")
        try:
            self._lib = pkcs11.lib(self._path)
        except pkcs11.PKCS11Error as error:
            if "while loading" in str(error):  # the only sign of it that the library gives
                raise TokenRefused(f"PKCS #11 module {self._path}: {error}") from error
            raise
        return list(self._lib.get_tokens())

    def reset(self) -> None:
        """Close every session; the next use finds tokens that were added since."""
        self.epoch += 1
        if self._lib is not None:
            with suppress(_pkcs11().PKCS11Error):
                self._lib.finalize()


@functools.cache
def _library(path: str) -> _Library:
    return _Library(path)


def _pkcs11() -> Any:  # noqa: ANN401 - a module that is not installed everywhere
    try:
        import pkcs11  # noqa: PLC0415 - only where a key is in a token
    except ImportError as error:
        raise TokenRefused(f"a key in a token {_INSTALL}") from error
    return pkcs11


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _opened(library: _Library, place: TokenPlace, *, is_writable: bool = False) -> Any:  # noqa: ANN401 - a session of pkcs11
    """Return a session with the token of a place, logged in."""
    uri = place.uri
    found = [
        one
        for one in library.tokens()
        if uri.selects_token(
            label=one.label,
            manufacturer=one.manufacturer_id,
            model=one.model,
            serial=one.serial.decode("utf-8", "replace"),
        )
    ]
    if not found:
        raise SignerUnavailable(f"{place}: no such token is there")
    if len(found) > 1:
        raise TokenRefused(f"{place}: {len(found)} tokens match; add serial=NUMBER to the URI")
    return _logged_in(library, found[0], place, is_writable=is_writable)


def _logged_in(library: _Library, token: Any, place: TokenPlace, *, is_writable: bool) -> Any:  # noqa: ANN401 - as above
    pkcs11 = _pkcs11()
    flags, flag = token.flags, pkcs11.TokenFlag
    if place.pin_file is None:
        if flags & flag.LOGIN_REQUIRED:
            raise TokenRefused(f"{place}: the token asks for a PIN: set identity.pin_file")
        return token.open(rw=is_writable)
    for state, what in (
        (flag.USER_PIN_LOCKED, "the PIN is locked; unlock it with the token's own program"),
        (
            flag.USER_PIN_FINAL_TRY,
            "one attempt is left before the PIN locks; log in with the token's own program first",
        ),
    ):
        if flags & state:
            raise TokenRefused(f"{place}: {what}")
    pin = _read_pin(place.pin_file)
    tried = hashlib.sha256(bytes(token.serial) + b"\0" + pin.encode()).digest()
    wrong = f"{place}: the token refuses the PIN in {place.pin_file}; it is not tried again"
    if tried in library.refused:
        raise TokenRefused(wrong)
    try:
        return token.open(rw=is_writable, user_pin=pin)
    except pkcs11.UserAlreadyLoggedIn:
        return token.open(rw=is_writable)
    except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange) as error:
        library.refused.add(tried)
        raise TokenRefused(wrong) from error
    except (pkcs11.PinLocked, pkcs11.PinExpired, pkcs11.UserPinNotInitialized) as error:
        library.refused.add(tried)
        raise TokenRefused(f"{place}: {type(error).__name__}: set or unlock the PIN") from error


def _read_pin(path: Path) -> str:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise TokenRefused(f"{path}: other users can read the PIN: chmod 600 {path}")
        pin = path.read_text("utf-8").rstrip("\r\n")
    except OSError as error:
        raise TokenRefused(f"{path}: cannot read the PIN: {error.strerror}") from error
    except UnicodeDecodeError:
        raise TokenRefused(f"{path}: expected a PIN in UTF-8") from None  # its bytes are secret
    if not pin:
        raise TokenRefused(f"{path}: is empty, expected the PIN")
    return pin


def _matching(session: Any, place: TokenPlace) -> list[Any]:  # noqa: ANN401 - as above
    pkcs11 = _pkcs11()
    wanted = {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PRIVATE_KEY}
    if place.uri.label is not None:
        wanted[pkcs11.Attribute.LABEL] = place.uri.label
    if place.uri.id is not None:
        wanted[pkcs11.Attribute.ID] = place.uri.id
    return list(session.get_objects(wanted))


def _found(session: Any, place: TokenPlace) -> Any:  # noqa: ANN401 - as above
    found = _matching(session, place)
    if not found:
        raise TokenRefused(f"{place}: the token has no such private key")
    if len(found) > 1:
        raise TokenRefused(f"{place}: {len(found)} keys match; add id=%HEX to the URI")
    types = _pkcs11().KeyType
    kinds = {types.EC: "p256", types.EC_EDWARDS: "ed25519"}
    if kinds.get(found[0].key_type) != place.kind:
        kind = getattr(found[0].key_type, "name", "unknown")
        raise TokenRefused(f"{place}: holds a key of type {kind}, expected {_NAME[place.kind]}")
    return found[0]


def _publics(session: Any, private: Any) -> list[Any]:  # noqa: ANN401 - as above
    """Return the public keys with the id of a private one: an interrupted creation may leave one more."""
    pkcs11 = _pkcs11()
    return list(
        session.get_objects(
            {
                pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PUBLIC_KEY,
                pkcs11.Attribute.ID: private[pkcs11.Attribute.ID],
            }
        )
    )


def _public_of(session: Any, private: Any, place: TokenPlace, known: bytes) -> bytes:  # noqa: ANN401 - as above
    """Return the public key that verifies what a private key signs."""
    attribute = _pkcs11().Attribute
    points = [known] if known else []
    points += [_point(bytes(one[attribute.EC_POINT])) for one in _publics(session, private)]
    signature = _signature(private, _PAIR)
    fitting = [one for one in points if kind_of(one) == place.kind]
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
    raise TokenRefused(
        f"{place}: the token has no {_NAME[place.kind]} public key with the key's id"
    )


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
    pkcs11 = _pkcs11()
    if private.key_type == pkcs11.KeyType.EC_EDWARDS:
        return bytes(private.sign(data, mechanism=pkcs11.Mechanism.EDDSA))
    raw = bytes(private.sign(hashlib.sha256(data).digest(), mechanism=pkcs11.Mechanism.ECDSA))
    if len(raw) != p256.SIGNATURE_SIZE:
        return raw  # which verifies nothing
    return p256.signature_of(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))


def _generate(session: Any, place: TokenPlace) -> None:  # noqa: ANN401 - a session of pkcs11
    """Make a key that signs and never leaves the token. A TPM refuses attributes that it sets itself."""
    pkcs11 = _pkcs11()
    attribute, unset = pkcs11.Attribute, pkcs11.constants.DEFAULT
    if place.uri.label is None:
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
