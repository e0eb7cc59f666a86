"""Errors on readings that nobody learned from."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_sim.reports.forecast_errors import Error, Errors


def test_unobserved_hours_are_excluded_and_large_errors_are_not():
    truth = np.array([[1.0], [np.nan], [3.0]])
    assert Error.of(np.array([[2.0], [9.0], [3.0]]), truth).mae == 0.5
    assert Error.of(np.array([[2.0], [9.0], [np.nan]]), truth).mae == np.inf
    assert Error.of(np.array([[1e200], [0.0], [3.0]]), truth).rmse == np.inf


def test_a_device_without_a_finite_forecast_has_an_infinite_error():
    assert Error.of(np.zeros((0, 1)), np.zeros((0, 1))) == Error(np.inf, np.inf, 0)


def test_every_device_has_equal_weight():
    both = Errors({"a": Error(1.0, 2.0, 10), "b": Error(3.0, 4.0, 90)})
    assert (both.mae, both.rmse, both.windows) == (2.0, 3.0, 100)


@pytest.mark.parametrize("horizon", [1, 4])
def test_all_steps_of_the_horizon_are_scored(horizon):
    told = np.arange(6.0 * horizon).reshape(6, horizon)
    assert Error.of(told, told + 2.0) == Error(2.0, 2.0, 6)
