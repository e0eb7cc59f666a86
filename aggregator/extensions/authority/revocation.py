"""Shut a revoked device out of the broker, and measure that it worked.

The steps are those that silence a connected device and refuse its return on Mosquitto: its rules become
a denial, its certificates are revoked and listed, the broker reads both again. A probe, a client
whose throw-away certificate is revoked in the same step, measures the time until nothing is
delivered any more. Every step may be repeated: giving the command again completes one that was
interrupted.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aggregator.audit_log import login_name
from aggregator.config import AggregatorConfig
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.access.access_changes import (
    denied_users,
    edit_access_file,
    has_patterns,
    rules_by_user,
    users,
    with_denied,
    with_user,
    without_user,
)
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from edge_sdk.errors import USAGE, Failure, WireError
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.link.tls_files import qualified
from edge_sdk.link.transport import LinkDown, Message
from edge_sdk.protocol.topics import ROOT

LIST_DAYS = timedelta(days=30)
PROBE = "revocation-probe-"  # beginning of a probe's name
PROBE_LIFETIME = timedelta(hours=1)
PERIOD = 0.01  # s between two messages of the probe
SILENCE = 1.0  # s without a delivered message after which the probe counts as silent
PATIENCE = 15.0  # s for each part of the measurement


class RevocationError(Failure):
    """Error: the configuration cannot shut a device out of the broker."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of the probe."""

    # milliseconds from the start of the act to the last delivered message; None if messages were
    # still delivered at the end, or the probe did not run
    silent_after: float | None = None
    is_refused: bool = False  # true if the broker refused the probe's return
    why: str = ""  # reason why the probe did not run; empty if it did

    @property
    def is_out(self) -> bool:
        return self.silent_after is not None and self.is_refused

    def sentence(self) -> str:
        if self.why:
            return f"not measured: {self.why}"
        if self.silent_after is None:
            return "NOT SHUT OUT: the broker still delivers; see gridfed-aggregator broker check"
        back = "refused" if self.is_refused else "NOT REFUSED; see gridfed-aggregator broker check"
        return f"last message delivered after {self.silent_after:.0f} ms; reconnection {back}"


def require_settings(config: AggregatorConfig) -> bool:
    """Return whether the broker shuts devices out; raise RevocationError if a part of the settings is missing."""
    section = config.section("ca")
    if section.access_file is None:
        return False
    if not section.reload:
        raise RevocationError(
            f"{config.file.name}: ca.reload: missing: the broker would keep its former rules",
            hint='reload = ["systemctl", "reload", "mosquitto"] in [ca]',
        )
    if not section.access_file.exists():
        raise RevocationError(f"{section.access_file}: file not found: it is the broker's acl_file")
    return True


def shut_out(config: AggregatorConfig, devices: Sequence[str], passphrase: bytes) -> ProbeResult:
    """Deny the broker to devices: rules, certificates, revocation list, reload; and measure it.

    Raises:
        RevocationError: The broker's rules cannot be changed, or the reload failed.
    """
    names = [_name(config, device) for device in devices]
    _edit(config, lambda text: _without_probes(config, text))
    probe = _Probe.prepare(config, passphrase)
    try:
        result = _measured(config, names, probe, passphrase)
    finally:
        if probe is not None:
            _edit(config, lambda text: without_user(text, probe.name))
            probe.remove()
    if config.section("ca").folder is None:
        return ProbeResult(why="ca.folder is not set: no certificate was revoked")
    return result


def _measured(
    config: AggregatorConfig, names: list[str], probe: _Probe | None, passphrase: bytes
) -> ProbeResult:
    """Carry out the act with or without a probe."""
    if probe is None:
        _act(config, names, passphrase)
        return ProbeResult(why="the probe needs ca.folder, and mqtts:// and ca_file in [broker]")
    _edit(config, lambda text: with_user(text, config.fleet, probe.name, probe.rules))
    reload_broker(config)
    why = probe.connect()
    if why:
        _act(config, [*names, probe.name], passphrase)
        return ProbeResult(why=why)
    is_done = threading.Event()
    with ThreadPoolExecutor(1, "probe") as thread:
        measured = thread.submit(probe.measure, time.monotonic(), is_done)
        try:
            _act(config, [*names, probe.name], passphrase)
        finally:
            is_done.set()
        return measured.result()


def _act(config: AggregatorConfig, names: Sequence[str], passphrase: bytes) -> None:
    _edit(config, lambda text: with_denied(text, config.fleet, _denied(config, text, names)))
    if config.section("ca").folder is not None:
        now = datetime.now(UTC).replace(microsecond=0)
        authority.revoke_all(
            config.section("ca").folder, names, now, LIST_DAYS, passphrase, who=login_name()
        )
    reload_broker(config)


def _without_probes(config: AggregatorConfig, text: str) -> str:
    left = [user for user in users(text) if user.startswith(_name(config, PROBE))]
    for user in left:
        text = without_user(text, user)
    return text


def _denied(config: AggregatorConfig, text: str, names: Sequence[str]) -> set[str]:
    return {*denied_users(text, config.fleet), *names}


