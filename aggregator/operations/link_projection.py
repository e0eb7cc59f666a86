"""Project the bytes that a device sends and receives: of one round, a day and a month."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aggregator.config import BoundRun, settings_of
from aggregator.methods.base.wrappers import STEP
from aggregator.rounds import announcements as announce
from aggregator.rounds.announcements import Body, Ends, Opening
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol import envelope, topics
from edge_sdk.protocol.codec import encode, pack_tensor
from edge_sdk.protocol.contract.method import ALL, Array, Task
from edge_sdk.protocol.keys import generate
from edge_sdk.protocol.messages import LARGEST, ReceiptMessage, UpdateMessage
from edge_sdk.protocol.model_step import STEP_ENCODING

IDLE_DAY = 30_000
"""Bytes of a connected day without a round, both directions: pings, time, metrics, one connection.

Measured with ``python -m tools.day`` and rounded up (``docs/measurements.md``).
"""

MONTH = 30
FRAME = 12  # bytes of an MQTT publish besides its topic and payload, with its acknowledgement
CLASS_DAY = 1_000_000  # default ``limits.daily_link_bytes`` of a device of class B or C
_DEVICE = "meter-000000"  # an id of usual length


@dataclass(frozen=True, slots=True)
class LinkProjection:
    """Bytes that one device exchanges, MQTT included and TLS not."""

    up: int  # sent in one round: the update
    down: int  # received in one round: the model, its manifest, and the receipt
    # rounds a day that a device takes part in, on average; None for rounds back to back
    rounds: float | None

    @property
    def round(self) -> int:
        """Return the bytes of one round, both directions."""
        return self.up + self.down

    @property
    def day(self) -> int | None:
        """Return the bytes of one day, with those between rounds."""
        return None if self.rounds is None else int(self.rounds * self.round) + IDLE_DAY

    @property
    def month(self) -> int | None:
        """Return the bytes of thirty days."""
        return None if self.day is None else MONTH * self.day

    def text(self, quota: int) -> str:
        """Return the projection in one line.

        Args:
            quota: Bytes a day that the aggregator allows a device.

        >>> LinkProjection(33_000, 34_000, 8).text(64_000_000)
        '8 rounds a day x 67 kB + 30 kB = 566 kB a day, 17 MB a month per device'
        >>> LinkProjection(33_000, 34_000, None).text(64_000_000)
        'rounds back to back, 67 kB each: 64 MB a day are used up by 954 rounds'
        """
        if self.rounds is None or self.day is None or self.month is None:
            most = (quota - IDLE_DAY) // self.round
            return (
                f"rounds back to back, {size(self.round)} each: {size(quota)} a day are used up by "
                f"{most} rounds"
            )
        number = "1 round" if self.rounds == 1 else f"{round(self.rounds, 2):g} rounds"
        return (
            f"{number} a day x {size(self.round)} + {size(IDLE_DAY)} = {size(self.day)} a day, "
            f"{size(self.month)} a month per device"
        )

    def warnings(self) -> list[str]:
        """Return a warning if devices of a class stop at their own daily limit before the day ends."""
        if self.day is None or self.day <= CLASS_DAY:
            return []
        what = f"{size(self.day)} a day are above {size(CLASS_DAY)}, the default "
        return [what + "limits.daily_link_bytes of class B and C, whose devices stop at it"]


def size(count: int) -> str:
    """Return a number of bytes for a reader.

    >>> size(999), size(66_700), size(16_080_000)
    ('999 B', '67 kB', '16 MB')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return (
                f"{count / factor:.3g} {unit}"
                if count < 10 * factor
                else f"{count / factor:.0f} {unit}"
            )
    return f"{count} B"


