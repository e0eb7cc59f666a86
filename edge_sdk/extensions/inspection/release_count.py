"""Keep a second count of releases outside the state folder, signed by the identity key.

The ledger is in the state folder. A folder that is lost, or restored from an old copy, would give the
device a new budget if only the aggregator remembered what had left. So each release is counted in a
second file before it is committed, and the larger of the two counts holds. The signature binds the
file to the device: the file of another one is refused.

A crash between the two writes leaves a release counted that never left, and never the opposite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from edge_sdk.errors import ConfigError, SignerUnavailable, StoreFull
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol.keys import Signer, kid_of, verify, write_atomically
from edge_sdk.protocol.messages import LARGEST
from edge_sdk.protocol.outbox_state import UplinkCounters

CONTEXT: Final = b"gridfed/1/count\0"
SCORE: Final = "score"
"""Point of the charges of answers about scores."""
UNKNOWN_COUNT: Final = (
    "the count of releases outside the state folder is missing, and what left before is not known"
)
"""Stop reason until the owner accepts the loss of the count."""
REMEDY: Final = (
    "restore the file; or accept that earlier releases are not counted: "
    "gridfed-edge budget CONFIG --accept-loss"
)
_MICRO: Final = 1_000_000
_SLACK: Final = 1e-3  # of a millionth: rounding of a double is no loss


@dataclass(frozen=True, slots=True)
class ReleaseCount:
    """Number of releases of one participation."""

    releases: int = 0
    line: int = 0  # last line of the ledger before the newest of them was charged
    scores: int = 0  # privacy loss of all answers about scores, in millionths, each rounded up
    time: int = 0  # Unix seconds of the newest one, by the machine's clock

    def joined(self, other: ReleaseCount) -> ReleaseCount:
        """Return the larger of each number.

        >>> ReleaseCount(3, 5).joined(ReleaseCount(2, 6))
        ReleaseCount(releases=3, line=6, scores=0, time=0)
        """
        return ReleaseCount(*map(max, astuple(self), astuple(other)))

    def after(self, releases: int, line: int, charges: Iterable[PrivacyCharge]) -> ReleaseCount:
        """Return the count after more releases; ``line`` is the ledger's last before their charges."""
        charges = tuple(charges)
        time = max((charge.time // 1000 for charge in charges), default=0)
        scores = min(self.scores + loss_of_scores(charges), LARGEST)
        return replace(self.joined(ReleaseCount(releases, 0, scores, max(time, 0))), line=line)


def loss_of_scores(charges: Iterable[PrivacyCharge]) -> int:
    """Return the privacy loss of the answers about scores among some charges, in millionths.

    >>> loss_of_scores([PrivacyCharge(0, "device", "score", "k-ary", 0.5, count=3)])
    6000000
    """
    costs = (c.count / c.multiplier for c in charges if c.point == SCORE and c.multiplier > 0.0)
    return min(sum(math.ceil(_MICRO * cost - _SLACK) for cost in costs), LARGEST)


def reconciled(
    numbers: UplinkCounters, own: ReleaseCount, count: ReleaseCount
) -> tuple[UplinkCounters, tuple[PrivacyCharge, ...]]:
    """Return the numbers of a store by the larger count, and the charges that its ledger lacks.

    A store whose ledger is shorter than it was at the newest release was lost or is an old copy: noise
    that it drew for readings may have been released, and no older reading is perturbed again.

    Args:
        count: The count outside the state folder.

    >>> copy = UplinkCounters(life=2, seq=3, spent=3, lost=False)
    >>> reconciled(copy, ReleaseCount(3, line=3), ReleaseCount(6, line=5))[0]
    UplinkCounters(life=2, seq=3, spent=6, lost=True)
    >>> reconciled(copy, ReleaseCount(3, line=3), ReleaseCount(4, line=3))[0].lost
    False
    """
    is_older = own.line < count.line
    after = replace(
        numbers, spent=max(numbers.spent, count.releases), lost=numbers.lost or is_older
    )
    if (missing := count.scores - own.scores) <= 0:
        return after, ()
    lost = PrivacyCharge(count.time * 1000, "device", SCORE, "unrecorded", _MICRO / missing)
    return after, (lost,)


class CountError(ConfigError):
    """A file with a count of releases is missing, damaged, or of another device."""


Counts = Mapping[str, ReleaseCount]
"""Count of each further participation by its id; that of the device's own has an empty name."""


def read_counts(path: Path, public: bytes) -> Counts:
    """Read the counts that a device has signed, by its raw public identity key.

    Raises:
        CountError: The file cannot be read, or this key has not signed it.
    """
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        counts = _counts_in(found)
        signature = bytes.fromhex(found["signatures"].get(kid_of(public).hex(), ""))
    except OSError as error:
        raise CountError(f"{path}: cannot be read: {error.strerror}", hint=REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CountError(f"{path}: no count of releases is in it: {error}", hint=REMEDY) from error
    if not verify(public, signature, _statement(counts)):
        raise CountError(
            f"{path}: the count of releases is not signed by this device's identity key",
            hint=REMEDY,
        )
    return counts


def write_counts(path: Path, counts: Counts, signers: Iterable[Signer]) -> None:
    """Write counts atomically: after a power cut the file is the former or the new one.

    Args:
        signers: Identity key; while it is replaced, the former and the new one.

    Raises:
        SignerUnavailable: A key is in a token that is away.
    """
    statement = _statement(counts)
    content = {
        "counts": {name: astuple(count) for name, count in counts.items()},
        "signatures": {kid_of(one.public).hex(): one.sign(statement).hex() for one in signers},
    }
    try:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode(), 0o600)
    except OSError as error:
        raise StoreFull(
            f"{path}: the count of releases cannot be written: {error.strerror or error}",
            hint="make its folder writable, or name another file: privacy.second_count; nothing leaves before",
        ) from error


def renew_counts(path: Path, former: Signer, new: Signer) -> None:
    """Sign the counts by a further key; those that cannot be read are missed at the next start."""
    with suppress(CountError):
        counts = read_counts(path, former.public)
        try:
            write_counts(path, counts, (former, new))
        except StoreFull as error:
            raise OSError(str(error)) from error


def begin_counts(path: Path, signer: Signer, recorded: Mapping[str, int]) -> None:
    """Write the counts of a new key; whichever key has signed earlier ones, they continue."""
    counts = {"": ReleaseCount()} | dict(_claimed(path))
    for name, releases in recorded.items():
        counts[name] = counts.get(name, ReleaseCount()).joined(ReleaseCount(releases))
    write_counts(path, counts, (signer,))


def _claimed(path: Path) -> Counts:
    """Return the counts in a file, by any signer; none if they cannot be read."""
    try:
        return _counts_in(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _counts_in(found: Any) -> Counts:  # noqa: ANN401 - of a file
    return {name: ReleaseCount(*map(_number, row)) for name, row in found["counts"].items()}


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"expected a whole number from 0 to {LARGEST}")
    return value


def _statement(counts: Counts) -> bytes:
    rows = {name: astuple(count) for name, count in counts.items()}
    return CONTEXT + json.dumps(rows, sort_keys=True).encode()


@dataclass(slots=True)
class SecondCount:
    """The count of one participation, outside its state folder."""

    path: Path  # the file, which the participations of a device share
    name: str  # id of the participation; empty for the device's own
    signer: Signer  # identity key
    count: ReleaseCount = ReleaseCount()  # present counts
    counts: Counts = field(default_factory=dict)  # all counts of the file, as far as they are known

    @property
    def newest(self) -> int:
        """Unix seconds of the newest release, by the machine's clock."""
        return self.count.time

    def reserve(self, line: int, releases: int, charges: Iterable[PrivacyCharge]) -> None:
        """Count releases before their transaction is committed; nothing if they are counted already."""
        count = self.count.after(releases, line, charges)
        if count.releases > self.count.releases or count.scores > self.count.scores:
            self.write(count)

    def settle(self, line: int) -> None:
        """Record the line; where the key is away, the store counts as lost again at the next start."""
        with suppress(SignerUnavailable):
            self.write(replace(self.count, line=line))

    def write(self, count: ReleaseCount) -> None:
        """Write a count of this participation beside those of the others. No count is lowered."""
        counts = dict(self.counts)
        try:
            present = read_counts(self.path, self.signer.public)
        except CountError:
            present = {}  # removed while the device runs: the counts read before are written again
        for name, one in present.items():
            counts[name] = counts.get(name, ReleaseCount()).joined(one)
        counts[self.name] = replace(self.count.joined(count), line=count.line)
        write_counts(self.path, counts, (self.signer,))
        self.count, self.counts = counts[self.name], counts
