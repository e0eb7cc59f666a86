"""Poll a local HTTP service with the standard library; every answer is one frame."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import FramedLink, RawFrame
from edge_sdk.extensions.sources.interface import Interface
from edge_sdk.extensions.sources.json_values import JsonSourceSection, json_decoder, json_names
from edge_sdk.link.broker_options import is_loopback

LARGEST = 4 << 20  # bytes of an answer
_PIECE = 65_536


@dataclass(frozen=True, slots=True)
class HttpService:
    """The address of a service."""

    url: str  # ``http://`` or ``https://``
    ca_file: Path | None = None  # authority of an ``https`` service; None trusts the system's
    # file whose first line is a bearer token; read before every request
    token_file: Path | None = None
    insecure: bool = False  # allow a token over ``http://`` to a host that is not loopback
    source: str = "http"  # type of the source, for messages

    def __post_init__(self) -> None:
        """Refuse an address that cannot work, or that would show a token to the network.

        Raises:
            ConfigError: The message names the key.
        """
        parts = self.parts
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"source {self.source}: url: {self.url!r} is not an address",
                hint="such as http://host:8123/path",
            )
        if parts.username is not None:
            raise ConfigError(
                f"source {self.source}: url: has a password in it",
                hint="put a token into token_file",
            )
        is_open = parts.scheme == "http" and not is_loopback(parts.hostname)
        if self.token_file is not None and is_open and not self.insecure:
            raise ConfigError(
                f"source {self.source}: token_file: http:// to {parts.hostname} would send the token"
                " unencrypted",
                hint="use https://, or set insecure = true",
            )

    @property
    def parts(self) -> SplitResult:
        try:
            parts = urlsplit(self.url)
            parts.port  # noqa: B018 - raises if it is no port
        except ValueError as error:
            raise ConfigError(f"source {self.source}: url: {self.url!r}: {error}") from error
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
        found = {"Accept": "application/json", "User-Agent": "gridfed", "Connection": "close"}
        if self.token_file is not None:
            found["Authorization"] = f"Bearer {self.token()}"
        return found

    def token(self) -> str:
        """Return the token; empty without a file.

        Raises:
            OSError: The file cannot be read.
        """
        if self.token_file is None:
            return ""
        return self.token_file.read_text("utf-8", errors="replace").partition("\n")[0].strip()


class _TimedSocket(io.RawIOBase):
    """Reads a socket until a moment, in however small pieces the other end sends."""

    def __init__(
        self, raw: io.RawIOBase, channel: socket.socket, left: Callable[[], float]
    ) -> None:
        self._raw, self._channel, self._left = raw, channel, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - a writable buffer
        self._channel.settimeout(self._left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedAnswer(http.client.HTTPResponse):
    """An answer whose headers and body together have a time limit."""

    def __init__(self, left: Callable[[], float], channel: socket.socket, **options: Any) -> None:  # noqa: ANN401
        super().__init__(channel, **options)
        self.fp = io.BufferedReader(_TimedSocket(self.fp.detach(), channel, left))


@dataclass(slots=True)
class HttpPoll:
    """A feed of answers; redirects are not followed."""

    service: HttpService
    every: float  # seconds between two requests
    timeout: float  # longest wait for a whole answer, in seconds
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], object] = time.sleep  # function that sleeps for so many seconds
    # answers that were not accepted, by reason
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
        timed = partial(_TimedAnswer, partial(self._left, end))
        link.response_class = cast("type[http.client.HTTPResponse]", timed)
        parts = self.service.parts
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            link.request("GET", path, headers=self.service.headers())
            answer = link.getresponse()
            if answer.status != http.client.OK:
                self.rejected[f"status {answer.status}"] += 1
                return None
            return self._body(answer)
        except (http.client.HTTPException, ValueError) as error:
            raise ConnectionError(f"no valid HTTP answer: {error!r}") from error
        finally:
            link.close()

    def _left(self, end: float) -> float:
        if (left := end - self.clock.monotonic()) > 0:
            return left
        raise TimeoutError(f"no whole answer within {self.timeout:g} s")

    def _body(self, answer: http.client.HTTPResponse) -> bytes | None:
        pieces: list[bytes] = []
        size = 0
        while piece := answer.read1(_PIECE):
            size += len(piece)
            pieces.append(piece)
            if size > LARGEST:
                self.rejected["too large"] += 1
                return None
        return b"".join(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSourceSection(JsonSourceSection):
    """``type = "http"``: JSON of a service on the local network, polled."""

    poll_interval: Duration = "15m"  # polling interval, at least 1s
    timeout: Duration = "10s"  # longest wait for a whole answer
    token_file: Path | None = None  # file with a bearer token in its first line


def _feed(section: HttpSourceSection) -> FramedLink:
    interval = seconds(section.poll_interval)
    if interval < 1.0:
        raise ConfigError(f"source http: poll_interval: {section.poll_interval} is below 1s")
    service = HttpService(section.url, section.ca_file, section.token_file, section.insecure)
    return HttpPoll(service, interval, seconds(section.timeout))


HTTP = Interface("http", HttpSourceSection, _feed, json_decoder, ahead=16, names=json_names)
