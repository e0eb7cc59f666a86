"""What native libraries reserve and do not use, as the kernel counts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = """
import json, threading
import numpy as np
from edge_sdk.limits.resource_governor import spare_native_memory
def data():
    return int(next(x for x in open("/proc/self/status") if x.startswith("VmData")).split()[1])
loaded = data()
spare_native_memory()
square = np.ones((9, 9)) @ np.ones((9, 9))
print(json.dumps([data() - loaded, threading.stack_size(), square.tolist() == [[9.0] * 9] * 9]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="VmData is read from /proc")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_product_reserves_no_second_buffer_where_one_thread_computes(threads):
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], capture_output=True, text=True, check=True, env=environ
    )
    grown, stack, is_right = json.loads(done.stdout)
    assert stack == 512 * 1024
    assert is_right
    is_old = np.__version__.startswith("1.")  # whose OpenBLAS keeps both buffers
    assert threads == "2" or is_old or grown < 4096  # KiB; 32,768 before
