"""Run a small private certificate authority for TLS between devices, broker and aggregator.

gridfed-aggregator ca init ca                                  make the authority's key and certificate
gridfed-aggregator ca issue broker --role broker --host mqtt.example.org --folder ca
gridfed-aggregator ca issue _agg --role aggregator --folder ca
gridfed-aggregator ca issue meter-1 --folder ca                a device: certificate and key
gridfed-aggregator ca issue meter-1 --folder ca --csr meter-1.csr    the key stays on the device
gridfed-aggregator ca issue meter-1 --fleet north --folder ca    named north.meter-1, for a broker that fleets share
gridfed-aggregator ca revoke meter-1 --folder ca               revoke, and write revoked.pem
gridfed-aggregator ca crl --folder ca                          write revoked.pem again, before it expires
gridfed-aggregator ca list --folder ca                         everything issued, with its state
gridfed-aggregator ca passwords serials.csv --out words.csv    a one-time password for each serial
gridfed-aggregator ca serve --config aggregator.toml           enrol and renew over EST (RFC 7030)
gridfed-aggregator ca status                                   listed, enrolled, waiting, refused
gridfed-aggregator ca approve meter-1                          renew after the time of grace
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from aggregator.audit_log import login_name
from aggregator.commands.arguments import add_config_option
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificates import Role
from aggregator.extensions.authority.commands import ca_enrolment
from aggregator.extensions.authority.folder import AuthorityError
from edge_sdk.app.cli import CommandResult
from edge_sdk.link.tls_files import qualified
from edge_sdk.protocol.topics import is_device_id, is_fleet_id

# common name of an aggregator's certificate: the broker's access rules know it by this name
AGGREGATOR = "_agg"
YEARS, DAYS, LIST_DAYS = 10, 365, 30
ROLES = ("device", "aggregator", "broker")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action, and the options of each."""
    add = parser.add_argument
    add("what", choices=(*ACTIONS, *ca_enrolment.ACTIONS), help="action")
    words = (
        "init: the folder; issue, revoke, approve: the name (a device's id, _agg, a broker's file "
        "name); passwords: CSV file with the column serial, and optionally id and labels"
    )
    add("name", nargs="?", default="", help=words)
    words = "folder of the authority (ca.folder of the configuration, else ca)"
    add("--folder", type=Path, default=None, help=words)
    add("--title", default="gridfed authority", help="init: common name of the authority")
    words = "init: PKCS#11 URI of a P-256 key, instead of a key in the folder"
    add("--key", metavar="URI", default="", help=words)
    add("--role", choices=ROLES, default="device", help="issue: holder of the certificate (device)")
    words = "issue, revoke: the holder's fleet, where fleets share a broker: the name is FLEET.NAME"
    add("--fleet", default="", help=words)
    words = "issue: host name or address of a broker; may be repeated"
    add("--host", action="append", default=[], help=words)
    add("--csr", type=Path, help="issue: a request of the holder, who keeps the key")
    words = "issue: folder of the files (FOLDER/issued); passwords: file"
    add("--out", type=Path, help=words)
    add("--renew", action="store_true", help="issue: replace the files of a valid certificate")
    words = f"days of validity (init: {YEARS} years; issue: {DAYS}; revoke, crl, passwords: {LIST_DAYS})"
    add("--days", type=float, default=0.0, help=words)
    add("--passphrase-file", type=Path, help="file with the passphrase of the authority's key")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action."""
    if args.days and not 0.01 <= args.days <= 36_500:
        raise AuthorityError(f"--days: expected 0.01 to 36500, got {args.days:g}")
    if args.what in ("issue", "revoke") and not args.name:
        raise AuthorityError(f"ca {args.what}: expected a name")
    if args.what in ca_enrolment.ACTIONS:
        done = ca_enrolment.ACTIONS[args.what](args)
        ca_enrolment.pass_acts_on(args, ca_enrolment.folder_of(args))
        return done
    if args.what == "init":
        args.folder = args.folder or Path("ca")
    args.folder = ca_enrolment.folder_of(args)
    done = ACTIONS[args.what](args)
    ca_enrolment.pass_acts_on(args, args.folder)
    return done


def make_authority(args: Namespace) -> CommandResult:
    """Make an authority."""
    folder = Path(args.name) if args.name else args.folder
    lifetime = timedelta(days=args.days or 365.25 * YEARS)
    file = authority.create(
        folder, args.title, _now(), lifetime, _passphrase(args), who=login_name(), token=args.key
    )
    kept = "where its private key is" if args.key else "its private key; keep a copy offline"
    text = (
        f"{file}: certificate of the authority; devices, broker and aggregator need it as ca_file\n"
        f"{folder / authority.KEY}: {kept}\n"
        f"{folder / authority.REVOKED}: list of revoked certificates (crlfile of the broker)"
    )
    return CommandResult({"certificate": str(file), "folder": str(folder)}, text)


def issue_certificate(args: Namespace) -> CommandResult:
    """Issue a certificate."""
    _check_name(args.name, args.role)
    name = _full_name(args)
    certificate, key = authority.issue(
        args.folder,
        name,
        cast("Role", args.role),
        _now(),
        timedelta(days=args.days or DAYS),
        hosts=args.host,
        request=args.csr.read_bytes() if args.csr else None,
        out=args.out,
        is_renewal=args.renew,
        passphrase=_passphrase(args),
        who=login_name(),
        grace=ca_enrolment.grace_of(args),
    )
    lines = [f"{certificate}: certificate of {name} ({args.role})"]
    if key is not None:
        lines.append(f"{key}: its private key; give it to no other program")
    data = {"certificate": str(certificate), "key": str(key or ""), "name": name}
    return CommandResult(data, "\n".join(lines))


def revoke_certificate(args: Namespace) -> CommandResult:
    """Revoke the certificates of a name."""
    lifetime = timedelta(days=args.days or LIST_DAYS)
    name = _full_name(args)
    gone = authority.revoke(
        args.folder, name, _now(), lifetime, _passphrase(args), who=login_name()
    )
    file = args.folder / authority.REVOKED
    text = (
        f"{name}: {len(gone)} certificate{'s' * (len(gone) != 1)} revoked\n"
        f"{file}: give it to the broker (crlfile) and reload the broker; an open connection ends "
        "with the device's access rules: gridfed-aggregator revoke, then broker access"
    )
    data = {"name": name, "serials": [one.serial for one in gone], "list": str(file)}
    return CommandResult(data, text)


def write_list(args: Namespace) -> CommandResult:
    """Write the list of revoked certificates again."""
    lifetime = timedelta(days=args.days or LIST_DAYS)
    file = authority.renew_list(args.folder, _now(), lifetime, _passphrase(args))
    until = f"{_now() + lifetime:%Y-%m-%d}"
    return CommandResult({"list": str(file), "until": until}, f"{file}: valid until {until}")


def list_certificates(args: Namespace) -> CommandResult:
    """List the issued certificates."""
    found, now = authority.issued(args.folder), _now()
    rows, data = [("name", "role", "state", "until", "serial")], []
    for one in found:
        state = "revoked" if one.revoked else "valid" if one.is_valid(now) else "expired"
        rows.append((one.name, one.role, state, one.expires[:10], one.serial[:16]))
        data.append(
            {"name": one.name, "role": one.role, "state": state, "serial": one.serial}
            | {"issued": one.issued, "expires": one.expires, "revoked": one.revoked}
        )
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, wide, strict=True)).rstrip()
        for row in rows
    )
    return CommandResult({"certificates": data}, text)


def _check_name(name: str, role: str) -> None:
    if role == "aggregator" and name != AGGREGATOR:
        raise AuthorityError(
            f"ca issue {name}: expected the name {AGGREGATOR} for an aggregator",
            hint="the broker's access rules know the aggregator by this common name",
        )
    if role != "aggregator" and not is_device_id(name):
        raise AuthorityError(
            f"ca issue {name!r}: expected letters, digits, - and _, at most 64, not beginning with _",
            hint="a device's certificate has the device's id as its common name",
        )


def _full_name(args: Namespace) -> str:
    if not args.fleet:
        return str(args.name)
    if not is_fleet_id(args.fleet):
        raise AuthorityError(f"ca: --fleet {args.fleet!r}: expected letters, digits, - and _")
    if args.role == "broker":
        raise AuthorityError("ca: --fleet: expected none for a broker, which fleets share")
    try:
        return qualified(args.fleet, args.name)
    except ValueError as error:
        raise AuthorityError(f"ca: {error}") from error


def _passphrase(args: Namespace) -> bytes:
    if args.passphrase_file is None:
        return b""
    return bytes(args.passphrase_file.read_bytes().strip())


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


ACTIONS = {
    "init": make_authority,
    "issue": issue_certificate,
    "revoke": revoke_certificate,
    "crl": write_list,
    "list": list_certificates,
}
