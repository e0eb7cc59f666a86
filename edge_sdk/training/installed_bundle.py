"""Open the bundle that a device starts with, and install the one that the fleet announces.

An installed bundle that cannot be used any more does not stop the device: it starts with the newest
other bundle that passes its golden sample, and requests the announced one again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from edge_sdk.app.cli import fields
from edge_sdk.bundle import Bundle, BundleError, TrustedKeys, install, load_installed
from edge_sdk.config import Config
from edge_sdk.session.events import FoundBundle
from edge_sdk.store.schema import INSTALLED
from edge_sdk.training.bootstrap import archive_keys
from edge_sdk.training.run_role import RunnableBundle
from edge_sdk.wire.protocol import messages as m

logger = logging.getLogger(__name__)

BundleOpener = Callable[[Config, m.BundleMessage | None], RunnableBundle]
"""Opens the bundle to start with, from the configuration and the last announcement."""


def open_bundle(config: Config, announced: m.BundleMessage | None) -> RunnableBundle:
    """Open the installed bundle that the fleet announced last, else the configured one.

    One that was damaged, or that fails its golden sample since an update of the engine, is replaced
    by the newest other installed bundle that passes, else by the configured one.

    Raises:
        EdgeError: None of them can be used here.
    """
    trust, folder = _trust(config), config.state / INSTALLED
    if announced is None or not (folder / announced.digest.hex()).is_dir():
        return Bundle.open(config.bundle, trust=trust)
    try:
        return load_installed(folder, announced.digest, trust=trust)
    except BundleError as error:
        found = _last_good_bundle(config, announced.digest, error)
        about = {"name": announced.name, "version": announced.version, "why": error}
        used = f"{found.manifest.name} version {found.manifest.version}"
        logger.warning("bundle not used %s", fields(**about, instead=used))
        return found


def _last_good_bundle(config: Config, damaged: bytes, why: BundleError) -> Bundle:
    """Return the newest installed bundle but one, else the configured one.

    Raises:
        BundleError: ``why``, if none of them can be used here.
    """
    trust, folder = _trust(config), config.state / INSTALLED
    others = [
        path
        for path in folder.iterdir()
        if path.is_dir() and path.name != damaged.hex() and not path.name.startswith(".")
    ]
    for path in sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(BundleError, ValueError):
            return load_installed(folder, bytes.fromhex(path.name), trust=trust)
    try:
        return Bundle.open(config.bundle, trust=trust)
    except BundleError:
        raise why from None


def of_bundle(announced: m.BundleMessage | None, bundle: RunnableBundle) -> m.BundleMessage | None:
    """Return an announcement if a bundle is the announced one; None if another one is in use."""
    return announced if announced is not None and announced.digest == bundle.digest else None


def take_over(config: Config, found: FoundBundle, present: RunnableBundle) -> RunnableBundle:
    """Return the bundle of an announcement: the present one, or its archive after installation.

    Raises:
        EdgeError: The archive differs from the announced one, or cannot run here.
    """
    if found.archive is None:
        return present
    return install(
        found.archive,
        config.state / INSTALLED,
        trust=_trust(config),
        digest=found.announced.digest,
    )


def _trust(config: Config) -> TrustedKeys:
    return TrustedKeys(archive_keys(config))
