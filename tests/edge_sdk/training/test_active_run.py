"""The bundle at work: what another one takes over, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.methods.local_sgd import LocalState
from edge_sdk.protocol import codec
from edge_sdk.protocol import messages as m
from edge_sdk.session.agenda import FoundBundle
from edge_sdk.training import active_run as work_module


@pytest.fixture
def started(fleet):
    client = fleet.device.start()
    fleet.device.observe()
    client.flush()
    fleet.run()
    assert client.status()["run"] == 1
    return fleet


def announced(manifest, *, run=2, **changes):
    said = m.BundleMessage(
        serial=2,
        name=manifest.name,
        version=manifest.version,
        digest=b"b" * 32,
        size=100,
        spec=manifest.spec().digest,
        sdk="0.1.0",
        method="fedavg",
        run=run,
        shared=("body.",),
    )
    said = replace(said, **changes)
    return FoundBundle(said, codec.encode(said), archive=b"archive")


def wider(bundle):
    """A bundle of another layout: one scalar more."""
    layers = (*bundle.manifest.layers, ("tail.c", (1,)))
    return replace(bundle, manifest=replace(bundle.manifest, layers=layers), digest=b"b" * 32)


def learn_alone(active):
    active.adopt_local(LocalState(active.learner.vector(active.state) + np.float32(0.25)))
    return active.local_state


def test_a_bundle_of_another_layout_begins_anew_on_the_same_readings(started, monkeypatch):
    client = started.device.client
    other = wider(client.learner.bundle)
    monkeypatch.setattr(work_module, "take_over", lambda *_: other)
    series = client.learner.series
    learn_alone(client._active)
    assert client._active.follow(announced(other.manifest))
    assert client.learner.manifest is other.manifest
    assert client.learner.series is series
    assert client._active.local_state is None, "what was learned alone fits the old layout only"
    assert client.learner.vector(client._active.latest).size == other.manifest.size
    assert client.forecast().source == "model"


def test_another_run_of_the_same_bundle_goes_on_with_what_was_learned_alone(started):
    active = started.device.client._active
    alone = learn_alone(active)
    found = replace(announced(active.learner.manifest), archive=None)
    assert active.follow(found)
    assert active.latest is alone
    assert active.learner.role.run == 2


@pytest.mark.parametrize("changes", [{"spec": b"x" * 16}, {"method": "nothing-known"}])
def test_a_bundle_that_cannot_run_here_leaves_everything_as_it_was(
    started, monkeypatch, changes, caplog
):
    active, session = started.device.client._active, started.device.client._session
    other = wider(active.learner.bundle)
    monkeypatch.setattr(work_module, "take_over", lambda *_: other)
    before = (
        active.learner,
        active.state,
        session.parts.inbox.wanted,
        session.parts.announcements.bundle,
        session.seen,
    )
    assert not active.follow(announced(other.manifest, **changes))
    after = (
        active.learner,
        active.state,
        session.parts.inbox.wanted,
        session.parts.announcements.bundle,
        session.seen,
    )
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert session.counts["bundles refused"] == 1
    assert "bundle refused run=2 name=" in caplog.text


def test_the_state_of_a_fleet_round_replaces_that_of_local_rounds(started):
    active = started.device.client._active
    learn_alone(active)
    active.adopt(active.state)
    assert active.latest is active.state


@pytest.mark.parametrize("names", [("homes", "others"), ("homes",)])
def test_a_run_whose_bundle_needs_an_absent_source_is_left_for_another(started, monkeypatch, names):
    client = started.device.client
    active, session = client._active, client._session
    parts = session.parts
    shell = replace(active._shell, streams=lambda _manifest: ("weather.temperature",))
    monkeypatch.setattr(active, "_shell", shell)
    parts.choice.offer(names)
    parts.announcements.follow_run("homes")
    found = replace(announced(active.learner.manifest), archive=None)
    has_other = len(names) > 1
    assert active.follow(found) is not has_other
    assert dict(session.parts.choice.declined) == ({"homes": "NO_WINDOWS"} if has_other else {})
    assert parts.announcements.name == names[-1]
    assert client.status().get("declined", {}) == dict(session.parts.choice.declined)
