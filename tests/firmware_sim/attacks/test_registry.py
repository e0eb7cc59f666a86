"""Every row of the threat models is here, says what it does, and takes only its own options."""

from __future__ import annotations

import pytest

from firmware_sim.attacks import ATTACKS, KINDS, UnknownAttack, bind

TABLE = {
    "flipping", "scaling", "gaussian", "alie", "ipm", "mimic", "label_flip", "fdi_bias",
    "fdi_ramp", "fdi_scale", "fdi_outage", "free_rider", "replay", "signal_flip", "signal_scale",
    "delay", "drop", "samples", "nan", "duplicate", "reorder", "wrong_size", "wrong_version",
    "huge", "empty_payload", "empty_vector", "twin", "constant", "near_copy",
}  # fmt: skip


def test_every_attack_of_the_table_is_registered_with_a_definition():
    assert set(ATTACKS) == TABLE
    for name, row in ATTACKS.items():
        assert row.name == name
        assert row.kind in KINDS
        assert row.definition
        assert row.act.__doc__


def test_only_omniscient_attacks_receive_the_honest_updates():
    assert {name for name, row in ATTACKS.items() if row.is_omniscient} == {
        "alie", "ipm", "mimic", "near_copy",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("aliee", {}, "unknown attack 'aliee'; known: alie"),
        ("alie", {"zz": "1"}, "unknown option 'zz'; known: z, floor, ddof, target"),
        ("alie", {"z": "big"}, "z: expected a number, got 'big'"),
        ("alie", {"ddof": "0.5"}, "ddof: expected a number"),
        ("flipping", {"target": "sideways"}, "target: sent, weights, update; got 'sideways'"),
        ("nan", {"target": "weights"}, "unknown option 'target'; known: none"),
    ],
)
def test_an_unknown_attack_or_option_is_refused(name, options, why):
    with pytest.raises(UnknownAttack, match=why):
        bind(name, options)


def test_attack_defaults_agree_with_the_specification():
    defaults = {name: dict(row.options) for name, row in ATTACKS.items() if row.kind == "model"}
    assert defaults == {
        "flipping": {},
        "scaling": {"factor": 10.0},
        "gaussian": {"variance": 1.0},
        "constant": {"value": 1e3},
        "alie": {"z": None, "floor": 0.3, "ddof": 1},
        "ipm": {"epsilon": 0.5},
        "mimic": {"victim": 0},
        "near_copy": {"drift": 1e-3, "victim": 0},
        "free_rider": {"deviation": None},
        "replay": {"rounds": 5},
    }
    assert ATTACKS["flipping"].space == "weights"
    assert bind("flipping", {"target": "update"}).space == "update"
