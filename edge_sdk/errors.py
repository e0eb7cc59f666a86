"""What can go wrong on a device: one base, few children, each with what to do about it."""

from __future__ import annotations

from edge_sdk.app.cli import Failure


class EdgeError(Failure):
    """Base of everything the device SDK raises on purpose.

    Attributes:
        hint: What an operator can do, or empty.
        exit_code: What a command ends with.
    """


class ConfigError(EdgeError):
    """The configuration, a key or another file the operator wrote cannot be meant."""

    exit_code = 2


class StoreError(EdgeError):
    """The device's own file could not be read or written; nothing was lost by the attempt."""


class StoreFull(StoreError):  # noqa: N818 - what an operator calls it
    """No space is left. The outbox is kept; nothing new is released."""


class StoreNewer(StoreError):  # noqa: N818 - a state of the file rather than a fault in it
    """The file was written by a newer version of this software."""

    exit_code = 3


class StoreBusy(StoreError):  # noqa: N818 - as StoreNewer
    """Another process holds the file."""

    exit_code = 75
