"""When training waits: windows, load and power, and an installation that cannot tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.machine_state.deferral import held_by, is_open, on_battery
from edge_sdk.limits import LimitsSection


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_an_upload_window_and_its_complement_cover_the_day(begin, end, now):
    def text(minute):
        return f"{minute // 60:02}:{minute % 60:02}"

    if begin != end:
        one, rest = (f"{text(a)}-{text(b)}" for a, b in ((begin, end), (end, begin)))
        assert is_open((one,), 60.0 * now) != is_open((rest,), 60.0 * now)


@pytest.mark.parametrize(
    ("section", "present", "why"),
    [
        (LimitsSection(), {"load": 9.0, "battery": True}, ""),
        (LimitsSection(train_when="idle"), {"load": 0.9}, "busy"),
        (LimitsSection(train_when="idle"), {"load": 0.1}, ""),
        (LimitsSection(train_when="mains"), {"battery": False}, ""),
        (LimitsSection(train_when="mains"), {"battery": None}, ""),
        (
            LimitsSection(upload_windows=("01:00-02:00",)),
            {},
            "outside the upload windows",
        ),
    ],
)
def test_the_limit_that_forbids_training_is_named(section, present, why):
    assert held_by(section, 0.0, **present) == why


def test_battery_operation_is_detected_from_the_mains_supplies(tmp_path):
    assert on_battery(tmp_path) is None
    for name, kind, online in (("AC", "Mains", "0"), ("BAT0", "Battery", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
        (tmp_path / name / "online").write_text(f"{online}\n")
    assert on_battery(tmp_path) is True
    (tmp_path / "AC" / "online").write_text("1\n")
    assert on_battery(tmp_path) is False


@pytest.mark.parametrize("limits", [{"train_when": "mains"}, {"upload_windows": ["01:00-02:00"]}])
def test_a_limit_that_no_installed_extension_observes_is_refused(make, monkeypatch, limits):
    fleet = make("waiting", limits=limits)
    fleet.device.start()
    fleet.device.kill()
    monkeypatch.setattr(type(Config.index), "configured", lambda _self, _tables: [])
    with pytest.raises(ConfigError, match="limits: the extension for"):
        fleet.device.start()
