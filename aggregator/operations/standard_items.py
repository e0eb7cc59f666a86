"""Items of three standards, each with the places where it is shown, or the reason why it is not met.

The standards are NIST SP 800-226 (evaluation of differential privacy, by the blocks of its pyramid),
IEC 62443-4-2 (technical requirements for components) and ETSI EN 303 645 (consumer devices, by its provisions).
An item depends on the configuration where its ``lacks`` says so. A place is a configuration key, a command, a
test or a page; tests check that each exists. This is no certificate: an assessor judges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from aggregator.config import AggregatorConfig
from edge_sdk.wire.link.broker_options import is_loopback

Lacks = Callable[[AggregatorConfig], str]
"""Returns why the configuration does not meet an item; empty if it does."""

NIST, IEC, ETSI = "NIST SP 800-226", "IEC 62443-4-2", "ETSI EN 303 645"


def _nothing(_config: AggregatorConfig) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class StandardItem:
    """An item of a standard.

    Attributes:
        standard: Name of the standard.
        item: Number or name of the item.
        title: Its title.
        places: Where it is shown: ``key K``, ``command C``, ``test T`` or ``page P``.
        lacks: Why the configuration does not meet it.
    """

    standard: str
    item: str
    title: str
    places: tuple[str, ...] = ()
    lacks: Lacks = _nothing


def _never(reason: str) -> Lacks:
    return lambda _config: reason


def _unlimited(config: AggregatorConfig) -> str:
    if config.admission.max_updates is not None:
        return ""
    return "admission.max_updates is not set: only the ledgers of the devices limit the number of updates"


def _plain_link(config: AggregatorConfig) -> str:
    url = urlsplit(config.broker.url)
    is_here = config.broker.url == "auto" or is_loopback(url.hostname or "")
    if is_here or url.scheme in ("mqtts", "wss"):
        return ""
    return f"broker.url is {config.broker.url}: no TLS on the way to the broker"


def _readable(config: AggregatorConfig) -> str:
    if "update" in config.encryption.kinds:
        return _plain_link(config)
    return "encryption.kinds lacks update: the broker can read updates"


def _no_authority(config: AggregatorConfig) -> str:
    if config.ca.folder is not None or config.broker.ca_file is not None:
        return ""
    return "neither ca.folder nor broker.ca_file is set: the link has no certificates"


def _no_revocation(config: AggregatorConfig) -> str:
    if config.ca.access_file is not None:
        return ""
    return "ca.access_file is not set: revoke refuses the device's messages, and the broker still serves it"


def _no_sign_in(config: AggregatorConfig) -> str:
    if config.console.oidc is not None:
        return ""
    return "console.oidc is not set: console users have local passwords, and commands know login names only"


def _no_https(config: AggregatorConfig) -> str:
    section = config.console
    host = section.listen.rpartition(":")[0].strip("[]")
    if section.cert_file is not None or section.behind_proxy or is_loopback(host):
        return ""
    return f"console.listen is {section.listen} without console.cert_file: forms are sent without HTTPS"


_PRIVACY = "page docs/privacy.md"
_BUDGET = "command gridfed-edge budget"

ITEMS: tuple[StandardItem, ...] = (
    StandardItem(
        NIST,
        "ε",
        "Strength of the guarantee (ε, δ), and its budget",
        (
            "key admission.max_updates",
            _BUDGET,
            f"{_PRIVACY}#what-means-in-numbers",
            "test tests/edge_sdk/training/test_privacy_accountant.py",
        ),
        _unlimited,
    ),
    StandardItem(
        NIST,
        "unit of privacy",
        "What one guarantee is about: a reading, a window, a day or a device",
        (f"{_PRIVACY}#points-where-noise-is-added", _BUDGET),
    ),
    StandardItem(
        NIST,
        "mechanisms",
        "Published mechanisms, with an account over all releases",
        (
            f"{_PRIVACY}#the-ledger",
            "test tests/chaos/test_ledger.py",
            "test tests/fleet/test_privacy.py",
        ),
    ),
    StandardItem(
        NIST,
        "utility",
        "Error of the forecasts with noise, measured before use",
        (
            "command gridfed-sim fleet",
            "page docs/experiments.md#e10-the-privacy-budget-tables-ii-and-iii",
        ),
    ),
    StandardItem(
        NIST,
        "bias",
        "Whether noise and rules treat groups of devices differently",
        ("command gridfed-aggregator credit",),
        _never("no measurement by groups of devices: credit and suspects show single devices only"),
    ),
    StandardItem(
        NIST,
        "trust model",
        "Whom the guarantee protects against: noise is added on the device",
        (_PRIVACY, "page docs/threat-model.md"),
    ),
    StandardItem(
        NIST,
        "side channels",
        "Floating point, timing and the number of messages",
        (f"{_PRIVACY}#what-is-not-protected",),
        _never(
            "noise is drawn in floating point, on a grid only where the device sets grid = true; sizes and "
            "times of messages, participation and live forecasts are not covered"
        ),
    ),
    StandardItem(
        NIST,
        "access control",
        "Who reads the collected data",
        (
            "page docs/brokers.md#access-rules",
            "command gridfed-aggregator broker check",
            "key encryption.kinds",
        ),
        _readable,
    ),
    StandardItem(
        NIST,
        "data collection exposure",
        "What is collected before any noise, and where it stays",
        (f"{_PRIVACY}#everything-a-device-sends", "test tests/edge_sdk/privacy/test_sent.py"),
    ),
    StandardItem(
        IEC,
        "CR 1.1",
        "Human user identification and authentication",
        (
            "page docs/console.md#sign-in",
            "key console.oidc",
            "test tests/aggregator/console/test_oidc.py",
        ),
        _no_sign_in,
    ),
    StandardItem(
        IEC,
        "CR 1.2",
        "Software process and device identification and authentication",
        (
            "page docs/enrolment.md",
            "command gridfed-aggregator enrol",
            "test tests/properties/test_hostile_bytes.py",
        ),
    ),
    StandardItem(
        IEC,
        "CR 1.3",
        "Account management",
        (
            "command gridfed-console",
            "command gridfed-aggregator list",
            "page docs/console.md#sign-in",
        ),
    ),
    StandardItem(
        IEC,
        "CR 1.5",
        "Authenticator management",
        (
            "command gridfed-aggregator announce",
            "command gridfed-aggregator ca",
            "page docs/operating.md#keys",
        ),
    ),
    StandardItem(
        IEC,
        "CR 1.8",
        "Public key infrastructure certificates",
        ("key ca.folder", "key broker.ca_file", "test tests/broker/test_authority.py"),
        _no_authority,
    ),
    StandardItem(
        IEC,
        "CR 1.8 (revocation)",
        "A revoked certificate is refused",
        (
            "key ca.access_file",
            "command gridfed-aggregator revoke",
            "test tests/broker/test_revocation.py",
        ),
        _no_revocation,
    ),
    StandardItem(
        IEC,
        "CR 1.9",
        "Strength of public key-based authentication",
        ("page docs/operating.md#keys", "test tests/edge_sdk/wire/test_keys.py"),
    ),
    StandardItem(
        IEC,
        "CR 1.11",
        "Unsuccessful login attempts",
        ("test tests/aggregator/console/test_access.py", "page docs/console.md#sign-in"),
    ),
    StandardItem(
        IEC,
        "CR 2.1",
        "Authorization enforcement",
        (
            "page docs/console.md#sign-in",
            "page docs/brokers.md#access-rules",
            "test tests/broker/test_access.py",
        ),
    ),
    StandardItem(
        IEC,
        "CR 2.8",
        "Auditable events",
        ("page docs/audit-log.md", "test tests/aggregator/commands/test_audit_log.py"),
    ),
    StandardItem(
        IEC,
        "CR 2.9",
        "Audit storage capacity",
        ("page docs/audit-log.md#size", "page docs/operating.md#retention"),
    ),
    StandardItem(
        IEC,
        "CR 2.10",
        "Response to audit processing failures",
        ("page docs/audit-log.md", "test tests/aggregator/audit_log/test_records.py"),
    ),
    StandardItem(
        IEC,
        "CR 2.11",
        "Timestamps",
        ("page docs/audit-log.md#limits",),
        _never(
            "times are of the aggregator's clock; gridfed does not check that it is synchronized"
        ),
    ),
    StandardItem(
        IEC,
        "CR 2.12",
        "Non-repudiation",
        ("page docs/audit-log.md", "key console.oidc"),
        _no_sign_in,
    ),
    StandardItem(
        IEC,
        "CR 3.1",
        "Communication integrity",
        (
            "key broker.url",
            "test tests/broker/test_tls.py",
            "test tests/properties/test_hostile_bytes.py",
        ),
        _plain_link,
    ),
    StandardItem(
        IEC,
        "CR 3.4",
        "Software and information integrity",
        (
            "page docs/model-log.md",
            "command gridfed-aggregator audit",
            "test tests/broker/test_model_log.py",
        ),
    ),
    StandardItem(
        IEC,
        "CR 3.5",
        "Input validation",
        ("test tests/properties/test_hostile_bytes.py", "test tests/broker/test_wrong_numbers.py"),
    ),
    StandardItem(
        IEC,
        "CR 3.9",
        "Protection of audit information",
        ("command gridfed-aggregator audit-log", "test tests/aggregator/audit_log/test_export.py"),
    ),
    StandardItem(
        IEC,
        "CR 4.1",
        "Information confidentiality",
        (
            "key encryption.kinds",
            "key encryption.require_device_keys",
            "page docs/operating.md#encrypt-updates-so-that-the-broker-cannot-read-them",
            "test tests/broker/test_encryption.py",
            "test tests/broker/test_encryption_down.py",
            "page docs/operating.md#file-permissions",
        ),
        _readable,
    ),
    StandardItem(
        IEC,
        "CR 4.2",
        "Information persistence",
        ("command gridfed-edge wipe", "test tests/broker/test_wipe.py"),
    ),
    StandardItem(
        IEC,
        "CR 4.3",
        "Use of cryptography",
        (
            "page docs/adr/0005-cryptography.md",
            "page docs/adr/0056-hpke-from-cryptography-or-its-primitives.md",
        ),
    ),
    StandardItem(
        IEC,
        "CR 6.1",
        "Audit log accessibility",
        ("command gridfed-aggregator audit-log", "page docs/console.md#pages"),
    ),
    StandardItem(
        IEC,
        "CR 6.2",
        "Continuous monitoring",
        ("page docs/operating.md#monitoring", "test tests/test_alerts.py"),
    ),
    StandardItem(
        IEC,
        "CR 7.1",
        "Denial of service protection",
        (
            "key admission.daily_bytes",
            "key admission.messages_per_minute",
            "test tests/broker/test_flood.py",
        ),
    ),
    StandardItem(
        IEC,
        "CR 7.3",
        "Control system backup",
        (
            "command gridfed-aggregator backup",
            "test tests/aggregator/commands/test_both_engines.py",
        ),
    ),
    StandardItem(
        IEC,
        "CR 7.4",
        "Control system recovery and reconstitution",
        ("command gridfed-aggregator restore", "test tests/fleet/test_restored.py"),
    ),
    StandardItem(
        IEC,
        "CR 7.8",
        "Control system component inventory",
        ("command gridfed-aggregator list", "page docs/console.md#pages"),
    ),
    StandardItem(
        IEC,
        "EDR 3.10",
        "Support for updates",
        (),
        _never(
            "gridfed updates models and no firmware or packages; the device's own update system does"
        ),
    ),
    StandardItem(
        IEC,
        "EDR 3.12",
        "Provisioning product supplier roots of trust",
        (),
        _never("keys.device may name a token; each device's own configuration shows whether"),
    ),
    StandardItem(
        ETSI,
        "5.1",
        "No universal default passwords",
        (
            "page docs/enrolment.md#list-the-devices",
            "test tests/aggregator/authority/test_est_server.py",
        ),
    ),
    StandardItem(
        ETSI,
        "5.2",
        "Implement a means to manage reports of vulnerabilities",
        (),
        _never("a duty of the organisation that offers the device; the software names no contact"),
    ),
    StandardItem(
        ETSI,
        "5.3",
        "Keep software updated",
        ("page docs/devices.md#upgrades-and-downgrades",),
        _never(
            "gridfed updates models and no firmware or packages; the device's own update system does"
        ),
    ),
    StandardItem(
        ETSI,
        "5.4",
        "Securely store sensitive security parameters",
        (
            "test tests/edge_sdk/app/test_permissions.py",
            "test tests/aggregator/operations/test_key_store.py",
            "page docs/devices.md#the-state-folder",
        ),
        _never(
            "files of mode 0600, or a token in keys.device; the device's configuration shows it"
        ),
    ),
    StandardItem(
        ETSI,
        "5.5",
        "Communicate securely",
        ("key broker.url", "test tests/broker/test_tls.py", "page docs/brokers.md#certificates"),
        _plain_link,
    ),
    StandardItem(
        ETSI,
        "5.6",
        "Minimize exposed attack surfaces",
        ("key console.listen", "page docs/outputs.md#http", "page docs/console.md#another-address"),
        _no_https,
    ),
    StandardItem(
        ETSI,
        "5.7",
        "Ensure software integrity",
        ("page docs/devices.md#bundles-and-trust", "test tests/edge_sdk/test_bundle.py"),
        _never("bundles are verified; packages and the boot process are the operating system's"),
    ),
    StandardItem(
        ETSI,
        "5.8",
        "Ensure that personal data is secure",
        ("key encryption.kinds", _PRIVACY),
        _readable,
    ),
    StandardItem(
        ETSI,
        "5.9",
        "Make systems resilient to outages",
        (
            "test tests/chaos/test_everything.py",
            "page docs/chaos.md",
            "page docs/devices.md#without-a-link",
        ),
    ),
    StandardItem(
        ETSI,
        "5.10",
        "Examine system telemetry data",
        (
            "page docs/operating.md#monitoring",
            "test tests/aggregator/ingress/test_clone_detector.py",
        ),
    ),
    StandardItem(
        ETSI,
        "5.11",
        "Make it easy for users to delete user data",
        (
            "command gridfed-edge wipe",
            "command gridfed-aggregator unlearn",
            "test tests/broker/test_wipe.py",
        ),
    ),
    StandardItem(
        ETSI,
        "5.12",
        "Make installation and maintenance of devices easy",
        ("page docs/enrolment.md#enrol-the-device", "command gridfed-edge init"),
    ),
    StandardItem(
        ETSI,
        "5.13",
        "Validate input data",
        (
            "test tests/properties/test_hostile_bytes.py",
            "test tests/edge_sdk/runtime/test_hostile_graphs.py",
        ),
    ),
    StandardItem(
        ETSI,
        "6",
        "Data protection: transparent, by consent, and telemetry minimised",
        (
            f"{_PRIVACY}#everything-a-device-sends",
            _BUDGET,
            "test tests/edge_sdk/privacy/test_sent.py",
        ),
    ),
)
"""All items, by standard and number."""
