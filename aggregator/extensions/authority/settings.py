"""Define the section ``[ca]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from edge_sdk.app.schema import Between


@dataclass(frozen=True, slots=True)
class AuthoritySection:
    """The fleet's certificate authority, which enrols devices and shuts out revoked ones."""

    folder: Path | None = None  # the authority's folder, made by ca init
    passphrase_file: Path | None = None  # passphrase of its key
    listen: str = "127.0.0.1:8443"  # host:port of ca serve
    hosts: tuple[str, ...] = ()  # names and addresses by which devices reach it
    certificate_days: Annotated[float, Between(0.01, 3650.0)] = 30.0  # validity for a device
    grace_days: Annotated[float, Between(0.0, 3650.0)] = 180.0  # renewal after the end, unapproved
    access_file: Path | None = None  # the broker's acl_file, which daemon and revoke change
    reload: tuple[str, ...] = ()  # command that makes the broker read its files again
    shared: bool = False  # several fleets share the broker: names are FLEET.DEVICE
