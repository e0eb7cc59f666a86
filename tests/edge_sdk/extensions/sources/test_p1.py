"""Telegrams as meters write them, and as noise leaves them."""

from __future__ import annotations

import random
import tracemalloc
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.p1 import LONGEST, TelegramFramer, crc16, telegram
from edge_sdk.sources import SOURCES
from firmware_sim.ports import p1 as port

HOME = ZoneInfo("Europe/Amsterdam")
FACE = port.MeterDisplay(
    1_698_500_000.0, (1_234_567, 2_345_678), (12, 34), 512, (4_321, 1_698_498_000.0)
)


def sealed(lines):
    body = b"/ABC5\\2x\r\n\r\n" + b"".join(line + b"\r\n" for line in lines) + b"!"
    return body + b"%04X\r\n" % crc16(body)


def decoded(lines):
    (frame,) = TelegramFramer().feed(sealed(lines))
    return telegram(RawFrame(frame, 0.0))


CLOCK = b"0-0:1.0.0(231029025959S)"
ENERGY = b"1-0:1.8.1(001234.567*kWh)"


def test_a_telegram_is_decoded_as_written():
    (frame,) = TelegramFramer().feed(port.telegram(FACE, HOME))
    values = {
        sample.name: (sample.value, sample.unit, sample.time)
        for sample in telegram(RawFrame(frame, 0))
    }
    assert values["1-0:1.8.1"] == (1234.567, "kWh", 1_698_500_000.0)
    assert values["1-0:1.8.2"] == (2345.678, "kWh", 1_698_500_000.0)
    assert values["1-0:1.7.0"] == (0.512, "kW", 1_698_500_000.0)
    assert values["0-n:24.2.1"] == (4.321, "m3", 1_698_498_000.0)


def test_the_serial_number_of_a_meter_is_hashed():
    (frame,) = TelegramFramer().feed(port.telegram(FACE, HOME, "E0031003262113818"))
    samples = telegram(RawFrame(frame, 0.0))
    assert len({sample.device for sample in samples}) == 2  # electricity, gas
    assert b"E0031003262113818".hex().upper() not in str(samples)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([ENERGY], "no time"),
        ([CLOCK], "nothing measured"),
        ([b"0-0:1.0.0(231029025959X)", ENERGY], "bad time"),
        ([b"0-0:1.0.0(231329025959S)", ENERGY], "bad time"),
        ([CLOCK, b"0-0:1.0.0(231029025958S)", ENERGY], "told twice"),
    ],
)
def test_a_telegram_without_a_time_or_a_line_is_rejected(lines, reason):
    with pytest.raises(Rejected, match=f"^{reason}$"):
        decoded(lines)


GAS, WATER = b"0-1:24.1.0(003)", b"0-2:24.1.0(007)"


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        (b"1-0:1.8.1(NaN*kWh)", "told twice"),
        (b"1-0:1.8.2(NaN*kWh)", "bad value"),
        (b"1-0:1.8.5(-1.0*kWh)", "bad value"),
        (b"1-0:1.8.3(1e9*kWh)", "bad value"),
        (b"1-0:1.8.4(1.0)", "no unit"),
        (b"1-0:1.8.2(231029020000S)(1.0*kWh)(2.0*kWh)", "bad value"),
    ],
)
def test_a_sum_of_tariffs_that_lacks_one_is_not_used(line, unused):
    faults = {sample.name: sample.fault for sample in decoded([CLOCK, ENERGY, line])}
    assert faults.pop(line.partition(b"(")[0].decode()) == unused
    assert set(faults.values()) <= {"sum not complete"}


