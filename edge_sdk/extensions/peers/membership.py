"""Track the current peers of a device, and run the model exchange with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.app.schema import SchemaError
from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.peers.driver import PeerDriver, PeerShell
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.extensions.peers.peer_letters import PeerLetters
from edge_sdk.extensions.peers.saved_decisions import LINK
from edge_sdk.extensions.peers.topology import (
    NeighboursSection,
    PeerSettings,
    settings_of_section,
    settings_of_task,
)
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.protocol.codec import Leaf, encode
from edge_sdk.protocol.contract.method import CONTRACTS, Task, Up, answered
from edge_sdk.protocol.messages import TaskMessage
from edge_sdk.protocol.outbox_state import RetryPolicy
from edge_sdk.session.announcements import saved_message
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.extension import DeviceExtension, DeviceParts
from edge_sdk.training.training_transaction import record

NEIGHBOURS = "neighbours"
"""Name of the configuration's table, and of the stored list of peers from the aggregator."""

_LONGEST = 900.0  # longest interval in seconds between two requests to a silent peer


class PeerMembership(DeviceExtension):
    """Sets up the exchange for every run and neighbourhood, and drives it."""

    kinds = (PeerMessage.kind, SettleMessage.kind)

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        self._arrived: deque[VerifiedMessage] = deque()  # of peers, in order of arrival
        self.letters = PeerLetters(device.session)
        self._config, self._store, self._session = device.config, device.store, device.session
        self._agenda, self._active = device.agenda, device.active
        self.driver: PeerDriver | None = None  # the exchange; None where the run's method has none

    def start(self) -> None:
        """Set up the exchange that the run in force requires.

        Raises:
            ConfigError: An invalid neighbourhood; the message names the key.
        """
        self.on_run()

    def on_message(self, message: VerifiedMessage) -> None:
        """Keep a message of a peer until the next tick."""
        self._arrived.append(message)

    def on_run(self) -> None:
        """Set up the exchange with the current peers, if the run's method has one."""
        role, seen = self._active.learner.role, self._session.seen
        self.driver = None
        settings = peer_settings(self._config, self._store, role.method, seen.run)
        if settings is None:
            self.letters.accept({}, {})
            return
        self._store.drop_papers(LINK, but=[f"{LINK}{name}" for name in settings.keys])
        learned = self._store.learned()
        is_same_run = learned is not None and learned.run == seen.run
        self.driver = PeerDriver(
            settings,
            role.method,
            me=self._config.id,
            run=seen.run,
            spec=self._active.learner.spec,
            session=self._session,
            letters=self.letters,
            arrived=self._arrived,
            store=self._store,
            shell=PeerShell(
                state=lambda: self._active.state,
                apply=self._apply,
                adopt=self._active.adopt,
                save=self._save,
            ),
            pace=RetryPolicy(
                max(seconds(self._config.timeouts.reply), settings.deadline / 4), _LONGEST
            ),
            kept=learned.leaves.get("gossip") if learned is not None and is_same_run else None,
        )

    def on_tick(self) -> None:
        """Continue the exchange; a device without remaining budget only receives."""
        task = self._agenda.pop_peers()
        present = self.driver
        if task is not None and (present is None or task.round > present.settings.epoch):
            self._store.file_paper(NEIGHBOURS, encode(task))
            self.on_run()
        elif task is not None and present is not None:
            self._replace_keys(task, present.settings)
        if self.driver is None:
            return
        try:
            self.driver.serve()
        except BudgetSpent as error:
            self._active.accountant.stop(error)

    def _save(self, state: Any, leaves: Mapping[str, Leaf], releases: int) -> None:  # noqa: ANN401 - the half's own type
        """Charge the releases to peers, and save the charges with the learned state.

        Raises:
            BudgetSpent: Or ``StoreFull``: then nothing has changed.
        """
        active, session, accountant = self._active, self._session, self._active.accountant
        charges, account = accountant.cost(releases)
        numbers, seen = session.outbox.numbers, session.seen
        numbers = replace(numbers, spent=numbers.spent + releases)
        me = active.learner.config.id
        here = Task(me, seen.round, "", seen.step, seen.version, attempt=seen.attempt)
        learned = record(state, here, active.learner, seen, active.residual)
        learned = replace(learned, leaves={**learned.leaves, "gossip": leaves})
        self._store.save(learned=learned, numbers=numbers, charges=charges)
        session.parts.outbox.adopt_numbers(numbers)
        active.advance(state)
        accountant.adopt_account(account)
        accountant.mechanism.begin()

    def _replace_keys(self, task: TaskMessage, present: PeerSettings) -> None:
        saved = saved_message(self._store, TaskMessage, NEIGHBOURS)
        listed = settings_of_task(task)
        is_same = task.round == present.epoch and listed.keys == present.keys
        is_newer = saved is None or task.serial > saved.serial
        if is_same and is_newer and (saved is None or task.open != saved.open):
            self._store.file_paper(NEIGHBOURS, encode(task))
            self.letters.accept(present.keys, listed.open)

    def on_defect(self) -> None:
        """Discard the messages from peers."""
        self._arrived.clear()

    @property
    def is_done(self) -> bool | None:
        """Return whether the exchange is done; None without one."""
        return None if self.driver is None else self.driver.is_done

    @property
    def is_training(self) -> bool:
        """Return whether the device trains with peers."""
        return self.driver is not None

    def status(self) -> dict[str, Any]:
        """Return the state of the exchange; empty without one."""
        return {} if self.driver is None else {"neighbours": self.driver.status()}

    def limit_wait(self, timeout: float) -> float:
        """Return the longest wait that keeps the exchange on time."""
        if self.driver is None:
            return timeout
        return max(0.0, min(timeout, self.driver.next_due - self._session.now))

    def _apply(self, state: Any, task: Task) -> Any:  # noqa: ANN401 - the half's own type
        candidate = self._active.learner.apply_perishable(state, task)[0]
        return state if self._active.fault_of(candidate, state) else candidate


