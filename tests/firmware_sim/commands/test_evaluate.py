"""The command, as a new user types it: a folder in, a table and a page out."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="reading tables (extra: evaluate)")

import firmware_sim
from firmware_sim.commands.main import main

HOMES = Path(firmware_sim.__file__).parent / "data" / "homes"


@pytest.fixture
def folder(tmp_path):
    """Four shipped homes as a stranger might have them: plain files, another separator."""
    made = tmp_path / "meters"
    made.mkdir()
    for path in sorted(HOMES.glob("*.csv.gz"))[:4]:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()[: 1 + 24 * 90]
        text = "\n".join(line.replace(",", ";") for line in lines)
        (made / path.name.removesuffix(".gz")).write_text(text, encoding="utf-8")
    return made


@pytest.mark.slow
def test_a_folder_becomes_a_table_and_a_page(folder, tmp_path, capfd):
    out = tmp_path / "out"
    assert (
        main(["evaluate", "--data", str(folder), "--ahead", "1h", "--quick", "--out", str(out)])
        == 0
    )
    shown = capfd.readouterr()
    assert "separator ;" in shown.out
    assert "1 h ahead: cutting windows" in shown.err
    assert "MAE, 1 h ahead" in shown.out
    assert "with the fleet" in shown.out
    assert "of 4 devices gain more than 1 %" in shown.out
    assert "1 h ahead: a fleet would " in shown.out
    assert shown.out.index("With a fleet the error of tomorrow") < shown.out.index("MAE, 1 h ahead")
    assert "tomorrow and first days: 5 of 5" in shown.err
    assert "--quick: no network was trained" in shown.out
    page = (out / "evaluation.html").read_text("utf-8")
    assert page.index("The first days of a new device") < page.index("1 h ahead")
    assert "<svg" in page or "matplotlib is not installed" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", ""), (
        "the page loads nothing"
    )


@pytest.mark.slow
def test_json_output_contains_json_only(folder, tmp_path, capsys):
    where = ["--out", str(tmp_path / "out")]
    assert (
        main(["evaluate", "--data", str(folder), "--ahead", "24h", "--quick", *where, "--json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert [one["ahead_seconds"] for one in data["horizons"]] == [86_400]
    assert data["tomorrow"]["relative_to_average_day"]["with the fleet"] < 1.0
    relative = data["horizons"][0]["relative_to_last_week"]
    assert relative["personal"] < min(relative["yesterday"], relative["last week"])
    assert data["horizons"][0]["bytes"]["personal"]["up"] > 100_000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ahead", "90min"], "--ahead 90min: not a whole number of steps of 1 h"),
        (["--ahead", "soon"], "'soon' is not a span"),
        (["--ahead", "8d"], "more than 7 days"),
        (["--test-days", "0"], "--test-days 0: at least 1"),
        (["--value-column", "x"], "no numeric column 'x'"),
    ],
)
def test_wrong_options_are_refused(folder, tmp_path, capsys, options, sentence):
    given = ["evaluate", "--data", str(folder), "--out", str(tmp_path / "out"), *options]
    assert main(given) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_pandas_it_says_what_to_install(folder):
    hidden = (
        "import sys; sys.modules['pandas'] = None; from firmware_sim.commands.main import main;"
    )
    code = f"{hidden} sys.exit(main(['evaluate', '--data', {str(folder)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "gridfed[sim,evaluate]" in done.stderr
