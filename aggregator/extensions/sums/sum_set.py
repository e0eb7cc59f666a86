"""Define the two files between aggregator and witness: a set to open, and the answer with the masks' sum.

A set has no number of any device, only digests of masked vectors. The answer has no mask of any device,
only their sum. Neither is secret: who reads both learns no more than the sum, and needs the masked vectors
for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Final, NamedTuple

from edge_sdk.app.lean_dataclass import dataclass as lean_dataclass
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.sums.masked_sum import FollowedContract, Integers, packed, unpacked
from edge_sdk.extensions.sums.messages import DEVICES_LIMIT, LENGTH_LIMIT, Signature
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.keys import Signer, verify
from edge_sdk.protocol.messages import BODY_LIMIT, Digest, Moment, ProtocolMessage, Text
from edge_sdk.protocol.topics import is_device_id

MEMBERS_LIMIT: Final = 40_000
"""Most members of one set: its file is at most 8 MiB."""

_FIXED = 32 + 32 + 64


class SumMember(NamedTuple):
    """One device of a set: the signed fields, and the signature."""

    device: str
    masked: bytes  # SHA-256 of its masked vector
    enc: bytes  # encapsulated key of its seed
    proof: bytes  # its signature


@lean_dataclass(frozen=True, slots=True)
class SetFile(ProtocolMessage):
    """A set as it is written."""

    kind: ClassVar[str] = "sumset"
    fleet: Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
    contract: Annotated[bytes, Length(1, 1024)]  # its canonical bytes
    period: Moment
    value: Text  # of the cohort's label
    blob: Annotated[bytes, Length(0, BODY_LIMIT)] = b""  # members, ascending by device


@lean_dataclass(frozen=True, slots=True)
class AnswerFile(ProtocolMessage):
    """An answer as it is written."""

    kind: ClassVar[str] = "sumopened"
    of: Digest  # of the set's file
    members: Annotated[int, Between(1, DEVICES_LIMIT)]
    proof: Signature  # of the witness
    blob: Annotated[bytes, Length(8, 8 * LENGTH_LIMIT)] = b""  # sum of the masks, uint64


@dataclass(frozen=True, slots=True)
class SumSet:
    """Devices of one cohort and one period, for the sum of their masks."""

    fleet: str
    contract: FollowedContract
    body: bytes  # canonical bytes of the contract
    period: int  # begin, Unix milliseconds
    value: str  # of the cohort's label
    members: tuple[SumMember, ...]  # ascending by device, each once

    def write(self) -> bytes:
        """Return the bytes of its file."""
        blob = b"".join(
            bytes([len(one.device)]) + one.device.encode() + one.masked + one.enc + one.proof
            for one in self.members
        )
        return encode(SetFile(self.fleet, self.body, self.period, self.value, blob))


def read_set(data: bytes) -> SumSet:
    """Read a set.

    Raises:
        Refused: The bytes are no set: MALFORMED, WRONG_SIZE or TOO_LARGE.
    """
    file = decode(SetFile, data)
    contract = FollowedContract.read(file.contract)
    if not contract.terms.begins(file.period):
        raise Refused(Reason.MALFORMED, f"no period of the contract begins at {file.period}")
    members = tuple(_members(file.blob))
    names = [one.device for one in members]
    if any(a >= b for a, b in pairwise(names)):
        raise Refused(Reason.MALFORMED, "members that are not ascending, or one of them twice")
    return SumSet(file.fleet, contract, file.contract, file.period, file.value, members)


def _members(blob: bytes) -> Iterator[SumMember]:
    at = 0
    while at < len(blob):
        size = blob[at]
        name, at = blob[at + 1 : at + 1 + size], at + 1 + size
        rest, at = blob[at : at + _FIXED], at + _FIXED
        device = name.decode("ascii", "replace")
        if len(rest) < _FIXED or not is_device_id(device):
            raise Refused(Reason.MALFORMED, "a member that is cut off, or no device")
        yield SumMember(device, rest[:32], rest[32:64], rest[64:])


@dataclass(frozen=True, slots=True)
class SumAnswer:
    """The sum of the masks of a set, signed by the witness."""

    of: bytes  # SHA-256 of the set's file
    members: int
    masks: Integers
    proof: bytes  # signature of the witness

    @classmethod
    def signed(cls, of: bytes, members: int, masks: Integers, signer: Signer) -> SumAnswer:
        """Sign the sum of the masks of a set."""
        return cls(of, members, masks, signer.sign(_signed(of, members, packed(masks))))

    def write(self) -> bytes:
        """Return the bytes of its file."""
        return encode(AnswerFile(self.of, self.members, self.proof, packed(self.masks)))

    def require_from(self, witness: bytes) -> None:
        """Refuse an answer that a witness has not signed; raise Refused, BAD_SIGNATURE.

        Args:
            witness: Raw public key of its signatures.
        """
        if not verify(witness, self.proof, _signed(self.of, self.members, packed(self.masks))):
            raise Refused(Reason.BAD_SIGNATURE, "an answer that the witness has not signed")


def read_answer(data: bytes) -> SumAnswer:
    """Read an answer; raise Refused if the bytes are none. No signature is verified."""
    file = decode(AnswerFile, data)
    return SumAnswer(file.of, file.members, unpacked(file.blob, len(file.blob) // 8), file.proof)


def file_digest(data: bytes) -> bytes:
    """Return the digest by which an answer names its set."""
    return hashlib.sha256(data).digest()


def opened_total(masked: Iterable[Integers], answer: SumAnswer) -> Integers:
    """Return the sum of the rounded vectors: that of the masked ones, without the masks."""
    total = -answer.masks
    for one in masked:
        total += one
    return total


def _signed(of: bytes, members: int, masks: bytes) -> bytes:
    return b"gridfed/1/sum opened\0" + of + members.to_bytes(4, "big") + masks
