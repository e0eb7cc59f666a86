"""The broker's access rules follow enrolments, labels, runs and revocations."""

from types import SimpleNamespace

import pytest

from aggregator.commands.main import main
from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access import mosquitto_acl
from aggregator.extensions.authority.access.access_changes import with_denied
from aggregator.extensions.authority.access.access_rules import (
    AccessRulesMonitor,
    access_rules,
    difference,
)
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.store.types import EnrolledDevice

NAMED = ("\n[run]\n", '\n[[run]]\nname = "meters"\ncohort = { kind = "meter" }\n')
METER = (("kind", "meter"),)
ANNOUNCED = "gf/1/north/_meters/model"


def device(name, state="enrolled", labels=METER):
    return EnrolledDevice(name, (bytes(32),), state=state, labels=labels)


@pytest.fixture
def fleet(workplace):
    return AggregatorConfig.load(workplace(replacing=[NAMED]))


BEFORE = [device("meter-1", labels=()), device("gone")]
NOW = [device("meter-1"), device("meter-2"), device("gone", state="revoked")]


@pytest.mark.parametrize(
    ("is_shared", "is_by_pattern"), [(False, False), (True, False), (False, True)]
)
@pytest.mark.parametrize("had_runs", [False, True])
def test_a_file_from_before_enrolments_labels_and_runs_is_corrected(
    fleet, workplace, is_shared, is_by_pattern, had_runs
):
    former = fleet if had_runs else AggregatorConfig.load(workplace())
    old = access_rules(former, BEFORE, is_shared=is_shared, is_by_pattern=is_by_pattern)
    kept = "user dashboard\ntopic read $SYS/#\ntopic read gf/1/north/+/status\n"
    found = difference(f"{old}{kept}", fleet, NOW, is_shared=is_shared)
    assert found
    assert kept in found.text, "rules of an operator's own"
    rules = mosquitto_acl.read(found.text)
    name = "north.{}" if is_shared else "{}"
    for one in ("meter-1", "meter-2"):
        user = name.format(one)
        assert rules.may(user, ANNOUNCED, write=False)
        assert rules.may(user, f"gf/1/north/{one}/up/hello", write=True)
    assert not rules.may(name.format("gone"), "gf/1/north/gone/up/hello", write=True)
    assert not rules.may(name.format("gone"), ANNOUNCED, write=False)
    assert not difference(found.text, fleet, NOW, is_shared=is_shared)
    assert mosquitto_acl.findings(found.text) == []


def test_a_device_that_leaves_a_cohort_loses_its_topics_and_keeps_foreign_ones(fleet):
    text = access_rules(fleet, NOW, is_shared=False)
    text = text.replace("user meter-2\n", "user meter-2\ntopic write site/roof\n")
    left = [device("meter-1"), device("meter-2", labels=())]
    found = difference(text, fleet, left, is_shared=False)
    assert (found.lacking, found.excess) == ((), ("meter-2",))
    rules = mosquitto_acl.read(found.text)
    assert not rules.may("meter-2", ANNOUNCED, write=False)
    assert rules.may("meter-2", "site/roof", write=True)


def test_a_file_without_the_fleet_gets_its_section_on_a_shared_broker_alone(fleet):
    south = mosquitto_access("south", ["m"], is_shared=True)
    text = f"# begin fleet south\n{south}# end fleet south\n"
    found = difference(text, fleet, NOW, is_shared=True)
    assert text in found.text
    assert not difference(found.text, fleet, NOW, is_shared=True)
    with pytest.raises(ValueError, match="rules of fleet south, not of north"):
        difference(mosquitto_access("south", ["m"]), fleet, NOW, is_shared=False)


class Place:
    """A configuration with a file of rules, and a monitor that looks at it."""

    def __init__(self, workplace, text, reload="true"):
        self.path = workplace(replacing=[NAMED])
        self.file = self.path.parent / "access"
        self.file.write_text(text)
        command = f'\nreload = ["{reload}"]' if reload else ""
        with self.path.open("a") as out:
            out.write(f'\n[ca]\naccess_file = "access"{command}\n')
        self.config = AggregatorConfig.load(self.path)
        self.monitor, self.now, self.revision = AccessRulesMonitor(), 0.0, 1

    def look(self, clients, *, after=10.0):
        self.now, self.revision = self.now + after, self.revision + 1
        registry = SimpleNamespace(revision=self.revision, clients=lambda: clients)
        self.monitor.follow(self.config, registry, self.now)
        return self.monitor.problem

    def lacks(self, clients):
        return difference(self.file.read_text(), self.config, clients, is_shared=False)


def test_the_daemon_corrects_the_file_and_reloads_the_broker(workplace, fleet):
    place = Place(workplace, access_rules(fleet, BEFORE, is_shared=False), reload="false")
    assert "ca.reload: false: exit code 1" in place.look(NOW)
    assert not place.lacks(NOW)
    place.config = AggregatorConfig.load(place.path, {"GRIDFED_AGGREGATOR_CA__RELOAD": '["true"]'})
    assert place.look(NOW, after=1.0), "not again so soon: Mosquitto serves nobody while it reads"
    assert place.look(NOW) == ""


