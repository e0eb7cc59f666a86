"""A fleet trains on while aggregator and root change their keys; sleepers and restarts included."""

from __future__ import annotations

import shutil

from aggregator.commands import main as cli
from edge_sdk.commands import main as edge
from edge_sdk.extensions.key_rotation.identity_rotation import UNORDERED
from edge_sdk.protocol.root_keys import read_root


def rotate(one, *words):
    one.kill_daemon()
    assert cli.main(["rotate", *map(str, words), "--config", str(one.config)]) == 0
    one.start_daemon()


def trained(one, rounds=1):
    before = one.version
    one.until(lambda: one.version >= before + rounds)


def followed(one, number):
    return one.clients[number]._session.parts.announcements.ring.root


def pinned_apart(one):
    """Give each device a pinned root of its own, which no rotation writes."""
    for number in range(one.devices):
        config = one.folder / f"home-{number}.toml"
        copy = one.folder / f"home-{number}-root.pub"
        shutil.copy(one.folder / "aggregator" / "root.pub", copy)
        text = config.read_text()
        assert "aggregator/root.pub" in text
        config.write_text(text.replace("aggregator/root.pub", copy.name))


def test_no_round_is_lost_while_every_key_is_replaced(world):
    one = world(run={"quorum": 2})
    pinned_apart(one)
    one.start_all()
    trained(one)
    run = one.daemon.state.round
    rotate(one, "aggregator")
    trained(one, 2)
    one.die(2)  # it sleeps through the rotation of the root
    files = [one.folder / f"person-{n}.key" for n in range(3)]
    named = [word for file in files for word in ("--next", file)]
    rotate(one, "root", *named, "--threshold", 2)
    trained(one, 2)
    root = read_root(one.folder / "aggregator" / "root.pub")
    assert root.threshold == 2
    assert followed(one, 0) == followed(one, 1) == root
    one.die(1)
    one.start(1)  # after a power cut
    trained(one)
    assert followed(one, 1) == root
    one.start(2)
    trained(one)
    one.until(lambda: followed(one, 2) == root)
    both = [word for file in files[1:] for word in ("--root-key", file)]
    rotate(one, "root", "--finish", *both)
    trained(one, 2)
    assert one.daemon.state.round > run
    one.die(0)
    one.start(0)
    trained(one)
    for client in one.clients.values():
        refused = client._session.traffic()
        assert not [name for name in refused if "BAD_SIGNATURE" in name]


def test_a_device_replaces_its_key_by_its_own_command_and_no_round_is_lost(world, capsys):
    one = world(run={"quorum": 3})
    one.start_all()
    trained(one)
    generation = one.daemon._registry.client("home-1").generation
    one.die(1)
    before = (one.folder / "home-1.pub").read_text().strip()
    capsys.readouterr()
    assert edge.main(["rotate", str(one.folder / "home-1.toml")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    one.start(1)
    trained(one)  # under the former key
    (one.folder / "lines.csv").write_text(line + "\n")
    words = ["enrol", "--from-file", str(one.folder / "lines.csv"), "--config", str(one.config)]
    assert cli.main(words) == 0
    one.until(lambda: one.clients[1].identity.replacement.step == UNORDERED)
    trained(one, 2)  # every round needs all three
    public = (one.folder / "home-1.pub").read_text().strip()
    assert public == line.split(",")[1] != before
    one.until(lambda: one.daemon._registry.client("home-1").sign == (bytes.fromhex(public),))
    assert one.daemon._registry.client("home-1").generation == generation
