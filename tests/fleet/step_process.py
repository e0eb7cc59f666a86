"""A whole fleet with steps in one process, which kills itself at a given moment.

python step_process.py FOLDER new|again MOMENT; prints the SHA-256 of the final model's bits.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

from aggregator.store.store import Store
from firmware_sim.testing.loopback import LoopbackLink
from tests.fleet.conftest import World

ROUNDS, VERSION = 4, 2


class Resumed(World):
    """The world of a process before: its files are here already."""

    def _found(self):
        self.config = self.folder / "aggregator.toml"


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def armed(moment):
    """End the process inside the transaction of the version, or around its announcements."""
    commit, publish = Store.commit, LoopbackLink.publish
    is_saved = False

    def killing(self, number, changed, position, **more):
        nonlocal is_saved
        result = commit(self, number, changed, position, **more)
        closed = more.get("closed")
        is_saved |= closed is not None and closed.version == VERSION
        if is_saved and moment == "before-commit":
            end()
        return result

    def announcing(self, topic, payload, **more):
        if is_saved and "/_all/part/" in topic and moment == "after-commit":
            end()
        if is_saved and topic.endswith("/_all/model") and moment == "between-messages":
            end()
        return publish(self, topic, payload, **more)

    Store.commit, LoopbackLink.publish = killing, announcing


def main(folder, course, moment):
    """Run the fleet to its last round."""
    kind = World if course == "new" else Resumed
    Path(folder).mkdir(exist_ok=True)
    armed(moment)
    run = {"rounds": ROUNDS, "downlink": "q8", "deadline": "600s"}
    world = kind(Path(folder), devices=2, run=run)
    world.start_all()
    for _ in range(4000):
        if world.version >= ROUNDS:
            break
        world.turn()
    assert world.version == ROUNDS
    sys.stdout.write(hashlib.sha256(world.consensus().tobytes()).hexdigest() + "\n")
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
