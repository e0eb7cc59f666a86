"""Entry point of ``python -m firmware_sim``, which is ``gridfed-sim``."""

from __future__ import annotations

import sys

from firmware_sim.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
