"""Recognise import, export and tariffs of one meter, which are one device and not several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_sdk.extensions.sources.flow_names import flow, has_tariff, meter_of

MOST_FLOWS = 12  # entries of a column that names flows


def _counted(names: Sequence[str]) -> list[str]:
    imports = [name for name in names if flow(name) == "import"]
    totals = [name for name in imports if not has_tariff(name)]
    return totals[:1] or imports


def one_reading_a_meter(numbers: Any, notes: list[str]) -> Any:  # noqa: ANN401
    """Return a column for each meter, the sum of its tariffs of import; note joined and omitted columns."""
    meters: dict[str, list[str]] = {}
    for name in numbers:
        if flow(name) is not None:
            meters.setdefault(meter_of(name), []).append(name)
    for names in meters.values():
        kept = _counted(names)
        if len(names) < 2 or not kept:
            continue
        left = [name for name in names if name not in kept]
        first, *more = kept
        if more:
            both = numbers[kept].notna().all(axis=1).mean() > 0.1
            total = numbers[kept].sum(axis=1, skipna=not both, min_count=0 if both else 1)
            numbers = numbers.drop(columns=more).assign(**{first: total})
        numbers = numbers.drop(columns=left)
        text = f"columns {', '.join(names)} are one meter: {' + '.join(kept)} is read"
        notes.append(text + (f", {', '.join(left)} left out" if left else ""))
    return numbers


def without_export(
    frame: Any,  # noqa: ANN401
    numbers: Any,  # noqa: ANN401
    at: str,
    label: Callable[[Any], str | None],
    notes: list[str],
) -> tuple[Any, Any]:
    """Return a long table without a column of flows: a meter's imports added, its exports left out.

    Args:
        at: Name of its column of instants.
        label: Returns the column that names the device, or None for one device.
        notes: What was joined and left out is added.
    """
    column = next((name for name in frame.columns if _names_flows(frame[name])), None)
    if column is None:
        return frame, numbers
    names = sorted(frame[column].dropna().astype(str).unique())
    kept = _counted(names)
    rows = frame[frame[column].isin(kept)]
    device = label(rows[rows[column] == kept[0]].drop(columns=column))
    by = [at] if device is None else [device, at]
    keys = rows[by].assign(again=rows.groupby([*by, column]).cumcount())
    grouped = [keys[name] for name in keys]
    taken = numbers.loc[rows.index]
    totals = taken.assign(
        **{
            name: taken[name].groupby(grouped).transform("sum", min_count=1)
            for name in taken
            if taken[name].nunique() > 1
        }
    )
    first = ~keys.duplicated()
    left = [name for name in names if name not in kept]
    text = f"column {column} has the flows of one meter: {' + '.join(kept)} is read"
    dropped = len(frame) - len(rows)
    notes.append(text + (f", {', '.join(left)} left out ({dropped:,} rows)" if left else ""))
    return rows[first].drop(columns=column), totals[first]


def _names_flows(column: Any) -> bool:  # noqa: ANN401
    if column.dtype.kind in "biufM" or not 2 <= column.nunique() <= MOST_FLOWS:
        return False
    flows = [flow(str(name)) for name in column.dropna().unique()]
    return "import" in flows and None not in flows