def test_a_denial_is_not_lifted_while_the_order_to_revoke_waits(workplace, fleet):
    clients = [device("meter-1"), device("meter-2")]
    rules = with_denied(access_rules(fleet, clients, is_shared=False), "north", ["meter-2"])
    place = Place(workplace, rules)
    leave(place.config.inbox, ControlOrder("revoke", "meter-2"))
    assert place.look(clients) == ""
    assert place.file.read_text() == rules
    for order in place.config.inbox.glob("*.json"):
        order.unlink()
    place.look(clients)
    assert not place.lacks(clients), "enrolled again"


def test_what_the_daemon_cannot_correct_is_told_with_the_command(workplace, fleet):
    place = Place(workplace, access_rules(fleet, BEFORE, is_shared=False), reload="")
    said = place.look(NOW)
    assert "lack topics of meter-1, meter-2" in said
    assert "set ca.reload" in said
    assert f"broker access --file {place.file} --config {place.path}" in said
    place.file.write_text(access_rules(fleet, BEFORE, is_shared=False, workers=["worker-1"]))
    assert f"--file {place.file} --worker worker-1 --config" in place.look(NOW)
    place.file.write_text(access_rules(fleet, BEFORE, is_shared=False, is_by_pattern=True))
    assert f"--file {place.file} --patterns --config" in place.look(NOW)
    place.file.unlink()
    assert "No such file" in place.look(NOW)


def test_check_and_broker_check_compare_the_file_of_the_fleet(workplace, fleet, capsys):
    place = Place(workplace, access_rules(fleet, BEFORE, is_shared=False))
    assert main(["init", str(place.path)]) == 0
    words = ("enrol", "meter-7", "--public", "11" * 31 + "12", "--config", str(place.path))
    conf = place.path.parent / "mosquitto.conf"
    conf.write_text(f"listener 1883 127.0.0.1\nacl_file {place.file}\n")
    assert main([*words, "--label", "kind=meter"]) == 0
    capsys.readouterr()
    assert main(["check", str(place.path)]) == 0
    assert "warning: " in (said := capsys.readouterr().out)
    assert "lack topics of meter-7" in said
    check = ["broker", "check", "--file", str(conf), "--config", str(place.path)]
    assert main(check) == 1
    assert "lack topics of meter-7" in capsys.readouterr().out
    written = ["broker", "config", "--fleet", "north", "--config", str(place.path)]
    assert main(written) == 0
    said = capsys.readouterr().out
    assert f"acl_file {place.file}" in said
    assert "the daemon keeps them up to date" in said
    assert main(check) == 1
    assert "access rules" not in capsys.readouterr().out


def test_the_configuration_and_access_commands_grant_the_same(workplace, capsys, monkeypatch):
    path = workplace(replacing=[NAMED])
    monkeypatch.chdir(path.parent)
    assert main(["init", str(path)]) == 0
    (path.parent / "broker").mkdir()
    (path.parent / "broker" / "access.acl").write_text("user dashboard\ntopic read $SYS/#\n")
    assert main(["broker", "access", "--file", "broker/access.acl"]) == 0
    assert "users without rules from now on: dashboard" in capsys.readouterr().out
    for more in ((), ("--patterns",)):
        capsys.readouterr()
        assert main(["broker", "access", *more]) == 0
        rules = capsys.readouterr().out.strip()
        assert main(["broker", "config", "--fleet", "north", *more]) == 0
        assert (path.parent / "broker" / "access.acl").read_text().strip() == rules
        assert ("read gf/1/north/_meters/#" in rules) == bool(more)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("", ("1883 127.0.0.1", "for this machine only: no TLS; give --ca, --cert and --key")),
        ("--ca a --cert b --key c", ("8883 0.0.0.0", "TLS with client certificates")),
        (
            "--ca a --cert b --key c --address 10.0.0.7 --port 8884",
            ("8884 10.0.0.7", "10.0.0.7, port 8884: TLS"),
        ),
    ],
)
def test_the_broker_listens_for_devices_where_it_may(tmp_path, monkeypatch, capsys, words, chosen):
    listener, says = chosen
    monkeypatch.chdir(tmp_path)
    assert main(["broker", "config", "--fleet", "north", *words.split()]) == 0
    said = capsys.readouterr().out
    assert f"\nlistener {listener}\n" in said
    assert says in said.partition("\n")[0]


def test_a_broker_without_rules_listens_to_nobody_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["broker", "config", "--ca", "a", "--cert", "b", "--key", "c"]) == 0
    assert "\nlistener 8883 127.0.0.1\n" in (said := capsys.readouterr().out)
    assert "give --fleet to listen for devices" in said
    assert main(["broker", "config", "--fleet", "north", "--address", "0.0.0.0"]) == 2
