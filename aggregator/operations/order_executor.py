"""Execute the operator's control orders in a running daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aggregator.audit_log.recorder import AuditLog
from aggregator.config import AggregatorConfig
from aggregator.ingress.dead_letters import DeadLetters, LetterError, forget
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import pause
from aggregator.operations.control_queue import (
    ControlOrder,
    OrderError,
    carry_out,
)
from aggregator.operations.recorded_orders import apply_recorded, initiator
from aggregator.operations.rollout_control import RolloutControl
from aggregator.operations.rollout_orders import read_description, remove_description
from aggregator.operations.unlearning import refuse_unlearning
from aggregator.operations.weather_publication import taken
from aggregator.rounds.announcements import Publication
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.message_processor import MessageProcessor
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.run_driver import RunDriver
from aggregator.rounds.run_drivers import RunDrivers
from aggregator.store.types import Store
from edge_sdk.app.cli import fields
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.messages import RefusalMessage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OrderExecutor:
    """Executor of queued orders.

    Attributes:
        store: Database that an order changes.
        registry: Enrolled devices, read again after an order.
        drivers: Pause the runs, and remove a device's contribution.
        processor: Processes a dead letter again.
        publisher: Sends commands to the devices.
        letters: Dead letters.
        fleet: Id of the fleet.
        rollout: Begins and changes rollouts.
        config: Configuration, with the root's public key and the bundles.
        isolation: Undoes what an order has changed in memory if its transaction fails.
        audit_log: Records every order that took effect.
    """

    store: Store
    registry: Registry
    drivers: RunDrivers
    processor: MessageProcessor
    publisher: Publisher
    letters: DeadLetters
    fleet: str
    rollout: RolloutControl
    config: AggregatorConfig
    isolation: Isolation
    audit_log: AuditLog

    def apply(self, inbox: Path) -> None:
        """Execute the orders in a folder; a connected device hears of its command at once.

        A revoked device receives its refusal at once, before its topics are unsubscribed.
        """
        before = self.registry.enrolled()
        if not carry_out(inbox, lambda order: self._execute(order, inbox), _log_order):
            return
        self.registry.reload()
        driver = next(iter(self.drivers))
        refusal = RefusalMessage(Reason.REVOKED, pause(Reason.REVOKED))
        for device in sorted(before - self.registry.enrolled()):
            self.publisher.reply([driver.sealed(device, refusal)])
        for client in self.registry.clients():
            self.publisher.reply(
                driver.sealed(client.id, command) for command in self.store.issued(client.id)
            )

    def request_hellos(self, devices: Iterable[str]) -> None:
        """Ask devices for a hello, so that they choose their runs again."""
        driver = next(iter(self.drivers))
        for device in devices:
            waiting = [one for one in self.store.issued(device) if one.op == "hello"]
            command = waiting[0] if waiting else self.store.issue(device, "hello")
            self.publisher.reply([driver.sealed(device, command)])

    def _execute(self, order: ControlOrder, inbox: Path) -> str:
        """Execute an order; return its result, with who gave it and why where that is known."""
        result = self._result(order, inbox)
        why = f": {order.why}" if order.why else ""
        return f"{result}; by {order.who}{why}" if order.who else result

    def _result(self, order: ControlOrder, inbox: Path) -> str:
        special: Mapping[str, Callable[[], str]] = {
            "rollout": lambda: self._change_rollout(order, inbox),
            "retry": lambda: self._process_letter(order),
            "clear": lambda: self._process_letter(order),
            "weather": lambda: self._announce_weather(order, inbox),
            "unlearn": lambda: self._together(order, lambda: self._unlearn(order)),
            "round": lambda: self._together(order, lambda: self._open_round(order.run)),
            "pause": lambda: self._together(order, lambda: self._pause(order)),
            "resume": lambda: self._together(order, lambda: self._pause(order)),
        }
        if order.do in special:
            return special[order.do]()
        return apply_recorded(order, self.store, self.audit_log)

    def _together(self, order: ControlOrder, action: Callable[[], tuple[str, bool]]) -> str:
        """Carry out an order about runs and record it, in one transaction; return its result.

        Args:
            order: The order.
            action: Carries it out; returns its result, and whether anything changed.
        """
        results: list[str] = []

        def carry_out_and_record() -> None:
            result, is_changed = action()
            if is_changed:
                self._record(order, _subject_of(order), result)
            results.append(result)

        failed = self.isolation.attempt(carry_out_and_record)
        if failed is not None:
            raise failed
        return results[0]

    def _record(self, order: ControlOrder, subject: str, detail: str) -> None:
        if not self.audit_log.has(order.id):
            by = initiator(order)
            self.audit_log.record(by, order.do, subject, reason=order.why, detail=detail)

    def _pause(self, order: ControlOrder) -> tuple[str, bool]:
        meant = self._meant(order.run)
        before = [driver.engine.phase for driver in meant]
        for driver in meant:
            driver.pause(is_paused=order.do == "pause")
        after = [driver.engine.phase for driver in meant]
        phases = ", ".join(dict.fromkeys(after))
        return f"the phase of {_subject(order.run)} is {phases}", after != before

    def _announce_weather(self, order: ControlOrder, inbox: Path) -> str:
        region = order.device
        payload = taken(inbox, region)
        topic = topics.weather(self.fleet, region)
        result = f"weather of {region} is {'announced' if payload else 'cleared'}"
        with self.store.transaction():
            self.store.announce({topic: payload})
            self._record(order, region, result)
        self.publisher.announce([Publication(topic, payload)])
        return result

    def _change_rollout(self, order: ControlOrder, inbox: Path) -> str:
        if order.op != "start":
            return self.rollout.act(order.op, initiator(order), order.why)
        done = self.rollout.begin(self.config, read_description(inbox), by=initiator(order))
        remove_description(inbox)
        return done

    def _meant(self, name: str) -> list[RunDriver]:
        """Return the drivers of the run of this name, or of all runs.

        Raises:
            OrderError: No run has this name.
        """
        found = [driver for driver in self.drivers if name in ("", driver.name)]
        if not found:
            raise OrderError(
                f"no run {name!r}; runs: {', '.join(one.name for one in self.drivers)}"
            )
        return found

    def _open_round(self, name: str) -> tuple[str, bool]:
        """Open every round that waits for its start.

        Raises:
            OrderError: The fleet or the run is paused, or no round waits.
        """
        running = [driver for driver in self._meant(name) if not driver.engine.is_paused]
        if not running:
            raise OrderError(f"{_subject(name)} is paused: gridfed-aggregator resume")
        opened = [str(driver.engine.state.round) for driver in running if driver.open_round()]
        if not opened:
            number = running[0].engine.state.round
            raise OrderError(
                f"no round waits for its start: round {number} is open, or was the last"
            )
        is_one = len(opened) == 1
        text = f"round {opened[0]} is open" if is_one else f"rounds {', '.join(opened)} are open"
        return text, True

    def _unlearn(self, order: ControlOrder) -> tuple[str, bool]:
        """Remove everything that a device has contributed to the models of its runs.

        Raises:
            OrderError: The method does not keep contributions apart, or the device is not enrolled.
        """
        device, name = order.device, order.run
        if device not in {client.id for client in self.registry.clients()}:
            raise OrderError(f"{device!r} is not enrolled")
        its = [one for one in self._meant(name) if name or one.cohort.holds(device)]
        for driver in its:
            refuse_unlearning(driver.engine.run.config.run.method)
        found = [self._unlearn_in(driver, device) for driver in its]
        text = "; ".join(result for result, _ in found) or f"{device} is in no run"
        return text, any(is_changed for _, is_changed in found)

    @staticmethod
    def _unlearn_in(driver: RunDriver, device: str) -> tuple[str, bool]:
        if not driver.unlearn(device):
            return f"{device} has no statistic in run {driver.number}", False
        state = driver.engine.state
        moment = "with the open round" if state.is_open else f"version {state.version}"
        return f"{device} is unlearned in run {driver.number}: {moment}", True

    def _process_letter(self, order: ControlOrder) -> str:
        """Process a dead letter again, or delete it. Letters are files: the record comes first."""
        try:
            if order.do == "clear":
                return self._clear_letters(order)
            letter = self.letters.letter(order.device)
            self._record(order, letter.name, f"of {letter.device or letter.where}")
            self.letters.remove(letter.name)
        except LetterError as error:
            raise OrderError(str(error)) from error
        self.processor.process_again(letter)
        return f"dead letter {letter.name} of {letter.device or letter.where} processed again"

    def _clear_letters(self, order: ControlOrder) -> str:
        subject, is_any = letters_named(order.device), any(True for _ in self.letters.letters())
        if is_any:
            self._record(order, subject, "dead letters deleted")
        return f"{forget(self.letters, order.device)} dead letters deleted"


def letters_named(name: str) -> str:
    """Return the subject of an order about dead letters.

    >>> letters_named("_all"), letters_named("update-0007")
    ('all dead letters', 'update-0007')
    """
    return "all dead letters" if name == "_all" else name


def _subject_of(order: ControlOrder) -> str:
    return order.device if order.do == "unlearn" else _subject(order.run)


def _subject(name: str) -> str:
    """Return what an order is about: the fleet, or one run of it."""
    return f"run {name}" if name else "the fleet"


def _log_order(text: str) -> None:
    """Log the result of a control order in one line."""
    result = "; ".join(line.strip() for line in text.splitlines())
    logger.info("order executed %s", fields(result=result))
