"""Compare the stored definition of a run with the one of the configuration, key by key."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator import config
from aggregator.methods import METHODS


def names_of(method: str) -> dict[str, str]:
    """Return the present path of every key of a run of this method that was renamed."""
    if method not in METHODS:
        return dict(config.RENAMED)
    row = METHODS[method]
    own = config.renamed_settings(row.settings)
    graph = {} if row.graph is None else row.graph.renamed
    return {
        **config.RENAMED,
        **{f"run.settings.{old}": new for old, new in own.items()},
        **{f"run.graph.{old}": new for old, new in graph.items()},
    }


def renamed(
    stored: Mapping[str, object], names: Mapping[str, str], at: str = "run."
) -> dict[str, object]:
    """Return a stored definition with its present keys, some of which were renamed or removed.

    >>> renamed({"rule": {"name": "median", "before": ["nnm"]}, "seed": 1}, config.RENAMED)
    {'rule': {'name': 'median', 'preaggregation': ['nnm']}, 'seed': 1}
    >>> renamed({"settings": {"damping": "subtracted"}}, {})
    {'settings': {}}
    >>> renamed({"settings": {"damping": 0.1}}, {})
    {'settings': {'damping': 0.1}}
    """
    removed = {"run.settings.damping": "subtracted"}  # BAFDP's, when it had a second value
    return {
        names.get(f"{at}{key}", key).rpartition(".")[2]: (
            renamed(value, names, f"{at}{key}.") if isinstance(value, dict) else value
        )
        for key, value in stored.items()
        if removed.get(f"{at}{key}", ...) != value
    }


def changed(before: Mapping[str, object], after: Mapping[str, object], at: str = "") -> list[str]:
    """Return the differences of two definitions, as sentences.

    >>> changed({"rule": {"name": "mean"}}, {"rule": {"name": "median"}})
    ['rule.name: mean at the start, now median']
    """
    found: list[str] = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed(old, new, f"{at}{key}.")
        elif old != new:
            found.append(f"{at}{key}: {old} at the start, now {new}")
    return found


def short(value: object) -> str:
    """Return a value for a message; of bytes the first 12 hexadecimal digits."""
    return value.hex()[:12] if isinstance(value, bytes) else str(value)
