"""The page about privacy says what the code computes, and shows what the code accepts."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from edge_sdk.app.settings import from_table
from edge_sdk.bundle import Bundle as OpenBundle
from edge_sdk.bundle import TrustedKeys
from edge_sdk.extensions.inspection.datasheet import NO_CLAIM, as_text, data_sheet, explain_budget
from edge_sdk.extensions.noise_points.classical_noise import classical_sigma
from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy.ledger import PrivacyAccount, compose
from edge_sdk.privacy.noise import epsilon_of, sigma_for
from edge_sdk.privacy.noise_calibration import DeviceFacts, NoisePlan
from edge_sdk.privacy.validation import plan_of
from edge_sdk.protocol.contract.manifest import CLIPPED_GRADIENT, SIGNATURES, GraphFile

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "privacy.md").read_text("utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SHOWN = [block for block in BLOCKS if "[privacy" in block]
DELTA = 1e-5


def planned(block: str) -> NoisePlan:
    section = from_table(PrivacySection, tomllib.loads(block)["privacy"], "page")
    name = "load-analytic" if 'point = "statistic"' in block else "load-mlp"
    manifest = OpenBundle.open(name, trust=TrustedKeys()).manifest
    if manifest.analytic is not None:
        return plan_of(section, DeviceFacts(manifest, keep=17_568, max_steps=64, shared=448))
    clipped = GraphFile("clipped.onnx", *SIGNATURES[CLIPPED_GRADIENT])
    manifest = replace(manifest, graphs={**manifest.graphs, CLIPPED_GRADIENT: clipped})
    return plan_of(section, DeviceFacts(manifest, keep=17_568, max_steps=64, shared=5760))


def test_every_row_of_the_privacy_page_is_computed():
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 9
    for row in rows:
        epsilon, needed, textbook, true = map(float, row)
        assert sigma_for(epsilon, DELTA) == pytest.approx(needed, abs=6e-5)
        assert classical_sigma(epsilon, DELTA) == pytest.approx(textbook, abs=6e-5)
        worth = epsilon_of(classical_sigma(epsilon, DELTA), DELTA)
        assert worth == pytest.approx(true, abs=6e-5)


def test_the_numbers_in_the_text_are_computed():
    said = {
        "91.8": epsilon_of(0.1, DELTA),
        "494": sigma_for(1.0, DELTA, math.sqrt(17_520)),
        "25.8": sigma_for(1.0, DELTA, math.sqrt(48)),
        "noise of 12 clips": 2 * 10 * sigma_for(8.0, DELTA),
        "911 times": 2 * 10 * sigma_for(8.0, DELTA) * math.sqrt(5760),
        "13.2067": epsilon_of(0.4, DELTA),
        "9.9973": epsilon_of(0.5, DELTA),
        "24.382": epsilon_of(0.25, DELTA),
    }
    for text, value in said.items():
        assert text in PAGE
        number = re.search(r"[\d.]+", text).group()
        assert value == pytest.approx(float(number), rel=3e-3), text


@pytest.mark.parametrize("block", SHOWN, ids=range(len(SHOWN)))
def test_every_configuration_shown_is_accepted_and_explained(block):
    plan = planned(block)
    account = PrivacyAccount(limit=plan.limit).plus(plan.charge(releases=1))
    told = explain_budget(plan, account)
    assert "not protected:" in told
    assert "1 updates released so far" in told
    text = as_text(data_sheet(plan, account, "0.1.0"))
    assert ("formal claim: yes" in text) == (plan.section.mode == "honest")
    assert (NO_CLAIM in text) == (plan.section.mode == "paper")


def test_every_configuration_shown_is_one_of_privacy():
    assert [block for block in BLOCKS if block not in SHOWN] == []


def test_the_paper_example_costs_the_stated_epsilon():
    plan = planned(next(block for block in SHOWN if "nbafl" in block))
    worth = compose([plan.charge()], DELTA)
    assert worth == pytest.approx(2.1e6, rel=0.03)


def test_the_update_example_allows_the_stated_number_of_releases():
    plan = planned(next(block for block in SHOWN if "releases = 100" in block))
    account = PrivacyAccount(limit=plan.limit)
    assert account.left(plan.release()) == 100
    assert account.plus(plan.charge(count=100)).epsilon() == pytest.approx(8.0, rel=1e-6)
