"""Meaning and remedy of every refusal, for an operator.

The console shows them; docs/operating.md has the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from edge_sdk.wire.errors import Reason


class RefusalAdvice(NamedTuple):
    """Meaning of a reason, and what an operator does about it."""

    meaning: str
    remedy: str


_ROWS: tuple[tuple[tuple[Reason, ...], RefusalAdvice], ...] = (
    (
        (
            Reason.MALFORMED,
            Reason.UNKNOWN_WIRE,
            Reason.UNKNOWN_KIND,
            Reason.UNKNOWN_FIELD,
        ),
        RefusalAdvice(
            "the bytes are not this protocol",
            "find out who publishes there; check the device's version",
        ),
    ),
    (
        (Reason.WRONG_SENDER,),
        RefusalAdvice(
            "the topic names another device than the envelope",
            "check the access rules: a device writes under another name",
        ),
    ),
    ((Reason.UNKNOWN_CLIENT,), RefusalAdvice("not enrolled", "enrol it")),
    (
        (Reason.BAD_SIGNATURE,),
        RefusalAdvice(
            "not signed by the enrolled key. After five in a minute the name is ignored for ten minutes",
            "new key on the device? enrol again",
        ),
    ),
    ((Reason.REVOKED,), RefusalAdvice("on the deny list", "nothing, or enrol again")),
    (
        (Reason.CANNOT_OPEN,),
        RefusalAdvice(
            "encrypted to a key that is not here; the device drops the message",
            "put the key files back that encryption.folder held",
        ),
    ),
    (
        (Reason.PLAIN_REFUSED,),
        RefusalAdvice(
            "a clear message of a kind in encryption.kinds, or a hello without a key where "
            "encryption.require_device_keys is set",
            "check the device's version, and its encryption.required",
        ),
    ),
    (
        (Reason.TOO_LARGE,),
        RefusalAdvice(
            "more than admission.max_inline_bytes arrived without a grant",
            "check the device's version",
        ),
    ),
    ((Reason.CLOSED,), RefusalAdvice("a number of an earlier life", "nothing: a late repeat")),
    (
        (Reason.FORK,),
        RefusalAdvice(
            "one number, two contents: two processes use one identity",
            'see "a cloned device" in the manual',
        ),
    ),
    (
        (Reason.TWICE_IN_ROUND,),
        RefusalAdvice("a second answer to one round", "nothing, or a clone"),
    ),
    (
        (Reason.WRONG_RUN,),
        RefusalAdvice("for a run that is over", "nothing: the device follows the new run"),
    ),
    (
        (Reason.TOO_STALE,),
        RefusalAdvice(
            "from an older version: the round closed before it arrived, or it is further behind than max_staleness",
            "many: raise deadline or max_staleness, lower quorum or jitter",
        ),
    ),
    (
        (Reason.LATE,),
        RefusalAdvice(
            "from an abandoned round of this version, or not an answer to this device's newest task",
            "many: raise deadline or max_staleness, lower quorum or jitter",
        ),
    ),
    (
        (Reason.FROM_FUTURE,),
        RefusalAdvice(
            "newer than anything announced",
            "was the server's database replaced by hand? restore begins another run",
        ),
    ),
    (
        (
            Reason.WRONG_SPEC,
            Reason.WRONG_SIZE,
            Reason.WRONG_ENCODING,
        ),
        RefusalAdvice("another layout than the run's", "check the device's bundle and version"),
    ),
    (
        (Reason.NOT_FINITE,),
        RefusalAdvice(
            "it contains NaN or infinity", "check the learning rate and that device's readings"
        ),
    ),
    (
        (Reason.NORM_EXCEEDED,),
        RefusalAdvice(
            "longer than admission.max_norm", "check that device's readings, or the bound"
        ),
    ),
    (
        (Reason.BAD_SCALAR,),
        RefusalAdvice(
            "a reported number is out of range, such as n over max_samples", "check the device"
        ),
    ),
    (
        (Reason.BUDGET_SPENT,),
        RefusalAdvice(
            "the device has made admission.max_updates updates",
            "nothing: it continues to train locally",
        ),
    ),
    ((Reason.NOT_IN_COHORT,), RefusalAdvice("not drawn for this round", "many: check that device")),
    (
        (Reason.QUARANTINED,),
        RefusalAdvice("quarantined after a FORK", "find the clone, then enrol again"),
    ),
    (
        (Reason.TWO_LIVES,),
        RefusalAdvice(
            "two processes use one identity in turn; both are quarantined and stop",
            'see "a cloned device" in the manual',
        ),
    ),
    (
        (Reason.INTERNAL,),
        RefusalAdvice(
            "the message met a defect of the aggregator and was set aside; in a refusal where it has no number",
            "see Defects",
        ),
    ),
    (
        (Reason.BUSY,),
        RefusalAdvice(
            "16,384 offers of uploads wait already, or pacing.broadcast_bytes_per_second is used up; "
            "the refusal gives the time to return",
            "often: lower client_fraction, raise broadcast_bytes_per_second",
        ),
    ),
    (
        (Reason.QUOTA,),
        RefusalAdvice(
            "over 60 messages a minute, an eighth of admission.daily_bytes an hour sent, or as much fetched",
            "one device: check it",
        ),
    ),
    (
        (Reason.SAY_HELLO,),
        RefusalAdvice("its session is not known here", "nothing: the device sends a hello"),
    ),
    (
        (Reason.PAUSED,),
        RefusalAdvice("training is paused, or the run is over", "nothing, or resume"),
    ),
    ((Reason.NO_SPACE,), RefusalAdvice("the disk is full", "free some space")),
    (
        (
            Reason.NOT_FOUND,
            Reason.BAD_CHUNK,
            Reason.BAD_DIGEST,
            Reason.EXPIRED,
            Reason.SUPERSEDED,
            Reason.ABORTED,
            Reason.BAD_TENSOR,
        ),
        RefusalAdvice(
            "a transfer that has to begin again",
            "many: check the link and the broker's queue limits",
        ),
    ),
    (
        (Reason.UPGRADE_REQUIRED,),
        RefusalAdvice("the device uses another version of the protocol", "upgrade it"),
    ),
    (
        (Reason.BAD_COMMAND,),
        RefusalAdvice("the device does not know the command", "check its version"),
    ),
    (
        (
            Reason.ROLLBACK,
            Reason.UNUSABLE_LINK,
        ),
        RefusalAdvice(
            "sent by devices: an older announcement or bundle; a link that carries less than a chunk",
            "roll back with a new version; check for a broker that replays, and its packet limit",
        ),
    ),
    (
        (Reason.NO_WINDOWS,),
        RefusalAdvice(
            "sent by devices: no complete window to train on in this round; counted as no_windows_on_device",
            "gridfed-edge check on the device names each channel's source, gridfed-edge status what is missing",
        ),
    ),
    (
        (
            Reason.LOG_FORK,
            Reason.NOT_LOGGED,
        ),
        RefusalAdvice(
            "by devices: a model that does not continue the log of models, or is in none",
            "compare gridfed-edge status of two devices; see the log of models",
        ),
    ),
    (
        (Reason.ANNOUNCEMENT_EXPIRED,),
        RefusalAdvice(
            "sent by devices: a manifest or bundle announcement whose validity is over",
            "is the daemon running, and its clock right? else the broker repeats old announcements; "
            "a bundle: announce",
        ),
    ),
)

ADVICE: Mapping[Reason, RefusalAdvice] = MappingProxyType(
    {reason: advice for reasons, advice in _ROWS for reason in reasons}
)
"""Advice by reason; every reason but ``ACCEPTED`` has one."""
