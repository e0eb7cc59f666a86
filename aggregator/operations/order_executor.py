"""Execute the operator's control orders in a running daemon, each with its record in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aggregator.audit_log import AuditLog, Initiator
from aggregator.ingress.dead_letters import LetterError, forget
from aggregator.ingress.replies import pause
from aggregator.operations.commands import OrderError, label_text, refuse_unlearning
from aggregator.operations.control_queue import ControlOrder, KnownDevices, apply, carry_out
from aggregator.operations.server_extensions import ServerExtensions
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.message_processor import MessageProcessor, RunDrivers
from aggregator.rounds.run_driver import RunDriver
from aggregator.store.store import Store
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.messages import RefusalMessage


def initiator(order: ControlOrder) -> Initiator:
    return Initiator(order.via, order.who or "unknown", order.id)


def record_once(order: ControlOrder, audit_log: AuditLog, subject: str, detail: str) -> None:
    """Record an order that was carried out, unless it is recorded already, as after a crash."""
    if not audit_log.has(order.id):
        audit_log.record(initiator(order), order.do, subject, reason=order.why, detail=detail)


def apply_recorded(
    order: ControlOrder, store: Store, audit_log: AuditLog, known: KnownDevices | None = None
) -> str:
    """Carry out an order about a device as ``control_queue.apply`` does; return a one-line result.

    An order that was recorded is not carried out again, as after a crash between both.
    """
    if audit_log.has(order.id):
        return f"{order.do} {order.device}: carried out before"
    if order.do == "record":
        by = initiator(order)
        audit_log.record(by, order.op, order.device, reason=order.why, detail=order.detail)
        return f"{order.op} of {order.device} is recorded"
    with store.transaction():
        before, num = _devices(order, store), store.ledgers.get(order.device).cmd
        result = apply(order, store, known)
        after = _devices(order, store)
        for device in sorted(after):
            if after[device] != before.get(device):
                audit_log.record(
                    initiator(order),
                    order.do,
                    device,
                    reason=order.why,
                    detail="; ".join(_changes(before.get(device), after[device])),
                )
        if order.do == "command" and store.ledgers.get(order.device).cmd != num:
            audit_log.record(
                initiator(order),
                order.do,
                order.device,
                reason=order.why,
                detail=_command(order, store.ledgers.get(order.device).cmd),
            )
    return result


def _devices(order: ControlOrder, store: Store) -> Mapping[str, EnrolledDevice]:
    if order.do == "revoke":
        return {one.id: one for one in store.devices.all()}
    found = store.devices.get(order.device)
    return {} if found is None else {found.id: found}


def _changes(before: EnrolledDevice | None, after: EnrolledDevice) -> Iterator[str]:
    if before is None or before.sign != after.sign:
        yield f"key {', '.join(kid_of(one).hex() for one in after.sign)}"
    if before is not None and before.state != after.state:
        yield f"from {before.state} to {after.state}"
    if before is not None and before.generation != after.generation:
        yield f"generation {after.generation}"
    if (before.labels if before is not None else ()) != after.labels:
        yield f"labels {label_text(after.labels) or 'none'}"


def _command(order: ControlOrder, num: int) -> str:
    args = "".join(f" {name}={value:g}" for name, value in sorted(order.args.items()))
    return f"command {num}: {order.op}{args}"


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OrderExecutor:
    """Executor of queued orders."""

    isolation: Isolation  # undoes what an order has changed in memory if its transaction fails
    drivers: RunDrivers  # pause the runs, and remove a device's contribution
    processor: MessageProcessor  # processes a dead letter again
    extensions: ServerExtensions  # execute orders of their own

    def apply(self, inbox: Path) -> None:
        """Execute the orders in a folder; a connected device receives its command at once.

        A revoked device receives its refusal at once, before its topics are unsubscribed.
        """
        before = self.isolation.registry.enrolled()
        if not carry_out(inbox, lambda order: self._execute(order, inbox), _log_order):
            return
        self.isolation.registry.reload()
        driver = next(iter(self.drivers))
        refusal = RefusalMessage(Reason.REVOKED, pause(Reason.REVOKED))
        for device in sorted(before - self.isolation.registry.enrolled()):
            self.isolation.publisher.reply([driver.sealed(device, refusal)])
        for client in self.isolation.registry.clients():
            self.isolation.publisher.reply(
                driver.sealed(client.id, command)
                for command in self.isolation.store.commands.open(client.id)
            )

    def request_hellos(self, devices: Iterable[str]) -> None:
        """Ask devices for a hello, so that they choose their runs again."""
        driver = next(iter(self.drivers))
        for device in devices:
            waiting = [
                one for one in self.isolation.store.commands.open(device) if one.op == "hello"
            ]
            command = (
                waiting[0] if waiting else self.isolation.store.commands.issue(device, "hello")
            )
            self.isolation.publisher.reply([driver.sealed(device, command)])

    def _execute(self, order: ControlOrder, inbox: Path) -> str:
        result = self._result(order, inbox)
        why = f": {order.why}" if order.why else ""
        return f"{result}; by {order.who}{why}" if order.who else result

    def _result(self, order: ControlOrder, inbox: Path) -> str:
        special: Mapping[str, Callable[[], str]] = {
            "retry": lambda: self._process_letter(order),
            "clear": lambda: self._process_letter(order),
            "unlearn": lambda: self._together(order, lambda: self._unlearn(order)),
            "round": lambda: self._together(order, lambda: self._open_round(order.run)),
            "pause": lambda: self._together(order, lambda: self._pause(order)),
            "resume": lambda: self._together(order, lambda: self._pause(order)),
        }
        if order.do in special:
            return special[order.do]()
        if (execute := self.extensions.order(order.do)) is not None:
            return execute(order, inbox)
        return apply_recorded(order, self.isolation.store, self.isolation.audit_log)

    def _together(self, order: ControlOrder, action: Callable[[], tuple[str, bool]]) -> str:
        """Carry out an order about runs and record it, in one transaction; return its result."""
        results: list[str] = []

        def carry_out_and_record() -> None:
            result, is_changed = action()
            if is_changed:
                record_once(order, self.isolation.audit_log, _subject_of(order), result)
            results.append(result)

        failed = self.isolation.attempt(carry_out_and_record)
        if failed is not None:
            raise failed
        return results[0]

    def _pause(self, order: ControlOrder) -> tuple[str, bool]:
        meant = self._meant(order.run)
        before = [driver.engine.phase for driver in meant]
        for driver in meant:
            driver.pause(is_paused=order.do == "pause")
        after = [driver.engine.phase for driver in meant]
        phases = ", ".join(dict.fromkeys(after))
        return f"the phase of {_subject(order.run)} is {phases}", after != before

    def _meant(self, name: str) -> list[RunDriver]:
        found = [driver for driver in self.drivers if name in ("", driver.name)]
        if not found:
            raise OrderError(
                f"no run {name!r}; runs: {', '.join(one.name for one in self.drivers)}"
            )
        return found

    def _open_round(self, name: str) -> tuple[str, bool]:
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
        device, name = order.device, order.run
        if device not in {client.id for client in self.isolation.registry.clients()}:
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
            letter = self.isolation.letters.letter(order.device)
            about = f"of {letter.device or letter.where}"
            record_once(order, self.isolation.audit_log, letter.name, about)
            self.isolation.letters.remove(letter.name)
        except LetterError as error:
            raise OrderError(str(error)) from error
        self.processor.process_again(letter)
        return f"dead letter {letter.name} of {letter.device or letter.where} processed again"

    def _clear_letters(self, order: ControlOrder) -> str:
        subject, is_any = (
            letters_named(order.device),
            any(True for _ in self.isolation.letters.letters()),
        )
        if is_any:
            record_once(order, self.isolation.audit_log, subject, "dead letters deleted")
        return f"{forget(self.isolation.letters, order.device)} dead letters deleted"


def letters_named(name: str) -> str:
    """Return the subject of an order about dead letters.

    >>> letters_named("_all"), letters_named("update-0007")
    ('all dead letters', 'update-0007')
    """
    return "all dead letters" if name == "_all" else name


def _subject_of(order: ControlOrder) -> str:
    return order.device if order.do == "unlearn" else _subject(order.run)


def _subject(name: str) -> str:
    return f"run {name}" if name else "the fleet"


def _log_order(text: str) -> None:
    result = "; ".join(line.strip() for line in text.splitlines())
    logger.info("order executed %s", fields(result=result))
