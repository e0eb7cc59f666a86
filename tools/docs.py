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
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aggregator import config as aggregator_config
from aggregator.methods import METHODS
from edge_sdk import config as device_config
from edge_sdk.app.settings import Duration
from edge_sdk.outputs import FLEET, OUTPUTS
from edge_sdk.outputs.sections import FleetOutputSection, OutputSection
from edge_sdk.sources.csvfile import CsvFile
from edge_sdk.sources.factory import INTERFACES, LiveSection
from edge_sdk.sources.fleet_weather import TYPE, FleetWeatherSection
from edge_sdk.sources.json_values import JsonValue
from edge_sdk.sources.register_map import RegisterPoint
from edge_sdk.sources.stream_map import StreamName

PAGE = ROOT / "docs" / "configuration.md"
PROGRAMS = {
    "gridfed-edge": "edge_sdk.commands.main",
    "gridfed-aggregator": "aggregator.commands.main",
    "gridfed-console": "aggregator.console.program",
    "gridfed-witness": "aggregator.witness.program",
    "gridfed-sim": "firmware_sim.commands.main",
}
WORDS: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
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
Every command takes `--json`. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the
state was written by a newer version, 75 try again later.
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


PARTICIPATIONS_INTRO = """\
### `[[participation]]`

A further run in which the device takes part at the same time;
[several runs on one device](operating.md#several-runs-on-one-device) explains it.
"""


def page() -> str:
    """Return the whole page."""
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
        "## Commands\n",
        CODES,
        *(_commands(name) for name in PROGRAMS),
    ]
    return "\n".join(parts).rstrip() + "\n"


def keys(config: type[Any]) -> dict[str, Field[Any]]:
    """Return every dotted key of a configuration and its field, tables left out.

    Example:
        >>> "broker.keepalive" in keys(device_config.Config)
        True
        >>> "broker" in keys(device_config.Config)
        False
    """
    found: dict[str, Field[Any]] = {}
    for field in _fields(config):
        inner = _section(config, field)
        if inner is None:
            found[field.name] = field
        else:
            found |= {f"{field.name}.{name}": value for name, value in keys(inner).items()}
    return found


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
    """Return each field's meaning: the comment on its line, else its line under ``Attributes``.

    Inherited fields keep their meaning, unless the class documents them again.

    Example:
        >>> meanings(device_config.KeysSection)["root"]
        'root public key of the operator: 64 hex digits'
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
            if "#" in comment:
                values[node.target.id] = comment.partition("#")[2].strip()
    return {name: text.replace("``", "`") for name, text in values.items()}


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
    """Return the fields that a file sets; ``further_runs`` are written as further ``[[run]]``."""
    return (field for field in fields(cls) if field.init and field.name != "further_runs")


def _hint(cls: type[Any], field: Field[Any]) -> Any:  # noqa: ANN401 - any annotation
    return get_type_hints(cls, include_extras=True)[field.name]


def _section(cls: type[Any], field: Field[Any]) -> type[Any] | None:
    """Return the section behind a key, one that may be left out too."""
    hint = _hint(cls, field)
    inside = [one for one in get_args(hint) if one is not NoneType]
    hint = inside[0] if get_origin(hint) in (Union, UnionType) and len(inside) == 1 else hint
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def _tables(cls: type[Any], at: str = "") -> Iterator[str]:
    """Return a table of a section's plain keys, then one for each section inside."""
    plain = [field for field in _fields(cls) if _section(cls, field) is None]
    described = meanings(cls)
    if at:
        yield f"### `[{at}]`\n"
        yield (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "`") + "\n"
    if plain:
        yield _table(
            (f.name, _type(_hint(cls, f)), _default(f), described.get(f.name, "")) for f in plain
        )
    for field in _fields(cls):
        inner = _section(cls, field)
        if inner is not None:
            yield from _tables(inner, f"{at}.{field.name}" if at else field.name)


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, kind, default, meaning in rows:
        cells = (f"`{key}`", kind, default, meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:  # noqa: ANN401 - any annotation
    """Describe a type in words.

    Example:
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
        "time_column": "text",
        "time_format": '`"auto"`, `"iso"`, `"epoch"` or a pattern',
        "time_zone": "text, such as `Europe/London`",
        "start": "moment",
        "until": "moment",
        "interval_seconds": "number",
        "filter": "table: text",
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
        if f.name not in ("rejected", "offending", "dialect")
    ]
    first = ("type", '`"csv"`', "**required**", "kind of source")
    live = "\n".join(_interfaces())
    return f"{SOURCES}\n{_table([first, *rows])}\n{live}\n{REPLAYED}"


def _interfaces() -> Iterator[str]:
    """Return tables of the interfaces: shared keys, own keys, and inner tables."""
    yield "Every interface takes, besides its own keys:\n"
    yield _own(LiveSection, ())
    common = {f.name for f in _fields(LiveSection)}
    for name, interface in INTERFACES.items():
        yield f'`type = "{name}"`:\n'
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
    """Return the keys that every output takes, and those of each type."""
    common = {f.name for f in _fields(OutputSection)}
    parts = [OUTPUTS_INTRO, _own(OutputSection, ())]
    for name, (section, _) in OUTPUTS.items():
        parts += [f'`type = "{name}"`:\n', _own(section, common)]
    parts += [f'`type = "{FLEET}"`:\n', _own(FleetOutputSection, {"type", "participation"})]
    return "\n".join(parts)


def _own(cls: type[Any], less: Iterable[str]) -> str:
    """Return a table of a section's keys without those of the base."""
    said, hidden = meanings(cls), {*less, "type", "point", "value"}
    rows = [f for f in _fields(cls) if f.name not in hidden]
    return _table((f.name, _type(_hint(cls, f)), _default(f), said.get(f.name, "")) for f in rows)


def _methods() -> str:
    """Return the keys of ``run.settings``, method by method."""
    parts = ["### `settings` in `[run]`, by method\n"]
    for name, method in METHODS.items():
        parts += [
            f"#### `{name}`\n",
            f"{(inspect.getdoc(method.settings) or '').partition(chr(10))[0]}\n",
            _table(_settings(method.settings)),
        ]
    return "\n".join(parts)


def _settings(cls: type[Any], at: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Return the rows of a method's settings, those of a section in them by its path."""
    described = meanings(cls)
    for f in _fields(cls):
        inner = _section(cls, f)
        if inner is not None:
            yield from _settings(inner, f"{at}{f.name}.")
        else:
            yield f"{at}{f.name}", _type(_hint(cls, f)), _default(f), described.get(f.name, "")


def _commands(program: str) -> str:
    parts = [f"### {program}\n", f"```text\n{told(program, '--help').strip()}\n```\n"]
    for name in commands(program):
        text = told(program, name, "--help").strip()
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
