"""Write docs/configuration.md from the dataclasses and the commands themselves.

    python tools/docs.py            # write it
    python tools/docs.py --check    # end with 1 if it is out of date

What a key means is the comment beside it, or its line in the docstring; nobody writes it twice.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aggregator import config as aggregator_config
from aggregator.methods import METHODS
from edge_sdk import config as device_config
from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.settings import EXTENSIONS, Duration
from edge_sdk.extensions.outputs.forecast_issuer import OUTPUTS
from edge_sdk.extensions.outputs.threaded_output import OutputSection
from edge_sdk.extensions.sources.csvfile import CsvFile
from edge_sdk.extensions.sources.interface import Interface, LiveSection
from edge_sdk.extensions.sources.json_values import JsonValue
from edge_sdk.extensions.sources.register_map import RegisterPoint
from edge_sdk.extensions.sources.stream_map import StreamName
from edge_sdk.extensions.weather.fleet_weather import FleetWeatherSection
from edge_sdk.extensions.weather.weather_inbox import TYPE
from edge_sdk.sources import SOURCES as TYPES
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.peers.graphs import PeerGraph
from firmware_sim.scenario import Scenario

PAGE = ROOT / "docs" / "configuration.md"
EVERY_COMMANDS = re.compile(
    r"^ +(-h, --help +show this help message and exit|--json +print JSON instead of prose)\n",
    re.MULTILINE,
)
"""Options in the help of every command."""

SUBCOMMANDS = re.compile(r"^positional arguments:\n  COMMAND\n(    .*\n)+\n*", re.MULTILINE)
"""The list of a program's commands, each of which has a heading of its own."""

SettingRow = tuple[str, str, str, str]
"""Key, value, default and meaning of a method's setting."""

PROGRAMS = {
    "gridfed-edge": "edge_sdk.commands.main",
    "gridfed-aggregator": "aggregator.commands.main",
    "gridfed-console": "aggregator.extensions.console.program",
    "gridfed-witness": "aggregator.extensions.model_log.program",
    "gridfed-sim": "firmware_sim.commands.main",
}
WORDS: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    list: "list of texts",
    Path: "path",
    Any: "any",
}
CSV_KEYS = {"start": "from"}

INTRO = """\
# Configuration and commands

This page is written by `python tools/docs.py` from the programs; a test compares the two.

Both files are TOML. Later wins: the defaults, the file, `conf.d/*.toml` beside it in the order of
their names, the environment. A relative path is taken from the file's folder. A duration is a
number and a unit: `250ms`, `90s`, `15m`, `2h`, `7d`. An unknown key is an error that names the
file, the key and the nearest known one.

Every key can come from the environment: the program's prefix, then the key in capitals, with two
underscores for each dot. `GRIDFED_EDGE_BROKER__URL` is `url` in `[broker]` of a device,
`GRIDFED_AGGREGATOR_RUN__QUORUM` is `quorum` in `[run]` of an aggregator. A value that reads as
TOML is taken as such, anything else as text. `GRIDFED_DEBUG=1` shows where an unforeseen error
came from.
"""


CODES = """\
Every command takes `-h` for its help, and `--json` to print JSON instead of prose. Exit codes: 0
done, 1 failed, 2 wrong usage or configuration, 3 the state was written by a newer version, 75 try
again later.
"""

SOURCES = """\
### `[[source]]`

Where readings come from; [sources](sources.md) explains each type. A moment is a date, a date and
time, or Unix seconds. In a CSV file's section, `column` and `stream` may stand for `columns` with
one entry.
"""

REPLAYED = """\
`type = "replay"` takes `path`, a recording, and `recorded_type`, the type it is a recording of, and the other
keys of that type. Plain bytes of a P1 port are a recording, too.
"""


OUTPUTS_INTRO = """\
### `[[output]]`

Where forecasts go; [outputs](outputs.md) explains each type.
"""


SCENARIO_INTRO = """\
## A scenario: `scenario.toml`

What `gridfed-sim fleet`, `sweep` and `demo` read with `--scenario`; [scenarios](scenarios.md) has examples.
`[[comparisons]]` has the keys of `[run]`.
"""


PARTICIPATIONS_INTRO = """\
### `[[participation]]`

A further run in which the device takes part at the same time;
[several runs on one device](operating.md#several-runs-on-one-device) explains it.
"""


