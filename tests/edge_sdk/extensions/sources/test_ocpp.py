"""Chargers' messages, overheard: what is read, what is refused, what passes in any case."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import ssl
import struct
import tracemalloc
import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.ocpp import OcppDecoder
from edge_sdk.extensions.sources.ocpp_proxy import BackOffice, ConversationListener, OcppProxy
from edge_sdk.extensions.sources.ocpp_redaction import ConversationLog
from edge_sdk.extensions.sources.ocpp_source import OcppSection
from edge_sdk.extensions.sources.spool import SpoolReader, SpoolWriter
from edge_sdk.extensions.sources.tap import _server_tls as _tls
from edge_sdk.extensions.sources.websocket import LONGEST, MessageStream, WebSocketError
from edge_sdk.sources import SOURCES

AT = "2024-05-14T12:00:00Z"
TIME = 1_715_688_000.0


def note(action, payload, number="1"):
    return RawFrame(json.dumps(["CP1", action, number, payload]).encode(), 0.0)


def values(*rows, at=AT, **more):
    return {"connectorId": 1, "meterValue": [{"timestamp": at, "sampledValue": list(rows)}]} | more


def read(*rows, sockets=None, **more):
    sockets = sockets or OcppDecoder()
    return [
        (s.name, s.time, s.value, s.unit)
        for s in sockets(note("MeterValues", values(*rows, **more)))
    ]


REGISTER, INTERVAL = "Energy.Active.Import.Register", "Energy.Active.Import.Interval"
POWER = "Power.Active.Import"


def test_omitted_fields_have_the_defaults_of_the_standard():
    assert read({"value": "1500"}) == [(REGISTER, TIME, 1500.0, "Wh")]
    assert read({"value": "1.5", "unit": "kWh"}) == [(REGISTER, TIME, 1500.0, "Wh")]
    newer = {"value": 1.5, "unitOfMeasure": {"unit": "Wh", "multiplier": 3}}
    assert read(newer) == [(REGISTER, TIME, 1500.0, "Wh")]


UNUSED = [
    ({"value": "55", "measurand": "SoC", "location": "EV", "unit": "Percent"}, "SoC: not mapped"),
    ({"value": "230", "measurand": "Voltage"}, "Voltage: not mapped"),
    ({"value": "1", "phase": "N"}, f"{REGISTER} Outlet N: not mapped"),
    ({"value": "1", "location": "Moon"}, f"{REGISTER} Moon: not mapped"),
    ({"value": "1", "unitOfMeasure": {"multiplier": 99}}, f"{REGISTER}: bad multiplier"),
    ({"value": "AA==", "format": "SignedData"}, "signed reading: signed values are not read"),
    *(
        ({"value": value, "measurand": POWER}, f"{POWER}: bad value")
        for value in ["NaN", "inf", "1e9", "", "0x10", None, True, [], float("nan")]
    ),
]


@pytest.mark.parametrize(("row", "reason"), UNUSED)
def test_a_value_that_is_not_used_is_counted_and_costs_itself_alone(row, reason):
    sockets = OcppDecoder()
    good = {"value": "7.0123456789", "unit": "kWh"}
    assert read(row, good, row, sockets=sockets) == [(REGISTER, TIME, 7012.3456789, "Wh")]
    assert sockets.unused == {reason: 2}


@pytest.mark.parametrize(
    "at", ["bananas", "2024-05-14", "2024-13-14T12:00:00Z", 1_715_688_000, None]
)
def test_an_invalid_time_costs_its_own_values(at):
    sockets = OcppDecoder()
    payload = values({"value": "1"}, {"value": "2", "measurand": POWER}, at=at)
    payload["meterValue"] += [7, {"timestamp": AT, "sampledValue": [{"value": "9"}]}]
    assert [s.value for s in sockets(note("MeterValues", payload))] == [9.0]
    assert sockets.unused == {
        f"{REGISTER}: bad time": 1,
        f"{POWER}: bad time": 1,
        "meterValue: no sampled values": 1,
    }


# --- what a charger tells, and the energy that results ------------------------------------------

TEN = datetime(2026, 3, 2, 10, tzinfo=UTC)


def telling(version, minute, *rows, socket=1, action="", session="T"):
    """Return a message of either version: rows of Wh (or W), then what says what they mean."""
    sampled = []
    for value, *meaning in rows:
        row = dict(zip(("measurand", "context", "location", "phase"), meaning, strict=False))
        row = {key: word for key, word in row.items() if word}
        unit = "W" if row.get("measurand") == POWER else "Wh"
        if version == "1.6":
            sampled.append({"value": str(value), "unit": unit} | row)
        else:
            sampled.append({"value": value, "unitOfMeasure": {"unit": unit}} | row)
    at = (TEN + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = [{"timestamp": at, "sampledValue": sampled}]
    if version == "1.6":
        return [2, "1", "MeterValues", {"connectorId": socket, "meterValue": told}]
    if not action:
        return [2, "1", "MeterValues", {"evseId": socket, "meterValue": told}]
    event = {"eventType": action, "timestamp": at, "triggerReason": "Trigger", "seqNo": minute}
    event |= {"transactionInfo": {"transactionId": session}, "evse": {"id": socket}}
    return [2, "1", "TransactionEvent", event | {"meterValue": told}]


def played(messages, step="30m", gap="2h"):
    """Return readings as (stream, minute, value) in the order of the source, and the source."""
    log = ConversationLog("CP1")
    source = SOURCES["ocpp"]({"type": "ocpp", "spool": "/nowhere", "step": step, "max_gap": gap})
    found = []
    for message in messages:
        is_call = message[0] == 2
        frame = log.record(json.dumps(message), from_charger=is_call)
        for reading in source.normaliser.normalise(source.samples(RawFrame(frame, 0.0))):
            minute = (reading.time - TEN.timestamp()) / 60
            found.append((reading.stream, minute, round(reading.value, 9)))
    assert source.rejected == {}
    return found, source


def energies(messages, **options):
    """Return the energy of each slot in kWh by minute; the last reading of a slot counts."""
    return {t: value for name, t, value in played(messages, **options)[0] if name == DEMAND}


DEMAND = "ev.demand.energy"
QUARTERS = range(0, 121, 15)
PERIODIC, CLOCK, BEGIN = "Sample.Periodic", "Sample.Clock", "Transaction.Begin"


def rising(n, *meaning, of=100_000, slope=100):
    return (of + slope * n, REGISTER, *meaning)


TELLINGS = {
    "a register": lambda n: [(1, [rising(n, PERIODIC)])],
    "beside that of the beginning": lambda n: [
        (1, [rising(n, PERIODIC), (99_000, REGISTER, BEGIN)])
    ],
    "after that of the beginning, in another message": lambda n: [
        (1, [(99_000, REGISTER, BEGIN)]),
        (1, [rising(n + 0, PERIODIC)]),
    ],
    "of the clock beside a sample": lambda n: [
        (1, [rising(n, PERIODIC, of=100_300), rising(n, CLOCK)])
    ],
    "the main meter beside its sockets": lambda n: [
        (0, [rising(n, CLOCK, of=500_000, slope=103)]),
        (1, [rising(n, CLOCK, slope=60)]),
        (2, [rising(n, CLOCK, slope=40)]),
    ],
    "a main meter that shows 0 beside a socket": lambda n: [
        (0, [(0, REGISTER, CLOCK)]),
        (1, [rising(n, CLOCK)]),
    ],
    "the main meter alone": lambda n: [(0, [rising(n, CLOCK)])],
    "inlet and outlet": lambda n: [
        (1, [rising(n, "", "Inlet", of=9_000_000, slope=107), rising(n, "", "Outlet")])
    ],
    "the inlet alone": lambda n: [(1, [rising(n, "", "Inlet")])],
    "one phase": lambda n: [(1, [rising(n, "", "", "L1-N")])],
    "three phases": lambda n: [
        (
            1,
            [
                rising(n, "", "", phase, slope=s)
                for phase, s in (("L1", 50), ("L2", 30), ("L3", 20))
            ],
        )
    ],
    "three phases in messages of their own": lambda n: [
        (1, [rising(n, "", "", phase, slope=s)])
        for phase, s in (("L1-N", 50), ("L2-N", 30), ("L3-N", 20))
    ],
    "total and phases": lambda n: [
        (1, [rising(n, "", "", phase, slope=34) for phase in ("L1", "L2", "L3")] + [rising(n)])
    ],
    "phases under two names": lambda n: [
        (1, [rising(n, "", "", "L1"), rising(n, "", "", "L1-N", of=7)])
    ],
    "intervals": lambda n: [(1, [(1500, INTERVAL, CLOCK)])],
    "intervals of three phases": lambda n: [
        (1, [(500, INTERVAL, CLOCK, "", phase) for phase in ("L1", "L2", "L3")])
    ],
    "intervals of the clock and of a session": lambda n: [
        (1, [(1500, INTERVAL, CLOCK), (1490, INTERVAL, PERIODIC)])
    ],
    "intervals of two sockets": lambda n: [
        (1, [(900, INTERVAL, CLOCK)]),
        (2, [(600, INTERVAL, CLOCK)]),
    ],
    "register and interval": lambda n: [(1, [(1400, INTERVAL, CLOCK), rising(n, CLOCK)])],
    "values of the car": lambda n: [(1, [rising(n), (40, "SoC", "", "EV")])],
}


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
@pytest.mark.parametrize("told", TELLINGS.values(), ids=TELLINGS)
def test_energy_is_counted_once_however_a_charger_tells_it(version, told):
    """Each charger takes 6 kW; a slot of half an hour is 3 kWh."""
    messages = [
        telling(version, n, *rows, socket=socket) for n in QUARTERS for socket, rows in told(n)
    ]
    assert energies(messages) == dict.fromkeys(range(0, 120, 30), 3.0)


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
@pytest.mark.parametrize(
    ("minutes", "slots"),
    [
        (range(0, 121, 5), range(0, 120, 30)),
        (range(-7, 125, 4), range(0, 120, 30)),  # no boundary of the grid among them
        ([0, 15, 30, 45, 75, 60, 90, 105, 120], range(0, 120, 30)),  # one comes late
        ([0, 15, 30, 75, 90, 105, 120], [0, 60, 90]),  # 45 and 60 are lost, not divided
        ([0, 15, 30, 45, 75, 90, 105, 120], [0, 60, 90]),
    ],
)
def test_intervals_end_at_their_time_and_are_summed_to_slots(version, minutes, slots):
    ordered = sorted(minutes)
    lengths = {b: b - a for a, b in itertools.pairwise(ordered)}
    usual = max(set(lengths.values()), key=list(lengths.values()).count)
    messages = [
        telling(version, n, (100 * min(usual, lengths.get(n, usual)), INTERVAL, CLOCK))
        for n in minutes
    ]
    found = energies(messages)
    assert {slot: found[slot] for slot in slots} == dict.fromkeys(slots, 3.0)
    assert set(found) - set(slots) <= {-30}


def session(version, *middle):
    """Return the messages of a session from minute 7 to 83, and of the next one from minute 240."""
    if version == "1.6":

        def edge(action, key, minute, wh):
            at = (TEN + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")
            about = {"connectorId": 1} if key == "meterStart" else {"transactionId": 5}
            return [2, f"{minute}", action, about | {key: wh, "timestamp": at}]

        return [
            edge("StartTransaction", "meterStart", 7, 1000),
            [3, "7", {"transactionId": 5}],
            *middle,
            edge("StopTransaction", "meterStop", 83, 8600),
            edge("StartTransaction", "meterStart", 240, 8600),
        ]
    return [
        telling(version, 7, (1000, REGISTER, BEGIN), action="Started"),
        *middle,
        telling(version, 83, (8600, REGISTER, "Transaction.End"), action="Ended"),
        telling(version, 240, (8600, REGISTER, BEGIN), action="Started", session="U"),
    ]


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
@pytest.mark.parametrize("gap", ["30m", "2h"])
def test_the_intervals_of_a_session_lose_nothing_at_its_ends(version, gap):
    """The registers of its ends prove what flowed after the last interval, and before the next."""
    middle = [
        telling(version, n, (wh, INTERVAL, PERIODIC), action="Updated")
        for n, wh in ((22, 1500), (37, 3000), (52, 0), (67, 1500))
    ]
    begin = session(version)[0]
    middle = [*middle[:2], begin, *middle[1:]]  # messages whose answer was lost come again
    found = energies(session(version, *middle), gap=gap)
    assert found == pytest.approx({30: 2.2, 60: 2.3} | dict.fromkeys(range(90, 240, 30), 0.0))
    readings, _ = played(session(version, *middle))
    assert ("ev.session.energy", 7.0, 7.6) in readings


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
def test_the_registers_at_the_ends_of_a_session_belong_to_those_within(version):
    middle = [
        telling(version, n, (1000 + 100 * (n - 7), REGISTER, PERIODIC), action="Updated")
        for n in range(17, 80, 10)
    ]
    found = energies(session(version, *middle), gap="30m")
    assert found == pytest.approx({30: 3.0, 60: 2.3} | dict.fromkeys(range(90, 240, 30), 0.0))
    begin = telling(version, 0, (300, REGISTER, BEGIN), action="Started")
    assert energies([begin, *middle[:3]], gap="30m") == {0: pytest.approx(3.0)}


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
def test_the_power_of_the_sockets_is_added_and_not_that_of_the_main_meter(version):
    messages = [
        telling(version, 0, (7000, POWER), socket=1),
        telling(version, 1, *((1000, POWER, "", "", f"L{n}") for n in (1, 2, 3)), socket=2),
        telling(version, 2, (9900, POWER, "", "Outlet"), socket=0),
        telling(version, 3, (4000, POWER, "", "Inlet"), (3900, POWER, "", "Outlet"), socket=2),
    ]
    found, source = played(messages)
    assert [(t, kw) for _, t, kw in found] == [(0, 7.0), (1, 10.0), (3, 10.9)]
    reasons = {f"{POWER} (main meter): redundant": 1, f"{POWER} (Inlet): redundant": 1}
    assert source.unused == reasons


def test_two_values_for_one_moment_are_a_conflict_and_repeats_are_none():
    sockets = OcppDecoder()
    both = {"value": "100", "context": CLOCK}, {"value": "900", "context": CLOCK}
    assert read(*both, sockets=sockets) == []
    assert sockets.unused == {f"{REGISTER} {CLOCK}: conflict": 2}
    assert len(read({"value": "100"}, sockets=sockets)) == 1
    assert read({"value": "100.4"}, sockets=sockets) == []
    assert read({"value": "900"}, sockets=sockets) == []
    assert sockets.unused[f"{REGISTER}: repeated"] == 1
    assert sockets.unused[f"{REGISTER}: conflict"] == 1


def test_a_phase_that_is_missing_once_costs_its_moment():
    def at(n):
        phases = ("L1", "L2") if n == 45 else ("L1", "L2", "L3")
        return telling("1.6", n, *(rising(n / 3, "", "", phase) for phase in phases))

    messages = [at(n) for n in QUARTERS]
    found, source = played(messages)
    assert dict(found_of(found)) == dict.fromkeys(range(0, 120, 30), 3.0)
    assert source.unused == {f"{REGISTER}: phase missing": 1}


def found_of(found):
    return [(t, value) for name, t, value in found if name == DEMAND]


def test_one_object_in_place_of_a_list_is_read_and_a_text_is_counted():
    sockets = OcppDecoder()
    row = {"timestamp": AT, "sampledValue": {"value": "1500"}}
    about = {"connectorId": 1, "meterValue": row}
    assert [s.value for s in sockets(note("MeterValues", about))] == [1500.0]
    assert sockets(note("MeterValues", about | {"meterValue": "1500"})) == []
    assert sockets.unused == {"meterValue: no sampled values": 1}


def test_a_message_number_that_is_no_text_is_accepted_and_its_answer_too():
    messages = session("1.6")
    for message in messages:
        message[1] = int(message[1])
    readings, _ = played(messages)
    assert ("ev.session.energy", 7.0, 7.6) in readings


def test_a_call_with_energy_in_another_form_is_counted():
    _, source = played([[2, None, "MeterValues", {}], [2, "1", "StopTransaction", []]])
    assert source.unused == {
        "MeterValues: not a call of OCPP": 1,
        "StopTransaction: not a call of OCPP": 1,
    }


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
def test_the_messages_of_these_tests_fit_the_schemas(version):
    """A second oracle: the schemas that the ``ocpp`` package ships."""
    messages = pytest.importorskip("ocpp.messages")
    for told in TELLINGS.values():
        for socket, rows in told(15):
            _, number, action, payload = telling(version, 15, *rows, socket=socket)
            asyncio.run(messages.validate_payload(messages.Call(number, action, payload), version))


def test_a_session_of_1_6_is_tracked_from_start_to_stop():
    sockets = OcppDecoder()
    start = {"connectorId": 2, "meterStart": 1000, "timestamp": AT}
    assert sockets(note("StartTransaction", start, "7"))[0].device == "CP1/2"
    assert sockets(note("Started", {"transactionId": 99}, "7")) == []
    stop = {"transactionId": 99, "meterStop": 4000, "timestamp": "2024-05-14T13:00:00Z"}
    stopped, session = sockets(note("StopTransaction", stop))
    assert (stopped.device, stopped.value) == ("CP1/2", 4000.0)
    assert (session.name, session.device, session.value) == ("session.energy", "CP1/2", 3000.0)
    assert (session.time, session.seconds) == (TIME, 3600.0)
    assert sockets(note("StopTransaction", stop)) == [], "said again after a lost link"
    with pytest.raises(Rejected, match="unknown transaction"):
        sockets(note("StopTransaction", stop | {"transactionId": 98}))


def event(kind, value, at=AT, **more):
    row = {"timestamp": at, "sampledValue": [{"value": value}]}
    about = {"transactionInfo": {"transactionId": "T1"}, "eventType": kind, "meterValue": [row]}
    return note("TransactionEvent", about | more)


def test_a_session_of_2_0_1_has_the_rise_of_its_register():
    sockets, later = OcppDecoder(), "2024-05-14T12:30:00Z"
    assert len(sockets(event("Started", 1000, evse={"id": 1}))) == 1
    assert len(sockets(event("Updated", 1500, "2024-05-14T12:10:00Z"))) == 1
    *_, session = sockets(event("Ended", 2500.5, later))
    assert (session.name, session.value, session.seconds) == ("session.energy", 1500.5, 1800.0)
    assert sockets(event("Ended", 2500.5, later)) == []


def test_a_session_without_a_received_start_has_no_total():
    sockets = OcppDecoder()
    assert [s.name for s in sockets(event("Ended", 2500, evse={"id": 1}))] == [REGISTER]
    sockets(event("Started", 3000, "2024-05-14T13:00:00Z", evse={"id": 1}))
    ended = sockets(event("Ended", 10, "2024-05-14T14:00:00Z"))  # another meter meanwhile
    assert [s.name for s in ended] == [REGISTER]


def test_values_repeated_at_the_end_of_a_session_count_once():
    sockets = OcppDecoder()
    row = {"value": "1500", "context": "Sample.Periodic"}
    assert len(sockets(note("MeterValues", values(row, transactionId=5)))) == 1
    data = [{"timestamp": AT, "sampledValue": [row]}]
    stop = {"transactionId": 5, "meterStop": 1500, "timestamp": AT, "transactionData": data}
    assert [s.variant for s in sockets(note("StopTransaction", stop))] == ["at transactions"]
    assert sockets.unused == {f"{REGISTER}: repeated": 1}


def test_no_token_of_a_driver_is_stored():
    ask = [
        2,
        "1",
        "TransactionEvent",
        {"idToken": {"idToken": "ANNA"}, "seqNo": 0, "x": [{"idTag": "ANNA"}]},
    ]
    kept = ConversationLog("CP1").record(json.dumps(ask), from_charger=True)
    assert kept is not None
    assert b"ANNA" not in kept


# --- bytes ------------------------------------------------------------------------------------


def framed(text, *, mask=b"\x01\x02\x03\x04", first=0x81):
    payload = text if isinstance(text, bytes) else text.encode()
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    return head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


@given(st.lists(st.text(max_size=400), max_size=8), st.data())
def test_messages_are_decoded_from_any_split_of_the_bytes(texts, data):
    stream = b"".join(map(framed, texts))
    ear, heard = MessageStream(), []
    while stream:
        size = data.draw(st.integers(1, 300))
        heard += ear.feed(stream[:size])
        stream = stream[size:]
    assert heard == texts


def test_fragments_pings_and_compression_are_decoded():
    packer = zlib.compressobj(wbits=-15)
    packed = (packer.compress(b"packed") + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    again = (packer.compress(b"packed") + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    stream = framed("he", first=0x01) + framed(b"", first=0x89) + framed("llo", first=0x80)
    stream += framed(packed, first=0xC1) + framed(again, first=0xC1)
    assert list(MessageStream(is_deflated=True).feed(stream)) == ["hello", "packed", "packed"]


def test_an_oversized_message_is_skipped_and_the_next_one_decoded():
    ear = MessageStream()
    assert list(ear.feed(framed("x" * (LONGEST + 1)) + framed("next"))) == ["next"]
    assert ear.counts == {"message too long": 1}


def test_a_decompression_bomb_ends_the_decoding():
    packer = zlib.compressobj(9, wbits=-15)
    bomb = (packer.compress(b"\0" * (64 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    tracemalloc.start()
    with pytest.raises(WebSocketError):
        list(MessageStream(is_deflated=True).feed(framed(bomb, first=0xC1)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20


def test_four_thousand_mutated_frames_raise_nothing_and_memory_stays_flat():
    chance, kept = random.Random(3), 0
    source = SOURCES["ocpp"]({"type": "ocpp", "spool": "/nowhere"})
    start = {"connectorId": 1, "meterStart": 5, "timestamp": AT, "idTag": "A"}
    event = {
        "eventType": "Updated",
        "timestamp": AT,
        "seqNo": 1,
        "transactionInfo": {"transactionId": "t"},
        "evse": {"id": 1},
    } | values({"value": 1.5, "unitOfMeasure": {"unit": "Wh", "multiplier": 3}})
    good = [
        json.dumps([2, "1", "StartTransaction", start]),
        json.dumps([2, "2", "MeterValues", values({"value": "7.5", "unit": "kWh"})]),
        json.dumps([2, "3", "TransactionEvent", event]),
    ]

    def decode(frame):
        nonlocal kept
        kept += 1
        for reading in source.normaliser.normalise(source.samples(frame)):
            assert 0 <= reading.value < 1e6

    ear = greeted(decode)
    tracemalloc.start()
    for number in range(4_000):
        ear.feed(framed(mutated(chance.choice(good), chance)), from_charger=True)
        if number == 2_000:  # what is remembered on purpose has its bounds by now
            settled = tracemalloc.get_traced_memory()[0]
    grown = tracemalloc.get_traced_memory()[0] - settled
    tracemalloc.stop()
    assert grown < 1 << 20
    assert ear.counts["decoding stopped"] == 0
    assert ear.counts["messages"] + ear.counts["not UTF-8"] == 4_000
    assert kept > 800
    assert source.accepted + source.rejected.total() == kept
    assert {f"{REGISTER}: bad value", f"{REGISTER}: bad time"} <= set(source.unused)


def mutated(text, chance):
    raw = bytearray(text.encode())
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(raw))
        how = chance.randrange(4)
        if how == 0:
            raw[at] = chance.randrange(256)
        elif how == 1:
            raw[at : at + 1] = chance.choice(
                [b"NaN", b"1e999", b"[" * 400, b'"', b"null", b"-", b"9" * 50]
            )
        elif how == 2:
            del raw[at : at + chance.randint(1, 20)]
        else:
            raw[at:at] = raw[at : at + 30]
    return bytes(raw)


def greeted(keep):
    ear = ConversationListener("CP1", keep, Counter())
    ear.feed(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", from_charger=False)
    return ear


def test_an_error_in_decoding_ends_the_decoding_only():
    def broken(_frame):
        raise RuntimeError("a defect of ours")

    ear = greeted(broken)
    ask = [2, "1", "StartTransaction", {"connectorId": 1, "meterStart": 5, "timestamp": AT}]
    ear.feed(framed(json.dumps(ask)), from_charger=True)
    ear.feed(framed(json.dumps(ask)), from_charger=True)
    assert ear.counts["decoding stopped"] == 1


def test_bytes_are_forwarded_unchanged_even_if_they_are_no_websocket(tmp_path):
    async def through():
        got = asyncio.get_running_loop().create_future()

        async def office(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Go\r\n\r\n" + bytes(range(256)))
            body = await reader.readexactly(2000)
            got.set_result((head, body))
            writer.close()

        server = await asyncio.start_server(office, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        where = asyncio.get_running_loop().create_future()
        tap = OcppProxy(
            BackOffice.parse(f"ws://127.0.0.1:{port}/ocpp"), SpoolWriter(tmp_path / "spool", "ocpp")
        )
        serving = asyncio.create_task(tap.serve("127.0.0.1", 0, where.set_result))
        address = await where
        host, here = address.removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(host, int(here))
        noise = random.Random(0).randbytes(2000)
        writer.write(b"GET /CP1 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n" + noise)
        back = await reader.read(-1)
        writer.close()
        await asyncio.sleep(0.05)
        serving.cancel()
        server.close()
        return *await got, back, noise, tap.counts

    head, body, back, noise, counts = asyncio.run(through())
    assert head.startswith(b"GET /ocpp/CP1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert body == noise
    assert back == b"HTTP/1.1 101 Go\r\n\r\n" + bytes(range(256))
    assert counts["decoding stopped"] == 1


@pytest.mark.parametrize(("host", "is_reached"), [("localhost", True), ("127.0.0.1", False)])
def test_a_back_office_over_tls_must_have_a_certificate_for_its_name(tmp_path, host, is_reached):
    """A charger that finds nobody is turned away, and will come again; nothing passes unsealed."""
    certificate, key = self_signed(tmp_path, "localhost")

    async def greeted_by():
        async def office(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Go\r\n\r\n")
            await reader.read(-1)
            writer.close()

        sealed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        sealed.load_cert_chain(certificate, key)
        server = await asyncio.start_server(office, "127.0.0.1", 0, ssl=sealed)
        port = server.sockets[0].getsockname()[1]
        where = asyncio.get_running_loop().create_future()
        there = BackOffice.parse(f"wss://{host}:{port}/ocpp", certificate)
        tap = OcppProxy(there, SpoolWriter(tmp_path / "spool", "ocpp"))
        serving = asyncio.create_task(tap.serve("127.0.0.1", 0, where.set_result))
        name, here = (await where).removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(name, int(here))
        writer.write(b"GET /CP1 HTTP/1.1\r\nHost: x\r\n\r\n")
        line = await reader.readline()
        writer.close()
        await asyncio.sleep(0.2)
        serving.cancel()
        server.close()
        return line, tap.counts["connections failed"]

    line, broken = asyncio.run(greeted_by())
    assert line == (b"HTTP/1.1 101 Go\r\n" if is_reached else b"")
    assert bool(broken) is not is_reached


def test_a_charger_may_connect_over_tls_with_the_certificate_of_the_proxy(tmp_path):
    certificate, key = self_signed(tmp_path, "localhost")
    section = OcppSection(type="ocpp", cert_file=str(certificate), key_file=str(key))

    async def greeted_by(believed):
        async def office(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Go\r\n\r\n")
            await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(office, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        where = asyncio.get_running_loop().create_future()
        tap = OcppProxy(
            BackOffice.parse(f"ws://127.0.0.1:{port}"), SpoolWriter(tmp_path / "spool", "ocpp")
        )
        serving = asyncio.create_task(tap.serve("127.0.0.1", 0, where.set_result, _tls(section)))
        scheme, _, place = (await where).partition("://")
        trust = ssl.create_default_context(cafile=certificate if believed else None)
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int(place.split(":")[1]), ssl=trust, server_hostname="localhost"
            )
            writer.write(b"GET /CP1 HTTP/1.1\r\nHost: x\r\n\r\n")
            line = await reader.readline()
            writer.close()
        finally:
            await asyncio.sleep(0.1)
            serving.cancel()
            server.close()
        return scheme, line

    assert asyncio.run(greeted_by(believed=True)) == ("wss", b"HTTP/1.1 101 Go\r\n")
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(greeted_by(believed=False))


def test_a_missing_certificate_of_the_proxy_is_refused_by_its_name(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        _tls(OcppSection(type="ocpp", cert_file=str(tmp_path / "nowhere.crt")))


def test_a_back_office_over_tls_needs_tls_1_2_and_its_own_authority_alone(tmp_path):
    certificate, _ = self_signed(tmp_path, "localhost")
    own = BackOffice.parse("wss://localhost/ocpp", certificate).tls
    assert [row["subject"] for row in own.get_ca_certs()] == [((("commonName", "localhost"),),)]
    public = BackOffice.parse("wss://localhost/ocpp").tls
    for context in (own, public):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.check_hostname
        assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "no certificate in it: not a PEM file"),
        (b"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----", "but: private key"),
    ],
)
def test_an_unusable_authority_of_the_back_office_is_refused_with_its_key(
    tmp_path, content, reason
):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as refusal:
        BackOffice.parse("wss://localhost/ocpp", file)
    assert str(refusal.value).startswith(f"source ocpp: ca_file: {file}: ")


def test_an_expired_authority_of_the_back_office_is_refused(tmp_path):
    certificate, _ = self_signed(tmp_path, "localhost", until=timedelta(days=-1, minutes=-1))
    with pytest.raises(ConfigError, match=r"office\.crt: expired 1 day ago"):
        BackOffice.parse("wss://localhost/ocpp", certificate)


def self_signed(folder, name, until=timedelta(hours=1)):
    """Make a certificate that is its own authority, for one host name."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + until)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "office.crt", folder / "office.key"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files[0].write_bytes(made.public_bytes(encoding))
    files[1].write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return files


