"""What a training step costs a device: the gradient graph, and the optimiser around it.

Beside torch: ``tools/bench_device.py``.
"""

import numpy as np
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.shared_math.optim import adam, optimiser_step

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", ["load-lstm", "load-gru", "load-mlp"])
def test_one_step(name, best, copied, tell):
    bundle = Bundle.open(name, trust=TrustedKeys())
    window = bundle.manifest.window
    optimiser, rng, rows = adam(1e-3), np.random.default_rng(7), []
    for size in (64, 8):
        x = rng.random((size, window.lookback, len(bundle.manifest.features)), np.float32)
        y = rng.random((size, window.horizon), np.float32)
        p = bundle.initial
        moments = optimiser.init(p)
        _, g = bundle.gradient(p=p, x=x, y=y)
        assert g.shape == p.shape

        def graph(p=p, x=x, y=y):
            return bundle.gradient(p=p, x=x, y=y)

        def step(p=p, x=x, y=y, moments=moments):
            _, g = bundle.gradient(p=p, x=x, y=y)
            return optimiser_step(optimiser, p, g, moments)

        whole, gradient = best(step), best(graph)
        forecast = best(lambda p=p, x=x: bundle.forecast(p=p, x=x))
        moved = best(lambda p=p, g=g, moments=moments: optimiser_step(optimiser, p, g, moments))
        rows.append(
            (
                str(size),
                f"{1e3 * whole:.3f}",
                f"{gradient / whole:.2f}",
                f"{moved / whole:.2f}",
                f"{whole / forecast:.1f}",
                f"{moved / (2 * p.nbytes / copied):.0f}",
            )
        )
    title = f"one training step of {name}, {bundle.manifest.size} parameters, Adam, one thread"
    head = ("batch", "ms", "gradient", "optimiser", "step / forecast", "optimiser / copy of p")
    tell(title, head, rows)
