"""The measurement of sums prints every cost, and compares every sum, at a small size."""

from tools import bench_sums


def test_every_cost_has_a_line(capsys):
    bench_sums.main(["--members", "20", "--times", "3", "--devices", "300", "--days", "2"])
    printed = capsys.readouterr().out
    assert "| bytes over the plain vector | 110 |" in printed
    assert "300 devices x 2 days: sums equal bit for bit | 4 of 4 |" in printed
    assert printed.count("\n") == 11
