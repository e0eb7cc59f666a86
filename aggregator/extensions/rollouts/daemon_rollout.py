"""Run the rollout of a running daemon: reports of members, orders, judgements and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.extensions.rollouts.rollout_control import RolloutControl
from aggregator.ingress.message_ingress import Receiver
from aggregator.operations.commands import OrderError
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.order_executor import initiator
from aggregator.operations.server_extensions import Order, ServerExtension, ServerParts
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.extensions.rollouts.messages import TrialMessage
from edge_sdk.protocol.envelope import Sealed
from edge_sdk.protocol.keys import write_atomically

JUDGED = 2.0  # s between two judgements of a rollout that has new reports


def gauges(own: CollectorRegistry) -> tuple[Gauge, Gauge]:
    """Register and return the gauges of the stage, and of harm."""
    stage = Gauge(
        "gridfed_rollout_stage",
        "Waves of the newest rollout that may serve its version, by phase.",
        ["phase"],
        registry=own,
    )
    harm = Gauge(
        "gridfed_rollout_harmful",
        "1 if the newest rollout was taken back because members lost too many days with it.",
        registry=own,
    )
    return stage, harm


class DaemonRollout(ServerExtension):
    """The newest rollout of the fleet."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._control = RolloutControl(
            parts.isolation.store,
            parts.ends,
            parts.isolation.clock,
            parts.isolation.publisher.announce,
        )
        self._judge_at = parts.isolation.clock.monotonic()
        self._stage, self._harm = gauges(parts.isolation.metrics.registry)

    def receivers(self) -> Mapping[str, Receiver]:
        """Receive the reports of members."""
        return {TrialMessage.kind: (TrialMessage, self._receive)}

    def orders(self) -> Mapping[str, Order]:
        """Execute orders about rollouts."""
        return {"rollout": self._change}

    def on_tick(self, now: float) -> None:
        """Judge new reports."""
        if now < self._judge_at:
            return
        self._judge_at = now + JUDGED
        self._control.advance()
        state = self._control.state
        self._stage.clear()
        if state is not None:
            self._stage.labels(state.phase).set(state.stage)
            self._harm.set(state.phase == "return" and state.why == "harm")

    def _receive(self, sealed: Sealed, trial: TrialMessage) -> str:
        """Record a report of a member; one of another device is counted only."""
        is_member = self._control.record(sealed.sender, trial)
        return "TRIALS" if is_member else "STRAY_TRIALS"

    def _change(self, order: ControlOrder, inbox: Path) -> str:
        if order.op != "start":
            return self._control.act(order.op, initiator(order), order.why)
        payload = read_description(inbox)
        done = self._control.begin(self.config, payload, by=initiator(order))
        remove_description(inbox)
        return done


_NAME = "rollout.description"


def leave_description(folder: Path, payload: bytes) -> None:
    """Write a signed description atomically; its order is written after it."""
    make_private_folder(folder)
    write_atomically(folder / _NAME, payload, 0o600)


def read_description(folder: Path) -> bytes:
    """Return the signed description."""
    try:
        return (folder / _NAME).read_bytes()
    except OSError as error:
        raise OrderError(f"rollout: {error}") from error


def remove_description(folder: Path) -> None:
    """Delete the description, after its rollout was saved."""
    (folder / _NAME).unlink(missing_ok=True)
