"""Run ``gridfed-witness`` as ``python -m aggregator.extensions.model_log``."""

from __future__ import annotations

import sys

from aggregator.extensions.model_log.program import main

if __name__ == "__main__":
    sys.exit(main())
