"""An executable model of tasks to one device: asked, lost, repeated, answered once, over crashes.

One aggregator of a method that moves with every answer, and one device, as pure transition
functions over tuples. The link may lose, repeat, reorder, delay and replay; either side may crash
before its commit, between its commits and after each send. An answer is the symbol (round, base,
draw): two trainings of one task would give two draws. The uplink below is the one of
``uplink_model`` and taken as given here: an answer is sent until its receipt is back.

Saying a task before its state is saved is no fault here, though the daemon does not: the journal
folds to the same task again. ``Tasks(faults)`` plants mistakes by name, to show that the checks
would see them. PROTOCOL.md section 11 is the rules in words.
"""

from collections.abc import Iterator
from typing import NamedTuple

FAULTS = {
    "unsaved": "a task is not saved at all: a restart asks for another",
    "no_reminder": "a task is said once, and after a hello, never again",
    "forgetful": "a device does not save which task it learned",
    "any_order": "a device works on whatever task came last",
    "split": "state and task are saved one after the other",
    "hasty": "a device is welcomed before its first task is saved",
}


class Task(NamedTuple):
    round: int
    base: int


class Agg(NamedTuple):
    """``journal`` and what was ``folded`` of it are on disk; nothing else is needed."""

    journal: tuple = ()  # recorded answers
    folded: int = 0  # of them, applied; also the model's version
    task: Task | None = None
    is_open: bool = False


class Dev(NamedTuple):
    """``learned`` and ``owed`` are on disk."""

    learned: int = 0
    owed: tuple | None = None
    task: Task | None = None  # in memory
    is_up: bool = False
    is_welcome: bool = False  # of this process; its hello is repeated until then


class World(NamedTuple):
    agg: Agg = Agg()
    dev: Dev = Dev()
    up: tuple = ()
    down: tuple = ()
    old: frozenset = frozenset()  # answers that a broker may replay
    draws: int = 0
    trained: tuple = ()  # every answer ever computed and kept
    spoken: frozenset = frozenset()  # every task ever said
    budget: tuple = ()


