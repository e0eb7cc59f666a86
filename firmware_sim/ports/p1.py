"""Telegrams of a household meter's P1 port, as a DSMR 5 or ESMR 5 meter writes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo


def checksum(data: bytes) -> int:
    """Return CRC-16/ARC, bit by bit.

    >>> hex(checksum(b"123456789"))
    '0xbb3d'
    """
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xA001 * (crc & 1))
    return crc


@dataclass(frozen=True, slots=True)
class MeterDisplay:
    """Display of a meter at one moment."""

    time: float  # Unix seconds, by the meter's own clock
    imported: tuple[int, int]  # wh drawn so far under tariff 1 (low) and 2 (normal)
    exported: tuple[int, int] = (0, 0)  # wh fed in so far, as above
    power: int = 0  # present power in W; negative feeds in
    # Litres so far, and the Unix seconds of their own reading; None without a gas meter
    gas: tuple[int, float] | None = None
    tariff: int = 2  # 1 or 2


def clock(time: float, zone: tzinfo) -> str:
    """Return local time with S for summer and W for winter.

    >>> from zoneinfo import ZoneInfo
    >>> [clock(t, ZoneInfo("Europe/Amsterdam")) for t in (1698541199, 1698541200)]
    ['231029025959S', '231029020000W']
    """
    local = datetime.fromtimestamp(time, UTC).astimezone(zone)
    return f"{local:%y%m%d%H%M%S}{'S' if local.dst() else 'W'}"


def telegram(display: MeterDisplay, zone: tzinfo, serial: str = "E0000000000000001") -> bytes:
    r"""Return one telegram, with checksum and end of line.

    >>> telegram(MeterDisplay(1698541199, (1500, 2000)), UTC)[-7:-6]
    b'!'
    """
    low, normal = display.imported
    fed_low, fed_normal = display.exported
    lines = [
        "/GFD5\\253gridfed-sim",
        "",
        "1-3:0.2.8(50)",
        f"0-0:1.0.0({clock(display.time, zone)})",
        f"0-0:96.1.1({serial.encode().hex().upper()})",
        f"1-0:1.8.1({_kilo(low, 6)}*kWh)",
        f"1-0:1.8.2({_kilo(normal, 6)}*kWh)",
        f"1-0:2.8.1({_kilo(fed_low, 6)}*kWh)",
        f"1-0:2.8.2({_kilo(fed_normal, 6)}*kWh)",
        f"0-0:96.14.0({display.tariff:04d})",
        f"1-0:1.7.0({_kilo(max(display.power, 0), 2)}*kW)",
        f"1-0:2.7.0({_kilo(max(-display.power, 0), 2)}*kW)",
        "0-0:96.7.21(00002)",
        "0-0:96.7.9(00001)",
        "1-0:99.97.0()",
        "0-0:96.13.0()",
        f"1-0:32.7.0({230 + display.time % 3:.1f}*V)",
    ]
    if display.gas is not None:
        litres, read = display.gas
        lines += [
            "0-1:24.1.0(003)",
            f"0-1:96.1.0({serial.encode()[::-1].hex().upper()})",
            f"0-1:24.2.1({clock(read, zone)})({_kilo(litres, 5)}*m3)",
        ]
    body = ("\r\n".join(lines) + "\r\n!").encode("ascii")
    return body + f"{checksum(body):04X}\r\n".encode()


def _kilo(thousandths: int, digits: int) -> str:
    """Return thousandths as a fixed number of digits, a point, and three more.

    >>> _kilo(1234, 6)
    '000001.234'
    """
    return f"{thousandths // 1000 % 10**digits:0{digits}d}.{thousandths % 1000:03d}"
