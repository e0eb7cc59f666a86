"""Let ``gridfed-edge enrol`` request the certificate of a device from an EST server."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands.enrol import enrol
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.certificates.section import ca_of
from edge_sdk.link.tls_validity import day_of
from edge_sdk.session.identity import keys_for_request


class EnrolmentOverEst:
    """The enrolment with a one-time password or the certificate in use."""

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the options of EST."""
        add = parser.add_argument
        add("--otp", default="", metavar="WORD", help="one-time password from the operator")
        add("--serial", default="", help="serial number of this device (its id)")
        add("--est-url", default="", metavar="URL", help="EST server (ca.url of the configuration)")
        text = "authority of the EST server: a PEM file, or sha256: and its digest"
        add("--ca", default="", metavar="FILE|sha256:HEX", help=text)
        add("--renew", action="store_true", help="request a new certificate with the identity key")

    @staticmethod
    def is_wanted(args: Namespace) -> bool:
        return bool(args.otp or args.renew)

    @staticmethod
    def run(args: Namespace, config: Config) -> CommandResult:
        """Create the key if there is none, and request the certificate.

        Raises:
            ConfigError: Options that do not belong together, or a key file that is none.
            EstError: The server refuses, asks to wait, or cannot be reached.
        """
        from edge_sdk.extensions.certificates.certificate_enrolment import (  # noqa: PLC0415 - loads HTTP, only for EST
            Enrolment,
        )

        _refuse_line_ends(args)
        url = args.est_url or ca_of(config).url
        if not url.startswith("https://"):
            raise ConfigError(
                f"enrol: EST server {url!r}: expected https://… in --est-url or ca.url"
            )
        if args.otp and args.renew:
            raise ConfigError("enrol: expected --otp or --renew")
        if config.broker.cert_file != config.broker.key_file:
            raise ConfigError("enrol: expected broker.cert_file and broker.key_file to be one file")
        found = enrol(config)
        signer, former = keys_for_request(config)
        enrolment = Enrolment(config, url, signer, former=former)
        enrolment.trust(args.ca)
        issued = enrolment.request(is_renewal=args.renew, password=args.otp, serial=args.serial)
        about_root = enrolment.fetch_root()
        enrolment.files.install()
        file, until = enrolment.files.path, day_of(issued.until)
        lines = [f"{file}: key and certificate of {issued.name}, until {until}"]
        if about_root:
            lines.append(about_root)
        if not ca_of(config).url:
            lines.append(f'to renew it without an operator, add: [ca] url = "{url}"')
        data = found | {"certificate": str(file), "until": issued.until}
        return CommandResult(data, "\n".join(lines))


def _refuse_line_ends(args: Namespace) -> None:
    """Refuse a value that was cut from a file of another system with its line end or a blank."""
    for option in ("otp", "serial", "ca", "est_url"):
        value = str(getattr(args, option))
        if value == value.strip():
            continue
        what = "a carriage return" if "\r" in value else "a blank or line end"
        name = option.replace("_", "-")
        raise ConfigError(
            f"enrol: --{name}: the value has {what} before or after it, which is no part of it",
            hint=f"remove it, for example: --{name} \"$(cut … | tr -d '[:space:]')\"",
        )
