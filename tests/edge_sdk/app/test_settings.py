"""Files, conf.d and variables into dataclasses: who wins, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edge_sdk.app.settings import SettingsError, load, seconds, shown


@dataclass(frozen=True)
class Link:
    url: str
    keepalive: int = 60


@dataclass(frozen=True)
class Whole:
    id: str
    link: Link
    state: Path = Path("state")
    site: dict[str, float] = field(default_factory=dict)


def write(folder: Path, text: str, name: str = "meter.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


FILE = 'id = "m1"\n[link]\nurl = "mqtt://a"\n'


def test_environment_overrides_conf_d_which_overrides_the_file(tmp_path):
    path = write(tmp_path, FILE)
    write(tmp_path, '[link]\nurl = "mqtt://b"\nkeepalive = 30\n', "conf.d/10.toml")
    write(tmp_path, "[link]\nkeepalive = 20\n", "conf.d/20.toml")
    loaded = load(Whole, path, prefix="X_", environ={"X_LINK__URL": "mqtt://c", "Y_ID": "no"})
    assert loaded.value.link == Link("mqtt://c", 20)
    assert loaded.value.id == "m1"
    origins = {key: origin for key, _, origin in shown(loaded.value, loaded.origins)}
    assert origins["link.url"] == "X_LINK__URL"
    assert origins["link.keepalive"] == "20.toml"
    assert origins["id"] == "meter.toml"
    assert origins["state"] == "default"


def test_a_variable_is_parsed_as_toml_or_kept_as_text(tmp_path):
    path = write(tmp_path, FILE)
    environ = {"X_LINK__KEEPALIVE": "5", "X_ID": "m-2"}
    assert load(Whole, path, prefix="X_", environ=environ).value.link.keepalive == 5
    assert load(Whole, path, prefix="X_", environ=environ).value.id == "m-2"


@pytest.mark.parametrize(
    ("text", "blame"),
    [
        (FILE + "keepalife = 3\n", "meter.toml: link.keepalife: unknown key; did you mean"),
        (FILE + 'keepalive = "3"\n', "meter.toml: link.keepalive: expected int, got str"),
        ("[link]\nurl = 'x'\n", "meter.toml: id: missing"),
        ("id = [", "meter.toml: not valid TOML"),
    ],
)
def test_an_invalid_value_is_refused_with_its_file_and_key(tmp_path, text, blame):
    with pytest.raises(SettingsError) as caught:
        load(Whole, write(tmp_path, text))
    assert blame in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_invalid_variable_is_refused_by_its_name(tmp_path):
    with pytest.raises(SettingsError, match=r"X_LINK__KEEPALIVE: link\.keepalive: expected int"):
        load(Whole, write(tmp_path, FILE), prefix="X_", environ={"X_LINK__KEEPALIVE": "soon"})


def test_a_missing_file_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="No such file"):
        load(Whole, tmp_path / "none.toml")


def test_relative_paths_are_resolved_in_the_files_folder(tmp_path):
    loaded = load(Whole, write(tmp_path, FILE))
    assert loaded.value.state == tmp_path / "state"


def test_durations_are_parsed_and_invalid_ones_refused():
    assert [seconds(t) for t in ("1d", "1.5h", "2m", "3s", "4ms")] == [86400, 5400, 120, 3, 0.004]
