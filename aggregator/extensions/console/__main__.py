"""Run ``gridfed-console`` as ``python -m aggregator.extensions.console``."""

from __future__ import annotations

import sys

from aggregator.extensions.console.program import main

if __name__ == "__main__":
    sys.exit(main())
