"""Who is counted when: the scheduling oracle, out of the real daemon on a clock that is set.

Three devices take 1, 2 and 5 seconds for whatever they are asked; all begin at 0 from version 0,
events are ordered by time and device, and a device begins again at the firing that counts it. The
expected firings are those of the specification, section 10.1.
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from aggregator.daemon import Daemon
from edge_sdk.protocol.messages import TaskMessage, UpdateMessage
from firmware_sim.testing.loopback import LoopbackBroker

TAKES = {"meter-1": 1.0, "meter-2": 2.0, "meter-3": 5.0}
METHODS = {"fedbuff": ("delta", ""), "bafdp": ("weights", 'regulariser = "off"')}


class Line:
    """A daemon, three puppets, and the events between them."""

    def __init__(self, config, puppets, clock, part):
        self.clock, self.begun, self.part = clock, clock.now, part
        broker = LoopbackBroker(clock=clock.monotonic)
        self.daemon = Daemon(config, transport=broker.link("_agg"), clock=clock)
        self.daemon.open()
        self.daemon.turn()
        self.puppets = {one.name: one for one in puppets(broker, 3)}
        self.given, self.events, self.fired = {}, [], []
        for one in self.puppets.values():
            one.hello(1)
        self.settle()

    def settle(self):
        """Let everything arrive that was said; whoever has a new task begins with it now."""
        for _ in range(4):
            self.daemon.turn()
            for name, one in self.puppets.items():
                task = one.last(TaskMessage)
                if task is not None and self.given.get(name, 0) != task.round:
                    self.given[name] = task.round
                    heapq.heappush(self.events, (self.clock.now + TAKES[name], name, task))

    def until(self, end):
        """Let everybody work until a time; return the firings as ``(time, who, staleness)``."""
        while self.events and self.events[0][0] <= self.begun + end:
            at, name, task = heapq.heappop(self.events)
            self.clock.now = at
            self.answer(self.puppets[name], task)
            self.settle()
            self.note(at - self.begun)
        return self.fired

    def note(self, at):
        told = self.daemon._store.runs.versions(1)
        for version in told[len(self.fired) :]:
            who = tuple(int(name[-1]) for name in version.report["cohort"])
            behind = version.report["staleness"]
            late = tuple(behind[name] for name in version.report["cohort"])
            self.fired.append((at, who, late))

    def answer(self, puppet, task):
        puppet.seq += 1
        puppet.say(
            UpdateMessage(
                run=task.run,
                round=task.round,
                base=task.base,
                life=puppet.life,
                seq=puppet.seq,
                spent=puppet.seq,
                spec=task.spec,
                part=self.part,
                enc="f4",
                n=10,
                blob=np.array([0.25, -0.5], "<f4").tobytes(),
            )
        )


@pytest.fixture(params=sorted(METHODS))
def line(request, founded, puppets, still_clock):
    """Make a line for a method, a quorum, and more settings."""
    made = []

    def make(quorum, more=""):
        part, always = METHODS[request.param]
        settings = f"settings = {{ {', '.join(x for x in (always, more) if x)} }}"
        replacing = (
            ('method = "fedavg"', f'method = "{request.param}"'),
            ("quorum = 2", f"quorum = {quorum}"),
            ('deadline = "60s"', 'deadline = "1h"'),
        )
        config = founded(settings, replacing)
        made.append(Line(config, puppets, still_clock, part))
        return made[-1]

    yield make
    for one in made:
        one.daemon.close()


@pytest.mark.extension
def test_two_of_three_fire_without_waiting(line):
    fired = line(2).until(20)
    assert fired[:9] == [
        (2.0, (1, 2), (0, 0)),
        (4.0, (1, 2), (0, 0)),
        (5.0, (1, 3), (0, 2)),
        (6.0, (1, 2), (0, 1)),
        (8.0, (1, 2), (0, 0)),
        (10.0, (1, 2), (0, 0)),
        (11.0, (1, 3), (0, 3)),
        (12.0, (1, 2), (0, 1)),
        (14.0, (1, 2), (0, 0)),
    ]
    assert len(fired) == 13


@pytest.mark.extension
def test_all_of_three_are_the_synchronous_twin(line):
    fired = line(3).until(20)
    assert fired == [(at, (1, 2, 3), (0, 0, 0)) for at in (5.0, 10.0, 15.0, 20.0)]


@pytest.mark.extension
def test_every_answer_fires_alone(line):
    fired = line(1).until(20)
    assert len(fired) == 34
    assert next(one for one in fired if one[1] == (3,)) == (5.0, (3,), (7,))


def by_hand(quorum, bound, end):
    """The same by the words of the specification alone: events, a set, and who is in debt."""
    events = [(takes, int(name[-1])) for name, takes in TAKES.items()]
    based, arrived, version, fired = dict.fromkeys((1, 2, 3), 0), set(), 0, []
    while events:
        at, device = heapq.heappop(events)
        if at > end:
            break
        arrived.add(device)
        debt = {one for one in based if version - based[one] > bound} - arrived
        if len(arrived) >= quorum and not debt:
            who = tuple(sorted(arrived))
            fired.append((at, who, tuple(version - based[one] for one in who)))
            version += 1
            for one in who:
                based[one] = version
                heapq.heappush(events, (at + TAKES[f"meter-{one}"], one))
            arrived = set()
    return fired


def test_the_oracle_by_hand_is_the_one_of_the_specification():
    assert [at for at, *_ in by_hand(2, 99, 6)] == [2, 4, 5, 6]
    assert len(by_hand(2, 99, 20)) == 13
    assert len(by_hand(1, 99, 20)) == 34


ONLY_WHO_WAITS = pytest.mark.parametrize("line", ["bafdp"], indirect=True)


@pytest.mark.extension
@ONLY_WHO_WAITS
@pytest.mark.parametrize("bound", [1, 2])
def test_nobody_falls_further_behind_than_the_bound(line, bound):
    """A firing without somebody who is that far behind may happen, but it is the last one."""
    fired = line(2, f'staleness_bound = {bound}, overdue = "wait"').until(20)
    assert fired == by_hand(2, bound, 20)
    assert max(max(late) for _, _, late in fired) == bound + 1
    waited = by_hand(2, 99, 20) != fired
    assert waited == (bound == 1)


@pytest.mark.extension
@ONLY_WHO_WAITS
def test_with_a_bound_of_two_three_firings_are_all_without_the_straggler(line):
    """Device 3 never answers: it is two behind at the third firing, so that is the last."""
    one = line(2, 'staleness_bound = 2, overdue = "wait"')
    one.events = [event for event in one.events if event[1] != "meter-3"]
    heapq.heapify(one.events)
    fired = one.until(60)
    assert [who for _, who, _ in fired] == [(1, 2)] * 3
    assert [at for at, *_ in fired] == [2.0, 4.0, 6.0]
