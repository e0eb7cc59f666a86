"""Find a broker or start one: the configured one, else Mosquitto, else the embedded one.

A broker that we start is for demonstration, tests and one machine: it binds loopback, unless it is
Mosquitto with client certificates. A fleet has its own; see ``docs/brokers.md``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from aggregator.brokers.mosquitto import (
    TlsFiles,
    check_mosquitto_config,
    is_loopback,
    mosquitto_config,
)
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.wire.errors import LinkError

__all__ = [
    "BrokerProcess",
    "TlsFiles",
    "check_mosquitto_config",
    "embedded_config",
    "find",
    "mosquitto_config",
    "probe",
    "start",
]

STARTING: Final = 15.0  # s until a broker must answer
STOPPING: Final = 5.0  # s until it is killed
ATTEMPTS: Final = 3  # a free port may be taken by another before the broker binds it
SEGMENT_BYTES: Final = 32 * 1024 * 1024
SEGMENTS: Final = 8
LARGEST: Final = 4 * 1024 * 1024
CONNACK: Final = 0x20


def embedded_config(port: int, port_v4: int, *, host: str = "127.0.0.1") -> str:
    """Write the embedded broker's configuration: MQTT 5 on one port, 3.1.1 on the other.

    Args:
        port: For MQTT 5.
        port_v4: For MQTT 3.1.1.
        host: Must be loopback.

    Raises:
        LinkError: The address is not loopback. One malformed packet from anybody ends the MQTT 5
            port, there are no access rules, and no client certificate is looked at.
    """
    if not is_loopback(host):
        raise LinkError(
            f"the embedded broker does not listen on {host}: it has no access rules and one bad "
            "packet stops it; use Mosquitto for anything but this machine"
        )
    head = (
        "id = 0\n[router]\nid = 0\nmax_connections = 10010\nmax_outgoing_packet_count = 200\n"
        f"max_segment_size = {SEGMENT_BYTES}\nmax_segment_count = {SEGMENTS}\n"
    )
    return head + "".join(
        f'[{version}.1]\nname = "{version}"\nlisten = "{host}:{number}"\n'
        f"next_connection_delay_ms = 0\n[{version}.1.connections]\n"
        f"connection_timeout_ms = 60000\nmax_payload_size = {LARGEST}\n"
        "max_inflight_count = 100\ndynamic_filters = true\n"
        for version, number in (("v5", port), ("v4", port_v4))
    )


def probe(url: str, *, protocol: int = 5, tls: TlsFiles | None = None, patience: float = 2) -> bool:
    """Whether a broker answers CONNECT. An open port is no proof: a broker can die behind it.

    With TLS and no client certificate to show, only the TCP connection is tried.
    """
    parts = urlsplit(url)
    port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
    try:
        with socket.create_connection((parts.hostname or "", port), patience) as plain:
            if parts.scheme != "mqtts":
                return _answers(plain, protocol)
            if tls is None or tls.probe_certificate is None:
                return True
            with _probe_context(tls).wrap_socket(plain, server_hostname=parts.hostname) as secret:
                return _answers(secret, protocol)
    except OSError:
        return False


def _probe_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=tls.authority)
    if tls.probe_certificate is not None:
        context.load_cert_chain(tls.probe_certificate, tls.probe_key)
    return context


def _answers(connection: socket.socket, protocol: int) -> bool:
    """Send CONNECT (clean session, keep-alive 10 s) and read the reason of the CONNACK."""
    name = f"_probe-{secrets.token_hex(6)}".encode()
    rest = b"\x00\x04MQTT" + bytes([protocol, 0x02]) + struct.pack("!H", 10)
    rest += (b"\x00" if protocol == 5 else b"") + struct.pack("!H", len(name)) + name
    connection.sendall(bytes([0x10, len(rest)]) + rest)
    answer = b""
    while len(answer) < 4:
        piece = connection.recv(64)
        if not piece:
            return False
        answer += piece
    connection.sendall(b"\xe0\x00")
    return answer[0] == CONNACK and answer[3] == 0


class BrokerProcess:
    """A broker that was found or started. Leaving the context stops what was started.

    Attributes:
        kind: ``configured``, ``mosquitto`` or ``embedded``.
        url: Where MQTT 5 is spoken.
        url_v4: Where MQTT 3.1.1 is spoken; the embedded broker needs a port for each.
        sentence: Which broker it is and why, for a person.
    """

    def __init__(
        self,
        kind: str,
        url: str,
        *,
        sentence: str,
        url_v4: str = "",
        command: tuple[str, ...] = (),
        folder: Path | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.kind = kind
        self.url = url
        self.url_v4 = url_v4 or url
        self.sentence = sentence
        self._command = command
        self._folder = folder
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        if command:
            self._launch()

    @property
    def pid(self) -> int | None:
        """The child's process id; None if we started none or it is gone."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def healthy(self) -> bool:
        """Whether it answers a real CONNECT with a CONNACK, in both protocols where that differs.

        The embedded broker's MQTT 5 half can be dead behind an open port; it may also drop one
        connection that meets another one's end, so that only two refusals in a row count.
        """
        return self._answers_now() or (self.pid is not None and self._answers_now())

    def _answers_now(self) -> bool:
        if self._command and self.pid is None:
            return False
        if self.url_v4 != self.url and not probe(self.url_v4, protocol=4):
            return False
        return probe(self.url, protocol=5, tls=self._tls) or (
            self.kind == "configured" and probe(self.url, protocol=4)
        )

    def ensure(self) -> bool:
        """Restart our child if it no longer answers; True if it was restarted.

        Call it every few seconds.

        Raises:
            LinkError: It does not come back.
        """
        if not self._command or self.healthy():
            return False
        self.kill()
        self._launch()
        return True

    def restart(self) -> None:
        """Start the child again on the same ports.

        Raises:
            LinkError: It does not come up.
        """
        self.stop()
        self._launch()

    def stop(self) -> None:
        """End the child politely, then by force. Does nothing to a broker we did not start."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the child at once, as a power cut would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        """Stay as started."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what was started."""
        self.stop()

    def _launch(self) -> None:
        assert self._folder is not None
        source = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own child
                [sys.executable, "-P", "-m", "aggregator.brokers.broker_child", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
            )
        until = time.monotonic() + STARTING
        while not self.healthy():
            if self.pid is None or time.monotonic() > until:
                self.kill()
                raise LinkError(f"the {self.kind} broker does not start: {self._last_words()}")
            time.sleep(0.05)

    def _last_words(self) -> str:
        assert self._folder is not None
        files = (self._folder / "broker.log", self._folder / "mosquitto.log")
        lines = [
            ln for f in files if f.exists() for ln in f.read_text(errors="replace").split("\n")
        ]
        return " | ".join([line for line in lines if line][-3:]) or "it said nothing"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOPPING)
        if process.stdin is not None:
            process.stdin.close()


