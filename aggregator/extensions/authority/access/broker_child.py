"""Run a broker, embedded or Mosquitto, in a child process that ends with its parent.

``python -m aggregator.extensions.authority.access.broker_child embedded CONFIG`` serves until its standard input
closes. ``python -m aggregator.extensions.authority.access.broker_child mosquitto PROGRAM CONFIG`` executes Mosquitto,
which the kernel terminates with the parent (on Linux; elsewhere only ``stop`` ends it).
Only this module imports the embedded broker.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from typing import Final, NoReturn

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def embedded(config: str) -> None:
    """Serve a rumqttd configuration until the parent closes standard input."""
    from iotcore import IotCoreBroker  # noqa: PLC0415 - only ever in the child

    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)  # it logs every packet as an error
    threading.Thread(target=_end_with_parent, daemon=True).start()
    IotCoreBroker(config_path=config).run_forever()


def mosquitto(program: str, config: str) -> NoReturn:
    """Execute Mosquitto in this process, which the kernel terminates with the parent."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(program, [program, "-c", config])  # noqa: S606 - a program found by this package


def main(args: list[str]) -> None:
    """Run the broker that the arguments name."""
    if args[0] == "embedded":
        embedded(args[1])
    else:
        mosquitto(args[1], args[2])


if __name__ == "__main__":
    main(sys.argv[1:])
