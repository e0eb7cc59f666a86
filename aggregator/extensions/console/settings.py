"""Define the section ``[console]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OidcSection:
    """Sign-in of the console by an issuer of OpenID Connect."""

    issuer: str  # URL of the issuer
    client_id: str  # id of the console at the issuer
    client_secret_file: Path | None = None  # file with the secret; left out: a public client
    url: str = ""  # the console's address in browsers; left out: that of console.listen
    ca_file: Path | None = None  # certificates that the issuer's is checked against
    scopes: tuple[str, ...] = ("openid", "profile")  # scopes that are asked for
    name_claim: str = "preferred_username"  # claim with the name in the order log; else sub
    role_claim: str = "groups"  # claim whose values are mapped to roles; a.b is b within a
    viewer: tuple[str, ...] = ()  # values for the role viewer
    operator: tuple[str, ...] = ()  # values for the role operator
    security: tuple[str, ...] = ()  # values for the role security


@dataclass(frozen=True, slots=True)
class ConsoleSection:
    """Operator's console, which ``gridfed-console`` serves."""

    listen: str = "127.0.0.1:9470"  # host:port
    cert_file: Path | None = None  # certificate for HTTPS, with its chain
    key_file: Path | None = None  # private key of that certificate
    behind_proxy: bool = False  # a proxy on this machine or network ends HTTPS before it
    hosts: tuple[str, ...] = ()  # names in the browser's address, beside the loopback ones
    oidc: OidcSection | None = None  # sign-in by OpenID Connect