def peer_settings(config: Config, store: DeviceStore, method: str, run: int) -> PeerSettings | None:
    """Return the peers: as the run's aggregator listed them last, or as configured.

    Raises:
        ConfigError: An invalid neighbourhood; the message names the key.
    """
    if answered(CONTRACTS[method])[1].up is not Up.PEERS:
        return None
    listed = saved_message(store, TaskMessage, NEIGHBOURS)
    if listed is not None and listed.run == run:
        return settings_of_task(listed)
    section = config.extensions.get(NEIGHBOURS, NeighboursSection())
    return _configured(section, method) if section.keys else None


def checked_neighbours(config: Config) -> dict[str, str]:
    """Return the number of configured peers; refuse peers that could never be received.

    Raises:
        ConfigError: An invalid neighbourhood; the message names the key.
    """
    method = config.accept.methods[0]
    if answered(CONTRACTS[method])[1].up is not Up.PEERS:
        raise ConfigError(
            f"neighbours.keys: {method!r}, the first of accept.methods, has no neighbours",
            hint='methods = ["dfl_sgd"] in [accept], or dfl_gt',
        )
    return {NEIGHBOURS: str(len(_configured(config.extensions[NEIGHBOURS], method).keys))}


def saved_exchange(_config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return the place of the exchange as the store holds it; empty before the first."""
    learned = store.learned()
    kept = learned.leaves.get("gossip") if learned is not None else None
    if kept is None:
        return {}
    epoch, step = int(kept["epoch"]), int(kept["place"][0])
    return {NEIGHBOURS: {"epoch": epoch, "step": step, "last counted": dict(kept["last"])}}


def _configured(section: NeighboursSection, method: str) -> PeerSettings:
    try:
        return settings_of_section(section, method)
    except SchemaError as misfit:
        raise ConfigError(str(misfit)) from misfit
