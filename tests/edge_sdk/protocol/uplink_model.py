"""An executable model of the durable uplink: outbox, hostile broker, ledger, crashes anywhere.

One device and one aggregator as pure transition functions over tuples. The link may lose, repeat,
reorder, delay and replay; either side may crash before its commit, after it, and after each send;
the device's store may be lost, or rolled back to a backup. A body is the symbol (life, seq, draw):
equal symbols are equal bytes, and ``draw`` is the noise. A chunk is (body, index).

``Uplink(faults)`` plants mistakes by name, to show that the checks would see them. PROTOCOL.md
sections 8 to 10 are the rules in words.
"""

from collections.abc import Iterator
from typing import NamedTuple

HOLD = 2  # entries a device may keep without a receipt
FORK, CLOSED = 21, 20

FAULTS = {
    "puback_is_receipt": "the broker's acknowledgement empties the outbox",
    "early_receipt": "the receipt or welcome leaves before the commit",
    "no_ledger": "the aggregator does not remember what it has settled",
    "redraw": "every resend draws fresh noise",
    "no_lives": "a restarted device counts on in the same life",
    "receipt_by_number": "a receipt settles whatever has its number",
    "set_by_number": "chunk sets are keyed by number, not by digest",
    "repeat_hello": "a repeated or delayed hello is processed again",
    "repeat_welcome": "a second welcome resets the sequence",
    "no_margin": "a lost store costs no margin",
    "unsaved_margin": "the margin is told but not committed",
    "eager_promotion": "a hello takes effect before its life is used",
    "free_reopening": "whatever a hello lists is open again",
}


class Hello(NamedTuple):
    ref: tuple[int, int]  # (life, nonce)
    spent: int
    lost: bool
    open: tuple
    kind: str = "hello"


class Welcome(NamedTuple):
    ref: tuple[int, int]
    spent: int
    kind: str = "welcome"


class Floor(NamedTuple):
    ref: tuple[int, int]
    life: int
    kind: str = "floor"


class Numbered(NamedTuple):
    """An update, an offer or a chunk; a chunk has an index and a piece."""

    kind: str
    key: tuple[int, int]
    body: tuple
    spent: int
    index: int = -1
    piece: tuple = ()


class Grant(NamedTuple):
    body: tuple
    have: tuple[int, ...]
    kind: str = "grant"


class Receipt(NamedTuple):
    key: tuple[int, int]
    body: tuple
    code: int
    kind: str = "receipt"


class Device(NamedTuple):
    life: int = 0
    seq: int = 0
    spent: int = 0
    lost: bool = True
    outbox: tuple = ()  # (key, (body, spent)), sorted
    ready: bool = False  # volatile, like hello
    hello: Hello | None = None


class Ledger(NamedTuple):
    current: int = 0  # highest life seen in use
    hello: tuple[int, int] = (0, 0)  # the last accepted
    listed: tuple = ()  # keys that hello listed as open
    spent: int = 0
    open: frozenset = frozenset()  # older keys still admissible
    rows: tuple = ()  # (key, (body, code)), sorted
    applied: tuple = ()  # in order; what the model was moved by
    sets: tuple = ()  # chunk sets; volatile


class World(NamedTuple):
    device: Device = Device()
    ledger: Ledger = Ledger()
    up: tuple = ()  # messages on their way, sorted: order is the link's to choose
    down: tuple = ()
    heard: frozenset = frozenset()  # all that ever went up: the broker may replay it
    backup: Device | None = None
    draws: int = 0  # next nonce or noise
    releases: int = 0  # the truth that the ledgers must not under-count
    sent: frozenset = frozenset()  # (key, body) that ever left
    receipted: frozenset = frozenset()
    dropped: frozenset = frozenset()  # entries refused though the store was never rolled back
    budget: tuple = ()  # how many faults and steps are left


def put(pairs: tuple, key: object, value: object) -> tuple:
    return tuple(sorted({**dict(pairs), key: value}.items()))


def without(pairs: tuple, key: object) -> tuple:
    return tuple(pair for pair in pairs if pair[0] != key)


def chunks_of(body: tuple) -> int:
    """Odd sequence numbers fit inline, even ones need two chunks."""
    return 1 if body[1] % 2 else 2


