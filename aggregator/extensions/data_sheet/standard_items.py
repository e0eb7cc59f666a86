"""Items of three standards, with the places where each is shown or the reason why it is not met; fields sent.

The standards are NIST SP 800-226 (evaluation of differential privacy, by the blocks of its pyramid),
IEC 62443-4-2 (technical requirements for components) and ETSI EN 303 645 (consumer devices, by its provisions).
An item depends on the configuration where its ``lacks`` says so. A place is a configuration key, a command, a
test or a page; tests check that each exists. This is no certificate: an assessor judges.

The table of fields is that of docs/privacy.md: tests/aggregator/extensions/data_sheet/test_data_sheet.py
compares the two, and tests/edge_sdk/privacy/test_sent.py compares the page with the messages themselves.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import urlsplit

from aggregator.config import AggregatorConfig
from edge_sdk.link.broker_options import is_loopback

# returns why the configuration does not meet an item; empty if it does
Lacks = Callable[[AggregatorConfig], str]


def _nothing(_config: AggregatorConfig) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class StandardItem:
    """An item of a standard."""

    standard: str
    item: str
    title: str
    # where it is shown: ``key K``, ``command C``, ``test T`` or ``page P``
    places: tuple[str, ...] = ()
    lacks: Lacks = _nothing  # why the configuration does not meet it


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
    if "update" in config.encrypted_kinds:
        return _plain_link(config)
    return "encryption.kinds lacks update: the broker can read updates"


def _no_authority(config: AggregatorConfig) -> str:
    if config.section("ca").folder is not None or config.broker.ca_file is not None:
        return ""
    return "neither ca.folder nor broker.ca_file is set: the link has no certificates"


def _no_revocation(config: AggregatorConfig) -> str:
    if config.section("ca").access_file is not None:
        return ""
    return "ca.access_file is not set: revoke refuses the device's messages, and the broker still serves it"


def _no_sign_in(config: AggregatorConfig) -> str:
    if config.section("console").oidc is not None:
        return ""
    return "console.oidc is not set: console users have local passwords, and commands know login names only"


def _no_https(config: AggregatorConfig) -> str:
    section = config.section("console")
    host = section.listen.rpartition(":")[0].strip("[]")
    if section.cert_file is not None or section.behind_proxy or is_loopback(host):
        return ""
    return f"console.listen is {section.listen} without console.cert_file: forms are sent without HTTPS"


def _items() -> tuple[StandardItem, ...]:
    rows = tomllib.loads(files(__package__).joinpath("standard_items.toml").read_text("utf-8"))[
        "item"
    ]
    return tuple(
        StandardItem(
            row["standard"], row["item"], row["title"], tuple(row.get("places", ())), _lacks(row)
        )
        for row in rows
    )


def _lacks(row: Mapping[str, str]) -> Lacks:
    if "never" in row:
        return _never(row["never"])
    return _FUNCTIONS[row["lacks"]] if "lacks" in row else _nothing


_FUNCTIONS: Mapping[str, Lacks] = {
    "no_authority": _no_authority,
    "no_https": _no_https,
    "no_revocation": _no_revocation,
    "no_sign_in": _no_sign_in,
    "plain_link": _plain_link,
    "readable": _readable,
    "unlimited": _unlimited,
}

ITEMS = _items()  # all items, by standard and number


@dataclass(frozen=True, slots=True)
class SentFields:
    """Some fields of a message from a device."""

    kind: str
    fields: tuple[str, ...]
    reveals: str  # what they reveal
    covered_by: str  # ``mechanism``, ``public``, ``process``, ``opt-in`` or ``own noise``


# every field of every message from a device
SENT = tuple(
    SentFields(row["kind"], tuple(row["fields"]), row["reveals"], row["covered_by"])
    for row in tomllib.loads(files(__package__).joinpath("sent_fields.toml").read_text("utf-8"))[
        "sent"
    ]
)
