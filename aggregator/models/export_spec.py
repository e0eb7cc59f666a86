"""What a bundle needs besides a module: window, channels, target, loss, training, sharing."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.wire.contract.manifest import Feature, LipschitzStage, Loss, Target, Training, Window


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a module is fed and trained. A class may carry its own as the attribute ``recipe``.

    Attributes:
        window: What one sample spans.
        features: Input channels, in the order the module expects.
        target: What is forecast.
        loss: What training minimises.
        training: The local optimiser.
        shared: Name prefixes of the parameters that a run shares by default; ``("",)`` is all.
        graphs: What its bundle has besides ``gradient`` and ``forecast``.
        paths: From the window to the forecast, for the certificate; None for none.
    """

    window: Window
    features: tuple[Feature, ...]
    target: Target
    loss: Loss
    training: Training
    shared: tuple[str, ...] = ("",)
    graphs: tuple[str, ...] = ()
    paths: tuple[tuple[LipschitzStage, ...], ...] | None = None

    @property
    def sample(self) -> tuple[int, int]:
        """``(lookback, channels)`` of one input."""
        return self.window.lookback, len(self.features)
