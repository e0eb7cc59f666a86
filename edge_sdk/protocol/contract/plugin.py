"""Define a learning method that another package offers, in the entry-point group ``gridfed.methods``."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from edge_sdk.app.extensions import instance_of
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.contract.method import Contract


@dataclass(frozen=True, slots=True)
class MethodPlugin:
    """A method of another package: its contract, and where its two halves are.

    The halves are references, because a device has no aggregator and the aggregator does not import
    a device's half: each program imports its own.
    """

    contract: Contract  # asks of the method, by name. The keys and ranges are checked by both ends.
    # ``package.module:name`` of the device half's constructor (``edge_sdk.methods.Factory``)
    device: str
    server: str  # ``package.module:name`` of the server half, an ``aggregator.methods.Method``


def device_half(_name: str, plugin: Any) -> Any:  # noqa: ANN401 - a factory of a higher layer
    """Return the constructor of the device half.

    Raises:
        TypeError: It is no ``MethodPlugin``, or the reference is not callable.
        ValueError: The reference cannot be resolved.
    """
    factory = _resolved(instance_of(MethodPlugin)("", plugin).device)
    if not callable(factory):
        raise TypeError(f"device: expected a function, got {type(factory).__name__}")
    return factory


def server_half(plugin: Any) -> Any:  # noqa: ANN401 - an object of a higher layer
    """Return the object that the server's reference names.

    Raises:
        TypeError: It is no ``MethodPlugin``.
    """
    return _resolved(instance_of(MethodPlugin)("", plugin).server)


def _resolved(reference: str) -> Any:  # noqa: ANN401 - any object
    try:
        return resolve_name(reference)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{reference!r} cannot be imported: {error}") from error