def mosquitto_program() -> str | None:
    """Where Mosquitto is installed; its usual folder is not on every user's path."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def has_embedded() -> bool:
    """Whether the embedded broker is installed (the ``sim`` extra)."""
    return find_spec("iotcore") is not None


def start(
    kind: str = "auto",
    *,
    folder: Path,
    port: int = 0,
    tls: TlsFiles | None = None,
    access: Path | None = None,
) -> BrokerProcess:
    """Start a broker on loopback and wait until it answers.

    Args:
        kind: ``mosquitto``, ``embedded``, or ``auto`` for the first of these that is installed.
        folder: For its configuration, sessions and log; made if missing.
        port: 0 for a free one. The embedded broker takes the next port too, for MQTT 3.1.1.
        tls: Mosquitto with client certificates.
        access: Its ACL file.

    Raises:
        LinkError: None is installed, or it does not start.
    """
    chosen = _choose(kind) if kind == "auto" else kind
    if chosen not in {"mosquitto", "embedded"}:
        raise LinkError(f"{kind!r} is no broker we can start: auto, mosquitto or embedded")
    if chosen == "embedded" and tls is not None:
        raise LinkError("the embedded broker does not look at client certificates; use Mosquitto")
    for number in (port, port + 1)[: 2 if chosen == "embedded" else 1] if port else ():
        _require_free(number)
    if not folder.exists():  # what is queued there are models and updates
        make_private_folder(folder)
    for attempt in range(ATTEMPTS):
        try:
            if chosen == "mosquitto":
                return _start_mosquitto(folder, port or _free_port(), tls, access)
            return _start_embedded(folder, port or _free_port(), port + 1 if port else _free_port())
        except LinkError:
            if port or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError  # the last attempt returned or raised


def find(
    url: str = "auto", *, folder: Path, port: int = 0, tls: TlsFiles | None = None
) -> BrokerProcess:
    """Take the configured broker, or start the first kind that is installed.

    Args:
        url: ``auto``, or the address of a broker; that one is used as it is and never stopped.
        folder: Where a broker that is started keeps its files.
        port: Of a broker that is started; 0 for a free one.
        tls: As in `start`.

    Raises:
        LinkError: Nothing is configured and nothing can be started.
    """
    if url == "auto":
        return start("auto", folder=folder, port=port, tls=tls)
    return BrokerProcess("configured", url, sentence=f"Broker: {url}, as configured.", tls=tls)


def _choose(kind: str) -> str:
    if mosquitto_program() is not None:
        return "mosquitto"
    if has_embedded():
        return "embedded"
    raise LinkError(
        f"broker = {kind!r} found none: install mosquitto, or the embedded broker with "
        "pip install 'gridfed[sim]', or configure a broker's address"
    )


def _start_mosquitto(
    folder: Path, port: int, tls: TlsFiles | None, access: Path | None
) -> BrokerProcess:
    program = mosquitto_program()
    if program is None:
        raise LinkError("mosquitto is not installed")
    config = folder / "mosquitto.conf"
    config.write_text(mosquitto_config(port, folder, tls=tls, access=access), encoding="utf-8")
    url = f"{'mqtts' if tls else 'mqtt'}://127.0.0.1:{port}"
    return BrokerProcess(
        "mosquitto",
        url,
        sentence=f"Broker: Mosquitto ({program}) at {url}, with a configuration of our own.",
        command=("mosquitto", program, str(config)),
        folder=folder,
        tls=tls,
    )


def _start_embedded(folder: Path, port: int, port_v4: int) -> BrokerProcess:
    if not has_embedded():
        raise LinkError("the embedded broker is not installed: pip install 'gridfed[sim]'")
    config = folder / "embedded.toml"
    config.write_text(embedded_config(port, port_v4), encoding="utf-8")
    url, url_v4 = f"mqtt://127.0.0.1:{port}", f"mqtt://127.0.0.1:{port_v4}"
    return BrokerProcess(
        "embedded",
        url,
        url_v4=url_v4,
        sentence=f"Broker: embedded at {url} (MQTT 3.1.1 at {url_v4}); for this machine only.",
        command=("embedded", str(config)),
        folder=folder,
    )


def _require_free(port: int) -> None:
    """Refuse a port that somebody else has: a broker's own words for it are hard to read.

    Raises:
        LinkError: It is taken.
    """
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as brokers do
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            raise LinkError(f"port {port} cannot be used: {error.strerror or error}") from error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
