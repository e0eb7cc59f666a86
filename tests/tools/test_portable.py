"""Which kernels ``make portable`` chooses, and what it says of those that cannot be run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import portable

ROOT = Path(__file__).resolve().parents[2]
NEW = frozenset({"SSE42", "X86_V3", "X86_V4"})


@pytest.mark.parametrize(
    ("setting", "found", "expected"),
    [
        ("prescott", frozenset(), {"OPENBLAS_CORETYPE": "Prescott"}),
        ("zen", frozenset({"AVX2"}), {"OPENBLAS_CORETYPE": "Zen"}),
        ("skylakex", NEW, {"OPENBLAS_CORETYPE": "SkylakeX"}),
        ("skylakex", frozenset({"AVX2"}), "skylakex: this processor has no AVX512_SKX"),
        ("haswell", frozenset({"SSE42"}), "haswell: this processor has no AVX2"),
        ("baseline", NEW, {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"}),
    ],
)
def test_a_setting_is_a_variable_or_the_reason_why_it_is_left_out(setting, found, expected):
    assert portable.environment(setting, found, ["X86_V3", "X86_V4"]) == expected


def test_nothing_to_reduce_is_said():
    assert portable.environment("baseline", NEW, []) == (
        "baseline: numpy has no other kernels for this processor"
    )


def test_numpy_takes_the_features_away_that_it_is_told_to():
    _, reducible = portable.dispatched()
    if not reducible:
        pytest.skip("numpy has no other kernels for this processor")
    asked = "from tools.portable import dispatched; print(*dispatched()[1])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", asked],
        cwd=ROOT,
        env={"NPY_DISABLE_CPU_FEATURES": " ".join(reducible)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_every_place_is_there():
    assert [place for place in portable.NUMERIC if not (ROOT / place).exists()] == []


def test_an_unknown_setting_is_one_sentence():
    done = subprocess.run(
        [sys.executable, "-m", "tools.portable", "pentium"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("portable: unknown setting 'pentium' (settings: prescott, ")


def test_a_failure_under_one_setting_is_the_command_s(monkeypatch, capsys, tmp_path):
    """A real run of pytest over a test that only the first setting's variable makes fail."""
    (tmp_path / "test_sum.py").write_text(
        "import os\ndef test_sum():\n    assert 'OPENBLAS_CORETYPE' not in os.environ\n"
    )
    monkeypatch.setattr(portable, "ROOT", tmp_path)
    monkeypatch.setattr(portable, "NUMERIC", ("test_sum.py",))
    monkeypatch.setattr(portable, "dispatched", lambda: (frozenset({"X86_V3"}), ("X86_V3",)))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    assert portable.main(["prescott", "skylakex", "--workers", "0"]) == 1
    said = capsys.readouterr().out
    assert "left out: skylakex: this processor has no AVX512_SKX" in said
    assert "failed under: prescott\n" in said
    assert portable.main(["skylakex"]) == 0
