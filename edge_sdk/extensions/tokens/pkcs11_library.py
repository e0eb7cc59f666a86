"""Load a PKCS #11 module, find a token and log in; the only importer of pkcs11.

A PIN that a token has refused is not tried a second time, and the last attempt that a token allows is
never used.
"""

from __future__ import annotations

import functools
import hashlib
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from edge_sdk.errors import SignerUnavailable, TokenRefused
from edge_sdk.extensions.tokens.pkcs11_uri import TokenPlace

_INSTALL: Final = "needs python-pkcs11, which is not installed: pip install 'gridfed[pkcs11]'"


class TokenLibrary:
    """A loaded module: one in a process, with one lock, as PKCS #11 without threads demands."""

    def __init__(self, path: str) -> None:
        self.lock = threading.RLock()  # held during every call into the module
        self.epoch = 0  # number of resets; sessions of an earlier epoch are closed
        self.refused: set[bytes] = set()  # digests of PINs that a token refused
        self._path = path
        self._lib: Any = None

    def tokens(self) -> list[Any]:
        """Return the tokens that are there, after loading the module."""
        pkcs11 = pkcs11_package()
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
            with suppress(pkcs11_package().PKCS11Error):
                self._lib.finalize()


@functools.cache
def library_of(path: str) -> TokenLibrary:
    """Return the module at a path; the same one each time."""
    return TokenLibrary(path)


def pkcs11_package() -> Any:  # noqa: ANN401 - a module that is not installed everywhere
    """Import python-pkcs11."""
    try:
        import pkcs11  # noqa: PLC0415 - only where a key is in a token
    except ImportError as error:
        raise TokenRefused(f"a key in a token {_INSTALL}") from error
    return pkcs11


def words_of(error: Exception) -> str:
    """Return the text of an error of python-pkcs11; most have only a name."""
    return str(error) or type(error).__name__


def open_token(library: TokenLibrary, place: TokenPlace, *, is_writable: bool = False) -> Any:  # noqa: ANN401 - a session of pkcs11
    """Return a session with the token of a place, logged in.

    Raises:
        TokenRefused: Several tokens match, or the PIN is missing, refused or locked.
    """
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


def _logged_in(library: TokenLibrary, token: Any, place: TokenPlace, *, is_writable: bool) -> Any:  # noqa: ANN401 - as above
    pkcs11 = pkcs11_package()
    flags, flag = token.flags, pkcs11.TokenFlag
    if place.pin_file is None:
        if flags & flag.LOGIN_REQUIRED:
            raise TokenRefused(
                f"{place}: the token asks for a PIN: set identity.pin_file, or pin-source of the URI"
            )
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
