"""Renew the running device's certificate, and keep the former one until a broker has accepted the new one.

The request waits for the network in a thread of its own. Everything else happens in ``turn``, and
the files decide what is next (``CertificateFiles``), so that a device continues where it was killed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import field
from random import Random
from typing import Any, Final, Protocol

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.extensions.certificates.certificate_request import (
    CertificateAnswerError,
    IssuedToDevice,
)
from edge_sdk.extensions.certificates.renewal_schedule import (
    BROKER,
    CLOCK,
    LONGEST_WAIT,
    PENDING,
    SHORTEST_WAIT,
    RenewalFailure,
    due_at,
    jitter_of,
    minute_of,
    summary,
    wait_after,
)
from edge_sdk.link.tls_files import mark_of
from edge_sdk.link.transport import RenewableLink

logger = logging.getLogger(__name__)

LOOK: Final = 60.0  # s between two looks at the files; less for a validity below 3.3 hours
LOOKS: Final = 200  # looks in a validity, at least
PATIENCE: Final = 300.0  # s after which a request that does not end counts as failed
REFUSALS: Final = 3  # connections that the broker refuses before the former certificate is tried
RENEWED: Final = "renewed certificate"
_UNREAD_VALIDITY: Final = 30 * 86_400.0  # s, assumed of a certificate that cannot be read


class UnusedError(Exception):
    """An error: the certificate was issued, and does not serve."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status  # BROKER or CLOCK


