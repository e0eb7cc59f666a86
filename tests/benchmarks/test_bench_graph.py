"""What one iteration of split learning costs the server, beside a product it cannot avoid."""

import numpy as np
import pytest

pytest.importorskip("torch")

from aggregator.extensions.papers.graph.factory import GraphSection, bind

pytestmark = [pytest.mark.bench, pytest.mark.torch]

SHAPE, BATCH = (64, 32), 4
NETS = (("pfgl", "full"), ("pfgl", "local"), ("conv2d", "full"), ("graphnet", "full"))


@pytest.mark.parametrize("stations", [8, 64])
def test_iteration(stations, best, tell, tmp_path):
    draw, rows = np.random.Generator(np.random.Philox(1)), []
    at = draw.random((stations, 2))
    sites = (f"s{i} = {{ latitude = {a}, longitude = {b} }}\n" for i, (a, b) in enumerate(at))
    (tmp_path / "sites.toml").write_text("[sites]\n" + "".join(sites))
    h, gz = draw.standard_normal((2, BATCH, stations, *SHAPE), np.float32)
    here, table = np.ones(stations, np.bool_), np.ones((64, 64), np.float32)
    flat = np.ascontiguousarray(h.transpose(0, 1, 3, 2)).reshape(-1, 64)
    product = best(lambda: flat @ table)
    for kind, attention in NETS:
        near = {} if kind == "conv2d" else {"nearest": 4}
        section = GraphSection(
            kind, capacity=stations, attention=attention, sites="sites.toml", **near
        )
        model, _ = bind(section, SHAPE, tmp_path)
        p = model.init(0)
        forward = best(lambda m=model, p=p: m.forward(p, h, here))
        back = best(lambda m=model, p=p: m.pullback(p, h, here, gz))
        words = kind if attention == "full" else f"{kind}, local"
        numbers = (f"{1e3 * t / BATCH:.2f}" for t in (forward, back))
        rows.append((words, *numbers, f"{(forward + back) / product:.0f}"))
    title = f"{stations} stations, 64 x 32, an example; beside it one product of all h with 64 x 64"
    tell(title, ("net", "forward, ms", "pullback, ms", "both / product"), rows)
