"""Build the parts of a site's session with its parent: configuration, keys and link."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.config.binding import link_options
from aggregator.extensions.tree.parent_binding import PARENT_METHODS, ParentSection
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.settings import SettingsError
from edge_sdk.config import AcceptSection, Config, TimeoutsSection
from edge_sdk.link.fleet_settings import BrokerSection, KeysSection, ReceptionSection
from edge_sdk.link.tls_files import client_id_of
from edge_sdk.privacy import MechanismSection, PrivacySection
from edge_sdk.protocol.keys import (
    KeyFileError,
    SigningKey,
    generate,
    load_signing_key,
    save_public,
    save_signing_key,
)
from edge_sdk.protocol.root_keys import read_root
from edge_sdk.session.key_ring import FollowedRoot, KeyRing

FOLDER = "parent"  # folder inside the aggregator's state folder that holds the session's store


def key_file(config: AggregatorConfig, parent: ParentSection) -> Path:
    return parent.key or config.state / "parent.key"


def session_config(config: AggregatorConfig, parent: ParentSection) -> Config:
    """Return the configuration of the device that this site is in its parent's fleet.

    It measures nothing: the devices of the site keep their own privacy ledgers, and what the site
    sends is computed from what they released.
    """
    return Config(
        id=parent.id,
        fleet=parent.fleet,
        state=config.state / FOLDER,
        bundle=config.run.bundle,
        broker=BrokerSection(**asdict(parent.broker)),
        keys=KeysSection(device=key_file(config, parent), root=parent.root),
        encryption=ReceptionSection(required=parent.require_encryption),
        privacy=PrivacySection(MechanismSection("none")),
        accept=AcceptSection(methods=PARENT_METHODS, max_steps=65536),
        timeouts=TimeoutsSection(reply=parent.reply, retained_model=parent.reply),
    )


def load_keys(config: AggregatorConfig, parent: ParentSection) -> tuple[SigningKey, KeyRing]:
    """Read the site's signing key and the parent's root key; raise SettingsError if a file holds none."""
    name = config.file.name
    try:
        pinned = read_root(parent.root)
        site = session_config(config, parent)
        followed = FollowedRoot.of(site.state, site.fleet, pinned)
        ring = KeyRing(followed.load()[0], followed=followed)
    except KeyFileError as error:
        raise SettingsError(
            f"{name}: parent.root: {error}", hint="copy root.pub from the parent's operator"
        ) from error
    try:
        return load_signing_key(key_file(config, parent)), ring
    except KeyFileError as error:
        raise SettingsError(
            f"{name}: parent.key: {error}", hint=f"gridfed-aggregator join {config.file}"
        ) from error


def enrol_site(config: AggregatorConfig, parent: ParentSection) -> dict[str, Any]:
    """Create the site's key for the parent if there is none; return the data that its operator needs.

    Raises:
        SettingsError: The key file exists but is no key, or cannot be written.
    """
    path = key_file(config, parent)
    is_new = not path.exists()
    try:
        if is_new:
            if not path.parent.exists():
                make_private_folder(path.parent)
            save_signing_key(path, generate())
        key = load_signing_key(path)
        save_public(path.with_suffix(".pub"), key.public)
    except (KeyFileError, OSError) as error:
        raise SettingsError(f"{config.file.name}: parent.key: {error}") from error
    return {
        "id": parent.id,
        "fleet": parent.fleet,
        "key": str(path),
        "public": key.public.hex(),
        "proof": key.sign(_claim(parent, key)).hex(),
        "is_new": is_new,
    }


def _claim(parent: ParentSection, key: SigningKey) -> bytes:
    """Return the bytes that a site signs to prove its key, as a device does (`PROTOCOL.md` 3)."""
    named = b"".join(bytes([len(raw)]) + raw for raw in (parent.fleet.encode(), parent.id.encode()))
    return b"gridfed/1/enrol\0" + named + key.public + bytes(32) + hashlib.sha256(b"").digest()


def broker_options(config: AggregatorConfig, parent: ParentSection, **links: Any) -> Any:  # noqa: ANN401 - ``edge_sdk.link.broker_options.Broker``
    """Return the options of the link to the parent's broker; ``links`` are further ones, as ``Broker`` has them."""
    client = client_id_of(parent.fleet, parent.id, parent.broker.cert_file)
    return link_options(parent.broker, client, f"{config.file.name}: parent.broker", **links)
