"""Bind the encodings of updates and of new models to a run's method."""

from __future__ import annotations

from aggregator.config.sections import AggregatorConfig
from aggregator.methods import METHODS
from edge_sdk.app.settings import SettingsError
from edge_sdk.wire.contract.method import Ask


def update_encodings(config: AggregatorConfig, ask: Ask) -> tuple[str, ...]:
    """Return the encodings of updates that the run allows; the last one is preferred.

    Raises:
        SettingsError: The method's updates cannot be quantised.
    """
    wanted = config.run.encoding
    if wanted == "f4":
        return (ask.enc,)
    if not ask.is_quantisable:
        raise SettingsError(
            f"{config.file.name}: run.encoding: {wanted!r} does not fit method"
            f" {config.run.method!r}: only updates that are differences of weights are quantised;"
            " leave it out"
        )
    return ask.enc, wanted


def check_downlink(config: AggregatorConfig) -> None:
    """Refuse steps of new models where there is no one model that all devices receive.

    Raises:
        SettingsError: Naming the methods that can.
    """
    wanted, method = config.run.downlink, config.run.method
    if wanted == "f4" or METHODS[method].is_stepped:
        return
    known = ", ".join(name for name, one in METHODS.items() if one.is_stepped)
    raise SettingsError(
        f"{config.file.name}: run.downlink: {wanted!r} does not fit method {method!r}, whose rounds"
        f" do not move one common model by averaging; methods: {known}; leave it out"
    )