@pytest.mark.parametrize(
    ("lines", "unused"),
    [
        ([b"0-0:96.13.0(\xff\xff\x85)"], "0-0:96.13.0"),
        ([b"0-0:96.13.0(a (b) c)"], "0-0:96.13.0"),
        ([b"1-0:16.7.0(-00.123*kW)"], "1-0:16.7.0"),
        ([b"1-0:32.7.0(230.0*V)", b"1-0:32.7.0(231.0*V)"], "1-0:32.7.0"),
        ([b"1-0:31.7.0(*A)"], "1-0:31.7.0"),
        ([b"1-0:1.7.0()"], "1-0:1.7.0"),
        ([b"1-0:1.7.0(-00.001*kW)"], "1-0:1.7.0"),
        ([b"\xff\xfe"], "a line without a code"),
        ([b"(00012.000)"], "a line without a code"),
        ([b"1.8.0(000099.000*kWh)"], "1.8.0"),
        ([b"1-0:99.97.0(1)(0-0:96.7.19)(101208152415W)(0000000240*s)"], "1-0:99.97.0"),
        ([b"0-1:24.2.1(231029020000S)(00001.000*m3)"], "0-1:24.2.1"),  # of an unknown kind
        ([GAS, b"0-1:24.2.1(231029020000S)"], "0-n:24.2.1"),
        ([GAS, b"0-1:24.2.1(632525252525W)(00001.000*m3)"], "0-n:24.2.1"),
        ([GAS, b"0-1:24.2.1(700101010000W)(00001.000*m3)"], "0-n:24.2.1"),
        ([GAS, b"0-1:24.2.1(680101010000W)(00001.000*m3)"], "0-n:24.2.1"),
        ([GAS, WATER, b"0-2:24.2.1(231029020000S)(00001.000*m3)"], "0-n:24.2.1/007"),
        ([GAS, b"0-1:24.1.0(007)", b"0-1:24.2.1(231029020000S)(1.0*m3)"], "0-1:24.2.1"),
    ],
)
def test_a_line_that_cannot_be_used_costs_itself_and_is_named(lines, unused):
    """The energy beside it is read from every telegram, and so is a number with many decimals."""
    source = SOURCES["p1"]({"type": "p1", "url": "tcp://127.0.0.1:1", "step": "15m"})
    good = [b"1-0:1.8.1*255(000001.0000000001*kWh) ", b"1-0:1.8.3(1.5*kWh)"]
    telegrams = [[b"0-0:1.0.0(231029%s00S)" % at, *good, *lines] for at in (b"0200", b"0215")]
    frames = [frame for lines in telegrams for frame in TelegramFramer().feed(sealed(lines))]
    readings = [
        reading
        for frame in frames
        for reading in source.normaliser.normalise(source.samples(RawFrame(frame, 0.0)))
    ]
    assert [(reading.stream, reading.value) for reading in readings] == [("elec.import.energy", 0)]
    assert any(name.rpartition(": ")[0] == unused for name in source.health()["unused"])


def read(name, **keys):
    """Return the energies and volumes by stream that a recording of plain telegrams gives."""
    source = SOURCES["replay"](
        {"type": "replay", "recorded_type": "p1", "path": str(name), "step": "1h", "max_gap": "2h"}
        | keys
    )
    found = {}
    for reading in source:
        if reading.seconds:
            found.setdefault(reading.stream, {})[reading.time] = reading.value
    return {
        stream: [round(v, 3) for v in values.values()] for stream, values in found.items()
    }, source


def day(tmp_path, *rows):
    """Write nine telegrams of half hours; ``%(a)s`` rises by 0.2 in each, ``%(at)s`` is the time.

    ``%(odd)s`` is the time, too, but in the fifth telegram one of the year 2068.
    """
    text = b""
    for n in range(9):
        at = f"2601201{n // 2}{30 * (n % 2):02d}00W".encode()
        odd = b"680101000000W" if n == 4 else at
        fill = {
            b"at": at,
            b"odd": odd,
            b"a": b"%.3f" % (100 + 0.2 * n),
            b"b": b"%.3f" % (50 + 0.05 * n),
        }
        text += sealed([b"0-0:1.0.0(%s)" % at, *(row % fill for row in rows)])
    (tmp_path / "day.p1").write_bytes(text)
    return tmp_path / "day.p1"


GAS_AT = b"0-%d:24.2.%d(%%(at)s)(%%(%s)s*m3)"


