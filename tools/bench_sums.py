"""Measure what secure sums cost: bytes and processor of a device's message, and a witness's speed and memory.

    python tools/bench_sums.py                     # sets of 5,000 members of 192 numbers
    python tools/bench_sums.py --members 1000
    python tools/bench_sums.py --days 30 --devices 5000     # and every sum of a month, bit for bit

Processor times are of one process and one thread, the median of repetitions. Bytes are those of a body,
without the envelope that every message has. The witness's memory is the largest of
``gridfed-witness open``. With ``--days`` devices on feeders of 250 mask 24 numbers for every day, a witness
opens each set, and each opened sum is compared with the plain one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

from aggregator.extensions.sums.sum_set import SumMember, SumSet, opened_total, read_answer
from aggregator.extensions.sums.witness_record import WitnessKeys, WitnessRecord
from edge_sdk.extensions.sums.masked_sum import (
    FollowedContract,
    SumContext,
    added,
    masked_message,
    rounded,
    unpacked,
)
from edge_sdk.extensions.sums.messages import SumContract
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.keys import Signer, SigningKey, from_seed, save_signing_key
from firmware_sim.fleet.processes import peak_kilobytes

DAY = 86_400_000
SIGNING: SigningKey = from_seed(b"\5" * 32)
KEYS = WitnessKeys(SIGNING, ExchangeKey(bytes(range(32))))
FEEDER = 250
"""Devices of a feeder."""


def contract(length: int, noise: float = 0.0) -> FollowedContract:
    """Return a contract of one day; lengths that do not divide it have a period of as many seconds."""
    period = DAY if DAY % length == 0 else 1000 * length
    terms = ("feeder", "history", "elec.import.power", "kW", length, -30.0, 60.0, 0.001)
    witness = 30 * 3_600_000, 8, KEYS.open.public
    return FollowedContract.read(
        encode(SumContract(*terms, period, *witness, cohort="feeder", Noise=noise))
    )


def seconds(work: Callable[[], object], times: int) -> float:
    """Return the median of the processor seconds of some calls."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return float(np.median(found))


def device_costs(length: int, times: int, noise: float = 0.0) -> tuple[float, int]:
    """Return the processor seconds of a message, and its bytes over those of the plain vector."""
    of, signer = contract(length, noise), from_seed(b"\7" * 32)
    context = SumContext("north", "meter-0042", of.digest, of.terms.period)
    values = np.random.default_rng(0).uniform(-30, 60, length)
    taken = seconds(lambda: masked_message(values, of, context, signer), times)
    message = masked_message(values, of, context, signer)
    plain = {"enc": message.enc, "proof": message.proof}  # what the plain vector's message lacks
    return taken, sum(len(encoded) for encoded in map(_entry, plain, plain.values()))


def _entry(key: str, value: bytes) -> bytes:
    """Return an entry of a header: a short text and a short binary of msgpack."""
    return bytes([0xA0 | len(key)]) + key.encode() + bytes([0xC4, len(value)]) + value


def devices(count: int) -> dict[str, Signer]:
    return {f"meter-{n:06d}": from_seed(n.to_bytes(32, "big")) for n in range(1, count + 1)}


def masked_set(
    of: FollowedContract, period: int, values: dict[str, np.ndarray], signers: dict[str, Signer]
) -> tuple[SumSet, list[np.ndarray]]:
    """Return the set of one message of every device, and the masked vectors."""
    members, masked = [], []
    for name, row in values.items():
        context = SumContext("north", name, of.digest, period)
        one = masked_message(row, of, context, signers[name])
        members.append(SumMember(name, hashlib.sha256(one.blob).digest(), one.enc, one.proof))
        masked.append(unpacked(one.blob, of.terms.length))
    found = SumSet("north", of, encode(of.terms), period, "F12", tuple(members))
    return found, masked


