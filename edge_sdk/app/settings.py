"""Load TOML files and environment variables into frozen dataclasses, with the origin of each key.

Later sources override earlier ones: defaults, the file, ``conf.d/*.toml`` beside it in name order,
the environment (``PREFIX_SECTION__KEY``). Tables are merged, other values are replaced. A key that
the dataclass does not have is an error that names the file and the key.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import (
    FieldPath,
    Matches,
    SchemaError,
    build,
    build_value,
    key_of,
    refuse_unknown,
)
from edge_sdk.errors import USAGE, Failure

T = TypeVar("T")

EXTENSIONS = "extensions"
"""Field of a configuration that has the settings of extensions, by the name of their table."""

Duration = Annotated[str, Matches(r"\d+(\.\d+)?(ms|s|m|h|d)")]
"""A duration with its unit: ``90s``, ``15m``, ``7d``. ``seconds`` converts it."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class SettingsError(Failure):
    """An invalid configuration file or variable."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A configuration and the origin of each of its values."""

    value: T  # configuration; its paths are absolute
    origins: Mapping[str, str]  # file name or variable by dotted key; an absent key has its default


def seconds(text: str) -> float:
    """Return the seconds of a ``Duration``.

    >>> seconds("15m"), seconds("250ms")
    (900.0, 0.25)
    >>> seconds("15min")
    Traceback (most recent call last):
    edge_sdk.app.settings.SettingsError: '15min': expected a number with ms, s, m, h or d, such as 15m
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if found is None:
        raise SettingsError(f"{text!r}: expected a number with ms, s, m, h or d, such as 15m")
    return float(found[1]) * _UNITS[found[2]]


def load(
    cls: type[T], path: Path, *, prefix: str = "", environ: Mapping[str, str] = os.environ
) -> Loaded[T]:
    """Read a configuration from a file, its ``conf.d`` and the environment.

    Args:
        cls: Frozen dataclass to build. Its relative paths are resolved against the file's folder.
            Its class method ``adapted``, if any, turns the merged tables into its fields.
        prefix: Prefix of the variables that are settings; empty reads none.

    Raises:
        SettingsError: A file that cannot be read, or the first invalid key.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for file in (path, *sorted((path.parent / "conf.d").glob("*.toml"))):
        _merge(tree, _parse(file), file.name, origins)
    if prefix:
        for name in sorted(environ):
            if name.startswith(prefix):
                _merge(tree, _from_variable(name, prefix, environ[name]), name, origins)
    adapted = getattr(cls, "adapted", lambda tables: tables)
    return Loaded(rooted(from_table(cls, adapted(tree), path.name, origins), path.parent), origins)


def from_table(
    cls: type[T], table: Mapping[str, Any], where: str, origins: Mapping[str, str] | None = None
) -> T:
    """Build a configuration from a mapping; errors name the file that set the key.

    A class may have an attribute ``renamed``, a mapping of old dotted keys to new ones. An old key
    is refused with the new one. A class with an attribute ``index`` has a field ``extensions``: the
    settings of each extension whose table is in the file, by the table's name.

    Raises:
        SettingsError: The message gives the origin, the dotted key and the expected value.

    >>> class Limits:
    ...     renamed = {"least": "min_updates"}
    >>> from_table(Limits, {"least": 3}, "aggregator.toml")
    Traceback (most recent call last):
    edge_sdk.app.settings.SettingsError: aggregator.toml: least: renamed to min_updates
    """
    refuse_renamed(getattr(cls, "renamed", {}), table, where, origins)
    try:
        return build(cls, _with_extensions(cls, table))
    except SchemaError as misfit:
        origin = _origin(misfit.path, origins or {}) or where
        raise SettingsError(f"{origin}: {misfit}") from misfit


