"""Create this device's signing key, and print the line that the operator needs.

The line has the id, the public key, and a proof that this device holds the private key. The
private key never leaves this machine. An existing key is kept; a wiped device begins again under a
new one. Each further [[participation]] has a
line of its own, with the same key and a label that names the device.

  gridfed-edge enrol meter.toml
"""

from __future__ import annotations

import hashlib
from argparse import Namespace
from typing import Any

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.commands.arguments import add_config
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.errors import ConfigError
from edge_sdk.store.erasure import end_wipe
from edge_sdk.wire.keys import (
    KeyFileError,
    SigningKey,
    generate,
    load_signing_key,
    save_public,
    save_signing_key,
)

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Create the key, and return the operator's line."""
    config = Config.load(args.config)
    if not config.keys.device.exists():
        end_wipe(config.state)
    found = enrol(config)
    further = [enrol(one) for one in config.participants()[1:]]
    made = "created a key" if found["is_new"] else "this device has a key already"
    lines = [f"{one['id']},{one['public']},{one['proof']}" for one in (found, *further)]
    lines[1:] = [f"{line},device={config.id}" for line in lines[1:]]
    what = "these lines" if further else "this line"
    text = "\n".join((f"{made}: {found['key']}", f"give {what} to the operator:", *lines))
    data = found | ({PARTICIPATIONS: {one["id"]: one for one in further}} if further else {})
    return CommandResult(data, text)


def enrol(config: Config) -> dict[str, Any]:
    """Create the device's key if there is none; return what the operator needs.

    Raises:
        ConfigError: The key file exists but is no key, or cannot be written.
    """
    path = config.keys.device
    is_new = not path.exists()
    try:
        if is_new:
            if not path.parent.exists():
                make_private_folder(path.parent)
            save_signing_key(path, generate())
        key = load_signing_key(path)
        save_public(path.with_suffix(".pub"), key.public)
    except (KeyFileError, OSError) as error:
        raise ConfigError(str(error)) from error
    return {
        "id": config.id,
        "fleet": config.fleet,
        "key": str(path),
        "public": key.public.hex(),
        "proof": key.sign(claim(config, key)).hex(),
        "is_new": is_new,
    }


def claim(config: Config, key: SigningKey) -> bytes:
    """Return the bytes that a device signs to prove its key, as in `PROTOCOL.md` section 3.

    A device has no sealing key and requests no certificate: 32 zero bytes, and an empty digest.
    """
    named = b"".join(bytes([len(raw)]) + raw for raw in (config.fleet.encode(), config.id.encode()))
    request = hashlib.sha256(b"").digest()
    return b"gridfed/1/enrol\0" + named + key.public + bytes(32) + request
