"""Telegrams as meters write them, and as noise leaves them."""

from __future__ import annotations

import random
import tracemalloc
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.sources import SOURCES
from edge_sdk.sources.base import RawFrame, Rejected
from edge_sdk.sources.p1 import LONGEST, TelegramFramer, crc16, telegram
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
        ([CLOCK, b"1-0:1.8.1(NaN*kWh)"], "bad value"),
        ([CLOCK, b"1-0:1.8.1(-1.0*kWh)"], "bad value"),
        ([CLOCK, b"1-0:1.8.1(1e9*kWh)"], "bad value"),
        ([CLOCK, ENERGY, b"1-0:1.8.1(000000.001*kWh)"], "told twice"),
        ([CLOCK, ENERGY, b"0-0:96.13.0(\xff)"], "not ASCII"),
        ([CLOCK, ENERGY, b"0-1:24.2.1(231029020000S)"], None),
        ([CLOCK, ENERGY, b"0-1:24.2.1(231029020000Q)(00001.000*m3)"], "bad time"),
    ],
)
def test_an_invalid_telegram_is_rejected_with_a_reason(lines, reason):
    if reason is None:
        assert [sample.name for sample in decoded(lines)] == ["1-0:1.8.1"]
        return
    with pytest.raises(Rejected, match=f"^{reason}$"):
        decoded(lines)


def test_a_total_register_is_not_added_to_the_tariffs():
    lines = [
        CLOCK,
        b"1-0:1.8.0(000003.000*kWh)",
        b"1-0:1.8.1(000001.000*kWh)",
        b"1-0:1.8.2(000002.000*kWh)",
    ]
    assert [(sample.name, sample.value) for sample in decoded(lines)] == [("1-0:1.8.0", 3.0)]


def test_a_message_with_slashes_does_not_break_the_frame():
    lines = [CLOCK, ENERGY, b"0-0:96.13.0(see /ABC5 http://x/y ! now)"]
    assert len(decoded(lines)) == 1


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
    assert {"bad value", "bad time"} <= set(source.rejected)
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
