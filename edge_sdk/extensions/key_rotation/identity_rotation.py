"""Replace a device's identity key: ordered by ``reenrol`` or ``gridfed-edge rotate``.

The former key signs everything until the aggregator has welcomed a hello that the new one has signed.
File and saved step decide what is next, so that a device continues where it was killed:

1. ``ORDERED``: the order is saved with its receipt. The new key is written beside the former one.
2. ``REQUESTED``: the EST server has answered a request with the new key, or the operator was given
   its line. Hellos are tried with the new key.
3. ``WELCOMED``: the aggregator knows the new key. It is put in place in one rename.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import is_set
from edge_sdk.config import Config
from edge_sdk.protocol.keys import (
    DeviceSigningKey,
    KeyFileError,
    Signer,
    generate_device_key,
    kid_of,
    load_device_key,
    save_public,
    save_signing_key,
)
from edge_sdk.protocol.messages import FloorMessage
from edge_sdk.protocol.outbox import Outbox
from edge_sdk.session.identity import (
    STEP,
    HelloAnswer,
    IdentityKeys,
    KeyReplacement,
    keys_for_request,
    next_key_file,
    succession_line,
)
from edge_sdk.store.second_count import renew_counts

logger = logging.getLogger(__name__)

UNORDERED, ORDERED, REQUESTED, WELCOMED = range(4)

TRIAL_EVERY: Final = 3600.0  # s between two hellos by a key that waits for approval
TRIALS: Final = 3  # times that such a hello is sent before the former key is used again
_RETRY: Final = 60.0  # s until a key that could not be written is tried again


class IdentityRotation(KeyReplacement):
    """The identity key that is to replace the one in use."""

    def __init__(self, identity: IdentityKeys) -> None:
        super().__init__(identity)
        self._config, self._store = identity.config, identity.store
        self.step = self._store.fact(STEP)
        self._file = next_key_file(self._config)
        self._next: DeviceSigningKey | None = None
        self._trial = b""
        self._is_trial_due = self._is_requesting = False
        self._trial_at: float | None = None
        self._retry_at = float("-inf")
        self._restore()

    # --- the order and the request ------------------------------------------------------------------

    def order(self) -> bool:
        """Begin a replacement unless one is under way; ``CommandLog.add`` saves the step."""
        self.step = self.step or ORDERED
        return True

    def order_here(self) -> str:
        """Begin a replacement by a command of the device itself. Repeatable after a kill.

        Returns:
            The line that the operator enrols; empty where the agent requests a certificate.

        Raises:
            OSError: The new key cannot be written.
        """
        self._save(self.step or ORDERED)
        key = self._next or self._make()
        if self.is_over_est:
            return ""
        self._save(REQUESTED)
        return succession_line(self._config, key, self.identity.key)

    @property
    def is_over_est(self) -> bool:
        broker = self._config.broker
        is_tls = bool(broker.cert_file) and broker.url.startswith("mqtts:")
        return is_tls and is_set(self._config.tables, "ca.url")

    @property
    def is_request_due(self) -> bool:
        return self.step == ORDERED and self._next is not None and self.is_over_est

    def for_request(self) -> tuple[Signer, Signer | None]:
        self._is_requesting = self._next is not None
        return (self.identity.key, None) if self._next is None else (self._next, self.identity.key)

    def record_issued(self) -> None:
        """Record that the EST server has answered the request with the keys of ``for_request``."""
        if self._is_requesting and self.step == ORDERED:
            self._save(REQUESTED)
            self._is_trial_due = True

    def advance(self, now: float, outbox: Outbox) -> bool:
        """Make the new key that was ordered; return whether a hello is due for it."""
        self._advance(now)
        hello = outbox.hello
        is_over = (
            self.has_trial
            and hello is not None  # whose reference is computed for a trial only: it is a digest
            and self.is_trial_over(hello.ref, hello.attempts)
        )
        return is_over or (outbox.is_ready and self.begin_trial(now))

    def _advance(self, now: float) -> None:
        if self.step != ORDERED or now < self._retry_at:
            return
        try:
            key = self._next or self._make()
        except OSError as error:
            self._retry_at = now + _RETRY
            logger.warning("identity key not replaced %s", fields(why=error))
            return
        if not self.is_over_est:
            self._save(REQUESTED)
            line = succession_line(self._config, key, self.identity.key)
            do = "gridfed-aggregator enrol --from-file FILE, with this line in it"
            logger.warning("identity key awaits approval %s", fields(line=line, do=do))

    def _make(self) -> DeviceSigningKey:
        key = generate_device_key(self._config.identity.curve)
        save_signing_key(self._file, key)
        self._next = key
        return key

    # --- trying the new key -------------------------------------------------------------------------

    def try_next(self) -> None:
        self._is_trial_due = self.step == REQUESTED and self._next is not None

    def begin_trial(self, now: float) -> bool:
        """Return whether to send a hello that the new key signs: at once, and then once an hour.

        Args:
            now: Seconds of a monotonic clock.
        """
        if self.step != REQUESTED or self._next is None:
            return False
        if self._trial_at is None:
            self._trial_at = now + TRIAL_EVERY
        if not self._is_trial_due and now < self._trial_at:
            return False
        self._trial_at, self._is_trial_due = now + TRIAL_EVERY, True
        return True

    def hello_signer(self, ref: bytes) -> Signer:
        if self._is_trial_due and self._next is not None:
            self._trial, self._is_trial_due = ref, False
        return self._next if self._next is not None and ref == self._trial else self.identity

    @property
    def has_trial(self) -> bool:
        """Return whether the new key has signed a hello that is not answered yet."""
        return self._next is not None and bool(self._trial)

    def is_trial(self, ref: bytes) -> bool:
        return self._next is not None and bool(ref) and ref == self._trial

    def is_trial_over(self, ref: bytes, attempts: int) -> bool:
        """Return whether the hello of the new key was not answered in time; the former key is used again."""
        if not self.is_trial(ref) or attempts <= TRIALS:
            return False
        self._trial = b""
        return True

    def receive(self, answer: HelloAnswer, is_welcome: Callable[[HelloAnswer], bool]) -> bool:
        """Use the new key from now on, if this welcomes a hello that it has signed."""
        if not self.is_trial(answer.hello):
            return False
        if is_welcome(answer):
            self.adopt()
            return True
        if isinstance(answer, FloorMessage):
            self.try_next()
        return False

    def adopt(self) -> None:
        """Use the new key from now on: the aggregator has welcomed it. Repeatable after a kill.

        Raises:
            OSError: The file cannot be renamed; the next start does it.
        """
        if self._next is None:
            return
        self._store.file_paper("key", kid_of(self._next.public), **{STEP: WELCOMED})
        self.step = WELCOMED
        self._put_in_place(self._next)
        self.identity.reconnect()

    def _put_in_place(self, key: DeviceSigningKey) -> None:
        former = self.identity.key
        renew_counts(self._config.counted_in, former, key)
        self.identity.use(key)
        self._next, self._trial = None, b""
        if self._file.exists():
            self._file.replace(self._config.keys.device)
        save_public(self._config.keys.device.with_suffix(".pub"), key.public)
        self._save(UNORDERED)
        names = {"key": kid_of(key.public).hex(), "former": kid_of(former.public).hex()}
        logger.info("identity key replaced %s", fields(**names))

    # --- after a start ------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Continue a replacement that an earlier process began.

        A rename that outlived its record in a power cut shows in the recorded key.
        """
        self._next = _read(self._file)
        if self.step == WELCOMED and self._next is not None:
            self._put_in_place(self._next)
        elif self._next is not None:
            self.step = self.step or ORDERED
        elif self.step:
            recorded, kid = self._store.paper("key"), kid_of(self.identity.public)
            has_ended = self.step == WELCOMED or recorded not in (None, kid)
            self._store.file_paper("key", kid, **{STEP: UNORDERED if has_ended else ORDERED})
            self.step = UNORDERED if has_ended else ORDERED

    def _save(self, step: int) -> None:
        self._store.set_facts(**{STEP: step})
        self.step = step


def _read(file: Path) -> DeviceSigningKey | None:
    try:
        return load_device_key(file) if file.exists() else None
    except KeyFileError:
        return None


def pending_step(config: Config, step: int) -> str:
    """Return the pending step of a key replacement, for people."""
    key, former = keys_for_request(config)
    return step_text(step, "" if former is None else succession_line(config, key, former))


def step_text(step: int, line: str) -> str:
    """Return the pending step of a key replacement; empty if none is in progress.

    Args:
        line: The operator's line of the new key.

    >>> step_text(UNORDERED, ""), step_text(ORDERED, "")
    ('', 'a new key is requested from the EST server')
    """
    return {
        ORDERED: "a new key is requested from the EST server",
        REQUESTED: f"a new key awaits its first welcome; for gridfed-aggregator enrol: {line}",
        WELCOMED: "a new key is put in place at the next start",
    }.get(step, "")