class Tasks:
    """The rules, less the planted faults."""

    def __init__(self, *faults: str):
        unknown = set(faults) - FAULTS.keys()
        assert not unknown, unknown
        self.faults = set(faults)

    # --- the aggregator

    def agg_hello(self, w: World):
        """A device greets: it hears its open task, or is asked if it has none."""
        agg, after = w.agg, w
        if "hasty" in self.faults:
            w = after = self._post(w, "down", ("welcome",))
            yield w
        is_free = agg.task is None or (not agg.is_open and len(agg.journal) == agg.folded)
        for after in self._ask(w, agg) if is_free else self._say(w, agg):
            yield after
        yield self._post(after, "down", ("welcome",))

    def agg_update(self, w: World, answer: tuple):
        """Record an answer with its task's state; then fold; then ask anew. Two commits."""
        agg, (number, base, _) = w.agg, answer
        fits = agg.is_open and agg.task == Task(number, base)
        if answer in agg.journal or not fits:
            yield self._post(w, "down", ("receipt", answer))
            return
        agg = agg._replace(journal=(*agg.journal, answer), is_open=False)
        recorded = w._replace(agg=agg)
        yield recorded  # killed here: the journal is ahead of the state
        yield from self._folded(recorded, answer)

    def agg_start(self, w: World):
        """Apply what the journal has beyond the state."""
        if "unsaved" in self.faults:
            w = w._replace(agg=w.agg._replace(task=None, is_open=False))
        yield w
        if len(w.agg.journal) > w.agg.folded:
            yield from self._folded(w, w.agg.journal[-1])

    def agg_tick(self, w: World):
        if w.agg.is_open and "no_reminder" not in self.faults:
            yield from self._say(w, w.agg)

    def _folded(self, w: World, answer: tuple):
        agg = w.agg._replace(folded=len(w.agg.journal))
        for after in self._ask(w, agg):
            yield self._post(after, "down", ("receipt", answer))

    def _ask(self, w: World, agg: Agg):
        """Move on and ask for the next round: in one commit, and only then aloud."""
        task = Task(len(agg.journal) + 1, agg.folded)
        saved = w._replace(agg=agg._replace(task=task, is_open=True))
        if "split" in self.faults:
            yield w._replace(agg=agg)
        yield saved
        yield self._post(saved, "down", ("task", task))

    def _say(self, w: World, agg: Agg):
        if agg.is_open and agg.task is not None:
            yield self._post(w, "down", ("task", agg.task))

    # --- the device

    def dev_start(self, w: World):
        dev = w.dev._replace(is_up=True, is_welcome=False, task=None)
        if "forgetful" in self.faults:
            dev = dev._replace(learned=0)
        w = w._replace(dev=dev)
        yield self._post(w, "up", ("hello",))

    def dev_hear(self, w: World, message: tuple):
        dev = w.dev
        if message[0] == "welcome":
            yield w._replace(dev=dev._replace(is_welcome=True))
            return
        if message[0] == "receipt":
            owed = None if dev.owed == message[1] else dev.owed
            yield w._replace(dev=dev._replace(owed=owed))
            return
        task = message[1]
        newest = dev.task.round if dev.task is not None else dev.learned
        if "any_order" in self.faults:
            newest = 0 if dev.task is None or task != dev.task else task.round
        if task.round > newest:
            yield w._replace(dev=dev._replace(task=task))

    def dev_learn(self, w: World):
        """Train, and save what was learned together with the answer: one commit."""
        dev = w.dev
        if not dev.is_welcome or dev.task is None or dev.owed is not None:
            return
        answer = (*dev.task, w.draws)
        dev = dev._replace(learned=dev.task.round, owed=answer, task=None)
        saved = w._replace(dev=dev, draws=w.draws + 1, trained=(*w.trained, answer))
        yield saved
        yield self._post(saved, "up", ("update", answer))

    def dev_tick(self, w: World):
        if w.dev.is_up and not w.dev.is_welcome:
            yield self._post(w, "up", ("hello",))
        elif w.dev.is_up and w.dev.owed is not None:
            yield self._post(w, "up", ("update", w.dev.owed))

    # --- the link

    def _post(self, w: World, way: str, message: tuple) -> World:
        box = tuple(sorted({*getattr(w, way), message}))
        w = w._replace(**{way: box})
        if message[0] == "task":
            w = w._replace(spoken=w.spoken | {message[1]})
        return w._replace(old=w.old | {(way, message)})

    def moves(self, w: World) -> list[tuple[str, World]]:
        """Every next world; a handler may be killed after each of its steps."""
        out: list[tuple[str, World]] = []
        for name, steps, side in self._handlers(w):
            before = w
            for before in steps:
                crashed = self._spend(before, "crash")
                if crashed is not None:
                    out.append((f"{name} crash", self._killed(crashed, side)))
            out.append((name, before))
        for way in ("up", "down"):
            for message in getattr(w, way):
                dropped = self._spend(w, "drop")
                if dropped is not None:
                    rest = tuple(m for m in getattr(dropped, way) if m != message)
                    out.append((f"drop {message}", dropped._replace(**{way: rest})))
        replayed = self._spend(w, "replay")
        if replayed is not None:
            for way, message in sorted(w.old):
                box = tuple(sorted({*getattr(replayed, way), message}))
                out.append((f"replay {message}", replayed._replace(**{way: box})))
        return out

    def _handlers(self, w: World) -> Iterator[tuple[str, Iterator[World], str]]:
        if not w.dev.is_up:
            yield "start", self.dev_start(w), "dev"
        else:
            yield "learn", self.dev_learn(w), "dev"
        for message in w.up:
            rest = w._replace(up=tuple(m for m in w.up if m != message))
            handler = (
                self.agg_hello(rest) if message[0] == "hello" else self.agg_update(rest, message[1])
            )
            yield f"take {message}", _first(rest, handler), "agg"
        if w.dev.is_up:
            for message in w.down:
                rest = w._replace(down=tuple(m for m in w.down if m != message))
                yield f"hear {message}", _first(rest, self.dev_hear(rest, message)), "dev"
        ticked = self._spend(w, "tick")
        if ticked is not None:
            yield "agg tick", self.agg_tick(ticked), "agg"
            yield "dev tick", self.dev_tick(ticked), "dev"

    def _killed(self, w: World, side: str) -> World:
        if side == "dev":
            return w._replace(dev=w.dev._replace(is_up=False, is_welcome=False, task=None))
        *_, after = self.agg_start(w)
        return after

    @staticmethod
    def _spend(w: World, what: str) -> World | None:
        left = dict(w.budget)
        if not left.get(what):
            return None
        left[what] -= 1
        return w._replace(budget=tuple(sorted(left.items())))

    # --- what must come about once faults stop

    def calm(self, w: World, rounds: int = 2) -> str | None:
        """Deliver everything, let both sides have their turns: the model must move on."""
        wanted = w.agg.folded + rounds
        for _ in range(12 * rounds):
            w = w._replace(budget=())
            if not w.dev.is_up:
                *_, w = self.dev_start(w)
            for way, hear in (("up", self._take), ("down", self.dev_hear)):
                for message in getattr(w, way):
                    w = w._replace(**{way: tuple(m for m in getattr(w, way) if m != message)})
                    w = _last(w, hear(w, message))
            for step in (self.dev_learn, self.dev_tick, self.agg_tick):
                w = _last(w, step(w))
            if broken := wrong(w):
                return broken
            if w.agg.folded >= wanted:
                return None
        return "the model stands still"

    def _take(self, w: World, message: tuple):
        if message[0] == "hello":
            yield from self.agg_hello(w)
        else:
            yield from self.agg_update(w, message[1])


def wrong(w: World) -> str | None:
    """Return the promise that is broken in this world, if any."""
    rounds = [number for number, *_ in w.agg.journal]
    if len(rounds) != len(set(rounds)):
        return "a round was answered twice"
    if any(answer not in w.trained for answer in w.agg.journal):
        return "an answer nobody gave was recorded"
    learned = [number for number, *_ in w.trained]
    if learned != sorted(set(learned)):
        return "a task was learned twice, or an older one after a newer"
    if any(task.base > w.agg.folded for task in w.spoken):
        return "a task was said that no saved state has"
    bases = {}
    for task in w.spoken:
        if bases.setdefault(task.round, task.base) != task.base:
            return "two tasks under one round"
    return None


def _first(w: World, steps) -> Iterator[World]:
    """The message is gone even where the handler changes nothing."""
    yield w
    yield from steps


def _last(w: World, steps) -> World:
    for after in steps:
        w = after
    return w
