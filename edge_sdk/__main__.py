"""Run ``gridfed-edge`` as ``python -m edge_sdk``."""

from __future__ import annotations

import sys

from edge_sdk.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
