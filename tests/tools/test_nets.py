"""The nets of the made-up experiments: gradients and curvature against differences."""

import numpy as np
import pytest

from tools.experiments.nets import Net


@pytest.mark.parametrize("bend", ["sigmoid", "tanh"])
@pytest.mark.parametrize("biases", [True, False])
def test_gradient_and_curvature_are_those_of_differences(bend, biases):
    rng, net = np.random.default_rng(0), Net((3, 5, 4, 2), bend, biases=biases)
    x, y = rng.normal(size=(7, 1, 3)), rng.normal(size=(7, 2))
    p = net.first(rng).astype(np.float64) + rng.normal(0, 0.3, net.spec.size)
    v, step = rng.normal(size=net.spec.size), 1e-4
    value, g = net.gradient(p, x, y)
    assert value == pytest.approx(net.loss(p, x, y), rel=1e-6)
    along = (net.loss(p + step * v, x, y) - net.loss(p - step * v, x, y)) / (2 * step)
    assert g @ v == pytest.approx(along, rel=1e-4)
    ahead, behind = (net.gradient(p + sign * step * v, x, y)[1] for sign in (1, -1))
    wanted = (ahead.astype(np.float64) - behind) / (2 * step)
    np.testing.assert_allclose(net.hvp(p, x, y, v)[0], wanted, rtol=2e-2, atol=3e-3)
