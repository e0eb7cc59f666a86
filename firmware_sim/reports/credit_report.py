"""Credit among the devices of a run, from the aggregator's own command."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from firmware_sim.fleet.processes import ProgramRefused, command, run

PICTURE = "credit.svg"


@dataclass(frozen=True, slots=True)
class CreditReport:
    """Weights of devices' models for one another."""

    # weight for each device of each other, by version; zeros are left out
    credit: Mapping[int, Mapping[str, Mapping[str, float]]]
    text: str  # the same as a table, with the weight that most others give each
    picture: Path  # the heat map

    def marked(self, byzantine: Collection[str]) -> str:
        r"""Return the table with the Byzantine devices marked.

        >>> print(CreditReport({}, "version  1\na      .50\nb        0", Path("x")).marked({"b"}))
        version  1
        a      .50
        b        0  Byzantine
        """
        return "\n".join(
            f"{line}  Byzantine" if line.split(" ", 1)[0] in byzantine else line
            for line in self.text.splitlines()
        )

    def since(self, device: str) -> int | None:
        """Return the version from which most others gave a device no weight; None for never.

        >>> rounds = {1: {"a": {"b": 0.5}, "b": {}}, 2: {"a": {}, "b": {"b": 1.0}}, 3: {"a": {}}}
        >>> CreditReport(rounds, "", Path("x")).since("b"), CreditReport(rounds, "", Path("x")).since("a")
        (2, 1)
        """
        found = None
        for version in sorted(self.credit, reverse=True):
            rows = self.credit[version]
            others = [row.get(device, 0.0) for name, row in rows.items() if name != device]
            if others and median(others) > 0.0:
                return found
            found = version
        return found


def read_credit(config: Path, out: Path) -> CreditReport | None:
    """Return the credit in the aggregator's database, beside the daemon or after it.

    Returns:
        None where no round has weighed models for one another.

    Raises:
        Died: The command failed.
    """
    picture = out / PICTURE
    arguments = ("credit", str(config), "--out", str(picture))
    try:
        found: dict[str, Any] = json.loads(run(command("gridfed-aggregator", *arguments, "--json")))
    except ProgramRefused:
        return None
    text = run(command("gridfed-aggregator", *arguments))
    credit = {int(version): rows for version, rows in found["credit"].items()}
    table = [line for line in text.splitlines() if not line.startswith("heat map:")]
    return CreditReport(credit, "\n".join(table), picture)
