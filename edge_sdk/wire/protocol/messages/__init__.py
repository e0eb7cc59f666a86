"""Define the messages: one frozen dataclass per message kind, one comment per field.

Field names are the header keys of the wire (``from_`` is ``from``). Times are server time in Unix
milliseconds, durations milliseconds, sizes bytes. A field with a default may be left out on the
wire. ``blob`` is not a header key but the body's second element. Every number has a bound, far
inside what SQLite, a double and a date can hold, so that no sum of a few of them overflows.
Types limit what ``codec.decode`` accepts; ``admission_policy`` applies the run's limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edge_sdk.wire.protocol.messages.announcements import (
    BundleMessage,
    KeysMessage,
    ModelMessage,
    PartMessage,
    TimeMessage,
)
from edge_sdk.wire.protocol.messages.fields import (
    BODY_LIMIT,
    CHUNK_LIMIT,
    CHUNKS_LIMIT,
    CLEAR,
    COMMAND_LEAP,
    ENCRYPTED,
    EPOCH_LEAP,
    FLOAT_LIMIT,
    HEADER_LIMIT,
    LARGEST,
    LIFE_LEAP,
    NEIGHBOURS_LIMIT,
    RELEASES_LEAP,
    RELEASES_LIMIT,
    SERIAL_LEAP,
    SINGLE_LIMIT,
    SPAN_LIMIT,
    STEP_LEAP,
    TIME_LIMIT,
    WAIT_LIMIT,
    WIRE,
    Moment,
    Releases,
    Scalars,
)
from edge_sdk.wire.protocol.messages.forecasts import (
    WEATHER_LIMIT,
    ForecastMessage,
    WeatherMessage,
)
from edge_sdk.wire.protocol.messages.membership import (
    CommandMessage,
    FloorMessage,
    HelloMessage,
    MetricsMessage,
    StatusMessage,
    WelcomeMessage,
)
from edge_sdk.wire.protocol.messages.neighbours import (
    PeerMessage,
    SettleMessage,
)
from edge_sdk.wire.protocol.messages.rollouts import (
    RolloutMessage,
    StageMessage,
    TrialMessage,
)
from edge_sdk.wire.protocol.messages.scores import ScoreMessage
from edge_sdk.wire.protocol.messages.tasks import (
    ContentBody,
    SignalMessage,
    TaskMessage,
)
from edge_sdk.wire.protocol.messages.updates import (
    ChunkMessage,
    GrantMessage,
    HaveMessage,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
    UpdateMessage,
)

__all__ = [
    "BODY_LIMIT",
    "CHUNKS_LIMIT",
    "CHUNK_LIMIT",
    "CLEAR",
    "COMMAND_LEAP",
    "ENCRYPTED",
    "EPOCH_LEAP",
    "FLOAT_LIMIT",
    "FROM_DEVICES",
    "HEADER_LIMIT",
    "KINDS",
    "LARGEST",
    "LIFE_LEAP",
    "NEIGHBOURS_LIMIT",
    "RELEASES_LEAP",
    "RELEASES_LIMIT",
    "RESERVED",
    "SERIAL_LEAP",
    "SINGLE_LIMIT",
    "SPAN_LIMIT",
    "STEP_LEAP",
    "TIME_LIMIT",
    "WAIT_LIMIT",
    "WEATHER_LIMIT",
    "WIRE",
    "BundleMessage",
    "ChunkMessage",
    "CommandMessage",
    "ContentBody",
    "FloorMessage",
    "ForecastMessage",
    "GrantMessage",
    "HaveMessage",
    "HelloMessage",
    "KeysMessage",
    "Message",
    "MetricsMessage",
    "ModelMessage",
    "Moment",
    "OfferMessage",
    "PartMessage",
    "PeerMessage",
    "ReceiptMessage",
    "RefusalMessage",
    "Releases",
    "RolloutMessage",
    "Scalars",
    "ScoreMessage",
    "SettleMessage",
    "SignalMessage",
    "StageMessage",
    "StatusMessage",
    "TaskMessage",
    "TimeMessage",
    "TrialMessage",
    "UpdateMessage",
    "WeatherMessage",
    "WelcomeMessage",
]

Message = (
    StatusMessage
    | HelloMessage
    | WelcomeMessage
    | FloorMessage
    | KeysMessage
    | BundleMessage
    | ModelMessage
    | TaskMessage
    | ContentBody
    | PartMessage
    | OfferMessage
    | GrantMessage
    | ChunkMessage
    | HaveMessage
    | ReceiptMessage
    | RefusalMessage
    | UpdateMessage
    | SignalMessage
    | PeerMessage
    | SettleMessage
    | CommandMessage
    | MetricsMessage
    | TimeMessage
    | WeatherMessage
    | ForecastMessage
    | RolloutMessage
    | StageMessage
    | TrialMessage
    | ScoreMessage
)

KINDS: Mapping[str, type[Message]] = MappingProxyType(
    {
        cls.kind: cls
        for cls in (
            StatusMessage,
            HelloMessage,
            WelcomeMessage,
            FloorMessage,
            KeysMessage,
            BundleMessage,
            ModelMessage,
            TaskMessage,
            PartMessage,
            OfferMessage,
            GrantMessage,
            ChunkMessage,
            HaveMessage,
            ReceiptMessage,
            RefusalMessage,
            UpdateMessage,
            SignalMessage,
            PeerMessage,
            SettleMessage,
            CommandMessage,
            MetricsMessage,
            TimeMessage,
            WeatherMessage,
            ForecastMessage,
            RolloutMessage,
            StageMessage,
            TrialMessage,
            ScoreMessage,
        )
    }
)
"""Every implemented kind, by its name in the envelope. ``content`` travels only in parts."""

FROM_DEVICES = frozenset(
    {
        StatusMessage.kind,
        HelloMessage.kind,
        OfferMessage.kind,
        HaveMessage.kind,
        UpdateMessage.kind,
        SignalMessage.kind,
        MetricsMessage.kind,
        ChunkMessage.kind,
        ReceiptMessage.kind,
        RefusalMessage.kind,
        PeerMessage.kind,
        SettleMessage.kind,
        ForecastMessage.kind,
        TrialMessage.kind,
        ScoreMessage.kind,
    }
)
"""Kinds that a device may send; each field of them has a row in ``docs/privacy.md``."""

ENCRYPTABLE = frozenset(
    {
        UpdateMessage.kind,
        SignalMessage.kind,
        MetricsMessage.kind,
        ForecastMessage.kind,
        TrialMessage.kind,
        ScoreMessage.kind,
    }
)
"""Kinds that a device can encrypt to the aggregator: those with data of its readings or its model."""

RESERVED = frozenset(
    (
        "rekey",
        "state",
        "batch",
        "feat",
        "zgrad",
        "zfeat",
        "hgrad",
        "skip",
        "hvp",
        "topology",
    )
)
"""Reserved kinds: refused as UNKNOWN_KIND, and not available for other meanings."""
