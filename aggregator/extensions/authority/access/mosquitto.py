"""Write Mosquitto configurations, and check those that an operator wrote.

``docs/brokers.md`` explains each line, and the attacks that remain possible for one client. No
setting makes a broker's acknowledgement a proof of delivery.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.extensions.authority.access.mosquitto_acl import findings as access_findings
from edge_sdk.link.tls_validity import HORIZON, File, look

_SOON = 7  # days
QUEUE = 20_000  # messages per client; 0 means unlimited, and dropped everything in 2.0.16
QUEUE_BYTES = 64 << 20
INFLIGHT_BYTES = 2 << 20  # 20 messages are 1.3 MB, or twelve updates of 168 kB
PACKET = 66_048  # bytes: the largest payload of most messages, and its packet header
LARGEST_PACKET = 263_168  # bytes: the same of an update in one message
MEMORY = 1 << 30  # bytes of heap; above it, a client that needs more is disconnected


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a TLS listener that requires client certificates."""

    authority: Path  # authority that signs client certificates
    certificate: Path  # certificate of the broker, with its chain
    key: Path  # private key of the broker
    revoked: Path | None = None  # list of revoked client certificates
    # client certificate of the health check; without it only TCP is tried
    probe_certificate: Path | None = None
    probe_key: Path | None = None  # private key of the health check


