"""A heartbeat has an age, and an agent that is gone has none."""

from __future__ import annotations

import pytest

from edge_sdk.extensions.health.health import Heartbeat, age, default_path


def test_the_age_is_that_of_the_last_beat(tmp_path):
    now, path = [100.0], tmp_path / "beat"
    heart = Heartbeat(path, lambda: now[0])
    assert age(path, 100.0) is None
    heart.beat()
    now[0] = 103.0
    heart.beat()
    assert age(path, 103.0) == 3.0, "no more than one write in five seconds"
    now[0] = 106.0
    heart.beat()
    assert age(path, 106.0) == 0.0
    assert [one.name for one in tmp_path.iterdir()] == ["beat"]
    heart.close()
    assert age(path, 106.0) is None


def test_one_of_an_earlier_boot_counts_as_none(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, lambda: 5000.0).beat()
    assert age(path, 20.0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"monotonic": "x"}', '{"pid": 1}', "9" * 400])
def test_a_damaged_file_counts_as_none(tmp_path, text):
    path = tmp_path / "beat"
    path.write_text(text)
    assert age(path, 20.0) is None


def test_a_link_is_never_followed(tmp_path):
    target, path = tmp_path / "target", tmp_path / "beat"
    Heartbeat(target, lambda: 10.0).beat()
    path.symlink_to(target)
    assert age(path, 11.0) is None
    before = target.read_bytes()
    Heartbeat(path, lambda: 11.0).beat()
    assert target.read_bytes() == before


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path):
    Heartbeat(tmp_path / "absent" / "beat").beat()


def test_each_state_folder_has_its_own(tmp_path):
    assert default_path(tmp_path / "a") != default_path(tmp_path / "b")
    assert default_path(tmp_path / "a") == default_path(tmp_path / "a")
