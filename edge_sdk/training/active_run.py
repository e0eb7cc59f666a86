"""Hold the active bundle, its learned state, and the change to another bundle or run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.bundle import BundleRollbackError
from edge_sdk.config import Config
from edge_sdk.errors import EdgeError, Reason, Refused
from edge_sdk.forecasting.series import Series
from edge_sdk.methods.local_sgd import LocalState
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import CONTRACTS, Ask, Contract, answered
from edge_sdk.session.agenda import Agenda, FoundBundle
from edge_sdk.session.manifest_checks import ManifestExpectation
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.bootstrap import of_bundle, recall, set_up, take_over
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.privacy_accountant import PrivacyAccountant
from edge_sdk.training.run_role import RunnableBundle, RunShell

logger = logging.getLogger(__name__)


RETURNED = "models returned"
"""Name of the counter of rejected candidates, in whose place the last good parameters stay."""
RETURNS = "returns"
"""Name of the stored fact that keeps that count across restarts."""
TRAINED_UNTIL = "trained until"
"""Saved fact: time of the newest window at the last update, Unix seconds."""
OWN = 2**40
"""First number of the rounds that a device sets itself; no server reaches it."""

Residual = Mapping[str, Any]
"""Leaves of the rounding error of updates, which an encoding adds to the next one."""


class GivenUp(Exception):  # noqa: N818 - raised between two batches: nothing has happened
    """Training was abandoned because its result is no longer needed."""


class ActiveRun:
    """The active bundle, method and learned state; session and account follow every change.

    Attributes:
        accountant: Privacy account under the mechanism of that role.
        state: Learned state of the device half.
        local_state: State of the local rounds since, on a copy; None if there were none.
        residual: Rounding error of the run's updates that has not been sent yet; None if exact.
    """

    learner: ModelRuntime  # model runtime of the bundle, in its role in the run

    def __init__(
        self,
        bundle: RunnableBundle,
        config: Config,
        shell: RunShell,
        *,
        store: DeviceStore,
        session: Session,
        agenda: Agenda,
    ) -> None:
        """Activate a bundle for the run announced last, and restore the learned state.

        Raises:
            EdgeError: The bundle cannot be used here.
        """
        self._config, self._shell = config, shell
        self._store, self._session, self._agenda = store, session, agenda
        self.accountant = PrivacyAccountant(store, session, shell.clock)
        self.state: Any = None
        self.local_state: LocalState | None = None
        self.residual: Residual | None = None
        self._is_judged, self._returns_before = False, store.fact(RETURNS)
        self._put(bundle, of_bundle(session.announced, bundle))
        self.recall()

    @property
    def latest(self) -> Any:  # noqa: ANN401 - the half's own type, or what was learned alone
        return self.state if self.local_state is None else self.local_state

    def adopt(self, state: Any, residual: Residual | None = None) -> None:  # noqa: ANN401 - as above
        """Adopt the state after a round of the fleet; the state of local rounds is discarded."""
        self.state, self.local_state, self.residual = state, None, residual

    def advance(self, state: Any) -> None:  # noqa: ANN401 - the half's own type
        """Adopt the state within a round; the state of local rounds is kept."""
        self.state = state

    def adopt_local(self, state: LocalState) -> None:
        """Adopt the state after a local round, until the next round of the fleet."""
        self.local_state = state

    # --- the last good parameters -----------------------------------------------------------------

    def fault_of(self, candidate: Any, present: Any = None) -> str:  # noqa: ANN401 - as above
        """Return why a candidate must not replace the state in use, and count it; empty if it may.

        Args:
            candidate: State after training, mixing or adopting a common model.
            present: State that it would replace, with the count saved at once; None for the half's
                state, with which the caller saves ``returns``.
        """
        found = self.learner.fault_of(candidate, self.state if present is None else present)
        if not found:
            self._is_judged = self.learner.is_measurable()
            return ""
        self._count_return(found)
        if present is not None:
            self._store.set_facts(**self.returns)
        return found

    def last_good(self) -> Any:  # noqa: ANN401 - the half's own type
        """Return the state in use as it was saved, without the steps of an open split round."""
        return type(self.state).from_arrays(self.state.arrays())

    @property
    def returns(self) -> dict[str, int]:
        """Number of rejected candidates, as a fact to be saved."""
        return {RETURNS: self._session.counts[RETURNED] + self._returns_before}

    def test_present(self) -> None:
        """Test a state that was adopted before there were windows to test it on.

        A faulty state is replaced by the bundle's initial vector, with new personal layers.
        """
        if self._is_judged or not self.learner.is_measurable():
            return
        self._is_judged = True
        first = self.learner.first_state()
        if found := self.learner.fault_of(self.state, first):
            self._count_return(found)
            self._store.set_facts(**self.returns)
            self.adopt(first)

    def _count_return(self, why: str) -> None:
        self._session.count(RETURNED)
        logger.warning("parameters restored %s", fields(why=why))

    # --- contract of the run ----------------------------------------------------------------------

    @property
    def contract(self) -> Contract:
        return CONTRACTS[self.learner.role.method]

    @property
    def ask(self) -> Ask:
        return answered(self.contract)[1]

    @property
    def shares(self) -> bool:
        """Return whether updates are sent to the fleet: none is where no layer is shared."""
        return self.learner.spec.shared_size > 0

    @property
    def is_common(self) -> bool:
        """Return whether all devices are asked at once: a newer round then replaces an older."""
        return not self.ask.personal

    # --- bundles and runs -------------------------------------------------------------------------

    def follow(self, found: FoundBundle) -> bool:
        """Activate an announced run; install its bundle first if it is another one.

        Returns:
            True if it is active; a bundle that cannot run here changes nothing.
        """
        self._agenda.drop_bundle()
        layout = self.learner.spec.whole_digest
        try:
            bundle = take_over(self._config, found, self.learner.bundle)
            if self._session.has_other_run:
                self._check_streams(bundle.manifest)
            self._put(bundle, found.announced, self.learner.series)
        except (EdgeError, Refused) as error:
            self._session.count("bundles refused")
            about = {"run": found.announced.run, "name": found.announced.name}
            logger.warning("bundle refused %s", fields(**about, why=error))
            for event in self._session.refuse_bundle(found, _reason_of(error)):
                self._agenda.add(event)
            return False
        if found.announced.run != self._session.seen.run:
            self._agenda.begin_run()
        self._session.adopt(found)
        self.recall()
        if self.learner.spec.whole_digest != layout:
            self.local_state = None  # it fits the old layout only
        announced = found.announced
        details = {"run": announced.run, "bundle": announced.name, "method": announced.method}
        logger.info("run joined %s", fields(**details))
        return True

    def _check_streams(self, manifest: Manifest) -> None:
        if self._shell.streams is None:
            return
        given = self._shell.streams(manifest)
        lost = [name for name in manifest.required_streams if name not in given]
        if lost:
            raise Refused(Reason.NO_WINDOWS, f"{', '.join(lost)}: no source")

    def recall(self) -> None:
        """Restore the saved state, if it was trained for this layout."""
        self.state, learned = recall(self.learner, self._store)
        saved = learned.leaves.get("residual") if learned is not None else None
        self.residual = saved
        self._is_judged = False
        if learned is not None and learned.run == self._session.seen.run:
            turn = (learned.round, *learned.leaves.get("turn", (0, 0)))
            self._session.parts.inbox.record_trained(turn, learned.version)

    def restart(self) -> None:
        """Discard local training since a store was lost: nothing is released under its noise."""
        self.learner.forget()
        self.local_state = None
        self.recall()

    def _put(
        self,
        bundle: RunnableBundle,
        announced: m.BundleMessage | None,
        series: Series | None = None,
    ) -> None:
        learner = set_up(
            self._config,
            self._store,
            bundle,
            announced,
            self._shell,
            present=series,
        )
        self.learner = learner
        self.accountant.begin(learner.mechanism)
        self._agenda.finish()
        spec, most = learner.spec, self._config.accept.max_steps
        signed = learner.manifest.training.limits
        wanted = ManifestExpectation(spec.digest, spec.shared_size, self.contract, most, signed)
        self._session.expect(wanted, installed=bundle.digest)


def _reason_of(error: EdgeError | Refused) -> Reason:
    """Return the reason that is reported for a bundle that cannot be used here."""
    if isinstance(error, Refused):
        return error.reason
    is_older = isinstance(error, BundleRollbackError)
    return Reason.ROLLBACK if is_older else Reason.UPGRADE_REQUIRED
