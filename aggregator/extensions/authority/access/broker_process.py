"""Find or start a broker: the configured one, else Mosquitto, else the embedded one.

A broker started here is for demonstrations, tests and a single machine: it binds loopback, unless
it is Mosquitto with client certificates. A fleet uses its own; see ``docs/brokers.md``.
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
from typing import Final, Self
from urllib.parse import urlsplit

from aggregator.extensions.authority.access.mosquitto import (
    TlsFiles,
    access_files,
    check_mosquitto_config,
    is_loopback,
    mosquitto_config,
)
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import LinkError
from edge_sdk.link.tls_files import load

__all__ = [
    "BrokerProcess",
    "TlsFiles",
    "access_files",
    "check_mosquitto_config",
    "embedded_config",
    "find",
    "mosquitto_config",
    "probe",
    "start",
]

STARTING: Final = 15.0  # s, time-out of the first answer
STOPPING: Final = 5.0  # s before it is killed
SILENCE: Final = 60.0  # s without an answer after which a Mosquitto that runs is restarted
ATTEMPTS: Final = 3  # another process may take a free port before the broker binds it
SEGMENT_BYTES: Final = 32 * 1024 * 1024
SEGMENTS: Final = 8
LARGEST: Final = 4 * 1024 * 1024
CONNACK: Final = 0x20


def embedded_config(port: int, port_v4: int, *, host: str = "127.0.0.1") -> str:
    """Return the embedded broker's configuration: MQTT 5 on one port, 3.1.1 on the other.

    Args:
        port: For MQTT 5.
        port_v4: For MQTT 3.1.1.
        host: Must be loopback.

    Raises:
        LinkError: The address is not loopback. The broker has no access rules, ignores client
            certificates, and closes its MQTT 5 port after one malformed packet.
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
    """Return whether a broker answers CONNECT; an open port alone does not prove that it works.

    With TLS and without a client certificate, only the TCP connection is tried.
    """
    parts = urlsplit(url)
    port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
    try:
        with socket.create_connection((parts.hostname or "", port), patience) as plain:
            if parts.scheme != "mqtts":
                return _answers(plain, protocol)
            if tls is None or tls.probe_certificate is None:
                return True
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load(context, tls.authority, tls.probe_certificate, tls.probe_key)
            with context.wrap_socket(plain, server_hostname=parts.hostname) as secret:
                return _answers(secret, protocol)
    except OSError:
        return False


def _answers(connection: socket.socket, protocol: int) -> bool:
    """Send CONNECT (clean session, keep-alive 10 s) and check the reason of the CONNACK."""
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
    """A broker that was found or started. Leaving the context stops a started one.

    Attributes:
        kind: ``configured``, ``mosquitto`` or ``embedded``.
        url: Address for MQTT 5.
        url_v4: Address for MQTT 3.1.1; the embedded broker has a port for each.
        sentence: Description of the broker and why it was chosen.
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
        self._silent_since: float | None = None
        if command:
            self._launch()

    @property
    def pid(self) -> int | None:
        """Return the child's process id; None if none was started or it has ended."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def healthy(self) -> bool:
        """Return whether it answers CONNECT with CONNACK, in both protocols if their ports differ.

        The embedded broker's MQTT 5 server can fail behind an open port. It may also drop a
        connection that opens while another one closes, so only two failures in a row count.
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
        """Restart the child if it has ended or no longer answers; return True if it was restarted.

        Call it every few seconds. A Mosquitto that runs may be busy, for instance with thousands of
        clients that connect together: it has a minute to answer, since a restart makes all of them
        connect again.
        """
        if not self._command or self.healthy():
            self._silent_since = None
            return False
        if self.kind == "mosquitto" and self.pid is not None:
            now = time.monotonic()
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now - self._silent_since < SILENCE:
                return False
        self._silent_since = None
        self.kill()
        self._launch()
        return True

    def restart(self) -> None:
        """Start the child again on the same ports."""
        self.stop()
        self._launch()

    def stop(self) -> None:
        """Terminate the child, and kill it after a time-out; leave a found broker running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child at once, as a power failure would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        assert self._folder is not None
        source = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - a child of this process
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "aggregator.extensions.authority.access.broker_child",
                    *self._command,
                ],
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
        return " | ".join([line for line in lines if line][-3:]) or "no output"

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
    """Return the path of Mosquitto, whose usual folder is not on every user's PATH, or None."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def has_embedded() -> bool:
    """Return whether the embedded broker is installed (the ``sim`` extra)."""
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
        folder: Folder of its configuration, sessions and log; created if missing.
        port: Its port; 0 for a free one. The embedded broker also uses the next, for MQTT 3.1.1.
        tls: Files for Mosquitto with client certificates.
        access: Mosquitto's ACL file.
    """
    chosen = _choose(kind) if kind == "auto" else kind
    if chosen not in {"mosquitto", "embedded"}:
        raise LinkError(f"{kind!r} is not a broker kind; known: auto, mosquitto, embedded")
    if chosen == "embedded" and tls is not None:
        raise LinkError("the embedded broker does not check client certificates; use Mosquitto")
    for number in (port, port + 1)[: 2 if chosen == "embedded" else 1] if port else ():
        _require_free(number)
    if not folder.exists():  # queued messages contain models and updates
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
    """Return the configured broker, or start the first kind that is installed.

    Args:
        url: ``auto``, or the address of a running broker, which is never stopped.
        folder: Folder of a started broker's files.
        port: Port of a started broker; 0 for a free one.
        tls: As in `start`.
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
        sentence=f"Broker: Mosquitto ({program}) at {url}, with a generated configuration.",
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
    """Check that a port is free, because a broker's own error for it is hard to read."""
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
