"""Find the states of a device; refuse one that was wiped, or that belongs to another fleet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge_sdk.errors import ConfigError
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore

WIPE_ORDERED, WIPED = "wipe ordered", "wiped"
"""Facts: an operator ordered the wipe; Unix seconds of the finished one."""


def state_folders(state: Path) -> list[Path]:
    """Return the state folders of a device: its own, and those of present and former participations."""
    return [
        file.parent for file in (state / FILE, *sorted(state.glob(f"*/*/{FILE}"))) if file.exists()
    ]


def is_wipe_due(state: Path, keys: Iterable[Path]) -> bool:
    """Return whether a wipe was ordered or begun, and has not ended. The agent must not run."""
    has_key = any(key.exists() for key in keys)
    found = [(_fact(one, WIPE_ORDERED), _fact(one, WIPED)) for one in state_folders(state)]
    return any((ordered and not wiped) or (wiped and has_key) for ordered, wiped in found)


def fleet_of(store: DeviceStore) -> str:
    """Return the id of the fleet whose messages a state holds; empty if it was not recorded."""
    return (store.paper("fleet") or b"").decode()


def refuse_state(store: DeviceStore, fleet: str) -> None:
    """Refuse to run with a state that was wiped, or that belongs to another fleet (empty: none).

    Raises:
        ConfigError: With the command that helps.
    """
    refuse_wiped(store)
    before = fleet_of(store)
    if fleet and before not in ("", fleet):
        raise ConfigError(
            f"{store.path.parent} belongs to fleet {before!r}, the configuration to {fleet!r}",
            hint="to take readings and privacy ledger along: gridfed-edge migrate CONFIG",
        )


def refuse_wiped(store: DeviceStore) -> None:
    """Refuse a state that was wiped or whose wipe is ordered; the hint names ``enrol``."""
    if store.fact(WIPE_ORDERED) or store.fact(WIPED):
        raise ConfigError(
            f"{store.path.parent}: this device was wiped: its readings, models and key are erased",
            hint="to begin again under a new key: gridfed-edge enrol CONFIG",
        )


def end_wipe(state: Path) -> bool:
    """Let a wiped device begin again, under a new key; return whether it was wiped."""
    folders = [one for one in state_folders(state) if _fact(one, WIPED)]
    for folder in folders:
        with DeviceStore.open(folder) as store:
            store.set_facts(**{WIPED: 0, WIPE_ORDERED: 0})
    return bool(folders)


def _fact(folder: Path, name: str) -> int:
    with DeviceStore.open(folder) as store:
        return store.fact(name)