@pytest.mark.parametrize(
    ("rows", "keys", "expected"),
    [
        # tariffs in any number, with a total, and with a total that is not to be used
        ([b"1-0:1.8.1(7.0*kWh)", b"1-0:1.8.5(%(a)s*kWh)"], {}, {"elec.import.energy": [0.4] * 4}),
        ([b"1-0:2.8.12(%(a)s*kWh)"], {}, {"elec.export.energy": [0.4] * 4}),
        (
            [b"1-0:1.8.1(%(b)s*kWh)", b"1-0:1.8.0(%(a)s*kWh)"],
            {},
            {"elec.import.energy": [0.4] * 4},
        ),
        (
            [b"1-0:1.8.1(%(b)s*kWh)", b"1-0:1.8.0(%(a)s*kWh)"],
            {"map": {"1-0:1.8.0": False}},
            {"elec.import.energy": [0.1] * 4},
        ),
        (
            [b"1-0:1.8.1(%(b)s*kWh)", b"1-0:1.8.0(unknown)"],
            {},
            {"elec.import.energy": [0.1] * 4},
        ),
        # kinds of meters on any channel; a channel can be mapped or left out by itself
        ([WATER, GAS, GAS_AT % (2, 1, b"a")], {}, {}),
        (
            [WATER, GAS, GAS_AT % (2, 1, b"a"), GAS_AT % (1, 3, b"b")],
            {},
            {"gas.import.volume": [0.1] * 4},
        ),
        ([GAS, GAS_AT % (1, 1, b"a"), GAS_AT % (1, 3, b"b")], {}, {"gas.import.volume": [0.4] * 4}),
        ([GAS, b"0-1:24.2.1(%(odd)s)(%(a)s*m3)"], {}, {"gas.import.volume": [0.4] * 4}),
        (
            [GAS, b"0-3:24.1.0(003)", GAS_AT % (1, 1, b"a"), GAS_AT % (3, 1, b"b")],
            {},
            {"gas.import.volume": [0.5] * 4},
        ),
        (
            [GAS, b"0-3:24.1.0(003)", GAS_AT % (1, 1, b"a"), GAS_AT % (3, 1, b"b")],
            {"map": {"0-3:24.2.1": False}},
            {"gas.import.volume": [0.4] * 4},
        ),
        (
            [WATER, GAS_AT % (2, 1, b"a")],
            {"map": {"0-n:24.2.1/007": {"stream": "water", "kind": "register"}}},
            {"water": [0.4] * 4},
        ),
        (
            [b"0-4:24.1.0(002)", b"0-4:24.2.1(%(at)s)(%(b)s*kWh)", b"1-0:1.8.0(%(a)s*kWh)"],
            {"map": {"0-4:24.2.1": {"stream": "heat.pump", "kind": "register"}}},
            {"heat.pump": [0.1] * 4, "elec.import.energy": [0.4] * 4},
        ),
    ],
)
def test_what_a_value_means_is_part_of_its_identity(tmp_path, rows, keys, expected):
    assert read(day(tmp_path, *rows), **keys)[0] == expected


def test_every_code_is_used_or_named_once_with_the_number_of_telegrams(tmp_path):
    rows = [
        b"0-0:96.1.1(4530)",
        b"0-0:96.14.0(0002)",
        b"1-0:1.8.1(%(a)s*kWh)",
        GAS,
        b"0-1:24.4.0(1)",
    ]
    _, source = read(day(tmp_path, *rows), map={"0-0:96.14.0": "tariff"})
    assert source.health()["unused"] == {"0-n:24.4.0: not mapped": 9}
    assert source.streams >= {"tariff"}


def test_the_parser_of_others_reads_the_same_values(tmp_path):
    specifications = pytest.importorskip("dsmr_parser.telegram_specifications")
    parsers = pytest.importorskip("dsmr_parser.parsers")
    rows = [b"1-0:1.8.1(7.0*kWh)", b"1-0:1.8.2(%(a)s*kWh)", b"0-0:96.13.0(%%(a)s)" % {}]
    rows = [
        b"0-0:96.1.1(4530)",
        *rows[:2],
        GAS,
        WATER,
        GAS_AT % (1, 3, b"a"),
        GAS_AT % (2, 1, b"b"),
    ]
    text = day(tmp_path, *rows).read_bytes().decode("ascii")
    parser = parsers.TelegramParser(specifications.BELGIUM_FLUVIUS)
    for piece in text.split("/")[1:]:
        theirs = parser.parse("/" + piece)
        (frame,) = TelegramFramer().feed(b"/" + piece.encode("ascii"))
        ours = {sample.name: sample for sample in telegram(RawFrame(frame, 0.0))}
        assert ours["1-0:1.8.2"].value == float(theirs.ELECTRICITY_USED_TARIFF_2.value)
        by_kind = {
            one.MBUS_DEVICE_TYPE.value: one.MBUS_METER_READING for one in theirs.MBUS_DEVICES
        }
        for name, kind in (("0-n:24.2.3", 3), ("0-n:24.2.1/007", 7)):
            assert ours[name].value == float(by_kind[kind].value)
            assert ours[name].time == by_kind[kind].datetime.timestamp()


