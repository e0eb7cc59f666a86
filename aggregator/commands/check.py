"""Show the configuration in force, with the origin of every value, and check that it can run.

Prints the file or variable that each value came from, the bundle, the size of an update, the
projected traffic of a device, and the expiry of certificates. Exits with 2 at the first invalid
value. Compares the broker's access rules (ca.access_file) with the enrolled devices and runs. Connects to
nothing.

  gridfed-aggregator check aggregator.toml
  GRIDFED_AGGREGATOR_RUN__QUORUM=8 gridfed-aggregator check aggregator.toml
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from numpy import ones

from aggregator.commands.arguments import add_config
from aggregator.config import AggregatorConfig, BoundRun, bind, load_with_origins, settings_of
from aggregator.methods import METHODS
from aggregator.operations.link_projection import LinkProjection, projection_of, refuse_excess
from aggregator.operations.operator_alerts import (
    facts_of,
    horizon_of,
    refuse_expired,
    rows,
    warnings_of,
)
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.settings import shown
from edge_sdk.protocol.codec import pack_tensor
from edge_sdk.protocol.contract.method import Up

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Bind the configuration as the daemon would, and show the origin of each value."""
    loaded = load_with_origins(args.config)
    bound, *further = (bind(view) for view in loaded.value.views())
    now = SystemClock().wall() / 1000
    expiring = rows(refuse_expired(loaded.value, now), now, horizon_of(loaded.value))
    projections = [projection_of(one) for one in (bound, *further)]
    for one, projection in zip((bound, *further), projections, strict=True):
        refuse_excess(one, projection)
    facts = _facts(bound, projections[0]) | facts_of(loaded.value)
    others = {
        one.config.run.name or "run": _facts(one, projection)
        for one, projection in zip(further, projections[1:], strict=True)
    }
    said = _in_force(loaded.value, loaded.origins)
    width = max(len(key) for key, _, _ in said)
    lines = [f"{key:<{width}}  {value}  ({origin})" for key, value, origin in said]
    lines += ["", *(f"{name:<{width}}  {value}" for name, value in facts.items())]
    for name, found in others.items():
        lines += ["", f"run {name}", *(f"{key:<{width}}  {value}" for key, value in found.items())]
    lines += [f"{one['kind']:<{width}}  {one['file']}: {one['status']}" for one in expiring]
    lines += [f"warning: {one['file']}: {one['status']}" for one in expiring if one["soon"]]
    upkeep = warnings_of(loaded.value)
    lines += [f"warning: {one}" for one in upkeep]
    lines += [f"warning: {one}" for found in projections for one in found.warnings()]
    weak = [text for one in (bound, *further) if (text := _weakness(one))]
    lines += [f"warning: {one}" for one in weak]
    settings = [{"key": key, "value": value, "origin": origin} for key, value, origin in said]
    data = {"settings": settings, **facts, "certificates": expiring}
    data["projection"] = _projected(projections[0])
    data |= {"runs": others} if others else {}
    warned = [*upkeep, *weak]
    data |= {"warnings": warned} if warned else {}
    return CommandResult(data, "\n".join([*lines, f"{args.config}: valid"]))


def _weakness(bound: BoundRun) -> str:
    name = bound.config.run.method
    text = METHODS[name].weakness(bound.bundle.manifest.window.horizon)
    return text and f"run.method: {name} {text}"


def _facts(bound: BoundRun, projection: LinkProjection) -> dict[str, object]:
    manifest = bound.bundle.manifest
    traffic = "between neighbours: not projected"
    if bound.ask.up is not Up.PEERS:
        traffic = projection.text(bound.config.admission.daily_bytes)
    return {
        "bundle": f"{manifest.name} {manifest.version}, {bound.bundle.digest.hex()[:12]}",
        "scalars": bound.spec.size,
        "shared": bound.spec.shared_size,
        "bytes_per_update": len(pack_tensor(ones(bound.limits.size), bound.limits.encs[-1])),
        "traffic": traffic,
    }


def _projected(projection: LinkProjection) -> dict[str, object]:
    return {
        "up_per_round": projection.up,
        "down_per_round": projection.down,
        "rounds_per_day": projection.rounds,
        "bytes_per_day": projection.day,
        "bytes_per_month": projection.month,
        "warnings": projection.warnings(),
    }


def _in_force(config: AggregatorConfig, origins: Mapping[str, str]) -> list[tuple[str, str, str]]:
    prefix = "run.settings"
    from_file = {key.removeprefix(f"{prefix}."): origin for key, origin in origins.items()}
    own = shown(settings_of(config), from_file)
    rows: list[tuple[str, str, str]] = []
    combines = METHODS[config.run.method].own
    for key, value, origin in shown(config, origins):
        if combines and key.startswith("run.rule"):
            continue
        if key == prefix or key.startswith(f"{prefix}."):
            rows += [(f"{prefix}.{name}", text, whence) for name, text, whence in own]
            own = []
        elif key != "file" and not key.startswith("further_runs"):
            rows.append((key, value, origin))
    return rows
