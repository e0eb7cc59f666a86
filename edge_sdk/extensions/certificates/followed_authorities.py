"""Follow the authorities of TLS certificates that the root names in its list of keys.

The files of the configuration (``broker.ca_file``, ``ca.ca_file``) are changed where they hold an authority that
the root has named: then the authorities of the list take their place. Any other certificate in them stays. What
was named before is in a file of the state folder, written first, so that a kill leaves a step to be repeated.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.certificates.authority_certificates import (
    authority_key,
    certificates_of,
    digest_of,
    issuer_key,
    pem_of,
)
from edge_sdk.extensions.certificates.certificate_request import (
    CertificateAnswerError,
    IssuedToDevice,
)
from edge_sdk.extensions.certificates.renewal_schedule import SPREAD, jitter_of
from edge_sdk.extensions.certificates.section import ca_of
from edge_sdk.protocol.keys import write_atomically

logger = logging.getLogger(__name__)

FILE: Final = "authorities-followed.json"
_KEPT: Final = 16  # digests that are remembered


@dataclass(frozen=True, slots=True)
class NamedAuthorities:
    """Authorities that the root has named until now."""

    fleet: str
    named: tuple[str, ...] = ()  # SHA-256 of every authority that was named, the newest ones last
    # identifiers of the keys of those named last, the one that issues first
    keys: tuple[str, ...] = ()
    since: float = 0.0  # time at which another one was first, Unix seconds


def checked_authorities(listed: Sequence[bytes]) -> tuple[str, ...]:
    """Return the identifiers of the keys of authorities.

    Raises:
        Refused: MALFORMED if one is no certificate of an authority.
    """
    try:
        return tuple(authority_key(der) for der in listed)
    except CertificateAnswerError as error:
        raise Refused(Reason.MALFORMED, f"ca: {error}") from error


@dataclass(frozen=True, slots=True)
class FollowedAuthorities:
    """Files with the authorities that a device trusts."""

    path: Path  # file with the authorities that the root has named; it need not exist
    fleet: str
    files: tuple[Path, ...] = ()

    @classmethod
    def of(cls, state: Path, fleet: str, *files: Path | None) -> FollowedAuthorities:
        return cls(state / FILE, fleet, tuple(dict.fromkeys(one for one in files if one)))

    def load(self) -> NamedAuthorities:
        """Return the authorities that the root has named; none in another fleet."""
        try:
            found: Any = json.loads(self.path.read_text("utf-8"))
            if found["fleet"] == self.fleet:
                named, keys = (tuple(map(str, found[name])) for name in ("named", "keys"))
                return NamedAuthorities(self.fleet, named, keys, float(found["since"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("stored value rejected %s", fields(what=self.path.name, why=error))
        return NamedAuthorities(self.fleet)

    def follow(self, listed: Sequence[bytes], keys: tuple[str, ...], now: float) -> None:
        """Trust the authorities of a list of keys, and those that the root has never named.

        A file that cannot be written is logged, and tried again with the next list.

        Args:
            listed: Authorities, DER; empty to change nothing.
            now: Present time, Unix seconds.
        """
        if not listed:
            return
        before, digests = self.load(), [digest_of(der) for der in listed]
        named = tuple(dict.fromkeys((*before.named, *digests)))[-_KEPT:]
        since = before.since if before.keys[:1] == keys[:1] else now
        try:
            self._save(NamedAuthorities(self.fleet, named, keys, since))
            for file in self.files:
                self._replace(file, list(listed), named)
        except (OSError, CertificateAnswerError) as error:
            do = "make the files of ca_file and their folder writable for the agent"
            logger.warning("authority not stored %s", fields(why=error, do=do))

    def _replace(self, file: Path, listed: list[bytes], named: tuple[str, ...]) -> None:
        held = certificates_of(file.read_bytes()) if file.exists() else []
        others = [der for der in held if digest_of(der) not in named]
        wanted = [*listed, *others]
        if len(others) == len(held) or wanted == held:
            return
        write_atomically(file, pem_of(wanted), 0o644)
        trusted = ", ".join(digest_of(der)[:16] for der in wanted)
        logger.warning("authorities replaced %s", fields(file=file, trusted=trusted))

    def _save(self, found: NamedAuthorities) -> None:
        if found != self.load():
            write_atomically(self.path, json.dumps(asdict(found), indent=1).encode(), 0o600)

    def is_renewal_due(self, present: IssuedToDevice | None, now: float) -> bool:
        """Return whether a former authority's certificate needs early renewal.

        The devices of a fleet are spread over a tenth of the validity.

        Args:
            now: Present time, Unix seconds.
        """
        found = self.load()
        if present is None or len(found.keys) < 2:
            return False
        spread = (present.until - present.since) * SPREAD
        begin = found.since + spread * jitter_of(present.name, present.until)
        if now < begin <= now + 2 * spread:  # later ones are of a clock that was ahead
            return False
        return issuer_key(present.pem) in found.keys[1:]

    def record_issued(self, present: IssuedToDevice | None, now: float) -> None:
        """Wait before the next request, if this certificate is of the former authority again."""
        found = self.load()
        if present is None or issuer_key(present.pem) not in found.keys[1:]:
            return
        since = now + (present.until - present.since) * SPREAD
        self._save(NamedAuthorities(found.fleet, found.named, found.keys, since))


def follow_authorities(config: Config, listed: Sequence[bytes]) -> None:
    """Trust the authorities of a list of keys in the files that a configuration names.

    Raises:
        Refused: MALFORMED if one is no certificate of an authority.
    """
    keys = checked_authorities(listed)
    files = config.broker.ca_file, ca_of(config).ca_file
    FollowedAuthorities.of(config.state, config.fleet, *files).follow(listed, keys, time.time())


def trusted_digests(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each authority that is in all of these files."""
    held = [[digest_of(der) for der in certificates_of(file.read_bytes())] for file in files]
    return [one for one in held[0] if all(one in other for other in held)] if held else []
