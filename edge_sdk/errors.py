"""Errors of the device SDK: one base class and few children, each with a hint for the operator."""

from __future__ import annotations

from edge_sdk.app.cli import Failure


class EdgeError(Failure):
    """Base of every error that the device SDK raises on purpose.

    Attributes:
        hint: Remedy for the operator, or empty.
        exit_code: Exit code of a command that fails with this error.
    """


class ConfigError(EdgeError):
    """Invalid configuration, key, or other file written by the operator."""

    exit_code = 2


class StoreError(EdgeError):
    """Error while reading or writing the store; the failed attempt lost nothing."""


class StoreFull(StoreError):  # noqa: N818 - what an operator calls it
    """No disk space left. The outbox is kept; nothing new is released."""


class StoreNewer(StoreError):  # noqa: N818 - a state of the file rather than a fault in it
    """Store written by a newer version of this software."""

    exit_code = 3


class StoreBusy(StoreError):  # noqa: N818 - as StoreNewer
    """Store held by another process."""

    exit_code = 75
