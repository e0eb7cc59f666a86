"""``gridfed-aggregator broker``: find one, start one, write or check Mosquitto's configuration."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path

from aggregator import broker
from edge_sdk.program import RUNTIME, USAGE, Answer, Failure, stop_signals
from edge_sdk.wire import topics

CHECK = 2.0  # s between two looks at a broker we started


class BrokeringError(Failure):
    """Arguments that do not belong together."""

    exit_code = USAGE


def find(args: Namespace) -> Answer:
    """Say which broker the daemon would use, without leaving one running."""
    with broker.find(args.url, folder=Path(args.folder)) as found:
        is_well = found.healthy()
        data = {"kind": found.kind, "url": found.url, "url_v4": found.url_v4, "healthy": is_well}
        state = "answers" if is_well else "does not answer"
        return Answer(data, f"{found.sentence} It {state}.", 0 if is_well else RUNTIME)


def start(args: Namespace) -> Answer:
    """Start a broker on loopback and keep it up until a signal comes."""
    with (
        stop_signals() as stopping,
        broker.start(args.kind, folder=Path(args.folder), port=args.port) as started,
    ):
        print(started.sentence, flush=True)  # noqa: T201 - while it runs, not when it ends
        looked = time.monotonic()
        while not stopping.is_set():
            time.sleep(0.1)
            if time.monotonic() - looked >= CHECK:
                looked = time.monotonic()
                if started.ensure():
                    print("the broker was started again", file=sys.stderr, flush=True)  # noqa: T201 - as above
    return Answer({"kind": started.kind, "url": started.url})


def config(args: Namespace) -> Answer:
    """Print a Mosquitto configuration and, for a fleet, write its access rules beside it."""
    folder = Path(args.folder).absolute()
    files = (args.ca, args.cert, args.key)
    if any(files) and not all(files):
        raise BrokeringError("broker config: --ca, --cert and --key come together")
    tls = broker.TlsFiles(*(Path(file).absolute() for file in files)) if all(files) else None
    access = folder / "access.acl" if args.fleet else None
    if access is not None:
        folder.mkdir(parents=True, exist_ok=True)
        access.write_text(topics.mosquitto_access(args.fleet), "utf-8")
    text = broker.mosquitto_config(args.port, folder, tls=tls, access=access)
    return Answer({"config": text, "access": str(access or "")}, text.rstrip())


def check(args: Namespace) -> Answer:
    """Say what in a mosquitto.conf would lose messages or let strangers in."""
    if not args.file:
        raise BrokeringError("broker check: give --file mosquitto.conf")
    found = broker.check_mosquitto_config(Path(args.file))
    text = "\n".join(found) or f"{args.file}: nothing found"
    return Answer({"findings": list(found)}, text, RUNTIME if found else 0)
