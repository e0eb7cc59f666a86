"""Write a commented configuration of a new device, after a few questions.

On a terminal each value that no option gives is asked for; --yes takes the defaults instead. An
existing file is never changed.

  gridfed-edge init meter.toml
  gridfed-edge init charger.toml --kind charger --id charger-7 --fleet east --yes
  gridfed-edge init meter.toml --source p1 --address tcp://192.168.1.20:23 --yes
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.wizard import Wizard, write_new
from edge_sdk.config import Config


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The first settings of a kind of device.

    Attributes:
        bundle: Shipped bundle that needs nothing but the kind's own readings.
        about: What the bundle forecasts.
        sources: Types of source, the usual one first.
    """

    bundle: str
    about: str
    sources: tuple[str, ...]


KINDS = {
    "meter": DeviceKind("load-week-1", "energy of the next hour", ("p1", "modbus", "csv")),
    "charger": DeviceKind("chargers-week-1", "demand of the next half hour", ("ocpp", "csv")),
    "station": DeviceKind("cells-week-1", "traffic of the next hour", ("pm3gpp", "csv")),
}

ADDRESSES = {
    "p1": ("address of the P1 port", "serial:///dev/ttyUSB0?baud=115200"),
    "modbus": ("address of the Modbus meter", "tcp://127.0.0.1:502"),
    "ocpp": ("address of the back office", "wss://backoffice.example/ocpp"),
    "pm3gpp": ("folder of the performance files", "pm"),
    "csv": ("file of the readings", "readings.csv"),
}
"""Question and default of the address of each type of source."""

STREAMS = {
    "meter": "elec.import.energy",
    "charger": "ev.demand.energy",
    "station": "cell.internet.activity",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the TOML file to write")
    parser.add_argument("--kind", choices=tuple(KINDS), help="kind of device (meter)")
    parser.add_argument("--id", help="id of the device; with certificates, their common name")
    parser.add_argument("--fleet", help="fleet of the device (north)")
    parser.add_argument("--broker", metavar="URL", help="the fleet's broker (mqtt://127.0.0.1)")
    parser.add_argument("--source", choices=tuple(ADDRESSES), help="type of the source of readings")
    parser.add_argument("--address", help="address, folder or file of the source")
    parser.add_argument(
        "--mqtt-output", metavar="URL", help="also publish forecasts to this local broker"
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing; take the defaults")


def run(args: Namespace) -> CommandResult:
    """Write the configuration; return what to do next."""
    wizard = Wizard.of(accept_defaults=args.yes)
    kind = wizard.choice(args.kind, "kind of device", tuple(KINDS), "meter")
    usual = KINDS[kind].sources
    name = wizard.value(args.id, "id of the device", f"{kind}-1")
    fleet = wizard.value(args.fleet, "fleet", "north")
    broker = wizard.value(args.broker, "broker of the fleet", "mqtt://127.0.0.1")
    source = wizard.choice(args.source, "source of readings", usual, usual[0])
    address = wizard.value(args.address, *ADDRESSES[source])
    text = written(kind, name, fleet, broker, source, address)
    if args.mqtt_output:
        text += _output(args.mqtt_output)
    write_new(args.config, text, lambda path: Config.load(path, {}))
    steps = [
        f"wrote {args.config}",
        f"gridfed-edge enrol {args.config}       make the key; give the printed line to the operator",
        f"copy root.pub from the operator to {args.config.parent.absolute()}",
        *_certificate_step(broker, name),
        f"gridfed-edge check {args.config}       check everything",
    ]
    data = {"config": str(args.config), "kind": kind, "id": name, "bundle": KINDS[kind].bundle}
    return CommandResult(data, "\n".join(steps))


def written(  # noqa: PLR0917 - one value each
    kind: str, name: str, fleet: str, broker: str, source: str, address: str
) -> str:
    """Return the text of a configuration."""
    begin = KINDS[kind]
    return f"""\
# A {kind}. Paths are relative to this file's folder. All keys: docs/configuration.md
id = {_text(name)}
fleet = {_text(fleet)}
state = "state"                 # folder for the database and other persistent files
bundle = {_text(begin.bundle)}  # {begin.about}; forecasts after a day of readings

[broker]
url = {_text(broker)}
{_certificates(broker, name)}
[keys]
device = {_text(f"{name}.key")} # made by: gridfed-edge enrol
root = "root.pub"               # from the operator

[accept]                        # what an aggregator may ask of this device
methods = ["fedavg", "fedprox", "fedavgm", "fedadam"]
max_steps = 64                  # longer tasks are refused

{_source(kind, source, address)}
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


def _source(kind: str, source: str, address: str) -> str:
    stream, where = STREAMS[kind], _text(address)
    return {
        "p1": f'[[source]]\ntype = "p1"\nurl = {where}\n',
        "modbus": f"""\
[[source]]                      # test it: gridfed-edge source test CONFIG
type = "modbus"
url = {where}
unit_id = 1
sunspec = true                  # or [[source.point]] sections: docs/sources.md
""",
        "ocpp": f"""\
# The charger connects to the proxy (gridfed-edge tap CONFIG), and the proxy to the back office.
[[source]]
type = "ocpp"
spool = "ocpp"                  # the proxy's records; bounded
listen = "tcp://127.0.0.1:9000"
csms = {where}
""",
        "pm3gpp": f"""\
[[source]]
type = "pm3gpp"
folder = {where}
objects = "*NRCellDU=*"         # pattern of the measured objects that are this site's cells

[source.map]
"DRB.PdcpSduVolumeDL" = {{ stream = "{stream}", kind = "interval", unit = "1" }}
""",
        "csv": f"""\
[[source]]                      # read once, when the agent starts
type = "csv"
path = {where}
columns = {{ value = "{stream}" }} # column of the file and its stream; times are in column "time"
""",
    }[source]


def _output(url: str) -> str:
    return f"""
[[output]]                      # Home Assistant finds the forecast by itself
type = "mqtt"
url = {_text(url)}
"""