# --- notes on disk ----------------------------------------------------------------------------


def caught_up(feed):
    frames = []
    while got := [frame for _ in range(20) for frame in feed.frames(0.0)]:
        frames += got
    return frames


def test_a_truncated_end_is_skipped_and_the_next_file_read(tmp_path):
    with (
        contextlib.closing(SpoolWriter(tmp_path, "ocpp")) as first,
        contextlib.closing(SpoolWriter(tmp_path, "ocpp")) as second,
        contextlib.closing(SpoolReader(tmp_path, "ocpp")) as feed,
    ):
        first.write(RawFrame(b"one", 1.0))
        first.write(RawFrame(b"two", 2.0))
        first.close()
        (only,) = tmp_path.glob("*.rec")
        only.write_bytes(only.read_bytes()[:-1])
        second.write(RawFrame(b"three", 3.0))
        assert [frame.payload for frame in caught_up(feed)] == [b"one", b"three"]
        assert feed.rejected == {"torn recording": 1}
        second.write(RawFrame(b"four", 4.0))
        assert [frame.payload for frame in caught_up(feed)] == [b"four"]


def test_what_is_not_used_is_found_in_the_records_without_reading_them(tmp_path):
    with contextlib.closing(SpoolWriter(tmp_path, "ocpp")) as spool:
        spool.write(note("MeterValues", values({"value": "230", "measurand": "Voltage"})))
    source = SOURCES["ocpp"]({"type": "ocpp", "spool": str(tmp_path)})
    assert source.survey() == {"Voltage: not mapped": 1}
    with contextlib.closing(source.feed) as feed:
        assert len(caught_up(feed)) == 1


def test_the_folder_stays_within_its_size_limit(tmp_path):
    with (
        contextlib.closing(SpoolWriter(tmp_path, "ocpp", most=1 << 20)) as spool,
        contextlib.closing(SpoolReader(tmp_path, "ocpp")) as feed,
    ):
        for number in range(5000):
            spool.write(RawFrame(b"x" * 1000, float(number)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= (1 << 20) + 4096
        assert feed.sample()[-1].at == 4999.0
        assert caught_up(feed)[-1].at == 4999.0
