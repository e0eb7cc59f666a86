"""Create and load a device's identity key: Ed25519 or P-256, in a file or in a token (PKCS#11)."""

from __future__ import annotations

import stat

from edge_sdk.app.permissions import make_private_folder
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.wire.key_store import has_key, is_token_uri, make_token_key, open_signer
from edge_sdk.wire.keys import (
    KeyFileError,
    Signer,
    generate_device_key,
    save_signing_key,
)
from edge_sdk.wire.public_key import kind_of


def load_signer(config: Config) -> Signer:
    """Read the device's own key; refuse one that other users of the machine can read.

    Raises:
        ConfigError: The key is missing, readable by others, or of another kind than configured.
    """
    path, wanted = config.keys.device, config.identity.curve
    try:
        if not is_token_uri(path) and path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                f"{path}: other users can read the device key", hint=f"chmod 600 {path}"
            )
        key = open_signer(path)
    except KeyFileError as error:
        raise ConfigError(str(error), hint="make one with `gridfed-edge enrol CONFIG`") from error
    if (kind := kind_of(key.public)) != wanted:
        raise ConfigError(
            f"{path}: holds a key of kind {kind}, and identity.curve is {wanted}",
            hint=f'curve = "{kind}" in [identity] keeps the key; a new key must be enrolled again',
        )
    return key


def has_identity(config: Config) -> bool:
    """Return whether the device has an identity key.

    Raises:
        KeyFileError: The token that should have it is missing.
    """
    return has_key(config.keys.device)


def create_identity(config: Config) -> tuple[Signer, bool]:
    """Create the device's key if there is none; return it, and whether it is new.

    Raises:
        ConfigError: The key file exists but is no key of the configured kind, or cannot be written.
    """
    path = config.keys.device
    try:
        is_new = not has_identity(config)
        if is_new and is_token_uri(path):
            make_token_key(str(path), config.identity.curve)
        elif is_new:
            if not path.parent.exists():
                make_private_folder(path.parent)
            save_signing_key(path, generate_device_key(config.identity.curve))
    except (OSError, KeyFileError) as error:
        raise ConfigError(str(error)) from error
    return load_signer(config), is_new
