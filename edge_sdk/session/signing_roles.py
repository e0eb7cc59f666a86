"""Check that the keys that have signed an announcement are those of its role."""

from __future__ import annotations

from collections.abc import Callable, Collection

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import KID_SIZE
from edge_sdk.wire.protocol.envelope import AGGREGATOR, ALL, ROOT, KeyOf, Sealed, root_signers
from edge_sdk.wire.protocol.messages import KeysMessage

MaySign = Callable[[str, Collection[bytes]], bool]
"""Kind of an announcement and public keys that have signed it, to whether they suffice."""


_ROOT_KINDS = frozenset({"keys", "bundle", "rollout"})
_FLEET_KINDS = frozenset({"keys", "time", "weather", "rollout", "stage"})


def sender_of(kind: str) -> str:
    """Return the sender of an announcement of a kind.

    >>> sender_of("keys"), sender_of("model")
    ('_root', '_agg')
    """
    return ROOT if kind in _ROOT_KINDS else AGGREGATOR


def is_of_fleet(kind: str) -> bool:
    """Return whether announcements of a kind are for the whole fleet, and not for a run's devices.

    >>> is_of_fleet("time"), is_of_fleet("model")
    (True, False)
    """
    return kind in _FLEET_KINDS


def any_key(_kind: str, signers: Collection[bytes]) -> bool:
    """Return whether some known key has signed."""
    return bool(signers)


def check_role(proved: Sealed, key_of: KeyOf, may_sign: MaySign) -> None:
    """Refuse an announcement by a key of the aggregator that may not sign its kind.

    Raises:
        Refused: UNKNOWN_CLIENT.
    """
    kid = proved.proof[:KID_SIZE]
    if not may_sign(proved.kind, (key_of(proved.sender, kid) or b"",)):
        why = f"{proved.sender}, key {kid.hex()}: not a key that may sign {proved.kind!r}"
        raise Refused(Reason.UNKNOWN_CLIENT, why)


def check_successor(keys: KeysMessage, proved: Sealed, fleet: str) -> None:
    """Refuse a list that names a root which has not signed it: the next one could not be signed.

    Raises:
        Refused: BAD_SIGNATURE.
    """
    signers = root_signers(proved, keys.roots, recipient=ALL, fleet=fleet)
    if keys.roots and len(signers) < keys.root_min:
        why = f"the next root: {len(signers)} of its keys have signed, expected {keys.root_min}"
        raise Refused(Reason.BAD_SIGNATURE, why)
