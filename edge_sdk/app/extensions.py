"""Find the extensions of a program without importing them, and import those that are configured.

A program's extensions are the packages below its folder ``extensions``; ``index.toml`` there lists
them, and packages of other people offer more as entry points. The head of
``edge_sdk/extensions/index.toml`` explains the keys of a row.

Other keys name what one part of a program loads when it first needs it, configured or not; that part
describes the object (``session.bodies``, ``session.identity``, ``session.task_inbox``,
``session.dispatcher``, ``commands.enrol``).

Without ``configured`` an extension is loaded when its table is in the configuration. Without the
folder a program has its core alone. An entry point of the group ``gridfed.edge_sdk.extensions`` names a
package with an ``EXTENSION``, and its ``SECTION`` if it has one; it is loaded when its table is in the
configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edge_sdk.app.cli import Subcommand, subcommand
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import WireError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class ExtensionEntry:
    """One row of an index."""

    name: str
    package: str  # dotted name of its package
    row: Mapping[str, Any]

    @property
    def table(self) -> str:
        """Name of its table in the configuration."""
        name: str = self.row.get("table", self.name)
        return name

    def load(self, key: str) -> Any:  # noqa: ANN401 - a class or an object of the row's own type
        """Import the object that a key of the row names; None without the key.

        >>> ExtensionEntry("text", "string", {"section": ":Formatter"}).load("section").__name__
        'Formatter'
        """
        reference: str = self.row.get(key, "")
        if not reference:
            return None
        module, _, attribute = reference.partition(":")
        where = f"{self.package}.{module}" if module else self.package
        return resolve_name(f"{where}:{attribute}")

    def loaders(self, table: str) -> dict[str, Callable[[], Any]]:
        """Return functions that import the entries of one of its tables, by the entries' names."""
        return {
            name: partial(resolve_name, f"{self.package}.{reference}")
            for name, reference in self.row.get(table, {}).items()
        }

    def is_configured(self, tables: Mapping[str, Any]) -> bool:
        """Return whether a configuration asks for the extension.

        >>> entry = ExtensionEntry("sums", "", {"configured": ["accept.sums"]})
        >>> entry.is_configured({"accept": {"sums": True}}), entry.is_configured({"accept": {}})
        (True, False)
        >>> entry = ExtensionEntry("weather", "", {"configured": ["source.type=fleet-weather"]})
        >>> entry.is_configured({"source": [{"type": "csv"}, {"type": "fleet-weather"}]})
        True
        """
        keys = self.row.get("configured")
        return self.table in tables if keys is None else any(is_set(tables, key) for key in keys)


