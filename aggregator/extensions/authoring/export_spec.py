"""Recipe of a bundle: window, channels, target, loss, training, sharing; and the errors of its export."""

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


class ExportError(Exception):
    """A model that cannot be exported; the message names the remedy."""


class UnsupportedOperator(ExportError):  # noqa: N818 - a fact about the model, named as one
    """A traced operator that the emitter has no rule for."""

    def __init__(self, operator: str, where: str) -> None:
        super().__init__(
            f"operator {operator} (in {where}) cannot be exported; "
            "docs/models.md lists what can, and how to replace the rest"
        )
        self.operator = operator  # name of the operator, such as ``aten.sort.default``
        self.where = where  # path of the calling module, or the best known place


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
