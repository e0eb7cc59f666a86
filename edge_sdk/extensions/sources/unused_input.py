"""Find the input of the configured sources from which no stream is read."""

from __future__ import annotations

from edge_sdk.agent import open_sources
from edge_sdk.config import Config
from edge_sdk.sources import ExaminedSource, LiveSource
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore


def checked(config: Config) -> dict[str, str]:
    """Return the unused input of each source: of its files, and as the agent last noted it.

    Raises:
        ConfigError: An unknown type of source, or invalid keys.
    """
    found = {}
    for number, source in enumerate(open_sources(config)):
        names = dict.fromkeys(source.survey() if isinstance(source, ExaminedSource) else ())
        if isinstance(source, LiveSource) and (config.state / FILE).exists():
            with DeviceStore.open(config.state, read_only=True) as store:
                note = store.paper(f"source {number} {source.kind}")
            names |= dict.fromkeys(source.saved_unused(note))
        if names:
            found[f"source[{number}] not used"] = "; ".join(names)
    return found
