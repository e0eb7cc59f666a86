"""Recipe of a bundle: window, channels, target, loss, training, sharing."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contract.manifest import (
    Feature,
    LipschitzStage,
    Loss,
    Target,
    Training,
    Window,
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Inputs and training of a module. A class may have its own as the attribute ``recipe``."""

    window: Window  # span of one sample
    features: tuple[Feature, ...]  # input channels, in the order that the module expects
    target: Target  # forecast stream
    loss: Loss
    training: Training  # the local optimiser
    # name prefixes of the parameters that a run shares by default; ``("",)`` is all
    shared: tuple[str, ...] = ("",)
    graphs: tuple[str, ...] = ()  # graphs of the bundle besides ``gradient`` and ``forecast``
    # paths from the window to the forecast, for the certificate; None for none
    paths: tuple[tuple[LipschitzStage, ...], ...] | None = None

    @property
    def sample(self) -> tuple[int, int]:
        """Return ``(lookback, channels)`` of one input."""
        return self.window.lookback, len(self.features)
