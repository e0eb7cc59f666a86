"""Every channel of a bundle has a source, or the cost of its absence."""

from __future__ import annotations

from edge_sdk.bundle import shipped_folder
from edge_sdk.extensions.setup.agent_log import MASKED, NEVER, channel_sources, unsupplied
from edge_sdk.protocol.contract.manifest import Manifest

LOAD = "elec.import.energy"


def manifest_of(name):
    return Manifest.parse((shipped_folder() / name / "manifest.json").read_bytes())


def test_a_channel_without_a_source_says_what_it_costs():
    found = channel_sources(manifest_of("load-lstm"), {LOAD: "source[0] csv"}, {"floor-area": 9.0})
    assert [x.channel for x in unsupplied(found)] == [
        "temperature",
        "wind",
        "wall-area",
        "window-area",
    ]
    assert {x.consequence for x in unsupplied(found)} == {NEVER}
    by_name = {x.channel: x.text for x in found}
    assert by_name["load"] == "source[0] csv"
    assert by_name["slot-of-day"] == "the clock"
    assert by_name["floor-area"] == "[site] floor-area = 9"
    assert by_name["wind"] == f"no source: {NEVER}"
    week = channel_sources(manifest_of("load-lstm-week"), {LOAD: "yours"}, {})
    assert {x.channel: x.text for x in week}["load-a-week-ago"] == "yours, earlier readings"
    assert MASKED != NEVER