class Attempt:
    """One request, which waits for the network in a thread of its own.

    Args:
        request: Makes the request, and stores its answer.
        since: Monotonic seconds of its start.
    """

    def __init__(self, request: Callable[[], object], since: float) -> None:
        self.since = since
        self.error: Exception | None = None
        self._request = request
        self._thread = threading.Thread(target=self._run, name="certificate renewal", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._request()
        except Exception as error:  # noqa: BLE001 - no renewal may stop the agent
            self.error = error


class RunningAttempt(Protocol):
    """A request that was started."""

    since: float
    error: Exception | None

    @property
    def is_over(self) -> bool:
        """Return whether the request has ended."""


@dataclass(slots=True)
class CertificateRenewal:
    """Renew one device's certificate in time, and change the link over to it. Single-threaded."""

    device: str
    name: str  # common name of its certificate; with the certificate's end it decides the jitter
    files: CertificateFiles
    link: RenewableLink
    wall: Callable[[], float]  # returns the present time, Unix seconds
    # returns the function that requests the next certificate and stores it beside the present one.
    # It is called here, the function in another thread.
    prepare: Callable[[], Callable[[], object]]
    save: Callable[[bytes], None]  # stores a note for the next process
    rng: Random  # source of the back-off's jitter
    failure: RenewalFailure = field(default_factory=RenewalFailure)
    start: Callable[[Callable[[], object], float], RunningAttempt] = Attempt
    renewals: int = 0  # number of certificates that were put in place
    # returns whether a certificate is to be requested before it is due
    is_ordered: Callable[[], bool] = lambda: False
    # called when a request was answered with a certificate
    record_issued: Callable[[], None] = lambda: None
    _attempt: RunningAttempt | None = None
    _look_at: float = float("-inf")
    _retry_at: float | None = None
    _is_unconfirmed: bool = False
    _refusals: int = 0  # of the link, when the present file was put in place or the link was up
    _exchanges: int = 0
    _is_refused: bool = False  # the broker refuses every certificate that this device has
    _has_former: bool | None = None  # the former file is in place; None: the dates decide
    _reconnected: object = None  # mark of the file for which the link was reconnected

    def turn(self, now: float) -> None:
        """Run the due work; return at once.

        Args:
            now: Seconds of a monotonic clock.
        """
        has_ended = self._attempt is not None and self._end_attempt(self._attempt, now)
        if not (has_ended or self._is_unconfirmed or now >= self._look_at):
            return
        try:
            self._act(now)
        except (OSError, RuntimeError) as error:  # a full disk, a read-only folder, no thread
            self._fail(now, error)
            self._look_at = now + LOOK

    def _act(self, now: float) -> None:
        present = self.files.present()
        self._look_at = now + max(0.1, min(LOOK, self._validity() / LOOKS))
        if self._attempt is None and self.files.received() is not None:
            self._install(now)
            return
        self._settle(now)
        if self._attempt is None and self._may_begin(now) and self._is_due(present):
            self._attempt = self.start(self.prepare(), now)

    # --- requesting -------------------------------------------------------------------------------

    def _is_due(self, present: IssuedToDevice | None) -> bool:
        """Return whether to request a certificate.

        While two are kept, the broker decides between them first; two that have expired do not wait.
        One that the broker refuses may have expired: this clock may be behind.
        """
        if present is None or self._is_refused:
            return True
        wall = self.wall()
        if (former := self.files.former()) is not None:
            return wall >= max(present.until, former.until)
        return self.is_ordered() or wall >= due_at(
            present.since, present.until, jitter_of(self.name, present.until)
        )

    def _may_begin(self, now: float) -> bool:
        if self._retry_at is None:
            left = self.failure.retry - self.wall() if self.failure.failures else 0.0
            self._retry_at = now + max(0.0, min(left, self._validity() * LONGEST_WAIT))
        return now >= self._retry_at

    def _end_attempt(self, attempt: RunningAttempt, now: float) -> bool:
        error = attempt.error
        if not attempt.is_over:
            if now - attempt.since <= PATIENCE:
                return False
            error = TimeoutError(f"no end within {PATIENCE:.0f} s")
        elif error is None and self.files.received() is None:
            error = CertificateAnswerError("no certificate was stored")
        self._attempt = None
        if error is not None:
            self._fail(now, error)
        else:
            self.record_issued()
        return True

    def _fail(self, now: float, error: Exception) -> None:
        status = int(getattr(error, "status", 0))
        is_first = status == BROKER and self.failure.status != BROKER
        failures = 1 if is_first else self.failure.failures + 1
        present, wall = self.files.present(), self.wall()
        is_useless = present is None or wall >= present.until or self._is_refused
        is_expired = is_useless and not self.link.is_up and status != BROKER
        wait = wait_after(failures, self._validity(), self.rng, is_expired=is_expired)
        wait = max(wait, min(float(getattr(error, "retry_after", 0.0)), 86_400.0))
        self._retry_at = now + wait
        why = str(error) or type(error).__name__
        self._note(RenewalFailure(failures, why, status, wall + wait))
        do = self.failure.remedy(self.device)
        if status == PENDING:
            logger.warning(
                "certificate awaits approval %s", fields(why=why, wait=round(wait), do=do)
            )
        else:
            logger.warning("certificate not renewed %s", fields(why=why, wait=round(wait), do=do))

    def _note(self, failure: RenewalFailure) -> None:
        if failure != self.failure:
            self.failure = failure
            self.save(failure.written())

    # --- changing over ----------------------------------------------------------------------------

    def _install(self, now: float) -> None:
        """Put the received certificate in place, and connect with it.

        It takes the place of a refused one, never of the one that a broker has accepted before.
        """
        try:
            if self.files.former() is not None and self._is_former_in_place():
                self.files.exchange()
            is_installed = self.files.install()
        except CertificateAnswerError as error:  # OpenSSL does not accept the certificate
            self._fail(now, error)
            return
        present = self.files.present()
        if not is_installed or present is None:
            return
        self.renewals += 1
        self._exchanges, self._is_unconfirmed, self._has_former = 0, True, False
        self._is_refused = False
        until = minute_of(present.until)
        logger.info("certificate renewed %s", fields(file=self.files.path, until=until))
        if self.wall() >= due_at(present.since, present.until, 1.0):
            at = minute_of(self.wall())
            text = f"the new certificate is past its half at {at}: it arrived long ago, or this clock is wrong"
            self._fail(now, UnusedError(text, CLOCK))
        elif self.failure.status != BROKER:  # else the broker has to accept it first
            self._note(RenewalFailure())
        self._connect()

    def _settle(self, now: float) -> None:
        """Confirm the present certificate once the broker accepts it, or try the former one again."""
        self._is_unconfirmed = self.files.previous.exists()
        if self.link.is_up and not self.link.has_current_files:
            if mark_of(self.files.path) != self._reconnected:
                self._connect()
            return
        if self.link.is_up:
            self._refusals = self.link.refusals
            if self._is_unconfirmed:
                self._confirm(now)
            elif self._is_refused:
                self._is_refused = False
                self._note(RenewalFailure())
        elif self.link.refusals - self._refusals >= REFUSALS:
            if self.files.former() is not None:
                self._exchange()
            if self._exchanges >= 2 or self.files.former() is None:
                self._plan_another(now)

    def _plan_another(self, now: float) -> None:
        """Request another certificate after a wait: the broker refuses every one that there is.

        A long wait after earlier failures ends soon, for the certificate may have expired.
        """
        if self._is_refused or self._attempt is not None:
            return
        is_due = self._is_due(self.files.present())
        self._is_refused = True
        if self._may_begin(now) and not is_due:
            self._fail(now, UnusedError("the broker refuses the certificate", BROKER))
        elif self._retry_at is not None:
            soon = wait_after(1, self._validity(), self.rng)
            self._retry_at = min(self._retry_at, now + soon)

    def _exchange(self) -> None:
        self._has_former = not self._is_former_in_place()
        self.files.exchange()
        if self._exchanges == 0:
            do = "the former one is in place again; compare the broker's cafile and crlfile"
            logger.warning("certificate refused %s", fields(file=self.files.path, do=do))
        self._exchanges += 1
        self._connect()

    def _confirm(self, now: float) -> None:
        present, has_returned = self.files.present(), self._is_former_in_place()
        self.files.confirm()
        self._is_unconfirmed, self._exchanges, self._has_former = False, 0, None
        self._is_refused = False
        if has_returned:
            self._fail(now, UnusedError("the broker refuses the new certificate", BROKER))
        elif present is not None:
            if self.failure.status == BROKER:
                self._note(RenewalFailure())
            logger.info("certificate confirmed %s", fields(until=minute_of(present.until)))

    def _is_former_in_place(self) -> bool:
        if self._has_former is not None:
            return self._has_former
        present, other = self.files.present(), self.files.former()
        return present is not None and other is not None and other.since > present.since

    def _connect(self) -> None:
        self._reconnected, self._refusals = mark_of(self.files.path), self.link.refusals
        self.link.reconnect(RENEWED)

    # --- state ------------------------------------------------------------------------------------

    def _validity(self) -> float:
        present = self.files.present()
        validity = _UNREAD_VALIDITY if present is None else present.until - present.since
        return max(SHORTEST_WAIT, validity)

    def status(self) -> dict[str, Any]:
        """Return the certificate's state for the agent's status."""
        present = self.files.present()
        span = None if present is None else (present.since, present.until)
        found = summary(
            self.device,
            self.name,
            span,
            self.wall(),
            self.failure,
            is_unconfirmed=self.files.previous.exists(),
        )
        return {"certificate renewal": found | {"renewals": self.renewals}}
