"""Read the messages of a charger that the OCPP proxy records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from edge_sdk.app.schema import Between
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import Decoder, FramedLink
from edge_sdk.extensions.sources.interface import Interface, LiveSection
from edge_sdk.extensions.sources.ocpp import OcppDecoder
from edge_sdk.extensions.sources.spool import SpoolReader


@dataclass(frozen=True, slots=True, kw_only=True)
class OcppSection(LiveSection):
    """``type = "ocpp"``: a charger whose messages ``gridfed-edge tap`` records."""

    spool: str = ""  # folder of the tap's recordings, read by this source
    spool_bytes: Annotated[int, Between(1 << 19, 1 << 32)] = 4 << 20  # maximum size of the folder
    listen: str = "tcp://127.0.0.1:9000"  # address at which the charger connects
    csms: str = ""  # back office: wss://backoffice.example/ocpp
    ca_file: str = ""  # authority that signed the back office's certificate
    cert_file: str = ""  # certificate of the tap, for chargers that use TLS
    key_file: str = ""  # private key of that certificate
    renamed: ClassVar[Mapping[str, str]] = {
        **LiveSection.renamed,
        "office": "csms",
        "ocmf_key": "removed: the values that the charger sends beside its signed ones are read",
    }


def _feed(section: OcppSection) -> FramedLink:
    if not section.spool:
        raise ConfigError(
            "source ocpp: 'spool' is missing: the folder of the OCPP proxy's recordings"
        )
    return SpoolReader(Path(section.spool), "ocpp")


def _decoder(_section: OcppSection) -> Decoder:
    return OcppDecoder()


OCPP = Interface("ocpp", OcppSection, _feed, _decoder, is_retold=True)
