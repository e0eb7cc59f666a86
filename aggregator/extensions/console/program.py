"""Define the command line of ``gridfed-console``."""

from __future__ import annotations

import getpass
import logging
import sys
from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import CommandError, add_config_option, require_database
from aggregator.config import AggregatorConfig
from aggregator.operations.operator_alerts import warnings_of
from aggregator.operations.status_document import split
from edge_sdk.app.cli import CommandResult, Subcommand, fields, start_logging
from edge_sdk.app.command_line import CommandLine
from edge_sdk.errors import Failure

logger = logging.getLogger(__name__)

EPILOGUE = """\
  gridfed-console --config aggregator.toml                    serve the pages on console.listen
  gridfed-console user add alice --role operator --config aggregator.toml

The console reads the database and leaves orders for the daemon; it changes nothing itself.

exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 state needs migration
"""

EXTRA = "pip install 'gridfed-aggregator[console]'"


class MissingExtraError(Failure):
    """An installation without the packages that the console needs."""


def serve(args: Namespace) -> CommandResult:
    """Serve the console until SIGTERM.

    Raises:
        Failure: A package is missing, the fleet is not set up, or the address needs users or HTTPS.
    """
    config = require_database(AggregatorConfig.load(args.config))
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from aggregator.extensions.console.access import check_bind  # noqa: PLC0415
        from aggregator.extensions.console.app import ConsoleApp, users_file  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(f"the console needs {error.name}", hint=EXTRA) from error
    from aggregator.extensions.console.users import read_users  # noqa: PLC0415

    start_logging(config.log.level)
    users = read_users(users_file(config))
    check_bind(config, users)
    host, port = split(config.section("console").listen)
    section = config.section("console")
    scheme = "https" if section.cert_file is not None else "http"
    sys.stdout.write(f"console of fleet {config.fleet}: {scheme}://{section.listen}/\n")
    sys.stdout.flush()
    for warning in warnings_of(config):
        logger.warning("console warning %s", fields(why=warning))
    uvicorn.run(
        ConsoleApp.of(config).starlette(),
        host=host,
        port=port,
        ssl_certfile=section.cert_file,
        ssl_keyfile=section.key_file,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=section.behind_proxy,
        limit_concurrency=256,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
    )
    return CommandResult({})


def add_serve_arguments(parser: ArgumentParser) -> None:
    add_config_option(parser)


def add_user_arguments(parser: ArgumentParser) -> None:
    """Add the act, the name and the role."""
    parser.add_argument("act", choices=("add", "remove", "list"), help="what to do")
    parser.add_argument("name", nargs="?", default="", help="name of the user")
    parser.add_argument(
        "--role", default="viewer", help="viewer, operator (also gives orders) or security (all)"
    )
    add_config_option(parser)


def change_user(args: Namespace) -> CommandResult:
    """Add, remove or list users; the password is read from the terminal or from standard input."""
    from aggregator.extensions.console.users import new_user, read_users, write_users  # noqa: PLC0415

    config = AggregatorConfig.load(args.config)
    path = config.state / "console" / "users.json"
    users = dict(read_users(path))
    if args.act == "list":
        roles = {name: user.role for name, user in users.items()}
        return CommandResult({"users": roles}, "\n".join(f"{n}  {r}" for n, r in roles.items()))
    if args.act == "remove":
        if args.name not in users:
            raise CommandError(f"user remove: there is no user {args.name!r}")
        del users[args.name]
    else:
        is_terminal = sys.stdin.isatty()
        password = getpass.getpass() if is_terminal else sys.stdin.readline().rstrip("\n")
        users[args.name] = new_user(args.name, args.role, password)
    write_users(path, users)
    done = "removed" if args.act == "remove" else f"added as {args.role}"
    return CommandResult({"name": args.name, "done": done}, f"user {args.name} {done}")


COMMANDS = {
    "serve": Subcommand(
        "Serve the console until SIGTERM (the default).", serve, add_serve_arguments
    ),
    "user": Subcommand("Add, remove or list the console's users.", change_user, add_user_arguments),
}


def program() -> CommandLine:
    about = "Operator's console of a fleet: pages over the aggregator's database."
    return CommandLine("gridfed-console", about, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand, ``serve`` if none is named; return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if not words or (words[0].startswith("-") and words[0] not in {"-h", "--help", "--version"}):
        words = ["serve", *words]
    return program().main(words)