def projection_of(run: BoundRun) -> LinkProjection:
    """Return the projection of a run, from the encoded messages of its bundle and method."""
    schedule = run.schedule
    rounds = None if schedule.is_continuous else schedule.rounds_per_week / 7
    share = run.config.run.client_fraction
    turns = _turns(run)
    return LinkProjection(
        _update_bytes(run) + turns,
        _model_bytes(run) + _receipt_bytes(run) + turns,
        None if rounds is None else rounds * share,
    )


def refuse_excess(run: BoundRun, projection: LinkProjection) -> None:
    """Refuse a schedule that no device can follow within its daily quota."""
    quota = run.config.admission.daily_bytes
    wanted = projection.round if projection.day is None else projection.day
    if wanted <= quota:
        return
    what = projection.text(quota) if projection.day is not None else f"a round of {size(wanted)}"
    raise SettingsError(
        f"{run.config.file.name}: run.schedule.rounds_per_day: {what}; above {size(quota)} a day, "
        "which admission.daily_bytes allows",
        hint="fewer rounds a day, fewer shared layers, or a higher admission.daily_bytes",
    )


def _turns(run: BoundRun) -> int:
    """Return the bytes of activations in one round of split learning, in one direction."""
    activation, settings = run.bundle.manifest.activation, settings_of(run.config)
    if run.half.play is None or activation is None:
        return 0
    return int(settings.turns.uplink(settings.steps, activation))


def _update_bytes(run: BoundRun) -> int:
    enc = run.limits.encs[-1]
    update = UpdateMessage(
        run=1,
        round=1000,
        base=1000,
        life=10,
        seq=100,
        spent=1000,
        spec=run.spec.digest,
        part=run.ask.up.value,
        enc=enc,
        n=10_000,
        vals={one.name: 0.123 for one in run.ask.report},
        blob=pack_tensor(np.ones(run.limits.size), enc),
    )
    sealed = envelope.seal(
        encode(update),
        kind=update.kind,
        sender=_DEVICE,
        recipient=envelope.AGGREGATOR,
        fleet=run.config.fleet,
        signer=generate(),
    )
    return _framed(topics.up(run.config.fleet, _DEVICE, update.kind), len(sealed))


def _model_bytes(run: BoundRun) -> int:
    """Return the bytes of the parts and the manifest; a task of one device is as large.

    Where steps are announced, the parts are those of a step.
    """
    ends = Ends(run.config.fleet, generate())
    vector = np.zeros(run.spec.shared_size, np.float32)
    count = max(1, len(run.ask.down))
    arrays: dict[str, Array] = {run.ask.down[0] if run.ask.down else "w": vector}
    if run.config.run.downlink != "f4":
        arrays[STEP] = np.frombuffer(pack_tensor(np.zeros(len(vector)), STEP_ENCODING), np.uint8)
    values = {one.name: 0.123 for one in run.ask.numbers}
    task = Task(ALL, 1000, run.config.run.method, base=1000, values=values, arrays=arrays)
    body = announce.body(run, task, number=1)
    content = Body(1000, body.data + bytes(4 * len(vector) * (count - 1)))
    step = announce.step(run, task, number=1)
    single = run.config.admission.max_single_bytes
    opening = Opening(LARGEST // 2**20, 1_800_000_000_000, 10_000, 32_768, step=step, single=single)
    parts = announce.slots(ends, content if step is None else step)
    manifest = announce.model(ends, announce.manifest(run, task, content, opening, number=1))
    return sum(_framed(one.topic, len(one.payload)) for one in (*parts, manifest))


def _receipt_bytes(run: BoundRun) -> int:
    receipt = ReceiptMessage(10, 100, bytes(16), 0, 1, 1000)
    sealed = envelope.seal(
        encode(receipt),
        kind=receipt.kind,
        sender=envelope.AGGREGATOR,
        recipient=_DEVICE,
        fleet=run.config.fleet,
        signer=generate(),
    )
    return _framed(topics.down(run.config.fleet, _DEVICE, receipt.kind), len(sealed))


def _framed(topic: str, payload: int) -> int:
    return payload + len(topic) + FRAME