def _edit(config: AggregatorConfig, change: Callable[[str], str]) -> None:
    path = config.section("ca").access_file
    if path is None:
        return
    try:
        edit_access_file(path, change)
    except OSError as error:
        raise RevocationError(f"{path}: {error.strerror or error}") from error


def admit(config: AggregatorConfig, devices: Sequence[str]) -> None:
    """Give new members their access rules, and lift the denial of those that were revoked before.

    Where the rules are patterns, only the denial is lifted. Neighbours' topics are not granted here:
    ``gridfed-aggregator broker access`` writes them.

    Raises:
        RevocationError: The rules cannot be changed, or the reload failed.
    """
    if not require_settings(config):
        return
    fleet, is_shared = config.fleet, config.section("ca").shared

    def change(text: str) -> str:
        for device in devices:
            name = _name(config, device)
            if has_patterns(text, fleet):
                if name in denied_users(text, fleet):
                    text = without_user(text, name)
                continue
            runs = {device: [run.name for run in config.runs if run.name]}
            written = mosquitto_access(fleet, [device], is_shared=is_shared, runs=runs)
            text = with_user(text, fleet, name, rules_by_user(written)[name])
        return text

    _edit(config, change)
    reload_broker(config)


def reload_broker(config: AggregatorConfig) -> None:
    """Run the command that makes the broker read its files again."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            config.section("ca").reload, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RevocationError(f"ca.reload: {config.section('ca').reload[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip().partition("\n")[0]
        raise RevocationError(
            f"ca.reload: {config.section('ca').reload[0]}: exit code {done.returncode}: {said}"
        )


def _name(config: AggregatorConfig, device: str) -> str:
    return qualified(config.fleet, device) if config.section("ca").shared else device


@dataclass(slots=True)
class _Probe:
    """A client with a throw-away certificate, which sends messages to itself."""

    name: str
    topic: str
    url: str
    trusted: Path
    certificate: Path
    key: Path
    link: MqttLink | None = None

    @classmethod
    def prepare(cls, config: AggregatorConfig, passphrase: bytes) -> _Probe | None:
        """Issue the certificate; return None where the configuration does not suffice."""
        section, folder = config.broker, config.section("ca").folder
        is_tls = section.url.startswith("mqtts:") and section.ca_file is not None
        if folder is None or not is_tls or section.ca_file is None:
            return None
        device = f"{PROBE}{secrets.token_hex(4)}"
        name = _name(config, device)
        now = datetime.now(UTC).replace(microsecond=0)
        certificate, key = authority.issue(
            folder, name, "device", now, PROBE_LIFETIME, passphrase=passphrase
        )
        if key is None:
            return None
        topic = f"{ROOT}/{config.fleet}/{device}/probe"
        return cls(name, topic, section.url, section.ca_file, certificate, key)

    @property
    def rules(self) -> list[str]:
        return [f"topic readwrite {self.topic}"]

    def remove(self) -> None:
        """Close the connection, and remove the throw-away files."""
        if self.link is not None:
            self.link.close()
        self.certificate.unlink(missing_ok=True)
        self.key.unlink(missing_ok=True)

    def connect(self) -> str:
        """Connect, and wait for the first delivered message; return the reason of a failure."""
        opened = self._opened()
        if isinstance(opened, str):
            return f"the probe cannot connect: {opened}"
        self.link = opened
        opened.subscribe(self.topic)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self._turn():
                return ""
        return "the broker does not deliver the probe's messages; see broker check"

    def measure(self, begun: float, is_done: threading.Event) -> ProbeResult:
        """Send during the act and until nothing is delivered for a second; then try to return.

        Args:
            begun: Start of the act, seconds of the monotonic clock.
            is_done: Set when the act has ended.
        """
        last, silent_from, end = begun, time.monotonic(), time.monotonic() + PATIENCE
        while time.monotonic() - silent_from < SILENCE:
            if self._turn():
                last = time.monotonic()
                silent_from = last
            if not is_done.is_set():
                silent_from = time.monotonic()
                end = silent_from + PATIENCE
            elif time.monotonic() > end:
                return ProbeResult()
        if self.link is not None:
            self.link.close()
            self.link = None
        back = self._opened()
        if not isinstance(back, str):
            back.close()
            return ProbeResult(1000 * (last - begun), is_refused=False)
        return ProbeResult(1000 * (last - begun), is_refused=True)

    def _turn(self) -> bool:
        link = self.link
        if link is None:
            return False
        if link.is_up:
            link.publish(self.topic, b"probe", qos=0)
        arrived = [one for one in link.poll(PERIOD) if isinstance(one, Message)]
        for message in arrived:
            link.acknowledge(message)  # else the broker stops after its window
        return bool(arrived)

    def _opened(self) -> MqttLink | str:
        link = MqttLink(
            Broker(
                url=self.url,
                client_id=self.name,
                ca_file=self.trusted,
                cert_file=self.certificate,
                key_file=self.key,
                session_expiry=0,
            )
        )
        link.open()
        end = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end:
                for one in link.poll(0.05):
                    if isinstance(one, LinkDown):
                        link.close()
                        return one.why
                if link.is_up:
                    return link
        except WireError as error:
            link.close()
            return str(error)
        link.close()
        return f"no answer within {PATIENCE:.0f} s"
