"""Write a commented configuration of a new device, after a few questions.

On a terminal each value that no option gives is asked for; --yes takes the defaults instead. An
existing file is never changed.

  gridfed-edge init meter.toml
  gridfed-edge init charger.toml --kind charger --id charger-7 --fleet east --yes
  gridfed-edge init meter.toml --source p1 --address tcp://192.168.1.20:23 --yes
  gridfed-edge init meter.toml --broker none --source csv --address load.csv --yes
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.wizard import Wizard, write_new
from edge_sdk.config import Config


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The first settings of a kind of device."""

    bundle: str  # shipped bundle that needs nothing but the kind's own readings
    about: str  # what the bundle forecasts
    stream: str  # stream of its own readings


KINDS = {
    "meter": DeviceKind("load-day-1", "energy of the next 24 hours", "elec.import.energy"),
    "charger": DeviceKind("chargers-day", "demand of the next 48 half hours", "ev.demand.energy"),
    "station": DeviceKind("cells-day", "traffic of the next 24 hours", "cell.internet.activity"),
}

SETUPS: PluginRegistry[Any] = PluginRegistry(
    {}, "gridfed.source_setups", listed=ExtensionIndex("edge_sdk").loaders("setups")
)
"""Setups by type of source: the question for its address, a default, the kinds of device that have one, and
``write``, a function of the wizard, the configuration's folder, the address, and the stream of the kind's own
readings to the section's text and a remark about the device at its address."""

NONE = "none"
"""Answer in place of the address of a broker: the device runs alone."""


def setups_of(kind: str) -> dict[str, Any]:
    """Return the setups of the types of source that a kind of device has, the usual one first."""
    return {name: setup for name, setup in SETUPS.items() if kind in setup.kinds}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the TOML file to write")
    parser.add_argument("--kind", choices=tuple(KINDS), help="kind of device (meter)")
    parser.add_argument("--id", help="id of the device; with certificates, their common name")
    parser.add_argument("--fleet", help="fleet of the device (north)")
    parser.add_argument(
        "--broker",
        metavar="URL",
        help="the fleet's broker (mqtt://127.0.0.1), or none to run alone",
    )
    parser.add_argument("--source", choices=tuple(SETUPS), help="type of the source of readings")
    parser.add_argument("--address", help="address, folder or file of the source")
    parser.add_argument(
        "--mqtt-output", metavar="URL", help="also publish forecasts to this local broker"
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing; take the defaults")


def run(args: Namespace) -> CommandResult:
    """Write the configuration; return the next steps."""
    wizard = Wizard.of(accept_defaults=args.yes)
    kind = wizard.choice(args.kind, "kind of device", tuple(KINDS), "meter")
    setups = setups_of(kind)
    usual = tuple(setups)
    name = wizard.value(args.id, "id of the device", f"{kind}-1")
    fleet = wizard.value(args.fleet, "fleet", "north")
    broker = wizard.value(
        args.broker, "broker of the fleet, or none to run alone", "mqtt://127.0.0.1"
    )
    source = wizard.choice(args.source, "source of readings", usual, usual[0])
    setup = setups[source]
    address = wizard.value(args.address, setup.question, setup.default)
    section = setup.write(wizard, args.config.parent, address, KINDS[kind].stream)
    text = written(kind, name, fleet, broker, section.text)
    if args.mqtt_output:
        text += _output(args.mqtt_output)
    write_new(args.config, text, lambda path: Config.load(path, {}))
    joining = [
        f"gridfed-edge enrol {args.config}       make the key; give the printed line to the operator",
        f"copy root.pub from the operator to {args.config.parent.absolute()}",
        *_certificate_step(broker, name),
    ]
    steps = [
        f"wrote {args.config}",
        *(joining if broker != NONE else ()),
        f"gridfed-edge check {args.config}       check everything",
        *([f"gridfed-edge run {args.config}         learn and forecast"] if broker == NONE else ()),
    ]
    if section.remark:
        steps.insert(1, section.remark)
    data = {"config": str(args.config), "kind": kind, "id": name, "bundle": KINDS[kind].bundle}
    return CommandResult(data, "\n".join(steps))


def written(kind: str, name: str, fleet: str, broker: str, source: str) -> str:
    """Return the text of a configuration."""
    begin = KINDS[kind]
    return f"""\
# A {kind}. Paths are relative to this file's folder. All keys: docs/configuration.md
id = {_text(name)}
fleet = {_text(fleet)}
state = "state"                 # folder for the database and other persistent files
bundle = {_text(begin.bundle)}  # {begin.about}; forecasts after a day of readings

{_broker(broker, name)}
[accept]                        # what an aggregator may ask of this device
methods = ["analytic", "fedavg", "fedprox", "fedavgm", "fedadam"]
max_steps = 64                  # longer tasks are refused

{source}
# Where forecasts go; docs/outputs.md has files, HTTP and Home Assistant.
[[output]]
type = "http"                   # http://127.0.0.1:8322/forecast and /metrics, on this machine only
listen = "127.0.0.1:8322"

# This section is required: unprotected updates must be configured explicitly.
[privacy]                       # other mechanisms: docs/privacy.md
mechanism = {{ name = "none" }}
"""


def _text(value: str) -> str:
    return json.dumps(value)


def _broker(broker: str, name: str) -> str:
    """Return the sections of broker and keys; a device alone has them as comments."""
    key = f"[keys]\ndevice = {_text(f'{name}.key')}"
    if broker == NONE:
        return f"""\
{key} # made at the first start
# The device runs alone. To join a fleet, remove the # below, set fleet above, and copy root.pub from the
# operator; then: gridfed-edge enrol. Readings and models are kept.
# root = "root.pub"
# [broker]
# url = "mqtts://host:8883"     # with ca_file, cert_file and key_file
"""
    return f"""\
[broker]
url = {_text(broker)}
{_certificates(broker, name)}
{key} # made by: gridfed-edge enrol
root = "root.pub"               # from the operator
"""


def _certificates(broker: str, name: str) -> str:
    if not broker.startswith("mqtts:"):
        return "# For a broker on another machine: mqtts:// with ca_file, cert_file and key_file.\n"
    return (
        'ca_file = "broker-ca.pem"       # authority that signed the broker\'s certificate\n'
        f"cert_file = {_text(f'{name}.pem')}\nkey_file = {_text(f'{name}-tls.key')}\n"
    )


def _certificate_step(broker: str, name: str) -> list[str]:
    if not broker.startswith("mqtts:"):
        return []
    return [
        f"copy broker-ca.pem, {name}.pem and {name}-tls.key from the operator to the same folder"
    ]


def _output(url: str) -> str:
    return f"""
[[output]]                      # Home Assistant finds the forecast by itself
type = "mqtt"
url = {_text(url)}
"""
