"""A back office written with the ``ocpp`` package: it checks every message against OCPP's schemas.

Run as a process of its own: ``python backoffice.py PORT VERSION LOG``; writes one JSON line for
every transaction message it accepted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import websockets
from ocpp.routing import on
from ocpp.v16 import ChargePoint as Older
from ocpp.v16 import call_result as older
from ocpp.v201 import ChargePoint as Newer
from ocpp.v201 import call_result as newer

NUMBERS = itertools.count(1)


def now():
    return datetime.now(UTC).isoformat()


def point(version, log):
    def note(**row):
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    class V16(Older):
        @on("BootNotification")
        def boot(self, **_):
            return older.BootNotification(now(), 300, "Accepted")

        @on("StartTransaction")
        def begin(self, **said):
            number = next(NUMBERS)
            note(action="start", number=number, **said)
            return older.StartTransaction(number, {"status": "Accepted"})

        @on("StopTransaction")
        def end(self, **said):
            note(action="stop", **said)
            return older.StopTransaction()

        @on("MeterValues")
        def values(self, **said):
            note(action="values", **said)
            return older.MeterValues()

    class V201(Newer):
        @on("BootNotification")
        def boot(self, **_):
            return newer.BootNotification(now(), 300, "Accepted")

        @on("TransactionEvent")
        def event(self, **said):
            note(action=said["event_type"], **said)
            return newer.TransactionEvent()

        @on("MeterValues")
        def values(self, **said):
            note(action="values", **said)
            return newer.MeterValues()

    return V16 if version == "1.6" else V201


async def main(port, version, log):
    kind, protocol = point(version, log), f"ocpp{version}"

    async def talk(connection):
        name = connection.request.path.rstrip("/").rpartition("/")[2]
        try:
            await kind(name, connection).start()
        except websockets.ConnectionClosed:
            return

    async with websockets.serve(talk, "127.0.0.1", port, subprotocols=[protocol]) as server:
        print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
