"""Find entries by name: the built-in ones, and those that installed packages offer as entry points.

A registry is a read-only mapping. Iteration and length cover the built-in entries, so nothing is
imported or searched for that nobody names; a lookup also finds an entry point of the registry's
group. A built-in name takes precedence over an entry point of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edge_sdk.wire.errors import WireError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
U = TypeVar("U")


class PluginError(WireError):
    """An entry point that cannot be used: it fails to import, or is not what its group expects."""


class PluginRegistry(Mapping[str, T], Generic[T]):
    """Built-in entries by name, and the entry points of one group.

    Example:
        >>> rules = PluginRegistry({"mean": sum}, "gridfed.examples")
        >>> list(rules), rules["mean"]([1, 2]), "median" in rules
        (['mean'], 3, False)
        >>> rules.mapped(lambda name, f: f.__name__)["mean"]
        'sum'
    """

    def __init__(
        self, builtin: Mapping[str, T], group: str, read: Callable[[str, Any], T] | None = None
    ) -> None:
        """Set the entries.

        Args:
            builtin: Entries by name.
            group: Entry-point group of further entries.
            read: Returns the entry from the name and object of an entry point, or raises
                ``TypeError`` or ``ValueError`` with the reason that it does not fit; None takes the
                object as it is.
        """
        self.group = group
        self._builtin = dict(builtin)
        self._read = _unchanged if read is None else read
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Return an entry; import its package if it is not built in.

        Raises:
            KeyError: There is none.
            PluginError: Its package is faulty, or two packages offer the name.
        """
        if name in self._builtin:
            return self._builtin[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Return True if the entry is built in or offered; imports nothing."""
        if name in self._builtin or name in self._loaded:
            return True
        return isinstance(name, str) and any(point.name == name for point in self._points())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the built-in entries, in order."""
        return iter(self._builtin)

    def __len__(self) -> int:
        """Return the number of built-in entries."""
        return len(self._builtin)

    def names(self) -> list[str]:
        """Return all names, built in and offered, sorted."""
        return sorted({*self._builtin, *(point.name for point in self._points())})

    def mapped(self, function: Callable[[str, T], U]) -> PluginRegistry[U]:
        """Return a registry of ``function(name, entry)``; offered entries when they are looked up."""
        builtin = {name: function(name, entry) for name, entry in self._builtin.items()}
        return PluginRegistry(
            builtin, self.group, lambda name, given: function(name, self._read(name, given))
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
