"""The cost of a daemon by the number of devices: every figure is measured, and rows are kept apart."""

from tools.bench_fleet_size import Size, measured, table


def test_a_daemon_is_opened_with_every_device(tmp_path):
    (tmp_path / "many").mkdir()
    (tmp_path / "few").mkdir()
    many, few = measured(tmp_path / "many", 3000), measured(tmp_path / "few", 10)
    assert (many.devices, few.devices) == (3000, 10)
    assert many.file > few.file > 0
    assert min(many.start, many.second, few.start, few.second) > 0


def test_the_table_has_a_row_for_each_number():
    rows = table([Size(10, 1, 2, 3, 4, 5), Size(20_000, 1, 2, 3, 4, 5)]).splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["10", "20,000"]