def is_loopback(host: str) -> bool:
    """Return whether an address is only reachable from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def mosquitto_config(
    port: int,
    folder: Path,
    *,
    host: str = "127.0.0.1",
    tls: TlsFiles | None = None,
    access: Path | None = None,
) -> str:
    """Return the Mosquitto configuration of one fleet.

    Args:
        folder: Folder of sessions and log.
        host: Address to bind; any except loopback needs ``tls`` and ``access``.
        tls: Files for client certificates, whose common name is user name and client id.
        access: ACL file, the text of ``aggregator.extensions.authority.access.mosquitto_topics``.

    Raises:
        ValueError: A reachable listener would admit any client, or a value would span several lines
            or be cut in the file.

    >>> from pathlib import Path
    >>> mosquitto_config(1883, Path("/var/lib/x"), host="0.0.0.0")
    Traceback (most recent call last):
    ValueError: a broker on 0.0.0.0 needs client certificates and an access file
    """
    if not is_loopback(host) and (tls is None or access is None):
        raise ValueError(f"a broker on {host} needs client certificates and an access file")
    _require_lines(host=host, folder=folder, access=access, **(_values(tls) if tls else {}))
    lines = [f"listener {port} {host}", "set_tcp_nodelay true"]
    lines += _tls_lines(tls) if tls else ["allow_anonymous true"]
    if access is not None:
        lines.append(f"acl_file {access}")
    if os.geteuid() == 0 and is_loopback(host):
        lines.append("user root")  # else it switches to a user without write access to the folder
    lines += [
        "persistence true",
        f"persistence_location {folder}/",
        "autosave_interval 5",
        "persistent_client_expiration 14d",
        f"max_packet_size {LARGEST_PACKET}",
        f"max_queued_messages {QUEUE}",
        f"max_queued_bytes {QUEUE_BYTES}",
        "max_inflight_messages 20",
        f"max_inflight_bytes {INFLIGHT_BYTES}",
        "upgrade_outgoing_qos true",
        f"memory_limit {MEMORY}",
        f"log_dest file {folder}/mosquitto.log",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
    ]
    return "\n".join(lines) + "\n"


def _values(tls: TlsFiles) -> dict[str, object]:
    return {"ca": tls.authority, "cert": tls.certificate, "key": tls.key, "crl": tls.revoked}


def _require_lines(**values: object) -> None:
    for name, value in values.items():
        text = "" if value is None else str(value)
        if not text.isprintable() or text != text.strip():
            raise ValueError(f"{name} {text!r}: a line break cannot stand in a configuration")


def _tls_lines(tls: TlsFiles) -> list[str]:
    lines = [
        "allow_anonymous false",
        f"cafile {tls.authority}",
        f"certfile {tls.certificate}",
        f"keyfile {tls.key}",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
    ]
    return [*lines, f"crlfile {tls.revoked}"] if tls.revoked else lines


@dataclass(slots=True)
class _Listener:
    host: str
    settings: dict[str, str] = field(default_factory=dict)


def check_mosquitto_config(path: Path) -> tuple[str, ...]:
    """Find settings that lose messages, admit unknown clients or exhaust the broker's memory.

    Rules in an ``acl_file`` that is here are tried: see `mosquitto_acl.findings`. Each finding is
    a sentence; none means that nothing was found, not that the configuration is safe. Included
    files are not read.
    """
    common, listeners = _read(path.read_text(encoding="utf-8"))
    findings = _durability(common)
    for listener in listeners:
        findings += _entrance(listener, {**common, **listener.settings})
    for file in access_files(path):
        findings += _rules(file)
    if not listeners:
        findings.append("no listener: Mosquitto 2 then serves this machine only, to anybody on it")
    if "include_dir" in common:
        findings.append("include_dir is not followed by this check")
    return tuple(findings)


def access_files(path: Path) -> list[Path]:
    """Return the files of access rules that a configuration names."""
    common, listeners = _read(path.read_text(encoding="utf-8"))
    files = [common.get("acl_file"), *(one.settings.get("acl_file") for one in listeners)]
    return [Path(name) for name in sorted({name for name in files if name})]


_PER_LISTENER = {
    "cafile", "capath", "certfile", "keyfile", "crlfile", "require_certificate", "tls_version",
    "use_identity_as_username", "use_subject_as_username", "use_username_as_clientid",
    "psk_hint", "max_connections", "protocol", "mount_point",
}  # fmt: skip


def _read(text: str) -> tuple[dict[str, str], list[_Listener]]:
    common: dict[str, str] = {}
    listeners: list[_Listener] = []
    is_split = any(line.split() == ["per_listener_settings", "true"] for line in text.splitlines())
    also = {"allow_anonymous", "acl_file", "password_file"} if is_split else set()
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name in {"listener", "port"}:
            _, _, host = value.strip().partition(" ")
            listeners.append(_Listener(host.strip() or "0.0.0.0"))  # noqa: S104 - Mosquitto's default
        elif name == "bind_address" and listeners:
            listeners[-1].host = value.strip()
        elif name and not name.startswith("#"):
            is_local = bool(listeners) and name in _PER_LISTENER | also
            (listeners[-1].settings if is_local else common)[name] = value.strip()
    return common, listeners


def _durability(common: Mapping[str, str]) -> list[str]:
    findings = []
    queue = int(common.get("max_queued_messages", "1000"))
    if queue == 0:
        findings.append("max_queued_messages 0 dropped everything in 2.0.16; give a large number")
    elif queue < 10_000:
        findings.append(
            f"max_queued_messages is {queue}: messages of a burst beyond it are acknowledged and dropped"
        )
    if int(common.get("max_queued_bytes", "0")) == 0:
        findings.append("max_queued_bytes is not set: queues can exhaust the memory")
    if common.get("persistence") != "true":
        findings.append("persistence is off: a restart loses sessions and retained messages")
    elif int(common.get("autosave_interval", "1800")) > 60:
        findings.append(
            "autosave_interval above 60 s: a crash loses up to that much of every session"
        )
    return findings + _sizes(common) + _bounds(common)


def _bounds(common: Mapping[str, str]) -> list[str]:
    findings = []
    if not any(int(common.get(name, "0")) for name in ("max_packet_size", "message_size_limit")):
        findings.append(
            f"max_packet_size is not set: one message may have 256 MB; set it to {LARGEST_PACKET}"
        )
    if int(common.get("max_inflight_bytes", "0")) == 0:
        findings.append("max_inflight_bytes is not set: the bytes in flight are unlimited")
    if common.get("upgrade_outgoing_qos") != "true":
        findings.append(
            "upgrade_outgoing_qos is not true: messages of quality 0 to a slow reader are held "
            "beside max_queued_bytes, up to max_queued_messages of the largest size"
        )
    if int(common.get("memory_limit", "0")) == 0:
        findings.append(
            "memory_limit is not set: the subscriptions of one client can exhaust the memory"
        )
    return findings


def _rules(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        return [f"acl_file {path} cannot be read: {error}"]
    return [f"acl_file {path}: {finding}" for finding in access_findings(text)]


def _sizes(common: Mapping[str, str]) -> list[str]:
    findings = [
        f"{name} is below {PACKET} bytes: chunks must shrink"
        for name in ("max_packet_size", "message_size_limit")
        if 0 < int(common.get(name, "0")) < PACKET
    ]
    if common.get("retain_available") == "false":
        findings.append("retain_available false: no device connects, and announcements are lost")
    return findings


def _entrance(listener: _Listener, settings: Mapping[str, str]) -> list[str]:
    if is_loopback(listener.host):
        return []
    where = f"the listener on {listener.host}"
    wanted: Sequence[tuple[str, str, str]] = (
        ("require_certificate", "true", "any client can connect"),
        ("use_identity_as_username", "true", "the access rules cannot identify clients"),
        ("use_username_as_clientid", "true", "a device can take over another one's session"),
    )
    findings = [
        f"{where}: {name} is not {value}: {why}"
        for name, value, why in wanted
        if settings.get(name) != value
    ]
    if settings.get("allow_anonymous") == "true":
        findings.append(f"{where}: allow_anonymous is true")
    if "certfile" not in settings:
        findings.append(f"{where}: no certfile: nothing is encrypted")
    if not any(name.startswith(("acl_file", "plugin", "auth_plugin")) for name in settings):
        findings.append(f"{where}: no acl_file: a device can publish as another device")
    if settings.get("tls_version") in {"tlsv1", "tlsv1.0", "tlsv1.1"}:
        findings.append(f"{where}: tls_version {settings['tls_version']} is broken")
    findings += _shutting_out(where, settings) + _authorities(where, settings.get("cafile", ""))
    return findings + _revocations(where, settings.get("crlfile", ""))


def _shutting_out(where: str, settings: Mapping[str, str]) -> list[str]:
    findings = []
    if settings.get("require_certificate") == "true" and "crlfile" not in settings:
        findings.append(f"{where}: no crlfile: a revoked device connects again")
    plugins = [value for name, value in settings.items() if name in {"plugin", "auth_plugin"}]
    if any("dynamic_security" in value for value in plugins):
        findings.append(
            f"{where}: dynamic security: disableClient does not shut out a device with a certificate, "
            "which connects again and receives; use deleteClient, and a crlfile"
        )
        if "acl_file" not in settings:
            findings.append(
                f"{where}: no acl_file beside dynamic security: gridfed-aggregator revoke cannot "
                "deny topics to a connected device"
            )
    return findings


def _authorities(where: str, name: str) -> list[str]:
    if not name or not Path(name).exists():  # as below
        return []
    (seen,) = look([File("ca", Path(name), "cafile")])
    now = time.time()
    if not seen.is_near(now, HORIZON):
        return []
    do = "replace the authority: gridfed-aggregator rotate ca"
    return [f"{where}: cafile {name}: {seen.told(now)}; {do}"]


def _revocations(where: str, name: str) -> list[str]:
    """Check a revocation list; an expired one makes the broker refuse every client."""
    if not name or not Path(name).exists():  # it may belong to another machine
        return []
    (seen,) = look([File("crl", Path(name), "crlfile")])
    if seen.expiry is None:
        return [f"{where}: crlfile {name} cannot be read: the broker then refuses every client"]
    days = seen.days(time.time())
    if days is None:
        return []
    if days < 0:
        return [f"{where}: crlfile {name} has expired: every device is refused"]
    if days < _SOON:
        return [
            f"{where}: crlfile {name} expires within {_SOON} days: the broker then refuses every client"
        ]
    return []
