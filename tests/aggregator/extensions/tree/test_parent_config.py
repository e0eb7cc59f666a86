"""A site whose run cannot follow a parent is refused before anything connects."""

from __future__ import annotations

import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.tree.parent_binding import PARENT_METHODS, SITE_METHODS
from aggregator.extensions.tree.session_config import load_keys, session_config
from aggregator.methods import METHODS
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.contract.method import CONTRACTS, Up

SITE = """
fleet = "substation"
state = "state"
[parent]
id = "site-1"
fleet = "utility"
root = "utility.pub"
broker = { url = "mqtt://127.0.0.1:1" }
[run]
bundle = "load-mlp"
method = "fedavg"
quorum = 2
"""


@pytest.fixture
def site(tmp_path):
    def write(old="", new=""):
        path = tmp_path / "site.toml"
        path.write_text(SITE.replace(old, new) if old else SITE, "utf-8")
        return path

    return write


def test_a_site_is_valid(site):
    config = AggregatorConfig.load(site(), {})
    bind(config)
    assert (config.section("parent").rounds, config.section("parent").max_count) == (1, 100)
    made = session_config(config, config.section("parent"))
    assert (made.id, made.fleet, made.privacy.mechanism.name) == ("site-1", "utility", "none")
    assert made.state == config.state / "parent"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"fedavg"', '"pfl"', "run.method: 'pfl' cannot follow a parent"),
        ("quorum = 2", "quorum = 1", "run.quorum: expected at least 2 beside [parent], got 1"),
        ("quorum = 2", "quorum = 3\nmin_updates = 1", "run.min_updates: expected at least 2"),
        ("quorum = 2", "quorum = 2\nrounds = 9", "run.rounds: expected none beside [parent]"),
        ("quorum = 2", "quorum = 2\nrate_stages = [[5, 1e-3]]", "run.rate_stages: expected none"),
        ('fleet = "utility"', 'fleet = "substation"', "parent.fleet: 'substation' is this"),
    ],
)
def test_a_run_that_cannot_follow_is_refused(site, old, new, says):
    with pytest.raises(SettingsError) as caught:
        bind(AggregatorConfig.load(site(old, new), {}))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('id = "site-1"', 'id = "_agg"', "parent.id"),
        ('id = "site-1"', 'id = "site-1"\nrounds = 0', "parent.rounds"),
        ('id = "site-1"', 'id = "site-1"\nmax_count = 0', "parent.max_count"),
        ('id = "site-1"', 'id = "site-1"\npatience = "soon"', "parent.patience"),
        ('root = "utility.pub"', "", "parent.root"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(site, old, new, key):
    with pytest.raises(SettingsError) as caught:
        AggregatorConfig.load(site(old, new), {})
    assert key in str(caught.value)


TWO_RUNS = """[[run]]
name = "a"
bundle = "load-mlp"
method = "fedavg"
quorum = 2
[[run]]
name = "b"
"""


def test_a_site_has_one_run(site):
    with pytest.raises(SettingsError, match="parent: expected one run"):
        AggregatorConfig.load(site("[run]\n", TWO_RUNS), {})


def test_join_prints_the_line_of_a_device(site, capsys):
    path = site()
    assert cli.main(["join", str(path)]) == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    name, public, proof = line.split(",")
    assert (name, len(public), len(proof)) == ("site-1", 64, 128)
    assert cli.main(["join", str(path)]) == 0  # keeps the key
    assert capsys.readouterr().out.strip().splitlines()[-1] == line


def test_join_needs_the_section(site, capsys):
    path = site()
    text = path.read_text("utf-8")
    path.write_text(text[: text.index("[parent]")] + text[text.index("[run]") :], "utf-8")
    assert cli.main(["join", str(path)]) == 2
    assert "join needs the section [parent]" in capsys.readouterr().err


def test_missing_keys_are_named_with_the_remedy(site):
    config = AggregatorConfig.load(site(), {})
    with pytest.raises(SettingsError, match=r"parent\.root") as caught:
        load_keys(config, config.section("parent"))
    assert "root.pub from the parent's operator" in caught.value.hint
    config.section("parent").root.parent.mkdir(exist_ok=True)
    config.section("parent").root.write_text(
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )
    with pytest.raises(SettingsError, match=r"parent\.key") as caught:
        load_keys(config, config.section("parent"))
    assert "gridfed-aggregator join" in caught.value.hint


def test_the_methods_of_both_levels_have_what_a_tree_needs():
    for name in PARENT_METHODS:
        (ask,) = CONTRACTS[name].values()
        assert ask.up in (Up.DELTA, Up.WEIGHTS)
        assert ask.down == ("w",)
        assert not any(number.needed for number in ask.report)
    for name in SITE_METHODS:
        assert name in METHODS
        (ask,) = CONTRACTS[name].values()
        assert not ask.personal
