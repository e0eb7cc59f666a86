"""Run ``gridfed-edge``: start a device, or inspect one. Each command imports what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_sdk.app.cli import OK, RUNTIME, TEMPORARY, CommandLine, CommandResult, Subcommand

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from edge_sdk.config import Config

_ABOUT = """\
Make this device learn to forecast its own readings, together with its fleet.

The model is trained here, on readings that never leave. Only the shared layers of the model are
sent, over MQTT, signed; the others stay. Whether the link is there or not, the device forecasts."""

_EPILOGUE = """\
A first start:
  gridfed-edge enrol meter.toml     make this device's key; hand the printed line to the operator
  gridfed-edge check meter.toml     is everything right?
  gridfed-edge run meter.toml       observe, learn, share, forecast, until SIGTERM

Every setting can also come from the environment: GRIDFED_EDGE_BROKER__URL=mqtts://… overrides
url in [broker]. Exit codes: 0 well, 1 failed, 2 wrong usage or configuration, 3 the state needs a
newer version, 75 try again later."""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    return CommandLine("gridfed-edge", _ABOUT, _COMMANDS, _EPILOGUE).main(argv)


def _config(args: Namespace) -> Config:
    from edge_sdk.config import Config  # noqa: PLC0415 - each command loads what it needs

    return Config.load(args.config)


def _takes_config(parser: ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the device's TOML file")


def _run_arguments(parser: ArgumentParser) -> None:
    _takes_config(parser)
    parser.add_argument(
        "--until-done", action="store_true", help="leave when the fleet's run has ended"
    )
    parser.add_argument("--log", default="info", choices=("debug", "info", "warning", "error"))


def _run(args: Namespace) -> CommandResult:
    from edge_sdk.agent import run  # noqa: PLC0415
    from edge_sdk.app.cli import start_logging  # noqa: PLC0415

    start_logging(args.log)
    return CommandResult(run(_config(args), until_done=args.until_done))


def _check_arguments(parser: ArgumentParser) -> None:
    _takes_config(parser)
    parser.add_argument(
        "--broker", action="store_true", help="also try to reach the broker, for ten seconds"
    )


def _check(args: Namespace) -> CommandResult:
    from edge_sdk.app.settings import shown  # noqa: PLC0415
    from edge_sdk.commands.check import check, reach_broker  # noqa: PLC0415
    from edge_sdk.config import load_with_origins  # noqa: PLC0415

    loaded = load_with_origins(args.config)
    found = check(loaded.value)
    code = OK
    if args.broker:
        found["broker"], is_there = reach_broker(loaded.value)
        code = OK if is_there else TEMPORARY
    rows = shown(loaded.value, loaded.origins)
    lines = [f"{key} = {value}    ({origin})" for key, value, origin in rows]
    lines += ["", *(f"{what}: {how}" for what, how in found.items())]
    settings = {key: {"value": value, "origin": origin} for key, value, origin in rows}
    return CommandResult({"settings": settings, "found": found}, "\n".join(lines), code)


def _forecast_arguments(parser: ArgumentParser) -> None:
    _takes_config(parser)
    parser.add_argument(
        "--rolling",
        nargs=2,
        metavar=("FROM", "TO"),
        help="forecast from every window that begins in this span (ISO times or Unix seconds)",
    )
    parser.add_argument("--out", type=Path, metavar="CSV", help="where --rolling writes")
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="read, in memory only, what the sources hold after their 'until': the truth",
    )


def _forecast(args: Namespace) -> CommandResult:
    from edge_sdk.commands.inspect import DeviceInspection  # noqa: PLC0415
    from edge_sdk.errors import ConfigError  # noqa: PLC0415

    review = DeviceInspection.of(_config(args), beyond=args.beyond)
    if args.rolling is None:
        return _told(review.forecast())
    if args.out is None:
        raise ConfigError("--rolling needs --out CSV", hint="say where the forecasts go")
    begin, end = map(_moment, args.rolling)
    count = review.write_rolling(begin, end, args.out)
    return CommandResult({"windows": count, "out": str(args.out)}, f"{count} windows in {args.out}")


def _told(forecast: Any) -> CommandResult:  # noqa: ANN401 - a Forecast; naming it would load numpy
    from datetime import UTC, datetime  # noqa: PLC0415

    times = [datetime.fromtimestamp(int(t), UTC).isoformat() for t in forecast.times]
    values = [float(v) if v == v else None for v in forecast.median]  # noqa: PLR0124 - NaN
    data = {"source": forecast.source, "unit": forecast.unit, "times": times, "values": values}
    lines = [
        f"{time}  {'-' if v is None else f'{v:.6g}'}" for time, v in zip(times, values, strict=True)
    ]
    head = f"{forecast.unit}, by {forecast.source}"
    if forecast.interval is not None:
        ends = [[float(low), float(high)] for low, high in forecast.interval]
        data |= {"interval": ends, "coverage": forecast.coverage, "calibrated": forecast.calibrated}
        lines = [
            f"{line:>36}  {low:.6g} to {high:.6g}"
            for line, (low, high) in zip(lines, ends, strict=True)
        ]
        head += f", {forecast.coverage:.0%} between; {_tried(forecast.calibrated)}"
    return CommandResult(data, "\n".join((f"{head}:", *lines)))


def _tried(rows: int) -> str:
    """Return how far an interval is calibrated, in words.

    >>> _tried(0), _tried(672)
    ('as the model tells it', 'held to that on 672 readings')
    """
    return f"held to that on {rows} readings" if rows else "as the model tells it"


def _moment(text: str) -> float:
    from datetime import UTC, datetime  # noqa: PLC0415

    from edge_sdk.errors import ConfigError  # noqa: PLC0415

    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no moment", hint="such as 2014-10-01T00:00 (UTC) or Unix seconds"
        ) from error
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _status(args: Namespace) -> CommandResult:
    from edge_sdk.commands.inspect import status  # noqa: PLC0415

    found = status(_config(args))
    return CommandResult(
        found, "\n".join(f"{key}: {_plain(value)}" for key, value in found.items())
    )


def _plain(value: object) -> str:
    """Format a value of the status.

    >>> _plain({"epsilon": 29.99999999998864, "left": None}), _plain([])
    ('epsilon 30, left unlimited', 'none')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if value is None:
        return "unlimited"
    if isinstance(value, list):
        return "; ".join(map(_plain, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _budget_arguments(parser: ArgumentParser) -> None:
    _takes_config(parser)
    parser.add_argument(
        "--datasheet", action="store_true", help="print the privacy data sheet of this device"
    )


def _budget(args: Namespace) -> CommandResult:
    from edge_sdk.commands.inspect import budget, datasheet  # noqa: PLC0415
    from edge_sdk.privacy.datasheet import as_text  # noqa: PLC0415

    if args.datasheet:
        sheet = datasheet(_config(args))
        return CommandResult(sheet, as_text(sheet))
    found = budget(_config(args))
    text = (
        f"{found['bundle']}: {found['shared']} scalars shared, {found['personal']} stay here\n"
        f"a round costs {found['bytes_up']} bytes up and about {found['bytes_down']} down\n"
        f"{found.pop('text')}\n" + "\n".join(map(_spared, found["limits"].items()))
    )
    return CommandResult(found, text, RUNTIME if found["spent"] else OK)


def _spared(row: tuple[str, Mapping[str, float | None]]) -> str:
    """Format the use and the limit of one resource."""
    what, of = row
    unit = "seconds" if what.startswith("wake") else "bytes"
    limit = "no limit" if of["limit"] is None else f"at most {of['limit']:.0f} {unit}"
    return f"{what}: {limit}; {of['used']:.0f} {unit} used so far"


def _source_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("test",), help="listen, decode, print")
    _takes_config(parser)
    parser.add_argument("name", nargs="?", default="", help="its number or type, if there are more")
    parser.add_argument("--count", type=int, default=1, help="readings to wait for (1)")
    parser.add_argument("--seconds", type=float, default=30.0, help="to wait at most (30)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the frames, to replay")


def _source(args: Namespace) -> CommandResult:
    from edge_sdk.commands.source_test import chosen, lines, listen  # noqa: PLC0415

    found = listen(chosen(_config(args), args.name), args.count, args.seconds, args.record)
    heard = found["values"] or found["readings"]
    return CommandResult(found, "\n".join(lines(found)), OK if heard else TEMPORARY)


def _tap_arguments(parser: ArgumentParser) -> None:
    _takes_config(parser)
    parser.add_argument("--source", type=int, metavar="N", help="its number, if there are more")
    parser.add_argument("--log", default="info", choices=("debug", "info", "warning", "error"))


def _tap(args: Namespace) -> CommandResult:
    from edge_sdk.app.cli import start_logging  # noqa: PLC0415
    from edge_sdk.commands.ocpp_proxy import run, section_of  # noqa: PLC0415

    start_logging(args.log)
    counts = run(section_of(_config(args), args.source), lambda url: print(url, flush=True))
    return CommandResult(counts, ", ".join(f"{what} {count}" for what, count in counts.items()))


def _enrol(args: Namespace) -> CommandResult:
    from edge_sdk.commands.check import enrol  # noqa: PLC0415

    found = enrol(_config(args))
    made = "made a new key" if found["is_new"] else "this device has its key already"
    text = (
        f"{made}: {found['key']}\nhand this line to the operator:\n"
        f"{found['id']},{found['public']},{found['proof']}"
    )
    return CommandResult(found, text)


_COMMANDS = {
    "run": Subcommand(
        "Observe, learn, share and forecast, until SIGTERM.",
        _run,
        _run_arguments,
        "The first SIGTERM or SIGINT finishes what is at hand; a second one stops at once.\n"
        "Without a broker it keeps trying, and goes on forecasting.",
    ),
    "check": Subcommand(
        "Check configuration, keys, bundle and sources; print every setting and its origin.",
        _check,
        _check_arguments,
        "Nothing is written and nothing is sent.",
    ),
    "forecast": Subcommand(
        "Forecast what follows the newest reading, or score a span of the past.",
        _forecast,
        _forecast_arguments,
        "Reads the device's state beside a running agent.",
    ),
    "status": Subcommand("Show what a device has learned, owes and spent.", _status, _takes_config),
    "budget": Subcommand(
        "Explain what a round costs, what was told about this device, and what may yet be.",
        _budget,
        _budget_arguments,
        "Ends with 1 when the budget is spent: nothing leaves any more, and the device learns for\n"
        "itself. --datasheet prints what NIST SP 800-226 wants a claim to name, from the running\n"
        "configuration and the ledger.",
    ),
    "source": Subcommand(
        "Try one source: print what the interface says, and the readings that become of it.",
        _source,
        _source_arguments,
        "Ends with 75 when nothing was heard. Needs no broker and no key; nothing is stored.\n"
        "--record keeps what came, for a [[source]] of type replay.",
    ),
    "tap": Subcommand(
        "Stand between a charger and its back office: forward everything, note what was measured.",
        _tap,
        _tap_arguments,
        "Prints the address that the charger is told. A process of its own: the agent may stop\n"
        "beside it. What it notes is energy and time; tokens that name a driver are left out.",
    ),
    "enrol": Subcommand(
        "Make this device's key, and print the line that the operator needs.",
        _enrol,
        _takes_config,
        "The line is: id, public key, and a proof that this device holds the private half.\n"
        "The private key never leaves this machine.",
    ),
}
