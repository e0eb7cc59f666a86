"""Recipe of a bundle: window, channels, target, loss, training, sharing."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.wire.contract.manifest import Feature, LipschitzStage, Loss, Target, Training, Window


@dataclass(frozen=True, slots=True)
class Recipe:
    """Inputs and training of a module. A class may have its own as the attribute ``recipe``.

    Attributes:
        window: Span of one sample.
        features: Input channels, in the order that the module expects.
        target: Forecast stream.
        loss: Loss of the training.
        training: The local optimiser.
        shared: Name prefixes of the parameters that a run shares by default; ``("",)`` is all.
        graphs: Graphs of the bundle besides ``gradient`` and ``forecast``.
        paths: Paths from the window to the forecast, for the certificate; None for none.
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
        """Return ``(lookback, channels)`` of one input."""
        return self.window.lookback, len(self.features)
