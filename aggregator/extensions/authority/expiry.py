"""Warn before the fleet's own authority expires, and about outdated access rules of the broker."""

from __future__ import annotations

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access.access_rules import access_warning
from aggregator.extensions.authority.folder import CERTIFICATE, NEXT
from aggregator.operations.operator_alerts import horizon_of
from edge_sdk.app.clock import SystemClock
from edge_sdk.link.tls_validity import File, look


def authority_warnings(config: AggregatorConfig) -> list[str]:
    return [expiry_warning(config), access_warning(config)]


def expiry_warning(config: AggregatorConfig) -> str:
    """Return a sentence if the fleet's own authority expires soon; empty if not, or without one."""
    folder, now = config.section("ca").folder, SystemClock().wall() / 1000
    if folder is None or not (folder / CERTIFICATE).exists():
        return ""
    (seen,) = look([File("ca", folder / CERTIFICATE, "ca.folder")])
    if not seen.is_near(now, horizon_of(config)):
        return ""
    do = "rotate ca --finish" if (folder / NEXT).exists() else "rotate ca"
    command = f"gridfed-aggregator {do} --config {config.file}"
    return f"ca.folder: {seen.file.path}: {seen.told(now)}; replace the authority: {command}"


def status_lines(difference: str) -> list[str]:
    return [f"ACCESS RULES {difference}"]
