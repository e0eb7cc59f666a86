"""Track the current peers of a device, and run the model exchange with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.methods.topology import PeerSettings, settings_of_task
from edge_sdk.peers.saved_decisions import LINK
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.announcements import saved_message
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import ActiveRun
from edge_sdk.training.bootstrap import NEIGHBOURS, peer_settings
from edge_sdk.training.training_transaction import TrainingTransaction
from edge_sdk.wire.contract.method import Task
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.messages import TaskMessage
from edge_sdk.wire.protocol.outbox_state import RetryPolicy

if TYPE_CHECKING:
    from edge_sdk.peers.driver import PeerDriver

_LONGEST = 900.0  # longest interval in seconds between two requests to a silent peer


class PeerMembership:
    """Sets up the exchange for every run and neighbourhood, and drives it.

    Attributes:
        driver: The exchange; None where the run's method has none.
    """

    def __init__(
        self,
        config: Config,
        *,
        store: DeviceStore,
        session: Session,
        agenda: Agenda,
        active: ActiveRun,
        transaction: TrainingTransaction,
    ) -> None:
        """Set up the exchange that the run in force requires.

        Raises:
            ConfigError: An invalid neighbourhood; the message names the key.
        """
        self._config, self._store, self._session = config, store, session
        self._agenda, self._active, self._transaction = agenda, active, transaction
        self.driver: PeerDriver | None = None
        self.set_up_exchange()

    def set_up_exchange(self) -> None:
        """Set up the exchange with the current peers, if the run's method has one.

        Raises:
            ConfigError: As the constructor.
        """
        role, seen = self._active.learner.role, self._session.seen
        self.driver = None
        settings = peer_settings(self._config, self._store, role.method, seen.run)
        if settings is None:
            self._session.accept_peers({}, {})
            return
        from edge_sdk.peers.driver import PeerDriver, PeerShell  # noqa: PLC0415 - few devices have peers

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
            agenda=self._agenda,
            store=self._store,
            shell=PeerShell(
                state=lambda: self._active.state,
                apply=self._apply,
                adopt=self._active.adopt,
                save=self._transaction.save_exchange,
            ),
            pace=RetryPolicy(
                max(seconds(self._config.timeouts.reply), settings.deadline / 4), _LONGEST
            ),
            kept=learned.leaves.get("gossip") if learned is not None and is_same_run else None,
        )

    def exchange(self) -> None:
        """Continue the exchange; a device without remaining budget only receives."""
        task = self._agenda.pop_peers()
        present = self.driver
        if task is not None and (present is None or task.round > present.settings.epoch):
            self._store.file_paper(NEIGHBOURS, encode(task))
            self.set_up_exchange()
        elif task is not None and present is not None:
            self._replace_keys(task, present.settings)
        if self.driver is None:
            return
        try:
            self.driver.serve()
        except BudgetSpent as error:
            self._active.accountant.stop(error)

    def _replace_keys(self, task: TaskMessage, present: PeerSettings) -> None:
        """Encrypt to other keys of the same peers; the exchange continues. An older list is ignored."""
        saved = saved_message(self._store, TaskMessage, NEIGHBOURS)
        listed = settings_of_task(task)
        is_same = task.round == present.epoch and listed.keys == present.keys
        is_newer = saved is None or task.serial > saved.serial
        if is_same and is_newer and (saved is None or task.open != saved.open):
            self._store.file_paper(NEIGHBOURS, encode(task))
            self._session.accept_peers(present.keys, listed.open)

    def limit_wait(self, timeout: float) -> float:
        """Return the longest wait that keeps the exchange on time."""
        if self.driver is None:
            return timeout
        return max(0.0, min(timeout, self.driver.next_due - self._session.now))

    def _apply(self, state: Any, task: Task) -> Any:  # noqa: ANN401 - the half's own type
        """Apply a task to the half; a state that fails the canary is rejected."""
        candidate = self._active.learner.apply_perishable(state, task)[0]
        return state if self._active.fault_of(candidate, state) else candidate
