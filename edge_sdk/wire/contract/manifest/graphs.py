"""Name the graphs that a bundle may have, with their feeds and results."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GRADIENT = "gradient"
FORECAST = "forecast"
ROBUST_GRADIENT = "robust_gradient"
CLIPPED_GRADIENT = "clipped_gradient"
HVP = "hvp"
ENCODE = "encode"
ENCODE_VJP = "encode_vjp"
DECODE = "decode"
AIDED_FORECAST = "aided_forecast"
HIDDEN = "hidden"
"""Of a model in closed form: a frozen network's last hidden layer, which is features."""
SPLIT = (ENCODE, ENCODE_VJP, DECODE, AIDED_FORECAST)
"""The graphs of a model in two halves; the aggregator may compute between them."""

SIGNATURES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = MappingProxyType(
    {
        GRADIENT: (("p", "x", "y"), ("loss", "g")),
        FORECAST: (("p", "x"), ("yhat",)),
        ROBUST_GRADIENT: (("p", "x", "y", "rho"), ("loss", "g", "slope")),
        CLIPPED_GRADIENT: (("p", "x", "y", "bound"), ("loss", "g")),
        HVP: (("p", "x", "y", "v"), ("hv",)),
        ENCODE: (("p", "x"), ("h",)),
        ENCODE_VJP: (("p", "x", "gh"), ("g",)),
        DECODE: (("p", "h", "z", "y"), ("loss", "g", "gh", "gz")),
        AIDED_FORECAST: (("p", "x", "z"), ("yhat",)),
        HIDDEN: (("x",), ("hidden",)),
    }
)
"""Feeds and results of every graph that a bundle may have, float32, in order.

``p`` is the vector ``[P]``, ``x`` inputs ``[B, lookback, channels]``, ``y`` targets
``[B, horizon]``; ``rho`` and ``bound`` are scalars. ``loss`` is the batch's mean and ``yhat`` the
forecast, ``[B, horizon]``, or ``[B, horizon, levels]`` where the target's output is ``quantiles``.
``g [P]`` is the loss's gradient; in ``robust_gradient`` that of
``loss + rho * slope``, where ``slope`` is the mean norm of an example's slope in ``(x, y)``; in
``clipped_gradient`` the **sum** over examples of their own gradients, each at most ``bound`` long.
``hv [P]`` is the product of the loss's second derivatives with ``v [P]``.

Of a model in two halves, ``h`` and ``z`` are what goes to the aggregator and what comes back,
``[B, F, L]``, and ``gh``, ``gz`` the loss's gradients in them; ``forecast`` and ``gradient`` hold z
at zero. ``decode`` gives the decoder's part of ``g`` and the ``gh`` of the decoder alone,
``encode_vjp`` the encoder's part for any ``gh``; each ``g`` is ``[P]``, zero in the other half.

``hidden`` is the last hidden layer of a trained network whose vector the graph contains, ``[B, F]``.
"""
