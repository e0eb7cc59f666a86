"""List the renamed keys of ``[[source]]`` sections; an old key is refused with the new one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_LIVE = {"gap": "max_gap", "modulus": "rollover", "most": "max_power"}

RENAMED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "csv": {
            "form": "time_format",
            "seconds": "interval_seconds",
            "time": "time_column",
            "where": "filter",
            "zone": "time_zone",
        },
        "modbus": _LIVE
        | {
            "every": "poll_interval",
            "patience": "timeout",
            "point[].at": "point[].address",
            "point[].form": "point[].data_type",
            "point[].scale_at": "point[].scale_address",
            "point[].words": "point[].word_order",
            "unit": "unit_id",
        },
        "ocpp": _LIVE | {"office": "csms"},
        "p1": _LIVE,
        "pm3gpp": _LIVE | {"every": "poll_interval", "history": "max_age"},
        "replay": {"of": "recorded_type"},
    }
)
"""New key by old key, for every type of source."""
