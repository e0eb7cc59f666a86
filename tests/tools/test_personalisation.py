"""The table of personalisation on made-up devices: which vectors count, and who chooses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tools.experiments import personalisation as one
from tools.experiments.cells import Cell


@pytest.fixture
def base(monkeypatch):
    def two(*_args):
        hours = np.arange(24 * 12)
        for name, phase in (("a", 0.0), ("b", 2.0)):
            load = 2 + np.sin(2 * np.pi * hours / 24 + phase) + 0.1 * np.sin(hours / 5.0)
            yield Cell(name, 3600, 1_514_764_800, load, 48)

    monkeypatch.setattr(one, "series", two)
    return one.Ground.of(None, "made up", 2)


@pytest.mark.parametrize("name", ["Ditto", "FedBABU", "FedRep", one.ALONE])
def test_every_device_keeps_its_own_best_model(base, name):
    errors, best = one._trained(base, one.ROWS[name], 0, 2, None)
    assert (best["a"] != best["b"]).any()
    for device, (chosen, test) in errors.items():
        assert chosen == base.error(device, best[device], "choose")
        assert test == base.error(device, best[device], "test")


def test_fedavg_has_one_model_and_is_tuned_from_it(base):
    found = one.run(base, "FedAvg", 0, 2)
    assert set(found) == {"FedAvg", one.TUNED}
    for device, (chosen, _) in found[one.TUNED].items():
        assert chosen <= found["FedAvg"][device][0], "step 0 counts"


def test_the_record_makes_the_table(base, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(one, "ROUNDS", 1)
    monkeypatch.setattr(one.run, "__defaults__", (1,))
    monkeypatch.setattr(one, "SETS", one.SETS[:1])
    monkeypatch.setattr(one, "RECORD", tmp_path / "record.json")
    page = tmp_path / "experiments.md"
    page.write_text(f"{one.MARKER}\n{one.MARKER}\n")
    options = SimpleNamespace(data=None, out=tmp_path, seeds=1, docs=tmp_path)
    assert one.main(options) == 0
    printed = capsys.readouterr().out
    assert printed.strip() in page.read_text()
    assert printed.count("\n") == 2 + len(one.ROWS) + 4
    monkeypatch.setattr(one, "run", None)  # a second call computes nothing
    assert one.main(options) == 0
    assert capsys.readouterr().out == printed
