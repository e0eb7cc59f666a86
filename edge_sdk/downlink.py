"""What comes down to all, as pure decisions: whose keys, which run, which model, and its parts.

Announcements are retained and may be replayed, so every one carries a number that only rises.
Nothing here fetches or stores; the shell does (`PROTOCOL.md` sections 7 and 10.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from edge_sdk.wire.envelope import AGGREGATOR, ROOT
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import kid_of
from edge_sdk.wire.messages import CHUNK_LIMIT, Bundle, Chunk, Have, Keys, Model, Part
from edge_sdk.wire.method import Contract
from edge_sdk.wire.transfer import Receiving


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Whose signature counts: root's, which is pinned, and what root announced.

    Attributes:
        root: The operator's raw public key.
        pinned: An aggregator key the operator put into the configuration, or None.
        announced: The newest ``keys`` announcement, or None.
    """

    root: bytes
    pinned: bytes | None = None
    announced: Keys | None = None

    def key(self, sender: str, kid: bytes, now: int | None) -> bytes | None:
        """Find the key in force for a sender; without a clock, validity is not judged."""
        if sender == ROOT:
            return self.root if kid_of(self.root) == kid else None
        if sender != AGGREGATOR:
            return None
        for public, start, end in self._online():
            if kid_of(public) == kid and (now is None or start <= now < end):
                return public
        if self.announced is None and self.pinned and kid_of(self.pinned) == kid:
            return self.pinned
        return None

    def accept(self, keys: Keys) -> KeyRing:
        """Take a newer list over; the old one is revoked by it.

        Raises:
            Refused: ROLLBACK for an older list.
        """
        if self.announced is not None and keys.serial < self.announced.serial:
            raise Refused(Reason.ROLLBACK, f"keys {keys.serial}")
        return replace(self, announced=keys)

    def _online(self) -> tuple[tuple[bytes, int, int], ...]:
        if self.announced is None:
            return ()
        return tuple(
            zip(self.announced.sign, self.announced.from_, self.announced.until, strict=True)
        )


@dataclass(slots=True)
class Fetch:
    """A body that is being collected: first from retained slots, after a while on request.

    Attributes:
        manifest: What announced it.
        receiving: The chunks so far.
        opens: When the slots are subscribed: the fleet does not fetch all at once.
        asks: From when on what is missing is asked for.
        is_open: Whether the slots are subscribed.
    """

    manifest: Model | Bundle
    receiving: Receiving
    opens: float
    asks: float
    is_open: bool = False

    @classmethod
    def of(cls, manifest: Model | Bundle, *, opens: float, patience: float, rng: Random) -> Fetch:
        """Plan to fetch what a manifest announces; an archive has no slots and is asked for.

        Raises:
            Refused: MALFORMED or TOO_LARGE sizes.
        """
        chunk = manifest.chunk if isinstance(manifest, Model) else CHUNK_LIMIT
        wait = patience if isinstance(manifest, Model) else 0.0
        receiving = Receiving(manifest.digest, manifest.size, chunk, now=opens, rng=rng)
        return cls(manifest, receiving, opens, opens + wait)

    @property
    def has_slots(self) -> bool:
        """Whether the body also lies in retained slots."""
        return isinstance(self.manifest, Model)

    def take(self, message: Part | Chunk, now: float) -> None:
        """Take a chunk in; one of another body is passed over.

        Raises:
            Refused: BAD_CHUNK for a wrong index or length.
        """
        if message.id == self.receiving.id:
            self.receiving.add(message.id, message.i, message.blob, now)

    def ask(self, now: float) -> Have | None:
        """Return what to ask for now, if anything."""
        report = self.receiving.report(now) if now >= self.asks else None
        if report is None:
            return None
        return Have(id=self.receiving.id, have=report.having, win=report.window)

    @property
    def next_due(self) -> float:
        """When it wants the shell's attention again."""
        if not self.is_open and self.has_slots:
            return self.opens
        return max(self.asks, self.receiving.next_due)


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest of what was announced and used; saved, so that a restart cannot be led back.

    Attributes:
        serial: Of the newest ``model`` manifest.
        run: Announced by root.
        version: Newest version of the common model this device used in that run; -1 for none.
        round: Last round it trained in that run; -1 for none.
    """

    serial: int = 0
    run: int = 0
    version: int = -1
    round: int = -1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What this device is set up for, to hold a manifest against."""

    spec: bytes  # layout digest of the shared vector
    size: int  # its scalars
    contract: Contract
    max_steps: int


def judge_model(model: Model, seen: Seen, wanted: Wanted) -> None:
    """Refuse a manifest that this device must not follow, whatever its signature.

    Raises:
        Refused: ROLLBACK (older serial or version), WRONG_RUN, WRONG_SPEC, WRONG_ENCODING, or
            BAD_SCALAR for numbers outside the contract or beyond what this device accepts.
    """
    if model.serial < seen.serial:
        raise Refused(Reason.ROLLBACK, f"manifest {model.serial}")
    if model.run != seen.run:
        raise Refused(Reason.WRONG_RUN, f"run {model.run}, expected {seen.run}")
    if model.version < seen.version:
        raise Refused(Reason.ROLLBACK, f"version {model.version}")
    if model.spec != wanted.spec or model.part != "shared":
        raise Refused(Reason.WRONG_SPEC, f"{model.part} {model.spec.hex()}")
    if model.enc != "f4":
        raise Refused(Reason.WRONG_ENCODING, model.enc)
    _judge_numbers(model.vals, wanted)


def _judge_numbers(values: Mapping[str, float], wanted: Wanted) -> None:
    ask = wanted.contract.get("train")
    known = {number.name: number for number in ask.numbers} if ask else {}
    for name, value in values.items():
        if name not in known or not known[name].admits(value):
            raise Refused(Reason.BAD_SCALAR, f"{name}={value}")
    if values.get("steps", 0) > wanted.max_steps:
        raise Refused(Reason.BAD_SCALAR, f"steps={values['steps']:g} above {wanted.max_steps}")


def judge_bundle(bundle: Bundle, newest: Bundle | None, methods: Callable[[str], bool]) -> None:
    """Refuse an announcement that is older than what was followed, or asks for the unknown.

    Raises:
        Refused: ROLLBACK for a lower serial, run, or version of the same bundle; UNKNOWN_KIND for
            a method this device does not accept; WRONG_ENCODING; PLAIN_REFUSED if the run wants
            sealed messages, which this version cannot make.
    """
    if newest is not None:
        older = bundle.serial < newest.serial or bundle.run < newest.run
        if older or (bundle.name == newest.name and bundle.version < newest.version):
            raise Refused(Reason.ROLLBACK, f"bundle announcement {bundle.serial}")
    if not methods(bundle.method):
        raise Refused(Reason.UNKNOWN_KIND, f"method {bundle.method!r} is not accepted here")
    if "f4" not in bundle.encs:
        raise Refused(Reason.WRONG_ENCODING, ", ".join(bundle.encs))
    if bundle.seal:
        raise Refused(Reason.PLAIN_REFUSED, ", ".join(bundle.seal))
