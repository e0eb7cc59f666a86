"""State in sentences the way of forecasting that would help a fleet, and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firmware_sim.evaluation.centralised import LIGHTGBM
from firmware_sim.evaluation.comparison import REPEATED, SERVED, HorizonComparison
from firmware_sim.evaluation.records import FleetRecords, span
from firmware_sim.results import short

MATTERS = 0.01  # relative change of the error below which a device counts as unchanged


def verdict(found: HorizonComparison, records: FleetRecords) -> list[str]:
    """Return the sentences for one horizon, the answer first."""
    devices = len(found.scores)
    ahead = span(found.ahead * records.step)
    change = found.relative(SERVED, found.local) - 1.0
    better, worse = found.counts(SERVED, MATTERS)
    naive = min(REPEATED, key=found.relative)
    gain = 1.0 - found.relative(SERVED) / found.relative(naive)
    learned = min(found.relative(way) for way in (SERVED, found.local))
    is_learning_useful = learned < (1.0 - MATTERS) * found.relative(naive)
    answer = _answer(change, better, worse, "" if is_learning_useful else naive)
    repeated = found.relative(naive, "yesterday")
    new = _for_new_devices(found.cold, repeated, has_help=answer == HELPS)
    lines = [
        f"{ahead} ahead: {answer}{new}",
        (
            f"Best on held-back days: {found.federated} with a fleet, {found.local} without one."
            f" Best on the test days: {found.best}."
        ),
        (
            f"Served with the fleet, the error is {_change(change)} than alone ({found.local}):"
            f" {better} of {devices} devices gain more than 1 %, {worse} lose more than 1 %."
        ),
        f"Against the best forecast without learning ({naive}) it is {_change(-gain)}.",
    ]
    if LIGHTGBM in found.ways:
        share = found.relative(SERVED, LIGHTGBM) - 1.0
        lines.append(
            f"Against {LIGHTGBM}, trained on all readings in one place, it is {_change(share)}."
        )
    if found.cold:
        lines.append(_history(found))
    up, down = found.traffic[SERVED]
    lines.append(f"A device sends {short(up)} and receives {short(down)} in all.")
    return lines


HELPS = "a fleet would help."


def _answer(change: float, better: int, worse: int, naive: str = "") -> str:
    """Return the answer to whether a fleet would help, by a fixed rule.

    >>> _answer(-0.03, 5, 1), _answer(-0.001, 2, 2)[:32], _answer(0.02, 0, 4)[:22]
    ('a fleet would help.', 'a fleet would make no difference', 'a fleet would not help')
    >>> _answer(-0.03, 5, 1, "last week")
    'neither a fleet nor a model of its own helps these devices: repeating last week is as good.'
    """
    if naive:
        reading = naive if naive != "last value" else "the last value"
        return f"neither a fleet nor a model of its own helps these devices: repeating {reading} is as good."
    if change < -MATTERS and better > worse:
        return HELPS
    if change > MATTERS:
        return "a fleet would not help devices with this much history; let each learn alone."
    if change < -MATTERS:
        return "a fleet would help some devices and harm as many; let each learn alone."
    return "a fleet would make no difference to devices with this much history."


def _for_new_devices(
    cold: Mapping[int, tuple[float, float]], naive: float, *, has_help: bool
) -> str:
    """Return the sentence that limits a negative answer: new devices may gain all the same.

    They gain with a history after which the error with the fleet is more than 1 % below that alone and
    that of the best repeated reading.

    >>> _for_new_devices({7: (1.04, 0.86), 14: (0.82, 0.85)}, 1.0, has_help=False)
    ' It would help a new device in its first 7 days.'
    >>> _for_new_devices({7: (0.9, 0.8)}, 0.79, has_help=False)
    ''
    """
    gains = [
        days for days, (own, helped) in cold.items() if helped < (1 - MATTERS) * min(own, naive)
    ]
    if has_help or not gains:
        return ""
    return f" It would help a new device in its first {max(gains)} days."


def _history(found: HorizonComparison) -> str:
    days, (alone, helped) = next(iter(found.cold.items()))
    text = (
        f"A new device with {days} days of history has an error {_change(helped / alone - 1.0)}"
        " with the fleet than alone"
    )
    enough = next((d for d, (error, _) in found.cold.items() if error <= helped), None)
    if helped >= alone:
        return text + "."
    wait = f"{enough} days" if enough else f"more than {max(found.cold)} days"
    return f"{text}; alone it needs {wait} to reach that."


def table(found: HorizonComparison, records: FleetRecords) -> str:
    """Return one row for each way: its error, the devices that it helps, its bytes."""
    head = "MAE, " + span(found.ahead * records.step) + " ahead"
    devices = f"of {len(found.scores)} devices"
    lines = [
        f"{head:22}{'to last':>9}{'to':>12}{devices:>18}{'bytes a':>12}{'bytes':>12}",
        f"{'':22}{'week':>9}{found.local:>12}{'better':>9}{'worse':>9}{'device sends':>14}{'receives':>10}",
    ]
    for way in found.ways:
        better, worse = found.counts(way, MATTERS)
        up, down = found.traffic.get(way, (0, 0))
        sent = short(up) if up else "-"
        taken = short(down) if down else "-"
        lines.append(
            f"{way:22}{found.relative(way):9.3f}{found.relative(way, found.local):12.3f}"
            f"{better:9}{worse:9}{sent:>14}{taken:>10}"
        )
    gates = ", ".join(f"{name} on {count}" for name, count in found.served_by.most_common())
    lines.append(f"{SERVED} is the choice of each device's gate: {gates}")
    return "\n".join([*lines, *found.notes])


def cold_start(found: HorizonComparison) -> str:
    """Return the cold-start curve as text; empty without one."""
    if not found.cold:
        return ""
    days = "".join(f"{day:>10} d" for day in found.cold)
    alone = "".join(f"{pair[0]:12.3f}" for pair in found.cold.values())
    helped = "".join(f"{pair[1]:12.3f}" for pair in found.cold.values())
    title = "days of history"
    return f"{title:16}{days}\n{'alone':16}{alone}\n{'with the fleet':16}{helped}"


def as_json(found: Sequence[HorizonComparison], records: FleetRecords) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "detected": records.notes,
        "zone": records.zone,
        "step_seconds": records.step,
        "horizons": [
            {
                "ahead_seconds": one.ahead * records.step,
                "best": one.best,
                "federated": one.federated,
                "local": one.local,
                "verdict": verdict(one, records),
                "notes": one.notes,
                "relative_to_last_week": {way: one.relative(way) for way in one.ways},
                "devices": [
                    {
                        "device": s.device,
                        "windows": s.windows,
                        "mae": dict(s.mae),
                        "serves": s.chosen,
                    }
                    for s in one.scores
                ],
                "cold_start": {
                    str(days): {"alone": alone, "with_fleet": helped}
                    for days, (alone, helped) in one.cold.items()
                },
                "bytes": {way: {"up": up, "down": down} for way, (up, down) in one.traffic.items()},
                "processor_seconds": one.seconds,
            }
            for one in found
        ],
    }


def _change(relative: float) -> str:
    """Return a relative change as text.

    >>> _change(-0.034), _change(0.012)
    ('3.4 % smaller', '1.2 % larger')
    """
    return f"{abs(100 * relative):.1f} % {'smaller' if relative <= 0 else 'larger'}"
