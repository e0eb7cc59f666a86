"""A file of forecasts is whole at any moment, bounded, and private."""

from __future__ import annotations

import csv
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.outputs.file import FileSink, checked
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport
from edge_sdk.extensions.outputs.formats import HEADER, csv_text
from edge_sdk.extensions.setup.check import check_device
from tests.edge_sdk.conftest import device_config
from tests.edge_sdk.extensions.outputs.conftest import issued_forecast, nothing_yet


def sink(path, form="csv", *, append=False, most=1 << 20, kept=3):
    return FileSink(path, form, append, most, kept, wait=lambda _seconds: None)


def test_replace_keeps_the_newest_forecast_only(tmp_path, report):
    path = tmp_path / "forecast.csv"
    for _ in range(2):
        assert sink(path).send(report, is_new=True)
    assert path.read_text() == HEADER + csv_text(report.issued)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["forecast.csv"]


def test_state_alone_and_no_forecast_write_nothing(tmp_path, report):
    path = tmp_path / "forecast.csv"
    assert sink(path).send(report, is_new=False)
    assert sink(path).send(AgentReport(nothing_yet()), is_new=True)
    assert not path.exists()


def test_append_writes_one_header_and_rotates(tmp_path, report):
    path = tmp_path / "forecast.csv"
    one = csv_text(report.issued)
    most = len(HEADER) + 2 * len(one)
    for _ in range(9):
        sink(path, append=True, most=most, kept=2).send(report, is_new=True)
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        "forecast.csv",
        "forecast.csv.1",
        "forecast.csv.2",
    ]
    assert path.read_text() == HEADER + one
    assert (tmp_path / "forecast.csv.1").read_text() == HEADER + 2 * one
    for file in tmp_path.iterdir():
        assert file.stat().st_size <= most


def test_no_kept_file_bounds_the_whole(tmp_path, report):
    path = tmp_path / "forecast.line"
    for _ in range(20):
        sink(path, "line", append=True, most=1024, kept=0).send(report, is_new=True)
    assert [x.name for x in tmp_path.iterdir()] == ["forecast.line"]
    assert path.stat().st_size <= 1024


def test_a_row_that_a_power_cut_left_unfinished_is_removed(tmp_path, report):
    path = tmp_path / "forecast.csv"
    sink(path, append=True).send(report, is_new=True)
    whole = path.read_text()
    with path.open("a") as file:
        file.write("2023-11-14T23:0")
    sink(path, append=True).send(report, is_new=True)
    assert path.read_text() == whole + csv_text(report.issued)


def test_metrics_are_written_with_every_report(tmp_path, report):
    path = tmp_path / "gridfed.prom"
    sink(path, "prometheus").send(report, is_new=False)
    assert "gridfed_edge_model_version" in path.read_text()


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    """SIGKILL at any moment: a reader sees the old forecast or the new one."""
    path = tmp_path / "forecast.csv"
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[4])!r})
        from edge_sdk.extensions.outputs.forecast_issuer import AgentReport
        from tests.edge_sdk.extensions.outputs.conftest import issued_forecast
        from tests.edge_sdk.extensions.outputs.test_file import sink
        writer, number = sink(Path({str(path)!r})), 0
        while True:
            number += 1
            writer.send(AgentReport(issued_forecast(version=number)), is_new=True)
            print(number, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    for _ in range(20):
        assert process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 2
    assert rows[0]["version"] == rows[1]["version"]


def test_a_missing_folder_is_an_error_of_the_output(tmp_path, report):
    with pytest.raises(OSError, match="No such file"):
        sink(tmp_path / "absent" / "forecast.csv").send(report, is_new=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission"):
        sink(tmp_path / "forecast.csv").send(AgentReport(issued_forecast()), is_new=True)


def test_check_names_an_output_whose_folder_does_not_exist(tmp_path):
    rows = [{"type": "file", "path": str(tmp_path / "out.csv")}]
    assert checked(device_config(tmp_path, output=rows)) == {"outputs": "0 file"}
    rows.append({"type": "file", "path": str(tmp_path / "absent" / "out.csv")})
    with pytest.raises(ConfigError, match=r"output\[1\].path: no such folder"):
        check_device(device_config(tmp_path, output=rows, bundle="load-mlp"))
