"""Poll a local HTTP service with the standard library; every answer is one frame."""

from __future__ import annotations

import http.client
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.errors import ConfigError
from edge_sdk.sources.base import RawFrame
from edge_sdk.wire.link.broker_options import is_loopback

LARGEST = 4 << 20  # bytes of an answer
_PIECE = 65_536


@dataclass(frozen=True, slots=True)
class HttpService:
    """The address of a service.

    Attributes:
        url: ``http://`` or ``https://``.
        ca_file: Authority of an ``https`` service; None trusts the system's.
        token_file: File whose first line is a bearer token; read before every request.
        insecure: Allow a token over ``http://`` to a host that is not loopback.
    """

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse an address that cannot work, or that would show a token to the network.

        Raises:
            ConfigError: The message names the key.
        """
        parts = self.parts
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"source http: url: {self.url!r} is not an address",
                hint="such as http://host:8123/path",
            )
        if parts.username is not None:
            raise ConfigError(
                "source http: url: has a password in it", hint="put a token into token_file"
            )
        is_open = parts.scheme == "http" and not is_loopback(parts.hostname)
        if self.token_file is not None and is_open and not self.insecure:
            raise ConfigError(
                f"source http: token_file: http:// to {parts.hostname} would send the token unencrypted",
                hint="use https://, or set insecure = true",
            )

    @property
    def parts(self) -> SplitResult:
        """Return the parts of the address."""
        try:
            parts = urlsplit(self.url)
            parts.port  # noqa: B018 - raises if it is no port
        except ValueError as error:
            raise ConfigError(f"source http: url: {self.url!r}: {error}") from error
        return parts

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection that is not open yet.

        Raises:
            OSError: The authority's file cannot be read.
        """
        parts = self.parts
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=timeout)
        context = ssl.create_default_context(cafile=self.ca_file)
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)

    def headers(self) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            OSError: The token cannot be read.
        """
        found = {"Accept": "application/json", "User-Agent": "gridfed", "Connection": "close"}
        if self.token_file is not None:
            token = self.token_file.read_text("utf-8", errors="replace").partition("\n")[0].strip()
            found["Authorization"] = f"Bearer {token}"
        return found


@dataclass(slots=True)
class HttpPoll:
    """A feed of answers; redirects are not followed.

    Attributes:
        service: Address.
        every: Seconds between two requests.
        timeout: Longest wait for a whole answer, in seconds.
        clock: Clock of the machine.
        wait: Function that sleeps for so many seconds.
        rejected: Answers that were not accepted, by reason.
    """

    service: HttpService
    every: float
    timeout: float
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], object] = time.sleep
    rejected: Counter[str] = field(default_factory=Counter)
    _next: float = -float("inf")

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds; return the answer if a request was due.

        Raises:
            OSError: The service cannot be reached, or does not answer in time.
        """
        pause = self._next - self.clock.monotonic()
        if pause > 0:
            self.wait(min(pause, patience))
            return []
        body = self._fetch()
        self._next = self.clock.monotonic() + self.every
        return [] if body is None else [RawFrame(body, self.clock.wall() / 1000)]

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _fetch(self) -> bytes | None:
        end = self.clock.monotonic() + self.timeout
        link = self.service.connect(self.timeout)
        parts = self.service.parts
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            link.request("GET", path, headers=self.service.headers())
            answer = link.getresponse()
            if answer.status != http.client.OK:
                self.rejected[f"status {answer.status}"] += 1
                return None
            return self._body(answer, end)
        except (http.client.HTTPException, ValueError) as error:
            raise ConnectionError(f"no valid HTTP answer: {error!r}") from error
        finally:
            link.close()

    def _body(self, answer: http.client.HTTPResponse, end: float) -> bytes | None:
        pieces: list[bytes] = []
        size = 0
        while piece := answer.read1(_PIECE):
            size += len(piece)
            pieces.append(piece)
            if size > LARGEST:
                self.rejected["too large"] += 1
                return None
            if self.clock.monotonic() > end:
                raise TimeoutError(f"no whole answer within {self.timeout:g} s")
        return b"".join(pieces)
