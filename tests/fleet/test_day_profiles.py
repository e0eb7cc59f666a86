"""Profiles of a day end to end, with the shipped bundle: passes, an audit, and forecasts of tomorrow."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.analytic.profile_fleet import PASSES
from aggregator.extensions.audit.recompute import recompute


@pytest.mark.slow
def test_a_fleet_teaches_the_shipped_bundle_and_every_device_forecasts_tomorrow(world):
    run = {
        "bundle": "load-day-1",
        "method": "analytic",
        "quorum": 3,
        "deadline": "600s",
        "settings": {},
    }
    one = world(devices=3, run=run, hours=900)  # 37 days: enough for every stage
    one.start_all()
    one.until(lambda: one.version >= PASSES and one.daemon._engine.is_done)
    engine = one.daemon._engine
    audit = recompute(one.daemon._store, engine.run.half, engine.run.first_state().w)
    assert audit.is_sound, audit.faults
    assert one.daemon.metrics.refusals() == {}
    places = {layer.name: layer for layer in engine.run.bundle.manifest.spec().layers}
    first, learned = engine.run.first_state().w, one.consensus()
    changed = {
        name
        for name, layer in places.items()
        if (learned[place := slice(layer.offset, layer.offset + layer.size)] != first[place]).any()
    }
    assert changed == {"coefficients"}
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for client in one.clients.values():
        told = client.forecast()
        assert told.median.shape == (24,)
        assert np.isfinite(told.median).all()
        assert (told.median >= 0.0).all()
