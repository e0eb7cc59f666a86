"""Define the bounds of message fields and the types that enforce them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from edge_sdk.wire.protocol.array_fragments import DIMENSIONS
from edge_sdk.wire.schema import Between, Length

WIRE = 1
"""Major version of the protocol: topic level 1 and the envelope's first element."""

CLEAR = 0x92  # first byte of a clear body: an array of two
ENCRYPTED = 0x94  # first byte of an encrypted body: an array of four

LARGEST = 2**53 - 1  # the largest counter: a double holds it exactly, a signed 64-bit column too
RELEASES_LIMIT = 2**31 - 1  # times the draws of one release, a 64-bit column still holds it
TIME_LIMIT = 253_402_300_799_999  # ms: the end of the year 9999, the last that a date can have
SPAN_LIMIT = 31 * 86_400_000  # ms: the longest duration
WAIT_LIMIT = 86_400_000  # ms: the longest wait that a refusal may ask for
FLOAT_LIMIT = 3.4028234663852886e38  # the largest float32

LIFE_LEAP = 2**20  # lives that one message may skip: more hellos than a device ever sends
RELEASES_LEAP = 2**24  # releases that one message may add: one every thirty seconds for 16 years
COMMAND_LEAP = 2**24  # commands that one may skip: sixteen restores of a backup
EPOCH_LEAP = 2**16  # starts of an exchange that one message may skip
STEP_LEAP = 2**24  # exchanges that a neighbour may be ahead
SERIAL_LEAP = 2**40  # announcements that one may skip: a restore of a backup leaps by 2^20

HEADER_LIMIT = 4096
CHUNK_LIMIT = 32768
SINGLE_LIMIT = 262_144  # largest body of an update that goes in one message
BODY_LIMIT = 8 * 1024 * 1024
CHUNKS_LIMIT = 256
SCALARS_LIMIT = 2_097_152
NEIGHBOURS_LIMIT = 24

Whole = Annotated[int, Between(0, LARGEST)]
Ordinal = Annotated[int, Between(1, LARGEST)]
Releases = Annotated[int, Between(0, RELEASES_LIMIT)]
Moment = Annotated[int, Between(0, TIME_LIMIT)]
Span = Annotated[int, Between(0, SPAN_LIMIT)]
Wait = Annotated[int, Between(0, WAIT_LIMIT)]
Real = Annotated[float, Between(-FLOAT_LIMIT, FLOAT_LIMIT)]
U32 = Annotated[int, Between(0, 2**32 - 1)]
Code = Annotated[int, Between(0, 65535)]
Major = Annotated[int, Between(1, 255)]
ChunkSize = Annotated[int, Between(1, CHUNK_LIMIT)]
BodySize = Annotated[int, Between(1, BODY_LIMIT)]
Index = Annotated[int, Between(0, CHUNKS_LIMIT - 1)]
Window = Annotated[int, Between(1, CHUNKS_LIMIT)]
Share = Annotated[float, Between(0.0, 1.0)]
Ref = Annotated[bytes, Length(16, 16)]
Digest = Annotated[bytes, Length(32, 32)]
PublicKey = Annotated[bytes, Length(32, 32)]
DeviceKey = Annotated[bytes, Length(32, 33)]  # Ed25519, or P-256
CA_SIZE = 1024
"""Most bytes of an authority's certificate, DER."""

AuthorityCertificate = Annotated[bytes, Length(1, CA_SIZE)]
Proof = Annotated[bytes, Length(72, 72)]
Piece = Annotated[bytes, Length(0, CHUNK_LIMIT)]
Bitmap = Annotated[bytes, Length(0, CHUNKS_LIMIT // 8)]
Checkpoint = Annotated[str, Length(1, 512)]
LogProof = Annotated[bytes, Length(0, 2048)]
LogPlace = Annotated[bytes, Length(0, 16)]
LogRoot = Annotated[bytes, Length(0, 32)]
EncryptionKey = Annotated[bytes, Length(0, 32)]
Text = Annotated[str, Length(0, 64)]
Word = Annotated[str, Length(1, 16)]
Release = Annotated[str, Length(1, 32)]
Words = Annotated[tuple[Word, ...], Length(0, 32)]
Scalars = Annotated[Mapping[Text, Real], Length(0, 32)]
Claims = Annotated[Mapping[Text, float], Length(0, 32)]  # judged by admission, which can say why
Slice = Annotated[int, Between(1, CHUNK_LIMIT // 4)]
Offset = Annotated[int, Between(0, SCALARS_LIMIT - 1)]
Pair = tuple[Whole, Whole]
Dimensions = Annotated[tuple[Annotated[int, Between(1, 1_048_576)], ...], Length(0, DIMENSIONS)]
