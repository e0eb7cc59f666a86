"""Run ``gridfed-console`` as ``python -m aggregator.console``."""

from __future__ import annotations

import sys

from aggregator.console.program import main

if __name__ == "__main__":
    sys.exit(main())
