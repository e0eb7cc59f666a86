"""Labels of devices: what an operator writes, and what stays over enrolments and revocations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.commands import main as cli
from aggregator.operations.commands import (
    LabelError,
    OrderError,
    changed_labels,
    label_text,
    parse_labels,
)
from aggregator.operations.control_queue import ControlOrder, apply
from aggregator.store.opener import open_store

KEY = "11" * 32
OTHER = "22" * 32

names = st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)
values = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "fleet.db") as store:
        yield store


@given(st.dictionaries(names, values, max_size=16))
def test_what_is_written_is_read(labels):
    assert parse_labels(label_text(labels.items())) == labels
    assert dict(changed_labels((), labels)) == labels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("north", "label 'north': expected name=value"),
        ("Region=north", "label 'Region': expected a name of a-z"),
        ("region=a b", "label region: 'a b': expected letters"),
        ("region=north,region=south", "label 'region' is given twice"),
        ("=north", "label '': expected a name"),
    ],
)
def test_a_malformed_label_is_refused_by_name(text, why):
    with pytest.raises(LabelError) as caught:
        parse_labels(text)
    assert why in str(caught.value)


def test_a_device_has_at_most_sixteen():
    with pytest.raises(LabelError, match="17 labels; a device has at most 16"):
        changed_labels((), {f"l{number}": "x" for number in range(17)})


def labels_of(store, device="meter-1"):
    return {client.id: dict(client.labels) for client in store.devices.all()}[device]


def test_labels_stay_over_a_new_key_and_a_revocation(store):
    apply(ControlOrder("enrol", "meter-1", public=KEY, labels="region=north,kind=meter"), store)
    apply(ControlOrder("enrol", "meter-1", public=OTHER), store)
    assert labels_of(store) == {"region": "north", "kind": "meter"}
    said = apply(ControlOrder("label", "meter-1", labels="region=south,kind="), store)
    assert said == "meter-1 is labelled region=south"
    apply(ControlOrder("revoke", "meter-1"), store)
    assert labels_of(store) == {"region": "south"}
    apply(ControlOrder("enrol", "meter-1", public=OTHER, labels="kind=meter"), store)
    assert labels_of(store) == {"region": "south", "kind": "meter"}


def test_an_order_with_a_malformed_label_changes_nothing(store):
    with pytest.raises(OrderError, match="meter-1: label 'north': expected name=value"):
        apply(ControlOrder("enrol", "meter-1", public=KEY, labels="north"), store)
    assert store.devices.all() == []
    with pytest.raises(OrderError, match="'meter-1' is not enrolled"):
        apply(ControlOrder("label", "meter-1", labels="a=b"), store)


def test_an_operator_enrols_with_labels_changes_and_lists_them(workplace, capsys):
    config = str(workplace())
    assert cli.main(["init", config]) == 0
    add = ("--public", KEY, "--label", "region=north,kind=meter", "--config", config)
    assert cli.main(["enrol", "meter-1", *add]) == 0
    devices = workplace().parent / "devices.csv"
    devices.write_text(f"id,public,labels\nmeter-2,{OTHER},region=south;kind=meter\n")
    assert cli.main(["enrol", "--from-file", str(devices), "--config", config]) == 0
    assert cli.main(["label", "kind=charger", "meter-2", "--config", config]) == 0
    capsys.readouterr()
    assert cli.main(["list", config, "--label", "kind=charger", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["devices"]
    assert (only["id"], only["labels"]) == ("meter-2", {"kind": "charger", "region": "south"})
    assert cli.main(["list", config]) == 0
    assert "kind=meter,region=north" in capsys.readouterr().out
    assert cli.main(["enrol", "meter-3", "--public", KEY, "--label", "x", "--config", config]) == 2
    assert "label 'x': expected name=value" in capsys.readouterr().err
