"""Derive the quantity of a column or register from its name, in the languages of meters and portals."""

from __future__ import annotations

import re
from typing import Final, Literal

Flow = Literal["import", "export"]

READING: Final = re.compile(
    r"value|load|energ|power|consum|demand|import|usage|traffic|internet|volume|verbr|leistung|kwh|kw\b|mw\b|wh\b",
    re.IGNORECASE,
)
"""Names of columns that are taken for the reading where a file has several columns of numbers."""

IDENTIFIER: Final = re.compile(
    r"(^|[^a-z])(id|ean|cups|mpan|mprn|nmi|esiid|meter|serial|account|customer|code|nr|no)([^a-z]|$)",
    re.IGNORECASE,
)
"""Names of columns that identify a meter or its owner."""

HOUR: Final = re.compile(r"hour|hora|heure|stunde|uur|\bora\b|\bhr\b|\bhe\b|period", re.IGNORECASE)
"""Names of columns with the number of an hour."""

CLOCK_NAME: Final = re.compile(rf"{HOUR.pattern}|time|zeit|uhr|tijd|orario", re.IGNORECASE)
"""Names of columns with a time of day."""

END: Final = re.compile(
    r"(^|[^a-z])(end|ending|ende|bis|tot|fin|hasta|until|to)([^a-z]|$)", re.IGNORECASE
)
"""Names of columns with the ends of intervals."""

_EXPORT = re.compile(
    r"injec|export|terug|einspeis|lieferung|return|feed.?in|vertid|excedent|surplus|produc|generat"
    r"|received|reverse|immess|immiss|delivered.?by|\ba-|2\.8\.\d",
    re.IGNORECASE,
)
_IMPORT = re.compile(
    r"afname|afgenomen|import|verbruik|verbrauch|bezug|entnahme|consum|usage|delivered|levering|preliev"
    r"|soutir|withdraw|forward|\ba\+|1\.8\.\d",
    re.IGNORECASE,
)
_TARIFF = re.compile(
    r"(?<![a-z])(?:day|night|dag|nacht|tag|jour|nuit|piek|dal|hoog|laag|normaal|off.?peak|peak)(?![a-z])"
    r"|(?<![a-z])(?:tariff?|t|ht|nt|hp|hc|p)[ _]?\d?(?![a-z0-9])",
    re.IGNORECASE,
)
_BY_TIME = re.compile(
    r"(?<![a-z])(?:day|night|dag|nacht|jour|nuit|peak|off.?peak)(?![a-z])", re.IGNORECASE
)
_ENDINGS = {
    *("tion", "tie", "tiva", "ed", "ptie", "ption", "o", "s", "e", "ung", "g", "to", "client")
}  # remainder of a word after the patterns


def flow(name: str) -> Flow | None:
    """Return which way the energy of a column or register flows by its name, or None.

    >>> flow("Injectie Nacht"), flow("Afname Dag"), flow("consumo_kWh"), flow("Station 4")
    ('export', 'import', 'import', None)
    """
    if _EXPORT.search(name):
        return "export"
    return "import" if _IMPORT.search(name) or _BY_TIME.search(name) else None


def has_tariff(name: str) -> bool:
    """Return whether the name of a flow has a tariff: without one it is the total.

    >>> has_tariff("Import T1 kWh"), has_tariff("Import kWh")
    (True, False)
    """
    return bool(_TARIFF.search(name))


def meter_of(name: str) -> str:
    """Return the meter in a name: the name without flow and tariff.

    >>> meter_of("Import T1 kWh") == meter_of("Export T2 kWh"), meter_of("consumption House 3")
    (True, 'house3')
    """
    way = _EXPORT if _EXPORT.search(name) else _IMPORT
    words = re.findall(r"[a-z]+|\d+", _TARIFF.sub(" ", way.sub(" ", name)).lower())
    return "".join(word for word in words if word not in _ENDINGS)
