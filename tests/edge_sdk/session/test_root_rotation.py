"""A device follows the root that its root names, and the roles that the root gives to keys."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_sdk.protocol import codec, keys, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.envelope import AGGREGATOR, ALL, ROOT, seal
from edge_sdk.protocol.root_keys import RootKeys
from edge_sdk.session.key_ring import FILE, FollowedRoot
from edge_sdk.training.bootstrap import archive_keys, load_ring
from tests.edge_sdk.conftest import AGG_KEY, FLEET, ROOT_KEY, NumpyBundle

A, B, C = (keys.from_seed(bytes([n]) * 32) for n in (101, 102, 103))
NEXT = RootKeys((A.public, B.public, C.public), 2)


def listed(serial, **more):
    return m.KeysMessage(serial, (AGG_KEY.public,), (), (0,), (2**47,), 1, **more)


def announce(one, message, *signers, sender=ROOT):
    first, *also = signers
    payload = seal(
        codec.encode(message), kind=message.kind, sender=sender, recipient=ALL, fleet=FLEET,
        signer=first, also=also,
    )  # fmt: skip
    one.server._link.publish(topics.common(FLEET, message.kind), payload, retain=True)
    one.run(20)


def following(one):
    return one.device.client._session.parts.announcements.ring


def refused(one):
    traffic = one.device.client._session.traffic()
    return {
        name.removeprefix("arrived "): n
        for name, n in traffic.items()
        if name.startswith("arrived ")
    }


@pytest.fixture
def one(make):
    one = make()
    one.device.start()
    one.device.observe()
    one.run(40)
    return one


def test_a_root_of_two_of_three_is_followed_when_both_roots_have_signed(one):
    announce(one, listed(5, roots=NEXT.keys, root_min=2), A, C, ROOT_KEY)
    assert following(one).root == NEXT
    announce(one, listed(6), A)  # one of three
    assert following(one).announced.serial == 5
    assert refused(one)["BAD_SIGNATURE"] == 1
    announce(one, listed(7), ROOT_KEY)  # the former root
    assert following(one).announced.serial == 5
    assert refused(one)["UNKNOWN_CLIENT"] == 1
    announce(one, listed(8), B, A)
    assert following(one).announced.serial == 8


def test_the_next_root_survives_a_power_cut_and_trains_on(one):
    announce(one, listed(5, roots=NEXT.keys, root_min=2), A, C, ROOT_KEY)
    one.device.kill()
    one.device.start()
    one.run(40)
    assert following(one).root == NEXT
    one.server.open_round(1, 0, np.zeros(one.server.spec.shared_size, np.float32))
    one.run(200, seconds=0.05)
    assert len(one.server.updates) == 1


def test_a_device_that_slept_during_the_rotation_follows_the_retained_list(make):
    """The list stays signed by both roots until the rotation is finished."""
    one = make()
    announce(one, listed(9, roots=NEXT.keys, root_min=2), B, A, ROOT_KEY)
    one.device.start()
    one.run(40)
    assert following(one).root == NEXT


def test_a_root_that_has_not_signed_with_enough_keys_is_not_followed(one):
    """Nobody could sign the next list: the fleet would be lost."""
    announce(one, listed(5, roots=NEXT.keys, root_min=2), ROOT_KEY, A)
    assert following(one).root == RootKeys((ROOT_KEY.public,))
    assert following(one).announced.serial == 1
    assert refused(one)["BAD_SIGNATURE"] == 1


def test_a_root_that_the_present_one_has_not_signed_is_not_followed(one):
    announce(one, listed(5, roots=NEXT.keys, root_min=2), A, B, C)
    assert following(one).root == RootKeys((ROOT_KEY.public,))
    assert refused(one)["UNKNOWN_CLIENT"] == 1


def test_another_pinned_root_or_fleet_voids_what_was_followed(one, tmp_path):
    announce(one, listed(5, roots=NEXT.keys, root_min=2), A, C, ROOT_KEY)
    config = one.device.config
    assert load_ring(config).root == NEXT
    keys.save_public(config.keys.root, B.public)
    assert load_ring(config).root == RootKeys((B.public,))
    file = FollowedRoot.of(config.state, "south", RootKeys((ROOT_KEY.public,)))
    assert file.load() == (RootKeys((ROOT_KEY.public,)), ())


@pytest.mark.parametrize("content", ["", "[]", "{", '{"fleet": "north"}', "\x00"])
def test_a_damaged_file_counts_as_none(one, content):
    (one.device.config.state / FILE).write_text(content)
    assert load_ring(one.device.config).root == RootKeys((ROOT_KEY.public,))


def test_the_file_is_written_once_for_each_change(one):
    path = one.device.config.state / FILE
    assert not path.exists()
    announce(one, listed(5, roots=NEXT.keys, root_min=2), A, C, ROOT_KEY)
    before = path.stat().st_mtime_ns
    announce(one, listed(6, roots=NEXT.keys, root_min=2), A, C, ROOT_KEY)
    assert path.stat().st_mtime_ns == before
    assert json.loads(path.read_text())["root"] == NEXT.text


# --- roles ------------------------------------------------------------------------------------


def bundle(one, serial):
    return m.BundleMessage(
        serial=serial, name="linear", version=1, size=100, spec=one.server.spec.digest, sdk="0.1.0",
        method="fedavg", run=2, shared=("body.",), digest=NumpyBundle().digest,
    )  # fmt: skip


def test_a_key_of_the_role_bundle_signs_bundles_and_no_list_of_keys(one):
    announce(one, bundle(one, 5), A)
    assert refused(one)["UNKNOWN_CLIENT"] == 1
    announce(one, listed(5, bundle=(A.public,)), ROOT_KEY)
    announce(one, bundle(one, 6), A)
    assert one.device.client._session.parts.announcements.bundle.serial == 6
    announce(one, listed(7), A)
    assert following(one).announced.serial == 5
    assert refused(one)["BAD_SIGNATURE"] == 1
    assert A.public in archive_keys(one.device.config)
    announce(one, listed(8), ROOT_KEY)  # the role ends
    announce(one, bundle(one, 9), A)
    assert one.device.client._session.parts.announcements.bundle.serial == 6
    assert A.public not in archive_keys(one.device.config)


def test_a_model_by_another_key_than_the_role_names_is_refused(one):
    """The everyday key of the aggregator was stolen; the one that signs models is in a token."""
    both = m.KeysMessage(
        5, (AGG_KEY.public, A.public), (), (0, 0), (2**47,) * 2, 1, model=(A.public,)
    )
    announce(one, both, ROOT_KEY)
    w = np.zeros(one.server.spec.shared_size, np.float32)
    one.server.open_round(1, 0, w)
    one.run(200, seconds=0.05)
    assert one.server.updates == []
    assert refused(one)["UNKNOWN_CLIENT"] >= 1
    publish = one.server.publish
    one.server.publish = lambda message, signer, sender: publish(
        message, A if sender == AGGREGATOR else signer, sender
    )
    one.server.open_round(2, 0, w)
    one.run(200, seconds=0.05)
    assert len(one.server.updates) == 1


def test_a_list_that_gives_a_role_to_an_unlisted_key_is_malformed():
    with pytest.raises(ValueError, match="model: expected keys of sign"):
        listed(1, model=(A.public,))
    with pytest.raises(ValueError, match="root_min"):
        listed(1, roots=(A.public,), root_min=2)
    with pytest.raises(ValueError, match="small order"):
        listed(1, roots=(bytes(32),))