def _with_extensions(cls: type, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table with the tables of extensions as settings, below ``extensions``."""
    index: ExtensionIndex | None = getattr(cls, "index", None)
    if index is None:
        return table
    if EXTENSIONS in table:
        raise SchemaError(EXTENSIONS, "unknown key; the table of an extension has its own name")
    names = [key_of(field.name) for field in fields(cls) if field.name != EXTENSIONS]
    sections = index.sections(set(table) - set(names))
    refuse_unknown(table, (*names, *sections), FieldPath("", lenient=False))
    built = {
        name: build(entry.load("section"), table[name], where=name)
        for name, entry in sections.items()
        if name in table
    }
    core = {key: value for key, value in table.items() if key not in sections}
    for key, (default, _) in index.keys_of_core.items():
        name, _, last = key.partition(".")
        inner = core.get(name, {})
        if isinstance(inner, Mapping) and last in inner:
            kind = tuple[str, ...] if isinstance(default, list) else type(default)
            built[key] = build_value(kind, inner[last], where=key)
            core[name] = {other: value for other, value in inner.items() if other != last}
    return {**core, EXTENSIONS: built}


def refuse_renamed(
    renamed: Mapping[str, str],
    table: Mapping[str, Any],
    where: str,
    origins: Mapping[str, str] | None = None,
) -> None:
    """Refuse the first old key, with the new one.

    Args:
        renamed: New dotted key by old one, or a sentence about a key that went. ``point[].at`` is a
            key of every table in a list.
        where: Origin named in the message, if ``origins`` has none.
        origins: File name or variable by dotted key.

    Raises:
        SettingsError: The message gives the origin, the old key and the new key.
    """
    for old, new in renamed.items():
        if _has(table, old.split(".")):
            origin = _origin(old, origins or {}) or where
            said = new if " " in new else f"renamed to {new}"
            raise SettingsError(f"{origin}: {old}: {said}")


def _has(table: object, keys: Sequence[str]) -> bool:
    if not keys:
        return True
    name, is_list = keys[0].removesuffix("[]"), keys[0].endswith("[]")
    if not isinstance(table, Mapping) or name not in table:
        return False
    if not is_list:
        return _has(table[name], keys[1:])
    items = table[name]
    return isinstance(items, list | tuple) and any(_has(item, keys[1:]) for item in items)


def rooted(config: T, folder: Path) -> T:
    """Return the configuration with every relative path, at any depth, resolved in ``folder``."""
    return _rooted(config, folder.absolute())  # type: ignore[no-any-return]


def _rooted(value: Any, folder: Path) -> Any:  # noqa: ANN401 - walks any tree of settings
    if isinstance(value, Path):
        return folder / value.expanduser()
    if isinstance(value, tuple):
        return tuple(_rooted(item, folder) for item in value)
    if isinstance(value, Mapping) and any(is_dataclass(item) for item in value.values()):
        return {key: _rooted(item, folder) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _rooted(getattr(value, f.name), folder) for f in fields(value) if f.init}
        return replace(value, **changed)
    return value


def shown(config: object, origins: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return ``(key, value, origin)`` of every setting, with passwords in addresses masked.

    >>> @dataclass(frozen=True)
    ... class Broker:
    ...     url: str
    ...     keepalive: int = 60
    >>> shown(Broker("mqtt://me:secret@host"), {"url": "meter.toml"})
    [('url', 'mqtt://me:***@host', 'meter.toml'), ('keepalive', '60', 'default')]
    """
    rows = []
    for key, value in _leaves(config, ""):
        text = re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", str(value))
        rows.append((key, text, origins.get(key.partition("[")[0], "default")))
    return rows


def _leaves(value: object, path: str) -> list[tuple[str, object]]:
    if is_dataclass(value) and not isinstance(value, type):
        dot = f"{path}." if path else ""
        pairs = [(dot + f.name.removesuffix("_"), getattr(value, f.name)) for f in fields(value)]
    elif isinstance(value, tuple) and value and any(is_dataclass(item) for item in value):
        pairs = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    elif isinstance(value, Mapping) and (value or path == EXTENSIONS):
        dot = f"{path}." if path and path != EXTENSIONS else ""
        pairs = [(dot + key, item) for key, item in value.items()]
    else:
        return [(path, value)]
    return [leaf for key, item in pairs for leaf in _leaves(item, key)]


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text ({error.reason})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not valid TOML: {error}") from error


def _from_variable(name: str, prefix: str, text: str) -> dict[str, Any]:
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    for key in reversed(name.removeprefix(prefix).lower().split("__")):
        value = {key: value}
    return value  # type: ignore[no-any-return]


def _merge(
    tree: dict[str, Any], more: Mapping[str, Any], name: str, origins: dict[str, str], at: str = ""
) -> None:
    for key, value in more.items():
        path = f"{at}.{key}" if at else key
        if isinstance(value, dict) and isinstance(tree.get(key, {}), dict):
            _merge(tree.setdefault(key, {}), value, name, origins, path)
            origins.setdefault(path, name)
        else:
            tree[key] = value
            origins[path] = name


def _origin(path: str, origins: Mapping[str, str]) -> str:
    while path and path not in origins:
        path = re.sub(r"(^|[.\[])[^.\[]*$", "", path)
    return origins.get(path, "")