def witness_costs(count: int, length: int) -> tuple[float, float]:
    """Return members a second of one set, and the largest memory of ``gridfed-witness open`` in MiB."""
    signers, of = devices(count), contract(length)
    rows = dict.fromkeys(signers, np.zeros(length))
    enrolled = [(name, one.public) for name, one in signers.items()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "one.set"
        file.write_bytes(masked_set(of, DAY, rows, signers)[0].write())
        save_signing_key(folder / "sign.key", SIGNING)
        (folder / "open.key").write_text(KEYS.open.raw.hex())
        with WitnessRecord(folder / "first.db") as record:
            record.enrol("north", enrolled)
            taken = seconds(lambda: record.open(file.read_bytes(), KEYS), 1)
        with WitnessRecord(folder / "second.db") as record:
            record.enrol("north", enrolled)
        words = [sys.executable, "-m", "aggregator.extensions.model_log", "open", str(file)]
        for option, of_it in (
            ("key", "sign.key"),
            ("open-key", "open.key"),
            ("record", "second.db"),
        ):
            words += [f"--{option}", str(folder / of_it)]
        program = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT)
        peak = 0
        while program.poll() is None:  # what wait4 tells includes this process at the fork
            peak = max(peak, peak_kilobytes(program.pid))
            time.sleep(0.01)
    if program.returncode:
        raise RuntimeError(f"gridfed-witness open ended with {program.returncode}")
    return count / taken, peak / 1024


def month(count: int, days: int) -> Iterator[str]:
    """Mask, open and compare every sum of some days; yield the rows of sums, time and memory.

    Raises:
        AssertionError: A sum differs from the plain one.
    """
    signers, of, began = devices(count), contract(24), time.process_time()
    names, draw, sums, device_time = list(signers), np.random.default_rng(1), 0, 0.0
    with tempfile.TemporaryDirectory() as folder, WitnessRecord(Path(folder) / "w.db") as record:
        record.enrol("north", [(name, one.public) for name, one in signers.items()])
        for day in range(1, days + 1):
            for first in range(0, count, FEEDER):
                mine = names[first : first + FEEDER]
                values = {name: draw.uniform(-35, 65, 24) for name in mine if draw.random() < 0.9}
                at = time.process_time()
                one, masked = masked_set(of, day * DAY, values, signers)
                device_time += time.process_time() - at
                answer = read_answer(record.open(one.write(), KEYS))
                answer.require_from(KEYS.sign.public)
                plain = added((rounded(row, of.terms) for row in values.values()), 24)
                if (opened_total(masked, answer) != plain).any():
                    raise AssertionError(
                        f"the sum of feeder {first // FEEDER} on day {day} differs"
                    )
                sums += 1
        size = (Path(folder) / "w.db").stat().st_size / 1e6
    taken = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield f"| {count:,} devices x {days} days: sums equal bit for bit | {sums:,} of {sums:,} |"
    yield f"| the same: processor, of it the devices', s | {taken:.0f}, {device_time:.0f} |"
    yield f"| the same: memory of everything, MiB; witness's record, MB | {peak:.0f}; {size:.0f} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=5000, help="of the witness's set (5000)")
    parser.add_argument("--times", type=int, default=300, help="repetitions (300)")
    parser.add_argument("--days", type=int, default=0, help="also every sum of so many days")
    parser.add_argument("--devices", type=int, default=5000, help="of these days (5000)")
    options = parser.parse_args(arguments)
    small, more = device_costs(192, options.times)
    large, _ = device_costs(212_500, max(options.times // 10, 3))
    noisy, _ = device_costs(212_500, max(options.times // 10, 3), 120.0)
    speed, memory = witness_costs(options.members, 192)
    print("| cost | measured |")
    print("| --- | --- |")
    print(f"| bytes over the plain vector | {more} |")
    print(f"| device, a message of 192 numbers, ms | {1e3 * small:.2f} |")
    print(f"| device, a message of 1.7 MB, ms | {1e3 * large:.1f} |")
    print(f"| device, the same with noise, ms | {1e3 * noisy:.1f} |")
    print(f"| witness, members a second of a set of {options.members:,} | {speed:,.0f} |")
    print(f"| witness, largest memory, MiB | {memory:.0f} |", flush=True)
    for line in month(options.devices, options.days) if options.days else ():
        print(line, flush=True)


if __name__ == "__main__":
    main()
