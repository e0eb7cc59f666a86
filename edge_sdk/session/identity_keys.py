"""Hold the identity key that a device uses, while an extension may replace it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from edge_sdk.app.cli import fields
from edge_sdk.config import Config
from edge_sdk.protocol.keys import RemovableSigner, Signer
from edge_sdk.protocol.messages import FloorMessage, WelcomeMessage
from edge_sdk.protocol.outbox import Outbox
from edge_sdk.session.identity import next_key_file
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

STEP: Final = "reenrolment"
"""Name of the stored step of a replacement; 0 without one."""

HelloAnswer = WelcomeMessage | FloorMessage


class KeyReplacement:
    """The replacement of an identity key. This one replaces nothing; that of an extension does."""

    step = 0

    def __init__(self, identity: IdentityKeys) -> None:
        self.identity = identity

    def order(self) -> bool:
        """Begin; ``CommandLog.add`` saves the step. Return False if the key cannot be replaced."""
        logger.warning(
            "identity key not replaced %s", fields(why="no extension is installed for it")
        )
        return False

    def advance(self, now: float, outbox: Outbox) -> bool:  # noqa: ARG002 - for those that replace
        """Run the due work; return whether a hello is due. ``now``: seconds of a monotonic clock."""
        return False

    def try_next(self) -> None:
        """Sign the next hello by the new key, if there is one: the aggregator may know it now."""

    def hello_signer(self, ref: bytes) -> Signer:  # noqa: ARG002 - as above
        """Return the key that signs a hello, the same one each time that it is sent."""
        return self.identity

    def receive(self, answer: HelloAnswer, is_welcome: Callable[[HelloAnswer], bool]) -> bool:  # noqa: ARG002 - as above
        """Follow the answer to a hello; return True if another key is in use now."""
        return False

    @property
    def is_request_due(self) -> bool:
        """Return whether a certificate with the new key is to be requested."""
        return False

    def for_request(self) -> tuple[Signer, Signer | None]:
        """Return the key of a certificate request, and the former one if it is another."""
        return self.identity.key, None

    def record_issued(self) -> None:
        """Record that the request with the keys of ``for_request`` was answered."""


class IdentityKeys:
    """The identity key in use, a ``RemovableSigner``.

    Args:
        key: Key of the configured file or token.

    Attributes:
        is_shared: True if further participations use the key, which is then not replaced.
        is_reconnection_due: True if the last will is of a former key.
        replacement: What replaces the key; loaded when a replacement is ordered or under way.
    """

    def __init__(self, config: Config, store: DeviceStore, key: Signer) -> None:
        self.config, self.store = config, store
        self.is_shared = self.is_reconnection_due = False
        self.use(key)
        self.replacement = KeyReplacement(self)
        if store.fact(STEP) or next_key_file(config).exists():
            self._load()

    def use(self, key: Signer) -> None:
        self.key, self.public, self.sign = key, key.public, key.sign

    def reach(self) -> bool:
        """Return whether a key in a token can be used now."""
        return isinstance(self.key, RemovableSigner) and self.key.reach()

    def order(self) -> bool:
        """Begin a replacement unless one is under way; return False if the key cannot be replaced."""
        if self.is_shared or self.config.identity.place is not None:
            return False
        self._load()
        return self.replacement.order()

    def _load(self) -> None:
        for entry in self.config.index.having("replacement"):
            if type(self.replacement) is KeyReplacement:
                self.replacement = entry.load("replacement")(self)
