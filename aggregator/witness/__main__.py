"""Run ``gridfed-witness`` as ``python -m aggregator.witness``."""

from __future__ import annotations

import sys

from aggregator.witness.program import main

if __name__ == "__main__":
    sys.exit(main())
