"""Devices that trust another root say so at once, and rounds that nobody answers name the cause."""

import logging

from aggregator.commands.status import _alarms
from aggregator.extensions.console.fleet_summary import notices
from edge_sdk.config import Config
from edge_sdk.extensions.inspection.status import status
from edge_sdk.protocol.keys import from_seed, kid_of, save_public
from edge_sdk.protocol.root_keys import read_root

FORMER = from_seed(bytes(range(7, 39)))


def own_root(one, number):
    """Give a device a file of its own, with the root of a state folder that was made anew since."""
    path = one.folder / f"home-{number}-root.pub"
    save_public(path, FORMER.public)
    config = one.folder / f"home-{number}.toml"
    config.write_text(config.read_text().replace("aggregator/root.pub", path.name))
    return path


def told(caplog, event):
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(event)]


def test_a_refused_root_is_named_at_once_by_device_and_aggregator(world, caplog):
    caplog.set_level(logging.INFO)
    one = world(devices=2, run={"deadline": "20s"})
    files = [own_root(one, number) for number in range(2)]
    one.start_all()
    trusted = FORMER.kid.hex()
    announced = kid_of(read_root(one.folder / "aggregator" / "root.pub").keys[0]).hex()
    wanted = {f"trusts {trusted}, refuses {announced}": 2}
    one.until(lambda: one.daemon.snapshot.document().get("root_refused") == wanted)
    assert one.clock.now < 10, "at once"
    config = Config.load(one.folder / "home-0.toml")
    shown = status(config)["root refused"]
    assert announced in shown
    assert trusted in shown
    assert "gridfed_root_refused_devices 2.0" in one.daemon.metrics.text().decode()

    one.until(lambda: "unanswered" in one.daemon.snapshot.document())
    document = one.daemon.snapshot.document()
    assert document["unanswered"]["-"]["rounds"] == 2
    assert "2 of its 2 devices refuse the announced root" in document["unanswered"]["-"]["cause"]
    said = [notice.text for notice in notices(document, {})]
    assert any("the last 2 rounds: 2 of its 2 devices refuse" in text for text in said)
    assert any(f"refuse the fleet's root: trusts {trusted}" in text for text in said)
    assert any("RUN - UNANSWERED for 2 rounds" in line for line in _alarms(document))
    assert len(told(caplog, "root refused own=")) == 2, "once on each device"
    assert len(told(caplog, "rounds unanswered")) == 1

    for number, path in enumerate(files):  # the operator gives the right one
        one.die(number)
        path.write_bytes((one.folder / "aggregator" / "root.pub").read_bytes())
        one.start(number)
    one.until(lambda: one.daemon.state.version >= 1)
    document = one.daemon.snapshot.document()
    assert not {"root_refused", "unanswered"} & set(document)
    assert "root refused" not in status(config)
