"""What users write against the public names: it must type-check under ``mypy --strict``.

Nothing here is run. ``make types`` reads it; a change of the API that breaks users breaks it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from edge_sdk import (
    METHODS,
    Bundle,
    Client,
    Config,
    EdgeError,
    Forecast,
    Reading,
    Transport,
)
from edge_sdk.app.clock import Clock
from edge_sdk.bundle import TrustedKeys
from edge_sdk.forecasting.series import Flag
from edge_sdk.link.transport import Happening
from edge_sdk.methods import Factory
from edge_sdk.protocol.contract.parameter_layout import ParamSpec


def intervals() -> Iterator[tuple[float, float]]:
    """Stand in for a meter."""
    yield 0.0, 1.0


def a_meter(path: Path) -> Forecast | None:
    """The README's program, every value with its type."""
    with Client(Config.load(path)) as client:
        for time, kwh in intervals():
            client.observe(Reading("elec.import.energy", time, kwh))
            client.observe(Reading("elec.import.energy", time, kwh, Flag.SUSPECT, seconds=900.0))
            client.tick()
            client.tick(timeout=0.5)
        assert_type(client.is_ready, bool)
        assert_type(client.status(), dict[str, Any])
        return client.forecast() if client.is_ready else None


def a_display(forecast: Forecast) -> Sequence[str]:
    """What a forecast offers."""
    assert_type(forecast.times, NDArray[np.int64])
    assert_type(forecast.values, NDArray[np.float64])
    assert_type(forecast.interval, NDArray[np.float64] | None)
    if forecast.source == "none":
        return []
    pairs = zip(forecast.times.tolist(), forecast.median.tolist(), strict=True)
    return [f"{time}: {value} {forecast.unit}" for time, value in pairs]


class MyClock:
    """A clock of one's own needs no base class."""

    def wall(self) -> int:
        """Unix milliseconds."""
        return 0

    def monotonic(self) -> float:
        """Seconds."""
        return 0.0


class MyLink:
    """Nor does a link."""

    @property
    def is_up(self) -> bool:
        """Whether the broker has accepted us."""
        return True


def with_parts_of_ones_own(config: Config, link: Transport, half: Factory) -> Client:
    """A link, a clock and a method may be brought along."""
    clock: Clock = MyClock()
    return Client(config, transport=link, clock=clock, methods={**METHODS, "mine": half})


def by_hand(link: Transport) -> list[Happening]:
    """A link serves whoever polls it."""
    return list(link.poll(0.1))


def a_bundle(folder: Path, root: bytes) -> ParamSpec:
    """A bundle says what is shared."""
    bundle = Bundle.open(folder, trust=TrustedKeys((root,)))
    assert_type(bundle.initial, NDArray[np.float32])
    assert_type(bundle.manifest.name, str)
    return bundle.spec


def a_mistake(path: Path) -> tuple[str, str, int]:
    """An error says what to do about it."""
    try:
        a_meter(path)
    except EdgeError as error:
        return str(error), error.hint, error.exit_code
    return "", "", 0


def not_accepted(client: Client, link: MyLink) -> None:
    """What must not type-check: an unused ignore is an error of its own under ``--strict``."""
    client.observe(1.0)  # type: ignore[arg-type]
    Reading("elec.import.energy", "noon", 1.0)  # type: ignore[arg-type]
    Client(client.config, transport=link)  # type: ignore[arg-type]
    client.state_folder  # type: ignore[attr-defined]  # noqa: B018
