"""The papers' own noise levels, to the digits that were calculated by hand."""

import math

import pytest

from edge_sdk.extensions.papers.paper_noise import (
    nbafl_downlink,
    nbafl_uplink,
    udp_sensitivity,
    udp_uplink,
)

TOLD = {"clip": 1.0, "samples": 1000, "uploads": 1}


def test_nbafl_as_calculated_by_hand():
    assert nbafl_uplink(10.0, 1e-5, **TOLD) == pytest.approx(9.68961e-4, rel=1e-5)
    down = nbafl_downlink(10.0, 1e-5, rounds=25, clients=50, **TOLD)
    assert down == pytest.approx(4.64697e-4, rel=1e-5)


def test_udp_as_calculated_by_hand():
    reach = udp_sensitivity(rate=0.01, steps=5, clip=1.0, samples=1000)
    assert reach == pytest.approx(1e-4, rel=1e-12)
    assert udp_uplink(10.0, 1e-5, sensitivity=reach, rounds=25) == pytest.approx(
        2.399263e-4, rel=1e-6
    )


def test_the_server_adds_nothing_while_the_uploads_noise_covers_its_rounds():
    assert nbafl_downlink(10.0, 1e-5, rounds=7, clients=50, **TOLD) == 0.0
    assert nbafl_downlink(10.0, 1e-5, rounds=8, clients=50, **TOLD) > 0.0
    assert nbafl_downlink(10.0, 1e-5, rounds=10, clients=100, **TOLD) == 0.0


def test_the_uplink_grows_in_line_with_the_uploads_and_udp_with_their_root():
    one = nbafl_uplink(10.0, 1e-5, clip=1.0, samples=1000, uploads=1)
    four = nbafl_uplink(10.0, 1e-5, clip=1.0, samples=1000, uploads=4)
    assert four == pytest.approx(4 * one)
    few, many = (udp_uplink(10.0, 1e-5, sensitivity=1.0, rounds=n) for n in (25, 100))
    assert many == pytest.approx(2 * few)


def test_a_smaller_share_is_credited_with_less_noise_as_the_paper_says():
    whole = udp_uplink(10.0, 1e-5, sensitivity=1.0, rounds=25)
    assert udp_uplink(10.0, 1e-5, sensitivity=1.0, rounds=25, sampled=0.25) == pytest.approx(
        whole / 2
    )


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"clip": -1.0}, "clip"),
        ({"samples": 0}, "samples"),
        ({"uploads": 0}, "uploads"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_meant_are_refused_by_name(wrong, named):
    given = {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "samples": 10, "uploads": 1} | wrong
    with pytest.raises(ValueError, match=rf"^{named}: expected"):
        nbafl_uplink(given.pop("epsilon"), given.pop("delta"), **given)


@pytest.mark.parametrize(("wrong", "named"), [({"rounds": 0}, "rounds"), ({"clients": 0}, "cl")])
def test_the_downlink_refuses_its_own_numbers(wrong, named):
    with pytest.raises(ValueError, match=rf"^{named}"):
        nbafl_downlink(1.0, 1e-5, **(TOLD | {"rounds": 25, "clients": 50} | wrong))


def test_more_than_everybody_cannot_be_sampled():
    with pytest.raises(ValueError, match="sampled: expected at most 1"):
        udp_uplink(1.0, 1e-5, sensitivity=1.0, rounds=1, sampled=1.5)