class ExtensionIndex(Mapping[str, ExtensionEntry]):
    """The extensions of one program, by name, in the order of their index."""

    def __init__(self, program: str) -> None:
        self.program = program

    @cached_property
    def _entries(self) -> dict[str, ExtensionEntry]:
        spec = find_spec(self.program)
        folders = spec.submodule_search_locations if spec is not None else None
        file = Path(next(iter(folders or ("",)))) / "extensions" / "index.toml"
        if not file.is_file():
            return {}
        rows = _rows(file)
        package = f"{self.program}.extensions"
        return {name: ExtensionEntry(name, f"{package}.{name}", row) for name, row in rows.items()}

    def __getitem__(self, name: str) -> ExtensionEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @cached_property
    def keys_of_core(self) -> dict[str, tuple[Any, str]]:
        rows = (entry.row.get("keys", {}) for entry in self.values())
        return {key: (default, meaning) for row in rows for key, (default, meaning) in row.items()}

    @property
    def keys_of_fleet(self) -> dict[str, str]:
        """Keys of extensions that a device without a fleet cannot have, by the name for people."""
        rows = (entry.row.get("of_fleet", {}) for entry in self.values())
        return {name: key for row in rows for name, key in row.items()}

    def sections(self, tables: Iterable[str] = ()) -> dict[str, ExtensionEntry]:
        """Return the extensions that have a table in the configuration, by the table's name.

        Args:
            tables: Names of tables; other packages are searched for those that are no one's.
        """
        if unknown := set(tables) - {entry.table for entry in self.values()}:
            from importlib.metadata import entry_points  # noqa: PLC0415 - 15 ms, and rare

            for point in entry_points(group=f"gridfed.{self.program}.extensions"):
                if point.name in unknown:
                    row = {"section": ":SECTION", "extension": ":EXTENSION"}
                    self._entries[point.name] = ExtensionEntry(point.name, point.module, row)
        return {entry.table: entry for entry in self.values() if "section" in entry.row}

    def having(self, key: str) -> list[ExtensionEntry]:
        """Return the extensions whose row has a key, in order."""
        return [entry for entry in self.values() if key in entry.row]

    def configured(self, tables: Mapping[str, Any]) -> list[ExtensionEntry]:
        """Return the extensions that a configuration asks for, in order."""
        return [entry for entry in self.values() if entry.is_configured(tables)]

    def loaders(self, table: str) -> dict[str, Callable[[], Any]]:
        """Return functions that import the entries of one registry, by the entries' names."""
        return {x: load for entry in self.values() for x, load in entry.loaders(table).items()}

    def off(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status entries of the extensions that are not configured."""
        rows = (entry.row for entry in self.values() if not entry.is_configured(tables))
        return {key: value for row in rows for key, value in row.get("off", {}).items()}

    def texts(self, key: str) -> dict[str, str]:
        """Return the entries of a table of every row, by name, without importing anything."""
        return {x: text for entry in self.values() for x, text in entry.row.get(key, {}).items()}

    def commands(self) -> dict[str, Subcommand]:
        """Return the subcommands of the extensions; their modules are imported when used."""
        return {
            name: replace(subcommand(f"{entry.package}.{module}", summary), heading="extensions")
            for entry in self.values()
            for name, (module, summary) in entry.row.get("commands", {}).items()
        }


@cache
def _rows(file: Path) -> Mapping[str, Any]:
    return tomllib.loads(file.read_text("utf-8"))


def is_set(tables: Mapping[str, Any], key: str) -> bool:
    """Return whether a dotted key is set and not false, or has the value after its ``=``."""
    path, _, wanted = key.partition("=")
    values = values_at(tables, path)
    return wanted in values if wanted else any(values)


def values_at(tables: Mapping[str, Any], path: str) -> list[Any]:
    """Return the values at a dotted key; there are several in a list, and None where it is not set."""
    values: list[Any] = [tables]
    for name in [path] if path in tables else path.split("."):
        values = [_inside(value, name) for value in values]
        values = [
            x for value in values for x in (value if isinstance(value, list | tuple) else (value,))
        ]
    return values


def _inside(value: object, name: str) -> Any:  # noqa: ANN401 - walks any tree of settings
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


class ListedEntries(Mapping[str, T], Generic[T]):
    """Entries by name: built in, or listed by extensions, which are imported when they are looked up.

    >>> units = ListedEntries({"one": 1}, {"ten": lambda: 10})
    >>> list(units), units["ten"], "two" in units
    (['one', 'ten'], 10, False)
    """

    def __init__(self, builtin: Mapping[str, T], listed: Mapping[str, Callable[[], Any]]) -> None:
        self._known, self._listed = dict(builtin), listed
        self._names = tuple(dict.fromkeys((*builtin, *listed)))

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            self._known[name] = self._listed[name]()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._listed

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class PluginError(WireError):
    """Error: an entry point fails to import, or has not the type that its group expects."""


class PluginRegistry(ListedEntries[T]):
    """Entries by name: built in, listed by extensions, and the entry points of one group.

    A read-only mapping. Iteration and length cover the built-in and the listed entries; a lookup also
    finds an entry point of the group. A listed or offered entry is imported when it is looked up. A
    built-in name takes precedence over a listed one, and that over an entry point.

    >>> rules = PluginRegistry({"mean": sum}, "gridfed.examples")
    >>> list(rules), rules["mean"]([1, 2]), "median" in rules
    (['mean'], 3, False)
    >>> rules.mapped(lambda name, f: f.__name__)["mean"]
    'sum'
    """

    def __init__(
        self,
        builtin: Mapping[str, T],
        group: str,
        read: Callable[[str, Any], T] | None = None,
        listed: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    ) -> None:
        """Set the entries.

        Args:
            group: Entry-point group of further entries.
            read: Returns the entry from the name and object of an extension or entry point, or
                raises ``TypeError`` or ``ValueError`` with the reason that it does not fit; None
                takes the object as it is.
            listed: Functions that import the objects of extensions, by name
                (``ExtensionIndex.loaders``).
        """
        super().__init__(builtin, listed)
        self.group, self._builtin = group, builtin
        self._read = _unchanged if read is None else read

    def __getitem__(self, name: str) -> T:
        """Return an entry; import its package if it is not built in.

        Raises:
            PluginError: Its package is faulty, or two packages offer the name.
        """
        if name not in self._known:
            listed = self._listed.get(name)
            self._known[name] = self._read(name, listed()) if listed else self._load(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(point.name == name for point in self._points())

    def names(self) -> list[str]:
        """Return all names, built in and offered, sorted."""
        return sorted({*self, *(point.name for point in self._points())})

    def mapped(self, function: Callable[[str, T], U]) -> PluginRegistry[U]:
        """Return a registry of ``function(name, entry)``; imported entries when they are looked up."""
        builtin = {name: function(name, entry) for name, entry in self._builtin.items()}
        return PluginRegistry(
            builtin,
            self.group,
            lambda name, given: function(name, self._read(name, given)),
            self._listed,
        )

    def _points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points  # noqa: PLC0415 - 15 ms, and rare

        return list(entry_points(group=self.group))

    def _load(self, name: str) -> T:
        found = [point for point in self._points() if point.name == name]
        if not found:
            raise KeyError(name)
        packages = sorted({_package(point) for point in found})
        where = f"entry point {name!r} of {self.group} in package {packages[0]}"
        if len(packages) > 1:
            raise PluginError(
                f"{self.group}: {name!r} is offered by {' and '.join(packages)}; uninstall all but one"
            )
        try:
            given = found[0].load()
        except Exception as error:
            raise PluginError(f"{where}: cannot be imported: {error!r}") from error
        try:
            return self._read(name, given)
        except (TypeError, ValueError) as error:
            raise PluginError(f"{where}: {error}") from error


def _package(point: EntryPoint) -> str:
    return "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def known_names(entries: Mapping[str, Any]) -> str:
    """Return the names that a message lists: with a registry, those of other packages as well.

    >>> known_names({"mean": 1, "krum": 2})
    'krum, mean'
    """
    return ", ".join(entries.names() if isinstance(entries, PluginRegistry) else sorted(entries))


def _unchanged(_name: str, given: Any) -> Any:  # noqa: ANN401 - the group's own type
    return given


def instance_of(kind: type[T]) -> Callable[[str, Any], T]:
    """Return the function that returns an object of a class, and refuses any other.

    >>> instance_of(int)("three", 3)
    3
    >>> instance_of(int)("three", "3")
    Traceback (most recent call last):
    TypeError: expected an object of int, got str
    """

    def read(_name: str, given: Any) -> T:  # noqa: ANN401 - as above
        if not isinstance(given, kind):
            raise TypeError(f"expected an object of {kind.__name__}, got {type(given).__name__}")
        return given

    return read
