"""``python -m aggregator`` is ``gridfed-aggregator``."""

from __future__ import annotations

import sys

from aggregator.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
