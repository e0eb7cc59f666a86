"""Hold a device's identity key in a PKCS #11 token."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, SignerUnavailable, TokenRefused
from edge_sdk.extensions.tokens.pkcs11_uri import Pkcs11Uri, TokenPlace
from edge_sdk.protocol.keys import KeyFileError, Signer, kid_of, read_device_public
from edge_sdk.protocol.public_key import KeyKind, kind_of
from edge_sdk.session.connection import SIGNER_AWAY
from edge_sdk.session.identity import MAKE, TokenUnreachable, begin_count, identity_files
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)


class TokenIdentity:
    """The place of the key in ``[identity]``. The package of PKCS #11 is imported when it is used.

    Raises:
        ValueError: The URI selects no key, or the token's module is missing.
    """

    def __init__(self, uri: str, kind: KeyKind, module: Path | None, pin_file: Path | None) -> None:
        parsed = Pkcs11Uri.parse(uri)
        if module is None:
            raise ValueError("expected module, the path of the token's PKCS #11 module, beside it")
        self.place = TokenPlace(module, parsed, kind, pin_file)

    def load(self, config: Config) -> Signer:
        """Return the key; an absent token is reached when the key is used.

        Raises:
            ConfigError: It cannot be used, or is another one than the enrolled one.
            TokenUnreachable: It is away, and was never used by this device.
        """
        from edge_sdk.extensions.tokens.pkcs11_token import Pkcs11Key  # noqa: PLC0415 - when used

        _refuse_file(config)
        known = self.public(config)
        try:
            key = Pkcs11Key(self.place)
        except TokenRefused as error:
            raise ConfigError(str(error), hint="gridfed-edge check CONFIG") from error
        except SignerUnavailable as error:
            if known is None:
                raise TokenUnreachable(str(error)) from error
            logger.warning("token unreachable %s", fields(why=error))
            return Pkcs11Key(self.place, known)
        if known is not None and known != key.public:
            raise ConfigError(
                f"{self}: holds key {key.kid.hex()}, and {identity_files(config)[0]} is of key "
                f"{kid_of(known).hex()}",
                hint="insert the enrolled token, or make the new key known: gridfed-edge enrol CONFIG",
            )
        return key

    def create(self, config: Config) -> tuple[Signer, bool]:
        """Find the key in the token, or make it there; return it, and whether it is new."""
        from edge_sdk.extensions.tokens.pkcs11_token import (  # noqa: PLC0415 - when used
            generate_in_token,
        )

        _refuse_file(config)
        try:
            key, is_new = generate_in_token(self.place)
            if is_new:
                begin_count(config, key)
        except TokenRefused as error:
            raise ConfigError(str(error)) from error
        except SignerUnavailable as error:
            raise TokenUnreachable(str(error)) from error
        return key, is_new

    def public(self, config: Config) -> bytes | None:
        """Return the public key that enrol wrote, or None before."""
        path = identity_files(config)[0]
        if not path.exists():
            return None
        try:
            public = read_device_public(path)
        except KeyFileError as error:
            raise ConfigError(str(error), hint=MAKE) from error
        if kind_of(public) != config.identity.curve:
            raise ConfigError(
                f"{path}: holds a public key of kind {kind_of(public)}, and identity.curve is "
                f"{config.identity.curve}",
                hint="to enrol the key in the token: gridfed-edge enrol CONFIG",
            )
        return public

    def erase(self, config: Config) -> None:
        """Destroy the key in the token.

        Raises:
            TokenUnreachable: It is away: the key is still there.
        """
        from edge_sdk.extensions.tokens.pkcs11_token import (  # noqa: PLC0415 - when used
            destroy_in_token,
        )

        try:
            destroy_in_token(self.place)
        except TokenRefused as error:
            file = identity_files(config)[0]
            hint = f"destroy it with the token's own program, then delete {file}"
            raise ConfigError(str(error), hint=hint) from error
        except SignerUnavailable as error:
            raise TokenUnreachable(
                str(error), hint="the key is still in the token; give the command again"
            ) from error

    def __str__(self) -> str:
        return str(self.place)


def saved_status(_config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return since when the agent has not reached the token; empty while it does."""
    since = store.fact(SIGNER_AWAY)
    if not since:
        return {}
    return {"token unreachable since": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since))}


def _refuse_file(config: Config) -> None:
    if config.keys.device.exists():
        raise ConfigError(
            f"{config.keys.device}: holds a private key, and identity.key names one in a token",
            hint="delete the file, or remove identity.key; the other key must be enrolled again",
        )