def page() -> str:
    parts = [
        INTRO,
        "## A device: `meter.toml`\n",
        *_tables(device_config.Config),
        _sources(),
        _outputs(),
        PARTICIPATIONS_INTRO,
        _own(device_config.ParticipationSection, ()),
        "## An aggregator: `aggregator.toml`\n",
        *_tables(aggregator_config.AggregatorConfig),
        _methods(),
        *_scenario(),
        "## Commands\n",
        CODES,
        *(_commands(name) for name in PROGRAMS),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _scenario() -> Iterator[str]:
    """Return the keys of a scenario file, with those of its lists and of the graph among peers."""
    yield SCENARIO_INTRO
    yield from _tables(Scenario)
    yield "### `[run.graph]` of a scenario among peers\n"
    yield _own(PeerGraph, ())
    yield "### `[[attacks]]`\n"
    yield _own(AttackPlan, ())


def keys(config: type[Any]) -> dict[str, Field[Any]]:
    """Return every dotted key of a configuration and its field, tables left out.

    >>> "broker.keepalive" in keys(device_config.Config)
    True
    >>> "broker" in keys(device_config.Config)
    False
    """
    found: dict[str, Field[Any]] = {}
    for name, section in extension_sections(config).items():
        found |= {f"{name}.{key}": value for key, value in keys(section).items()}
    for field in _fields(config):
        inner = _section(config, field)
        if inner is None:
            found[field.name] = field
        else:
            found |= {f"{field.name}.{name}": value for name, value in keys(inner).items()}
    return found


def extension_sections(config: type[Any]) -> dict[str, type[Any]]:
    """Return the settings of extensions by the name of their table, in the order of the index."""
    index: ExtensionIndex | None = getattr(config, "index", None)
    return {} if index is None else {x: y.load("section") for x, y in index.sections().items()}


def commands(program: str) -> Mapping[str, Any]:
    """Return a program's subcommands by name."""
    module = importlib.import_module(PROGRAMS[program])
    table: Mapping[str, Any] = module.COMMANDS
    return table


def told(program: str, *arguments: str) -> str:
    """Return a program's output, 80 columns wide on any terminal."""
    main: Callable[[list[str]], int] = importlib.import_module(PROGRAMS[program]).main
    out = io.StringIO()
    plain = {"COLUMNS": "80", "NO_COLOR": "1"}
    with (
        mock.patch.dict(os.environ, plain),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main(list(arguments))
    return out.getvalue()


def meanings(cls: type[Any]) -> dict[str, str]:
    """Return each field's meaning: the comment on its line or above it, else its ``Attributes`` entry.

    Inherited fields keep their meaning, unless the class documents them again.

    >>> meanings(device_config.KeysSection)["root"]
    'root public key of the operator; unset, without [broker]: alone'
    """
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    values = {
        k: v for base in cls.__bases__ if is_dataclass(base) for k, v in meanings(base).items()
    }
    values |= _attributes(inspect.getdoc(cls) or "")
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
            above = list(takewhile(_is_comment, reversed(lines[: node.lineno - 1])))
            if "#" in comment:
                values[node.target.id] = comment.partition("#")[2].strip()
            elif above:
                values[node.target.id] = " ".join(line.strip("# ") for line in reversed(above))
    return {name: text.replace("``", "`") for name, text in values.items()}


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _attributes(doc: str) -> dict[str, str]:
    """Read the ``Attributes`` section of a docstring; a wrapped line belongs to the one above."""
    found: dict[str, str] = {}
    name = ""
    for line in doc.partition("Attributes:\n")[2].splitlines():
        depth = len(line) - len(line.lstrip())
        if not line.strip() or depth == 0:
            break
        if depth == 4:
            name, _, text = line.strip().partition(": ")
            found[name] = text
        else:
            found[name] += " " + line.strip()
    return found


def _fields(cls: type[Any]) -> Iterator[Field[Any]]:
    """Return the fields that a file sets.

    ``further_runs`` are written as further ``[[run]]``, ``extensions`` as the table of each.
    """
    others = ("further_runs", EXTENSIONS)
    return (field for field in fields(cls) if field.init and field.name not in others)


def _hint(cls: type[Any], field: Field[Any]) -> Any:  # noqa: ANN401 - any annotation
    return get_type_hints(cls, include_extras=True)[field.name]


def _section(cls: type[Any], field: Field[Any]) -> type[Any] | None:
    """Return the section behind a key, one that may be left out too."""
    hint = _hint(cls, field)
    inside = [one for one in get_args(hint) if one is not NoneType]
    hint = inside[0] if get_origin(hint) in (Union, UnionType) and len(inside) == 1 else hint
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def _tables(
    cls: type[Any], at: str = "", further: Mapping[str, tuple[Any, str]] = MappingProxyType({})
) -> Iterator[str]:
    """Return a table of a section's plain keys, then one for each section inside."""
    further = further or getattr(getattr(cls, "index", None), "keys_of_core", {})
    plain = [field for field in _fields(cls) if _section(cls, field) is None]
    described = meanings(cls)
    if at:
        yield f"### `[{at}]`\n"
        yield (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "`") + "\n"
    rows = [(f.name, _type(_hint(cls, f)), _default(f), described.get(f.name, "")) for f in plain]
    for key, (default, meaning) in further.items():
        if key.rpartition(".")[0] == at:
            rows.append(
                (key.rpartition(".")[2], WORDS[type(default)], f"`{_toml(default)}`", meaning)
            )
    if rows:
        yield _table(rows)
    for field in _fields(cls):
        inner = _section(cls, field)
        if inner is not None:
            yield from _tables(inner, f"{at}.{field.name}" if at else field.name, further)
    for name, section in extension_sections(cls).items():
        yield from _tables(section, name)


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, kind, default, meaning in rows:
        cells = (f"`{key}`", kind, default, meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:  # noqa: ANN401 - any annotation
    """Describe a type in words.

    >>> _type(Duration), _type(Literal[4, 5]), _type(tuple[str, ...] | None)
    ('duration', '`4` or `5`', 'list: text')
    """
    if hint == Duration:
        return "duration"
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join((_type(inside[0]), *(_rule(rule) for rule in inside[1:])))
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in inside if one is not NoneType)
    if is_dataclass(hint):
        return "table"
    return _many(origin, inside) if origin else WORDS[hint]


def _many(origin: Any, inside: tuple[Any, ...]) -> str:  # noqa: ANN401 - as above
    if origin is tuple:
        if Ellipsis not in inside and len(set(inside)) > 1:
            return f"[{', '.join(map(_type, inside))}]"
        return f"list: {_type(inside[0])}"
    return f"table: {_type(inside[1])}"


def _rule(rule: object) -> str:
    pattern = getattr(rule, "pattern", None)
    return f"like `{pattern}`" if pattern else str(rule)


def _default(field: Field[Any]) -> str:
    value = field.default
    if field.default_factory is not MISSING:
        value = field.default_factory()
    if value is MISSING:
        return "**required**"
    if value is None:
        return "none"
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:  # noqa: ANN401 - any default
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _sources() -> str:
    """Return the keys of a CSV source, which are the fields of ``CsvFile``."""
    described = meanings(CsvFile)
    kinds = {
        "path": "path",
        "columns": "table: text",
        "time_column": "text, or list of two texts",
        "time_format": '`"auto"`, `"iso"`, `"epoch"` or a pattern',
        "time_zone": "text, such as `Europe/London`",
        "start": "moment",
        "until": "moment",
        "interval_seconds": "number",
        "kind": '`"auto"`, `"register"`, `"interval"` or `"instant"`',
        "times": '`"auto"`, `"begin"` or `"end"`',
        "filter": "table: text, or list of texts",
        "delimiter": "text",
        "decimal": '`"auto"`, `"."` or `","`',
    }
    defaults = {"time_zone": '`"UTC"`', "start": "none", "until": "none"}
    rows = [
        (
            CSV_KEYS.get(f.name, f.name),
            kinds[f.name],
            defaults.get(f.name) or _default(f),
            described[f.name],
        )
        for f in _fields(CsvFile)
        if f.name not in ("rejected", "offending", "unused", "dialect", "registers")
    ]
    first = ("type", '`"csv"`', "**required**", "kind of source")
    live = "\n".join(_interfaces())
    return f"{SOURCES}\n{_table([first, *rows])}\n{live}\n{REPLAYED}"


def _interfaces() -> Iterator[str]:
    yield "Every interface takes, besides its own keys:\n"
    yield _own(LiveSection, ())
    common = {f.name for f in _fields(LiveSection)}
    interfaces = [one for one in map(TYPES.get, TYPES) if isinstance(one, Interface)]
    for interface in interfaces:
        yield f'`type = "{interface.name}"`:\n'
        yield _own(interface.section, common)
    yield f'`type = "{TYPE}"`, without the keys of an interface:\n'
    yield _own(FleetWeatherSection, {"type"})
    yield "`[source.map]`, name of the interface to a stream, to `false`, or to a table:\n"
    yield _own(StreamName, ())
    yield "`[[source.value]]`, one value in a JSON document:\n"
    yield _own(JsonValue, ())
    yield "`[[source.point]]`, one value in a device's registers:\n"
    yield _own(RegisterPoint, ())


def _outputs() -> str:
    parts = [OUTPUTS_INTRO, _own(OutputSection, ())]
    common = {(f.name, f.default) for f in _fields(OutputSection)}
    for name, found in OUTPUTS.items():
        shared = {f.name for f in _fields(found.section) if (f.name, f.default) in common}
        parts += [f'`type = "{name}"`:\n', _own(found.section, shared)]
    return "\n".join(parts)


def _own(cls: type[Any], less: Iterable[str]) -> str:
    """Return a table of a section's keys without those of the base."""
    said, hidden = meanings(cls), {*less, "type", "point", "value"}
    rows = [f for f in _fields(cls) if f.name not in hidden]
    return _table((f.name, _type(_hint(cls, f)), _default(f), said.get(f.name, "")) for f in rows)


def _methods() -> str:
    """Return the keys of ``run.settings``, method by method."""
    graphs = dict.fromkeys(method.graph for method in METHODS.values() if method.graph)
    parts = [part for cls in graphs for part in _tables(cls, "run.graph")]
    settings = {name: list(_settings(method.settings)) for name, method in METHODS.items()}
    common = _common(settings.values())
    parts += [
        "### `settings` in `[run]`, by method\n",
        "Rows that several methods have are in the first table; a method names those that it has.\n",
        "#### Common settings\n",
        _table(common.values()),
    ]
    for name, rows in settings.items():
        summary = (inspect.getdoc(METHODS[name].settings) or "").partition("\n")[0]
        parts.append(f"#### `{name}`\n\n{summary}\n")
        if shared := [f"`{row[0]}`" for row in rows if common.get(row[0]) == row]:
            parts.append(f"Common: {', '.join(shared)}.\n")
        if own := [row for row in rows if common.get(row[0]) != row]:
            parts.append(_table(own))
    return "\n".join(parts)


def _common(settings: Iterable[Iterable[SettingRow]]) -> dict[str, SettingRow]:
    """Return by name the row that most methods have, where at least two have the same one.

    >>> one, other = ("a", "number", "1", "first"), ("a", "number", "2", "first")
    >>> _common([[one], [other], [one]]) == {"a": one}
    True
    """
    counts = Counter(row for rows in settings for row in rows)
    most: dict[str, SettingRow] = {}
    for row, count in counts.most_common():
        if count > 1:
            most.setdefault(row[0], row)
    return {row[0]: row for row in counts if most.get(row[0]) == row}


def _settings(cls: type[Any], at: str = "") -> Iterator[SettingRow]:
    """Return the rows of a method's settings, those of a section in them by its path."""
    described = meanings(cls)
    for f in _fields(cls):
        inner = _section(cls, f)
        if inner is not None:
            yield from _settings(inner, f"{at}{f.name}.")
        else:
            yield f"{at}{f.name}", _type(_hint(cls, f)), _default(f), described.get(f.name, "")


def _commands(program: str) -> str:
    overview = SUBCOMMANDS.sub("", told(program, "--help")).strip()
    parts = [f"### {program}\n", f"```text\n{overview}\n```\n"]
    for name in commands(program):
        text = (
            EVERY_COMMANDS.sub("", told(program, name, "--help")).strip().removesuffix("options:")
        )
        text = text.strip()
        parts += [f"#### {program} {name}\n", f"```text\n{text}\n```\n"]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page(), "utf-8")
        return 0
    if PAGE.read_text("utf-8") == page():
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date: python tools/docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
