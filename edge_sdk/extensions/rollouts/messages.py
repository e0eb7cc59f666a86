"""Define the messages of a staged rollout: its description, its stage, and a device's daily result."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length
from edge_sdk.protocol.messages import BodySize, Digest, Ordinal, ProtocolMessage, Ref, Share, Text

WAVES_LIMIT = 8
"""Most waves of one rollout."""

DAYS_LIMIT = 7
"""Most days of which one message gives the results."""

BundleVersion = Annotated[int, Between(1, 2**31 - 1)]
DayNumber = Annotated[int, Between(0, 2_932_896)]  # days since 1970, until the year 9999
DayWords = Annotated[tuple[Annotated[int, Between(0, 2)], ...], Length(0, DAYS_LIMIT)]


@dataclass(frozen=True, slots=True)
class RolloutMessage(ProtocolMessage):
    """Description of a rollout: its cohort, the comparison, and the version to return to.

    Signed by the root, which thereby authorises the return beforehand. Retained.
    """

    kind: ClassVar[str] = "rollout"
    of_root = True
    is_delegated = True
    of_fleet = True
    serial: Ordinal  # rises with every rollout of the fleet
    name: Text  # name of both bundles
    version: BundleVersion  # the version that is let out
    digest: Digest  # SHA-256 of its archive
    size: BodySize  # bytes of its archive
    served: Digest  # SHA-256 of the archive that its devices served before, and return to
    salt: Ref  # of the draw that decides the waves
    waves: Annotated[tuple[Share, ...], Length(1, WAVES_LIMIT)]  # share that serves it; rising
    shadow: Share  # least share that scores it beside the served one
    days: Annotated[int, Between(1, 31)]  # days with results until a stage passes
    least: Annotated[int, Between(1, 1_000_000)]  # devices with a result that such a day needs
    margin: Annotated[float, Between(0.0, 0.5)]  # a day is lost beyond this share of error
    bound: Annotated[float, Between(1e-6, 0.5)]  # most probability of a stop without harm

    def __post_init__(self) -> None:
        """Refuse waves that do not rise, and a version that is served already."""
        if not all(a < b for a, b in zip((0.0, *self.waves), self.waves, strict=False)):
            raise ValueError(f"waves: {self.waves} do not rise from above 0 on")
        if self.digest == self.served:
            raise ValueError("digest, served: both are the same archive")


@dataclass(frozen=True, slots=True)
class StageMessage(ProtocolMessage):
    """Announce the stage of a rollout, signed by the aggregator. Retained; the latest replaces."""

    kind: ClassVar[str] = "stage"
    of_fleet = True
    serial: Ordinal  # rises with every stage of every rollout
    of: Ref  # reference of the description
    phase: Literal["run", "pause", "return", "done"]  # pause: no further device begins to serve
    stage: Annotated[int, Between(0, WAVES_LIMIT)]  # waves that may serve the version


@dataclass(frozen=True, slots=True)
class TrialMessage(ProtocolMessage):
    """Report a member's daily results: one of three words for each of the last days.

    The message repeats earlier days, so that a lost one needs no receipt.
    """

    kind: ClassVar[str] = "trial"
    from_device = True
    is_encryptable = True
    of: Ref  # reference of the description
    state: Literal["score", "serve", "returned", "declined"]  # state of the device in the rollout
    day: DayNumber  # the newest complete day
    lost: DayWords  # of ``day`` and the days before it: 0 no result, 1 not lost, 2 lost

    def __post_init__(self) -> None:
        """Refuse results of days before 1970."""
        if len(self.lost) > self.day + 1:
            raise ValueError(f"lost: {len(self.lost)} days end with day {self.day}")
