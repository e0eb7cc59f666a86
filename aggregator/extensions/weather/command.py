r"""Publish the weather of a region to the devices that read it: history and forecast, signed.

A device reads it with [[source]] type = "fleet-weather". The message is retained, so a device that
connects later has it too; the next one of the region replaces it. Run publish again when the forecast
is new, for example every hour.

  gridfed-aggregator weather publish --region utrecht weather.csv
  gridfed-aggregator weather publish --region utrecht --url 'https://api.open-meteo.com/v1/forecast?…'
  gridfed-aggregator weather publish --region utrecht --url URL \
      --times '$.at[*]' --value 'weather.wind_speed=$.wind[*] km/h'
  gridfed-aggregator weather list
  gridfed-aggregator weather clear --region utrecht
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from aggregator.commands.arguments import CommandError, add_config_option, require_database
from aggregator.config import AggregatorConfig
from aggregator.extensions.weather.weather_publication import announced, publish
from aggregator.extensions.weather.weather_tables import (
    OPEN_METEO,
    OPEN_METEO_TIMES,
    STREAMS,
    WeatherTable,
    contents,
    fetched,
    from_csv,
    from_json,
    merged,
)
from edge_sdk.app.cli import CommandResult
from edge_sdk.extensions.weather.messages import is_region


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action, the files and the options of publish."""
    parser.add_argument("what", choices=("publish", "list", "clear"), help="action")
    parser.add_argument(
        "file", nargs="*", type=Path, help="publish: CSV files, or JSON files with the ending .json"
    )
    words = "region, as devices name it; files may follow it"
    parser.add_argument("--region", nargs="+", default=[""], metavar=("NAME", "FILE"), help=words)
    parser.add_argument("--url", default="", help="publish: address of a JSON document")
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="STREAM=PATH[ UNIT]",
        help="publish: path of a stream's values in JSON (default: as Open-Meteo)",
    )
    words = "publish: path of the times in JSON"
    parser.add_argument("--times", default=OPEN_METEO_TIMES, metavar="PATH", help=words)
    parser.add_argument(
        "--time-column", default="time", metavar="NAME", help="publish: column of the times in CSV"
    )
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action; raise CommandError if an argument is missing or wrong."""
    if args.what == "list":
        return _list(require_database(AggregatorConfig.load(args.config)))
    region, *files = args.region
    if not is_region(region):
        raise CommandError(
            f"weather {args.what}: --region: {region!r}: expected letters, digits, . _ -"
        )
    config = require_database(AggregatorConfig.load(args.config))
    table = _read(args, [*args.file, *map(Path, files)]) if args.what == "publish" else None
    done = publish(config, region, table)
    when = "queued for the running daemon" if done.is_queued else "published when the daemon starts"
    if done.message is None or table is None:
        return CommandResult({"region": region, "cleared": True}, f"{region}: cleared, {when}")
    data = _described(region, table) | {"bytes": done.size, "queued": done.is_queued}
    dropped = f", {table.dropped} older rows left out" if table.dropped else ""
    span = f"{data['from']} to {data['to']}"
    text = f"{region}: {table.rows} rows every {table.step} s, {span}{dropped}; {done.size} bytes, {when}"
    return CommandResult(data, text)


def _read(args: Namespace, files: Sequence[Path]) -> WeatherTable:
    if not files and not args.url:
        raise CommandError("weather publish: give a file or --url")
    paths = dict(_path(text) for text in args.value) or OPEN_METEO
    tables = []
    for path in files:
        if path.suffix == ".json":
            tables.append(from_json(contents(path), paths, args.times))
        else:
            tables.append(from_csv(path, time_column=args.time_column))
    if args.url:
        tables.append(from_json(fetched(args.url), paths, args.times))
    return tables[0] if len(tables) == 1 else merged(tables)


def _path(text: str) -> tuple[str, str]:
    stream, _, path = text.partition("=")
    if stream not in STREAMS or not path:
        raise CommandError(
            f"weather publish: --value: {text!r}: expected STREAM=PATH; streams: {', '.join(STREAMS)}"
        )
    return stream, path


def _described(region: str, table: WeatherTable) -> dict[str, object]:
    return {
        "region": region,
        "rows": table.rows,
        "step": table.step,
        "streams": list(table.columns),
        "from": _iso(table.start),
        "to": _iso(table.start + (table.rows - 1) * table.step),
        "dropped": table.dropped,
    }


def _list(config: AggregatorConfig) -> CommandResult:
    found = [
        {
            "region": region,
            "issued": _iso(message.t / 1000),
            "rows": message.num,
            "streams": list(message.names),
            "from": _iso(message.start / 1000),
            "to": _iso((message.start + (message.num - 1) * message.step) / 1000),
        }
        for region, message in sorted(announced(config).items())
    ]
    lines = [
        f"{one['region']:<20} issued {one['issued']}  {one['rows']} rows, {one['from']} to {one['to']}"
        for one in found
    ]
    return CommandResult({"weather": found}, "\n".join(lines) or "no weather is published")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
