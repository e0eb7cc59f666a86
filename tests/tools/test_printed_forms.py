"""BAFDP's printed equations lead away from the consensus; the corrected ones do not."""

import numpy as np
import pytest

from edge_sdk.extensions.papers.proximal_step import SIGN, l1_penalty
from tools.experiments.printed_forms import ONE, duals, main, printed_l1, weights


def test_the_printed_sign_drives_a_dual_to_its_bound():
    assert duals(printed=True)[-1] == 0.5
    assert duals(printed=False)[1:] == [0.0] * 60


def test_the_printed_l1_term_leaves_the_consensus_and_the_corrected_one_stays():
    assert weights(printed_l1(ONE, np.zeros(1), 0.05))[1] == pytest.approx(0.08)
    assert weights(printed_l1(ONE, np.zeros(1), 0.05))[-1] == pytest.approx(3.03)
    assert max(map(abs, weights(l1_penalty(ONE, np.zeros(1), 0.05, SIGN)))) <= 0.05


def test_the_table_has_all_four(capsys):
    main()
    assert len(capsys.readouterr().out.splitlines()) == 5
