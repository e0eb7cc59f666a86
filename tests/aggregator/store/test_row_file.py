"""The file of an open round's updates: a mapping that grows, and tiles of rows and columns."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aggregator.store.errors import DatabaseFullError
from aggregator.store.row_file import FileMatrix, SpooledRows, pending_rows

ROOT = Path(__file__).resolve().parents[3]


def grown(folder, count=3, width=2):
    rows = SpooledRows.empty(folder, width, np.dtype(np.float32))
    for number in range(count):
        rows = rows.with_row(f"m{number}", np.full(width, number, np.float32))
    return rows


def test_an_earlier_mapping_stays_as_it_was(tmp_path):
    one = grown(tmp_path)
    two = one.with_row("m9", np.ones(2))
    assert (len(one), "m9" in one, len(two), two["m9"].tolist()) == (3, False, 4, [1.0, 1.0])
    assert list(one) == ["m0", "m1", "m2"]
    with pytest.raises(KeyError):
        one["m9"]


def test_an_append_to_an_earlier_mapping_replaces_the_later_one(tmp_path):
    one = grown(tmp_path)
    ones = np.ones(2, np.float32)
    dropped = one.with_row("m8", ones).with_row("m9", ones)
    kept = one.with_row("m9", 5 * ones)
    assert dict(kept).keys() == {"m0", "m1", "m2", "m9"}
    assert kept["m9"].tolist() == [5.0, 5.0]
    for use in (
        lambda: dropped["m0"],
        lambda: list(dropped),
        lambda: dropped.with_row("x", ones),
    ):
        with pytest.raises(RuntimeError, match="were replaced"):
            use()


def test_precision_grows_with_the_first_float64(tmp_path):
    rows = grown(tmp_path).with_row("wide", np.array([1e-300, 1.0]))
    assert rows["wide"].tolist() == [1e-300, 1.0]
    assert rows["m2"].dtype == np.float64
    assert rows["m2"].tolist() == [2.0, 2.0]


def test_a_vector_of_another_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a vector of 2 numbers"):
        grown(tmp_path).with_row("m9", np.ones(3))


@pytest.mark.parametrize("shape", [(1, 1), (127, 63), (128, 64), (129, 65), (400, 200)])
def test_tiles_are_read_as_the_array_is(shape, tmp_path):
    rng = np.random.default_rng(2)
    array = rng.normal(size=shape).astype(np.float32)
    matrix = FileMatrix.written(tmp_path, shape, array.dtype, iter(array))
    n, d = shape
    keys = [
        (slice(None), slice(0, d)), (slice(0, n), slice(d // 2, d)), (slice(n // 3, n), slice(0, d)),
        (slice(0, min(n, 128)), slice(d // 3, d)), (slice(n, n + 5), slice(0, d)),
        (rng.integers(0, n, 9), slice(d // 4, d)), (np.array([], np.intp), slice(0, d)),
        (slice(None), rng.integers(0, d, 5)),
    ]  # fmt: skip
    for key in keys:
        np.testing.assert_array_equal(matrix[key], array[key])
    with pytest.raises(TypeError, match="in a file"):
        np.asarray(matrix)


def test_few_updates_stay_in_memory(tmp_path):
    add, rows = pending_rows(tmp_path, limit=24), {}
    for number in range(3):
        rows = add(rows, f"m{number}", np.ones(2, np.float32))
        assert isinstance(rows, dict)
    rows = add(rows, "m3", np.ones(2, np.float32))
    assert isinstance(rows, SpooledRows)
    assert sorted(add(rows, "m4", np.ones(2, np.float32))) == ["m0", "m1", "m2", "m3", "m4"]


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    rows = grown(tmp_path)
    write = os.pwrite

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DatabaseFullError, match="no space for the rows"):
        rows.with_row("m9", np.ones(2))
    with pytest.raises(DatabaseFullError):
        rows.sorted_matrix(lambda _: True)
    monkeypatch.setattr(os, "pwrite", write)
    assert rows.with_row("m9", np.ones(2))["m9"].tolist() == [1.0, 1.0]


def test_a_killed_process_leaves_no_file(tmp_path):
    program = (
        "import os, signal, sys\nimport numpy as np\nfrom pathlib import Path\n"
        "from aggregator.store.row_file import SpooledRows\n"
        "rows = SpooledRows.of({'a': np.ones(5), 'b': np.ones(5)}, Path(sys.argv[1]))\n"
        "held = rows.sorted_matrix(lambda row: True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from aggregator.rules import Rows, bind
from aggregator.rules.parameters import uniform
from tools.bench_stored_rows import memory, spooled

before = memory("VmRSS")
rows = Rows.of(spooled(12_000, 5_760, Path(sys.argv[1])))
for name in ("mean", "trimmed_mean", "centred_clipping"):
    bind(name, f=0 if name == "mean" else 5)(rows, uniform(len(rows)))
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc/self/status")
def test_rows_of_276_mb_take_less_than_half_of_that_in_memory(tmp_path):
    more = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        cwd=ROOT, env=os.environ | more, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 0 < float(done.stdout) < 138
