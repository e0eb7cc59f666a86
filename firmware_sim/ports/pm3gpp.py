"""Performance files of an element manager, after TS 32.435 and TS 28.532, with vendors' variants.

The writer shares no code with the SDK's reader; the tests read its files with that reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Literal
from xml.sax.saxutils import quoteattr

from firmware_sim.profiles.station import Load

Standard = Literal["32.435", "28.532"]

# counters of TS 28.552 that every cell has, in the order of writing, and ``Load``'s field
COUNTERS = (
    ("DRB.PdcpSduVolumeDL", "dl"),
    ("DRB.PdcpSduVolumeUL", "ul"),
    ("RRU.PrbTotDl", "dl_blocks"),
    ("RRU.PrbTotUl", "ul_blocks"),
    ("RRC.ConnMean", "users"),
)

POWER = "PEE.AvgPower"  # counter of the whole element: its mean power in watts


@dataclass(frozen=True, slots=True)
class MeasurementReport:
    """Content of one file: one period of one station."""

    element: str  # name of the station
    begin: int  # start of the period, Unix seconds
    seconds: int  # length of the period
    load: Load  # load of that period, arrays of shape ``(1, cells)``
    zone: tzinfo = UTC  # time zone of the written times
    suspect: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()  # cells without values

    @property
    def name(self) -> str:
        """Return the file's name by TS 32.432, without colons and pluses, for file systems."""
        start, end = self._time(self.begin), self._time(self.begin + self.seconds)
        return f"A{start:%Y%m%d.%H%M%z}-{end:%H%M%z}_{self.element}.xml"

    def _time(self, moment: int) -> datetime:
        return datetime.fromtimestamp(moment, self.zone)

    @property
    def power(self) -> float:
        return round(float(self.load.power.sum()), 1)

    def stamp(self, moment: int, *, colon: bool = True) -> str:
        """Return a time as it is written in a file.

        >>> one = MeasurementReport("n", 0, 900, Load(*[None] * 6))
        >>> one.stamp(0), one.stamp(0, colon=False)
        ('1970-01-01T00:00:00+00:00', '1970-01-01T00:00:00+0000')
        """
        text = self._time(moment).isoformat(timespec="seconds")
        return text if colon else text[:-3] + text[-2:]

    def rows(self) -> list[tuple[str, list[str], bool]]:
        """Return every cell's name, its values as text, and True if they are suspect."""
        rows = []
        for cell in range(self.load.dl.shape[1]):
            exact = [repr(float(getattr(self.load, field)[0, cell])) for _, field in COUNTERS]
            values = ["NIL"] * len(exact) if cell in self.missing else exact
            rows.append((f"GNBDUFunction=1,NRCellDU={cell + 1}", values, cell in self.suspect))
        return rows


def written(report: MeasurementReport, standard: Standard) -> bytes:
    return (_collected if standard == "32.435" else _streamed)(report).encode("utf-8")


def _collected(report: MeasurementReport) -> str:
    """Return a TS 32.435 file: counters as one list, results as another."""
    end = report.stamp(report.begin + report.seconds)
    period = f'<granPeriod duration="PT{report.seconds}S" endTime="{end}"/>'
    values = "\n".join(
        f"<measValue measObjLdn={quoteattr(name)}><measResults>{' '.join(values)}</measResults>"
        f"{'<suspect>true</suspect>' if is_suspect else ''}</measValue>"
        for name, values, is_suspect in report.rows()
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<?xml-stylesheet type="text/xsl" href="MeasDataCollection.xsl"?>
<measCollecFile xmlns="http://www.3gpp.org/ftp/specs/archive/32_series/32.435#measCollec">
<fileHeader fileFormatVersion="32.435 V10.0" vendorName="gridfed-sim">
<fileSender localDn={quoteattr(report.element)} elementType="gNB"/>
<measCollec beginTime="{report.stamp(report.begin)}"/></fileHeader>
<measData><managedElement localDn={quoteattr(report.element)}/>
<measInfo measInfoId="traffic">{period}
<repPeriod duration="PT{report.seconds}S"/>
<measTypes>{" ".join(counter for counter, _ in COUNTERS)}</measTypes>
{values}
</measInfo>
<measInfo measInfoId="energy">{period}
<measTypes>{POWER}</measTypes>
<measValue measObjLdn=""><measResults>{report.power!r}</measResults></measValue>
</measInfo></measData>
<fileFooter><measCollec endTime="{end}"/></fileFooter></measCollecFile>
"""


def _streamed(report: MeasurementReport) -> str:
    """Return a TS 28.532 file in a vendor's form: a leading instruction, offsets without colon."""
    end = report.stamp(report.begin + report.seconds, colon=False)
    period = f'<granPeriod duration="PT{report.seconds}S" endTime="{end}"/>'
    types = "".join(
        f'<measType p="{place}">{counter}</measType>'
        for place, (counter, _) in enumerate(COUNTERS, 1)
    )
    values = "\n".join(
        f"<measValue measObjLdn={quoteattr(name)}>{_results(values)}"
        f"<suspect>{str(is_suspect).lower()}</suspect></measValue>"
        for name, values, is_suspect in report.rows()
    )
    return f"""<?gridfed-sim made up?>
<?xml version="1.0" encoding="UTF-8"?>
<measDataFile xmlns="http://www.3gpp.org/ftp/specs/archive/28_series/28.532#measData">
<fileHeader fileFormatVersion="28.532 V16.0" vendorName="gridfed-sim">
<fileSender senderName={quoteattr(report.element)} senderType="gNBDU"/>
<measData beginTime="{report.stamp(report.begin, colon=False)}"/></fileHeader>
<measData><measEntity localDn={quoteattr(report.element)} userLabel=""/>
<measInfo>{period}
<repPeriod duration="PT{report.seconds}S"/>{types}
{values}
</measInfo>
<measInfo>{period}<measType p="1">{POWER}</measType>
<measValue measObjLdn=""><r p="1">{report.power!r}</r></measValue>
</measInfo></measData>
<fileFooter><measData endTime="{end}"/></fileFooter></measDataFile>
"""


def _results(values: Sequence[str]) -> str:
    return "".join(
        f'<r p="{place}">{"" if value == "NIL" else value}</r>'
        for place, value in enumerate(values, 1)
    )
