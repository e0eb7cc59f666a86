"""Write the first ``[[source]]`` section of a device for each type of source."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edge_sdk.app.wizard import Wizard
from edge_sdk.extensions.sources.csv_columns import CsvColumns, proposed_columns


class SourceText(NamedTuple):
    """A ``[[source]]`` section as text, and a remark about the device at its address."""

    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class SourceSetup:
    """The setup of one type of source."""

    question: str
    default: str  # address that is written without an answer
    kinds: tuple[str, ...]  # kinds of device that have such a source
    # function of the wizard, the configuration's folder, the address, and the stream of the kind's
    # own readings
    write: Callable[[Wizard, Path, str, str], SourceText]


def _p1(_wizard: Wizard, _folder: Path, address: str, _stream: str) -> SourceText:
    return SourceText(f'[[source]]\ntype = "p1"\nurl = {json.dumps(address)}\n')


def _modbus(_wizard: Wizard, _folder: Path, address: str, _stream: str) -> SourceText:
    return SourceText(f"""\
[[source]]                      # test it: gridfed-edge source test CONFIG
type = "modbus"
url = {json.dumps(address)}
unit_id = 1
sunspec = true                  # or [[source.point]] sections: docs/sources.md
""")


def _ocpp(_wizard: Wizard, _folder: Path, address: str, _stream: str) -> SourceText:
    return SourceText(f"""\
# The charger connects to the proxy (gridfed-edge tap CONFIG), and the proxy to the back office.
[[source]]
type = "ocpp"
spool = "ocpp"                  # the proxy's records; bounded
listen = "tcp://127.0.0.1:9000"
csms = {json.dumps(address)}
""")


def _pm3gpp(_wizard: Wizard, _folder: Path, address: str, stream: str) -> SourceText:
    return SourceText(f"""\
[[source]]
type = "pm3gpp"
folder = {json.dumps(address)}
objects = "*NRCellDU=*"         # pattern of the measured objects that are this site's cells

[source.map]
"DRB.PdcpSduVolumeDL" = {{ stream = "{stream}", kind = "interval", unit = "1" }}
""")


def _csv(wizard: Wizard, folder: Path, address: str, stream: str) -> SourceText:
    found = _columns(wizard, folder / address, stream)
    usual = CsvColumns(("time",), (), {"value": stream})
    named = found if found is not None and found.columns else usual
    keys = "\n".join(named.lines())
    text = f"""\
[[source]]                      # read once, when the agent starts
type = "csv"
path = {json.dumps(address)}
{keys}
"""
    return SourceText(text, _seen(address, found))


def _columns(wizard: Wizard, path: Path, stream: str) -> CsvColumns | None:
    found = proposed_columns(path, stream)
    if found is None or len(found.numbers) < 2:
        return found
    first = found.numbers[0]
    column = wizard.choice(None, "column of the readings", found.numbers, first)
    return found if column == first else found.reading(column, stream)


def _seen(address: str, found: CsvColumns | None) -> str:
    if found is not None and found.problem:
        return f"{address} cannot be read by the agent: {found.problem}"
    if found is None or not found.columns:
        return (
            f"{address} is not there yet, or has no header and rows with times: name its columns in"
            " columns and time_column"
        )
    read = ", ".join(f"{column} as {stream}" for column, stream in found.columns.items())
    return f"{address} has times in {' and '.join(found.times)}; read: {read}"


P1 = SourceSetup("address of the P1 port", "serial:///dev/ttyUSB0?baud=115200", ("meter",), _p1)

MODBUS = SourceSetup("address of the Modbus meter", "tcp://127.0.0.1:502", ("meter",), _modbus)

OCPP = SourceSetup(
    "address of the back office", "wss://backoffice.example/ocpp", ("charger",), _ocpp
)

PM3GPP = SourceSetup("folder of the performance files", "pm", ("station",), _pm3gpp)

CSV = SourceSetup("file of the readings", "readings.csv", ("meter", "charger", "station"), _csv)
