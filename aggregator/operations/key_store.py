"""Open the private keys of the root and of models: PEM files, or keys in PKCS #11 tokens.

A key in a token is named by a URI of RFC 7512: ``pkcs11:token=NAME;object=LABEL`` with the query
attributes ``module-path`` (the token's library) and ``pin-source`` (a file with its PIN). It needs the
package python-pkcs11 (extra ``pkcs11``). The private key never leaves the token.
"""

from __future__ import annotations

from pathlib import Path

from edge_sdk.wire.errors import TokenRefused
from edge_sdk.wire.keys import KeyFileError, Signer, load_device_key
from edge_sdk.wire.pkcs11_uri import SCHEME, TokenPlace, place_in


def is_token_uri(where: Path | str) -> bool:
    """Return whether this names a key in a token instead of a file.

    >>> is_token_uri("pkcs11:token=a;object=b?module-path=/m.so"), is_token_uri("/etc/root.key")
    (True, False)
    """
    return str(where).startswith(SCHEME)


def token_place(uri: str) -> TokenPlace:
    """Return the place of a key of either kind that a URI names.

    Raises:
        KeyFileError: It is no such URI, or lacks the module. The query is not in the message.

    Example:
        >>> place = token_place("pkcs11:token=hsm;object=root?module-path=/p11.so&pin-source=/etc/pin")
        >>> print(place, place.module, place.pin_file, place.kind)
        PKCS #11 token 'hsm', object 'root' /p11.so /etc/pin None
        >>> token_place("pkcs11:token=hsm;object=root")
        Traceback (most recent call last):
        edge_sdk.wire.keys.KeyFileError: pkcs11:token=hsm;object=root: expected ?module-path=FILE
    """
    try:
        return place_in(uri)
    except ValueError as error:
        raise KeyFileError(str(error)) from error


def open_signer(where: Path | str) -> Signer:
    """Open a private key: a PEM file, or a key in a token.

    Raises:
        KeyFileError: No such file or key, another kind of key, or python-pkcs11 is missing.
        SignerUnavailable: The token is away.
    """
    if not is_token_uri(where):
        return load_device_key(where)
    from edge_sdk.wire.pkcs11_token import Pkcs11Key  # noqa: PLC0415 - tokens only

    try:
        return Pkcs11Key(token_place(str(where)))
    except TokenRefused as error:
        raise KeyFileError(str(error)) from error
