"""The comparison of one admission worker with two runs as a whole, on a server and a broker of its own."""

import re

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from tests.postgres_server import missing, running
from tools.bench_workers import PROGRAMS, main

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.soak
def test_one_worker_is_compared_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    if why := missing():
        pytest.skip(why)
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with running() as server:
        few = ("--updates", "250", "--repeat", "1", "--enc", "q4", "--no-daemon")
        assert main(["--url", server.database(), *few]) == 0
    shown = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in shown.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == [1, 2]
    for row in rows:
        rate, ratio, *times, total = (float(cell) for cell in row[1:])
        assert rate > 0
        assert ratio > 0
        assert len(times) == len(PROGRAMS)
        assert times[0] > 0, "a worker computes"
        assert sum(times) == pytest.approx(total, abs=0.02)
    assert re.search(r"processor times allow \d\.\d\d to \d\.\d\d on \d+ cores", shown)


def test_an_address_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as met:
        main(["--url", "sqlite:///a.db"])
    assert met.value.code == 2
    assert "--url: expected postgresql://" in capsys.readouterr().err