def in_order(messages: tuple) -> tuple:
    return tuple(sorted(messages, key=repr))


class Uplink:
    """The rules of both ends, with or without planted faults."""

    def __init__(self, *faults: str) -> None:
        assert set(faults) <= FAULTS.keys()
        self.faults = frozenset(faults)

    # --- the device -------------------------------------------------------------------------------

    def say_hello(self, w: World) -> tuple[World, list]:
        """Open a session under a number that is saved before it is said."""
        d = w.device
        life = 1 if "no_lives" in self.faults else d.life + 1
        hello = Hello((life, w.draws), d.spent, d.lost, tuple(key for key, _ in d.outbox))
        device = d._replace(life=life, hello=hello, ready=False)
        return w._replace(device=device, draws=w.draws + 1), [hello]

    def release(self, w: World) -> tuple[World, list]:
        """Charge, number, draw noise, store: one transaction; then send."""
        d = w.device
        key = (d.life, d.seq + 1)
        body = (*key, w.draws)
        spent = d.spent + 1
        device = d._replace(spent=spent, seq=d.seq + 1, outbox=put(d.outbox, key, (body, spent)))
        w = w._replace(device=device, draws=w.draws + 1, releases=w.releases + 1)
        if "puback_is_receipt" in self.faults:
            w = self.forget(w, key, body, code=-1)
        return w, [Numbered("update" if chunks_of(body) == 1 else "offer", key, body, spent)]

    def forget(self, w: World, key: tuple, body: tuple, code: int) -> World:
        if code == 0:
            w = w._replace(receipted=w.receipted | {(key, body)})
        elif w.backup is None:
            w = w._replace(dropped=w.dropped | {(key, body)})
        return w._replace(device=w.device._replace(outbox=without(w.device.outbox, key)))

    def time_out(self, w: World) -> tuple[World, list]:
        """Ask first; a body is never sent again unasked."""
        d, out = w.device, []
        if not d.ready:
            return (w, [d.hello]) if d.hello else self.say_hello(w)
        for key, (kept, spent) in d.outbox:
            body = kept
            if "redraw" in self.faults:
                body = (*key, w.draws)
                outbox = put(w.device.outbox, key, (body, spent))
                w = w._replace(draws=w.draws + 1, device=w.device._replace(outbox=outbox))
            out.append(Numbered("offer", key, body, spent))
        return w, out

    def device_hears(self, w: World, m: tuple) -> tuple[World, list]:
        d = w.device
        match m.kind:
            case "welcome" | "floor" if not d.hello or m.ref != d.hello.ref:
                return w, []
            case "welcome" if not d.ready or "repeat_welcome" in self.faults:
                seq = d.seq if "no_lives" in self.faults else 0
                spent = max(d.spent, m.spent)
                return w._replace(
                    device=d._replace(ready=True, seq=seq, spent=spent, lost=False)
                ), []
            case "floor" if not d.ready:
                return self.say_hello(w._replace(device=d._replace(life=max(d.life, m.life))))
            case "grant" if d.ready:
                return w, self.missing(d, m)
            case "receipt":
                return self.settle_entry(w, m), []
        return w, []

    def missing(self, d: Device, grant: Grant) -> list:
        for key, (body, spent) in d.outbox:
            if body == grant.body:
                return [
                    Numbered("chunk", key, body, spent, i, (body, i))
                    for i in range(chunks_of(body))
                    if i not in grant.have
                ]
        return []

    def settle_entry(self, w: World, m: Receipt) -> World:
        entry = dict(w.device.outbox).get(m.key)
        if entry and (entry[0] == m.body or "receipt_by_number" in self.faults):
            return self.forget(w, m.key, entry[0], m.code)
        return w

    # --- the aggregator ---------------------------------------------------------------------------

    def aggregator_hears(self, w: World, m: tuple) -> tuple[World, list]:
        if m.kind == "hello":
            return self.judge_hello(w, m)
        return self.judge_numbered(w, m)

    def judge_hello(self, w: World, m: Hello) -> tuple[World, list]:
        a = w.ledger
        if m.ref == a.hello and "repeat_hello" not in self.faults:
            return w, [Welcome(m.ref, a.spent)]
        top = max(a.current, a.hello[0])
        if m.ref[0] <= top and not {"no_lives", "repeat_hello"} & self.faults:
            return w, [Floor(m.ref, top)]
        told = saved = max(a.spent, m.spent)
        if m.lost and top and "no_margin" not in self.faults:
            told += HOLD
            saved = saved if "unsaved_margin" in self.faults else told
        a = a._replace(hello=m.ref, listed=m.open, spent=saved)
        a = self.promote(a) if "eager_promotion" in self.faults else a
        return w._replace(ledger=a), [Welcome(m.ref, told)]

    def promote(self, a: Ledger) -> Ledger:
        """Begin the life of the last hello: settle what older ones left open, prune their rows."""
        admissible = frozenset(
            key
            for key in a.listed
            if "free_reopening" in self.faults or key in a.open or key[0] >= a.current
        )
        rows = a.rows
        if "no_lives" not in self.faults:
            rows = tuple(row for row in rows if row[0] in admissible)
        return a._replace(current=a.hello[0], open=admissible, rows=rows)

    def judge_numbered(self, w: World, m: Numbered) -> tuple[World, list]:
        a, key = w.ledger, m.key
        if key[0] == a.hello[0] != a.current:  # only use proves that a hello was fresh
            a = self.promote(a)
        row = dict(a.rows).get(key)
        if row and "no_ledger" not in self.faults:
            return w._replace(ledger=a), [
                Receipt(key, m.body, row[1] if row[0] == m.body else FORK)
            ]
        if key[0] > a.hello[0]:
            return w, []  # SAY_HELLO: not final
        if key[0] < a.current and key not in a.open:
            return w, [Receipt(key, m.body, CLOSED)]
        return self.collect(w, a._replace(spent=max(a.spent, m.spent)), m)

    def collect(self, w: World, a: Ledger, m: Numbered) -> tuple[World, list]:
        """Gather chunks until the body is whole, then record it and say so: after the commit."""
        slot = m.key if "set_by_number" in self.faults else m.body
        have = dict(dict(a.sets).get(slot, ()))
        if m.kind == "chunk":
            have[m.index] = m.piece
        wanted = [(m.body, i) for i in range(chunks_of(m.body))]
        pieces = [have.get(i) for i in range(len(wanted))]
        if m.kind != "update" and None in pieces:
            a = a._replace(sets=put(a.sets, slot, tuple(sorted(have.items()))))
            answer = [Grant(m.body, tuple(sorted(have)))] if m.kind == "offer" else []
            return w._replace(ledger=a), answer
        whole = m.body if m.kind == "update" or pieces == wanted else ("MIXED", tuple(pieces))
        a = a._replace(
            rows=put(a.rows, m.key, (m.body, 0)),
            applied=(*a.applied, (m.key, whole)),
            sets=without(a.sets, slot),
        )
        return w._replace(ledger=a), [Receipt(m.key, m.body, 0)]

    # --- steps, with crashes ----------------------------------------------------------------------

    def outcomes(self, w: World, side: str, handler, *args) -> Iterator[tuple[bool, World]]:
        """Yield (crashed, world): done; crashed before the commit, after it, after each send."""
        after, messages = handler(w, *args)
        yield False, post(after, side, messages)
        yield True, power_cut(w, side)
        early = w if "early_receipt" in self.faults and side == "aggregator" else after
        for count in range(len(messages) + 1):
            yield True, power_cut(post(early if count else after, side, messages[:count]), side)

    def moves(self, w: World) -> list[tuple[str, World]]:
        """Return everything that may happen next, within the budget."""
        out: list[tuple[str, World]] = []

        def add(name: str, outcomes: Iterator[tuple[bool, World]]) -> None:
            for crashed, after in outcomes:
                paid = spend(after, "crash") if crashed else after
                if paid is not None:
                    out.append((f"{name}{' CRASH' if crashed else ''}", paid))

        self._own_moves(w, add)
        for box, side, hears in (
            ("up", "aggregator", self.aggregator_hears),
            ("down", "device", self.device_hears),
        ):
            for m in in_order(tuple(set(getattr(w, box)))):
                gone = w._replace(**{box: one_less(getattr(w, box), m)})
                add(f"deliver {m}", self.outcomes(gone, side, hears, m))
                if (lost := spend(gone, "drop")) is not None:
                    out.append((f"drop {m}", lost))
                if (twice := spend(w, "dup")) is not None:
                    add(f"dup {m}", self.outcomes(twice, side, hears, m))
        if (again := spend(w, "replay")) is not None:
            for m in in_order(tuple(w.heard)):
                add(f"replay {m}", self.outcomes(again, "aggregator", self.aggregator_hears, m))
        out += store_accidents(w)
        return out

    def _own_moves(self, w: World, add) -> None:
        d = w.device
        if (t := spend(w, "tick")) is not None:
            add("tick", self.outcomes(t, "device", self.time_out))
        if d.ready and len(d.outbox) < HOLD and (t := spend(w, "release")) is not None:
            add("release", self.outcomes(t, "device", self.release))
        if d.ready and (t := spend(w, "rehello")) is not None:
            add("rehello", self.outcomes(t, "device", self.say_hello))

    def calm(self, w: World) -> str | None:
        """Stop all faults; deliver in order and tick. The outbox must empty."""
        for _ in range(12):
            w = w._replace(budget=())
            while w.up or w.down:
                if w.up:
                    after, out = self.aggregator_hears(w._replace(up=w.up[1:]), w.up[0])
                    w = post(after, "aggregator", out)
                if w.down:
                    after, out = self.device_hears(w._replace(down=w.down[1:]), w.down[0])
                    w = post(after, "device", out)
            if w.device.ready and not w.device.outbox:
                return None
            after, out = self.time_out(w)
            w = post(after, "device", out)
        return "the outbox never empties"


