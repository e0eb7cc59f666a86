"""Run the actions of a client; skip what met a defect of this program, also after a restart."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.session.agenda import Agenda
from edge_sdk.session.poison_messages import digest_of, is_defect
from edge_sdk.session.session import Session
from edge_sdk.training.active_run import GivenUp


class DefectGuard:
    """The guard around the actions of one client.

    Args:
        session: Session of the device, which keeps what is skipped.
        agenda: Its pending work.
    """

    def __init__(self, session: Session, agenda: Agenda) -> None:
        self._session, self._agenda = session, agenda

    def run(self, what: str, action: Callable[[], None], *number: object) -> None:
        """Run an action; after a defect skip it, and never repeat one that has a number.

        Args:
            what: Kind of the action: ``bundle``, ``task``, ``turns``, ``neighbours``,
                ``selection`` or ``rollout``.
            action: The action.
            number: Parts that identify what it works on.
        """
        digest = digest_of(what, *number)
        if number and self._session.set_aside.holds(digest):
            if what == "bundle":
                self._agenda.drop_bundle()
            return
        try:
            action()
        except Exception as error:
            if isinstance(error, GivenUp) or not is_defect(error):
                raise
            self._session.set_aside.add(what, digest, error, run=self._session.seen.run)
            self._drop(what)

    def _drop(self, what: str) -> None:
        """Discard what triggered a defect: a bundle, the open round's tasks, or peer messages."""
        if what == "bundle":
            self._agenda.drop_bundle()
        elif what == "neighbours":
            self._agenda.drop_letters()
        elif what not in ("selection", "rollout"):  # these are tried again later
            self._agenda.drop_round()
            self._session.clear_signals()