def test_a_message_with_slashes_does_not_break_the_frame():
    lines = [CLOCK, ENERGY, b"0-0:96.13.0(see /ABC5 http://x/y ! now)"]
    assert [sample.name for sample in decoded(lines) if not sample.fault] == ["1-0:1.8.1"]


@given(st.data())
def test_any_split_of_the_stream_yields_the_same_telegrams(data):
    stream = b"\x00junk/" + port.telegram(FACE, HOME) * 3 + b"/ABC5 unfinished"
    framer, found = TelegramFramer(), []
    while stream:
        size = data.draw(st.integers(1, 400))
        found += framer.feed(stream[:size])
        stream = stream[size:]
    assert found == [port.telegram(FACE, HOME)[:-6]] * 3


def test_older_meters_without_a_checksum_are_refused():
    framer = TelegramFramer()
    assert not list(framer.feed(b"/ABC5x\r\n\r\n1-0:1.8.1(1.0*kWh)\r\n!\r\n"))
    assert framer.rejected == {"no checksum": 1}


def test_encrypted_telegrams_are_refused_with_their_reason():
    """As the meters of Luxembourg and Austria send them; nothing here has their key."""
    chance, framer = random.Random(7), TelegramFramer()
    for count in range(40):
        head = b"\xdb\x08SAG" + chance.randbytes(5) + b"\x82\x02\xa0\x30"
        sealed_one = head + count.to_bytes(4, "big") + chance.randbytes(655)
        assert not list(framer.feed(sealed_one))
    assert framer.rejected["encrypted"] > 2
    assert "too long" not in framer.rejected
    assert list(framer.feed(port.telegram(FACE, HOME))), "a meter that was opened is read"


def mutated(text, chance):
    """Damage a telegram as a bad decoder or a hostile meter would, and seal it."""
    body = bytearray(text[:-6])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(1, len(body) - 1)
        how = chance.randrange(5)
        if how == 0:
            body[at] = chance.randrange(256)
        elif how == 1:
            del body[at : at + chance.randint(1, 40)]
        elif how == 2:
            body[at:at] = bytes(
                chance.choices(b"0123456789().*:-/!\r\nkWhSW", k=chance.randint(1, 30))
            )
        elif how == 3:
            piece = body[at : at + 60]
            body[at:at] = piece
        else:
            body[at : at + 1] = chance.choice([b"NaN", b"1e400", b"\xff\xfe", b"9" * 200, b"("])
    while body[-1:] == b"!":
        del body[-1:]
    body += b"!"
    return bytes(body) + b"%04X\r\n" % crc16(bytes(body))


@pytest.mark.slow
def test_ten_thousand_mutated_telegrams_are_decoded_or_rejected():
    """Every checksum is right: what a transmission error would hide reaches the decoder."""
    chance = random.Random(20)
    source = SOURCES["p1"]({"type": "p1", "url": "tcp://127.0.0.1:1"})
    framer, good = TelegramFramer(), port.telegram(FACE, HOME)
    frames = 0
    for _ in range(10_000):
        for payload in framer.feed(mutated(good, chance)):
            frames += 1
            readings = list(source.normaliser.normalise(source.samples(RawFrame(payload, 0.0))))
            assert all(0 <= reading.value < 1e6 for reading in readings)
    assert frames > 8_000
    assert source.accepted + source.rejected.total() == frames
    assert "undecodable" not in source.rejected
    assert {"bad value", "bad time", "told twice"} <= set(source.normaliser.counts)
    assert len(source.unused) <= 65
    assert list(framer.feed(good)) == [good[:-6]]


def test_a_hundred_megabytes_of_noise_leave_memory_flat():
    framer, chance = TelegramFramer(), random.Random(1)
    pieces = [chance.randbytes(4096) for _ in range(64)]
    tracemalloc.start()
    for number in range(25_600):
        list(framer.feed(pieces[number % 64]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * LONGEST
    assert framer.rejected["too long"] > 0
    assert list(framer.feed(port.telegram(FACE, UTC)))