def store_accidents(w: World) -> list[tuple[str, World]]:
    out = []
    if (t := spend(w, "lose")) is not None:
        out.append(("lose store", t._replace(device=Device())))
    if w.backup is None and (t := spend(w, "backup")) is not None:
        out.append(("backup", t._replace(backup=w.device)))
    if w.backup is not None and (t := spend(w, "restore")) is not None:
        out.append(("restore", power_cut(t._replace(device=w.backup), "device")))
    return out


def one_less(box: tuple, m: tuple) -> tuple:
    at = box.index(m)
    return box[:at] + box[at + 1 :]


def post(w: World, side: str, messages: list) -> World:
    if side == "aggregator":
        return w._replace(down=in_order(w.down + tuple(messages)))
    left = {(m.key, m.body) for m in messages if m.kind in ("update", "offer", "chunk")}
    return w._replace(
        up=in_order(w.up + tuple(messages)), heard=w.heard | set(messages), sent=w.sent | left
    )


def power_cut(w: World, side: str) -> World:
    if side == "device":
        return w._replace(device=w.device._replace(ready=False, hello=None))
    return w._replace(ledger=w.ledger._replace(sets=()))


def spend(w: World, what: str) -> World | None:
    left = dict(w.budget)
    if not left.get(what):
        return None
    left[what] -= 1
    return w._replace(budget=tuple(sorted(left.items())))


def broken(w: World) -> list[str]:
    """Name every promise that a world breaks."""
    applied = dict(w.ledger.applied)
    checks = {
        "applied twice": len(applied) != len(w.ledger.applied),
        "mixed-up chunk set": any(body[0] == "MIXED" for _, body in w.ledger.applied),
        "receipted update lost": any(pair not in w.ledger.applied for pair in w.receipted),
        "live entry dropped or refused": bool(w.dropped),
        "two bodies under one number": len(w.sent) != len({key for key, _ in w.sent}),
        UNDER_COUNT: w.device.ready and w.device.spent < w.releases,
    }
    return [promise for promise, is_broken in checks.items() if is_broken]


UNDER_COUNT = "privacy ledger under-counts"


def wrong(w: World, *, budget_too: bool = True, only: str | None = None) -> str | None:
    """Return the first broken promise, or None; ``only`` looks for one of them."""
    for promise in broken(w):
        if (only is None or promise == only) and (budget_too or promise != UNDER_COUNT):
            return promise
    return None
