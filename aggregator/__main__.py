"""Run ``gridfed-aggregator`` as ``python -m aggregator``."""

from __future__ import annotations

import sys

from aggregator.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
